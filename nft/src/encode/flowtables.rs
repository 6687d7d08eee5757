//! Flowtables, written directly: libnftnl's objects take the interfaces as one list, which the kernel limits.

use std::ffi::{CString, NulError};

use super::{Message, set_message_len};
use crate::object::{Flowtable, TableName};
use crate::wire::Writer;

/// `linux/netlink.h`, `linux/netfilter/nf_tables.h`.
mod number {
    pub(super) const NLM_F_REQUEST: u16 = 1;
    pub(super) const NLM_F_CREATE: u16 = 0x400;
    pub(super) const NEW_FLOWTABLE: u16 = 10 << 8 | 22;

    pub(super) const TABLE: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const HOOK: u16 = 3;

    pub(super) const HOOK_NUMBER: u16 = 1;
    pub(super) const HOOK_PRIORITY: u16 = 2;
    pub(super) const HOOK_DEVICES: u16 = 3;
    pub(super) const DEVICE_NAME: u16 = 1;
    /// `NF_NETDEV_INGRESS`.
    pub(super) const INGRESS: u32 = 0;
}

/// Interfaces in one message: the kernel takes at most 256. A further message adds further ones.
const DEVICES: usize = 128;

/// The messages that add a flowtable, or interfaces to it.
pub(super) fn messages(table: &TableName, flowtable: &Flowtable) -> Result<Vec<Message>, NulError> {
    for name in [&*table.name, &*flowtable.name].into_iter().chain(flowtable.devices.iter().map(|name| &**name)) {
        CString::new(name)?;
    }
    if flowtable.devices.is_empty() {
        return Ok(vec![message(table, flowtable, &[]).into()]);
    }
    Ok(flowtable.devices.chunks(DEVICES).map(|devices| message(table, flowtable, devices).into()).collect())
}

fn message(table: &TableName, flowtable: &Flowtable, devices: &[std::sync::Arc<str>]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.raw(&[0; 4]);
    writer.raw(&number::NEW_FLOWTABLE.to_ne_bytes());
    writer.raw(&(number::NLM_F_REQUEST | number::NLM_F_CREATE).to_ne_bytes());
    writer.raw(&[0; 8]);
    writer.raw(&[table.family.number(), 0, 0, 0]);
    writer.str(number::TABLE, &table.name);
    writer.str(number::NAME, &flowtable.name);
    let hook = writer.open(number::HOOK);
    writer.u32(number::HOOK_NUMBER, number::INGRESS);
    writer.u32(number::HOOK_PRIORITY, flowtable.priority.cast_unsigned());
    let list = writer.open(number::HOOK_DEVICES);
    devices.iter().for_each(|device| writer.str(number::DEVICE_NAME, device));
    writer.close(list);
    writer.close(hook);
    let mut bytes = writer.into_bytes();
    set_message_len(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{self, Decoded};
    use crate::object::Family;

    fn flowtable(devices: usize) -> Flowtable {
        let devices = (0..devices).map(|number| format!("veth{number}").into()).collect();
        Flowtable { name: "fastpath".into(), priority: -1, devices }
    }

    #[test]
    fn a_flowtable_is_decoded_to_what_was_written() {
        let table = TableName::new(Family::Inet, "t");
        for devices in [0, 1, 3] {
            let sent = flowtable(devices);
            let [message] = &messages(&table, &sent).unwrap()[..] else { panic!("one message") };
            let Ok(Decoded::Flowtable { table: of, flowtable, .. }) = decode::message(&message.bytes) else {
                panic!("a flowtable")
            };
            assert_eq!((of, flowtable), (table.clone(), sent));
        }
    }

    #[test]
    fn as_many_interfaces_as_the_kernel_takes_travel_in_a_message() {
        let table = TableName::new(Family::Inet, "t");
        let sent = flowtable(DEVICES + 1);
        let decoded = messages(&table, &sent).unwrap().into_iter().map(|message| decode::message(&message.bytes));
        let parts: Vec<usize> = decoded
            .map(|decoded| match decoded {
                Ok(Decoded::Flowtable { flowtable, .. }) => flowtable.devices.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(parts, [DEVICES, 1]);
    }

    #[test]
    fn a_name_with_a_zero_byte_is_refused() {
        let mut sent = flowtable(1);
        sent.devices.push("a\0b".into());
        assert!(messages(&TableName::new(Family::Inet, "t"), &sent).is_err());
    }
}

//! Encodes flowtables, without libnftnl: the kernel limits the interfaces in one message, so several messages have to carry them.

use std::ffi::{CString, NulError};
use std::sync::Arc;

use crate::object::Flowtable;
use crate::table::TableName;
use crate::wire::{Writer, flag, kind};

/// Attributes (`linux/netfilter/nf_tables.h`).
mod number {
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

/// Interfaces in one message; the kernel accepts at most 256 (`NFT_NETDEVICE_MAX` in `net/netfilter/nf_tables_api.c`). A further message
/// adds further interfaces.
const DEVICES: usize = 128;

/// The messages that add a flowtable, or interfaces to it.
///
/// # Errors
/// When a name contains a zero byte.
pub(super) fn messages(table: &TableName, flowtable: &Flowtable) -> Result<Vec<Vec<u8>>, NulError> {
    for name in [&*table.name, &*flowtable.name].into_iter().chain(flowtable.devices.iter().map(|name| &**name)) {
        CString::new(name)?;
    }
    if flowtable.devices.is_empty() {
        return Ok(vec![message(table, flowtable, &[])]);
    }
    Ok(flowtable.devices.chunks(DEVICES).map(|devices| message(table, flowtable, devices)).collect())
}

fn message(table: &TableName, flowtable: &Flowtable, devices: &[Arc<str>]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.begin(kind::NEW_FLOWTABLE, flag::REQUEST | flag::CREATE, table.family.number());
    writer.str(number::TABLE, &table.name);
    writer.str(number::NAME, &flowtable.name);
    let hook = writer.open(number::HOOK);
    writer.u32(number::HOOK_NUMBER, number::INGRESS);
    writer.u32(number::HOOK_PRIORITY, flowtable.priority.cast_unsigned());
    let list = writer.open(number::HOOK_DEVICES);
    devices.iter().for_each(|device| writer.str(number::DEVICE_NAME, device));
    writer.close(list);
    writer.close(hook);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{self, Decoded};
    use crate::table::Family;

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
            let Ok(Decoded::Flowtable { table: of, flowtable, .. }) = decode::message(message) else {
                panic!("a flowtable")
            };
            assert_eq!((of, flowtable), (table.clone(), sent));
        }
    }

    #[test]
    fn interfaces_beyond_the_limit_of_a_message_are_in_a_further_one() {
        let table = TableName::new(Family::Inet, "t");
        let sent = flowtable(DEVICES + 1);
        let decoded = messages(&table, &sent).unwrap().into_iter().map(|message| decode::message(&message));
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

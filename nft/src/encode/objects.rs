//! The deletion of objects with a name and of flowtables, written directly: `nftnl` has no such objects.

use std::ffi::{CString, NulError};

use super::set_message_len;
use crate::object::{NamedObject, ObjectKind, TableName};
use crate::wire::Writer;

/// `linux/netlink.h`, `linux/netfilter/nf_tables.h`.
mod number {
    pub(super) const NLM_F_REQUEST: u16 = 1;
    pub(super) const DELETE_OBJECT: u16 = 10 << 8 | 20;
    pub(super) const DELETE_FLOWTABLE: u16 = 10 << 8 | 24;

    /// The same for both.
    pub(super) const TABLE: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const OBJECT_TYPE: u16 = 3;
}

/// The message that deletes an object.
pub(super) fn deletion(table: &TableName, object: &NamedObject) -> Result<Vec<u8>, NulError> {
    for name in [&*table.name, &*object.name] {
        CString::new(name)?;
    }
    let (message, kind) = match object.kind {
        ObjectKind::Flowtable => (number::DELETE_FLOWTABLE, None),
        ObjectKind::Stateful(kind) => (number::DELETE_OBJECT, Some(kind)),
    };
    let mut writer = Writer::default();
    writer.raw(&[0; 4]);
    writer.raw(&message.to_ne_bytes());
    writer.raw(&number::NLM_F_REQUEST.to_ne_bytes());
    writer.raw(&[0; 8]);
    writer.raw(&[table.family.number(), 0, 0, 0]);
    writer.str(number::TABLE, &table.name);
    writer.str(number::NAME, &object.name);
    kind.into_iter().for_each(|kind| writer.u32(number::OBJECT_TYPE, kind));
    let mut bytes = writer.into_bytes();
    set_message_len(&mut bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Family;
    use crate::wire::Attrs;

    #[test]
    fn a_flowtable_is_named_and_an_object_has_its_type_too() {
        let table = TableName::new(Family::Ip, "t");
        for (kind, message, number) in [
            (ObjectKind::Flowtable, 24, None),
            (ObjectKind::Stateful(2), 20, Some(2)),
            (ObjectKind::Stateful(99), 20, Some(99)),
        ] {
            let bytes = deletion(&table, &NamedObject { kind, name: "x".into(), in_use: false }).unwrap();
            assert_eq!(u16::from_ne_bytes([bytes[4], bytes[5]]), 10 << 8 | message);
            let attrs = Attrs::new(&bytes[20..]);
            assert_eq!(attrs.find(number::TABLE).unwrap().str(), Some("t"));
            assert_eq!(attrs.find(number::NAME).unwrap().str(), Some("x"));
            assert_eq!(attrs.find(number::OBJECT_TYPE).map(|attr| attr.u32().unwrap()), number);
        }
        assert!(
            deletion(&table, &NamedObject { kind: ObjectKind::Flowtable, name: "a\0b".into(), in_use: false }).is_err()
        );
    }
}

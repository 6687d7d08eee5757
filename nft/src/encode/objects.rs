//! Encodes the deletion of named objects and of flowtables, without libnftnl, because the `nftnl` crate has no types for them.

use std::ffi::{CString, NulError};

use crate::object::{NamedObject, ObjectKind};
use crate::table::TableName;
use crate::wire::{Writer, flag, kind};

/// Attributes (`linux/netfilter/nf_tables.h`). Table and name are the same for objects and flowtables.
mod number {
    pub(super) const TABLE: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const OBJECT_TYPE: u16 = 3;
}

/// The message that deletes an object.
///
/// # Errors
/// When a name contains a zero byte.
pub(super) fn deletion(table: &TableName, object: &NamedObject) -> Result<Vec<u8>, NulError> {
    for name in [&*table.name, &*object.name] {
        CString::new(name)?;
    }
    let (message, object_type) = match object.kind {
        ObjectKind::Flowtable => (kind::DELETE_FLOWTABLE, None),
        ObjectKind::Stateful(number) => (kind::DELETE_OBJECT, Some(number)),
    };
    let mut writer = Writer::default();
    writer.begin(message, flag::REQUEST, table.family.number());
    writer.str(number::TABLE, &table.name);
    writer.str(number::NAME, &object.name);
    object_type.into_iter().for_each(|number| writer.u32(number::OBJECT_TYPE, number));
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Family;
    use crate::wire::Attrs;

    #[test]
    fn a_flowtable_is_deleted_by_its_name_and_an_object_by_type_and_name() {
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

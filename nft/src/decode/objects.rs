//! Decodes tables, chains, rules, sets, flowtables, and the ruleset's generation number.

use std::sync::Arc;

use super::decoded::{DecodeError, Decoded, ObjectAttrs, milliseconds};
use super::exprs::{counted, expr, exprs};
use crate::datatype::DataType;
use crate::expr::Expr;
use crate::field::Field;
use crate::object::{BaseChain, Chain, ChainType, Flowtable, Hook, RuleDump, Set, SetFlags, Types, ValueType};
use crate::table::{Family, Ownership, Table, TableName, TableState};
use crate::userdata;
use crate::wire::{Attr, Attrs};

/// Flags of a table (`NFT_TABLE_F_*`).
mod table_flag {
    pub(super) const DORMANT: u32 = 1;
    pub(super) const OWNER: u32 = 2;
    pub(super) const PERSIST: u32 = 4;
    pub(super) const KNOWN: u32 = DORMANT | OWNER | PERSIST;
}

pub(super) fn generation(attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    const ID: u16 = 1;
    let object = ObjectAttrs { attrs, object: "generation", name: None };
    Ok(Decoded::Generation(object.need(ID, "id", |attr| attr.u32())?))
}

pub(super) fn table(family: Family, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    const NAME: u16 = 1;
    const FLAGS: u16 = 2;
    const USE: u16 = 3;
    const USERDATA: u16 = 6;
    const OWNER: u16 = 7;
    let object = ObjectAttrs::new("table", attrs, NAME);
    let flags = object.number(FLAGS);
    let table = Table {
        name: TableName { family, name: object.name()? },
        comment: userdata::read_comment(object.bytes(USERDATA)),
    };
    let ownership = match flags & (table_flag::OWNER | table_flag::PERSIST) {
        table_flag::PERSIST => Ownership::Orphaned,
        flags if flags & table_flag::OWNER != 0 => Ownership::Of { port: object.number(OWNER) },
        _ => Ownership::Unowned,
    };
    let state = TableState {
        ownership,
        dormant: flags & table_flag::DORMANT != 0,
        unknown_flags: flags & !table_flag::KNOWN,
        objects: object.number(USE),
    };
    Ok(Decoded::Table { table, state })
}

pub(super) fn chain(family: Family, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const USERDATA: u16 = 12;
    let object = ObjectAttrs::new("chain", attrs, NAME);
    let chain = Chain {
        name: object.name()?,
        base: object.find(HOOK).map(|hook| base_chain(&object, hook)).transpose()?,
        comment: userdata::read_comment(object.bytes(USERDATA)),
    };
    Ok(Decoded::Chain { table: object.table(family, TABLE)?, chain })
}

/// The hook of a base chain. The policy `drop` is an error, because this crate only makes base chains that accept.
fn base_chain(object: &ObjectAttrs<'_>, hook: Attr<'_>) -> Result<BaseChain, DecodeError> {
    const POLICY: u16 = 5;
    const TYPE: u16 = 7;
    const HOOK_NUMBER: u16 = 1;
    const HOOK_PRIORITY: u16 = 2;
    const ACCEPT: u32 = 1;
    if object.find(POLICY).is_some_and(|policy| policy.u32() != Some(ACCEPT)) {
        return Err(object.error("policy"));
    }
    let hook = ObjectAttrs { attrs: hook.nested(), ..*object };
    Ok(BaseChain {
        kind: object.need(TYPE, "type", chain_type)?,
        hook: hook.need(HOOK_NUMBER, "hook", |attr| hook_of(attr.u32()?))?,
        priority: hook.need(HOOK_PRIORITY, "priority", |attr| Some(attr.u32()?.cast_signed()))?,
    })
}

fn chain_type(attr: Attr<'_>) -> Option<ChainType> {
    let name = attr.str()?;
    [ChainType::Filter, ChainType::Nat, ChainType::Route].into_iter().find(|kind| kind.name() == name)
}

/// The hook with this `NF_INET_*` number.
pub(super) const fn hook_of(number: u32) -> Option<Hook> {
    match number {
        0 => Some(Hook::Prerouting),
        1 => Some(Hook::Input),
        2 => Some(Hook::Forward),
        3 => Some(Hook::Output),
        4 => Some(Hook::Postrouting),
        _ => None,
    }
}

pub(super) fn rule(family: Family, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    const USERDATA: u16 = 7;
    let object = ObjectAttrs::new("rule", attrs, CHAIN);
    let list = || object.find(EXPRESSIONS).into_iter().flat_map(|list| list.nested()).map(|item| item.nested());
    let count = list().find_map(counted);
    let rule = RuleDump {
        exprs: exprs(family, list()).ok_or_else(|| object.error("expression"))?,
        comment: userdata::read_comment(object.bytes(USERDATA)),
    };
    Ok(Decoded::Rule { table: object.table(family, TABLE)?, chain: object.name()?, rule, count })
}

/// Decodes a flowtable. A hook other than ingress, or a flag (hardware offload), is an error, because this crate makes no flowtables that
/// have them.
pub(super) fn flowtable(family: Family, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    const TABLE: u16 = 1;
    const NAME: u16 = 2;
    const HOOK: u16 = 3;
    const FLAGS: u16 = 7;
    const HOOK_NUMBER: u16 = 1;
    const HOOK_PRIORITY: u16 = 2;
    const HOOK_DEVICES: u16 = 3;
    const INGRESS: u32 = 0;
    let object = ObjectAttrs::new("flowtable", attrs, NAME);
    if object.number(FLAGS) != 0 {
        return Err(object.error("flags"));
    }
    let hook = ObjectAttrs { attrs: object.need(HOOK, "hook", |attr| Some(attr.nested()))?, ..object };
    if hook.need(HOOK_NUMBER, "hook number", |attr| attr.u32())? != INGRESS {
        return Err(object.error("hook number"));
    }
    let devices = hook.find(HOOK_DEVICES).into_iter().flat_map(|list| list.nested());
    let flowtable = Flowtable {
        name: object.name()?,
        priority: hook.need(HOOK_PRIORITY, "priority", |attr| Some(attr.u32()?.cast_signed()))?,
        devices: devices
            .map(|device| device.str().map(Arc::from).ok_or_else(|| object.error("device")))
            .collect::<Result<_, _>>()?,
    };
    Ok(Decoded::Flowtable { table: object.table(family, TABLE)?, flowtable })
}

/// Attributes of a set.
mod set_attr {
    pub(super) const TABLE: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const FLAGS: u16 = 3;
    pub(super) const KEY_TYPE: u16 = 4;
    pub(super) const KEY_LEN: u16 = 5;
    pub(super) const DATA_TYPE: u16 = 6;
    pub(super) const DATA_LEN: u16 = 7;
    pub(super) const DESCRIPTION: u16 = 9;
    pub(super) const DESCRIPTION_SIZE: u16 = 1;
    pub(super) const TIMEOUT: u16 = 11;
    pub(super) const USERDATA: u16 = 13;
    pub(super) const EXPRESSION: u16 = 17;
    pub(super) const EXPRESSIONS: u16 = 18;
}

/// Flags of a set (`NFT_SET_*`).
mod set_flag {
    pub(super) const ANONYMOUS: u32 = 0x1;
    pub(super) const CONSTANT: u32 = 0x2;
    pub(super) const INTERVAL: u32 = 0x4;
    pub(super) const MAP: u32 = 0x8;
    pub(super) const TIMEOUT: u32 = 0x10;
    pub(super) const DYNAMIC: u32 = 0x20;
    /// Set for an interval key with several fields.
    pub(super) const CONCAT: u32 = 0x80;
    pub(super) const KNOWN: u32 = ANONYMOUS | CONSTANT | INTERVAL | MAP | TIMEOUT | DYNAMIC | CONCAT;
}

pub(super) fn set(family: Family, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    let object = ObjectAttrs::new("set", attrs, set_attr::NAME);
    let flags = object.number(set_attr::FLAGS);
    if flags & !set_flag::KNOWN != 0 {
        return Err(object.error("flags"));
    }
    let userdata = object.bytes(set_attr::USERDATA);
    let (key, value) = types(&object, flags & set_flag::MAP != 0, userdata)?;
    let size = object.find(set_attr::DESCRIPTION).and_then(|d| d.nested().find(set_attr::DESCRIPTION_SIZE));
    let set = Set {
        name: object.name()?,
        key,
        value,
        flags: set_flags(flags),
        timeout: milliseconds(object.find(set_attr::TIMEOUT)).filter(|timeout| !timeout.is_zero()),
        size: size.and_then(|size| size.u32()),
        counter: counts(&object)?,
        comment: userdata::read_set_comment(userdata),
    };
    Ok(Decoded::Set { table: object.table(family, set_attr::TABLE)?, set })
}

/// Whether elements have a counter. Another expression, or several expressions, are an error, because this crate makes no sets that have
/// them.
fn counts(object: &ObjectAttrs<'_>) -> Result<bool, DecodeError> {
    if object.find(set_attr::EXPRESSIONS).is_some() {
        return Err(object.error("expressions"));
    }
    match object.find(set_attr::EXPRESSION).map(|attr| expr(attr.nested())) {
        None => Ok(false),
        Some(Some(Expr::Counter)) => Ok(true),
        Some(_) => Err(object.error("expression")),
    }
}

const fn set_flags(flags: u32) -> SetFlags {
    SetFlags {
        interval: flags & set_flag::INTERVAL != 0,
        dynamic: flags & set_flag::DYNAMIC != 0,
        timeout: flags & set_flag::TIMEOUT != 0,
        constant: flags & set_flag::CONSTANT != 0,
        anonymous: flags & set_flag::ANONYMOUS != 0,
    }
}

/// The types of key and value. The `typeof` fields in the user data are used only if they agree with the type numbers, both for the key and
/// for the value.
fn types(object: &ObjectAttrs<'_>, is_map: bool, userdata: &[u8]) -> Result<(Types, Option<ValueType>), DecodeError> {
    const VERDICT: u32 = 0xffff_ff00;
    let named_key = named(object, set_attr::KEY_TYPE, set_attr::KEY_LEN).ok_or_else(|| object.error("key type"))?;
    let key_fields = userdata::read_key(userdata).filter(|fields| agrees(fields, &named_key));
    if !is_map || object.number(set_attr::DATA_TYPE) == VERDICT {
        let key = key_fields.map_or(Types::Named(named_key), Types::Of);
        return Ok((key, is_map.then_some(ValueType::Verdict)));
    }
    let named_value =
        named(object, set_attr::DATA_TYPE, set_attr::DATA_LEN).ok_or_else(|| object.error("value type"))?;
    let value_fields = userdata::read_value(userdata).filter(|fields| agrees(fields, &named_value));
    let (key, value) = match (key_fields, value_fields) {
        (Some(key), Some(value)) => (Types::Of(key), Types::Of(value)),
        _ => (Types::Named(named_key), Types::Named(named_value)),
    };
    Ok((key, Some(ValueType::Data(value))))
}

fn agrees(fields: &[Field], types: &[DataType]) -> bool {
    fields.iter().map(|field| field.data_type()).eq(types.iter().copied())
}

/// The types in a type number, which has six bits for each field, the last field in the lowest bits. `None` unless their lengths add up to
/// the length of the key or value.
fn named(object: &ObjectAttrs<'_>, kind: u16, len: u16) -> Option<Vec<DataType>> {
    const BITS: u32 = 6;
    let mut number = object.find(kind)?.u32()?;
    let mut types = Vec::new();
    while number != 0 {
        types.insert(0, DataType::from_id(number & ((1 << BITS) - 1))?);
        number >>= BITS;
    }
    let len = usize::try_from(object.find(len)?.u32()?).ok()?;
    (!types.is_empty() && Types::Named(types.clone()).data_len() == len).then_some(types)
}

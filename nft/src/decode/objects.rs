//! Tables, chains, rules and sets.

use std::sync::Arc;
use std::time::Duration;

use super::{DecodeError, Decoded, exprs};
use crate::datatype::DataType;
use crate::object::{
    BaseChain, Chain, ChainType, Family, Hook, RuleDump, Set, SetFlags, Table, TableName, Types, ValueType,
};
use crate::userdata;
use crate::wire::{Attr, Attrs};

fn table_name(object: &'static str, family: u8, attr: Option<Attr<'_>>) -> Result<TableName, DecodeError> {
    let family = match family {
        1 => Family::Inet,
        2 => Family::Ip,
        10 => Family::Ip6,
        _ => return Err(DecodeError::new(object, "family")),
    };
    let name = attr.and_then(|attr| attr.str()).ok_or(DecodeError::new(object, "table name"))?;
    Ok(TableName::new(family, name))
}

fn name(object: &'static str, attr: Option<Attr<'_>>) -> Result<Arc<str>, DecodeError> {
    attr.and_then(|attr| attr.str()).map(Arc::from).ok_or(DecodeError::new(object, "name"))
}

fn comment(kind: u8, attr: Option<Attr<'_>>) -> Option<Arc<str>> {
    userdata::find_comment(kind, attr?.payload)
}

/// `enum nft_table_attributes`.
pub(super) fn table(family: u8, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    let name = table_name("table", family, attrs.find(1))?;
    Ok(Decoded::Table(Table { name, comment: comment(userdata::COMMENT, attrs.find(6)) }))
}

/// `enum nft_chain_attributes`.
pub(super) fn chain(family: u8, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    let table = table_name("chain", family, attrs.find(1))?;
    let name = name("chain", attrs.find(3))?;
    let base = match attrs.find(4) {
        Some(hook) => Some(base_chain(hook.nested(), attrs.find(7)).ok_or(DecodeError::new("chain", "hook"))?),
        None => None,
    };
    Ok(Decoded::Chain(table, Chain { name, base, comment: comment(userdata::COMMENT, attrs.find(12)) }))
}

fn base_chain(hook: Attrs<'_>, kind: Option<Attr<'_>>) -> Option<BaseChain> {
    let priority = hook.find(2)?.u32()?.cast_signed();
    let hook = match hook.find(1)?.u32()? {
        0 => Hook::Prerouting,
        1 => Hook::Input,
        2 => Hook::Forward,
        3 => Hook::Output,
        4 => Hook::Postrouting,
        _ => return None,
    };
    let kind = match kind?.str()? {
        "filter" => ChainType::Filter,
        "nat" => ChainType::Nat,
        "route" => ChainType::Route,
        _ => return None,
    };
    Some(BaseChain { kind, hook, priority })
}

/// `enum nft_rule_attributes`.
pub(super) fn rule(family: u8, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    let table = table_name("rule", family, attrs.find(1))?;
    let chain = name("rule", attrs.find(2))?;
    let list = attrs.find(4).map(|list| list.nested());
    let exprs = list.map(|list| list.map(exprs::expr).collect()).transpose()?.unwrap_or_default();
    Ok(Decoded::Rule(table, chain, RuleDump { exprs, comment: comment(userdata::COMMENT, attrs.find(7)) }))
}

/// Bits of `enum nft_set_flags`.
const fn flags(bits: u32) -> SetFlags {
    SetFlags {
        anonymous: bits & 1 != 0,
        constant: bits & (1 << 1) != 0,
        interval: bits & (1 << 2) != 0,
        timeout: bits & (1 << 4) != 0,
        dynamic: bits & (1 << 5) != 0,
    }
}

/// `NFT_DATA_VERDICT`.
const DATA_VERDICT: u32 = 0xffff_ff00;

/// `enum nft_set_attributes`.
pub(super) fn set(family: u8, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    const MAP: u32 = 1 << 3;
    let table = table_name("set", family, attrs.find(1))?;
    let name = name("set", attrs.find(2))?;
    let number = |kind| attrs.find(kind).and_then(|attr: Attr<'_>| attr.u32());
    let bits = number(3).unwrap_or_default();
    let data = userdata::SetData::parse(attrs.find(13).map_or(&[][..], |attr| attr.payload));
    let key = types(data.key, number(4)).ok_or(DecodeError::new("set", "key type"))?;
    let value = match number(6).filter(|_| bits & MAP != 0) {
        None => None,
        Some(DATA_VERDICT) => Some(ValueType::Verdict),
        Some(packed) => {
            Some(ValueType::Data(types(data.value, Some(packed)).ok_or(DecodeError::new("set", "value type"))?))
        }
    };
    let timeout = attrs.find(11).and_then(|attr| attr.u64()).filter(|ms| *ms > 0).map(Duration::from_millis);
    let size = attrs.find(9).and_then(|desc| desc.nested().find(1)?.u32());
    Ok(Decoded::Set(table, Set { name, key, value, flags: flags(bits), timeout, size, comment: data.comment }))
}

/// The types of a key or value: by `typeof` where user data has it, else by the packed number.
fn types(fields: Option<Vec<crate::Field>>, packed: Option<u32>) -> Option<Types> {
    if let Some(fields) = fields {
        return Some(Types::Of(fields));
    }
    let mut packed = packed?;
    let mut types = Vec::new();
    while packed != 0 {
        types.push(DataType::from_id(packed & 0x3f)?);
        packed >>= 6;
    }
    types.reverse();
    (!types.is_empty()).then_some(Types::Named(types))
}

//! Decodes single objects of any program's tables, as far as it takes to follow a packet.
//!
//! [`super::message`] gives an error for objects that this crate would never make, such as a chain with the policy `drop` or a set with a
//! type that it does not know, because a caller that compares tables must notice them. A caller that follows a packet must go on in spite
//! of them. These functions give `None` for a message of another kind, and for one that lacks a needed attribute.

use std::sync::Arc;

use super::decoded::name;
use super::exprs::exprs;
use super::messages::Header;
use crate::object::{Chain, RuleDump, Set};
use crate::table::{Family, TableName};
use crate::userdata;
use crate::wire::{Attrs, SUBSYSTEM, kind};

/// A table of any family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableHead {
    /// The number of its family on the wire (`NFPROTO_*`).
    pub family: u8,
    /// The name, unique in its family.
    pub name: Arc<str>,
    /// Whether it has the flag `dormant`: its chains see no packets.
    pub dormant: bool,
}

/// A chain without its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainHead {
    /// The family and name of its table.
    pub table: TableName,
    /// The name, unique in its table.
    pub name: Arc<str>,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<Arc<str>>,
    /// The hook at which the kernel calls it; `None` for a regular chain.
    pub hook: Option<HookHead>,
}

/// The hook of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookHead {
    /// The type of the chain: `filter`, `nat` or `route`.
    pub kind: Arc<str>,
    /// The number of the hook (`NF_INET_*`).
    pub number: u32,
    /// The order among the chains of the hook.
    pub priority: i32,
    /// Whether its policy is `drop`.
    pub drops: bool,
}

/// A rule with its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleHead {
    /// The handle: the kernel's number of the rule.
    pub handle: u64,
    /// Its expressions and its comment.
    pub rule: RuleDump,
}

/// A set or map without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetHead {
    /// The name, unique in its table.
    pub name: Arc<str>,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<Arc<str>>,
    /// The length of a key in bytes, with the padding of its fields.
    pub key_len: usize,
    /// Whether keys are ranges.
    pub is_interval: bool,
    /// The lengths in bytes of the fields of a key, for keys that are ranges of several fields; else empty.
    pub fields: Vec<usize>,
}

impl ChainHead {
    /// The head of a chain as the kernel would list it.
    #[must_use]
    pub fn of(table: &TableName, chain: &Chain) -> Self {
        let hook = chain.base.map(|base| HookHead {
            kind: base.kind.name().into(),
            number: base.hook.number(),
            priority: base.priority,
            drops: false,
        });
        Self { table: table.clone(), name: Arc::clone(&chain.name), comment: chain.comment.clone(), hook }
    }
}

impl SetHead {
    /// The head of a set as the kernel would list it.
    #[must_use]
    pub fn of(set: &Set) -> Self {
        let fields = if set.is_concat_interval() {
            set.key.data_types().iter().map(|field| field.size()).collect()
        } else {
            Vec::new()
        };
        Self {
            name: Arc::clone(&set.name),
            comment: set.comment.clone(),
            key_len: set.key.data_len(),
            is_interval: set.flags.interval,
            fields,
        }
    }
}

/// The number of the family and the attributes of a message; `None` if it is not of the wanted kind.
fn attrs(bytes: &[u8], wanted: u16) -> Option<(u8, Attrs<'_>)> {
    let header = Header::read(bytes).filter(|header| header.kind == SUBSYSTEM << 8 | wanted)?;
    let (nfgenmsg, attrs) = header.payload.split_first_chunk::<4>()?;
    Some((nfgenmsg[0], Attrs::new(attrs)))
}

/// The comment in the user data, which is in the attribute number `userdata`.
fn comment(attrs: Attrs<'_>, userdata: u16) -> Option<Arc<str>> {
    userdata::read_comment(attrs.find(userdata)?.payload)
}

/// The table in a message.
#[must_use]
pub fn table_head(bytes: &[u8]) -> Option<TableHead> {
    const DORMANT: u32 = 1;
    let (family, attrs) = attrs(bytes, kind::NEW_TABLE)?;
    let flags = attrs.find(2).and_then(|flags| flags.u32()).unwrap_or(0);
    Some(TableHead { family, name: name(attrs.find(1))?, dormant: flags & DORMANT != 0 })
}

/// The chain in a message; `None` also when its family is not `ip`, `ip6` or `inet`.
#[must_use]
pub fn chain_head(bytes: &[u8]) -> Option<ChainHead> {
    const POLICY_DROP: u32 = 0;
    let (family, attrs) = attrs(bytes, kind::NEW_CHAIN)?;
    let hook = attrs.find(4).map(|hook| {
        let hook = hook.nested();
        Some(HookHead {
            kind: name(attrs.find(7))?,
            number: hook.find(1)?.u32()?,
            priority: hook.find(2)?.u32()?.cast_signed(),
            drops: attrs.find(5).is_some_and(|policy| policy.u32() == Some(POLICY_DROP)),
        })
    });
    Some(ChainHead {
        table: TableName::new(Family::from_number(family)?, attrs.find(1)?.str()?),
        name: name(attrs.find(3))?,
        comment: comment(attrs, 12),
        // A base chain whose hook cannot be read gives `None`: without its hook it would look like a regular chain.
        hook: match hook {
            None => None,
            Some(hook) => Some(hook?),
        },
    })
}

/// The rule in a message.
#[must_use]
pub fn rule_head(bytes: &[u8]) -> Option<RuleHead> {
    let (family, attrs) = attrs(bytes, kind::NEW_RULE)?;
    let list = attrs.find(4).into_iter().flat_map(|list| list.nested());
    let exprs = exprs(Family::from_number(family)?, list.map(|item| item.nested()))?;
    Some(RuleHead { handle: attrs.find(3)?.u64()?, rule: RuleDump { exprs, comment: comment(attrs, 7) } })
}

/// The set in a message.
#[must_use]
pub fn set_head(bytes: &[u8]) -> Option<SetHead> {
    const INTERVAL: u32 = 4;
    const DESCRIPTION: u16 = 9;
    const CONCATENATION: u16 = 2;
    let (_, attrs) = attrs(bytes, kind::NEW_SET)?;
    let flags = attrs.find(3).and_then(|flags| flags.u32()).unwrap_or(0);
    let lengths = attrs.find(DESCRIPTION).and_then(|description| description.nested().find(CONCATENATION));
    let lengths = lengths.into_iter().flat_map(|list| list.nested());
    let lengths = lengths.map(|field| usize::try_from(field.nested().find(1)?.u32()?).ok());
    Some(SetHead {
        name: name(attrs.find(2))?,
        comment: attrs.find(13).and_then(|userdata| userdata::read_set_comment(userdata.payload)),
        key_len: usize::try_from(attrs.find(5)?.u32()?).ok()?,
        is_interval: flags & INTERVAL != 0,
        fields: lengths.collect::<Option<_>>()?,
    })
}

//! Foreign bytes to values: what the kernel answers to a dump, a request or a batch.
//!
//! Takes single netlink messages (split a receive buffer with [`Messages`]) and gives values of this crate. Never panics, whatever
//! the bytes are. The values are canonical: [`crate::Rule::to_dump`] of a rule that was sent equals the decoded rule, and a set or
//! a (paired, see [`pair`]) element that was sent equals the decoded one. What this crate cannot express in a rule becomes
//! [`crate::Expr::Unknown`], which equals nothing that is ever sent; in other objects it is a [`DecodeError`] for that message only.

mod ack;
mod elements;
mod exprs;
mod messages;
mod notice;
mod objects;
mod outline;

use std::sync::Arc;

use crate::object::{Chain, Family, Flowtable, RuleDump, Set, Table, TableName, TableState};
use crate::wire::{Attr, Attrs};

pub use ack::{Ack, ack, done};
pub use elements::{RawElement, pair};
pub use messages::{Messages, dump_interrupted, sequence};
pub(crate) use notice::is_about;
pub use notice::{Notice, Process, notice};
pub use outline::{ChainOutline, RuleOutline, chain_outline, named_object, rule_outline};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;

/// Message types, the lower byte.
mod kind {
    pub(super) const NEW_TABLE: u16 = 0;
    pub(super) const NEW_CHAIN: u16 = 3;
    pub(super) const NEW_RULE: u16 = 6;
    pub(super) const NEW_SET: u16 = 9;
    pub(super) const NEW_ELEMENTS: u16 = 12;
    pub(super) const NEW_GENERATION: u16 = 15;
    pub(super) const NEW_OBJECT: u16 = 18;
    pub(super) const NEW_FLOWTABLE: u16 = 22;
}

/// What a message holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A table.
    Table {
        /// The table.
        table: Table,
        /// What else the kernel says of it.
        state: TableState,
        /// The kernel's number of the table.
        handle: u64,
    },
    /// A chain.
    Chain {
        /// Its table.
        table: TableName,
        /// The chain.
        chain: Chain,
        /// The kernel's number of the chain within the table.
        handle: u64,
    },
    /// A rule.
    Rule {
        /// Its table.
        table: TableName,
        /// Its chain's name.
        chain: Arc<str>,
        /// The rule.
        rule: RuleDump,
        /// The kernel's number of the rule, by which it can be deleted.
        handle: u64,
    },
    /// A set or map, without its elements.
    Set {
        /// Its table.
        table: TableName,
        /// The set.
        set: Set,
        /// The kernel's number of the set within the table.
        handle: u64,
    },
    /// Some elements of a set; a set's elements come in several messages.
    Elements {
        /// The set's table.
        table: TableName,
        /// The set's name.
        set: Arc<str>,
        /// The elements as they come; [`pair`] makes [`crate::Element`]s of a set's whole list.
        elements: Vec<RawElement>,
    },
    /// A flowtable.
    Flowtable {
        /// Its table.
        table: TableName,
        /// The flowtable.
        flowtable: Flowtable,
        /// The kernel's number of the flowtable within the table.
        handle: u64,
    },
    /// The number of the ruleset's generation.
    Generation(u32),
    /// A message of another type, or about a table of a family that this crate does not know.
    Other(u16),
}

/// An object that this crate cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object} {}: {attribute} is missing, malformed or unknown", name.as_deref().unwrap_or("of unknown name"))]
pub struct DecodeError {
    /// `message`, `table`, `chain`, `rule`, `set`, `elements`, `flowtable` or `generation`.
    pub object: &'static str,
    /// The object's name where it has one: a rule's is its chain, an element's is its set.
    pub name: Option<Arc<str>>,
    /// The attribute.
    pub attribute: &'static str,
}

/// What one message says, from its `nlmsghdr` on.
///
/// # Errors
/// When it is shorter than its headers, or about an object that this crate cannot express.
pub fn message(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let malformed = |attribute| DecodeError { object: "message", name: None, attribute };
    let header = messages::Header::read(bytes).ok_or(malformed("header"))?;
    if header.kind >> 8 != SUBSYSTEM {
        return Ok(Decoded::Other(header.kind));
    }
    let (nfgenmsg, attrs) = header.payload.split_first_chunk::<4>().ok_or(malformed("family"))?;
    let (attrs, kind) = (Attrs::new(attrs), header.kind & 0xff);
    if kind == kind::NEW_GENERATION {
        return objects::generation(attrs);
    }
    let Some(family) = family(nfgenmsg[0]) else { return Ok(Decoded::Other(header.kind)) };
    match kind {
        kind::NEW_TABLE => objects::table(family, attrs),
        kind::NEW_CHAIN => objects::chain(family, attrs),
        kind::NEW_RULE => objects::rule(family, attrs),
        kind::NEW_SET => objects::set(family, attrs),
        kind::NEW_FLOWTABLE => objects::flowtable(family, attrs),
        kind::NEW_ELEMENTS => elements::elements(family, attrs),
        _ => Ok(Decoded::Other(header.kind)),
    }
}

/// The family of an `NFPROTO_*` number.
fn family(number: u8) -> Option<Family> {
    [Family::Inet, Family::Ip, Family::Ip6].into_iter().find(|family| family_number(*family) == number)
}

/// `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`.
const fn family_number(family: Family) -> u8 {
    match family {
        Family::Inet => 1,
        Family::Ip => 2,
        Family::Ip6 => 10,
    }
}

/// The attributes of one object, and what an error says about it.
#[derive(Clone, Copy)]
struct Object<'a> {
    attrs: Attrs<'a>,
    object: &'static str,
    name: Option<&'a str>,
}

impl<'a> Object<'a> {
    /// An object whose name is in the attribute of a kind.
    fn new(object: &'static str, attrs: Attrs<'a>, name: u16) -> Self {
        Self { attrs, object, name: attrs.find(name).and_then(|attr| attr.str()) }
    }

    fn error(&self, attribute: &'static str) -> DecodeError {
        DecodeError { object: self.object, name: self.name.map(Arc::from), attribute }
    }

    fn find(&self, kind: u16) -> Option<Attr<'a>> {
        self.attrs.find(kind)
    }

    /// An attribute that every such object has.
    fn need<T>(
        &self,
        kind: u16,
        attribute: &'static str,
        read: impl FnOnce(Attr<'a>) -> Option<T>,
    ) -> Result<T, DecodeError> {
        self.find(kind).and_then(read).ok_or_else(|| self.error(attribute))
    }

    /// The name.
    fn name(&self) -> Result<Arc<str>, DecodeError> {
        self.name.map(Arc::from).ok_or_else(|| self.error("name"))
    }

    /// The table that the object lives in.
    fn table(&self, family: Family, kind: u16) -> Result<TableName, DecodeError> {
        Ok(TableName::new(family, self.need(kind, "table", |attr| attr.str())?))
    }

    /// An attribute's number, 0 when it is absent.
    fn number(&self, kind: u16) -> u32 {
        self.find(kind).and_then(|attr| attr.u32()).unwrap_or(0)
    }

    fn handle(&self, kind: u16) -> u64 {
        self.find(kind).and_then(|attr| attr.u64()).unwrap_or(0)
    }

    /// The payload of an attribute, empty when it is absent.
    fn bytes(&self, kind: u16) -> &'a [u8] {
        self.find(kind).map_or(&[], |attr| attr.payload)
    }
}

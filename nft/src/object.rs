//! The objects of nf_tables as plain values: chains, rules, sets and their elements, and tables with all their content.
//!
//! The caller of this crate builds the values of the ruleset that it wants. [`crate::decode`] gives such values for the ruleset that the
//! kernel lists, with rules as expressions, so the two can be compared.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::data::{Data, Value};
use crate::datatype::DataType;
use crate::expr::Expr;
use crate::field::Field;
use crate::statement::Statement;
use crate::table::{Family, Table};

/// An object other than a chain, a rule, a set, or an element. Rules and maps refer to it by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// Whether it is a flowtable, a counter, and so on.
    pub kind: ObjectKind,
    /// Its name. Two objects of different kinds may have the same name.
    pub name: Arc<str>,
    /// Whether a rule or an element refers to it.
    pub in_use: bool,
}

impl fmt::Display for NamedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// The kind of a [`NamedObject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A flowtable, whatever its hook and flags.
    Flowtable,
    /// An object with this type number (`NFT_OBJECT_*` in `linux/netfilter/nf_tables.h`), which this crate may not know.
    Stateful(u32),
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flowtable => "flowtable",
            Self::Stateful(1) => "counter",
            Self::Stateful(2) => "quota",
            Self::Stateful(3) => "ct helper",
            Self::Stateful(4) => "limit",
            Self::Stateful(5) => "connection limit",
            Self::Stateful(6) => "tunnel",
            Self::Stateful(7) => "ct timeout",
            Self::Stateful(8) => "secmark",
            Self::Stateful(9) => "ct expectation",
            Self::Stateful(10) => "synproxy",
            Self::Stateful(number) => return write!(f, "object of type {number}"),
        })
    }
}

/// A chain. The kernel calls it when it has a [`BaseChain`]; otherwise only rules and maps call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name within the table.
    pub name: Arc<str>,
    /// The hook at which the kernel calls it; `None` for a regular chain.
    pub base: Option<BaseChain>,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<Arc<str>>,
}

/// The hook of a base chain. The policy is always `accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// Which packets the chain sees, and whether it may translate addresses.
    pub kind: ChainType,
    /// The point in a packet's path at which the kernel calls the chain.
    pub hook: Hook,
    /// The order among the chains of the same hook: smaller numbers first.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of each connection; may translate addresses.
    Nat,
    /// Sees every outgoing packet. The kernel routes the packet again if a rule changed a property that decides its route, such as the
    /// mark.
    Route,
}

impl ChainType {
    /// Its name, the same in the nft language and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// A netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that arrived and are not routed yet.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Packets that this host forwards.
    Forward,
    /// Packets from this host.
    Output,
    /// Packets that are about to leave this host.
    Postrouting,
}

impl Hook {
    /// Its number on the wire (`NF_INET_*`).
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }

    /// The hook with this number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting]
            .into_iter()
            .find(|hook| hook.number() == number)
    }
}

/// A flowtable at the ingress hook: packets of its flows go from the interface of arrival straight to the interface of departure, past the
/// hooks from prerouting to postrouting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    /// Its name within the table.
    pub name: Arc<str>,
    /// The order among the users of an interface's ingress hook: smaller numbers first.
    pub priority: i32,
    /// The names of the interfaces whose incoming packets are looked up.
    pub devices: Vec<Arc<str>>,
}

/// A rule as a list of nft statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its statements, from left to right.
    pub statements: Vec<Statement>,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<Arc<str>>,
}

impl Rule {
    /// A rule without a comment.
    #[must_use]
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// The rule as the kernel keeps and lists it, in a table of the family.
    #[must_use]
    pub fn to_dump(&self, family: Family) -> RuleDump {
        RuleDump {
            exprs: self.statements.iter().flat_map(|s| s.lower(family)).collect(),
            comment: self.comment.clone(),
        }
    }
}

/// A rule as the kernel keeps and lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDump {
    /// Its expressions.
    pub exprs: Vec<Expr>,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<Arc<str>>,
}

/// The type of a set's key or of a map's value: a list of fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Types {
    /// `type ipv4_addr . inet_proto`.
    Named(Vec<DataType>),
    /// `typeof ip daddr . numgen random mod 65536`: needed when a field has no type name. nft can load its own listing of the set only when
    /// the set's user data has these fields.
    Of(Vec<Field>),
}

impl Types {
    /// The data type of each field, in order.
    #[must_use]
    pub fn data_types(&self) -> Vec<DataType> {
        match self {
            Self::Named(types) => types.clone(),
            Self::Of(fields) => fields.iter().map(|f| f.data_type()).collect(),
        }
    }

    /// Length in bytes of a key or value of this type. A lone field is not padded, a concatenation's fields are.
    #[must_use]
    pub fn data_len(&self) -> usize {
        match self.data_types().as_slice() {
            [one] => one.size(),
            many => many.iter().map(|t| t.padded_size()).sum(),
        }
    }
}

/// The type of a map's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A verdict.
    Verdict,
    /// Data of these types. They are [`Types::Of`] if and only if the key's type is `Types::Of`.
    Data(Types),
}

/// The flags of a set (`NFT_SET_*`), except those that follow from its types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFlags {
    /// Keys are ranges.
    pub interval: bool,
    /// Rules may add elements.
    pub dynamic: bool,
    /// Elements may expire.
    pub timeout: bool,
    /// Its elements never change.
    pub constant: bool,
    /// It belongs to one rule, and the kernel deletes it with the rule. Only other programs make anonymous sets.
    pub anonymous: bool,
}

/// A set, or a map when it has a value type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name within the table.
    pub name: Arc<str>,
    /// The type of the keys.
    pub key: Types,
    /// The type of the values; `None` for a set.
    pub value: Option<ValueType>,
    /// Its flags, such as `flags interval, timeout` in nft.
    pub flags: SetFlags,
    /// The life time of an element that has no time-out of its own, in whole milliseconds; `None` if such an element does not expire.
    pub timeout: Option<Duration>,
    /// The largest number of elements; `None` without a limit. It lets the kernel keep the set in a hash table of fixed length, unless the
    /// set has ranges, time-outs or the flag `dynamic` (`net/netfilter/nft_set_hash.c`).
    pub size: Option<u32>,
    /// Whether each element counts the packets that look it up, and their bytes (Linux 5.7: `nft_lookup_eval`). The kernel adds the
    /// counters by itself, so messages with elements do not mention them.
    pub counter: bool,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<Arc<str>>,
}

impl Set {
    /// A set without flags, limits or comment.
    #[must_use]
    pub fn new(name: &str, key: Types) -> Self {
        Self {
            name: name.into(),
            key,
            value: None,
            flags: SetFlags::default(),
            timeout: None,
            size: None,
            counter: false,
            comment: None,
        }
    }

    /// A map without flags, limits or comment.
    #[must_use]
    pub fn map(name: &str, key: Types, value: ValueType) -> Self {
        Self { value: Some(value), ..Self::new(name, key) }
    }

    /// Whether keys are ranges of concatenations. The kernel keeps a range of concatenations as one element with two keys.
    pub(crate) fn is_concat_interval(&self) -> bool {
        self.flags.interval && self.key.data_types().len() > 1
    }
}

/// One element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The key; the first key of the range in an interval set.
    pub key: Data,
    /// The last key of the range (inclusive) in an interval set. Boxed, because few elements have one.
    pub key_end: Option<Box<Data>>,
    /// The map's value for the key.
    pub value: Value,
    /// How long the element lives from now, in whole milliseconds; `None` for the set's own time-out, if it has one.
    pub timeout: Option<Duration>,
    /// The comment that `nft` lists with it; cut to [`Element::MAX_COMMENT`] bytes when it is sent or written.
    pub comment: Option<Arc<str>>,
}

impl Element {
    /// The longest comment that this crate writes, in bytes. With its terminating zero it has the length that nft allows
    /// (`NFTNL_UDATA_COMMENT_MAXLEN`, 128).
    pub const MAX_COMMENT: usize = 127;

    /// An element of a set.
    #[must_use]
    pub fn new(key: Data) -> Self {
        Self { key, key_end: None, value: Value::None, timeout: None, comment: None }
    }

    /// An element of a map.
    #[must_use]
    pub fn mapping(key: Data, value: Value) -> Self {
        Self { value, ..Self::new(key) }
    }
}

/// A set or map, and all its elements.
pub type SetContent = (Arc<Set>, Vec<Element>);

/// A table with all its content, in the order of the listing. [`fmt::Display`] (in `text`) writes it as
/// `nft --stateless list ruleset` of nft 1.0.6 does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableContent {
    /// Its name and its comment.
    pub table: Table,
    /// Sets and maps with their elements.
    pub sets: Vec<SetContent>,
    /// Flowtables.
    pub flowtables: Vec<Flowtable>,
    /// Chains and their rules.
    pub chains: Vec<(Chain, Vec<Rule>)>,
}

impl TableContent {
    /// A table without content.
    #[must_use]
    pub fn new(table: Table) -> Self {
        Self { table, sets: Vec::new(), flowtables: Vec::new(), chains: Vec::new() }
    }
}

/// Several tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// The tables, in the order of the listing.
    pub tables: Vec<TableContent>,
}

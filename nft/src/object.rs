//! The objects of nf_tables as plain values: tables, chains, rules, sets and their elements.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::data::Data;
use crate::datatype::DataType;
use crate::expr::Expr;
use crate::field::Field;
use crate::statement::Statement;

/// The family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `ip`: IPv4 packets.
    Ip,
    /// `ip6`: IPv6 packets.
    Ip6,
    /// `inet`: both.
    Inet,
}

impl Family {
    /// The family's number on the wire (`NFPROTO_*`).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        })
    }
}

/// Family and name of a table; every other object lives in one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// The family.
    pub family: Family,
    /// The name.
    pub name: Arc<str>,
}

impl TableName {
    /// A table's name.
    #[must_use]
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: TableName,
    /// A comment.
    pub comment: Option<Arc<str>>,
}

/// Who may change a table (kernel 6.9 and later; before, everybody may).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Everybody with the privilege.
    #[default]
    Anybody,
    /// Everybody, because its owner is gone. A new owner can take it over.
    Orphaned,
    /// This connection only; others can neither change nor flush it.
    Ours,
    /// The owner of another netlink socket only.
    Of {
        /// The socket's port.
        port: u32,
    },
}

/// Something in a table that is neither chain, rule, set nor element: rules and maps refer to it by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// What it is.
    pub kind: ObjectKind,
    /// Its name; two objects of different kinds may have the same.
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
    /// A flowtable of whatever sort.
    Flowtable,
    /// An object of this type (`NFT_OBJECT_*`), which need not be one that this crate knows.
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

/// What the kernel says of a table besides its name, its comment and what is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    /// Who may change it.
    pub ownership: Ownership,
    /// Its base chains hang nowhere (`dormant`): no packet sees it.
    pub dormant: bool,
    /// Flags that this crate knows nothing of.
    pub unknown_flags: u32,
    /// The number of chains, sets, flowtables and objects in it.
    pub objects: u32,
}

/// A chain. With [`BaseChain`] the kernel calls it; without, only rules and maps do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name within the table.
    pub name: Arc<str>,
    /// Where the kernel calls it.
    pub base: Option<BaseChain>,
    /// A comment.
    pub comment: Option<Arc<str>>,
}

/// Where a base chain hangs. The policy is always accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// What the chain may do.
    pub kind: ChainType,
    /// The place in the packet's path.
    pub hook: Hook,
    /// The order among chains of the same hook, smaller first.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of each connection; may translate addresses.
    Nat,
    /// Like filter on output, and routes again.
    Route,
}

impl ChainType {
    /// Its name, in nft's language and on the wire.
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
    /// Arrived, not yet routed.
    Prerouting,
    /// For this host.
    Input,
    /// Passing through.
    Forward,
    /// From this host.
    Output,
    /// About to leave.
    Postrouting,
}

/// A flowtable: packets of the flows in it go from the interface they arrive at to the one they leave by, past all other hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    /// Its name within the table.
    pub name: Arc<str>,
    /// The order among what hangs at an interface's ingress, smaller first.
    pub priority: i32,
    /// The interfaces whose packets are looked up, by name.
    pub devices: Vec<Arc<str>>,
}

/// A rule in the words of the nft language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it does, from left to right.
    pub statements: Vec<Statement>,
    /// A comment.
    pub comment: Option<Arc<str>>,
}

impl Rule {
    /// A rule without a comment.
    #[must_use]
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// The rule as the kernel holds it.
    #[must_use]
    pub fn to_dump(&self, family: Family) -> RuleDump {
        RuleDump {
            exprs: self.statements.iter().flat_map(|s| s.lower(family)).collect(),
            comment: self.comment.clone(),
        }
    }
}

/// A rule as the kernel holds and dumps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDump {
    /// Its expressions.
    pub exprs: Vec<Expr>,
    /// A comment.
    pub comment: Option<Arc<str>>,
}

/// The type of a set's key or of a map's value: a list of fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Types {
    /// `type ipv4_addr . inet_proto`.
    Named(Vec<DataType>),
    /// `typeof ip daddr . numgen random mod 65536`: for what has no type name. The listing needs it to be read back.
    Of(Vec<Field>),
}

impl Types {
    /// The data types.
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

/// What the elements of a map hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A verdict.
    Verdict,
    /// Data. Typed with [`Types::Of`] if and only if the key is.
    Data(Types),
}

/// Properties of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFlags {
    /// Keys are ranges.
    pub interval: bool,
    /// Rules may add elements.
    pub dynamic: bool,
    /// Elements may expire.
    pub timeout: bool,
    /// The content never changes.
    pub constant: bool,
    /// It belongs to one rule and is gone with it.
    pub anonymous: bool,
}

/// A set, or a map when it has a value type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name within the table. An anonymous set is given the name that rules of the same batch use to refer to it.
    pub name: Arc<str>,
    /// The type of the keys.
    pub key: Types,
    /// The type of the values; `None` for a set.
    pub value: Option<ValueType>,
    /// Its properties.
    pub flags: SetFlags,
    /// How long an element lives when it does not say so itself; whole milliseconds.
    pub timeout: Option<Duration>,
    /// The largest number of elements. A set with a size uses the kernel's fixed hash table.
    pub size: Option<u32>,
    /// A comment.
    pub comment: Option<Arc<str>>,
}

impl Set {
    /// A set of keys.
    #[must_use]
    pub fn new(name: &str, key: Types) -> Self {
        Self {
            name: name.into(),
            key,
            value: None,
            flags: SetFlags::default(),
            timeout: None,
            size: None,
            comment: None,
        }
    }

    /// A map.
    #[must_use]
    pub fn map(name: &str, key: Types, value: ValueType) -> Self {
        Self { value: Some(value), ..Self::new(name, key) }
    }

    /// Whether keys are ranges of concatenations, which the kernel keeps in another way than ranges of one field.
    #[must_use]
    pub fn is_concat_interval(&self) -> bool {
        self.flags.interval && self.key.data_types().len() > 1
    }
}

/// One element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The key; the first of the range in an interval set.
    pub key: Data,
    /// The last key of the range (inclusive) in an interval set. In a box, because few elements have one.
    pub key_end: Option<Box<Data>>,
    /// What the map holds for the key.
    pub value: Value,
    /// How long the element lives from now; whole milliseconds.
    pub timeout: Option<Duration>,
    /// A comment, at most [`Element::MAX_COMMENT`] bytes.
    pub comment: Option<Arc<str>>,
}

impl Element {
    /// The longest comment that nft reads back (`NFTNL_UDATA_COMMENT_MAXLEN`), in bytes.
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

/// What an element holds besides its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing: an element of a set.
    None,
    /// A verdict.
    Verdict(Verdict),
    /// Data.
    Data(Data),
}

/// What becomes of the packet, or where its walk through the rules goes on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Leaves this hook's chain of the table.
    Accept,
    /// Discarded.
    Drop,
    /// Back to the calling chain.
    Return,
    /// To a chain, and back here after it.
    Jump(Arc<str>),
    /// To a chain, and after it back to where this chain was called from.
    Goto(Arc<str>),
}

impl Verdict {
    /// The chain it leads to.
    #[must_use]
    pub fn chain(&self) -> Option<&Arc<str>> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Accept | Self::Drop | Self::Return => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

//! The content of an nftables table as values: the part that does not depend on Services ([`StaticRules`]), and the objects of one Service
//! ([`ServiceObjects`]).
//!
//! `ruleset` makes these values, and `diff` computes the commands that bring the kernel's table to them. They do not depend on Kubernetes
//! types.
//!
//! The values of [`Slots`] and of a [`VerdictMap`] have numbers as keys. Unless the numbers are fixed, `diff` chooses the number of each
//! value, so that as few elements as possible change.

mod fit;
mod values;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use nft::{Chain, Data, Element, Rule, Set, Table, Value, Verdict};

pub(crate) use fit::fit;
pub(crate) use values::Values;

/// The name of a set or map.
pub type SetName = Cow<'static, str>;

/// The fixed part of a table: everything that does not depend on Services.
#[derive(Clone, Debug)]
pub struct StaticRules {
    /// The name and the comment of the table.
    pub table: Table,
    /// Whether only this process may change the table while it runs.
    pub owned: bool,
    /// Every set and map that does not belong to one Service.
    pub sets: Vec<Arc<Set>>,
    /// Maps whose keys end with a slot number: see [`Slots`].
    pub slotted: Vec<SetName>,
    /// Sets (not maps) in which several Services may have the same key. In all other sets a key belongs to one Service.
    pub shared: Vec<SetName>,
    /// All chains that always exist.
    pub chains: Vec<ChainContent>,
    /// Makes the content of a chain on demand from its name, such as `lb-3`. `diff` adds the chain when a rule or an element first goes to
    /// it.
    pub on_demand: OnDemand,
    /// Whether the table has, with another layout or other settings (such as another number of endpoint maps, F10), a set with this name,
    /// which is none of `sets`. Such a set is deleted, and so are the rules that use it. Another unknown set is deleted too if it could
    /// belong to a Service that is gone; otherwise the whole table is deleted and created again.
    pub former: fn(&str) -> bool,
    /// The prefixes of the names of [`ServiceObjects::verdict_maps`]: metrics sum up the elements of all maps with one prefix.
    pub kinds: &'static [&'static str],
}

type MakeContent = dyn Fn(&str) -> Option<ChainContent> + Send + Sync;

/// Makes the content of a chain from its name; `None` for a name that no chain on demand has.
#[derive(Clone)]
pub struct OnDemand(Arc<MakeContent>);

impl OnDemand {
    /// Makes chains by this function.
    #[must_use]
    pub fn new(content: impl Fn(&str) -> Option<ChainContent> + Send + Sync + 'static) -> Self {
        Self(Arc::new(content))
    }

    /// The content of the chain with this name.
    #[must_use]
    pub fn content(&self, chain: &str) -> Option<ChainContent> {
        (self.0)(chain)
    }
}

impl fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDemand")
    }
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainContent {
    /// The chain, without its rules.
    pub chain: Chain,
    /// Its rules, in the order in which the kernel evaluates them.
    pub rules: Vec<Rule>,
}

impl ChainContent {
    /// The chains that its rules jump or go to.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().flat_map(|rule| &rule.statements).filter_map(|statement| match statement {
            nft::Statement::Verdict(verdict) => verdict.chain(),
            _ => None,
        })
    }
}

/// The objects that a table has for one Service, or for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceObjects {
    /// Elements of sets and maps of the static rules.
    pub elements: Vec<(SetName, Element)>,
    /// Groups of numbered elements in maps of the static rules.
    pub slots: Vec<Slots>,
    /// Dynamic sets that belong to this Service only.
    pub dynamic_sets: Vec<DynamicSet>,
    /// Maps from numbers to verdicts that belong to this Service only.
    pub verdict_maps: Vec<VerdictMap>,
    /// Chains that belong to this Service only. Verdicts of elements may go to them.
    pub chains: Vec<ChainContent>,
}

impl ServiceObjects {
    /// Adds elements to a set of the static rules.
    pub fn extend(&mut self, set: &'static str, elements: impl IntoIterator<Item = Element>) {
        self.elements.extend(elements.into_iter().map(|element| (SetName::Borrowed(set), element)));
    }
}

/// A set or map for session affinity that rules fill while they process packets. For a map there is a list of the values (endpoints) that
/// its elements may have: when an endpoint is removed from the list, the elements that have this endpoint are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicSet {
    /// The set; a map if its elements have values.
    pub set: Arc<Set>,
    /// The values that its elements may have, sorted; `None` for a set without values, whose elements stay as long as the set.
    pub allowed: Option<Vec<Data>>,
}

impl DynamicSet {
    /// Returns the elements whose value is not allowed, sorted by key; none if every value is allowed. Returns each once: the kernel may list
    /// an element twice while the map grows or shrinks.
    #[must_use]
    pub fn not_allowed(&self, elements: Vec<Element>) -> Vec<Element> {
        let Some(allowed) = &self.allowed else { return Vec::new() };
        let is_allowed = |element: &Element| match &element.value {
            Value::Data(value) => allowed.binary_search(value).is_ok(),
            Value::None | Value::Verdict(_) => false,
        };
        let mut found: Vec<Element> = elements.into_iter().filter(|element| !is_allowed(element)).collect();
        found.sort_by_key(|element| element.key);
        found.dedup_by_key(|element| element.key);
        found
    }
}

/// Numbers at the end of a key from this number up are positions of a Maglev table, and are compared like any other element. Smaller
/// numbers are slots: see [`Slots`].
pub(crate) const FIRST_PLACE: u32 = 1 << 17;

/// A group of numbered elements in a map: keys `prefix . 0` to `prefix . n-1` have the n values, in any order unless it is fixed. The
/// number at the end of the key is called the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The name of the map.
    pub set: SetName,
    /// The key without the number at its end.
    pub prefix: Data,
    /// The values. A value may occur several times: an endpoint with a larger weight has more places.
    pub values: Values,
    /// Whether each value must have its index in the list as its number. Otherwise `diff` chooses the numbers.
    pub is_fixed: bool,
}

/// A map whose keys are the numbers 0 to n-1 and whose values are verdicts, in any order unless it is fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictMap {
    /// The map. Its key is one integer. `diff` assumes that any other map of this type in the table was made by this proxy, and deletes it.
    pub set: Arc<Set>,
    /// The verdicts. A verdict may occur several times: it leads to an endpoint with a larger weight than others.
    pub verdicts: Vec<Verdict>,
    /// Whether each verdict must have its index in the list as its number. Otherwise `diff` chooses the numbers.
    pub is_fixed: bool,
}

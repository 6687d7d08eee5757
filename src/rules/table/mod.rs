//! The values that a layout produces: the fixed part of a table, and what stands in it for one Service.
//!
//! `ruleset` makes them and `diff` compares them with what the kernel holds. Plain data of nftables, without a word of Kubernetes.
//!
//! Which value of a group of [`Slots`], or of a [`VerdictMap`], has which number is no part of what is wanted, unless it is fixed: `diff`
//! chooses the numbers so that as few elements as possible change.

mod fit;
mod values;

use std::borrow::Cow;
use std::sync::Arc;

use nft::{Chain, Data, Element, Rule, Set, Table, Value, Verdict};

pub(crate) use fit::fit;
pub(crate) use values::Values;

/// The name of a set or map.
pub type SetName = Cow<'static, str>;

/// The fixed part of a table.
#[derive(Clone, Debug)]
pub struct StaticRules {
    /// The table.
    pub table: Table,
    /// Whether only this process may change the table while it runs.
    pub owned: bool,
    /// Every set and map.
    pub sets: Vec<Arc<Set>>,
    /// Maps whose last key field is a slot number.
    pub slotted: Vec<SetName>,
    /// Sets of plain keys in which several Services may have the same key. In every other set a key belongs to one Service.
    pub shared: Vec<SetName>,
    /// Every chain that is always there.
    pub chains: Vec<ChainContent>,
    /// Chains that exist once an element leads to them, by name.
    pub on_demand: fn(&str) -> Option<ChainContent>,
    /// How the names of the maps of [`ServiceObjects::verdict_maps`] begin: their elements are counted by these beginnings.
    pub kinds: &'static [&'static str],
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainContent {
    /// The chain.
    pub chain: Chain,
    /// Its rules.
    pub rules: Vec<Rule>,
}

impl ChainContent {
    /// The chains that its rules lead to.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().flat_map(|rule| &rule.statements).filter_map(|statement| match statement {
            nft::Statement::Verdict(verdict) => verdict.chain(),
            _ => None,
        })
    }
}

/// The objects of a table for one Service, or for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceObjects {
    /// Elements of sets and maps of the static rules.
    pub elements: Vec<(SetName, Element)>,
    /// Groups of slots of maps of the static rules.
    pub slots: Vec<Slots>,
    /// Dynamic sets of its own.
    pub dynamic_sets: Vec<DynamicSet>,
    /// Maps of its own from numbers to verdicts.
    pub verdict_maps: Vec<VerdictMap>,
    /// Chains of its own. An element may lead to them.
    pub chains: Vec<ChainContent>,
}

impl ServiceObjects {
    /// Adds elements of a set.
    pub fn extend(&mut self, set: &'static str, elements: impl IntoIterator<Item = Element>) {
        self.elements.extend(elements.into_iter().map(|element| (SetName::Borrowed(set), element)));
    }
}

/// A set or map that the packet path fills, for session affinity. A map has a list of values that its elements may hold: when a value
/// leaves the list, the elements that hold it are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicSet {
    /// The set or map.
    pub set: Arc<Set>,
    /// The values that its elements may hold, sorted; `None` when elements stay as long as the set.
    pub allowed: Option<Vec<Data>>,
}

impl DynamicSet {
    /// Of the elements that rules made, those whose value is not allowed, in the order of their keys and each once: the kernel may
    /// list an element twice while the map grows or shrinks.
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

/// In a slotted map, the least number at the end of a key that is no slot: an element with this number or a higher one is an element like
/// any other. Slots are below that.
pub(crate) const FIRST_PLACE: u32 = 1 << 17;

/// A group of elements of a slotted map: `prefix . 0` to `prefix . n-1` hold the values, in any order unless it is fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The map.
    pub set: SetName,
    /// The key without the slot number.
    pub prefix: Data,
    /// The values, all different.
    pub values: Values,
    /// Whether each value has the number of its place in the list, so that the numbers are part of what is wanted.
    pub is_fixed: bool,
}

/// A map whose keys are the numbers 0 to n-1 and whose values are verdicts, in any order unless it is fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictMap {
    /// The map. Its key is one generated number; a set of that type that is not wanted is taken to be this proxy's, and deleted.
    pub set: Arc<Set>,
    /// The verdicts, all different.
    pub verdicts: Vec<Verdict>,
    /// Whether each verdict has the number of its place in the list, so that the numbers are part of what is wanted.
    pub is_fixed: bool,
}

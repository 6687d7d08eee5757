//! Wanted minus present: the transaction that makes a table what it should be.
//!
//! Takes [`Desired`] (what the table should hold, in parts that are replaced one by one) and [`Realised`] (what the kernel holds,
//! changed by acknowledged commands and by reading back only), gives the commands in an order that the kernel accepts. Pure; knows
//! nothing of Services.
//!
//! Invariants: applying the commands to `Realised` makes the two equal; commands for [`Scope::Touched`] are those for
//! [`Scope::Everything`] if `Realised` agreed with `Desired` before the touched parts changed; nothing to change gives no commands.
//!
//! Which value of a group of [`Slots`], or of a [`Choice`], has which number is no part of what is wanted: it is chosen so that
//! least changes.

mod changes;
mod desired;
mod realised;
mod room;
mod slots;
mod stored;
mod transaction;
mod values;

use std::borrow::Cow;
use std::sync::Arc;

use nft::{Chain, Data, Element, Rule, Set, Table, Value, Verdict};

pub use desired::{Desired, Objects};
pub use realised::Realised;
pub use transaction::{Collect, Scope, emptied_chains, has_garbage, transaction};
pub use values::Values;

/// The name of a set or map.
pub type SetName = Cow<'static, str>;

/// The fixed part of a table.
#[derive(Clone, Debug)]
pub struct Program {
    /// The table.
    pub table: Table,
    /// Whether only we may change the table, while we run.
    pub owned: bool,
    /// Every set and map.
    pub sets: Vec<Arc<Set>>,
    /// Maps whose last key field is a slot number.
    pub slotted: Vec<SetName>,
    /// Every chain that is always there.
    pub chains: Vec<ChainContent>,
    /// Chains that exist once an element leads to them, by name.
    pub on_demand: fn(&str) -> Option<ChainContent>,
    /// How the names of the sets of parts begin: those that begin alike are counted together.
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

/// A part of a table: elements, and groups of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Elements of sets and maps.
    pub elements: Vec<(SetName, Element)>,
    /// Groups of slots.
    pub slots: Vec<Slots>,
    /// Sets of its own that rules fill.
    pub learned: Vec<LearnedMap>,
    /// Maps of its own from numbers to verdicts.
    pub choices: Vec<Choice>,
    /// Chains of its own. An element may lead to them.
    pub chains: Vec<ChainContent>,
}

/// A dynamic set, or a map that rules fill with values of a list: when a value leaves the list, the elements that hold it are
/// deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedMap {
    /// The set or map.
    pub set: Arc<Set>,
    /// The values that its elements may hold, sorted; `None` when the elements stay as long as the set.
    pub allowed: Option<Vec<Data>>,
}

impl LearnedMap {
    /// Of the elements that rules made, those whose value is not allowed, in the order of their keys and each once: the kernel may
    /// list an element twice while the map grows or shrinks.
    #[must_use]
    pub fn expelled(&self, elements: Vec<Element>) -> Vec<Element> {
        let Some(allowed) = &self.allowed else { return Vec::new() };
        let is_allowed = |element: &Element| match &element.value {
            Value::Data(value) => allowed.binary_search(value).is_ok(),
            Value::None | Value::Verdict(_) => false,
        };
        let mut expelled: Vec<Element> = elements.into_iter().filter(|element| !is_allowed(element)).collect();
        expelled.sort_by_key(|element| element.key);
        expelled.dedup_by_key(|element| element.key);
        expelled
    }
}

impl Fragment {
    /// Whether it adds nothing to a table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds elements of a set.
    pub fn extend(&mut self, set: &'static str, elements: impl IntoIterator<Item = Element>) {
        self.elements.extend(elements.into_iter().map(|element| (SetName::Borrowed(set), element)));
    }
}

/// A group of elements of a slotted map: `prefix . 0` to `prefix . n-1` hold the values, in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The map.
    pub set: SetName,
    /// The key without the slot number.
    pub prefix: Data,
    /// The values, all different.
    pub values: Values,
}

/// A map whose keys are the numbers 0 to n-1 and whose values are verdicts, in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The map. Its key is one generated number; a set of that type that nobody wants is taken to be ours, and deleted.
    pub set: Arc<Set>,
    /// The verdicts, all different.
    pub verdicts: Vec<Verdict>,
}

impl Choice {
    /// Whether a set can be the map of a choice.
    fn can_be(set: &Set) -> bool {
        let is_number = matches!(set.key.data_types()[..], [nft::DataType::Integer]);
        is_number && set.value == Some(nft::ValueType::Verdict) && !set.flags.anonymous && !set.flags.dynamic
    }

    fn element(number: usize, verdict: Verdict) -> Element {
        Element::mapping(slot_key(&Data::EMPTY, number), Value::Verdict(verdict))
    }
}

/// The key of a slot.
fn slot_key(prefix: &Data, slot: usize) -> Data {
    prefix.then(u32::try_from(slot).unwrap_or(u32::MAX))
}

/// Prefix and slot number of a key.
fn split_slot_key(key: &Data) -> Option<(Data, usize)> {
    let (prefix, slot) = key.as_slice().split_last_chunk::<4>()?;
    Some((Data::from_bytes(prefix)?, usize::try_from(u32::from_ne_bytes(*slot)).ok()?))
}

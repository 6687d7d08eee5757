//! What the kernel holds, as far as we know.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nft::{Chain, Command, Data, Element, Ownership, RuleDump, Set, Table, TableDump, TableName, Value};

use super::{Program, SetName, slot_key, split_slot_key};

/// The present content of one table. Changed by commands that the kernel acknowledged, and made anew by reading back.
#[derive(Debug, Default)]
pub struct Realised {
    table: Option<Table>,
    chains: HashMap<Arc<str>, (Chain, Vec<RuleDump>)>,
    /// The names of the chains without rules: few, and asked for at every sync.
    empty: BTreeSet<Arc<str>>,
    sets: HashMap<Arc<str>, RealisedSet>,
    slotted: Vec<SetName>,
    /// Who may change the table.
    ownership: Ownership,
    /// The table holds something that is not ours.
    foreign: bool,
}

/// The present content of one set.
#[derive(Debug)]
pub(super) struct RealisedSet {
    pub(super) set: Set,
    pub(super) elements: HashMap<Data, Element>,
    /// Slots that hold a value.
    slotted: usize,
    /// Values by prefix and slot; a hole is [`Data::EMPTY`].
    slots: Option<HashMap<Data, Vec<Data>>>,
}

/// Slots above this number are not ours, and are kept as plain elements: a foreign slot number must not make us allocate.
const MAX_SLOT: usize = 1 << 16;

impl Realised {
    /// No table.
    #[must_use]
    pub fn absent(program: &Program) -> Self {
        Self { slotted: program.slotted.clone(), ..Self::default() }
    }

    /// The table as it was read.
    #[must_use]
    pub fn from_dump(dump: Option<TableDump>, program: &Program) -> Self {
        let mut realised = Self::absent(program);
        let Some(dump) = dump else { return realised };
        realised.table = Some(dump.table);
        realised.ownership = dump.ownership;
        realised.foreign = !dump.unreadable.is_empty();
        realised.chains = dump.chains.into_iter().collect();
        let empty = realised.chains.iter().filter(|(_, (_, rules))| rules.is_empty());
        realised.empty = empty.map(|(name, _)| Arc::clone(name)).collect();
        for (name, (set, elements)) in dump.sets {
            let mut content = realised.new_set(set);
            elements.into_iter().for_each(|element| content.add(element));
            realised.sets.insert(name, content);
        }
        realised
    }

    /// Does to this what an acknowledged command did to the kernel. Commands for other tables change nothing.
    pub fn apply(&mut self, command: &Command, table: &TableName) {
        if command.table() != table {
            return;
        }
        match command {
            Command::AddTable(table) => {
                self.table.get_or_insert_with(|| table.clone());
            }
            Command::OwnTable(table) => {
                self.table.get_or_insert_with(|| table.clone());
                self.ownership = Ownership::Ours;
            }
            Command::DeleteTable(_) => {
                *self = Self { slotted: std::mem::take(&mut self.slotted), ..Self::default() };
            }
            Command::AddChain(_, chain) => {
                let (_, rules) =
                    self.chains.entry(Arc::clone(&chain.name)).or_insert_with(|| (chain.clone(), Vec::new()));
                if rules.is_empty() {
                    self.empty.insert(Arc::clone(&chain.name));
                }
            }
            Command::DeleteChain(_, name) => {
                self.chains.remove(name);
                self.empty.remove(name);
            }
            Command::FlushChain(_, name) => {
                if let Some((_, rules)) = self.chains.get_mut(name) {
                    rules.clear();
                    self.empty.insert(Arc::clone(name));
                }
            }
            // Rules of our tables are never deleted one by one: a chain is written as a whole.
            Command::DeleteRule(..) => {}
            Command::AddRule(table, name, rule) => {
                if let Some((_, rules)) = self.chains.get_mut(name) {
                    rules.push(rule.to_dump(table.family));
                    self.empty.remove(name);
                }
            }
            Command::AddSet(_, set) => {
                let content = self.new_set(Set::clone(set));
                self.sets.entry(Arc::clone(&set.name)).or_insert(content);
            }
            Command::DeleteSet(_, set) => {
                self.sets.remove(&set.name);
            }
            Command::AddElements(_, set, elements) => {
                if let Some(content) = self.sets.get_mut(&set.name) {
                    elements.iter().for_each(|element| content.add(element.clone()));
                }
            }
            Command::DeleteElements(_, set, elements) => {
                if let Some(content) = self.sets.get_mut(&set.name) {
                    elements.iter().for_each(|element| content.remove(&element.key));
                }
            }
            // In a table of its own, which is not kept here.
            Command::AddFlowtable(..) => {}
        }
    }

    fn new_set(&self, set: Set) -> RealisedSet {
        let slotted = self.slotted.iter().any(|name| *name == *set.name);
        RealisedSet { set, elements: HashMap::new(), slotted: 0, slots: slotted.then(HashMap::new) }
    }

    /// Whether the table holds something that is not ours.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign
    }

    pub(super) fn ownership(&self) -> Ownership {
        self.ownership
    }

    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    pub(super) fn chain(&self, name: &str) -> Option<&(Chain, Vec<RuleDump>)> {
        self.chains.get(name)
    }

    pub(super) fn chains(&self) -> impl Iterator<Item = &(Chain, Vec<RuleDump>)> {
        self.chains.values()
    }

    /// The chains without rules, by name.
    pub(super) fn empty_chains(&self) -> impl Iterator<Item = &Chain> {
        self.empty.iter().filter_map(|name| self.chain(name)).map(|(chain, _)| chain)
    }

    /// Whether there is a set of this name.
    #[must_use]
    pub fn has_set(&self, name: &str) -> bool {
        self.sets.contains_key(name)
    }

    /// Every set that is not filled by rules, with its number of elements.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        let ours = self.sets.values().filter(|content| !content.set.flags.dynamic);
        ours.map(|content| (&*content.set.name, content.elements.len() + content.slotted))
    }

    pub(super) fn set(&self, name: &str) -> Option<&RealisedSet> {
        self.sets.get(name)
    }

    pub(super) fn sets(&self) -> impl Iterator<Item = &RealisedSet> {
        self.sets.values()
    }
}

impl RealisedSet {
    /// The values of a group of slots.
    pub(super) fn slots(&self, prefix: &Data) -> &[Data] {
        self.slots.as_ref().and_then(|slots| slots.get(prefix)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn slot_prefixes(&self) -> impl Iterator<Item = &Data> {
        self.slots.iter().flat_map(HashMap::keys)
    }

    fn add(&mut self, element: Element) {
        match (&mut self.slots, slot(&element.key), &element.value) {
            (Some(slots), Some((prefix, slot)), Value::Data(value)) => {
                let values = slots.entry(prefix).or_default();
                if values.len() <= slot {
                    values.resize(slot + 1, Data::EMPTY);
                }
                let before = std::mem::replace(&mut values[slot], *value);
                self.slotted += usize::from(before.is_empty());
            }
            _ => {
                self.elements.insert(element.key, element);
            }
        }
    }

    fn remove(&mut self, key: &Data) {
        if self.elements.remove(key).is_some() {
            return;
        }
        let (Some(slots), Some((prefix, slot))) = (&mut self.slots, slot(key)) else { return };
        let Some(values) = slots.get_mut(&prefix) else { return };
        if let Some(value) = values.get_mut(slot) {
            let before = std::mem::replace(value, Data::EMPTY);
            self.slotted -= usize::from(!before.is_empty());
        }
        while values.last().is_some_and(Data::is_empty) {
            values.pop();
        }
        if values.is_empty() {
            slots.remove(&prefix);
        }
    }
}

/// Prefix and slot of a key that can be one of ours.
fn slot(key: &Data) -> Option<(Data, usize)> {
    split_slot_key(key).filter(|(prefix, slot)| *slot <= MAX_SLOT && slot_key(prefix, *slot) == *key)
}

//! What the kernel holds, as far as we know.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashMap;
use nft::{Chain, Command, Data, Element, NamedObject, Ownership, RuleDump, Set, Table, TableDump, TableName, Value};

use super::stored::Stored;
use super::values::Values;
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
    /// The sets of the program, and the kinds of those of parts, each kind with its number of elements.
    fixed: Vec<Arc<Set>>,
    kinds: Vec<(&'static str, usize)>,
    /// Who may change the table.
    ownership: Ownership,
    /// No packet sees the table.
    dormant: bool,
    /// Objects in the table, of which we make none, that nothing refers to.
    objects: Vec<NamedObject>,
    /// The table holds something else that is not ours.
    foreign: bool,
}

/// The present content of one set.
#[derive(Debug)]
pub(super) struct RealisedSet {
    pub(super) set: Set,
    elements: HashMap<Data, Stored>,
    /// Slots that hold a value.
    slotted: usize,
    /// Values by prefix and slot.
    slots: Option<HashMap<Data, Values>>,
}

/// Slots above this number are not ours, and are kept as plain elements: a foreign slot number must not make us allocate.
const MAX_SLOT: usize = 1 << 16;

impl Realised {
    /// No table.
    #[must_use]
    pub fn absent(program: &Program) -> Self {
        let kinds = program.kinds.iter().map(|kind| (*kind, 0)).collect();
        Self { slotted: program.slotted.clone(), fixed: program.sets.clone(), kinds, ..Self::default() }
    }

    /// The table as it was read.
    #[must_use]
    pub fn from_dump(dump: Option<TableDump>, program: &Program) -> Self {
        let mut realised = Self::absent(program);
        let Some(dump) = dump else { return realised };
        realised.table = Some(dump.table);
        realised.ownership = dump.ownership;
        realised.dormant = dump.dormant;
        let in_use = dump.objects.iter().any(|object| object.in_use);
        realised.foreign = !dump.unreadable.is_empty() || dump.unknown_flags != 0 || in_use;
        realised.objects = dump.objects;
        realised.chains = dump.chains.into_iter().collect();
        let empty = realised.chains.iter().filter(|(_, (_, rules))| rules.is_empty());
        realised.empty = empty.map(|(name, _)| Arc::clone(name)).collect();
        for (name, (set, elements)) in dump.sets {
            let mut content = realised.new_set(set);
            content.add_all(&elements);
            realised.tally(&name, |sum| sum + content.len());
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
                self.dormant = false;
            }
            Command::OwnTable(table) => {
                self.table.get_or_insert_with(|| table.clone());
                self.dormant = false;
                self.ownership = Ownership::Ours;
            }
            Command::DeleteTable(_) => {
                let kinds = self.kinds.iter().map(|(kind, _)| (*kind, 0)).collect();
                let (slotted, fixed) = (std::mem::take(&mut self.slotted), std::mem::take(&mut self.fixed));
                *self = Self { slotted, fixed, kinds, ..Self::default() };
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
                if let Some(content) = self.sets.remove(&set.name) {
                    self.tally(&set.name, |sum| sum - content.len());
                }
            }
            Command::AddElements(_, set, elements) => self.change(set, |content| content.add_all(elements)),
            Command::DeleteElements(_, set, elements) | Command::DestroyElements(_, set, elements) => {
                self.change(set, |content| elements.iter().for_each(|element| content.remove(&element.key)));
            }
            Command::DeleteObject(_, object) => self.objects.retain(|present| present != object),
            // In a table of its own, which is not kept here.
            Command::AddFlowtable(..) | Command::LockTable(_) => {}
        }
    }

    /// Changes the content of a set that is there.
    fn change(&mut self, set: &Set, change: impl FnOnce(&mut RealisedSet)) {
        let Some(content) = self.sets.get_mut(&set.name) else { return };
        let before = content.len();
        change(content);
        let now = content.len();
        self.tally(&set.name, |sum| sum + now - before);
    }

    /// Changes the number of elements of the kind that a set is of.
    fn tally(&mut self, set: &str, change: impl FnOnce(usize) -> usize) {
        if let Some((_, sum)) = self.kinds.iter_mut().find(|(kind, _)| set.starts_with(kind)) {
            *sum = change(*sum);
        }
    }

    fn new_set(&self, set: Set) -> RealisedSet {
        let slotted = self.slotted.iter().any(|name| *name == *set.name);
        RealisedSet { set, elements: HashMap::default(), slotted: 0, slots: slotted.then(HashMap::default) }
    }

    /// Whether no packet sees the table.
    pub(super) fn is_dormant(&self) -> bool {
        self.dormant
    }

    /// Objects that are not ours, and that nothing refers to unless the table is foreign.
    pub(super) fn objects(&self) -> &[NamedObject] {
        &self.objects
    }

    /// Whether the table holds something that is not ours and that cannot be taken out of it by itself.
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

    /// Every set of the program, with its number of elements, and every kind of sets of parts. As many whatever parts there are.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        let fixed = self.fixed.iter().filter_map(|set| self.sets.get(&set.name));
        fixed.map(|content| (&*content.set.name, content.len())).chain(self.kinds.iter().copied())
    }

    pub(super) fn set(&self, name: &str) -> Option<&RealisedSet> {
        self.sets.get(name)
    }

    pub(super) fn sets(&self) -> impl Iterator<Item = &RealisedSet> {
        self.sets.values()
    }
}

impl RealisedSet {
    fn len(&self) -> usize {
        self.elements.len() + self.slotted
    }

    pub(super) fn element(&self, key: &Data) -> Option<&Stored> {
        self.elements.get(key)
    }

    /// Every element that is in no slot.
    pub(super) fn elements(&self) -> impl ExactSizeIterator<Item = (&Data, &Stored)> {
        self.elements.iter()
    }

    /// The values of a group of slots.
    pub(super) fn slots(&self, prefix: &Data) -> Option<&Values> {
        self.slots.as_ref()?.get(prefix)
    }

    /// Every group of slots.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&Data, &Values)> {
        self.slots.iter().flatten()
    }

    /// Adds elements. Neighbours of one group of slots cost one look-up together.
    fn add_all(&mut self, elements: &[Element]) {
        let Some(slots) = &mut self.slots else {
            self.elements.reserve(elements.len());
            self.elements.extend(elements.iter().cloned().map(Stored::split));
            return;
        };
        let mut rest = elements;
        while let Some((first, others)) = rest.split_first() {
            let Some((prefix, _)) = slot(&first.key) else {
                self.elements.extend([Stored::split(first.clone())]);
                rest = others;
                continue;
            };
            let len = 1 + others.iter().take_while(|other| is_of_group(&prefix, &other.key)).count();
            let (group, others) = rest.split_at(len);
            rest = others;
            let values = slots.entry(prefix).or_default();
            for element in group {
                match (slot(&element.key), &element.value) {
                    (Some((_, slot)), Value::Data(value)) if values.can_hold(value) => {
                        if slot == 0 {
                            values.reserve(len, value);
                        }
                        self.slotted += usize::from(values.set(slot, value));
                    }
                    _ => self.elements.extend([Stored::split(element.clone())]),
                }
            }
            if values.is_empty() {
                slots.remove(&prefix);
            }
        }
    }

    fn remove(&mut self, key: &Data) {
        if self.elements.remove(key).is_some() {
            return;
        }
        let (Some(slots), Some((prefix, slot))) = (&mut self.slots, slot(key)) else { return };
        let Some(values) = slots.get_mut(&prefix) else { return };
        self.slotted -= usize::from(values.clear(slot));
        if values.is_empty() {
            slots.remove(&prefix);
        }
    }
}

/// Prefix and slot of a key that can be one of ours.
fn slot(key: &Data) -> Option<(Data, usize)> {
    split_slot_key(key).filter(|(prefix, slot)| *slot <= MAX_SLOT && slot_key(prefix, *slot) == *key)
}

/// Whether a key is that of a slot of a group.
fn is_of_group(prefix: &Data, key: &Data) -> bool {
    key.as_slice().split_last_chunk::<4>().is_some_and(|(start, _)| start == prefix.as_slice())
}

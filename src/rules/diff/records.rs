//! The records of one table: for each owner (a Service, or the node) the committed record, and a new record if it has changed.
//!
//! Takes the [`ServiceObjects`] of each owner and returns the commands of one transaction: [`Records::changes`] compares new with
//! committed records, and [`Records::comparison`] compares all records with the table that was read from the kernel. After the
//! kernel has carried out the commands, [`Records::committed`] turns the new records into committed ones.
//!
//! Invariants: unless another program writes to it, after a commit the table has the objects of the static rules and of the committed
//! records, and no other objects except chains on demand (shared chains such as `lb-3`), elements that rules add to dynamic sets, and
//! chains without rules that wait to be deleted; two records have the same key of a set only if the set is shared
//! ([`StaticRules::shared`]).

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashMap;
use nft::Set;

use super::kernel_state::KernelState;
use super::record::{ElementKey, Record};
use super::totals::Totals;
use crate::table::{DynamicSet, ServiceObjects, SetName, StaticRules};

/// The records of one table.
#[derive(Debug)]
pub struct Records<Owner> {
    pub(super) static_rules: StaticRules,
    numbers: HashMap<SetName, u16>,
    /// The record of each owner that has objects in the table, as of the last commit. No record is empty.
    pub(super) committed: HashMap<Owner, Record>,
    /// The new record of each owner whose record changed since the last commit.
    pub(super) open: HashMap<Owner, Record>,
    /// Numbers of elements, summed over the committed records.
    pub(super) totals: Totals,
    /// The state of the kernel's table that the records do not have: sizes of sets, chains on demand, and chains without rules.
    pub(super) kernel: KernelState,
    /// Whether `totals` turned out to be wrong: then the table may differ from the records.
    pub(super) slipped: bool,
    /// Whether nothing was committed with the static rules yet.
    pub(super) has_new_static_rules: bool,
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// Makes an empty list of records, for a table whose content is not known yet.
    #[must_use]
    pub fn new(static_rules: StaticRules) -> Self {
        let mut numbers = HashMap::default();
        for (number, set) in (0..).zip(&static_rules.sets) {
            numbers.insert(SetName::Owned(set.name.to_string()), number);
        }
        let (totals, kernel) = (Totals::new(&static_rules), KernelState::new(&static_rules));
        Self {
            numbers,
            static_rules,
            committed: HashMap::default(),
            open: HashMap::default(),
            totals,
            kernel,
            slipped: false,
            has_new_static_rules: true,
        }
    }

    /// The part of the table that does not depend on owners.
    #[must_use]
    pub fn static_rules(&self) -> &StaticRules {
        &self.static_rules
    }

    /// Replaces the static rules. The next transaction must come from [`Self::comparison`]. The new static rules must have the same sets in
    /// the same order, because records refer to a set by its number.
    pub fn set_static_rules(&mut self, static_rules: StaticRules) {
        debug_assert_eq!(self.static_rules.sets, static_rules.sets);
        self.static_rules = static_rules;
        self.has_new_static_rules = true;
    }

    /// Whether nothing was committed with the static rules yet. Then the rules in the kernel may be others, such as those of another layout.
    #[must_use]
    pub const fn has_new_static_rules(&self) -> bool {
        self.has_new_static_rules
    }

    /// Sets the wanted objects of an owner.
    ///
    /// # Panics
    /// When the objects name a set that the static rules do not have.
    pub fn put(&mut self, owner: Owner, objects: ServiceObjects) {
        let record = self.record_for(&owner, objects);
        self.put_record(owner, record);
    }

    /// Makes the record for the objects of an owner. Values and verdicts whose numbers are not fixed keep, where possible, the numbers that
    /// they have in the committed record.
    ///
    /// # Panics
    /// When the objects name a set that the static rules do not have.
    #[must_use]
    pub fn record_for(&self, owner: &Owner, objects: ServiceObjects) -> Record {
        let record = Record::new(objects, |name| self.number(name));
        match self.committed.get(owner) {
            Some(committed) if *committed != record => record.arranged_like(committed),
            _ => record,
        }
    }

    /// Reserves memory for this many new records.
    pub fn reserve(&mut self, count: usize) {
        self.open.reserve(count);
    }

    /// Sets the wanted record of an owner.
    pub fn put_record(&mut self, owner: Owner, record: Record) {
        let is_committed = match self.committed.get(&owner) {
            Some(committed) => *committed == record,
            None => record.is_empty(),
        };
        if is_committed {
            self.open.remove(&owner);
        } else {
            self.open.insert(owner, record);
        }
    }

    /// The wanted record of an owner; empty if it has none.
    #[must_use]
    pub fn record(&self, owner: &Owner) -> Record {
        self.latest(owner).cloned().unwrap_or_default()
    }

    fn latest(&self, owner: &Owner) -> Option<&Record> {
        match self.open.get(owner) {
            Some(record) => Some(record),
            None => self.committed.get(owner),
        }
    }

    /// Drops the new record of an owner, so that the table keeps its committed record.
    pub fn keep_committed(&mut self, owner: &Owner) {
        self.open.remove(owner);
    }

    /// Removes from the records of `owners` every key that the record of an owner outside `owners` has too, except keys of shared sets.
    /// `owners` are Services that are held back and keep their old elements: another Service may have taken over a frontend, and the table
    /// can have only one element for each key.
    pub fn give_way<'a>(&mut self, owners: impl Iterator<Item = &'a Owner>)
    where
        Owner: 'a,
    {
        let mut contested: HashMap<ElementKey, Vec<&Owner>> = HashMap::default();
        for owner in owners {
            let Some(record) = self.latest(owner) else { continue };
            for entry in record.entries() {
                if !self.totals.is_shared(entry.set) {
                    contested.entry(entry.element_key()).or_default().push(owner);
                }
            }
        }
        if contested.is_empty() {
            return;
        }
        let mut lost: BTreeMap<Owner, Vec<ElementKey>> = BTreeMap::new();
        for (owner, record) in self.wanted() {
            for entry in record.entries() {
                let key = entry.element_key();
                let Some(losers) = contested.get(&key) else { continue };
                if losers.contains(&owner) {
                    continue;
                }
                for loser in losers {
                    lost.entry(Owner::clone(loser)).or_default().push(key);
                }
            }
        }
        for (owner, keys) in lost {
            let record = self.record(&owner).without(|entry| keys.contains(&entry.element_key()));
            self.put_record(owner, record);
        }
    }

    /// The number of a set: its index in the static rules. Panics if they do not have the set.
    fn number(&self, name: &str) -> u16 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("no set is called {name}"))
    }

    pub(super) fn set(&self, number: u16) -> &Arc<Set> {
        &self.static_rules.sets[usize::from(number)]
    }

    /// The wanted record of each owner, in no order; records may be empty.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&Owner, &Record)> {
        let unchanged = self.committed.iter().filter(|(owner, _)| !self.open.contains_key(owner));
        self.open.iter().chain(unchanged)
    }

    /// The wanted records, sorted by the bytes of their entries, so that equal inputs give equal transactions. Comparing bytes is faster than
    /// comparing the names of owners, which are behind pointers. Records with equal entries have the same elements in the static sets, so
    /// their order does not matter for these.
    pub(super) fn wanted_in_order(&self) -> impl Iterator<Item = &Record> {
        let mut records: Vec<([u8; Record::BEGINNING], &Record)> = Vec::new();
        for (_, record) in self.wanted() {
            records.push((record.beginning(), record));
        }
        records.sort_unstable_by(|(first, a), (second, b)| first.cmp(second).then_with(|| a.cmp_entries(b)));
        records.into_iter().map(|(_, record)| record)
    }

    /// New and committed records of the owners that changed since the last commit, in no order.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&Owner, &Record, Option<&Record>)> {
        self.open.iter().map(|(owner, record)| (owner, record, self.committed.get(owner)))
    }

    /// Whether `totals` turned out to be wrong since the last call. If so, the next transaction must come from [`Self::comparison`].
    pub fn take_slip(&mut self) -> bool {
        std::mem::take(&mut self.slipped)
    }

    /// Makes `totals` wrong, for tests of the recovery.
    #[cfg(any(test, feature = "testing"))]
    pub fn break_sums(&mut self) {
        self.totals = Totals::new(&self.static_rules);
    }

    /// Must be called when a second has passed: from then on a transaction with
    /// [`Collect::EmptyForASecond`](super::Collect::EmptyForASecond) deletes the chains that are empty now.
    pub fn second_passed(&mut self) {
        self.kernel.second_passed();
    }

    /// Whether there are chains without rules that wait to be deleted.
    #[must_use]
    pub fn has_emptied_chains(&self) -> bool {
        self.kernel.has_emptied()
    }

    /// All wanted dynamic sets (filled by rules, for session affinity), each with its owner.
    pub fn dynamic_sets(&self) -> impl Iterator<Item = (&Owner, &DynamicSet)> {
        self.wanted().flat_map(|(owner, record)| record.dynamic_sets().iter().map(move |map| (owner, map)))
    }

    /// The dynamic sets that are new or whose allowed values changed since the last commit, each with its owner.
    pub fn changed_dynamic_sets(&self) -> impl Iterator<Item = (&Owner, &DynamicSet)> {
        let mut changed = Vec::new();
        for (owner, record, before) in self.changed() {
            for map in record.dynamic_sets() {
                let known = before.and_then(|before| before.dynamic_set(&map.set.name));
                if known != Some(map) {
                    changed.push((owner, map));
                }
            }
        }
        changed.into_iter()
    }

    /// A dynamic set of an owner, by name.
    #[must_use]
    pub fn dynamic_set_of(&self, owner: &Owner, name: &str) -> Option<&DynamicSet> {
        self.latest(owner)?.dynamic_set(name)
    }

    /// Whether the committed record of an owner has a dynamic set with this name.
    #[must_use]
    pub fn is_committed(&self, owner: &Owner, map: &str) -> bool {
        self.committed.get(owner).is_some_and(|record| record.dynamic_set(map).is_some())
    }

    /// The number of elements of each set of the static rules, and for each prefix of the names of verdict maps the number of elements of
    /// all maps with this prefix. So the list has the same names whatever the owners are.
    pub fn lens(&self) -> impl Iterator<Item = (&str, usize)> {
        self.totals.lens(&self.static_rules)
    }
}

//! The records of one table: for each owner what was last committed, and while a transaction is open the new record beside it.
//!
//! Takes [`ServiceObjects`]s by owner (a Service, or the node) and gives the commands of one transaction: [`Records::changes`] is the
//! difference of new and committed records, [`Records::comparison`] that of all records and what was read from the kernel. Once the
//! kernel has carried them out, [`Records::committed`] makes the new records the committed ones.
//!
//! Invariants: after a commit the table holds what the fixed part and the committed records say, and besides that only chains on
//! demand and emptied chains; two records have an entry for the same key of a set only where the set is shared
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
    /// The content of the table, by owner. No record is empty.
    pub(super) committed: HashMap<Owner, Record>,
    /// The wanted content, for owners whose record changed since the last commit.
    pub(super) open: HashMap<Owner, Record>,
    /// Sums over the committed records.
    pub(super) totals: Totals,
    /// Everything else that the kernel holds.
    pub(super) kernel: KernelState,
    /// The sums turned out to be wrong, so the table may hold something else than the records say.
    pub(super) slipped: bool,
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// No records, of a table of which nothing is known.
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
        }
    }

    /// The fixed part.
    #[must_use]
    pub fn static_rules(&self) -> &StaticRules {
        &self.static_rules
    }

    /// Changes the fixed part; the next transaction has to be a comparison. The sets must stay the same.
    pub fn set_static_rules(&mut self, static_rules: StaticRules) {
        debug_assert_eq!(self.static_rules.sets, static_rules.sets);
        self.static_rules = static_rules;
    }

    /// Sets the wanted content for an owner.
    ///
    /// # Panics
    /// When the objects name a set that the static rules do not have.
    pub fn put(&mut self, owner: Owner, objects: ServiceObjects) {
        let record = self.record_for(&owner, objects);
        self.put_record(owner, record);
    }

    /// The record for what a layout made for an owner, with the numbers of slots that were committed for it as far as it can keep them.
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

    /// Reserves memory for so many new records.
    pub fn reserve(&mut self, count: usize) {
        self.open.reserve(count);
    }

    /// Sets the wanted content for an owner, as a record.
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

    /// The wanted content for an owner.
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

    /// Drops the new record of an owner, so that the table keeps the committed one.
    pub fn keep_committed(&mut self, owner: &Owner) {
        self.open.remove(owner);
    }

    /// Takes the keys out of the records of some owners that the record of another one has as well.
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

    /// The number of a set.
    fn number(&self, name: &str) -> u16 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("no set is called {name}"))
    }

    pub(super) fn set(&self, number: u16) -> &Arc<Set> {
        &self.static_rules.sets[usize::from(number)]
    }

    /// The wanted content, by owner, in no order; records may be empty.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&Owner, &Record)> {
        let unchanged = self.committed.iter().filter(|(owner, _)| !self.open.contains_key(owner));
        self.open.iter().chain(unchanged)
    }

    /// The records of what the table should hold in the order of their entries, so that equal inputs give equal transactions.
    /// Bytes are compared and not the names of owners, which are behind pointers. Records with the same entries have the same elements.
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

    /// Whether the sums turned out to be wrong since the last call: then the next transaction has to be a comparison.
    pub fn take_slip(&mut self) -> bool {
        std::mem::take(&mut self.slipped)
    }

    /// Makes the sums wrong, for tests of what follows.
    #[cfg(any(test, feature = "testing"))]
    pub fn break_sums(&mut self) {
        self.totals = Totals::new(&self.static_rules);
    }

    /// Notes that a second has passed: chains that are empty now may be deleted by a transaction with
    /// [`Collect::EmptyForASecond`](super::Collect::EmptyForASecond).
    pub fn second_passed(&mut self) {
        self.kernel.second_passed();
    }

    /// Whether there are emptied chains to be deleted.
    #[must_use]
    pub fn has_emptied_chains(&self) -> bool {
        self.kernel.has_emptied()
    }

    /// All dynamic sets, with their owners.
    pub fn dynamic_sets(&self) -> impl Iterator<Item = (&Owner, &DynamicSet)> {
        self.wanted().flat_map(|(owner, record)| record.dynamic_sets().iter().map(move |map| (owner, map)))
    }

    /// The dynamic sets whose allowed values changed since the last commit, with their owners.
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

    /// Whether the committed record of an owner has a dynamic set.
    #[must_use]
    pub fn is_committed(&self, owner: &Owner, map: &str) -> bool {
        self.committed.get(owner).is_some_and(|record| record.dynamic_set(map).is_some())
    }

    /// Every set of the static rules, with its number of elements, and every kind of sets of owners. As many whatever owners there are.
    pub fn lens(&self) -> impl Iterator<Item = (&str, usize)> {
        self.totals.lens(&self.static_rules)
    }
}

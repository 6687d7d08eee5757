//! The records of one table: for each owner what was last committed, and while a transaction is open the new record beside it.
//!
//! Takes [`Fragment`]s by owner (a Service, or the node) and gives the commands of one transaction: [`Records::changes`] is the
//! difference of new and committed records, [`Records::comparison`] that of all records and what was read from the kernel. Once the
//! kernel has carried them out, [`Records::committed`] makes the new records the committed ones.
//!
//! Invariants: after a commit the table holds what the fixed part and the committed records say, and besides that only chains on
//! demand and emptied chains; two records have an entry for the same key of a set only where the set is shared
//! ([`Program::shared`]).

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashMap;
use nft::{Command, Data, Element, Set, TableContent, TableDump, Value};

use super::kept::Kept;
use super::record::{Content, Entry, Record};
use super::totals::Totals;
use super::{Collect, add_chains, changes, comparison, room, slot_key};
use crate::table::{ChainContent, Fragment, LearnedMap, Program, SetName};

/// A key of a set, by the set's number.
pub(super) type Place = (u16, Data);

/// The records of one table.
#[derive(Debug)]
pub struct Records<Owner> {
    pub(super) program: Program,
    numbers: HashMap<SetName, u16>,
    /// What the table holds for each owner. No record is empty.
    pub(super) committed: HashMap<Owner, Record>,
    /// What the table should hold for the owners whose record changed since the last commit.
    pub(super) open: HashMap<Owner, Record>,
    /// Sums over the committed records.
    pub(super) totals: Totals,
    /// What the kernel holds besides.
    pub(super) kept: Kept,
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// No records, of a table of which nothing is known.
    #[must_use]
    pub fn new(program: Program) -> Self {
        let numbers = program.sets.iter().zip(0..).map(|(set, number)| (SetName::Owned(set.name.to_string()), number));
        let (totals, kept) = (Totals::new(&program), Kept::new(&program));
        Self {
            numbers: numbers.collect(),
            program,
            committed: HashMap::default(),
            open: HashMap::default(),
            totals,
            kept,
        }
    }

    /// The fixed part.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Changes the fixed part; the next transaction has to be a comparison. The sets must stay the same.
    pub fn set_program(&mut self, program: Program) {
        debug_assert_eq!(self.program.sets, program.sets);
        self.program = program;
    }

    /// What the table should hold for an owner from now on.
    ///
    /// # Panics
    /// When the fragment names a set that the program does not have.
    pub fn put(&mut self, owner: Owner, fragment: Fragment) {
        let record = self.record_for(&owner, fragment);
        self.put_record(owner, record);
    }

    /// The record for what a layout made for an owner, with the numbers of slots that were committed for it as far as it can keep them.
    ///
    /// # Panics
    /// When the fragment names a set that the program does not have.
    #[must_use]
    pub fn record_for(&self, owner: &Owner, fragment: Fragment) -> Record {
        let record = Record::new(fragment, |name| self.number(name));
        match self.committed.get(owner) {
            Some(committed) if *committed != record => record.arranged_like(committed),
            _ => record,
        }
    }

    /// Makes room for so many new records.
    pub fn reserve(&mut self, count: usize) {
        self.open.reserve(count);
    }

    /// Has the table hold for an owner what a record says, from now on.
    pub fn put_record(&mut self, owner: Owner, record: Record) {
        let is_committed =
            self.committed.get(&owner).map_or_else(|| record.is_empty(), |committed| *committed == record);
        if is_committed {
            self.open.remove(&owner);
        } else {
            self.open.insert(owner, record);
        }
    }

    /// What the table should hold for an owner.
    #[must_use]
    pub fn record(&self, owner: &Owner) -> Record {
        self.open.get(owner).or_else(|| self.committed.get(owner)).cloned().unwrap_or_default()
    }

    /// Has the table go on holding for an owner what was committed for it.
    pub fn keep_committed(&mut self, owner: &Owner) {
        self.open.remove(owner);
    }

    /// Takes the keys out of the records of some owners that the record of another one has as well.
    pub fn give_way<'a>(&mut self, owners: impl Iterator<Item = &'a Owner>)
    where
        Owner: 'a,
    {
        let mut contested: HashMap<Place, Vec<&Owner>> = HashMap::default();
        for owner in owners {
            let record = self.open.get(owner).or_else(|| self.committed.get(owner));
            let entries = record.into_iter().flat_map(Record::entries);
            for entry in entries.filter(|entry| !self.totals.is_shared(entry.set)) {
                contested.entry(place(entry)).or_default().push(owner);
            }
        }
        if contested.is_empty() {
            return;
        }
        let mut lost: BTreeMap<&Owner, Vec<Place>> = BTreeMap::new();
        for (owner, record) in self.wanted() {
            for place in record.entries().map(place) {
                let losers = contested.get(&place).filter(|owners| !owners.contains(&owner));
                losers.into_iter().flatten().for_each(|loser| lost.entry(loser).or_default().push(place));
            }
        }
        let lost: Vec<(Owner, Vec<Place>)> = lost.into_iter().map(|(owner, places)| (owner.clone(), places)).collect();
        for (owner, places) in lost {
            let record = self.record(&owner).without(|entry| places.contains(&place(entry)));
            self.put_record(owner, record);
        }
    }

    /// The number of a set.
    fn number(&self, name: &str) -> u16 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("the program has no set {name}"))
    }

    pub(super) fn set(&self, number: u16) -> &Arc<Set> {
        &self.program.sets[usize::from(number)]
    }

    /// What the table should hold, by owner, in no order; records may be empty.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&Owner, &Record)> {
        let unchanged = self.committed.iter().filter(|(owner, _)| !self.open.contains_key(owner));
        self.open.iter().chain(unchanged)
    }

    /// The records of what the table should hold in the order of their entries, so that equal inputs give equal transactions.
    /// Bytes are compared and not the names of owners, which are behind pointers. Records with the same entries have the same elements.
    pub(super) fn wanted_in_order(&self) -> impl Iterator<Item = &Record> {
        let mut records: Vec<([u8; Record::BEGINNING], &Record)> =
            self.wanted().map(|(_, record)| (record.beginning(), record)).collect();
        records.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp_entries(b.1)));
        records.into_iter().map(|(_, record)| record)
    }

    /// New and committed records of the owners that changed since the last commit, in no order.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&Owner, &Record, Option<&Record>)> {
        self.open.iter().map(|(owner, record)| (owner, record, self.committed.get(owner)))
    }

    /// The commands of the difference of new and committed records: what the kernel holds is what was committed.
    #[must_use]
    pub fn changes(&self, collect: Collect) -> Vec<Command> {
        changes::commands(self, collect)
    }

    /// The commands of the difference of all records and what was read from the kernel. Has the records take the numbers of slots
    /// that the kernel has.
    pub fn comparison(&mut self, dump: Option<&TableDump>, collect: Collect) -> Vec<Command> {
        comparison::commands(self, dump, collect)
    }

    /// The kernel has carried out these commands, which [`Records::changes`] or, with what was read, [`Records::comparison`] gave.
    pub fn committed(&mut self, commands: &[Command], compared: Option<Option<&TableDump>>) {
        for (owner, record) in &self.open {
            let before = self.committed.get(owner);
            self.totals.replace(before, record);
            self.kept.replace(before, record);
        }
        if let Some(dump) = compared {
            let emptied = comparison::unwanted_chains(self, dump);
            self.kept.read(&self.program, dump, emptied);
        }
        let of_table = commands.iter().filter(|command| *command.table() == self.program.table.name);
        of_table.for_each(|command| self.kept.apply(&self.program, command));
        if self.committed.is_empty() {
            self.committed = std::mem::take(&mut self.open);
            self.committed.retain(|_, record| !record.is_empty());
            return;
        }
        for (owner, record) in std::mem::take(&mut self.open) {
            if record.is_empty() {
                self.committed.remove(&owner);
            } else {
                self.committed.insert(owner, record);
            }
        }
    }

    /// Notes that a second has passed: chains that are empty now may be deleted by a transaction with [`Collect::EmptyForASecond`].
    pub fn second_passed(&mut self) {
        self.kept.second_passed();
    }

    /// Whether there are emptied chains to be deleted.
    #[must_use]
    pub fn has_emptied_chains(&self) -> bool {
        self.kept.has_emptied()
    }

    /// All maps and sets that rules fill, with their owners.
    pub fn learned(&self) -> impl Iterator<Item = (&Owner, &LearnedMap)> {
        self.wanted().flat_map(|(owner, record)| record.learned().iter().map(move |map| (owner, map)))
    }

    /// The maps and sets that rules fill and whose allowed values changed since the last commit, with their owners.
    pub fn changed_learned(&self) -> impl Iterator<Item = (&Owner, &LearnedMap)> {
        self.changed().flat_map(|(owner, record, before)| {
            let is_changed =
                move |map: &&LearnedMap| before.and_then(|before| before.learned_map(&map.set.name)) != Some(*map);
            record.learned().iter().filter(is_changed).map(move |map| (owner, map))
        })
    }

    /// A map or set that rules fill, of an owner.
    #[must_use]
    pub fn learned_of(&self, owner: &Owner, name: &str) -> Option<&LearnedMap> {
        self.open.get(owner).or_else(|| self.committed.get(owner))?.learned_map(name)
    }

    /// Whether what was committed for an owner has a map or set that rules fill.
    #[must_use]
    pub fn is_committed(&self, owner: &Owner, map: &str) -> bool {
        self.committed.get(owner).is_some_and(|record| record.learned_map(map).is_some())
    }

    /// Every set of the program, with its number of elements.
    pub fn lens(&self) -> impl Iterator<Item = (&str, usize)> {
        self.totals.lens(&self.program)
    }

    /// Everything, as nft text wants it: sets with their elements, and chains, each in a fixed order.
    #[must_use]
    pub fn content(&self) -> TableContent {
        let mut elements: Vec<BTreeMap<Data, Element>> = self.program.sets.iter().map(|_| BTreeMap::new()).collect();
        let (mut chains, mut learned) = (BTreeMap::new(), BTreeMap::new());
        for (_, record) in self.wanted() {
            for entry in record.entries() {
                let of_entry = self::elements(entry).map(|element| (element.key, element));
                elements[usize::from(entry.set)].extend(of_entry);
            }
            chains.extend(record.chains().iter().map(|content| (&content.chain.name, content)));
            learned.extend(record.learned().iter().map(|map| (&map.set.name, &map.set)));
        }
        let mut chains: Vec<ChainContent> = self.program.chains.iter().chain(chains.into_values()).cloned().collect();
        let mut sets: Vec<(Arc<Set>, Vec<Element>)> = Vec::new();
        for (set, elements) in self.program.sets.iter().zip(elements) {
            let elements: Vec<Element> = elements.into_values().collect();
            let mut targets: Vec<Arc<str>> = elements.iter().filter_map(target).cloned().collect();
            targets.sort_by(|a, b| b.cmp(a));
            targets.dedup();
            add_chains(targets, &self.program, &mut chains);
            sets.push((room::roomy(set, elements.len()), elements));
        }
        sets.extend(learned.into_values().map(|set| (Arc::clone(set), Vec::new())));
        let further: Vec<Arc<str>> = chains.iter().flat_map(ChainContent::targets).cloned().collect();
        add_chains(further, &self.program, &mut chains);
        let chains = chains.into_iter().map(|c| (c.chain, c.rules)).collect();
        TableContent { flowtables: Vec::new(), table: self.program.table.clone(), sets, chains }
    }
}

/// The place of an entry.
pub(super) fn place(entry: Entry<'_>) -> Place {
    (entry.set, Data::from_bytes(entry.key()).expect("packed from Data"))
}

/// The elements of an entry.
fn elements(entry: Entry<'_>) -> Box<dyn Iterator<Item = Element> + '_> {
    match entry.content {
        Content::Element(element) => Box::new(std::iter::once(element.element())),
        Content::Group(group) => Box::new(group.values().enumerate().map(move |(slot, value)| {
            let prefix = Data::from_bytes(group.prefix).expect("packed from Data");
            let value = Data::from_bytes(value).expect("packed from Data");
            Element::mapping(slot_key(&prefix, slot), Value::Data(value))
        })),
    }
}

/// The chain that an element leads to.
fn target(element: &Element) -> Option<&Arc<str>> {
    match &element.value {
        Value::Verdict(verdict) => verdict.chain(),
        Value::None | Value::Data(_) => None,
    }
}

//! Sums over the committed records of a table: numbers of elements, and of owners where owners share something.
//!
//! Takes the record that an owner had and the one that it has now. Invariant: each sum is that over all records that were put in and
//! not taken out.

use foldhash::HashMap;

use super::record::{Entry, Record};
use super::records::{Place, place};
use crate::table::Program;

#[derive(Clone, Debug)]
pub(super) struct Totals {
    /// The number of elements of each set, by the set's number.
    lens: Vec<usize>,
    /// Whether several owners may have the same key in a set, by the set's number.
    shared: Vec<bool>,
    /// How many owners have a key of a shared set.
    owners: HashMap<Place, u32>,
}

impl Totals {
    pub(super) fn new(program: &Program) -> Self {
        let is_shared = |name: &str| program.shared.iter().any(|shared| shared == name);
        Self {
            lens: vec![0; program.sets.len()],
            shared: program.sets.iter().map(|set| is_shared(&set.name)).collect(),
            owners: HashMap::default(),
        }
    }

    /// Whether several owners may have the same key in a set.
    pub(super) fn is_shared(&self, set: u16) -> bool {
        self.shared[usize::from(set)]
    }

    /// How many owners have a key of a shared set.
    pub(super) fn owners(&self, place: &Place) -> u32 {
        self.owners.get(place).copied().unwrap_or(0)
    }

    /// Number of elements of a set.
    pub(super) fn len(&self, set: u16) -> usize {
        self.lens[usize::from(set)]
    }

    /// Every set of the program, with its number of elements.
    pub(super) fn lens<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = (&'a str, usize)> {
        program.sets.iter().zip(&self.lens).map(|(set, len)| (&*set.name, *len))
    }

    /// Puts an owner's record in the place of the one before.
    pub(super) fn replace(&mut self, before: Option<&Record>, now: &Record) {
        now.entries().for_each(|entry| self.add(entry));
        if let Some(before) = before {
            before.entries().for_each(|entry| self.remove(entry));
        }
    }

    fn add(&mut self, entry: Entry<'_>) {
        if self.is_shared(entry.set) {
            let owners = self.owners.entry(place(entry)).or_default();
            *owners += 1;
            if *owners > 1 {
                return;
            }
        }
        self.lens[usize::from(entry.set)] += entry.len();
    }

    fn remove(&mut self, entry: Entry<'_>) {
        if self.is_shared(entry.set) {
            let place = place(entry);
            let owners = self.owners.get_mut(&place).expect("an owner was counted when it came");
            *owners -= 1;
            if *owners > 0 {
                return;
            }
            self.owners.remove(&place);
        }
        self.lens[usize::from(entry.set)] -= entry.len();
    }
}

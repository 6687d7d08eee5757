//! Shows the changes between committed and new records to the code that records the history of changes and to the code that deletes flows.
//!
//! Takes the records of a table; returns the committed and the new record of each owner that changed, to compare entry by entry.
//! A record is what the table holds for one owner (a Service, or the node). Only reads: nothing here affects the commands for the kernel.

use std::hash::Hash;

use super::pairs::for_each_pair;
use super::record::{Content, Entry, Record};
use super::records::Records;
use crate::table::{ChainContent, VerdictMap};

/// The committed and the new record of an owner.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    /// The committed record; `None` if the owner has nothing in the table.
    before: Option<&'a Record>,
    now: &'a Record,
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// The owners whose record changed since the last commit, in no order.
    pub fn each_changed(&self) -> impl Iterator<Item = (&Owner, Changed<'_>)> {
        self.changed().map(|(owner, now, before)| (owner, Changed { before, now }))
    }

    /// Whether an owner has a new record that is not committed yet.
    #[must_use]
    pub fn is_open(&self, owner: &Owner) -> bool {
        self.open.contains_key(owner)
    }

    /// Whether any owner has objects in the table now.
    #[must_use]
    pub fn has_committed(&self) -> bool {
        !self.committed.is_empty()
    }

    /// Whether the owner has objects in the table now, and whether it should have some.
    #[must_use]
    pub fn presence(&self, owner: &Owner) -> (bool, bool) {
        let before = self.committed.contains_key(owner);
        (before, self.open.get(owner).map_or(before, |record| !record.is_empty()))
    }

    /// Calls `each` with the key of each wanted element of the sets for whose name `kind` returns a value; leaves out groups.
    pub fn each_wanted<T>(&self, kind: impl Fn(&str) -> Option<T>, mut each: impl FnMut(&T, &[u8])) {
        let kinds: Vec<Option<T>> = self.static_rules.sets.iter().map(|set| kind(&set.name)).collect();
        for entry in self.wanted().flat_map(|(_, record)| record.entries()) {
            if let (Some(kind), Content::Element(element)) = (&kinds[usize::from(entry.set)], entry.content) {
                each(kind, element.key());
            }
        }
    }

    /// The name of the set that an entry belongs to.
    #[must_use]
    pub fn set_name(&self, entry: Entry<'_>) -> &str {
        &self.set(entry.set).name
    }
}

impl<'a> Changed<'a> {
    /// Calls `each` with the old and the new entry for each key whose entries differ.
    pub fn each_difference(self, mut each: impl FnMut(Option<Entry<'a>>, Option<Entry<'a>>)) {
        for_each_pair(self.before_entries(), self.now.entries(), |_, before, now| {
            if before != now {
                each(before, now);
            }
        });
    }

    /// All entries of the committed record.
    pub fn before_entries(self) -> impl Iterator<Item = Entry<'a>> {
        self.before.into_iter().flat_map(Record::entries)
    }

    /// All entries of the new record.
    pub fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        self.now.entries()
    }

    /// The owner's chains in the committed and in the new record, each list sorted by name.
    #[must_use]
    pub fn chains(self) -> [&'a [ChainContent]; 2] {
        [self.before.map_or(&[][..], Record::chains), self.now.chains()]
    }

    /// The owner's maps from numbers to verdicts in the committed and in the new record.
    #[must_use]
    pub fn verdict_maps(self) -> [&'a [VerdictMap]; 2] {
        [self.before.map_or(&[][..], Record::verdict_maps), self.now.verdict_maps()]
    }
}

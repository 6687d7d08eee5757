//! The changes that open records stand for, for history and flows.
//!
//! Takes the records of a table; gives, for each owner whose record is another than the committed one, both records place by place.
//! Nothing here has an influence on what is written.

use std::hash::Hash;

use super::pairs::for_each_pair;
use super::record::{Content, Entry, Record};
use super::records::Records;
use crate::table::{ChainContent, VerdictMap};

/// The committed and the new record of an owner.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    /// `None` when the table holds nothing of the owner.
    before: Option<&'a Record>,
    now: &'a Record,
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// The owners whose record changed since the last commit, in no order.
    pub fn each_changed(&self) -> impl Iterator<Item = (&Owner, Changed<'_>)> {
        self.changed().map(|(owner, now, before)| (owner, Changed { before, now }))
    }

    /// Whether the record of an owner changed since the last commit.
    #[must_use]
    pub fn is_open(&self, owner: &Owner) -> bool {
        self.open.contains_key(owner)
    }

    /// Whether the table holds something of an owner, and whether it should.
    #[must_use]
    pub fn presence(&self, owner: &Owner) -> (bool, bool) {
        let before = self.committed.contains_key(owner);
        (before, self.open.get(owner).map_or(before, |record| !record.is_empty()))
    }

    /// Calls `each` with the key of each wanted element, in the sets for whose name `kind` gives something.
    pub fn each_wanted<T>(&self, kind: impl Fn(&str) -> Option<T>, mut each: impl FnMut(&T, &[u8])) {
        let kinds: Vec<Option<T>> = self.static_rules.sets.iter().map(|set| kind(&set.name)).collect();
        for entry in self.wanted().flat_map(|(_, record)| record.entries()) {
            if let (Some(kind), Content::Element(element)) = (&kinds[usize::from(entry.set)], entry.content) {
                each(kind, element.key());
            }
        }
    }

    /// The name of the set of an entry.
    #[must_use]
    pub fn set_name(&self, entry: Entry<'_>) -> &str {
        &self.set(entry.set).name
    }
}

impl<'a> Changed<'a> {
    /// Calls `each` with both entries at each key where the records differ.
    pub fn each_difference(self, mut each: impl FnMut(Option<Entry<'a>>, Option<Entry<'a>>)) {
        for_each_pair(self.before_entries(), self.now.entries(), |_, before, now| {
            if before != now {
                each(before, now);
            }
        });
    }

    /// All entries that the table holds.
    pub fn before_entries(self) -> impl Iterator<Item = Entry<'a>> {
        self.before.into_iter().flat_map(Record::entries)
    }

    /// All entries that the table should hold.
    pub fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        self.now.entries()
    }

    /// The chains of its own that the owner had and has, each list in the order of names.
    #[must_use]
    pub fn chains(self) -> [&'a [ChainContent]; 2] {
        [self.before.map_or(&[][..], Record::chains), self.now.chains()]
    }

    /// The maps of numbered verdicts of its own that the owner had and has.
    #[must_use]
    pub fn verdict_maps(self) -> [&'a [VerdictMap]; 2] {
        [self.before.map_or(&[][..], Record::verdict_maps), self.now.verdict_maps()]
    }
}

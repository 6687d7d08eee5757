//! What an open record changes, for those who tell it in words.
//!
//! Takes the records of a table; gives, for each owner whose record is another than the committed one, both records place by place.
//! Nothing here has an influence on what is written.

use std::hash::Hash;

use super::changes::for_each_pair;
use super::record::{Entry, Record};
use super::records::Records;
use crate::table::ChainContent;

/// The committed and the new record of an owner.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    /// What the table holds; `None` when there is nothing.
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

    /// The name of the set of an entry.
    #[must_use]
    pub fn set_name(&self, entry: Entry<'_>) -> &str {
        &self.set(entry.set).name
    }
}

impl<'a> Changed<'a> {
    /// Hands over what both records have at each place where they differ.
    pub fn each_difference(self, mut each: impl FnMut(Option<Entry<'a>>, Option<Entry<'a>>)) {
        for_each_pair(self.before_entries(), self.now.entries(), |before, now| {
            if before != now {
                each(before, now);
            }
        });
    }

    /// What the table holds: all entries.
    pub fn before_entries(self) -> impl Iterator<Item = Entry<'a>> {
        self.before.into_iter().flat_map(Record::entries)
    }

    /// What the table should hold: all entries.
    pub fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        self.now.entries()
    }

    /// The chains of its own that the owner had and has, each list in the order of names.
    #[must_use]
    pub fn chains(self) -> [&'a [ChainContent]; 2] {
        [self.before.map_or(&[][..], Record::chains), self.now.chains()]
    }
}

//! Merges two sorted lists of entries to compare them. An entry of a record is an element or a group of numbered elements.

use std::cmp::Ordering;

use super::record::Entry;

/// Goes through two lists that are sorted by set and key. Calls `each` for every set and key with the set's number and the entry of each
/// list, if it has one.
pub(super) fn for_each_pair<'a>(
    before: impl Iterator<Item = Entry<'a>>,
    now: impl Iterator<Item = Entry<'a>>,
    mut each: impl FnMut(u16, Option<Entry<'a>>, Option<Entry<'a>>),
) {
    let (mut before, mut now) = (before.peekable(), now.peekable());
    loop {
        let (set, order) = match (before.peek(), now.peek()) {
            (Some(before), Some(now)) => (before.set.min(now.set), before.set_and_key().cmp(&now.set_and_key())),
            (Some(before), None) => (before.set, Ordering::Less),
            (None, Some(now)) => (now.set, Ordering::Greater),
            (None, None) => return,
        };
        let before = if order == Ordering::Greater { None } else { before.next() };
        let now = if order == Ordering::Less { None } else { now.next() };
        each(set, before, now);
    }
}

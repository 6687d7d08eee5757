//! Converts entries of records into elements to delete from and add to a set. An entry is an element, or a group of elements whose keys
//! differ only in the number at the end.

use std::hash::Hash;

use foldhash::HashSet;
use nft::Elements;

use super::plan::SetChanges;
use super::record::{Entry, Group};
use super::records::Records;
use super::slot_number;

/// Adds the deletions and additions that change the entry `before` into the entry `now`, which has the same key. `None`: there is no entry.
pub(super) fn change(changes: &mut SetChanges, before: Option<Entry<'_>>, now: Option<Entry<'_>>) {
    if let Some(element) = before.and_then(Entry::element) {
        changes.delete.push_packed(element);
    }
    if let Some(element) = now.and_then(Entry::element) {
        changes.add.push_packed(element);
    }
    change_slots(changes, before.and_then(Entry::group), now.and_then(Entry::group));
}

fn change_slots(changes: &mut SetChanges, before: Option<Group<'_>>, now: Option<Group<'_>>) {
    let Some(Group { prefix, .. }) = before.or(now) else { return };
    let slots = before.map_or(0, Group::len).max(now.map_or(0, Group::len));
    let mut before = before.map(Group::values).into_iter().flatten();
    let mut now = now.map(Group::values).into_iter().flatten();
    for slot in 0..slots {
        let (before, now) = (before.next(), now.next());
        if before == now {
            continue;
        }
        let key = [prefix, &slot_number(slot)[..]];
        if before.is_some() {
            changes.delete.push_joined(key, before);
        }
        if now.is_some() {
            changes.add.push_joined(key, now);
        }
    }
}

/// All elements that a set should have.
pub(super) fn all_elements<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, set: u16) -> Elements {
    let mut changes = SetChanges::default();
    let mut seen = HashSet::default();
    for record in records.wanted_in_order() {
        for entry in record.entries() {
            let is_new = entry.set == set && (!records.totals.is_shared(set) || seen.insert(entry.element_key()));
            if is_new {
                change(&mut changes, None, Some(entry));
            }
        }
    }
    changes.add
}

//! The difference of new and committed records, where the kernel holds what was committed.
//!
//! Takes the records that changed, so it costs the same whatever else the table holds. What one owner loses and another one gets with
//! the same content is no change.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashSet;
use nft::{Command, ElementRef, Elements, Set};

use super::kept::Collect;
use super::plan::{Plan, Present, SetChanges};
use super::record::{Entry, Group, Record};
use super::records::{Place, Records, place};
use super::{room, slot_number};
use crate::table::ChainContent;

/// The commands from the committed records to the new ones.
pub(super) fn commands<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, collect: Collect) -> Vec<Command> {
    let mut plan = Plan::new(&records.program);
    let mut changed: Vec<_> = records.changed().collect();
    // Equal inputs give equal commands.
    changed.sort_unstable_by(|a, b| a.0.cmp(b.0));
    let mut difference = Difference::of(records, &changed);
    let outgrown = difference.outgrown(records);
    detach(&mut plan, records, &outgrown);
    for (_, now, before) in &changed {
        own_objects(&mut plan, records, before.unwrap_or(&Record::default()), now);
    }
    rewrite_detached(&mut plan, records);
    for (set, len) in &outgrown {
        plan.add_set(room::roomy(records.set(*set), *len));
        difference.sets.insert(*set, SetChanges { add: all_elements(records, *set), delete: Elements::default() });
    }
    for (set, changes) in difference.sets {
        plan.elements(records.set(set), changes);
    }
    plan.chains_on_demand(|content| {
        let name = &content.chain.name;
        if records.kept.has_on_demand(name) { Present::Same } else { Present::Nothing }
    });
    // A chain that is wanted again is not deleted.
    let wanted: BTreeSet<&Arc<str>> =
        changed.iter().flat_map(|(_, now, _)| now.chains()).map(|content| &content.chain.name).collect();
    plan.remove_chains(records.kept.to_delete(collect).filter(|name| !wanted.contains(name)).cloned());
    plan.into_commands()
}

/// What differs in the sets of the program.
#[derive(Default)]
struct Difference {
    sets: BTreeMap<u16, SetChanges>,
    /// Owners that came less owners that went, for keys of shared sets.
    owners: BTreeMap<Place, i64>,
}

impl Difference {
    fn of<Owner: Clone + Eq + Hash + Ord>(
        records: &Records<Owner>,
        changed: &[(&Owner, &Record, Option<&Record>)],
    ) -> Self {
        let mut difference = Self::default();
        for (_, now, before) in changed {
            let before = before.iter().copied().flat_map(Record::entries);
            for_each_pair(before, now.entries(), |before, now| {
                let set = before.or(now).map_or(0, |entry| entry.set);
                if records.totals.is_shared(set) {
                    difference.owner(before, now);
                } else if before != now {
                    difference.sets.entry(set).or_default().change(before, now);
                }
            });
        }
        for (place, change) in std::mem::take(&mut difference.owners) {
            let before = i64::from(records.totals.owners(&place));
            let changes = difference.sets.entry(place.0).or_default();
            match (before > 0, before + change > 0) {
                (false, true) => changes.add.push_joined([place.1.as_slice(), &[]], None),
                (true, false) => changes.delete.push_joined([place.1.as_slice(), &[]], None),
                _ => {}
            }
        }
        // What one owner loses another one may get. The entries of a single owner are in order.
        if changed.len() > 1 {
            difference.sets.values_mut().for_each(SetChanges::settle);
        }
        difference
    }

    fn owner(&mut self, before: Option<Entry<'_>>, now: Option<Entry<'_>>) {
        match (before, now) {
            (None, Some(now)) => *self.owners.entry(place(now)).or_default() += 1,
            (Some(before), None) => *self.owners.entry(place(before)).or_default() -= 1,
            _ => {}
        }
    }

    /// The sets that have to be made anew because they are too small for what is wanted, and how much that is.
    fn outgrown<Owner: Clone + Eq + Hash + Ord>(&self, records: &Records<Owner>) -> BTreeMap<u16, usize> {
        let len = |(set, changes): (&u16, &SetChanges)| {
            (*set, records.totals.len(*set) + changes.add.len() - changes.delete.len())
        };
        let is_outgrown =
            |(set, len): &(u16, usize)| room::is_outgrown(records.set(*set), records.kept.size(*set), *len);
        self.sets.iter().map(len).filter(is_outgrown).collect()
    }
}

impl SetChanges {
    /// What differs at a key.
    fn change(&mut self, before: Option<Entry<'_>>, now: Option<Entry<'_>>) {
        for (list, entry) in [(&mut self.delete, before), (&mut self.add, now)] {
            entry.and_then(Entry::element).into_iter().for_each(|element| list.push_packed(element));
        }
        self.change_slots(before.and_then(Entry::group), now.and_then(Entry::group));
    }

    fn change_slots(&mut self, before: Option<Group<'_>>, now: Option<Group<'_>>) {
        let Some(Group { prefix, .. }) = before.or(now) else { return };
        let slots = before.map_or(0, Group::len).max(now.map_or(0, Group::len));
        let [mut before, mut now] = [before, now].map(|group| group.into_iter().flat_map(Group::values));
        for slot in 0..slots {
            let (before, now) = (before.next(), now.next());
            if before != now {
                let key = [prefix, &slot_number(slot)[..]];
                before.into_iter().for_each(|value| self.delete.push_joined(key, Some(value)));
                now.into_iter().for_each(|value| self.add.push_joined(key, Some(value)));
            }
        }
    }

    /// Sorts both lists, and leaves out what one owner loses and another one gets with the same content.
    fn settle(&mut self) {
        let (delete, add) = (self.delete.sorted(), self.add.sorted());
        let added: HashSet<&[u8]> = add.iter().map(ElementRef::packed).collect();
        let stays: HashSet<&[u8]> =
            delete.iter().map(ElementRef::packed).filter(|element| added.contains(element)).collect();
        let changes = |list: &Elements| list.iter().filter(|element| !stays.contains(element.packed())).collect();
        *self = Self { delete: changes(&delete), add: changes(&add) };
    }
}

/// Goes through two lists in the order of set and key, and hands over what both have at each place.
pub(super) fn for_each_pair<'a>(
    before: impl Iterator<Item = Entry<'a>>,
    now: impl Iterator<Item = Entry<'a>>,
    mut each: impl FnMut(Option<Entry<'a>>, Option<Entry<'a>>),
) {
    let (mut before, mut now) = (before.peekable(), now.peekable());
    loop {
        let order = match (before.peek(), now.peek()) {
            (Some(before), Some(now)) => before.place().cmp(&now.place()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        let before = before.next_if(|_| order != Ordering::Greater);
        let now = now.next_if(|_| order != Ordering::Less);
        each(before, now);
    }
}

/// Chains and maps that belong to one owner.
fn own_objects<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    before: &Record,
    now: &Record,
) {
    for content in now.chains() {
        plan.chain(
            content,
            match before.chain(&content.chain.name) {
                Some(before) if before.rules == content.rules => Present::Same,
                Some(before) if before.rules.is_empty() => Present::Empty,
                Some(_) => Present::OtherRules,
                None if records.kept.is_emptied(&content.chain.name) => Present::Empty,
                None => Present::Nothing,
            },
        );
    }
    let is_gone = |content: &&ChainContent| !content.rules.is_empty() && now.chain(&content.chain.name).is_none();
    before.chains().iter().filter(is_gone).for_each(|content| plan.empty_chain(&content.chain.name));
    now.own_sets().filter(|set| before.learned_map(&set.name).is_none()).for_each(|set| plan.add_set(Arc::clone(set)));
    before
        .own_sets()
        .filter(|set| now.learned_map(&set.name).is_none())
        .for_each(|set| plan.remove_set(Arc::clone(set)));
}

/// Takes sets that became too small out of the table: rules that use them go first.
fn detach<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    outgrown: &BTreeMap<u16, usize>,
) {
    if outgrown.is_empty() {
        return;
    }
    let family = records.program.table.name.family;
    let sets: BTreeMap<&str, &Arc<Set>> =
        outgrown.keys().map(|set| records.set(*set)).map(|set| (&*set.name, set)).collect();
    let uses = |content: &ChainContent| {
        let exprs = content.rules.iter().flat_map(|rule| rule.to_dump(family).exprs);
        exprs.into_iter().any(|expr| expr.set().is_some_and(|set| sets.contains_key(&**set)))
    };
    let on_demand = records.kept.on_demand().filter_map(|name| (records.program.on_demand)(name));
    let on_demand = on_demand.filter(|content| uses(content)).map(|content| content.chain.name);
    let others = records.program.chains.iter().chain(records.committed.values().flat_map(Record::chains));
    let others = others.filter(|content| uses(content)).map(|content| Arc::clone(&content.chain.name));
    let users = on_demand.chain(others).collect();
    plan.detach(sets.into_values().cloned(), users);
}

/// Writes the rules again that were deleted because of a set that is made anew.
fn rewrite_detached<Owner: Clone + Eq + Hash + Ord>(plan: &mut Plan<'_>, records: &Records<Owner>) {
    let detached: BTreeSet<Arc<str>> = plan.detached();
    if detached.is_empty() {
        return;
    }
    let own = records.wanted().flat_map(|(_, record)| record.chains());
    let wanted = records.program.chains.iter().chain(own).filter(|content| detached.contains(&content.chain.name));
    wanted.for_each(|content| plan.chain(content, Present::Empty));
    let on_demand = detached.iter().filter_map(|name| (records.program.on_demand)(name));
    on_demand.for_each(|content| plan.chain(&content, Present::Empty));
}

/// Everything that a set should hold.
pub(super) fn all_elements<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, set: u16) -> Elements {
    let (mut changes, mut seen) = (SetChanges::default(), HashSet::default());
    for record in records.wanted_in_order() {
        for entry in record.entries().filter(|entry| entry.set == set) {
            if !records.totals.is_shared(set) || seen.insert(place(entry)) {
                changes.change(None, Some(entry));
            }
        }
    }
    changes.add
}

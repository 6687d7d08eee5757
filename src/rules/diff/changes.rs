//! Computes the commands from the committed records (the objects that the kernel has for each owner) to the new records, assuming that the
//! kernel's table has the committed records.
//!
//! Reads only the records that changed, so the cost does not grow with the table, unless a set has become too small and must be created
//! again. An element that moves from one owner to another with the same content needs no command.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashSet;
use nft::{Command, ElementRef, Set};

use super::kernel_state::Collect;
use super::pairs::for_each_pair;
use super::plan::{Plan, Present, SetChanges};
use super::record::{ElementKey, Entry, Record};
use super::records::Records;
use super::set_changes::{all_elements, change};
use super::set_size;
use crate::table::ChainContent;

/// An owner, its new record, and its committed record.
type ChangedRecord<'a, Owner> = (&'a Owner, &'a Record, Option<&'a Record>);

/// The commands that change the table from the committed records to the new ones.
pub(super) fn commands<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, collect: Collect) -> Vec<Command> {
    let mut plan = Plan::new(&records.static_rules);
    let mut changed: Vec<ChangedRecord<'_, Owner>> = records.changed().collect();
    // Sorted, so that equal inputs give equal commands.
    changed.sort_unstable_by(|a, b| a.0.cmp(b.0));
    let mut difference = Difference::of(records, &changed);
    let outgrown = difference.outgrown(records);
    detach(&mut plan, records, &outgrown);
    let nothing = Record::default();
    for (_, now, before) in &changed {
        own_objects(&mut plan, records, before.unwrap_or(&nothing), now);
    }
    rewrite_detached(&mut plan, records);
    for (set, len) in &outgrown {
        plan.add_set(set_size::with_capacity(records.set(*set), *len));
        difference.sets.insert(*set, SetChanges { add: all_elements(records, *set), ..SetChanges::default() });
    }
    for (set, changes) in difference.sets {
        plan.elements(records.set(set), changes);
    }
    plan.chains_on_demand(|content| {
        let is_there = records.kernel.has_on_demand(&content.chain.name);
        if is_there { Present::Same } else { Present::Nothing }
    });
    remove_emptied(&mut plan, records, &changed, collect);
    plan.into_commands()
}

/// Deletes chains whose rules an earlier transaction deleted, unless a new record has the chain again.
fn remove_emptied<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    changed: &[ChangedRecord<'_, Owner>],
    collect: Collect,
) {
    let mut wanted: BTreeSet<&str> = BTreeSet::new();
    for (_, now, _) in changed {
        for content in now.chains() {
            wanted.insert(&content.chain.name);
        }
    }
    for name in records.kernel.to_delete(collect) {
        if !wanted.contains(&**name) {
            plan.remove_chain(Arc::clone(name));
        }
    }
}

/// The changes in the sets of the static rules.
#[derive(Default)]
struct Difference {
    sets: BTreeMap<u16, SetChanges>,
    /// For each key of a shared set, the number of owners that got it minus the number of owners that lost it.
    owners: BTreeMap<ElementKey, i64>,
}

impl Difference {
    fn of<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, changed: &[ChangedRecord<'_, Owner>]) -> Self {
        let mut difference = Self::default();
        for (_, now, before) in changed {
            let before = before.iter().copied().flat_map(Record::entries);
            for_each_pair(before, now.entries(), |set, before, now| {
                if records.totals.is_shared(set) {
                    difference.count_owner(before, now);
                } else if before != now {
                    change(difference.sets.entry(set).or_default(), before, now);
                }
            });
        }
        difference.settle_owners(records);
        // An element may move from one owner to another. With a single owner this cannot happen, and the entries are sorted already.
        if changed.len() > 1 {
            for changes in difference.sets.values_mut() {
                settle(changes);
            }
        }
        difference
    }

    fn count_owner(&mut self, before: Option<Entry<'_>>, now: Option<Entry<'_>>) {
        match (before, now) {
            (None, Some(now)) => *self.owners.entry(now.element_key()).or_default() += 1,
            (Some(before), None) => *self.owners.entry(before.element_key()).or_default() -= 1,
            _ => {}
        }
    }

    /// Adds a key of a shared set when its first owner gets it, and deletes it when its last owner loses it.
    fn settle_owners<Owner: Clone + Eq + Hash + Ord>(&mut self, records: &Records<Owner>) {
        for (key, change) in std::mem::take(&mut self.owners) {
            let before = i64::from(records.totals.owners(&key));
            let changes = self.sets.entry(key.0).or_default();
            match (before > 0, before + change > 0) {
                (false, true) => changes.add.push_joined([key.1.as_slice(), &[]], None),
                (true, false) => changes.delete.push_joined([key.1.as_slice(), &[]], None),
                _ => {}
            }
        }
    }

    /// The sets with changes that must be created again because they are too small, each with the number of its wanted elements.
    fn outgrown<Owner: Clone + Eq + Hash + Ord>(&self, records: &Records<Owner>) -> BTreeMap<u16, usize> {
        let mut outgrown = BTreeMap::new();
        for (set, changes) in &self.sets {
            let len = (records.totals.len(*set) + changes.add.len()).saturating_sub(changes.delete.len());
            if set_size::needs_resize(records.set(*set), records.kernel.size(*set), len) {
                outgrown.insert(*set, len);
            }
        }
        outgrown
    }
}

/// Sorts both lists, and removes elements that are in both because they move from one owner to another without a change.
fn settle(changes: &mut SetChanges) {
    let (delete, add) = (changes.delete.sorted(), changes.add.sorted());
    let added: HashSet<&[u8]> = add.iter().map(ElementRef::packed).collect();
    let mut stays: HashSet<&[u8]> = HashSet::default();
    *changes = SetChanges::default();
    for element in delete.iter() {
        if added.contains(element.packed()) {
            stays.insert(element.packed());
        } else {
            changes.delete.push_packed(element);
        }
    }
    for element in add.iter() {
        if !stays.contains(element.packed()) {
            changes.add.push_packed(element);
        }
    }
}

/// Changes the chains, sets and maps that belong to one owner only.
fn own_objects<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    before: &Record,
    now: &Record,
) {
    for content in now.chains() {
        plan.chain(content, present_chain(records, before, content));
    }
    for content in before.chains() {
        if !content.rules.is_empty() && now.chain(&content.chain.name).is_none() {
            plan.empty_chain(&content.chain.name);
        }
    }
    for set in now.own_sets() {
        if !before.has_own_set(&set.name) {
            plan.add_set(Arc::clone(set));
        }
    }
    for set in before.own_sets() {
        if !now.has_own_set(&set.name) {
            plan.remove_set(Arc::clone(set));
        }
    }
    for verdict_map in now.verdict_maps() {
        let mut present = Vec::new();
        if let Some(before) = before.verdict_map(&verdict_map.set.name) {
            present.extend(before.verdicts.iter().map(Some));
        }
        plan.verdict_map(verdict_map, &present);
    }
}

/// The state in the kernel of a chain that belongs to one owner.
fn present_chain<Owner: Clone + Eq + Hash + Ord>(
    records: &Records<Owner>,
    before: &Record,
    wanted: &ChainContent,
) -> Present {
    match before.chain(&wanted.chain.name) {
        Some(before) if before.rules == wanted.rules => Present::Same,
        Some(before) if before.rules.is_empty() => Present::Empty,
        Some(_) => Present::OtherRules,
        None if records.kernel.is_emptied(&wanted.chain.name) => Present::Empty,
        None => Present::Nothing,
    }
}

/// Deletes sets that are too small, after the rules that use them.
fn detach<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    outgrown: &BTreeMap<u16, usize>,
) {
    if outgrown.is_empty() {
        return;
    }
    let mut sets: BTreeMap<&str, &Arc<Set>> = BTreeMap::new();
    for number in outgrown.keys() {
        let set = records.set(*number);
        sets.insert(&set.name, set);
    }
    let family = records.static_rules.table.name.family;
    let mut users: BTreeSet<Arc<str>> = BTreeSet::new();
    for name in records.kernel.on_demand() {
        if let Some(content) = records.static_rules.on_demand.content(name)
            && uses(&content, &sets, family)
        {
            users.insert(content.chain.name);
        }
    }
    let own = records.committed.values().flat_map(Record::chains);
    for content in records.static_rules.chains.iter().chain(own) {
        if uses(content, &sets, family) {
            users.insert(Arc::clone(&content.chain.name));
        }
    }
    plan.detach(sets.into_values().cloned(), users);
}

/// Whether a rule of a chain uses one of `sets`.
fn uses(content: &ChainContent, sets: &BTreeMap<&str, &Arc<Set>>, family: nft::Family) -> bool {
    for rule in &content.rules {
        for expr in rule.to_dump(family).exprs {
            if expr.set().is_some_and(|set| sets.contains_key(&**set)) {
                return true;
            }
        }
    }
    false
}

/// Adds the rules again that were deleted because they use a set that is created again.
fn rewrite_detached<Owner: Clone + Eq + Hash + Ord>(plan: &mut Plan<'_>, records: &Records<Owner>) {
    let detached: BTreeSet<Arc<str>> = plan.detached();
    if detached.is_empty() {
        return;
    }
    let own = records.wanted().flat_map(|(_, record)| record.chains());
    for content in records.static_rules.chains.iter().chain(own) {
        if detached.contains(&content.chain.name) {
            plan.chain(content, Present::Empty);
        }
    }
    for name in &detached {
        if let Some(content) = records.static_rules.on_demand.content(name) {
            plan.chain(&content, Present::Empty);
        }
    }
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// The commands that change the table from the committed records to the new ones, assuming that the kernel has the committed records.
    #[must_use]
    pub fn changes(&self, collect: Collect) -> Vec<Command> {
        commands(self, collect)
    }
}

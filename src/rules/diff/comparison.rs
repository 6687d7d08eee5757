//! Compares all records (each has the wanted objects of one Service, or of the node) with the table that was read from the kernel: at the
//! first sync, after a failure, after another program changed it, and about once an hour (G7).
//!
//! Some tables cannot be corrected, for example if a set has another type, a base chain has another hook, rules use objects that this proxy
//! never creates, or the table has the wrong ownership. The commands then delete the table and create it again; packets see either the old
//! table or the new one.
//!
//! The first command makes a dormant table active: the kernel registers its base chains again. The kernel accepts no new base chain in that
//! transaction (`nf_tables_addchain`, `__NFT_TABLE_F_UPDATE`), so a dormant table that lacks a base chain is deleted and created again.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashSet;
use nft::packed::{Parts, ValueRef};
use nft::{Command, ElementRef, Elements, Expr, Ownership, RuleDump, Set, TableDump};

use super::kernel_state::Collect;
use super::plan::{Plan, Present, SetChanges};
use super::read_view::{ReadView, SetView, Slotted, slot_of};
use super::record::{Content, Group, Record};
use super::records::Records;
use super::set_changes::all_elements;
use super::verdicts::numbered_verdicts;
use super::wanted::{Wanted, elements_of};
use super::{set_size, slot_number};
use crate::table::{ChainContent, StaticRules};

/// Returns the commands that change the table that was read into the table that the records describe. In the records, the values of
/// numbered elements get the numbers that they have in the kernel, so that equal values need no command.
pub(super) fn commands<Owner: Clone + Eq + Hash + Ord>(
    records: &mut Records<Owner>,
    dump: Option<&TableDump>,
    collect: Collect,
) -> Vec<Command> {
    let exists = dump.is_some();
    let dump = dump.filter(|dump| is_compatible(&Wanted::of(records), dump));
    let mut view = ReadView::of(records, dump);
    arrange(records, &view, dump);
    let records = &*records;
    let wanted = Wanted::of(records);
    let mut plan = Plan::new(&records.static_rules);
    match dump {
        Some(dump) => correct(&mut plan, records, &wanted, dump, collect),
        None => {
            if exists {
                plan.delete_table();
            }
            plan.add_table();
        }
    }
    sets(&mut plan, records, dump, &mut view);
    for content in wanted.chains() {
        plan.chain(content, present_chain(dump, &records.static_rules, content));
    }
    wanted.own_sets(&mut plan, dump);
    plan.chains_on_demand(|content| present_chain(dump, &records.static_rules, content));
    plan.into_commands()
}

/// Makes a table active and owned if needed, and removes surplus objects, chains and sets from it.
fn correct<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    wanted: &Wanted<'_>,
    dump: &TableDump,
    collect: Collect,
) {
    if dump.dormant || records.static_rules.owned && dump.ownership != Ownership::Ours {
        plan.add_table();
    }
    for object in &dump.objects {
        plan.remove_object(object.clone());
    }
    wanted.remove_surplus(plan, dump);
    let old: BTreeSet<&Arc<str>> = records.kernel.to_delete(collect).into_iter().collect();
    for (chain, rules) in wanted.unwanted_chains(dump) {
        let is_old = collect == Collect::AllEmpty || old.contains(&chain.name);
        if is_old && rules.is_empty() {
            plan.remove_chain(Arc::clone(&chain.name));
        }
    }
}

/// Whether a table can be corrected without deleting it and creating it again.
fn is_compatible(wanted: &Wanted<'_>, dump: &TableDump) -> bool {
    let static_rules = wanted.static_rules;
    let refused = if static_rules.owned { Ownership::Unowned } else { Ownership::Orphaned };
    let is_foreign =
        !dump.unreadable.is_empty() || dump.unknown_flags != 0 || dump.objects.iter().any(|object| object.in_use);
    if is_foreign || dump.table != static_rules.table || dump.ownership == refused {
        return false;
    }
    if dump.dormant && lacks_base_chain(static_rules, dump) {
        return false;
    }
    dump.sets.values().all(|(set, _)| wanted.fits_set(set))
        && dump.chains.values().all(|(chain, _)| wanted.fits_chain(chain))
}

fn lacks_base_chain(static_rules: &StaticRules, dump: &TableDump) -> bool {
    for content in &static_rules.chains {
        if content.chain.base.is_some() && !dump.chains.contains_key(&content.chain.name) {
            return true;
        }
    }
    false
}

fn present_chain(dump: Option<&TableDump>, static_rules: &StaticRules, wanted: &ChainContent) -> Present {
    let Some((_, present)) = dump.and_then(|dump| dump.chains.get(&wanted.chain.name)) else { return Present::Nothing };
    if has_rules(present, wanted, static_rules.table.name.family) {
        Present::Same
    } else if present.is_empty() {
        Present::Empty
    } else {
        Present::OtherRules
    }
}

fn has_rules(present: &[RuleDump], wanted: &ChainContent, family: nft::Family) -> bool {
    if present.len() != wanted.rules.len() {
        return false;
    }
    for (rule, present) in wanted.rules.iter().zip(present) {
        if rule.to_dump(family) != *present {
            return false;
        }
    }
    true
}

/// Gives values and verdicts in the records the numbers that they have in the kernel, so that no element changes without need.
fn arrange<Owner: Clone + Eq + Hash + Ord>(
    records: &mut Records<Owner>,
    view: &ReadView<'_>,
    dump: Option<&TableDump>,
) {
    if dump.is_none() {
        return;
    }
    let slots = |set: u16, wanted: Group<'_>| {
        let present = view.0[usize::from(set)].groups.get(wanted.prefix)?;
        if present.has_values_of(wanted) { None } else { Some(present.values(wanted.len())) }
    };
    let verdict_map = |name: &str| elements_of(dump, name).map(numbered_verdicts);
    let mut changed: Vec<(Owner, Record)> = Vec::new();
    for (owner, record) in records.wanted() {
        if let Some(arranged) = record.arranged(slots, verdict_map) {
            changed.push((owner.clone(), arranged));
        }
    }
    for (owner, record) in changed {
        records.put_record(owner, record);
    }
}

/// Adds the sets of the static rules or corrects their elements; replaces sets that are too small.
fn sets<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    dump: Option<&TableDump>,
    view: &mut ReadView<'_>,
) {
    let Compared { mut changes, lens } = compare(records, view);
    let mut outgrown: BTreeMap<&str, Arc<Set>> = BTreeMap::new();
    for ((number, set), len) in (0..).zip(&records.static_rules.sets).zip(lens) {
        let Some((present, _)) = dump.and_then(|dump| dump.sets.get(&set.name)) else {
            plan.add_set(set_size::with_capacity(set, len));
            continue;
        };
        if set_size::needs_resize(set, present.size, len) {
            outgrown.insert(&set.name, Arc::new(present.clone()));
            let all = SetChanges { add: all_elements(records, number), ..SetChanges::default() };
            changes[usize::from(number)] = all;
            plan.add_set(set_size::with_capacity(set, len));
        } else if !records.has_new_static_rules || !can_wait(set, present, len, &changes[usize::from(number)]) {
            let changes = &mut changes[usize::from(number)];
            std::mem::take(&mut changes.surplus).iter().for_each(|element| changes.delete.push_packed(element));
        }
    }
    detach(plan, dump, outgrown);
    for (set, changes) in records.static_rules.sets.iter().zip(changes) {
        // Rules add the elements of a dynamic set while they process packets, so the comparison adds and deletes none of them.
        if !set.flags.dynamic {
            plan.elements(set, changes);
        }
    }
}

/// Whether the surplus elements of a set may be deleted after all additions. The kernel accepts no range beside one that overlaps it, and no
/// more elements than the set has room for.
fn can_wait(set: &Set, present: &Set, wanted: usize, changes: &SetChanges) -> bool {
    let all = wanted + changes.surplus.len();
    !set.flags.interval && present.size.is_none_or(|size| usize::try_from(size).is_ok_and(|size| all <= size))
}

/// Deletes sets that are too small, after the rules that use them.
fn detach(plan: &mut Plan<'_>, dump: Option<&TableDump>, outgrown: BTreeMap<&str, Arc<Set>>) {
    let Some(dump) = dump.filter(|_| !outgrown.is_empty()) else { return };
    let uses = |rule: &RuleDump| rule.exprs.iter().filter_map(Expr::set).any(|set| outgrown.contains_key(&**set));
    let mut users = BTreeSet::new();
    for (chain, rules) in dump.chains.values() {
        if rules.iter().any(uses) {
            users.insert(Arc::clone(&chain.name));
        }
    }
    plan.detach(outgrown.into_values(), users);
}

/// The result of a comparison, by the number of the set.
struct Compared {
    changes: Vec<SetChanges>,
    /// The number of wanted elements of each set of the static rules.
    lens: Vec<usize>,
}

/// Compares each set of the static rules. Takes the wanted elements out of `view`; the elements that are left are surplus, and are deleted.
fn compare<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, view: &mut ReadView<'_>) -> Compared {
    let count = records.static_rules.sets.len();
    let mut changes = Vec::with_capacity(count);
    changes.resize_with(count, SetChanges::default);
    let mut lens = vec![0; count];
    let mut seen = HashSet::default();
    for record in records.wanted_in_order() {
        for entry in record.entries() {
            let number = usize::from(entry.set);
            if records.totals.is_shared(entry.set) && !seen.insert(entry.set_and_key()) {
                continue;
            }
            lens[number] += entry.len();
            let (changes, view) = (&mut changes[number], &mut view.0[number]);
            match entry.content {
                Content::Element(element) => {
                    compare_element(changes, element, view.elements.remove(element.key()));
                }
                Content::Group(group) => {
                    compare_group(changes, group, view.groups.take(group.prefix));
                }
            }
        }
    }
    for (view, changes) in std::mem::take(&mut view.0).into_iter().zip(&mut changes) {
        remove_surplus(view, changes);
    }
    Compared { changes, lens }
}

fn compare_element(changes: &mut SetChanges, wanted: ElementRef<'_>, present: Option<ElementRef<'_>>) {
    if let Some(present) = present {
        if present == wanted {
            return;
        }
        changes.delete.push_packed(present);
    }
    changes.add.push_packed(wanted);
}

fn compare_group(changes: &mut SetChanges, wanted: Group<'_>, present: Slotted<'_, '_>) {
    let mut rest = present.elements().peekable();
    for (slot, value) in wanted.values().enumerate() {
        if let Some(element) = rest.next_if(|element| slot_of(*element) == slot) {
            if is_just(element, value) {
                continue;
            }
            changes.delete.push_packed(element);
        }
        changes.add.push_joined([wanted.prefix, &slot_number(slot)[..]], Some(value));
    }
    // The loop takes elements in the order of their numbers, so the remaining elements have numbers after the last wanted one.
    for element in rest {
        changes.surplus.push_packed(element);
    }
}

/// Whether an element has this value, and neither a range's end nor a time-out nor a comment, which another program may have written.
fn is_just(element: ElementRef<'_>, value: &[u8]) -> bool {
    let Parts { key: _, key_end, value: present, timeout, comment } = element.parts();
    present == ValueRef::Data(value) && key_end.is_none() && timeout.is_none() && comment.is_none()
}

/// Makes the elements that no record has surplus, sorted by key.
fn remove_surplus(view: SetView<'_>, changes: &mut SetChanges) {
    let surplus: Elements = view.elements.into_values().chain(view.groups.rest()).collect();
    for element in surplus.sorted().iter() {
        changes.surplus.push_packed(element);
    }
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// Returns the commands that change the table that was read from the kernel into the table that the records describe. In the records,
    /// the values of numbered elements get the numbers that they have in the kernel, so that equal values need no command.
    pub fn comparison(&mut self, dump: Option<&TableDump>, collect: Collect) -> Vec<Command> {
        commands(self, dump, collect)
    }
}

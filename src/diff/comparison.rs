//! All records compared with what was read from the kernel: at the start, after a failure, and when another program wrote.
//!
//! A table whose fixed part cannot be changed into the wanted one is deleted and made anew within the same transaction, and packets see
//! the old table or the new one: one with another kind of set, a base chain elsewhere, objects that this proxy never makes, or another
//! ownership than the wanted one.
//!
//! A dormant table is made active in the first command: the kernel registers its base chains again. It takes no new base chain in that
//! transaction (`nf_tables_addchain`, `__NFT_TABLE_F_UPDATE`), so a dormant table that lacks one is made anew.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use nft::packed::pack;
use nft::{Chain, Command, Element, ElementRef, Expr, Ownership, RuleDump, Set, TableDump, Value};

use super::kept::Collect;
use super::plan::{Plan, Present, SetChanges};
use super::record::{Content, Group, Record};
use super::records::Records;
use super::{changes, room, slot_number};
use crate::table::{ChainContent, FIRST_PLACE, Program};

/// The commands from what was read to what the records say. Has the records take the numbers of slots that the kernel has.
pub(super) fn commands<Owner: Clone + Eq + Hash + Ord>(
    records: &mut Records<Owner>,
    dump: Option<&TableDump>,
    collect: Collect,
) -> Vec<Command> {
    let exists = dump.is_some();
    let dump = dump.filter(|dump| is_compatible(&Wanted::of(records), dump));
    let mut view = View::of(records, dump);
    arrange(records, &view, dump);
    let records = &*records;
    let wanted = Wanted::of(records);
    let mut plan = Plan::new(&records.program);
    match dump {
        None if exists => {
            plan.delete_table();
            plan.add_table();
        }
        None => plan.add_table(),
        Some(dump) => {
            if dump.dormant || records.program.owned && dump.ownership != Ownership::Ours {
                plan.add_table();
            }
            dump.objects.iter().for_each(|object| plan.remove_object(object.clone()));
            wanted.remove_surplus(&mut plan, dump);
            let is_old = |name: &Arc<str>| match collect {
                Collect::Nothing => false,
                Collect::EmptyForASecond => records.kept.to_delete(collect).any(|old| old == name),
                Collect::AllEmpty => true,
            };
            let empty = wanted.unwanted_chains(dump).filter(|(_, rules)| rules.is_empty());
            plan.remove_chains(empty.map(|(chain, _)| &chain.name).filter(|name| is_old(name)).cloned());
        }
    }
    sets(&mut plan, records, dump, &mut view);
    let present = |content: &ChainContent| present_chain(dump, &records.program, content);
    wanted.chains().for_each(|content| plan.chain(content, present(content)));
    wanted.own_sets(&mut plan, dump);
    plan.chains_on_demand(present);
    plan.into_commands()
}

/// The chains of a table that no record and no program has, and that no element leads to on demand.
pub(super) fn unwanted_chains<Owner: Clone + Eq + Hash + Ord>(
    records: &Records<Owner>,
    dump: Option<&TableDump>,
) -> Vec<Arc<str>> {
    let wanted = Wanted::of(records);
    dump.into_iter().flat_map(|dump| wanted.unwanted_chains(dump)).map(|(chain, _)| Arc::clone(&chain.name)).collect()
}

/// All records together: the sets and chains that belong to single owners, by name.
struct Wanted<'a> {
    program: &'a Program,
    /// Those with sets or chains of their own, in the order of owners.
    records: Vec<&'a Record>,
    chains: HashMap<&'a str, &'a ChainContent>,
    sets: HashMap<&'a str, &'a Set>,
}

impl<'a> Wanted<'a> {
    fn of<Owner: Clone + Eq + Hash + Ord>(records: &'a Records<Owner>) -> Self {
        let program = &records.program;
        let mut records: Vec<(&Owner, &Record)> = records.wanted().filter(|(_, record)| record.has_own()).collect();
        records.sort_unstable_by(|a, b| a.0.cmp(b.0));
        let records: Vec<&Record> = records.into_iter().map(|(_, record)| record).collect();
        let own_chains = records.iter().flat_map(|record| record.chains());
        let own_sets = records.iter().flat_map(|record| record.own_sets());
        Self {
            program,
            chains: program.chains.iter().chain(own_chains).map(|content| (&*content.chain.name, content)).collect(),
            sets: program.sets.iter().chain(own_sets).map(|set| (&*set.name, &**set)).collect(),
            records,
        }
    }

    /// Every chain, in a fixed order.
    fn chains(&self) -> impl Iterator<Item = &'a ChainContent> {
        self.program.chains.iter().chain(self.records.iter().flat_map(|record| record.chains()))
    }

    fn is_unwanted(&self, chain: &Chain) -> bool {
        let name = &*chain.name;
        chain.base.is_none() && !self.chains.contains_key(name) && (self.program.on_demand)(name).is_none()
    }

    fn unwanted_chains<'b>(&'b self, dump: &'b TableDump) -> impl Iterator<Item = &'b (Chain, Vec<RuleDump>)> {
        dump.chains.values().filter(|(chain, _)| self.is_unwanted(chain))
    }

    /// Empties chains and deletes sets that no record has. Notes the chains on demand that are there.
    fn remove_surplus(&self, plan: &mut Plan<'_>, dump: &TableDump) {
        for (chain, rules) in dump.chains.values().filter(|(chain, _)| !self.chains.contains_key(&*chain.name)) {
            if self.is_unwanted(chain) && !rules.is_empty() {
                plan.empty_chain(&chain.name);
            }
            // A chain on demand that no element leads to now is kept, and used again when an element leads to it.
            plan.target(&chain.name);
        }
        let surplus = dump.sets.iter().filter(|(name, _)| !self.sets.contains_key(&***name));
        surplus.for_each(|(_, (set, _))| plan.remove_set(Arc::new(set.clone())));
    }

    /// Adds the sets of owners that are missing.
    fn own_sets(&self, plan: &mut Plan<'_>, dump: Option<&TableDump>) {
        let present = |set: &Set| dump.and_then(|dump| dump.sets.get(&set.name));
        for set in self.records.iter().flat_map(|record| record.own_sets()) {
            if present(set).is_none() {
                plan.add_set(Arc::clone(set));
            }
        }
    }
}

/// Whether the fixed part of a table can be completed or corrected without making the table anew.
fn is_compatible(wanted: &Wanted<'_>, dump: &TableDump) -> bool {
    let program = wanted.program;
    // A set of an owner that is gone can be deleted; another kind of set under a wanted name cannot be changed.
    let fits = |(set, _): &(Set, Vec<Element>)| match wanted.sets.get(&*set.name) {
        Some(wanted) => room::is_same_kind(wanted, set),
        None => set.flags.dynamic,
    };
    let known = |(chain, _): &(Chain, Vec<RuleDump>)| match wanted.chains.get(&*chain.name) {
        Some(wanted) => wanted.chain == *chain,
        None => chain.base.is_none(),
    };
    let is_missing =
        |wanted: &ChainContent| wanted.chain.base.is_some() && !dump.chains.contains_key(&wanted.chain.name);
    let is_foreign = !dump.unreadable.is_empty() || dump.unknown_flags != 0 || dump.objects.iter().any(|o| o.in_use);
    !is_foreign
        && dump.table == program.table
        && dump.ownership != if program.owned { Ownership::Unowned } else { Ownership::Orphaned }
        && !(dump.dormant && program.chains.iter().any(is_missing))
        && dump.sets.values().all(fits)
        && dump.chains.values().all(known)
}

fn present_chain(dump: Option<&TableDump>, program: &Program, wanted: &ChainContent) -> Present {
    let Some((_, present)) = dump.and_then(|dump| dump.chains.get(&wanted.chain.name)) else { return Present::Nothing };
    let family = program.table.name.family;
    let is_same = present.len() == wanted.rules.len()
        && wanted.rules.iter().zip(present).all(|(rule, present)| rule.to_dump(family) == *present);
    match (is_same, present.is_empty()) {
        (true, _) => Present::Same,
        (false, true) => Present::Empty,
        (false, false) => Present::OtherRules,
    }
}

/// What was read of the sets of the program, by key. Empty for a table that is made anew.
struct View<'a>(Vec<SetView<'a>>);

#[derive(Default)]
struct SetView<'a> {
    /// Elements that are in no group of slots.
    elements: HashMap<&'a [u8], &'a Element>,
    /// Values by what their keys begin with, and slot.
    groups: HashMap<&'a [u8], Vec<Option<&'a [u8]>>>,
}

impl<'a> View<'a> {
    fn of<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, dump: Option<&'a TableDump>) -> Self {
        let view = |set: &Arc<Set>| {
            let elements = dump.and_then(|dump| dump.sets.get(&set.name)).map_or(&[][..], |(_, elements)| elements);
            let is_slotted = records.program.slotted.iter().any(|name| *name == *set.name);
            SetView::of(elements, is_slotted)
        };
        Self(records.program.sets.iter().map(view).collect())
    }
}

impl<'a> SetView<'a> {
    fn of(elements: &'a [Element], is_slotted: bool) -> Self {
        let mut view = Self::default();
        view.elements.reserve(if is_slotted { 0 } else { elements.len() });
        for element in elements {
            match Some(element).filter(|_| is_slotted).and_then(slot) {
                Some((prefix, slot, value)) => {
                    let group = view.groups.entry(prefix).or_default();
                    group.resize(group.len().max(slot + 1), None);
                    group[slot] = Some(value);
                }
                None => drop(view.elements.insert(element.key.as_slice(), element)),
            }
        }
        view
    }
}

/// What the key of an element of a slotted map begins with, its slot and its value.
fn slot(element: &Element) -> Option<(&[u8], usize, &[u8])> {
    let (prefix, slot) = element.key.as_slice().split_last_chunk::<4>()?;
    let slot = u32::from_ne_bytes(*slot);
    let slot = usize::try_from(slot).ok().filter(|_| slot < FIRST_PLACE)?;
    match &element.value {
        Value::Data(value) if prefix.len().is_multiple_of(4) => Some((prefix, slot, value.as_slice())),
        _ => None,
    }
}

/// Has the records take the numbers of slots that the kernel has.
fn arrange<Owner: Clone + Eq + Hash + Ord>(records: &mut Records<Owner>, view: &View<'_>, dump: Option<&TableDump>) {
    if dump.is_none() {
        return;
    }
    let slots = |set: u16, wanted: Group<'_>| {
        let now = view.0[usize::from(set)].groups.get(wanted.prefix)?;
        (!now.iter().copied().eq(wanted.values().map(Some))).then(|| now.clone())
    };
    let changed = records.wanted().filter_map(|(owner, record)| Some((owner.clone(), record.arranged(slots)?)));
    let changed: Vec<(Owner, Record)> = changed.collect();
    changed.into_iter().for_each(|(owner, record)| records.put_record(owner, record));
}

/// Makes the sets of the program what they should be.
fn sets<Owner: Clone + Eq + Hash + Ord>(
    plan: &mut Plan<'_>,
    records: &Records<Owner>,
    dump: Option<&TableDump>,
    view: &mut View<'_>,
) {
    let Compared { mut changes, lens } = compare(records, view);
    let mut outgrown = BTreeMap::new();
    for ((number, set), len) in (0..).zip(&records.program.sets).zip(lens) {
        let present = dump.and_then(|dump| dump.sets.get(&set.name)).map(|(present, _)| present);
        let too_small = present.filter(|present| room::is_outgrown(set, present.size, len));
        if let Some(present) = too_small {
            outgrown.insert(&*set.name, Arc::new(present.clone()));
            changes[usize::from(number)] =
                SetChanges { add: changes::all_elements(records, number), ..SetChanges::default() };
        }
        if present.is_none() || too_small.is_some() {
            plan.add_set(room::roomy(set, len));
        }
    }
    detach(plan, dump, outgrown);
    for (set, changes) in records.program.sets.iter().zip(changes) {
        // Elements that rules added to a dynamic set stay.
        if !set.flags.dynamic {
            plan.elements(set, changes);
        }
    }
}

/// Takes sets that became too small out of the table: rules that use them go first.
fn detach(plan: &mut Plan<'_>, dump: Option<&TableDump>, outgrown: BTreeMap<&str, Arc<Set>>) {
    if outgrown.is_empty() {
        return;
    }
    let uses = |rule: &RuleDump| rule.exprs.iter().filter_map(Expr::set).any(|set| outgrown.contains_key(&**set));
    let chains = dump.into_iter().flat_map(|dump| dump.chains.values());
    let users = chains.filter(|(_, rules)| rules.iter().any(uses)).map(|(chain, _)| Arc::clone(&chain.name)).collect();
    plan.detach(outgrown.values().cloned(), users);
}

/// What a comparison gives, by number of a set.
struct Compared {
    changes: Vec<SetChanges>,
    /// Elements that are wanted.
    lens: Vec<usize>,
}

/// What differs in each set of the program. Takes what is wanted out of the view.
fn compare<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, view: &mut View<'_>) -> Compared {
    let mut changes: Vec<SetChanges> = records.program.sets.iter().map(|_| SetChanges::default()).collect();
    let mut lens = vec![0; changes.len()];
    let (mut seen, mut packed) = (HashSet::default(), Vec::new());
    for record in records.wanted_in_order() {
        for entry in record.entries() {
            let number = usize::from(entry.set);
            if records.totals.is_shared(entry.set) && !seen.insert(entry.place()) {
                continue;
            }
            lens[number] += entry.len();
            match entry.content {
                Content::Element(element) => {
                    compare_element(
                        &mut changes[number],
                        element,
                        view.0[number].elements.remove(element.key()),
                        &mut packed,
                    );
                }
                Content::Group(group) => {
                    let present = view.0[number].groups.remove(group.prefix).unwrap_or_default();
                    compare_group(&mut changes[number], group, &present);
                }
            }
        }
    }
    for (view, changes) in std::mem::take(&mut view.0).into_iter().zip(&mut changes) {
        remove_surplus(view, changes);
    }
    Compared { changes, lens }
}

fn compare_element(changes: &mut SetChanges, wanted: ElementRef<'_>, present: Option<&Element>, packed: &mut Vec<u8>) {
    if let Some(present) = present {
        packed.clear();
        pack(packed, present);
        if *packed == wanted.packed() {
            return;
        }
        changes.delete.push(present);
    }
    changes.add.push_packed(wanted);
}

fn compare_group(changes: &mut SetChanges, wanted: Group<'_>, present: &[Option<&[u8]>]) {
    let mut values = wanted.values();
    for slot in 0..wanted.len().max(present.len()) {
        let (now, before) = (values.next(), present.get(slot).copied().flatten());
        if now != before {
            let key = [wanted.prefix, &slot_number(slot)[..]];
            before.into_iter().for_each(|value| changes.delete.push_joined(key, Some(value)));
            now.into_iter().for_each(|value| changes.add.push_joined(key, Some(value)));
        }
    }
}

/// Deletes what no record has, in the order of keys.
fn remove_surplus(view: SetView<'_>, changes: &mut SetChanges) {
    let mut surplus = nft::Elements::default();
    view.elements.into_values().for_each(|element| surplus.push(element));
    for (prefix, values) in view.groups {
        for (slot, value) in values.into_iter().enumerate().filter_map(|(slot, value)| Some((slot, value?))) {
            surplus.push_joined([prefix, &slot_number(slot)[..]], Some(value));
        }
    }
    surplus.sorted().iter().for_each(|element| changes.delete.push_packed(element));
}

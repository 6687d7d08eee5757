//! The commands from present to wanted.
//!
//! The order is the one that every supported kernel accepts: sets, chains without rules, rules, then elements, deletions before
//! additions. A table whose fixed part cannot be changed into the wanted one (another kind of set, a base chain elsewhere, things
//! we do not know, a table of everybody that is to be owned) is deleted and made anew within the same transaction; packets see the old table or the new one.
//!
//! Chains that nobody wants any more are emptied at once, and deleted by a later transaction: kernels before 6.2 keep an element's
//! reference to its chain for a moment after the element is gone (F8).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use nft::{Chain, Command, Data, Element, Ownership, RuleDump, Set, TableName, Value, Verdict};

use super::desired::{DesiredSet, element_target};
use super::realised::RealisedSet;
use super::{ChainContent, Choice, Desired, LearnedMap, Program, Realised, slot_key, slots};

/// How much is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of the table.
    Everything,
    /// What was touched since [`Desired::settle`].
    Touched,
}

/// The commands that make the present table the wanted one.
#[must_use]
pub fn transaction<Owner: Eq + Hash>(
    desired: &Desired<Owner>,
    realised: &Realised,
    scope: Scope,
    collect: Collect<'_>,
) -> Vec<Command> {
    let program = desired.program();
    let mut plan = Plan::new(program);
    let fresh = Realised::absent(program);
    let mut realised = realised;
    if scope == Scope::Everything && !is_compatible(desired, realised) {
        plan.rebuild(realised.table().is_some());
        realised = &fresh;
    } else if scope == Scope::Everything && program.owned && realised.ownership() != Ownership::Ours {
        plan.add_table();
    }
    match collect {
        Collect::Nothing => {}
        Collect::Emptied => plan.collect(emptied_chains(desired, realised)),
        Collect::Of(names) => plan.collect(emptied_chains(desired, realised).filter(|name| names.contains(name))),
    }
    match scope {
        Scope::Everything => plan.everything(desired, realised),
        Scope::Touched => plan.touched(desired, realised),
    }
    plan.demand_chains(realised, scope);
    plan.into_commands()
}

/// Which chains that were emptied some time ago are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect<'a> {
    /// They stay for now.
    Nothing,
    /// They are deleted.
    Emptied,
    /// These are deleted, as far as they are empty and nobody wants them.
    Of(&'a BTreeSet<Arc<str>>),
}

/// Whether there are chains that nobody wants and that are empty already.
#[must_use]
pub fn has_garbage<Owner: Eq + Hash>(desired: &Desired<Owner>, realised: &Realised) -> bool {
    emptied_chains(desired, realised).next().is_some()
}

/// The chains that nobody wants and that are empty already.
pub fn emptied_chains<'a, Owner: Eq + Hash>(
    desired: &'a Desired<Owner>,
    realised: &'a Realised,
) -> impl Iterator<Item = Arc<str>> {
    let emptied = realised.empty_chains().filter(|chain| is_unwanted(desired, chain));
    emptied.map(|chain| Arc::clone(&chain.name))
}

/// Chains on demand are kept when no element leads to them any more: they are few, and may be needed again.
fn is_unwanted<Owner: Eq + Hash>(desired: &Desired<Owner>, chain: &Chain) -> bool {
    chain.base.is_none() && desired.chain(&chain.name).is_none() && (desired.program().on_demand)(&chain.name).is_none()
}

/// Whether the fixed part of the present table can be completed or corrected without making the table anew.
fn is_compatible<Owner: Eq + Hash>(desired: &Desired<Owner>, realised: &Realised) -> bool {
    let program = desired.program();
    // A set of a part that nobody wants can be deleted; another kind of set under a wanted name cannot be changed.
    let fits = |present: &RealisedSet| match desired.wanted_set(&present.set.name) {
        Some(wanted) => *wanted == present.set,
        None => present.set.flags.dynamic || Choice::can_be(&present.set),
    };
    let known = |(present, _): &(Chain, Vec<RuleDump>)| match desired.chain(&present.name) {
        Some(wanted) => wanted.chain == *present,
        None => present.base.is_none(),
    };
    !realised.is_foreign()
        && realised.table() == Some(&program.table)
        && !(program.owned && realised.ownership() == Ownership::Anybody)
        && realised.sets().all(fits)
        && realised.chains().all(known)
}

/// Commands by kind, put into order at the end.
struct Plan<'a> {
    program: &'a Program,
    table: TableName,
    tables: Vec<Command>,
    sets: Vec<Command>,
    chains: Vec<Command>,
    rules: Vec<Command>,
    deletions: Vec<Command>,
    additions: Vec<Command>,
    /// What nothing refers to any more once the rest is done.
    removals: Vec<Command>,
    /// Chains on demand that elements of this plan, or of the wanted table, lead to.
    demanded: BTreeSet<Arc<str>>,
}

impl<'a> Plan<'a> {
    fn new(program: &'a Program) -> Self {
        Self {
            program,
            table: program.table.name.clone(),
            tables: Vec::new(),
            sets: Vec::new(),
            chains: Vec::new(),
            rules: Vec::new(),
            deletions: Vec::new(),
            additions: Vec::new(),
            removals: Vec::new(),
            demanded: BTreeSet::new(),
        }
    }

    fn into_commands(self) -> Vec<Command> {
        [self.tables, self.sets, self.chains, self.rules, self.deletions, self.additions, self.removals].concat()
    }

    fn rebuild(&mut self, exists: bool) {
        if exists {
            self.tables.push(Command::DeleteTable(self.table.clone()));
        }
        self.add_table();
    }

    fn add_table(&mut self) {
        let table = self.program.table.clone();
        self.tables.push(if self.program.owned { Command::OwnTable(table) } else { Command::AddTable(table) });
    }

    fn everything<Owner: Eq + Hash>(&mut self, desired: &Desired<Owner>, realised: &Realised) {
        for content in desired.chains() {
            self.chain(content, realised);
        }
        for (chain, _) in realised.chains().filter(|(chain, _)| is_unwanted(desired, chain)) {
            self.empty(&chain.name, realised);
        }
        // One on demand that nothing leads to now is kept, and trusted when something leads to it again.
        let kept = realised.chains().map(|(chain, _)| &chain.name).filter(|name| desired.chain(name).is_none());
        self.demanded.extend(kept.cloned());
        for map in desired.all_learned() {
            self.learned(&map.set.name, Some(map), realised);
        }
        for choice in desired.choices() {
            self.choice(&choice.set.name, Some(choice), realised);
        }
        let mut unwanted: Vec<&RealisedSet> =
            realised.sets().filter(|present| desired.wanted_set(&present.set.name).is_none()).collect();
        unwanted.sort_by(|a, b| a.set.name.cmp(&b.set.name));
        unwanted.into_iter().for_each(|present| self.remove(present));
        for (set, wanted) in desired.sets() {
            let present = realised.set(&set.name);
            if present.is_none() {
                self.sets.push(Command::AddSet(self.table.clone(), Arc::clone(set)));
            }
            let mut changes = ElementChanges::default();
            changes.whole_set(set, wanted, present);
            self.demanded.extend(wanted.elements().filter_map(element_target).cloned());
            self.elements(set, changes);
        }
    }

    fn touched<Owner: Eq + Hash>(&mut self, desired: &Desired<Owner>, realised: &Realised) {
        let mut by_set: HashMap<usize, ElementChanges> = HashMap::new();
        let touched = desired.touched();
        for name in &touched.chains {
            match desired.chain(name) {
                Some(content) => self.chain(content, realised),
                None => self.empty(name, realised),
            }
        }
        for name in &touched.learned {
            self.learned(name, desired.learned(name), realised);
        }
        for name in &touched.choices {
            self.choice(name, desired.choice(name), realised);
        }
        for (index, key) in &touched.elements {
            let (set, wanted) = desired.set(*index);
            by_set.entry(*index).or_default().element(key, wanted, realised.set(&set.name));
        }
        for (index, prefix) in &touched.slots {
            let (set, wanted) = desired.set(*index);
            by_set.entry(*index).or_default().slots(prefix, wanted, realised.set(&set.name));
        }
        let mut by_set: Vec<_> = by_set.into_iter().collect();
        by_set.sort_by_key(|(index, _)| *index);
        for (index, mut changes) in by_set {
            changes.sort();
            self.demanded.extend(changes.add.iter().filter_map(element_target).cloned());
            self.elements(desired.set(index).0, changes);
        }
    }

    fn elements(&mut self, set: &Arc<Set>, changes: ElementChanges) {
        if !changes.delete.is_empty() {
            self.deletions.push(Command::DeleteElements(self.table.clone(), Arc::clone(set), changes.delete));
        }
        if !changes.add.is_empty() {
            self.additions.push(Command::AddElements(self.table.clone(), Arc::clone(set), changes.add));
        }
    }

    /// Adds a map that is missing, or deletes one that nobody wants.
    fn learned(&mut self, name: &str, wanted: Option<&LearnedMap>, realised: &Realised) {
        match (wanted, realised.set(name)) {
            (Some(map), None) => self.sets.push(Command::AddSet(self.table.clone(), Arc::clone(&map.set))),
            (None, Some(present)) => self.remove(present),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    fn remove(&mut self, present: &RealisedSet) {
        self.removals.push(Command::DeleteSet(self.table.clone(), Arc::new(present.set.clone())));
    }

    /// Adds or corrects a map of numbered verdicts, or deletes one that nobody wants.
    fn choice(&mut self, name: &str, wanted: Option<&Choice>, realised: &Realised) {
        let present = realised.set(name);
        let Some(choice) = wanted else {
            if let Some(present) = present {
                self.remove(present);
            }
            return;
        };
        if present.is_none() {
            self.sets.push(Command::AddSet(self.table.clone(), Arc::clone(&choice.set)));
        }
        self.demanded.extend(choice.verdicts.iter().filter_map(Verdict::chain).cloned());
        let mut changes = ElementChanges::default();
        changes.choice(choice, present);
        self.elements(&choice.set, changes);
    }

    /// Deletes the rules of a chain that nobody wants.
    fn empty(&mut self, name: &Arc<str>, realised: &Realised) {
        if realised.chain(name).is_some_and(|(_, rules)| !rules.is_empty()) {
            self.rules.push(Command::FlushChain(self.table.clone(), Arc::clone(name)));
        }
    }

    fn collect(&mut self, chains: impl Iterator<Item = Arc<str>>) {
        let mut names: Vec<Arc<str>> = chains.collect();
        names.sort();
        self.removals.extend(names.into_iter().map(|name| Command::DeleteChain(self.table.clone(), name)));
    }

    /// Adds a chain that is missing, corrects one whose rules differ.
    fn chain(&mut self, wanted: &ChainContent, realised: &Realised) {
        let name = &wanted.chain.name;
        self.demanded.extend(wanted.targets().cloned());
        let rules = || -> Vec<RuleDump> { wanted.rules.iter().map(|r| r.to_dump(self.table.family)).collect() };
        match realised.chain(name) {
            Some((_, present)) if *present == rules() => return,
            Some(_) => self.rules.push(Command::FlushChain(self.table.clone(), Arc::clone(name))),
            None => self.chains.push(Command::AddChain(self.table.clone(), wanted.chain.clone())),
        }
        let add = |rule: &nft::Rule| Command::AddRule(self.table.clone(), Arc::clone(name), rule.clone());
        let commands: Vec<Command> = wanted.rules.iter().map(add).collect();
        self.rules.extend(commands);
    }

    /// Adds the chains on demand that are missing, and those that these lead to; with everything, corrects those that differ.
    fn demand_chains(&mut self, realised: &Realised, scope: Scope) {
        let mut open: Vec<Arc<str>> = self.demanded.iter().cloned().collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            let is_there = scope == Scope::Touched && realised.chain(&name).is_some();
            if is_there || !seen.insert(Arc::clone(&name)) {
                continue;
            }
            if let Some(content) = (self.program.on_demand)(&name) {
                self.chain(&content, realised);
                open.extend(content.targets().cloned());
            }
        }
    }
}

/// What to delete from and add to one set. An element in both lists changes its value.
#[derive(Default)]
struct ElementChanges {
    delete: Vec<Element>,
    add: Vec<Element>,
}

impl ElementChanges {
    fn whole_set(&mut self, set: &Set, wanted: &DesiredSet, present: Option<&RealisedSet>) {
        // What rules put into a dynamic set is theirs.
        if set.flags.dynamic {
            return;
        }
        for element in wanted.elements() {
            self.element(&element.key, wanted, present);
        }
        for prefix in wanted.slot_prefixes() {
            self.slots(prefix, wanted, present);
        }
        if let Some(present) = present {
            let surplus = present.elements.keys().filter(|key| wanted.element(key).is_none());
            surplus.for_each(|key| self.element(key, wanted, Some(present)));
            let surplus = present.slot_prefixes().filter(|prefix| wanted.slots(prefix).is_empty());
            surplus.for_each(|prefix| self.slots(prefix, wanted, Some(present)));
        }
        self.sort();
    }

    fn element(&mut self, key: &Data, wanted: &DesiredSet, present: Option<&RealisedSet>) {
        let wanted = wanted.element(key);
        let present = present.and_then(|set| set.elements.get(key));
        if wanted != present {
            self.delete.extend(present.cloned());
            self.add.extend(wanted.cloned());
        }
    }

    fn slots(&mut self, prefix: &Data, wanted: &DesiredSet, present: Option<&RealisedSet>) {
        let present = present.map_or(&[][..], |set| set.slots(prefix));
        let changes = slots::changes(present, wanted.slots(prefix));
        self.delete.extend(changes.delete.into_iter().map(|slot| Element::new(slot_key(prefix, slot))));
        let add = |(slot, value)| Element::mapping(slot_key(prefix, slot), Value::Data(value));
        self.add.extend(changes.add.into_iter().map(add));
    }

    fn choice(&mut self, choice: &Choice, present: Option<&RealisedSet>) {
        let present = present.map(|set| &set.elements);
        // Numbers from 0 up without a gap, whatever else is there is somebody else's and goes.
        let count = present.map_or(0, HashMap::len).max(choice.verdicts.len());
        let numbers: Vec<Data> = (0..count).map(|number| slot_key(&Data::EMPTY, number)).collect();
        let by_number: Vec<Option<Verdict>> = numbers.iter().map(|key| verdict(present?.get(key)?)).collect();
        let wanted: Vec<Option<Verdict>> = choice.verdicts.iter().cloned().map(Some).collect();
        let changes = slots::changes(&by_number, &wanted);
        self.delete.extend(changes.delete.into_iter().map(|number| Element::new(numbers[number])));
        let add = |(number, verdict): (usize, Option<Verdict>)| Some(Choice::element(number, verdict?));
        self.add.extend(changes.add.into_iter().filter_map(add));
        let known: HashSet<&Data> = numbers.iter().collect();
        let foreign =
            present.into_iter().flatten().filter(|(key, element)| !known.contains(key) || verdict(element).is_none());
        self.delete.extend(foreign.map(|(key, _)| Element::new(*key)));
        self.sort();
    }

    /// Equal inputs give equal transactions, whatever the order of the hash maps.
    fn sort(&mut self) {
        self.delete.sort_by_key(|element| element.key);
        self.add.sort_by_key(|element| element.key);
    }
}

/// The verdict of an element that is as one of ours: without comment and time-out.
fn verdict(element: &Element) -> Option<Verdict> {
    match &element.value {
        Value::Verdict(verdict) if element.comment.is_none() => Some(verdict.clone()),
        Value::Verdict(_) | Value::None | Value::Data(_) => None,
    }
}

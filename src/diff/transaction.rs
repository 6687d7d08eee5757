//! The commands from present to wanted.
//!
//! The order is the one that every supported kernel accepts: sets, chains without rules, rules, then elements, deletions before
//! additions. A table whose fixed part cannot be changed into the wanted one (another kind of set, a base chain elsewhere, things
//! we do not know, a table of everybody that is to be owned, or without an owner that is to be everybody's) is deleted and made anew
//! within the same transaction; packets see the old table or the new one.
//!
//! A dormant table is made active in the first command: the kernel hangs its base chains up again. It takes no new base chain in that
//! transaction (`nf_tables_addchain`, `__NFT_TABLE_F_UPDATE`), so a dormant table that lacks one is made anew.
//!
//! Chains that nobody wants any more are emptied at once, and deleted by a later transaction: kernels before 6.2 keep an element's
//! reference to its chain for a moment after the element is gone (F8).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use nft::{Chain, Command, Expr, NamedObject, Ownership, RuleDump, Set, TableName, Verdict};

use super::changes::ElementChanges;
use super::realised::RealisedSet;
use super::{ChainContent, Choice, Desired, LearnedMap, Program, Realised, room};

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
    let scope = if desired.touched().everything { Scope::Everything } else { scope };
    let fresh = Realised::absent(program);
    let mut realised = realised;
    if scope == Scope::Everything && !is_compatible(desired, realised) {
        plan.rebuild(realised.table().is_some());
        realised = &fresh;
    } else if scope == Scope::Everything {
        if realised.is_dormant() || program.owned && realised.ownership() != Ownership::Ours {
            plan.add_table();
        }
        let remove = |object: &NamedObject| Command::DeleteObject(program.table.name.clone(), object.clone());
        plan.removals.extend(realised.objects().iter().map(remove));
    }
    match collect {
        Collect::Nothing => {}
        Collect::Emptied => plan.collect(emptied_chains(desired, realised)),
        Collect::Of(names) => plan.collect(emptied_chains(desired, realised).filter(|name| names.contains(name))),
    }
    plan.outgrow(desired, realised);
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
        Some(wanted) => room::is_same_kind(wanted, &present.set),
        None => present.set.flags.dynamic || Choice::can_be(&present.set),
    };
    let known = |(present, _): &(Chain, Vec<RuleDump>)| match desired.chain(&present.name) {
        Some(wanted) => wanted.chain == *present,
        None => present.base.is_none(),
    };
    let is_missing =
        |wanted: &ChainContent| wanted.chain.base.is_some() && realised.chain(&wanted.chain.name).is_none();
    !realised.is_foreign()
        && realised.table() == Some(&program.table)
        && realised.ownership() != if program.owned { Ownership::Anybody } else { Ownership::Orphaned }
        && !(realised.is_dormant() && desired.chains().any(is_missing))
        && realised.sets().all(fits)
        && realised.chains().all(known)
}

/// Commands by kind, put into order at the end.
struct Plan<'a> {
    program: &'a Program,
    table: TableName,
    tables: Vec<Command>,
    /// What makes way for sets that are made anew.
    detachments: Vec<Command>,
    sets: Vec<Command>,
    chains: Vec<Command>,
    rules: Vec<Command>,
    deletions: Vec<Command>,
    additions: Vec<Command>,
    /// What nothing refers to any more once the rest is done.
    removals: Vec<Command>,
    /// Chains on demand that elements of this plan, or of the wanted table, lead to.
    demanded: BTreeSet<Arc<str>>,
    /// Numbers of the sets of the program that are made anew because they became too small.
    outgrown: BTreeSet<u16>,
    /// Chains whose rules were deleted because they use such a set, and have not been written again.
    detached: BTreeSet<Arc<str>>,
}

impl<'a> Plan<'a> {
    fn new(program: &'a Program) -> Self {
        Self {
            program,
            table: program.table.name.clone(),
            tables: Vec::new(),
            detachments: Vec::new(),
            sets: Vec::new(),
            chains: Vec::new(),
            rules: Vec::new(),
            deletions: Vec::new(),
            additions: Vec::new(),
            removals: Vec::new(),
            demanded: BTreeSet::new(),
            outgrown: BTreeSet::new(),
            detached: BTreeSet::new(),
        }
    }

    fn into_commands(self) -> Vec<Command> {
        let tables = [self.tables, self.detachments, self.sets, self.chains];
        tables.into_iter().chain([self.rules, self.deletions, self.additions, self.removals]).flatten().collect()
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
        for ((set, wanted), index) in desired.sets().zip(0..) {
            let present = realised.set(&set.name).filter(|_| !self.outgrown.contains(&index));
            if present.is_none() {
                self.sets.push(Command::AddSet(self.table.clone(), room::roomy(set, wanted.len())));
            }
            wanted.elements().filter_map(|(_, stored)| stored.target()).for_each(|target| self.demand(target));
            self.elements(set, ElementChanges::of_set(set, wanted, present));
        }
    }

    fn touched<Owner: Eq + Hash>(&mut self, desired: &Desired<Owner>, realised: &Realised) {
        let mut by_set: BTreeMap<u16, ElementChanges> = BTreeMap::new();
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
        for place in touched.elements.iter().filter(|place| !self.outgrown.contains(&place.set)) {
            let (set, wanted) = desired.set(place.set);
            let present = realised.set(&set.name).and_then(|present| present.element(&place.key));
            by_set.entry(place.set).or_default().element(&place.key, wanted.element(&place.key), present);
        }
        for place in touched.slots.iter().filter(|place| !self.outgrown.contains(&place.set)) {
            let (set, wanted) = desired.set(place.set);
            let present = realised.set(&set.name).and_then(|present| present.slots(&place.key));
            by_set.entry(place.set).or_default().slots(&place.key, wanted.slots(&place.key), present);
        }
        by_set.values_mut().for_each(ElementChanges::sort);
        for index in &self.outgrown {
            let (set, wanted) = desired.set(*index);
            self.sets.push(Command::AddSet(self.table.clone(), room::roomy(set, wanted.len())));
            by_set.insert(*index, ElementChanges::of_set(set, wanted, None));
        }
        for (index, changes) in by_set {
            changes.targets().for_each(|target| self.demand(target));
            self.elements(desired.set(index).0, changes);
        }
    }

    /// Finds the sets that have become too small, and takes them out of the present table: rules that use them go first, and are
    /// written again once the new sets are there.
    fn outgrow<Owner: Eq + Hash>(&mut self, desired: &Desired<Owner>, realised: &Realised) {
        let mut too_small: BTreeMap<&str, &Set> = BTreeMap::new();
        for ((set, wanted), index) in desired.sets().zip(0..) {
            let present = realised.set(&set.name).map(|present| &present.set);
            if let Some(present) = present.filter(|present| room::is_outgrown(set, present, wanted.len())) {
                self.outgrown.insert(index);
                too_small.insert(&set.name, present);
            }
        }
        if too_small.is_empty() {
            return;
        }
        let uses = |rule: &RuleDump| rule.exprs.iter().filter_map(Expr::set).any(|set| too_small.contains_key(&**set));
        let users = realised.chains().filter(|(_, rules)| rules.iter().any(uses));
        self.detached = users.map(|(chain, _)| Arc::clone(&chain.name)).collect();
        let flush = self.detached.iter().map(|name| Command::FlushChain(self.table.clone(), Arc::clone(name)));
        let delete = |set: &Set| Command::DeleteSet(self.table.clone(), Arc::new(set.clone()));
        self.detachments = flush.chain(too_small.into_values().map(delete)).collect();
        for name in self.detached.clone() {
            if let Some(content) = desired.chain(&name).cloned().or_else(|| (self.program.on_demand)(&name)) {
                self.chain(&content, realised);
            }
        }
    }

    fn demand(&mut self, target: &Arc<str>) {
        if !self.demanded.contains(target) {
            self.demanded.insert(Arc::clone(target));
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
        choice.verdicts.iter().filter_map(Verdict::chain).for_each(|target| self.demand(target));
        self.elements(&choice.set, ElementChanges::of_choice(choice, present));
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
            Some(_) if self.detached.remove(name) => {}
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

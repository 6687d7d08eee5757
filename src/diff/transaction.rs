//! The commands from present to wanted.
//!
//! The order is the one that every supported kernel accepts: sets, chains without rules, rules, then elements, deletions before
//! additions. A table whose fixed part cannot be changed into the wanted one (another kind of set, a base chain elsewhere, things
//! we do not know) is deleted and made anew within the same transaction; packets see the old table or the new one.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use nft::{Command, Data, Element, RuleDump, Set, TableName, Value};

use super::desired::{DesiredSet, element_target};
use super::realised::RealisedSet;
use super::{ChainContent, Desired, Program, Realised, slot_key, slots};

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
pub fn transaction<Owner: Eq + Hash>(desired: &Desired<Owner>, realised: &Realised, scope: Scope) -> Vec<Command> {
    let program = desired.program();
    let mut plan = Plan::new(program);
    let fresh = Realised::absent(program);
    let mut realised = realised;
    if scope == Scope::Everything && !is_compatible(program, realised) {
        plan.rebuild(realised.table().is_some());
        realised = &fresh;
    }
    match scope {
        Scope::Everything => plan.everything(desired, realised),
        Scope::Touched => plan.touched(desired, realised),
    }
    plan.demand_chains(realised, scope);
    plan.into_commands()
}

/// Whether the fixed part of the present table can be completed or corrected without making the table anew.
fn is_compatible(program: &Program, realised: &Realised) -> bool {
    let known_set = |present: &RealisedSet| program.sets.iter().any(|wanted| **wanted == present.set);
    let known_chain = |present: &nft::Chain| {
        let fixed = program.chains.iter().find(|wanted| wanted.chain.name == present.name).map(|c| c.chain.clone());
        let wanted = fixed.or_else(|| (program.on_demand)(&present.name).map(|content| content.chain));
        wanted.is_some_and(|wanted| wanted == *present)
    };
    !realised.is_foreign()
        && realised.table() == Some(&program.table)
        && realised.sets().all(known_set)
        && realised.chains().all(known_chain)
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
            demanded: BTreeSet::new(),
        }
    }

    fn into_commands(self) -> Vec<Command> {
        [self.tables, self.sets, self.chains, self.rules, self.deletions, self.additions].concat()
    }

    fn rebuild(&mut self, exists: bool) {
        if exists {
            self.tables.push(Command::DeleteTable(self.table.clone()));
        }
        self.tables.push(Command::AddTable(self.program.table.clone()));
    }

    fn everything<Owner: Eq + Hash>(&mut self, desired: &Desired<Owner>, realised: &Realised) {
        for chain in &self.program.chains {
            self.chain(chain, realised);
        }
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

    /// Adds a chain that is missing, corrects one whose rules differ.
    fn chain(&mut self, wanted: &ChainContent, realised: &Realised) {
        let name = &wanted.chain.name;
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
        while let Some(name) = open.pop() {
            if scope == Scope::Touched && realised.chain(&name).is_some() {
                continue;
            }
            let Some(content) = (self.program.on_demand)(&name) else { continue };
            self.chain(&content, realised);
            let further: Vec<Arc<str>> = content.targets().cloned().collect();
            open.extend(further.into_iter().filter(|target| self.demanded.insert(Arc::clone(target))));
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

    /// Equal inputs give equal transactions, whatever the order of the hash maps.
    fn sort(&mut self) {
        self.delete.sort_by_key(|element| element.key);
        self.add.sort_by_key(|element| element.key);
    }
}

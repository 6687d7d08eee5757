//! A transaction while it is put together: commands by kind, put into order at the end.
//!
//! The order is the one that every supported kernel accepts: sets, chains without rules, rules, then elements, deletions before
//! additions, and last what nothing refers to any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Command, ElementRef, Elements, Set, TableName};

use crate::table::{ChainContent, Program};

/// What the kernel has of a chain that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Present {
    /// All of it.
    Same,
    /// The chain with other rules.
    OtherRules,
    /// The chain without rules, perhaps because a command of this transaction deletes them.
    Empty,
    /// Nothing.
    Nothing,
}

/// Elements that differ in one set. An element in both lists changes its value.
#[derive(Default)]
pub(super) struct SetChanges {
    pub(super) delete: Elements,
    pub(super) add: Elements,
}

pub(super) struct Plan<'a> {
    program: &'a Program,
    table: TableName,
    tables: Vec<Command>,
    /// Deletions of sets that are made anew, and of the rules that use them.
    detachments: Vec<Command>,
    sets: Vec<Command>,
    chains: Vec<Command>,
    rules: Vec<Command>,
    deletions: Vec<Command>,
    additions: Vec<Command>,
    removals: Vec<Command>,
    /// Chains that elements or rules of this plan lead to; some of them are chains on demand.
    targets: BTreeSet<Arc<str>>,
    /// Chains whose rules are deleted because they use a set that is made anew, and are not written again yet.
    detached: BTreeSet<Arc<str>>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(program: &'a Program) -> Self {
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
            targets: BTreeSet::new(),
            detached: BTreeSet::new(),
        }
    }

    pub(super) fn into_commands(self) -> Vec<Command> {
        let tables = [self.tables, self.detachments, self.sets, self.chains];
        tables.into_iter().chain([self.rules, self.deletions, self.additions, self.removals]).flatten().collect()
    }

    pub(super) fn delete_table(&mut self) {
        self.tables.push(Command::DeleteTable(self.table.clone()));
    }

    pub(super) fn add_table(&mut self) {
        let table = self.program.table.clone();
        self.tables.push(if self.program.owned { Command::OwnTable(table) } else { Command::AddTable(table) });
    }

    pub(super) fn add_set(&mut self, set: Arc<Set>) {
        self.sets.push(Command::AddSet(self.table.clone(), set));
    }

    /// Deletes a set that no wanted rule uses.
    pub(super) fn remove_set(&mut self, set: Arc<Set>) {
        self.removals.push(Command::DeleteSet(self.table.clone(), set));
    }

    pub(super) fn remove_object(&mut self, object: nft::NamedObject) {
        self.removals.push(Command::DeleteObject(self.table.clone(), object));
    }

    pub(super) fn remove_chains(&mut self, names: impl Iterator<Item = Arc<str>>) {
        self.removals.extend(names.map(|name| Command::DeleteChain(self.table.clone(), name)));
    }

    /// Deletes sets that became too small, and before that the rules of the chains that use them.
    pub(super) fn detach(&mut self, sets: impl Iterator<Item = Arc<Set>>, chains: BTreeSet<Arc<str>>) {
        let flush = chains.iter().map(|name| Command::FlushChain(self.table.clone(), Arc::clone(name)));
        let delete = sets.map(|set| Command::DeleteSet(self.table.clone(), set));
        self.detachments = flush.chain(delete).collect();
        self.detached = chains;
    }

    /// The chains whose rules are deleted and not written again yet.
    pub(super) fn detached(&self) -> BTreeSet<Arc<str>> {
        self.detached.clone()
    }

    /// Deletes the rules of a chain that is not wanted any more.
    pub(super) fn empty_chain(&mut self, name: &Arc<str>) {
        self.rules.push(Command::FlushChain(self.table.clone(), Arc::clone(name)));
    }

    /// Makes a chain what it should be.
    pub(super) fn chain(&mut self, wanted: &ChainContent, present: Present) {
        let name = &wanted.chain.name;
        self.targets.extend(wanted.targets().cloned());
        match if self.detached.remove(name) { Present::Empty } else { present } {
            Present::Same => return,
            Present::OtherRules => self.rules.push(Command::FlushChain(self.table.clone(), Arc::clone(name))),
            Present::Empty => {}
            Present::Nothing => self.chains.push(Command::AddChain(self.table.clone(), wanted.chain.clone())),
        }
        let add = |rule: &nft::Rule| Command::AddRule(self.table.clone(), Arc::clone(name), rule.clone());
        self.rules.extend(wanted.rules.iter().map(add));
    }

    /// Changes elements of a set.
    pub(super) fn elements(&mut self, set: &Arc<Set>, changes: SetChanges) {
        let SetChanges { delete, add } = changes;
        add.iter().filter_map(ElementRef::target).for_each(|target| self.target(target));
        if !delete.is_empty() {
            self.deletions.push(Command::DeleteElements(self.table.clone(), Arc::clone(set), delete));
        }
        if !add.is_empty() {
            self.additions.push(Command::AddElements(self.table.clone(), Arc::clone(set), add));
        }
    }

    /// Notes that something leads to a chain.
    pub(super) fn target(&mut self, chain: &str) {
        if !self.targets.contains(chain) {
            self.targets.insert(chain.into());
        }
    }

    /// Makes the chains on demand that something leads to what they should be, and those that these lead to. `present` says what the
    /// kernel has of one.
    pub(super) fn chains_on_demand(&mut self, present: impl Fn(&ChainContent) -> Present) {
        let mut open: Vec<Arc<str>> = self.targets.iter().cloned().collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !seen.insert(Arc::clone(&name)) {
                continue;
            }
            if let Some(content) = (self.program.on_demand)(&name) {
                let present = present(&content);
                self.chain(&content, present);
                open.extend(content.targets().cloned());
            }
        }
    }
}

//! Builds a transaction: collects commands by kind, and puts them into order at the end.
//!
//! Every supported kernel accepts this order: the table, deletions of sets that are created again, sets, chains without rules, rules,
//! deletions of elements, additions of elements, and last deletions of what no rule of now looks up: elements, sets and chains. A transaction
//! of its own may carry out these last ones ([`deferred`](super::deferred)).

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Command, Data, Element, ElementRef, Elements, Set, TableName, Value, Verdict};

use super::slot_key;
use crate::table::{ChainContent, StaticRules, VerdictMap};

/// The state of a wanted chain in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Present {
    /// The chain exists with the wanted rules.
    Same,
    /// The chain exists with other rules.
    OtherRules,
    /// The chain exists without rules, perhaps because this transaction deletes them.
    Empty,
    /// The chain does not exist.
    Nothing,
}

/// Elements to delete and to add in one set. An element whose key is in both lists is replaced.
#[derive(Default)]
pub(super) struct SetChanges {
    pub(super) delete: Elements,
    pub(super) add: Elements,
    /// Elements to delete after all additions of the plan: rules of before may still look them up.
    pub(super) surplus: Elements,
}

pub(super) struct Plan<'a> {
    static_rules: &'a StaticRules,
    table: TableName,
    tables: Vec<Command>,
    /// Deletions of sets that are created again with another size, and of the rules that use them.
    detachments: Vec<Command>,
    sets: Vec<Command>,
    chains: Vec<Command>,
    rules: Vec<Command>,
    deletions: Vec<Command>,
    additions: Vec<Command>,
    surplus: Vec<Command>,
    removals: Vec<Command>,
    /// Chains that elements or rules of this plan go to; some of them are chains on demand (shared chains such as `lb-3`).
    targets: BTreeSet<Arc<str>>,
    /// Chains whose rules this plan deletes because they use a set that is created again. A chain is removed from this list when the plan
    /// adds its rules again.
    detached: BTreeSet<Arc<str>>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(static_rules: &'a StaticRules) -> Self {
        Self {
            static_rules,
            table: static_rules.table.name.clone(),
            tables: Vec::new(),
            detachments: Vec::new(),
            sets: Vec::new(),
            chains: Vec::new(),
            rules: Vec::new(),
            deletions: Vec::new(),
            additions: Vec::new(),
            surplus: Vec::new(),
            removals: Vec::new(),
            targets: BTreeSet::new(),
            detached: BTreeSet::new(),
        }
    }

    pub(super) fn into_commands(self) -> Vec<Command> {
        let tables = [self.tables, self.detachments, self.sets, self.chains];
        let rest = [self.rules, self.deletions, self.additions, self.surplus, self.removals];
        tables.into_iter().chain(rest).flatten().collect()
    }

    pub(super) fn delete_table(&mut self) {
        self.tables.push(Command::DeleteTable(self.table.clone()));
    }

    pub(super) fn add_table(&mut self) {
        let table = self.static_rules.table.clone();
        self.tables.push(if self.static_rules.owned { Command::OwnTable(table) } else { Command::AddTable(table) });
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

    pub(super) fn remove_chain(&mut self, name: Arc<str>) {
        self.removals.push(Command::DeleteChain(self.table.clone(), name));
    }

    /// Deletes sets that are too small, after the rules of the chains that use them.
    pub(super) fn detach(&mut self, sets: impl Iterator<Item = Arc<Set>>, chains: BTreeSet<Arc<str>>) {
        for name in &chains {
            self.detachments.push(Command::FlushChain(self.table.clone(), Arc::clone(name)));
        }
        for set in sets {
            self.detachments.push(Command::DeleteSet(self.table.clone(), set));
        }
        self.detached = chains;
    }

    /// The chains whose rules [`Self::detach`] deleted and that were not written again yet.
    pub(super) fn detached(&self) -> BTreeSet<Arc<str>> {
        self.detached.clone()
    }

    /// Deletes the rules of a chain that is not wanted any more.
    pub(super) fn empty_chain(&mut self, name: &Arc<str>) {
        self.rules.push(Command::FlushChain(self.table.clone(), Arc::clone(name)));
    }

    /// Adds a chain, or replaces its rules, unless the kernel has it with the wanted rules.
    pub(super) fn chain(&mut self, wanted: &ChainContent, present: Present) {
        let name = &wanted.chain.name;
        self.targets.extend(wanted.targets().cloned());
        match if self.detached.remove(name) { Present::Empty } else { present } {
            Present::Same => return,
            Present::OtherRules => self.rules.push(Command::FlushChain(self.table.clone(), Arc::clone(name))),
            Present::Empty => {}
            Present::Nothing => self.chains.push(Command::AddChain(self.table.clone(), wanted.chain.clone())),
        }
        for rule in &wanted.rules {
            self.rules.push(Command::AddRule(self.table.clone(), Arc::clone(name), rule.clone()));
        }
    }

    /// Deletes and adds elements of a set.
    pub(super) fn elements(&mut self, set: &Arc<Set>, changes: SetChanges) {
        let SetChanges { delete, add, surplus } = changes;
        for target in add.iter().filter_map(ElementRef::target) {
            self.target(target);
        }
        if !delete.is_empty() {
            self.deletions.push(Command::DeleteElements(self.table.clone(), Arc::clone(set), delete));
        }
        if !add.is_empty() {
            self.additions.push(Command::AddElements(self.table.clone(), Arc::clone(set), add));
        }
        if !surplus.is_empty() {
            self.surplus.push(Command::DeleteElements(self.table.clone(), Arc::clone(set), surplus));
        }
    }

    /// Changes a map from numbers to verdicts; `present` has its present verdicts by number.
    pub(super) fn verdict_map(&mut self, verdict_map: &VerdictMap, present: &[Option<&Verdict>]) {
        self.elements(&verdict_map.set, verdict_map_changes(verdict_map, present));
    }

    /// Records that an element or a rule goes to a chain.
    pub(super) fn target(&mut self, chain: &str) {
        if !self.targets.contains(chain) {
            self.targets.insert(chain.into());
        }
    }

    /// Adds or corrects each chain on demand (such as `masq-lb-3`) that an element or a rule of this plan goes to, and the chains on demand
    /// that their rules go to (`lb-3`). `present` gives the state of a chain in the kernel.
    pub(super) fn chains_on_demand(&mut self, present: impl Fn(&ChainContent) -> Present) {
        let mut open: Vec<Arc<str>> = self.targets.iter().cloned().collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !seen.insert(Arc::clone(&name)) {
                continue;
            }
            if let Some(content) = self.static_rules.on_demand.content(&name) {
                let present = present(&content);
                self.chain(&content, present);
                open.extend(content.targets().cloned());
            }
        }
    }
}

/// The changes from the present verdicts of a map, by number, to the wanted ones.
fn verdict_map_changes(verdict_map: &VerdictMap, present: &[Option<&Verdict>]) -> SetChanges {
    let mut changes = SetChanges::default();
    for number in 0..present.len().max(verdict_map.verdicts.len()) {
        let (before, now) = (present.get(number).copied().flatten(), verdict_map.verdicts.get(number));
        if before != now {
            if let Some(before) = before {
                changes.delete.push(&numbered(number, before));
            }
            if let Some(now) = now {
                changes.add.push(&numbered(number, now));
            }
        }
    }
    changes
}

/// An element of a map from numbers to verdicts.
pub(super) fn numbered(number: usize, verdict: &Verdict) -> Element {
    Element::mapping(slot_key(&Data::EMPTY, number), Value::Verdict(verdict.clone()))
}

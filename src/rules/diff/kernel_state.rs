//! The state of the kernel's table that neither the static rules nor the records (the objects of each Service and of the node) have: the
//! size of each set, the chains on demand, and chains without rules that wait to be deleted.
//!
//! Updated by each command that the kernel carried out, and built again from the table of each comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nft::{Command, TableDump};

use super::record::Record;
use crate::table::StaticRules;

#[derive(Debug)]
pub(super) struct KernelState {
    /// The size of each set of the static rules, by the set's number; `None` if the set has no size or does not exist.
    sizes: Vec<Option<u32>>,
    /// The chains on demand (shared chains such as `lb-3`) that exist. They stay when no element goes to them any more, because they are
    /// few and may be needed again.
    on_demand: BTreeSet<Arc<str>>,
    /// Chains without rules that no record has; the value is true if `second_passed` was called since the chain became empty.
    emptied: BTreeMap<Arc<str>, bool>,
}

/// Selects the chains without rules that a transaction deletes. Kernels before 6.2 keep an element's reference to its chain for a moment
/// after the element is deleted, so a chain cannot be deleted in the transaction that deletes its rules (F8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// No chains.
    Nothing,
    /// Chains that were without rules at the last call of `second_passed`.
    EmptyForASecond,
    /// All chains that were empty before this transaction.
    AllEmpty,
}

impl KernelState {
    pub(super) fn new(static_rules: &StaticRules) -> Self {
        Self { sizes: vec![None; static_rules.sets.len()], on_demand: BTreeSet::new(), emptied: BTreeMap::new() }
    }

    /// The size that a set of the static rules has in the kernel; `None` if it has no size or does not exist.
    pub(super) fn size(&self, set: u16) -> Option<u32> {
        self.sizes[usize::from(set)]
    }

    /// Whether a chain on demand (such as `lb-3`) exists.
    pub(super) fn has_on_demand(&self, chain: &str) -> bool {
        self.on_demand.contains(chain)
    }

    pub(super) fn on_demand(&self) -> impl Iterator<Item = &Arc<str>> {
        self.on_demand.iter()
    }

    /// Whether a chain exists without rules and no committed record has it.
    pub(super) fn is_emptied(&self, chain: &str) -> bool {
        self.emptied.contains_key(chain)
    }

    pub(super) fn has_emptied(&self) -> bool {
        !self.emptied.is_empty()
    }

    /// The chains without rules that a transaction with this setting deletes.
    pub(super) fn to_delete(&self, collect: Collect) -> Vec<&Arc<str>> {
        let mut names = Vec::new();
        for (name, is_long) in &self.emptied {
            let is_meant = match collect {
                Collect::Nothing => false,
                Collect::EmptyForASecond => *is_long,
                Collect::AllEmpty => true,
            };
            if is_meant {
                names.push(name);
            }
        }
        names
    }

    /// Marks all chains that wait to be deleted as empty for a second.
    pub(super) fn second_passed(&mut self) {
        for is_long in self.emptied.values_mut() {
            *is_long = true;
        }
    }

    /// Updates the chains without rules after an owner's record `before` was replaced by `now`: adds the chains that only `before` has.
    pub(super) fn replace(&mut self, before: Option<&Record>, now: &Record) {
        for content in before.map_or(&[][..], Record::chains) {
            if now.chain(&content.chain.name).is_none() {
                self.emptied.insert(Arc::clone(&content.chain.name), false);
            }
        }
        for content in now.chains() {
            self.emptied.remove(&content.chain.name);
        }
    }

    /// Builds the state again from a table that was read. `emptied` are its chains that no record has; they have no rules, or the transaction
    /// deleted their rules.
    pub(super) fn read(&mut self, static_rules: &StaticRules, dump: Option<&TableDump>, emptied: Vec<Arc<str>>) {
        let mut before = std::mem::replace(self, Self::new(static_rules));
        for name in emptied {
            let is_long = before.emptied.remove(&name).unwrap_or(false);
            self.emptied.insert(name, is_long);
        }
        let Some(dump) = dump else { return };
        for (number, set) in static_rules.sets.iter().enumerate() {
            if let Some((present, _)) = dump.sets.get(&set.name) {
                self.sizes[number] = present.size;
            }
        }
        for name in dump.chains.keys() {
            if static_rules.on_demand.content(name).is_some() {
                self.on_demand.insert(Arc::clone(name));
            }
        }
    }

    /// Updates the state after the kernel has carried out a command.
    pub(super) fn apply(&mut self, static_rules: &StaticRules, command: &Command) {
        match command {
            Command::DeleteTable(_) => *self = Self::new(static_rules),
            Command::AddChain(_, chain) if static_rules.on_demand.content(&chain.name).is_some() => {
                self.on_demand.insert(Arc::clone(&chain.name));
            }
            Command::FlushChain(_, name) => {
                if let Some(is_long) = self.emptied.get_mut(name) {
                    *is_long = false;
                }
            }
            Command::DeleteChain(_, name) => {
                self.emptied.remove(name);
            }
            Command::AddSet(_, set) => {
                if let Some(number) = static_rules.sets.iter().position(|known| known.name == set.name) {
                    self.sizes[number] = set.size;
                }
            }
            _ => {}
        }
    }
}

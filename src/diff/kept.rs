//! What the kernel holds in a table beside the fixed part and the records: how large each set may grow, chains on demand, and chains
//! that were emptied and wait to be deleted.
//!
//! Changed by commands that the kernel carried out, and made anew from what is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nft::{Command, TableDump};

use super::record::Record;
use crate::table::Program;

#[derive(Debug)]
pub(super) struct Kept {
    /// The size of each set of the program, by the set's number; `None` where the set has no size or does not exist.
    sizes: Vec<Option<u32>>,
    /// The chains on demand that are there. They stay when no element leads to them any more: they are few, and may be needed again.
    on_demand: BTreeSet<Arc<str>>,
    /// Chains without rules that no record has, and whether they have been empty for a second.
    emptied: BTreeMap<Arc<str>, bool>,
}

/// Which emptied chains a transaction deletes. Kernels before 6.2 keep an element's reference to its chain for a moment after the
/// element is gone, so a chain cannot go in the transaction that empties it (F8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// None.
    Nothing,
    /// Those that were empty at the last call of `second_passed`.
    EmptyForASecond,
    /// All that were empty before this transaction.
    AllEmpty,
}

impl Kept {
    pub(super) fn new(program: &Program) -> Self {
        Self { sizes: vec![None; program.sets.len()], on_demand: BTreeSet::new(), emptied: BTreeMap::new() }
    }

    /// The size of a set of the program.
    pub(super) fn size(&self, set: u16) -> Option<u32> {
        self.sizes[usize::from(set)]
    }

    /// Whether a chain on demand is there.
    pub(super) fn has_on_demand(&self, chain: &str) -> bool {
        self.on_demand.contains(chain)
    }

    pub(super) fn on_demand(&self) -> impl Iterator<Item = &Arc<str>> {
        self.on_demand.iter()
    }

    /// Whether a chain is there without rules, and no committed record has it.
    pub(super) fn is_emptied(&self, chain: &str) -> bool {
        self.emptied.contains_key(chain)
    }

    pub(super) fn has_emptied(&self) -> bool {
        !self.emptied.is_empty()
    }

    /// Of these chains, or of all that wait, those that a transaction deletes.
    pub(super) fn to_delete(&self, collect: Collect) -> impl Iterator<Item = &Arc<str>> {
        let is_meant = move |long: bool| match collect {
            Collect::Nothing => false,
            Collect::EmptyForASecond => long,
            Collect::AllEmpty => true,
        };
        self.emptied.iter().filter(move |(_, long)| is_meant(**long)).map(|(name, _)| name)
    }

    /// Notes that a second has passed.
    pub(super) fn second_passed(&mut self) {
        self.emptied.values_mut().for_each(|long| *long = true);
    }

    /// An owner's record comes in the place of the one before: the chains that it does not have any more are emptied.
    pub(super) fn replace(&mut self, before: Option<&Record>, now: &Record) {
        let before = before.into_iter().flat_map(Record::chains).map(|content| &content.chain.name);
        let gone = before.filter(|name| now.chain(name).is_none());
        self.emptied.extend(gone.map(|name| (Arc::clone(name), false)));
        now.chains().iter().for_each(|content| {
            self.emptied.remove(&content.chain.name);
        });
    }

    /// The table was read, and is as it should be but for these chains, which are or will be empty.
    pub(super) fn read(&mut self, program: &Program, dump: Option<&TableDump>, emptied: Vec<Arc<str>>) {
        let size = |name: &str| dump?.sets.get(name)?.0.size;
        self.sizes = program.sets.iter().map(|set| size(&set.name)).collect();
        let names = dump.into_iter().flat_map(|dump| dump.chains.keys());
        self.on_demand = names.filter(|name| (program.on_demand)(name).is_some()).cloned().collect();
        let before = std::mem::take(&mut self.emptied);
        let was_empty = |name: &Arc<str>| before.get(name).copied().unwrap_or(false);
        self.emptied = emptied.into_iter().map(|name| (Arc::clone(&name), was_empty(&name))).collect();
    }

    /// The kernel has carried out a command.
    pub(super) fn apply(&mut self, program: &Program, command: &Command) {
        match command {
            Command::DeleteTable(_) => *self = Self::new(program),
            Command::AddChain(_, chain) if (program.on_demand)(&chain.name).is_some() => {
                self.on_demand.insert(Arc::clone(&chain.name));
            }
            Command::FlushChain(_, name) => {
                if let Some(long) = self.emptied.get_mut(name) {
                    *long = false;
                }
            }
            Command::DeleteChain(_, name) => {
                self.emptied.remove(name);
            }
            Command::AddSet(_, set) => {
                if let Some(number) = program.sets.iter().position(|known| known.name == set.name) {
                    self.sizes[number] = set.size;
                }
            }
            _ => {}
        }
    }
}

//! Keeps the table of the fast path as the configuration wants it: its interfaces come and go with those of the node.
//!
//! Takes what `--flowtable` says, looks at the node's interfaces and at the kernel's table once in a while, and changes what differs.
//! A kernel that has no flowtables ends it, and nothing else: connections then go on through all rules.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nft::{Command, CommitError, Flowtable, ObjectKind, ReadError, TableContent, TableDump};
use tracing::{info, warn};

use crate::config::file::Flowtable as Wanted;
use crate::kernel::FlowtableKernel;
use crate::ruleset::fastpath;

/// How often the interfaces and the table are looked at, as the addresses of node ports are.
pub(crate) const MOMENT: Duration = Duration::from_secs(1);

const ENOENT: i32 = 2;

/// Keeps the table.
pub(crate) struct Keeper<K> {
    wanted: Wanted,
    kernel: K,
    /// The generation and the interfaces as of the last look that left nothing to do.
    kept: Option<(u32, Vec<Arc<str>>)>,
    /// The last failure that was logged; each is told once.
    told: Option<String>,
}

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Look again in a moment.
    Again,
    /// This kernel has no flowtables; no further look is of use.
    Unsupported,
}

/// Why the table is not as it should be.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot list the interfaces: {0}")]
    Interfaces(std::io::Error),
    #[error("cannot read the table: {0}")]
    Read(ReadError),
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl<K: FlowtableKernel> Keeper<K> {
    /// Knows nothing of the kernel yet.
    pub(crate) fn new(wanted: Wanted, kernel: K) -> Self {
        Self { wanted, kernel, kept: None, told: None }
    }

    /// Makes the table what it should be. A failure is logged, once, and tried again by the next look.
    pub(crate) fn look(&mut self) -> Look {
        let failure = match self.keep() {
            Ok(()) => {
                self.told = None;
                return Look::Again;
            }
            Err(failure) => failure,
        };
        if self.is_unsupported(&failure) {
            info!(
                "--flowtable={}: this kernel has no flowtables, so established connections go through all rules as without \
                 it; load or build nf_flow_table, nf_flow_table_inet and nft_flow_offload ({failure})",
                self.wanted
            );
            return Look::Unsupported;
        }
        let text = failure.to_string();
        if self.told.as_ref() != Some(&text) {
            warn!("fast path: {text}; the Services' rules are not concerned");
            self.told = Some(text);
        }
        Look::Again
    }

    fn keep(&mut self) -> Result<(), Failure> {
        let devices = self.devices().map_err(Failure::Interfaces)?;
        let generation = self.kernel.generation().map_err(Failure::Read)?;
        if self.kept.as_ref().is_some_and(|(then, had)| *then == generation && *had == devices) {
            return Ok(());
        }
        let present = match self.kernel.read(&fastpath::table()) {
            Ok(present) => present,
            // Somebody's flowtable in our table, of a kind that we do not make.
            Err(ReadError::Decode(_)) => Some(unreadable()),
            Err(error) => return Err(Failure::Read(error)),
        };
        let commands = changes(present.as_ref(), &fastpath::content(devices.clone()));
        if !commands.is_empty() {
            self.kernel.commit(&commands)?;
            info!("fast path: established connections between {} interfaces go past the rules", devices.len());
        }
        self.kept = Some((self.kernel.generation().map_err(Failure::Read)?, devices));
        Ok(())
    }

    /// The interfaces that should be in the flowtable, sorted.
    fn devices(&mut self) -> std::io::Result<Vec<Arc<str>>> {
        Ok(chosen(&self.wanted, self.kernel.interfaces()?))
    }

    /// Whether the kernel refuses because it has no flowtables. It says the same of an interface that went away in this moment.
    fn is_unsupported(&mut self, failure: &Failure) -> bool {
        let Failure::Commit(CommitError::Refused(refusals)) = failure else { return false };
        let lacking = refusals.iter().all(|refusal| refusal.is_unsupported() || refusal.errno == ENOENT);
        if self.kept.is_some() || !lacking {
            return false;
        }
        let empty = fastpath::content(Vec::new());
        // Whatever is there by that name goes first: a second try must not add the rules twice.
        let mut commands = vec![Command::AddTable(empty.table.clone()), Command::DeleteTable(empty.table.name.clone())];
        commands.extend(changes(None, &empty));
        match self.kernel.commit(&commands) {
            Err(CommitError::Refused(_)) => true,
            // The table without interfaces is there now; the next look adds them.
            Ok(()) | Err(_) => false,
        }
    }
}

/// The table as far as the configuration alone says it: with the interfaces that are named, as if all of them existed. `None` when
/// there shall be no fast path.
#[must_use]
pub(crate) fn table(wanted: &Wanted) -> Option<TableContent> {
    let named: BTreeSet<Arc<str>> = match wanted {
        Wanted::Off => return None,
        Wanted::Auto => BTreeSet::new(),
        Wanted::Interfaces(names) => names.iter().map(|name| name.as_str().into()).collect(),
    };
    Some(fastpath::content(named.into_iter().collect()))
}

/// Those of the interfaces that take part.
fn chosen(wanted: &Wanted, mut present: Vec<Arc<str>>) -> Vec<Arc<str>> {
    match wanted {
        Wanted::Off => present.clear(),
        Wanted::Auto => {}
        Wanted::Interfaces(names) => present.retain(|device| names.iter().any(|name| **name == **device)),
    }
    present
}

/// What is in our table but cannot be read: something that differs from everything wanted.
fn unreadable() -> (TableDump, Vec<Flowtable>) {
    let table = fastpath::content(Vec::new()).table;
    (TableDump::empty(table), Vec::new())
}

/// The commands from what is present to what is wanted. Interfaces are added to a flowtable that is there; for everything else the
/// table is made anew, which costs the flows in it one packet each through the rules.
fn changes(present: Option<&(TableDump, Vec<Flowtable>)>, wanted: &TableContent) -> Vec<Command> {
    let name = &wanted.table.name;
    let [flowtable] = &wanted.flowtables[..] else { return Vec::new() };
    if let Some((dump, flowtables)) = present
        && is_as(dump, wanted)
        && let [there] = &flowtables[..]
        && (&there.name, there.priority) == (&flowtable.name, flowtable.priority)
    {
        let there: BTreeSet<_> = there.devices.iter().cloned().collect();
        let should: BTreeSet<_> = flowtable.devices.iter().cloned().collect();
        if there.is_subset(&should) {
            let missing: Vec<_> = should.difference(&there).cloned().collect();
            let add = |devices| Command::AddFlowtable(name.clone(), fastpath::flowtable(devices));
            return if missing.is_empty() { Vec::new() } else { vec![add(missing)] };
        }
    }
    let mut commands = Vec::new();
    commands.extend(present.map(|_| Command::DeleteTable(name.clone())));
    commands.push(Command::AddTable(wanted.table.clone()));
    commands.push(Command::AddFlowtable(name.clone(), flowtable.clone()));
    for (chain, rules) in &wanted.chains {
        commands.push(Command::AddChain(name.clone(), chain.clone()));
        let rules = rules.iter().cloned();
        commands.extend(rules.map(|rule| Command::AddRule(name.clone(), Arc::clone(&chain.name), rule)));
    }
    commands
}

/// Whether the table is the wanted one, but for its flowtables.
fn is_as(dump: &TableDump, wanted: &TableContent) -> bool {
    let same = |(chain, rules): &(nft::Chain, Vec<nft::Rule>)| {
        let rules: Vec<_> = rules.iter().map(|rule| rule.to_dump(wanted.table.name.family)).collect();
        dump.chains.get(&chain.name) == Some(&(chain.clone(), rules))
    };
    dump.unreadable.is_empty()
        && !dump.dormant
        && dump.unknown_flags == 0
        && dump.objects.iter().all(|object| object.kind == ObjectKind::Flowtable)
        && dump.sets.is_empty()
        && dump.table == wanted.table
        && dump.chains.len() == wanted.chains.len()
        && wanted.chains.iter().all(same)
}

#[cfg(test)]
mod tests;

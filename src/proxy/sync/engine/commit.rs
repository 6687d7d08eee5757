//! Commits the difference between what the kernel holds and what the tables should hold, and informs the journal and the observers.
//!
//! Takes the difference as commands; returns a [`Report`] of what the kernel committed. The commands are one transaction, unless they fill
//! large tables that no packet passes yet, or replace the rules of another layout.
//!
//! Order: nothing is reported before the kernel has answered. The journal and the observers compare the old records with the new ones, so
//! they come before [`Tables::committed`](super::Tables::committed), which replaces the old records.

use std::time::{Duration, Instant, SystemTime};

use nft::{Command, CommitError, Committed, ReadError, Refusal};

use super::{Engine, Report, Timing};
use crate::sync::failure::SyncError;
use crate::sync::tables::{StaleClients, Transactions};
use node::kernel::Kernel;

/// The result of the last of the transactions that are carried out together; `committed` is `None` if there was nothing to commit.
struct Done {
    committed: Option<Committed>,
    commands: Vec<Command>,
    /// Session-affinity clients that are still to be deleted.
    left: Vec<StaleClients>,
}

impl<K: Kernel> Engine<K> {
    /// Reads what the kernel holds, unless it is known already, and commits the difference between that and what the kernel should hold.
    pub(super) fn bring_about(&mut self, after_pause: bool) -> Result<Report, Failed> {
        let start = Instant::now();
        if !self.tables.known() {
            self.kernel.reading();
            self.tables.read_back(&mut self.kernel)?;
            self.tables.give_way(self.quarantine.names());
        }
        let read = Instant::now();
        let own = self.own_changes(after_pause);
        let transactions = self.tables.transactions(after_pause);
        let repaired = is_repair(own.as_deref(), &transactions);
        if repaired {
            self.kernel.changed_by_others();
        }
        let computed = Instant::now();
        let mut report = self.carry_out(transactions, repaired)?;
        report.timing = Timing { reading: read - start, computing: computed - read, ..Timing::default() };
        Ok(report)
    }

    /// Returns the commands that would be needed if no other program had changed the tables; `None` if there is no sign that another
    /// program changed them, or if those commands cannot be determined.
    pub(super) fn own_changes(&self, after_pause: bool) -> Option<Vec<Command>> {
        self.may_have_changed.then(|| self.tables.own_changes(after_pause)).flatten()
    }

    /// Commits `transactions`, and takes over their result. They are the difference between what the kernel holds, which must be known, and
    /// what it should hold. If the second or a later transaction fails, the kernel holds a part of the difference.
    pub(super) fn carry_out(&mut self, transactions: Transactions, repaired: bool) -> Result<Report, Failed> {
        let mut report = Report { full: self.tables.compares_everything(), repaired, ..Report::default() };
        let Transactions { mut parts, later } = transactions;
        let stale = self.tables.stale_clients(&mut self.kernel, &parts, Instant::now());
        let start = Instant::now();
        let last = parts.pop_back().unwrap_or_default();
        let mut parts = Vec::from(parts);
        let (committed, failed) = self.kernel.commit_each(&parts);
        if let Some(error) = failed {
            return Err(self.not_committed(error, parts.swap_remove(committed.len())));
        }
        committed.into_iter().for_each(|committed| report.add_committed(committed));
        let Done { committed, commands, left } = self.commit(last, stale)?;
        committed.into_iter().for_each(|committed| report.add_committed(committed));
        self.commit_later(&later, &mut report)?;
        let several = !parts.is_empty() || !later.is_empty();
        let commands =
            if several { parts.into_iter().flatten().chain(commands).chain(later).collect() } else { commands };
        report.kernel_time = if report.committed.is_some() { start.elapsed() } else { Duration::ZERO };
        self.journal.committed(&self.tables, &commands, repaired);
        let now = Instant::now();
        self.observers.transaction(&self.state, &self.tables, commands.iter().any(deletes_clients), now);
        self.tables.committed(&commands, now);
        report.programmed = self.pending.succeeded(SystemTime::now());
        (report.added, report.removed) = count(&commands);
        self.finish(&left, &mut report);
        Ok(report)
    }

    /// Commits the deletion of what only the rules of before looked up, after the last packet has passed them.
    pub(super) fn commit_later(&mut self, later: &[Command], report: &mut Report) -> Result<(), Failed> {
        if later.is_empty() {
            return Ok(());
        }
        self.kernel.packets_passed();
        let committed = self.kernel.commit(later).map_err(|error| self.not_committed(error, later.to_vec()))?;
        report.add_committed(committed);
        Ok(())
    }

    /// Commits commands and, in the same transaction, the deletion of stale session-affinity clients as far as the kernel accepts it.
    fn commit(&mut self, mut commands: Vec<Command>, stale: Vec<StaleClients>) -> Result<Done, Failed> {
        let own = commands.len();
        let mut forgetting = self.forgetting(stale);
        loop {
            commands.truncate(own);
            commands.extend(forgetting.commands());
            if commands.is_empty() {
                return Ok(Done { committed: None, commands, left: forgetting.left() });
            }
            let refusals = match self.kernel.commit(&commands) {
                Ok(committed) => return Ok(Done { committed: Some(committed), commands, left: forgetting.left() }),
                Err(CommitError::Refused(refusals)) => refusals,
                Err(error) => return Err(self.not_committed(error, commands)),
            };
            let is_about_clients = |refusal: &Refusal| refusal.command.is_some_and(|command| command >= own);
            let (about_clients, others): (Vec<_>, Vec<_>) = refusals.into_iter().partition(is_about_clients);
            if !others.is_empty() {
                commands.truncate(own);
                return Err(self.not_committed(CommitError::Refused(others), commands));
            }
            forgetting = self.forgetting_less(forgetting, &commands, own, &about_clients);
        }
    }

    fn not_committed(&mut self, error: CommitError, commands: Vec<Command>) -> Failed {
        self.tables.forget();
        Failed::Commit(error, commands)
    }
}

/// Why the tables could not be brought up to date.
pub(super) enum Failed {
    /// The kernel did not commit these commands, or did not confirm that it did.
    Commit(CommitError, Vec<Command>),
    /// The tables could not be read.
    Read(ReadError),
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<Failed> for SyncError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Commit(error, commands) => Self::commit(error, &commands),
            Failed::Read(error) => Self::Read(error),
        }
    }
}

/// Returns whether the commit failed because this kernel does not support owned tables that outlive their owner.
pub(super) fn cannot_own(failed: &Failed) -> bool {
    let Failed::Commit(CommitError::Refused(refusals), commands) = failed else { return false };
    let command = |refusal: &Refusal| refusal.command.and_then(|index| commands.get(index));
    refusals.iter().any(|refusal| refusal.is_unsupported() && matches!(command(refusal), Some(Command::OwnTable(_))))
}

/// Whether a command deletes clients that session affinity remembers.
fn deletes_clients(command: &Command) -> bool {
    matches!(command, Command::DeleteElements(_, set, _) | Command::DestroyElements(_, set, _) if set.flags.dynamic)
}

/// Returns whether the transactions do more than `own`, the commands that the cluster's changes need, and so repair changes of another
/// program.
pub(super) fn is_repair(own: Option<&[Command]>, transactions: &Transactions) -> bool {
    let Transactions { parts, later } = transactions;
    own.is_some_and(|own| parts.iter().chain([later]).map(|commands| work(commands)).sum::<usize>() > work(own))
}

/// Returns the amount of work in commands: the number of commands plus the number of their elements.
fn work(commands: &[Command]) -> usize {
    commands.iter().map(|command| 1 + command.elements()).sum()
}

fn count(commands: &[Command]) -> (usize, usize) {
    commands.iter().fold((0, 0), |(added, removed), command| match command {
        Command::AddElements(_, _, list) => (added + list.len(), removed),
        Command::DeleteElements(_, _, list) | Command::DestroyElements(_, _, list) => (added, removed + list.len()),
        _ => (added, removed),
    })
}

//! Makes the entries of the history ([`crate::history`]) from what a sync did.

use std::time::{Duration, Instant, SystemTime};

use super::Sync;
use super::engine::Report;
use super::failure::SyncError;
use super::journal::SyncSummary;
use super::repairs::Unlogged;
use crate::history;
use inspect::history::{CommitOutcome, EntryKind, Repair, SyncRun, Trigger, TriggerKind, cut};
use node::kernel::Kernel;

impl<K: Kernel> Sync<K> {
    /// Enters into the history what a sync changed, or that it failed. `is_first` says that no earlier sync succeeded.
    pub(super) fn tell(&mut self, outcome: Result<&Report, &SyncError>, took: Duration, is_first: bool) {
        let SyncSummary { changes, unlisted, repair, reason } = self.engine.journal.take();
        let trigger = match (reason, &changes[..]) {
            _ if is_first => Trigger::of(TriggerKind::Start),
            (Some(reason), _) => Trigger::of(reason),
            (None, [only]) if unlisted == 0 => only.trigger.clone(),
            (None, [first, ..]) => Trigger::of(first.trigger.kind),
            (None, []) => Trigger::of(TriggerKind::Retry),
        };
        let has_changes = !changes.is_empty();
        changes.into_iter().for_each(|change| self.enter(EntryKind::Service(Box::new(change)), took));
        let run = SyncRun { unlisted, ..run(outcome, trigger, took) };
        let is_of_node = matches!(
            run.trigger.kind,
            TriggerKind::Node | TriggerKind::Addresses | TriggerKind::ServiceCidr | TriggerKind::Takeover
        );
        let changed_more = is_of_node && !has_changes && outcome.is_ok_and(|report| report.committed.is_some());
        if is_first || unlisted > 0 || outcome.is_err() || changed_more {
            self.enter(EntryKind::Sync(run.clone()), took);
        }
        if outcome.is_ok() {
            let (elements_added, elements_removed) = (run.elements_added, run.elements_removed);
            let repair = repair.map(|repair| Repair { elements_added, elements_removed, ..repair });
            if repair.is_some() && self.repairs.is_nameless() {
                self.foreign_change(Instant::now());
            }
            // A repair whose foreign write was not noticed is entered here; all other repairs are entered together with the log record
            // about the foreign write.
            let unnoticed = self.repairs.done(repair);
            unnoticed.into_iter().for_each(|repair| self.enter(EntryKind::Repair(repair), took));
        }
    }

    /// Enters the repairs of `unlogged` into the history. Called when the log record about them is written.
    pub(super) fn tell_repairs(&mut self, unlogged: &mut Unlogged) {
        let found = &unlogged.found;
        if let Some(repair) = unlogged.repair.take() {
            let found = found.iter().map(|found| cut(found.clone())).collect();
            self.enter(EntryKind::Repair(Repair { found, ..repair }), Duration::ZERO);
        }
    }

    /// Enters something that a sync of duration `took` did into the history, and logs it.
    fn enter(&self, what: EntryKind, took: Duration) {
        let entry = self.changes.push(SystemTime::now(), Some(self.syncs), what);
        history::log(&entry, took);
    }
}

/// Summarises a sync: its trigger, counts, duration and result.
fn run(outcome: Result<&Report, &SyncError>, trigger: Trigger, took: Duration) -> SyncRun {
    let report = outcome.ok();
    SyncRun {
        trigger,
        services: report.map_or(0, |report| report.services),
        unlisted: 0,
        full: report.is_none_or(|report| report.full),
        elements_added: report.map_or(0, |report| report.added),
        elements_removed: report.map_or(0, |report| report.removed),
        latency: Some(took),
        result: if outcome.is_ok() { CommitOutcome::Committed } else { CommitOutcome::Refused },
        error: outcome.err().map(|error| cut(error.to_string())),
    }
}

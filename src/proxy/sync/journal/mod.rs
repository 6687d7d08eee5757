//! What is reported of each sync: which Services changed, from what to what, and because of which object.
//!
//! Takes what each event changed, and the open records of the tables before they become the committed ones or after they were
//! refused; gives [`Change`]s. Nothing here has an influence on what is written.
//!
//! Invariants: nothing is kept for a Service that does not change; what is kept and what a sync costs is bounded by [`NOTED`] and
//! [`LISTED`], whatever changes. The first sync, which makes everything, is reported by its numbers only.

mod difference;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldhash::HashMap;
use nft::Command;

use super::failure::SyncError;
use super::tables::Tables;
use crate::history;
use inspect::history::{Action, Change, CommitOutcome, Endpoints, FieldChange, Repair, Trigger, TriggerKind, cut};
use rules::model::{self, ObjectName, State};

/// Services whose changes one sync lists; of the others the number is reported.
const LISTED: usize = 100;
/// Services of which is noted between two syncs what changed them.
const NOTED: usize = 1024;
/// Elements of a repair beyond which its Services are not looked for: it is nearly the whole table.
const NAMED: usize = 4096;

/// Why a Service is to be computed anew.
#[derive(Debug)]
struct Note {
    trigger: Trigger,
    /// When the first event about it was taken over.
    since: Instant,
    /// When the cluster changed, as the slice's annotation says: nanoseconds since the epoch.
    cluster: Option<i64>,
    /// What is different in the Service itself since the last commit.
    fields: Vec<FieldChange>,
    /// It was told that the last change was refused.
    is_told: bool,
}

/// What is known of the sync under way and of what led to it.
#[derive(Debug, Default)]
pub(super) struct Journal {
    notes: HashMap<ObjectName, Note>,
    /// What changed more than one Service.
    reason: Option<TriggerKind>,
    changes: Vec<Change>,
    /// Services that changed and are not among these.
    unlisted: usize,
    repair: Option<Repair>,
    /// A sync was committed.
    began: bool,
    /// The last sync failed.
    has_failed: bool,
    /// The sync before this one failed.
    retries: bool,
}

/// What is to be told of a sync.
#[derive(Debug)]
pub(super) struct SyncSummary {
    pub(super) changes: Vec<Change>,
    pub(super) unlisted: usize,
    pub(super) repair: Option<Repair>,
    /// What made the sync necessary, where that is more than single Services.
    pub(super) reason: Option<TriggerKind>,
}

impl Journal {
    /// Notes a change, which the state knows already.
    pub(super) fn note(&mut self, state: &State, change: &model::Change, now: Instant) {
        if !state.is_complete() {
            return;
        }
        let (mut fields, mut cluster) = (Vec::new(), None);
        let (service, kind, object) = match change {
            model::Change::Slice { name, before } => {
                let now = state.slice(name);
                cluster = now.and_then(|slice| slice.trigger.0);
                let Some(slice) = now.or(before.as_ref()) else { return };
                (&slice.service, TriggerKind::Slice, name)
            }
            model::Change::Service { name, before } => {
                if let (Some(before), Some(now)) = (before, state.service(name)) {
                    fields = history::between(before, now);
                }
                (name, TriggerKind::Service, name)
            }
            model::Change::Other => return,
        };
        if let Some(note) = self.notes.get_mut(service) {
            history::merge(&mut note.fields, fields);
            note.is_told = false;
        } else if self.notes.len() < NOTED {
            let trigger = Trigger { kind, object: Some(object.clone()) };
            self.notes.insert(service.clone(), Note { trigger, since: now, cluster, fields, is_told: false });
        }
    }

    /// Notes what makes a sync necessary besides events about single Services; the first reason is reported.
    pub(super) fn because(&mut self, reason: TriggerKind) {
        self.reason.get_or_insert(reason);
    }

    /// A sync begins.
    pub(super) fn begin(&mut self) {
        self.changes.clear();
        self.unlisted = 0;
        self.repair = None;
        self.retries = self.has_failed;
    }

    /// The kernel carried out these commands, and the tables do not know it yet. `repaired` says that some of them put right what another
    /// program had changed.
    pub(super) fn committed(&mut self, tables: &Tables, commands: &[Command], repaired: bool) {
        if self.began {
            self.collect(tables, CommitOutcome::Committed, None);
            if repaired {
                self.repaired(tables, commands);
            }
        }
    }

    /// A sync ended. Of several failures each tells what none before it told.
    pub(super) fn ended(&mut self, tables: &Tables, error: Option<&SyncError>) {
        let Some(error) = error else {
            (self.began, self.has_failed) = (true, false);
            return;
        };
        if self.began {
            self.collect(tables, CommitOutcome::Refused, Some(&cut(error.to_string())));
            self.notes.values_mut().for_each(|note| note.is_told = true);
        }
        self.has_failed = true;
    }

    /// A Service was left out.
    pub(super) fn left_out(&mut self, service: &ObjectName, result: CommitOutcome, reason: &str) {
        if self.changes.len() < LISTED {
            let change = self.change(service, Action::Kept, result, Some(&cut(reason.to_owned())));
            self.changes.push(change);
        } else {
            self.unlisted += 1;
        }
    }

    /// Whether a sync was committed.
    pub(super) fn has_begun(&self) -> bool {
        self.began
    }

    /// What is to be told of the sync that ended. What led to a sync that failed is kept for the next one.
    pub(super) fn take(&mut self) -> SyncSummary {
        let reason = self.reason.or(self.retries.then_some(TriggerKind::Retry));
        if !self.has_failed {
            self.notes.clear();
            self.reason = None;
        }
        SyncSummary {
            changes: std::mem::take(&mut self.changes),
            unlisted: std::mem::take(&mut self.unlisted),
            repair: self.repair.take(),
            reason,
        }
    }

    /// What made a Service change of which no event told anything: something larger, a failure, or another Service.
    fn reason(&self) -> TriggerKind {
        let other = if self.retries { TriggerKind::Retry } else { TriggerKind::Claim };
        self.reason.unwrap_or(other)
    }

    /// Adds what differs between the open and the committed records.
    fn collect(&mut self, tables: &Tables, result: CommitOutcome, error: Option<&str>) {
        tables.each_changed(|owner, name, table, is_first| {
            if result == CommitOutcome::Refused && self.is_told(name) {
                return;
            }
            let is_it = |change: &Change| change.service == *name && change.result == result;
            let known = if is_first { None } else { self.changes.iter().position(is_it) };
            if known.is_none() && self.changes.len() >= LISTED {
                self.unlisted += usize::from(is_first);
                return;
            }
            let index = known.unwrap_or_else(|| {
                let action = match (result, tables.presence(owner)) {
                    (CommitOutcome::Committed, (false, _)) => Action::Added,
                    (CommitOutcome::Committed, (true, false)) => Action::Removed,
                    (CommitOutcome::Committed, (true, true)) => Action::Changed,
                    _ => Action::Kept,
                };
                self.changes.push(self.change(name, action, result, error));
                self.changes.len() - 1
            });
            difference::add(&mut self.changes[index], table);
        });
    }

    /// Whether the last change of a Service was told as refused.
    fn is_told(&self, name: &ObjectName) -> bool {
        self.notes.get(name).map_or(self.retries, |note| note.is_told)
    }

    /// A change of which nothing but its cause is known yet.
    fn change(&self, service: &ObjectName, action: Action, result: CommitOutcome, error: Option<&str>) -> Change {
        let note = self.notes.get(service);
        Change {
            service: service.clone(),
            action,
            trigger: note.map_or_else(|| Trigger::of(self.reason()), |note| note.trigger.clone()),
            latency: note.map(|note| note.since.elapsed()),
            cluster_latency: note.and_then(|note| since(note.cluster?, SystemTime::now())),
            result,
            error: error.map(ToOwned::to_owned),
            fields: note.map_or_else(Vec::new, |note| note.fields.clone()),
            frontends: Vec::new(),
            more_frontends: 0,
            endpoints: Endpoints::default(),
        }
    }

    /// Tells whose parts of the tables another program had changed: those of the commands that no Service's own change explains.
    fn repaired(&mut self, tables: &Tables, commands: &[Command]) {
        let is_large = commands.iter().map(Command::elements).sum::<usize>() > NAMED;
        let services = if is_large { Default::default() } else { tables.contributors(commands) };
        let altered = services.into_iter().filter(|name| !tables.is_open(name));
        let repair = self.repair.get_or_insert_with(|| Repair { times: 1, ..Repair::default() });
        altered.for_each(|name| repair.service(name));
    }
}

/// How long ago a moment in nanoseconds since the epoch was; `None` when it lies ahead.
fn since(moment: i64, now: SystemTime) -> Option<Duration> {
    let moment = UNIX_EPOCH + Duration::from_nanos(moment.try_into().ok()?);
    now.duration_since(moment).ok()
}

//! Records for the history what each sync changed: which Services, from what to what, and because of which object.
//!
//! Takes the change that each event made, and the records (the rules and elements of a Service in a table) of the transaction just before
//! they count as committed, or after the kernel refused them; returns [`Change`]s. Has no influence on what is written to the kernel.
//!
//! Invariants: nothing is kept for a Service that does not change; [`NOTED`] and [`LISTED`] bound the memory and the time that the journal
//! takes, whatever changes. The first sync, which makes everything, is reported by its numbers only.

mod difference;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldhash::HashMap;
use nft::Command;

use super::failure::SyncError;
use super::tables::Tables;
use crate::history;
use inspect::history::{Action, Change, CommitOutcome, Endpoints, FieldChange, Repair, Trigger, TriggerKind, cut};
use rules::model::{self, ObjectName, State};

/// The most Services whose changes are listed for one sync; the others are only counted.
const LISTED: usize = 100;
/// The most Services whose triggers are noted until a sync succeeds.
const NOTED: usize = 1024;
/// A repair of more elements than this does not name its Services: there may be too many of them.
const NAMED: usize = 4096;

/// The cause of a Service's change.
#[derive(Debug)]
struct Note {
    trigger: Trigger,
    /// When the first event about the Service was applied.
    since: Instant,
    /// When the cluster changed, in nanoseconds since the epoch, as the annotation of the slice in `trigger` says; `None` if there is none.
    cluster: Option<i64>,
    /// The fields of the Service itself that changed since the last commit.
    fields: Vec<FieldChange>,
    /// Whether it was reported already that the last change was refused.
    is_told: bool,
}

/// The changes and causes of the sync under way.
#[derive(Debug, Default)]
pub(super) struct Journal {
    notes: HashMap<ObjectName, Note>,
    /// The first cause other than an event about a single Service.
    reason: Option<TriggerKind>,
    changes: Vec<Change>,
    /// The number of Services that changed and are not in `changes`.
    unlisted: usize,
    repair: Option<Repair>,
    /// Whether a sync ever succeeded.
    began: bool,
    /// Whether the last sync failed.
    has_failed: bool,
    /// Whether the sync before this one failed.
    retries: bool,
}

/// The report about a sync.
#[derive(Debug)]
pub(super) struct SyncSummary {
    pub(super) changes: Vec<Change>,
    pub(super) unlisted: usize,
    pub(super) repair: Option<Repair>,
    /// The cause of the sync, if it is another one than an event about a single Service.
    pub(super) reason: Option<TriggerKind>,
}

impl Journal {
    /// Notes a change that the state already contains.
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

    /// Notes a cause of a sync other than an event about a single Service; the first cause is reported.
    pub(super) fn because(&mut self, reason: TriggerKind) {
        self.reason.get_or_insert(reason);
    }

    /// Notes that a sync begins.
    pub(super) fn begin(&mut self) {
        self.changes.clear();
        self.unlisted = 0;
        self.repair = None;
        self.retries = self.has_failed;
    }

    /// Notes that the kernel committed these commands; called before `tables` takes them over. `repaired` says that some of them undo what
    /// another program had changed.
    pub(super) fn committed(&mut self, tables: &Tables, commands: &[Command], repaired: bool) {
        if self.began {
            self.collect(tables, CommitOutcome::Committed, None);
            if repaired {
                self.repaired(tables, commands);
            }
        }
    }

    /// Notes the end of a sync. When several syncs in a row fail, each reports only the changes that no earlier one reported.
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

    /// Notes that a Service was left out.
    pub(super) fn left_out(&mut self, service: &ObjectName, result: CommitOutcome, reason: &str) {
        if self.changes.len() < LISTED {
            let change = self.change(service, Action::Kept, result, Some(&cut(reason.to_owned())));
            self.changes.push(change);
        } else {
            self.unlisted += 1;
        }
    }

    /// Returns whether a sync ever succeeded.
    pub(super) fn has_begun(&self) -> bool {
        self.began
    }

    /// Returns the report about the sync that ended. The causes of a failed sync are kept for the next one.
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

    /// Returns the cause of a change of a Service that no event was about: a cause that concerns several Services, a retry, or the claim of
    /// another Service on one of its frontends.
    fn reason(&self) -> TriggerKind {
        let other = if self.retries { TriggerKind::Retry } else { TriggerKind::Claim };
        self.reason.unwrap_or(other)
    }

    /// Adds the differences between the uncommitted and the committed records.
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

    /// Returns whether it was reported already that a Service's last change was refused.
    fn is_told(&self, name: &ObjectName) -> bool {
        self.notes.get(name).map_or(self.retries, |note| note.is_told)
    }

    /// Makes a change with its cause and result; the frontends and endpoints are added later.
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

    /// Notes the Services whose objects another program had changed: the Services that own objects in `commands`, and did not change
    /// themselves.
    fn repaired(&mut self, tables: &Tables, commands: &[Command]) {
        let is_large = commands.iter().map(Command::elements).sum::<usize>() > NAMED;
        let services = if is_large { Default::default() } else { tables.contributors(commands) };
        let altered = services.into_iter().filter(|name| !tables.is_open(name));
        let repair = self.repair.get_or_insert_with(|| Repair { times: 1, ..Repair::default() });
        altered.for_each(|name| repair.service(name));
    }
}

/// Returns how long ago `moment`, in nanoseconds since the epoch, was; `None` when it lies in the future or before the epoch.
fn since(moment: i64, now: SystemTime) -> Option<Duration> {
    let moment = UNIX_EPOCH + Duration::from_nanos(moment.try_into().ok()?);
    now.duration_since(moment).ok()
}

//! The sync loop: takes events, decides when to sync, and reports what a sync did. One sync is in [`Engine::sync`].
//!
//! Runs on a thread of its own, which a commit blocks for as long as the kernel takes. Nothing is written before the initial objects have
//! arrived (G1). After a failed sync, the next try first reads the tables back from the kernel. When the sender of the events is gone, the
//! loop ends and leaves the rules in place (O7).

mod addresses;
mod budget;
#[cfg(test)]
mod busy;
mod cleanup;
mod conflicts;
mod cost;
mod effects;
mod engine;
mod entries;
mod ephemeral_ports;
mod failure;
mod flows;
mod foreign_owners;
mod health;
mod journal;
mod long;
mod no_local_endpoints;
mod observers;
mod other_proxy;
mod pending;
mod planned;
mod problems;
mod quarantine;
mod repairs;
mod reports;
mod schedule;
mod settings;
mod tables;
mod writer_lock;

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing::{debug, error, info, warn};

pub use budget::Oversized;
pub(crate) use cleanup::{CleanupStep, Step};
pub use conflicts::LostReport;
pub(crate) use conflicts::{LostClaims, LostFrontend};
pub(crate) use engine::{AddressChange, Subject, TableDifference, TableDifferences};
pub use engine::{Engine, NoKernel, Report, Taken, Timing};
pub use failure::SyncError;
pub use flows::Reconciled;
pub(crate) use other_proxy::is_chain as is_upstreams_chain;
pub use pending::Counted;
pub use quarantine::NotProgrammed;
pub use schedule::{End, Schedule};
pub use settings::layout;

use crate::health::Reporter;
use crate::history::History;
use crate::metrics::Metrics;
use crate::metrics::server::questions::{Answer, Questions};
use addresses::AddressChecks;
use cleanup::Cleanup;
use component::logging::once::Once;
use component::logging::{duration, list};
use conflicts::RecentReports;
use cost::ProcessorTime;
use ephemeral_ports::EphemeralPorts;
use foreign_owners::ForeignOwners;
use inspect::history::Program;
use node::kernel::local_ports::LocalPorts;
use node::kernel::{Kernel, WriterLockState};
use problems::LostFrontends;
use repairs::Repairs;
use rules::endpoints::Gathered;
use rules::model::{Event, Node, ObjectName};
use writer_lock::{LockNews, WriterLock};

/// The most further events that the loop takes from the queue before it checks again whether a sync is due: a flood of events must not put
/// the sync off for ever.
const MAX_EVENTS_BEFORE_SYNC: usize = 100_000;

/// The pause in which more events gather, while objects of the initial lists are missing.
const GATHER: Duration = Duration::from_millis(2);

/// The sync loop; [`Sync::run`] runs it.
pub struct Sync<K> {
    engine: Engine<K>,
    schedule: Schedule,
    metrics: Metrics,
    health: Reporter,
    last_end: Option<Instant>,
    /// When an event, or the takeover of the writer lock, first asked for the next sync, and the clocks of processor time at that moment.
    requested: Option<(Instant, ProcessorTime)>,
    started: Instant,
    /// Whether an earlier process left rules; `None` until the kernel was asked.
    has_previous_rules: Option<bool>,
    /// Checks this node's Node object when it first arrives.
    on_node: Option<OnNode>,
    /// The end of the last sync for which [`Engine::second_passed`] was called.
    last_second: Option<Instant>,
    /// When the loop last looked for chains that a sync had emptied.
    last_check: Option<Instant>,
    /// When to list the node's addresses; `no_addresses` keeps the error that was logged last.
    addresses: AddressChecks,
    no_addresses: Once<String>,
    repairs: Repairs,
    foreign_owners: ForeignOwners,
    lost_frontends: LostFrontends,
    /// Whether it was logged that this node has no Node object.
    node_is_missing: bool,
    /// Whether the health pages say that an operator drains the node.
    is_drained: bool,
    /// Called with a Service that is left out from now on, or for another reason than before.
    on_not_programmed: Option<OnNotProgrammed>,
    /// Called with a Service that does not get a frontend that it claims, unless [`RecentReports`] holds the report back.
    on_lost_claims: Option<OnLostClaims>,
    recent_reports: RecentReports,
    /// The search for node ports that the kernel may give to other programs; `None` if nobody wants the result.
    ephemeral_ports: Option<(EphemeralPorts, OnEphemeralPorts)>,
    /// The work that waits for the first successful sync.
    cleanup: Cleanup,
    /// Called when another kube-proxy is found to write to the same tables.
    on_other_proxy: Option<OnOtherProxy>,
    /// When to try next to take the writer lock, and whether this process waits for it and must not write.
    writer_lock: WriterLock,
    /// The history of what the loop did, which `kube-proxy changes` shows.
    changes: History,
    /// The questions of the metrics server's pages, if there are such pages.
    questions: Option<Questions>,
    /// The number of syncs so far, including the one under way.
    syncs: u64,
}

/// Reports a Service that does not get a frontend that it claims.
pub(crate) type OnLostClaims = Box<dyn Fn(LostClaims) + Send>;

/// Reports a Service that the kernel refuses, or that is too large.
pub(crate) type OnNotProgrammed = Box<dyn Fn(NotProgrammed) + Send>;

/// Reports node ports that the kernel may give to programs of this node.
pub(crate) type OnEphemeralPorts = Box<dyn Fn(String) + Send>;

/// Reports that another kube-proxy, which does not use the writer lock, writes to the same tables.
pub(crate) type OnOtherProxy = Box<dyn Fn() + Send>;

/// Checks this node's Node object when it first arrives; an error ends the loop.
pub(crate) type OnNode = Box<dyn FnOnce(&Node) -> anyhow::Result<()> + Send>;

/// The least time between a sync and the deletion of the chains that it emptied (F8), and the longest wait for an event.
const MOMENT: Duration = Duration::from_secs(1);

/// The longest time between two passes of the loop while there is nothing to do.
const REST: Duration = Duration::from_secs(10);

/// How long after the start the Node may be unknown before the kernel is asked whether an earlier process left rules.
const NODE_PATIENCE: Duration = Duration::from_secs(2);

impl<K: Kernel> Sync<K> {
    /// Makes a loop that has not started.
    pub fn new(engine: Engine<K>, schedule: Schedule, metrics: Metrics, health: Reporter, on_node: OnNode) -> Self {
        Self {
            engine,
            schedule,
            metrics,
            health,
            last_end: None,
            requested: None,
            started: Instant::now(),
            has_previous_rules: None,
            last_second: None,
            last_check: None,
            addresses: AddressChecks::default(),
            no_addresses: Once::default(),
            repairs: Repairs::new(),
            foreign_owners: ForeignOwners::default(),
            on_node: Some(on_node),
            lost_frontends: LostFrontends::default(),
            node_is_missing: false,
            is_drained: false,
            on_not_programmed: None,
            on_lost_claims: None,
            recent_reports: RecentReports::default(),
            ephemeral_ports: None,
            cleanup: Cleanup::default(),
            on_other_proxy: None,
            writer_lock: WriterLock::default(),
            changes: History::new(SystemTime::now()),
            questions: None,
            syncs: 0,
        }
    }

    /// Sets the history into which the loop enters what it does.
    #[must_use]
    pub fn telling(mut self, changes: History) -> Self {
        self.changes = changes;
        self
    }

    /// Makes the loop answer the questions that the pages of the metrics server ask about the state.
    #[must_use]
    pub(crate) fn answering(mut self, questions: Questions) -> Self {
        self.questions = Some(questions);
        self
    }

    /// Sets the work to do after the first successful sync, on the loop's thread.
    #[must_use]
    pub(crate) fn after_first_sync(mut self, cleanup_step: CleanupStep) -> Self {
        self.cleanup = Cleanup::new(cleanup_step);
        self
    }

    /// Sets the callback for a Service that is left out, because the kernel refuses it or it is too large.
    #[must_use]
    pub fn on_not_programmed(mut self, on_not_programmed: OnNotProgrammed) -> Self {
        self.on_not_programmed = Some(on_not_programmed);
        self
    }

    /// Sets the callback for a Service that loses a claim on a frontend.
    #[must_use]
    pub(crate) fn on_lost_claims(mut self, on_lost_claims: OnLostClaims) -> Self {
        self.on_lost_claims = Some(on_lost_claims);
        self
    }

    /// Searches for node ports that the kernel may give to programs of this node (N6), and sets the callback for those that are found.
    #[must_use]
    pub(crate) fn on_ephemeral_ports(mut self, on_ephemeral_ports: OnEphemeralPorts) -> Self {
        self.ephemeral_ports = Some((EphemeralPorts::new(LocalPorts::default()), on_ephemeral_ports));
        self
    }

    /// Sets the callback for another kube-proxy that writes to the same tables.
    #[must_use]
    pub(crate) fn on_other_proxy(mut self, on_other_proxy: OnOtherProxy) -> Self {
        self.on_other_proxy = Some(on_other_proxy);
        self
    }

    /// Takes events and syncs until the sender of the events is gone.
    ///
    /// # Errors
    /// The error that the check of this node's Node object returns.
    pub fn run(mut self, events: &Receiver<Event>) -> anyhow::Result<()> {
        self.families_synced();
        self.health.working(self.started);
        self.engine.tables.families().for_each(|family| self.metrics.sync_queued(family, SystemTime::now()));
        // Read the tables while the objects arrive, because the first sync needs them.
        self.engine.kernel.read_ahead(self.engine.tables.names());
        loop {
            self.ask_for_writer_lock();
            let now = Instant::now();
            let due = self.may_sync().then(|| self.schedule.due(now));
            if due.is_some_and(|due| due <= now) {
                self.sync();
            }
            match self.wait(events) {
                Ok(()) => {}
                Err(SourceEnded) => break,
            }
            self.check_node()?;
            self.report_lost_claims();
            self.check_what_no_event_reports();
            if self.cleanup.run_if_due(Instant::now()) {
                self.engine.removed_rules_of_others();
            }
            self.answer_question();
            let eligible = self.node_eligible();
            self.health.node(eligible);
            self.report_drained();
        }
        info!("No more events; the rules stay in force");
        Ok(())
    }

    /// Returns whether the node is eligible for traffic; `None` while that is not known. If the Node is not known after [`NODE_PATIENCE`],
    /// for example because the API server does not answer, a node with the rules of an earlier process counts as eligible: it forwards
    /// packets, and load balancers should not take it out because of a restart.
    fn node_eligible(&mut self) -> Option<bool> {
        let known = self.engine.state.node().map(|node| node.eligible);
        if known.is_some()
            || self.engine.state.is_complete()
            || self.writer_lock.is_standby()
            || self.started.elapsed() < NODE_PATIENCE
        {
            return known;
        }
        let (engine, health) = (&mut self.engine, &self.health);
        let has_previous_rules = *self.has_previous_rules.get_or_insert_with(|| {
            let has_previous_rules = engine.adopt_previous();
            if has_previous_rules {
                info!(
                    "The Node is not known yet; it counts as eligible, because there are rules from before the start, and \
                     health-check node ports answer from these"
                );
                health.services(engine.observers.health_checks.snapshot());
            }
            has_previous_rules
        });
        has_previous_rules.then_some(true)
    }

    /// Answers a question about the state, if one waits and the last answer is long enough ago.
    fn answer_question(&mut self) {
        let state = &self.engine.state;
        let answer = |service: &ObjectName| {
            if state.is_complete() {
                Gathered::of(state, service).causes().map_or(Answer::Unknown, Answer::Known)
            } else {
                Answer::NotYet
            }
        };
        self.questions.iter_mut().for_each(|questions| questions.answer_one(answer));
    }

    /// Whether all initial objects have arrived (G1), and this process does not wait for the writer lock.
    fn may_sync(&self) -> bool {
        self.engine.state.is_complete() && !self.writer_lock.is_standby()
    }

    /// Checks periodically whether this process has the writer lock, and takes it when it is free. Before all initial objects have arrived
    /// there is nothing to write, so this process leaves the lock to others.
    fn ask_for_writer_lock(&mut self) {
        let now = Instant::now();
        if !self.engine.state.is_complete() || !self.writer_lock.is_due(now) {
            return;
        }
        let refused = match self.engine.kernel.take_writer_lock() {
            Ok(WriterLockState::Ours) => None,
            Ok(WriterLockState::HeldBy(holder)) => {
                Some(format!("another kube-proxy writes the rules of this node ({holder})"))
            }
            Err(error) => Some(format!("cannot take the lock of kube-proxies of this node: {error}")),
        };
        match self.writer_lock.answered(refused, now) {
            LockNews::None => {}
            LockNews::Waits(reason) => {
                warn!(reason, "Waiting for the lock of this node; no rule is changed until then");
                self.health.held_back(Some(reason), now);
            }
            LockNews::Ours(waited) => {
                info!(waited = %duration(waited), "The other kube-proxy has ended; this one writes the rules now");
                self.engine.begin_writing();
                self.health.held_back(None, now);
                self.request();
            }
        }
    }

    fn check_node(&mut self) -> anyhow::Result<()> {
        match self.engine.state.node() {
            Some(node) => self.on_node.take().map_or(Ok(()), |check| check(node)),
            None => Ok(()),
        }
    }

    /// Returns how long to wait for an event before the next pass of the loop, and how long before the next look for writes of other programs.
    fn waits(&self, now: Instant) -> (Duration, Duration) {
        let may_sync = self.may_sync();
        let look = match (self.writer_lock.is_standby(), may_sync && self.engine.can_be_changed_by_others()) {
            (true, _) => writer_lock::POLL,
            (false, true) => self.repairs.look_within(now),
            (false, false) => MOMENT,
        };
        let longest = if may_sync && self.is_at_rest() { REST } else { look };
        // Session-affinity clients are not checked until this process may sync, even if a check is overdue.
        let of_syncs = may_sync.then(|| [Some(self.schedule.due(now)), self.engine.next_client_check()]);
        let question = self.questions.as_ref().and_then(Questions::next);
        let due = of_syncs.into_iter().flatten().chain([question]).flatten();
        let due = due.map(|at| at.saturating_duration_since(now)).chain(self.cleanup.wait(now));
        (due.fold(longest, Duration::min), look)
    }

    /// Whether nothing is left to do of what the loop does from time to time, so that it needs no pass before [`REST`] has passed, or an event
    /// has come.
    fn is_at_rest(&self) -> bool {
        let is_cleaned = !self.engine.has_emptied_chains();
        is_cleaned
            && self.foreign_owners.are_none()
            && !self.schedule.is_requested()
            && self.repairs.is_done()
            && self.addresses.are_watched()
    }

    /// Waits for an event until the next pass is due. A look that finds no transaction of another program is no pass, so that an idle process
    /// does nothing else.
    fn receive(&mut self, events: &Receiver<Event>) -> Result<Event, RecvTimeoutError> {
        let start = Instant::now();
        let (pass, look) = self.waits(start);
        let (mut now, end) = (start, start + pass);
        loop {
            // Only this wait may take long: a thread that works for too long is stuck, which `/livez` reports.
            self.health.waiting();
            let received = events.recv_timeout(look.min(end.saturating_duration_since(now)));
            now = Instant::now();
            self.health.working(now);
            let is_over = !matches!(received, Err(RecvTimeoutError::Timeout)) || now >= end;
            if is_over || self.engine.kernel.may_be_written() {
                return received;
            }
        }
    }

    /// Waits for events, the next sync or the next check, and takes over the events in the queue.
    fn wait(&mut self, events: &Receiver<Event>) -> Result<(), SourceEnded> {
        match self.receive(events) {
            Ok(event) => self.take(event),
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => return Err(SourceEnded),
        }
        for _ in 0..MAX_EVENTS_BEFORE_SYNC {
            match events.try_recv() {
                Ok(event) => self.take(event),
                Err(TryRecvError::Empty) => {
                    // Nothing is written before all initial objects have arrived: let events gather, so that not each of them wakes this
                    // thread.
                    if !self.engine.state.is_complete() {
                        thread::sleep(GATHER);
                    }
                    return Ok(());
                }
                Err(TryRecvError::Disconnected) => return Err(SourceEnded),
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        if let (Event::ServiceApplied(service), Some((ports, _))) = (&event, &mut self.ephemeral_ports) {
            ports.service(service);
        }
        let Taken { counted, asks_for_sync } = self.engine.apply(event);
        match counted {
            Some(Counted::Service) => self.metrics.service_change(self.engine.tables.families().count()),
            Some(Counted::Slice) => self.metrics.endpoint_change(),
            None => {}
        }
        if asks_for_sync {
            self.request();
        }
        self.report_pending();
    }

    fn request(&mut self) {
        self.schedule.request();
        self.requested.get_or_insert_with(|| (Instant::now(), ProcessorTime::now()));
        self.report_queued();
    }

    /// Checks what no event reports: writes of other programs, clients that session affinity remembers, the node's addresses, and chains
    /// that syncs emptied.
    fn check_what_no_event_reports(&mut self) {
        if !self.may_sync() {
            return;
        }
        let now = Instant::now();
        if let Some(programs) = self.engine.foreign_writes() {
            // If the program is unknown, only the comparison shows whether it changed this proxy's tables.
            if !programs.is_empty() {
                self.foreign_change(now);
            }
            let by = programs.into_iter().map(|by| Program { name: by.name, pid: by.pid });
            self.schedule.request_at(self.repairs.noticed(by, now));
            self.report_queued();
        }
        // A check of session-affinity clients is no sync, so the next sync need not keep the minimum interval from it.
        if let Some(report) = self.engine.check_clients(Instant::now()) {
            self.count(&report);
        }
        self.log_foreign_writes(now);
        self.check_foreign_owners(now);
        self.check_addresses(now);
        let is_checked = self.last_check.is_some_and(|look| now.duration_since(look) < MOMENT);
        // While syncs follow each other, they delete emptied chains themselves, see [`Engine::second_passed`].
        if is_checked || self.schedule.is_requested() || !self.is_after_pause() {
            return;
        }
        self.last_check = Some(now);
        if self.engine.has_emptied_chains() {
            self.schedule.request_cleanup();
        }
    }

    /// Notes that another program changed the tables.
    fn foreign_change(&mut self, now: Instant) {
        self.metrics.foreign_change();
        self.repairs.changed(now);
    }

    /// Lists the node's addresses if the kernel reported a change, or if the last listing is long ago, however busy the loop is (G11). The
    /// first sync lists them itself.
    fn check_addresses(&mut self, now: Instant) {
        if self.last_end.is_none() || !self.addresses.is_due(self.engine.kernel.address_news(), now) {
            return;
        }
        let change = self.engine.addresses_changed();
        if let Some(error) = self.no_addresses.new_error(&change) {
            warn!(err = error, "Cannot list the node's addresses; node ports keep those known before");
        }
        match change {
            Ok(None) => {}
            Ok(Some(AddressChange { added, removed })) => {
                info!(added = list(added), removed = list(removed), "The addresses of this node changed");
                self.schedule.request_for_addresses(now);
                self.report_queued();
            }
            Err(_) => self.addresses.failed(),
        }
    }

    /// Whether the last sync ended at least [`MOMENT`] ago.
    fn is_after_pause(&self) -> bool {
        self.last_end.is_some_and(|end| end.elapsed() >= MOMENT)
    }

    fn sync(&mut self) {
        let start = Instant::now();
        let (requested, before) = self.requested.take().unwrap_or_else(|| (start, ProcessorTime::now()));
        let waited = start.duration_since(requested);
        if self.schedule.started(start) {
            self.engine.compare_everything();
        }
        self.repairs.started(start);
        let after_pause = self.is_after_pause();
        let second_passed = self.last_second.is_none_or(|then| then.elapsed() >= MOMENT);
        if second_passed {
            self.engine.second_passed();
        }
        self.syncs += 1;
        let is_first = !self.engine.journal.has_begun();
        let result = self.engine.sync(after_pause);
        self.report_pending();
        self.report_foreign_owners();
        self.report_left_out();
        self.repairs.found(self.engine.take_findings());
        self.report_other_proxy();
        let took = start.elapsed();
        self.last_end = Some(Instant::now());
        if second_passed {
            self.last_second = self.last_end;
        }
        let end = match &result {
            Ok(report) if report.full => End::Compared,
            Ok(_) => End::Done,
            Err(_) => End::Failed,
        };
        self.schedule.finished(Instant::now(), end, ProcessorTime::now().since(before));
        let full = result.as_ref().map_or(true, |report| report.full);
        for family in self.engine.tables.families() {
            let ok = result.is_ok() && !self.foreign_owners.has(family);
            self.metrics.sync_finished(family, SystemTime::now(), took, full, ok);
        }
        self.tell(result.as_ref(), took, is_first);
        self.log_foreign_writes(Instant::now());
        match result {
            Ok(report) => self.succeeded(&report, took, waited, is_first),
            Err(error) => self.failed(&error),
        }
    }

    fn succeeded(&mut self, report: &Report, took: Duration, waited: Duration, is_first: bool) {
        self.families_synced();
        self.report_ready();
        // The rules of other modes may be the only ones that serve a family which is not programmed.
        if self.foreign_owners.are_none() {
            self.cleanup.synced(Instant::now());
        }
        self.health.services(self.engine.observers.health_checks.snapshot());
        self.report(report, took, waited);
        if !self.engine.tables.known() {
            // The bookkeeping of the tables was wrong, or a split of the maps failed: a full comparison follows soon, without waiting for
            // the next change. This comes to an end: the bookkeeping is made anew, and the next split is an hour away.
            self.schedule.request_cleanup();
        }
        if is_first {
            self.log_first(took);
        }
        self.report_ephemeral_ports(report.full);
    }

    fn failed(&mut self, error: &SyncError) {
        self.health.not_ready(format!("the last sync failed: {error}"));
        self.metrics.netlink_error(error.kind());
        error.cleanup().for_each(|family| self.metrics.cleanup_failed(family));
        if self.engine.tables.have_rules() {
            error!(err = %error, "Sync failed; the rules from before stay in force");
        } else {
            error!(err = %error, "Sync failed; trying again");
        }
    }

    fn report(&self, report: &Report, took: Duration, waited: Duration) {
        let Report { full, services, added, removed, committed, .. } = report;
        self.count(report);
        let elapsed = duration(took);
        match committed {
            None => {
                debug!(
                    %elapsed, fullSync = full, numServices = services,
                    "SyncProxyRules complete, nothing to change"
                )
            }
            Some(committed) => {
                let bytes = committed.bytes;
                debug!(
                    %elapsed, fullSync = full, numServices = services, elementsAdded = added, elementsRemoved = removed, bytes,
                    "SyncProxyRules complete"
                );
            }
        }
        if report.repaired {
            debug!(
                elementsAdded = added,
                elementsRemoved = removed,
                "Another program had changed our tables; they are as they should be again"
            );
        }
        long::log(report, took, waited);
    }

    /// Reports all families that are programmed as synced: at the start of the loop, and after each successful sync (L1, L2).
    fn families_synced(&self) {
        self.engine.tables.own_families().for_each(|family| self.health.synced(family, SystemTime::now()));
    }
}

/// The sender of the events is gone.
struct SourceEnded;

//! One sync: events have changed the state; [`Engine::sync`] plans the Services that became dirty, which puts their records into the tables, has the
//! kernel carry out the difference (`commit`), and tells the observers of what was committed.

mod commit;
mod differences;
mod isolation;
#[cfg(test)]
mod order;
mod stale_clients;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use commit::cannot_own;
pub(crate) use differences::{Subject, TableDifference};
use foldhash::HashSet;
use nft::monitor::Process;
use nft::{Command, CommitError, Committed, ReadError};
use tracing::{info, warn};

use super::budget::{Budget, Oversized};
use super::conflicts::{self, LostReport};
use super::failure::SyncError;
use super::flows::Reconciled;
use super::journal::Journal;
use super::observers::Observers;
use super::pending::{Counted, Pending};
use super::planned;
use super::problems;
use super::quarantine::{Quarantine, RefusedService};
use super::settings;
use super::tables::{Owner, Tables, packets_pass};
use crate::localhost::Feed;
use component::config::Config;
use component::logging::once::Once;
use inspect::history::TriggerKind;
use inspect::running::{Problem, ProblemKind, no_such_node};
use node::kernel::{ForeignWrites, Kernel};
use rules::conntrack::Flow;
use rules::model::{Change, Dirty, Event, Family, ObjectName, State};
use rules::ruleset::{Layout, NodeFacts};

/// Owns the state of the cluster and the records of the tables, and makes the kernel hold what these say.
pub struct Engine<K> {
    config: Config,
    pub(super) state: State,
    pub(super) tables: Tables,
    pub(super) observers: Observers,
    pub(super) pending: Pending,
    pub(super) journal: Journal,
    pub(super) kernel: K,
    interfaces: Vec<IpAddr>,
    /// Another program may have changed the tables since the last sync that succeeded.
    may_have_changed: bool,
    /// The node's facts were not taken over yet.
    first: bool,
    quarantine: Quarantine,
    /// Whether the kernel has `destroy element`, as far as is known.
    destroys: bool,
    budget: Budget,
    /// The error of the last check for writes of other programs.
    check_failed: Once<String>,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What the metrics count it as, also when it changed nothing.
    pub counted: Option<Counted>,
    /// Whether a sync is to follow.
    pub asks_for_sync: bool,
}

/// What a sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything was compared, not only what was dirty.
    pub full: bool,
    /// Services that were recomputed.
    pub services: usize,
    /// Elements added and removed; one that changed counts as both.
    pub added: usize,
    /// See `added`.
    pub removed: usize,
    /// What went over netlink; nothing when nothing was to change.
    pub committed: Option<Committed>,
    /// The number of transactions that this was: one, unless new tables were filled in parts, Services were refused, or clients forgotten.
    pub transactions: usize,
    /// Time from sending the first transaction to the kernel's last answer.
    pub kernel_time: Duration,
    /// Another program had changed the tables, and more was to be done than what changed in the cluster.
    pub repaired: bool,
    /// For each changed slice with a time since when it waited, how long that was.
    pub programmed: Vec<(Family, Duration)>,
    /// The results of examining UDP flows afterwards, by family.
    pub flows: Vec<Reconciled>,
}

impl<K: Kernel> Engine<K> {
    /// An engine that knows nothing of the cluster yet.
    pub fn new(config: Config, layout: Layout, families: &[Family], kernel: K) -> Self {
        let state = State::new(&config.node_name).with_frontend_limit(config.service_elements_limit);
        let budget = Budget::new(config.service_elements_limit);
        let tables = Tables::new(layout, families, &config);
        Self {
            config,
            state,
            tables,
            observers: Observers::default(),
            pending: Pending::new(families, SystemTime::now()),
            journal: Journal::default(),
            kernel,
            interfaces: Vec::new(),
            may_have_changed: false,
            first: true,
            quarantine: Quarantine::default(),
            destroys: true,
            budget,
            check_failed: Once::default(),
        }
    }

    /// Has the TCP node ports of each Service brought there, for loopback addresses.
    #[must_use]
    pub(crate) fn with_localhost(mut self, feed: Option<Feed>) -> Self {
        self.observers.localhost = feed;
        self
    }

    /// Takes an event over.
    pub fn apply(&mut self, event: Event) -> Taken {
        let event = match event {
            Event::NodeApplied(node) => Event::NodeApplied(node.with_bind_address(self.config.bind_address)),
            event => event,
        };
        let mut counted = self.pending.counted(&event);
        if let Some(change) = self.state.apply(event) {
            if self.pending.note(&self.state, &change) {
                self.journal.note(&self.state, &change, Instant::now());
            } else if matches!(change, Change::Slice { .. }) {
                // A deletion does not say of which family the slice was.
                counted = None;
            }
            self.observers.changed(&change);
        }
        Taken { counted, asks_for_sync: self.state.is_complete() && self.state.is_dirty() }
    }

    /// The families that are served.
    fn families(&self) -> impl Iterator<Item = Family> {
        self.tables.families()
    }

    /// The sets of each family's table and their numbers of elements as of the last commit; without dynamic sets, which session affinity fills.
    pub fn table_counts(&self) -> impl Iterator<Item = (Family, impl Iterator<Item = (&str, usize)>)> {
        self.tables.lens()
    }

    /// The number of endpoints in the slices of all Services.
    pub(crate) fn endpoint_count(&self) -> usize {
        let slices = self.state.services_unordered().flat_map(|service| self.state.slices_of(&service.name));
        slices.map(|slice| slice.endpoints.len()).sum()
    }

    /// Makes the kernel hold what it should: plans the Services that changed, and has the kernel carry out the difference. `after_pause` says
    /// that the last sync was at least a second ago: then the chains that it emptied are deleted (F8).
    ///
    /// Order: Services that the kernel refuses are known before the observers are told, because theirs are the rules of before; UDP flows
    /// are examined last, because a flow that is deleted before the rules are in force is made again by them. When a sync fails, no observer is told anything.
    ///
    /// # Errors
    /// See [`SyncError`]; the next sync reads back and compares everything.
    pub fn sync(&mut self, after_pause: bool) -> Result<Report, SyncError> {
        let families: Vec<Family> = self.families().collect();
        self.pending.taken();
        self.journal.begin();
        let services = self.recompute();
        let outcome = match self.bring_about(after_pause) {
            Err(failed) if cannot_own(&failed) => {
                info!(
                    "This kernel cannot keep other programs from changing the rules; such changes are detected and repaired instead"
                );
                self.tables.disown();
                self.bring_about(after_pause)
            }
            other => other,
        };
        let outcome = outcome.or_else(|failed| self.isolate(failed));
        self.quarantine.synced(outcome.is_ok());
        let outcome = outcome.map_err(SyncError::from);
        self.journal.ended(&self.tables, outcome.as_ref().err());
        let mut report = outcome?;
        let has_rules = |name: &ObjectName| self.tables.presence(&Owner::Service(name.clone())).0;
        let held_back = self.quarantine.names().map(|name| (name, has_rules(name))).collect();
        self.observers.committed(&held_back, &families);
        report.services = services;
        // After a failure it is kept: the new try puts right what another program changed before.
        if std::mem::take(&mut self.may_have_changed) && report.committed.is_some() {
            self.observers.udp.all_changed();
        }
        report.flows = self.reconcile_flows(Instant::now());
        Ok(report)
    }

    /// Deletes the UDP flows that lead nowhere any more.
    fn reconcile_flows(&mut self, now: Instant) -> Vec<Reconciled> {
        let families: Vec<Family> = self.families().collect();
        self.observers.udp.reconcile(&self.state, &mut self.kernel, &families, &self.interfaces, now)
    }

    /// Plans the Services that became dirty. Gives their number.
    fn recompute(&mut self) -> usize {
        let Dirty { services: mut names, node, service_cidrs } = self.state.take_dirty();
        let due = self.quarantine.due(Instant::now());
        let reasons = [
            (node, TriggerKind::Node),
            (service_cidrs, TriggerKind::ServiceCidr),
            (!due.is_empty(), TriggerKind::Retry),
        ];
        reasons.into_iter().filter(|(is, _)| *is).for_each(|(_, reason)| self.journal.because(reason));
        if !due.is_empty() {
            let dirty: HashSet<ObjectName> = names.iter().cloned().collect();
            names.extend(due.into_iter().filter(|name| !dirty.contains(name)));
        }
        if self.first {
            self.warn_of_ignored_external_ips();
        }
        if self.first || node || service_cidrs {
            self.refresh_node();
            self.first = false;
        }
        let families: Vec<Family> = self.families().collect();
        let plans = planned::all(&self.state, &self.tables, self.budget.limit(), &names);
        self.tables.reserve(names.len());
        for (name, planned) in names.iter().zip(plans) {
            self.quarantine.retry(name);
            self.budget.note(name, planned.size);
            self.tables.put_records(name, planned.records);
            self.observers.planned(name, planned.effects, &families);
        }
        if !self.tables.take_outdated() {
            return names.len();
        }
        let done: HashSet<&ObjectName> = names.iter().collect();
        let others = self.state.services().map(|service| &service.name).filter(|name| !done.contains(name));
        let others: Vec<ObjectName> = others.cloned().collect();
        let plans = planned::all(&self.state, &self.tables, self.budget.limit(), &others);
        for (name, planned) in others.iter().zip(plans) {
            self.budget.note(name, planned.size);
            if planned.fits {
                self.quarantine.retry(name);
                self.tables.put_records(name, planned.records);
            }
        }
        self.state.service_count()
    }

    /// One warning for all Services, however many they are (A7).
    fn warn_of_ignored_external_ips(&self) {
        let count = self.state.services_unordered().filter(|service| service.ignores_external_ips).count();
        if count > 0 {
            warn!(
                numServices = count,
                "The spec.externalIPs of Services are not served, because the feature gate AllowServiceExternalIPs is off"
            );
        }
    }

    /// Takes over the node's facts and addresses.
    fn refresh_node(&mut self) {
        self.list_addresses();
        let facts = NodeFacts { service_cidrs: self.state.service_cidrs(), ..NodeFacts::default() };
        self.observers.health_checks.set_node(&self.config, self.state.node(), &self.interfaces);
        self.tables.set_node(&self.config, self.state.node(), &self.interfaces, facts);
    }

    fn list_addresses(&mut self) {
        match self.kernel.addresses() {
            Ok(addresses) => self.interfaces = addresses,
            Err(error) => warn!(err = %error, "Cannot list the node's addresses; node ports keep those known before"),
        }
    }

    /// The Services that the kernel refused since the last call and that are left out now, each once for each reason.
    pub fn take_refused_services(&mut self) -> Vec<RefusedService> {
        self.quarantine.take_news()
    }

    /// The Services that lost a claim on a frontend since the last call, and still lose it. Nothing before every object that existed at
    /// the start has arrived: until then another Service may still claim the frontend first.
    pub fn take_lost_claims(&mut self) -> LostReport {
        if self.state.is_complete() {
            conflicts::report(&self.state.take_conflicts(conflicts::NAMED))
        } else {
            LostReport::default()
        }
    }

    /// The number of claims that Services lose.
    pub fn lost_claims(&self) -> usize {
        self.state.lost_claims()
    }

    /// The Services that are left out because the kernel refuses them.
    pub fn quarantined(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.quarantine.names()
    }

    /// The Services that are left out now, in words.
    pub(super) fn left_out(&self) -> Vec<Problem> {
        let has_rules = |name: &ObjectName| self.tables.presence(&Owner::Service(name.clone())).0;
        let quarantined = self.quarantine.all().map(|(name, reason)| (name, reason, has_rules(name)));
        let mut problems = problems::quarantined(&self.state, quarantined);
        problems.extend(problems::oversized(&self.state, self.budget.all()));
        problems.extend(self.missing_node().map(|name| Problem::of_node(ProblemKind::NodeUnknown, no_such_node(name))));
        problems
    }

    /// The name of this node, if the API server has no such Node. A folder of manifests need not have one.
    pub(super) fn missing_node(&self) -> Option<&str> {
        let is_missing = self.config.manifests.is_none() && self.state.is_complete() && self.state.node().is_none();
        is_missing.then_some(&*self.config.node_name)
    }

    /// The Services that went over the limit since the last call.
    pub fn take_oversized(&mut self) -> Vec<Oversized> {
        self.budget.take_news()
    }

    /// The Services that are left out because they are over the limit.
    pub fn oversized(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.budget.names()
    }

    /// Whether the kernel holds rules of a process before this one. If so, the health checks are what these say until the first
    /// sync; before that, nothing else is known of them.
    pub fn adopt_previous(&mut self) -> bool {
        let mut adopted = false;
        self.list_addresses();
        self.observers.health_checks.set_node(&self.config, self.state.node(), &self.interfaces);
        for (family, table) in self.tables.families().collect::<Vec<_>>().into_iter().zip(self.tables.names()) {
            match self.kernel.read(&table) {
                // A table without base chains was left by a process that ended before its first sync did.
                Ok(Some(dump)) if packets_pass(&dump) => {
                    self.observers.health_checks.adopt(&self.config, family, &dump);
                    adopted = true;
                }
                Ok(_) => {}
                Err(error) => warn!(err = %error, %table, "Cannot ask for the rules of a process before this one"),
            }
        }
        adopted
    }

    /// Lists the node's addresses. Gives those that came and those that went, if the next sync has to take them over (G11); addresses
    /// that cannot serve a node port do not count.
    ///
    /// # Errors
    /// When the addresses cannot be listed; those known before stay.
    pub(crate) fn addresses_changed(&mut self) -> io::Result<Option<AddressChange>> {
        let addresses = self.kernel.addresses()?;
        if addresses == self.interfaces {
            return Ok(None);
        }
        let before: BTreeSet<IpAddr> = settings::serving(&self.config, &self.interfaces).collect();
        let now: BTreeSet<IpAddr> = settings::serving(&self.config, &addresses).collect();
        let added: Vec<IpAddr> = now.difference(&before).copied().collect();
        let removed: Vec<IpAddr> = before.difference(&now).copied().collect();
        self.interfaces = addresses;
        if added.is_empty() && removed.is_empty() {
            return Ok(None);
        }
        self.refresh_node();
        self.journal.because(TriggerKind::Addresses);
        Ok(Some(AddressChange { added, removed }))
    }

    /// Notes that at least a second has passed since the last call. While one sync follows the other, chains that were empty at one
    /// call are deleted by the first sync after the next call (F8).
    pub fn second_passed(&mut self) {
        self.tables.second_passed();
    }

    /// Whether emptied chains are left to be deleted, which has to wait for a second.
    pub fn has_emptied_chains(&self) -> bool {
        self.tables.has_emptied_chains()
    }

    /// Checks whether another program wrote to the tables, and if so has the next sync compare everything. `None` when none did; else
    /// the programs, as far as they are known: an empty list when the tables may have been written to.
    pub fn foreign_writes(&mut self) -> Option<Vec<Process>> {
        let tables = if self.tables.owned() { Vec::new() } else { self.tables.names() };
        let found = self.kernel.foreign_writes(&tables, Instant::now());
        if let Some(error) = self.check_failed.new_error(&found) {
            warn!(err = error, "Cannot ask whether another program changed our rules; trying again");
        }
        let programs = match found {
            Ok(ForeignWrites::None) | Err(_) => return None,
            Ok(ForeignWrites::By(programs)) => programs,
            Ok(ForeignWrites::Unknown) => Vec::new(),
        };
        self.may_have_changed = true;
        self.journal.because(TriggerKind::Repair);
        self.tables.other_proxy.note_foreign_write();
        self.tables.forget();
        Some(programs)
    }

    /// Whether other programs can change the tables, so that [`Engine::foreign_writes`] has to be called often.
    pub(crate) fn can_be_changed_by_others(&self) -> bool {
        !self.tables.owned()
    }

    /// The objects that other programs put into the tables, as the last read-backs found them, in words; rules and elements are not among
    /// them.
    pub fn take_findings(&mut self) -> Vec<String> {
        self.tables.take_findings()
    }

    /// This process may write now, after another one had the lock: the next sync reads back and compares everything, and what that
    /// process wrote meanwhile was no foreign write.
    pub(crate) fn begin_writing(&mut self) {
        // What that process wrote is of no interest; an error is reported by the next check.
        let _ = self.kernel.foreign_writes(&[], Instant::now());
        self.refresh_node();
        self.journal.because(TriggerKind::Takeover);
        self.tables.forget();
    }

    /// Has the next sync list the node's addresses and compare all that the kernel holds, because that was long ago: what it finds there
    /// another program changed.
    pub fn compare_everything(&mut self) {
        self.may_have_changed = true;
        self.journal.because(TriggerKind::Resync);
        self.refresh_node();
        self.tables.forget();
    }

    /// Everything the tables should hold, as nft text wants it.
    pub fn content(&mut self) -> nft::Ruleset {
        self.recompute();
        self.tables.content()
    }
}

/// Addresses of the node that came and went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressChange {
    /// The addresses that are new.
    pub added: Vec<IpAddr>,
    /// The addresses that the node no longer has.
    pub removed: Vec<IpAddr>,
}

/// A kernel that holds nothing and takes everything: for `render`, which touches none.
#[derive(Default)]
pub struct NoKernel {
    /// What it gives as the node's addresses.
    pub addresses: Vec<IpAddr>,
}

impl Kernel for NoKernel {
    fn commit(&mut self, _: &[Command]) -> Result<Committed, CommitError> {
        Ok(Committed::default())
    }

    fn read(&mut self, _: &nft::TableName) -> Result<Option<nft::TableDump>, ReadError> {
        Ok(None)
    }

    fn elements(&mut self, _: &nft::TableName, _: &nft::Set) -> Result<Vec<nft::Element>, ReadError> {
        Ok(Vec::new())
    }

    fn foreign_writes(&mut self, _: &[nft::TableName], _: Instant) -> Result<ForeignWrites, ReadError> {
        Ok(ForeignWrites::None)
    }

    fn udp_flows(&mut self, _: Family) -> io::Result<Vec<Flow>> {
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, _: &[Flow]) -> io::Result<usize> {
        Ok(0)
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        Ok(self.addresses.clone())
    }
}

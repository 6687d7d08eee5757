//! One sync: after events changed the state, [`Engine::sync`] plans the Services that changed, puts their records (rules and elements) into
//! the tables, commits the difference (`commit`), and informs the observers of what was committed.

mod commit;
mod differences;
mod isolation;
mod maps;
#[cfg(test)]
mod order;
mod stale_clients;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use commit::{Failed, cannot_own};
pub(crate) use differences::{Subject, TableDifference, TableDifferences};
use foldhash::HashSet;
use maps::MapChoice;
use nft::monitor::Process;
use nft::{Command, CommitError, Committed, ReadError, Refusal};
use tracing::{info, warn};

use super::budget::{Budget, Oversized};
use super::conflicts::{self, LostReport};
use super::failure::SyncError;
use super::flows::{Moment, Reconciled};
use super::journal::Journal;
use super::observers::Observers;
use super::pending::{Counted, Pending};
use super::planned::{self, Planned};
use super::problems;
use super::quarantine::{NotProgrammed, Quarantine};
use super::settings;
use super::tables::{Owner, Tables, packets_pass};
use crate::localhost::Feed;
use cluster::source::no_such_node;
use component::config::Config;
use component::logging::once::Once;
use inspect::history::TriggerKind;
use inspect::running::{Problem, ProblemKind};
use node::kernel::{ForeignWrites, Kernel};
use rules::conntrack::{Flow, Listing};
use rules::model::{Change, Dirty, Event, Family, ObjectName, State};
use rules::ruleset::{Layout, NodeFacts};

/// Owns the state of the cluster and the records of the tables, and brings the kernel's tables in line with them.
pub struct Engine<K> {
    config: Config,
    pub(super) state: State,
    pub(super) tables: Tables,
    pub(super) observers: Observers,
    pub(super) pending: Pending,
    pub(super) journal: Journal,
    pub(super) kernel: K,
    interfaces: Vec<IpAddr>,
    /// The names of the Nodes other than this one. Only manifests contain such Nodes, because the API server is asked for this one only.
    other_nodes: BTreeSet<Arc<str>>,
    /// Whether another program may have changed the tables since the last sync that succeeded.
    may_have_changed: bool,
    /// True until Services are planned for the first time, which passes the node's facts to the tables.
    first: bool,
    quarantine: Quarantine,
    /// Whether the kernel supports `destroy element`; assumed until the kernel refuses it.
    destroys: bool,
    budget: Budget,
    maps: MapChoice,
    /// The last logged error of the check for writes of other programs, so that a lasting error is logged once.
    check_failed: Once<String>,
}

/// The result of applying an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How the metrics count the event, even if it changed nothing; `None` if they do not count it.
    pub counted: Option<Counted>,
    /// Whether a sync is to follow.
    pub asks_for_sync: bool,
}

/// The result of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether everything was compared, not only the Services that changed.
    pub full: bool,
    /// The number of Services that were recomputed.
    pub services: usize,
    /// The number of elements added; a changed element counts as added and as removed.
    pub added: usize,
    /// The number of elements removed.
    pub removed: usize,
    /// The size of what the kernel committed; `None` when nothing had to change.
    pub committed: Option<Committed>,
    /// The number of committed transactions: usually one, and none when nothing had to change.
    pub transactions: usize,
    /// The Service that was recomputed, when it was only one.
    pub only_service: Option<ObjectName>,
    /// How long the parts of the sync before and after the transactions took.
    pub timing: Timing,
    /// How long all transactions together took, including the wait for the kernel's answers.
    pub kernel_time: Duration,
    /// Whether another program had changed the tables, so that more had to be written than the cluster's changes.
    pub repaired: bool,
    /// How long each change of a slice waited until it was programmed, for changes with a trigger time (P7).
    pub programmed: Vec<(Family, Duration)>,
    /// The results of examining flows after the commit, by family.
    pub flows: Vec<Reconciled>,
}

/// How long the parts of a sync took, except the transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Reading the tables back.
    pub reading: Duration,
    /// Computing what the tables should hold, and the commands that bring this about.
    pub computing: Duration,
    /// Examining flows.
    pub flows: Duration,
}

impl<K: Kernel> Engine<K> {
    /// Makes an engine that knows nothing of the cluster yet.
    pub fn new(config: Config, layout: Layout, families: &[Family], kernel: K) -> Self {
        let state = State::new(&config.node_name).with_frontend_limit(config.service_elements_limit);
        let budget = Budget::new(config.service_elements_limit);
        let tables = Tables::new(layout, families, &config);
        let maps = MapChoice::new(&config);
        Self {
            config,
            state,
            tables,
            observers: Observers::default(),
            pending: Pending::new(families, SystemTime::now()),
            journal: Journal::default(),
            kernel,
            interfaces: Vec::new(),
            other_nodes: BTreeSet::new(),
            may_have_changed: false,
            first: true,
            quarantine: Quarantine::default(),
            destroys: true,
            budget,
            maps,
            check_failed: Once::default(),
        }
    }

    /// Sends the TCP node ports for loopback addresses of each Service through this feed, if there is one.
    #[must_use]
    pub(crate) fn with_localhost(mut self, feed: Option<Feed>) -> Self {
        self.observers.localhost = feed;
        self
    }

    /// Applies an event to the state.
    pub fn apply(&mut self, event: Event) -> Taken {
        let event = match event {
            Event::NodeApplied(node) => {
                if *node.name != *self.config.node_name {
                    self.other_nodes.insert(Arc::clone(&node.name));
                }
                Event::NodeApplied(node.with_bind_address(self.config.bind_address))
            }
            Event::NodeDeleted(name) => {
                self.other_nodes.remove(&name);
                Event::NodeDeleted(name)
            }
            event => event,
        };
        let mut counted = self.pending.counted(&event);
        if let Some(change) = self.state.apply(event) {
            if self.pending.note(&self.state, &change) {
                self.journal.note(&self.state, &change, Instant::now());
            } else if matches!(change, Change::Slice { .. }) {
                // The event of a deletion does not name the slice's family. The change does, and the node does not serve this family.
                counted = None;
            }
            self.observers.flows.event(&self.state, &change);
        }
        Taken { counted, asks_for_sync: self.state.is_complete() && self.state.is_dirty() }
    }

    /// Returns the families that are served.
    fn families(&self) -> impl Iterator<Item = Family> {
        self.tables.families()
    }

    /// Returns the number of elements of each set of each family's table as of the last commit. Verdict maps are counted together by the
    /// prefix of their names. Dynamic sets, which session affinity fills, are left out.
    pub fn table_counts(&self) -> impl Iterator<Item = (Family, impl Iterator<Item = (&str, usize)>)> {
        self.tables.lens()
    }

    /// Returns the number of endpoints in the slices of all Services.
    pub(crate) fn endpoint_count(&self) -> usize {
        let slices = self.state.services_unordered().flat_map(|service| self.state.slices_of(&service.name));
        slices.map(|slice| slice.endpoints.len()).sum()
    }

    /// Brings the kernel's tables up to date: plans the Services that changed, and commits the difference. `after_pause` says that the last
    /// sync was at least a second ago: then chains that earlier syncs emptied are deleted (F8).
    ///
    /// Order: the Services that the kernel refuses are found before the observers are informed, because their old rules stay in force.
    /// Flows are examined after the commit: while the old rules are in force, they would make a deleted flow again. When a sync fails,
    /// `Observers::committed` is not called.
    ///
    /// # Errors
    /// See [`SyncError`]; the next sync reads back and compares everything.
    pub fn sync(&mut self, after_pause: bool) -> Result<Report, SyncError> {
        let families: Vec<Family> = self.families().collect();
        self.pending.taken();
        self.journal.begin();
        let outcome = self.compute_and_commit(after_pause);
        self.quarantine.synced(outcome.is_ok());
        let outcome = outcome.map_err(SyncError::from);
        self.journal.ended(&self.tables, outcome.as_ref().err());
        let mut report = outcome?;
        let has_rules = |name: &ObjectName| self.tables.presence(&Owner::Service(name.clone())).0;
        let held_back = self.quarantine.names().map(|name| (name, has_rules(name))).collect();
        let start = Instant::now();
        self.observers.committed(&held_back, &families, start);
        self.observers.health_checks.set_unserved(self.tables.foreign().map(|(family, ..)| family));
        report.programmed.retain(|(family, _)| self.tables.own_families().any(|own| own == *family));
        // The flag stays set after a failure, because the retry also repairs what another program changed before it.
        if std::mem::take(&mut self.may_have_changed) && report.committed.is_some() {
            self.observers.flows.all_changed();
        }
        report.flows = self.reconcile_flows(Moment::Sync, start);
        report.timing.flows = start.elapsed();
        self.split_maps(&mut report);
        Ok(report)
    }

    /// Plans the Services that changed, and commits the difference, without the Services that the kernel refuses.
    fn compute_and_commit(&mut self, after_pause: bool) -> Result<Report, Failed> {
        let start = Instant::now();
        self.read_for_maps()?;
        let read = Instant::now();
        let (services, only_service) = self.recompute();
        let computing = read.elapsed();
        let mut outcome = self.bring_about(after_pause);
        while outcome.as_ref().is_err_and(|failed| self.adapts_to(failed)) {
            outcome = self.bring_about(after_pause);
        }
        let mut report = outcome.or_else(|failed| self.isolate(failed))?;
        (report.services, report.only_service) = (services, only_service);
        report.timing.reading += read - start;
        report.timing.computing += computing;
        Ok(report)
    }

    /// Adapts the transactions to what this kernel cannot do, or does not allow this process. Returns whether that changed anything, so that
    /// it is time to try again.
    fn adapts_to(&mut self, failed: &Failed) -> bool {
        match failed {
            Failed::Commit(CommitError::OverLimit { limit, .. }, _) => {
                // The kernel has changed nothing, unless the first of several transactions were carried out.
                self.tables.limit_batches(*limit)
            }
            Failed::Commit(CommitError::Refused(refusals), _) if refusals.iter().any(Refusal::is_about_rights) => {
                // Another program may own a table since it was read.
                let before = self.tables.foreign().count();
                self.tables.read_back(&mut self.kernel).is_ok() && self.tables.foreign().count() > before
            }
            _ if cannot_own(failed) => {
                info!(
                    "This kernel cannot keep other programs from changing the rules; such changes are detected and repaired instead"
                );
                self.tables.disown();
                true
            }
            _ => false,
        }
    }

    /// Notes that rules of another kube-proxy were removed, which translated flows until now.
    pub(super) fn removed_rules_of_others(&mut self) {
        self.observers.flows.all_changed();
    }

    /// Ends the flows that lead to no endpoint any more.
    fn reconcile_flows(&mut self, moment: Moment, now: Instant) -> Vec<Reconciled> {
        let families: Vec<Family> = self.tables.own_families().collect();
        self.observers.flows.reconcile(&self.state, &mut self.kernel, &families, &self.interfaces, (moment, now))
    }

    /// Plans the Services that changed or are to be tried again, or all Services if settings changed that concern all records. Returns how
    /// many Services were planned, and the Service when it is only one.
    fn recompute(&mut self) -> (usize, Option<ObjectName>) {
        self.choose_maps();
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
        self.tables.reserve(names.len());
        self.plan(&names, |engine, name, planned| {
            engine.quarantine.retry(name);
            engine.tables.put_records(name, planned.records);
            engine.observers.planned(name, planned.effects, &families);
        });
        if !self.tables.take_outdated() {
            return (names.len(), names.pop().filter(|_| names.is_empty()));
        }
        self.plan_others(&names);
        (self.state.service_count(), None)
    }

    /// Makes the records of all Services again, except those of Services in `done` and of Services over the limit of elements.
    fn plan_others(&mut self, done: &[ObjectName]) {
        let done: HashSet<&ObjectName> = done.iter().collect();
        let others = self.state.services().map(|service| &service.name).filter(|name| !done.contains(name));
        let others: Vec<ObjectName> = others.cloned().collect();
        self.plan(&others, |engine, name, planned| {
            if planned.fits {
                engine.quarantine.retry(name);
                engine.tables.put_records(name, planned.records);
            }
        });
    }

    /// Plans Services, some at a time, and passes each plan on.
    fn plan(&mut self, names: &[ObjectName], mut take: impl FnMut(&mut Self, &ObjectName, Planned)) {
        for names in names.chunks(planned::AT_ONCE) {
            let plans = planned::all(&self.state, &self.tables, self.budget.limit(), names);
            for (name, planned) in names.iter().zip(plans) {
                self.budget.note(name, planned.size);
                take(self, name, planned);
            }
        }
    }

    /// Warns that external IPs are not served, in one log record for all Services that have some (A7).
    fn warn_of_ignored_external_ips(&self) {
        let count = self.state.services_unordered().filter(|service| service.ignores_external_ips).count();
        if count > 0 {
            warn!(
                numServices = count,
                "The spec.externalIPs of Services are not served, because the feature gate AllowServiceExternalIPs is off"
            );
        }
    }

    /// Lists the node's addresses, and passes them and the facts of the node to the tables and the health checks.
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

    /// Returns the Services that were left out since the last call because the kernel refuses them, except Services that were left out
    /// before for the same reason and were tried again in vain.
    pub fn take_refused_services(&mut self) -> Vec<NotProgrammed> {
        self.quarantine.take_news()
    }

    /// Returns a report about the Services that lost a claim on a frontend since the last call, and still lose it. The report is empty
    /// until every object that existed at the start has arrived: an object that is still missing may change who gets the frontend.
    pub fn take_lost_claims(&mut self) -> LostReport {
        if self.state.is_complete() {
            conflicts::report(&self.state.take_conflicts(conflicts::NAMED))
        } else {
            LostReport::default()
        }
    }

    /// Returns how many claims on frontends are lost.
    pub fn lost_claims(&self) -> usize {
        self.state.lost_claims()
    }

    /// Returns the Services that are left out because the kernel refuses them.
    pub fn quarantined(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.quarantine.names()
    }

    /// Returns sentences about the Services that are left out, a limited number of them, one for each family that is not programmed, and one
    /// if this node has no Node object.
    pub(super) fn left_out(&self) -> Vec<Problem> {
        let has_rules = |name: &ObjectName| self.tables.presence(&Owner::Service(name.clone())).0;
        let quarantined = self.quarantine.all().map(|(name, reason)| (name, reason, has_rules(name)));
        let mut problems = problems::quarantined(&self.state, quarantined);
        problems.extend(problems::oversized(&self.state, self.budget.all()));
        problems.extend(self.tables.foreign().map(|(family, _, program)| Problem::owned(family, program)));
        problems.extend(self.missing_node().map(|name| Problem::of_node(ProblemKind::NodeUnknown, no_such_node(name))));
        problems
    }

    /// Returns [`Engine::left_out`], and sentences about frontends that Services do not get, a limited number of them.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        [self.left_out(), problems::lost_frontends(&self.state)].concat()
    }

    /// Returns the name of this node if it has no Node object once all initial objects have arrived. A directory of manifests need not
    /// contain Nodes, but if it contains other Nodes, it should contain this one too.
    pub(crate) fn missing_node(&self) -> Option<&str> {
        let wants_node = self.config.manifests.is_none() || !self.other_nodes.is_empty();
        let is_missing = wants_node && self.state.is_complete() && self.state.node().is_none();
        is_missing.then_some(&*self.config.node_name)
    }

    /// Returns the Services that went over the limit of elements since the last call.
    pub fn take_oversized(&mut self) -> Vec<Oversized> {
        self.budget.take_news()
    }

    /// Returns the Services that are left out because they are over the limit of elements.
    pub fn oversized(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.budget.names()
    }

    /// Returns whether the kernel holds rules of an earlier process. If so, takes the health checks from those rules until a sync succeeds,
    /// because before that they have no other source.
    pub fn adopt_previous(&mut self) -> bool {
        let mut adopted = false;
        self.list_addresses();
        self.observers.health_checks.set_node(&self.config, self.state.node(), &self.interfaces);
        for (family, table) in self.tables.families().collect::<Vec<_>>().into_iter().zip(self.tables.names()) {
            match self.kernel.read(&table) {
                // No packet passes a table without base chains. A process that ends before its first sync is complete may leave one.
                Ok(Some(dump)) if packets_pass(&dump) && dump.ownership.other().is_none() => {
                    self.observers.health_checks.adopt(&self.config, family, &dump);
                    adopted = true;
                }
                Ok(_) => {}
                Err(error) => warn!(err = %error, %table, "Cannot ask for the rules of a process before this one"),
            }
        }
        adopted
    }

    /// Lists the node's addresses. Returns the new ones and the lost ones, if the next sync has to take them over (G11); `None` if no
    /// address changed that can serve a node port or answer pings.
    ///
    /// # Errors
    /// When the addresses cannot be listed; the known ones stay in use.
    pub(crate) fn addresses_changed(&mut self) -> io::Result<Option<AddressChange>> {
        let addresses = self.kernel.addresses()?;
        if addresses == self.interfaces {
            return Ok(None);
        }
        let used = |addresses: &[IpAddr]| -> BTreeSet<IpAddr> {
            let answer = |family| settings::ping_answer(&self.config, self.state.node(), addresses, family);
            settings::serving(&self.config, addresses).chain(Family::BOTH.into_iter().filter_map(answer)).collect()
        };
        let (before, now) = (used(&self.interfaces), used(&addresses));
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

    /// Notes that at least a second has passed since the last call. While one sync follows another without a pause, chains that were empty
    /// at one call are deleted by a sync after the next call (F8).
    pub fn second_passed(&mut self) {
        self.tables.second_passed();
    }

    /// Returns whether emptied chains are left; they are deleted at least a second after they were emptied.
    pub fn has_emptied_chains(&self) -> bool {
        self.tables.has_emptied_chains()
    }

    /// Checks whether another program wrote to the tables, and if so makes the next sync compare everything. Returns `None` if no program
    /// wrote or the check failed, else the programs that wrote. The list is empty if it is unknown which program wrote, or whether one did.
    pub fn foreign_writes(&mut self) -> Option<Vec<Process>> {
        let tables = if self.tables.owned() { Vec::new() } else { self.tables.own_names() };
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

    /// Checks whether a program that owned a table still does. If not, makes the next sync compare everything, and returns true.
    pub(crate) fn foreign_owner_changed(&mut self) -> bool {
        let has_changed = self.tables.have_changed_owner(&mut self.kernel);
        if has_changed {
            self.may_have_changed = true;
            self.journal.because(TriggerKind::Repair);
            self.tables.forget();
        }
        has_changed
    }

    /// Returns whether other programs can change the tables, so that [`Engine::foreign_writes`] has to be called often.
    pub(crate) fn can_be_changed_by_others(&self) -> bool {
        !self.tables.owned()
    }

    /// Describes what read-backs found in the tables since the last call that this program never makes, such as a counter. Foreign chains,
    /// sets, rules and elements that can be decoded are left out.
    pub fn take_findings(&mut self) -> Vec<String> {
        self.tables.take_findings()
    }

    /// Starts to write after another process had the lock: the next sync reads back and compares everything, and what the other process
    /// wrote does not count as a foreign write.
    pub(crate) fn begin_writing(&mut self) {
        // Discards the kernel's notices of what the other process wrote; the next check reports an error again.
        let _ = self.kernel.foreign_writes(&[], Instant::now());
        self.refresh_node();
        self.journal.because(TriggerKind::Takeover);
        self.tables.forget();
    }

    /// Makes the next sync list the node's addresses and compare all that the kernel holds, because the last comparison is long ago.
    /// Differences that the sync finds count as changes by another program.
    pub fn compare_everything(&mut self) {
        self.may_have_changed = true;
        self.journal.because(TriggerKind::Resync);
        self.refresh_node();
        self.tables.forget();
    }

    /// Returns everything that the tables should hold, as a ruleset that prints as nft text.
    pub fn content(&mut self) -> nft::Ruleset {
        self.recompute();
        self.tables.content()
    }
}

/// Changes of the node's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressChange {
    /// The addresses that are new.
    pub added: Vec<IpAddr>,
    /// The addresses that the node no longer has.
    pub removed: Vec<IpAddr>,
}

/// A stand-in for the kernel that holds nothing and accepts everything, for commands such as `kube-proxy render` that must not change the
/// real one.
#[derive(Default)]
pub struct NoKernel {
    /// The addresses that this kernel reports as the node's.
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

    fn flows(&mut self, _: Family, _: Listing, _: &mut dyn FnMut(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, _: &[Flow], _: Option<IpAddr>) -> io::Result<usize> {
        Ok(0)
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        Ok(self.addresses.clone())
    }
}

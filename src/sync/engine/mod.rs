//! One sync: events have changed the state; [`Engine::sync`] selects the endpoints of the Services that became dirty, puts their records
//! into the tables, reads what the kernel holds unless that is known, has it carry out the difference, and takes over what was committed.

mod differences;
mod isolation;
mod stale_clients;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

pub use differences::{Subject, TableDifference};
use foldhash::HashSet;
use nft::monitor::Process;
use nft::{Command, CommitError, Committed, ReadError, Refusal};
use stale_clients::Done;
use tracing::{info, warn};

use super::budget::{Budget, Oversized};
use super::computed;
use super::failure::SyncError;
use super::flows::{Reconciled, UdpFlows};
use super::health::HealthChecks;
use super::journal::Journal;
use super::locality::NoLocalEndpoints;
use super::lost::{self, LostClaims};
use super::pending::Pending;
use super::quarantine::{Quarantine, RefusedService};
use super::settings;
use super::tables::Tables;
use crate::changes::TriggerKind;
use crate::config::Config;
use crate::conntrack::Flow;
use crate::kernel::{ForeignWrites, Kernel};
use crate::localhost::Feed;
use crate::model::{Dirty, Event, Family, ObjectName, State};
use crate::ruleset::{Layout, NodeFacts};

/// Owns the state of the cluster and the records of the tables, and makes the kernel hold what these say.
pub struct Engine<K> {
    config: Config,
    pub(super) state: State,
    pub(super) tables: Tables,
    pub(super) health_checks: HealthChecks,
    pub(super) no_local_endpoints: NoLocalEndpoints,
    pub(super) pending: Pending,
    pub(super) journal: Journal,
    udp: UdpFlows,
    pub(super) kernel: K,
    interfaces: Vec<IpAddr>,
    /// Another program may have changed the tables since the last sync.
    may_have_changed: bool,
    /// The node's facts were not taken over yet.
    first: bool,
    quarantine: Quarantine,
    /// Whether the kernel has `destroy element`, as far as is known.
    destroys: bool,
    budget: Budget,
    /// Where the TCP node ports for loopback addresses go, if these are served.
    localhost: Option<Feed>,
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
    /// Time from sending the transaction to the kernel's answer.
    pub kernel_time: Duration,
    /// Another program had changed the tables; nothing else was to be done.
    pub repaired: bool,
    /// For each changed slice with a time since when it waited, how long that was.
    pub programmed: Vec<(Family, Duration)>,
    /// The results of examining UDP flows afterwards, by family.
    pub flows: Vec<Reconciled>,
}

impl<K: Kernel> Engine<K> {
    /// An engine that knows nothing of the cluster yet.
    pub fn new(config: Config, layout: Layout, families: &[Family], kernel: K) -> Self {
        let state = State::new(&config.node_name).with_front_limit(config.service_elements_limit);
        let budget = Budget::new(config.service_elements_limit);
        let tables = Tables::new(layout, families, &config);
        Self {
            config,
            state,
            tables,
            health_checks: HealthChecks::default(),
            no_local_endpoints: NoLocalEndpoints::default(),
            pending: Pending::new(families, SystemTime::now()),
            journal: Journal::default(),
            udp: UdpFlows::default(),
            kernel,
            interfaces: Vec::new(),
            may_have_changed: false,
            first: true,
            quarantine: Quarantine::default(),
            destroys: true,
            budget,
            localhost: None,
        }
    }

    /// Has the TCP node ports of each Service brought there, for loopback addresses.
    #[must_use]
    pub(crate) fn with_localhost(mut self, feed: Option<Feed>) -> Self {
        self.localhost = feed;
        self
    }

    /// Takes an event over. Gives whether it asks for a sync.
    pub fn apply(&mut self, event: Event) -> bool {
        let event = match event {
            Event::NodeApplied(node) => Event::NodeApplied(node.with_bind_address(self.config.bind_address)),
            event => event,
        };
        if self.pending.note(&self.state, &event) {
            self.journal.note(&self.state, &event, Instant::now());
        }
        self.state.apply(event);
        self.state.is_complete() && self.state.is_dirty()
    }

    /// The families that are served.
    fn families(&self) -> impl Iterator<Item = Family> {
        self.tables.families()
    }

    /// The sets of each family's table and their numbers of elements as of the last commit; without those that rules fill.
    pub fn table_counts(&self) -> impl Iterator<Item = (Family, impl Iterator<Item = (&str, usize)>)> {
        self.tables.lens()
    }

    /// The number of endpoints in the slices of all Services.
    pub fn endpoint_count(&self) -> usize {
        let slices = self.state.services_unordered().flat_map(|service| self.state.slices_of(&service.name));
        slices.map(|slice| slice.endpoints.len()).sum()
    }

    /// Makes the kernel hold what it should: selects the endpoints of Services that changed, puts their records into the tables, and
    /// has the kernel carry out the difference. `after_pause` says that the last sync was at least a second ago: then the chains that
    /// it emptied are deleted (F8).
    ///
    /// # Errors
    /// See [`SyncError`]; the next sync reads back and compares everything.
    pub fn sync(&mut self, after_pause: bool) -> Result<Report, SyncError> {
        let families: Vec<Family> = self.families().collect();
        let may_have_changed = std::mem::take(&mut self.may_have_changed);
        self.pending.taken();
        self.journal.begin(may_have_changed);
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
        report.services = services;
        report.repaired = may_have_changed && services == 0 && report.committed.is_some();
        if may_have_changed && report.committed.is_some() {
            self.udp.all_changed();
        }
        report.flows = self.udp.reconcile(&self.state, &mut self.kernel, &families, &self.interfaces);
        Ok(report)
    }

    /// Reads what the kernel holds unless that is known, and has it do the rest.
    fn bring_about(&mut self, after_pause: bool) -> Result<Report, Failed> {
        if !self.tables.known() {
            self.tables.read_back(&mut self.kernel)?;
            self.tables.give_way(self.quarantine.names());
        }
        self.carry_out(after_pause)
    }

    /// From what the kernel holds, which is known, to what it should hold: difference, commit, take over.
    fn carry_out(&mut self, after_pause: bool) -> Result<Report, Failed> {
        let full = self.tables.compares_everything();
        let commands = self.tables.transaction(after_pause);
        let stale = self.tables.stale_clients(&mut self.kernel, &commands)?;
        let start = Instant::now();
        let Done { committed, commands, left } = self.commit(commands, stale)?;
        let kernel_time = if committed.is_some() { start.elapsed() } else { Duration::ZERO };
        self.journal.committed(&self.tables, &commands);
        self.tables.committed(&commands, Instant::now());
        if commands.iter().any(deletes_clients) {
            // Until now, a client that was remembered there could make a flow to an endpoint that is gone.
            self.udp.all_changed();
        }
        let programmed = self.pending.succeeded(SystemTime::now());
        let (added, removed) = count(&commands);
        let mut report = Report { full, added, removed, committed, kernel_time, programmed, ..Report::default() };
        self.finish(&left, &mut report);
        Ok(report)
    }

    /// Selects the endpoints of the Services that became dirty, and puts the records into the tables. Gives the number of Services.
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
            self.health_checks.clear();
            self.warn_of_ignored_external_ips();
        }
        if self.first || node || service_cidrs {
            self.refresh_node();
            self.first = false;
        }
        let families: Vec<Family> = self.families().collect();
        let results = computed::all(&self.state, &self.tables, self.budget.limit(), &names);
        self.tables.reserve(names.len());
        let mut localhost = Vec::new();
        for (name, computed) in names.iter().zip(results) {
            self.quarantine.retry(name);
            self.budget.note(name, computed.size);
            self.udp.service_changed(name, computed.has_udp_endpoints);
            self.health_checks.set_service(name, &computed.health_checks, &families);
            self.no_local_endpoints.set_service(name, computed.no_local_endpoints);
            self.tables.put_records(name, computed.records);
            if self.localhost.is_some() {
                localhost.push((name.clone(), computed.localhost));
            }
        }
        self.localhost.iter().for_each(|feed| feed.put(std::mem::take(&mut localhost)));
        if !self.tables.take_outdated() {
            return names.len();
        }
        let done: HashSet<&ObjectName> = names.iter().collect();
        let others = self.state.services().map(|service| &service.name).filter(|name| !done.contains(name));
        let others: Vec<ObjectName> = others.cloned().collect();
        let results = computed::all(&self.state, &self.tables, self.budget.limit(), &others);
        for (name, computed) in others.iter().zip(results) {
            self.budget.note(name, computed.size);
            if computed.fits {
                self.quarantine.retry(name);
                self.tables.put_records(name, computed.records);
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
        self.health_checks.set_node(&self.config, self.state.node(), &self.interfaces);
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

    /// The Services that lost a claim on a front since the last call, and still lose it. Nothing before every object that existed at
    /// the start has arrived: until then another Service may still claim the front first.
    pub fn take_lost_claims(&mut self) -> Vec<LostClaims> {
        if self.state.is_complete() { lost::by_loser(&self.state.take_conflicts()) } else { Vec::new() }
    }

    /// The Services that are left out because the kernel refuses them.
    pub fn quarantined(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.quarantine.names()
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
        self.health_checks.set_node(&self.config, self.state.node(), &self.interfaces);
        for (family, table) in self.tables.families().collect::<Vec<_>>().into_iter().zip(self.tables.names()) {
            match self.kernel.read(&table) {
                Ok(Some(dump)) if !dump.chains.is_empty() => {
                    self.health_checks.adopt(&self.config, family, &dump);
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
    pub fn addresses_changed(&mut self) -> Option<AddressChange> {
        let addresses = self.kernel.addresses().ok().filter(|addresses| *addresses != self.interfaces)?;
        let before: BTreeSet<IpAddr> = settings::serving(&self.config, &self.interfaces).collect();
        let now: BTreeSet<IpAddr> = settings::serving(&self.config, &addresses).collect();
        let added: Vec<IpAddr> = now.difference(&before).copied().collect();
        let removed: Vec<IpAddr> = before.difference(&now).copied().collect();
        self.interfaces = addresses;
        if added.is_empty() && removed.is_empty() {
            return None;
        }
        self.refresh_node();
        self.journal.because(TriggerKind::Addresses);
        Some(AddressChange { added, removed })
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
        let programs = match self.kernel.foreign_writes(&self.tables.names()) {
            Ok(ForeignWrites::None) => return None,
            Ok(ForeignWrites::By(programs)) => programs,
            Ok(ForeignWrites::Unknown) => Vec::new(),
            Err(error) => {
                warn!(err = %error, "Cannot ask whether another program changed our rules");
                return None;
            }
        };
        self.may_have_changed = true;
        self.journal.because(TriggerKind::Repair);
        self.tables.other_proxy.note_foreign_write();
        self.tables.forget();
        Some(programs)
    }

    /// The objects that other programs put into the tables, as the last read-backs found them, in words; rules and elements are not among
    /// them.
    pub fn take_findings(&mut self) -> Vec<String> {
        self.tables.take_findings()
    }

    /// This process may write now, after another one had the lock: the next sync reads back and compares everything, and what that
    /// process wrote meanwhile was no foreign write.
    pub fn begin_turn(&mut self) {
        if let Err(error) = self.kernel.foreign_writes(&self.tables.names()) {
            warn!(err = %error, "Cannot ask whether another program changed our rules");
        }
        self.refresh_node();
        self.journal.because(TriggerKind::Takeover);
        self.tables.forget();
    }

    /// Has the next sync list the node's addresses and compare all that the kernel holds.
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
pub struct AddressChange {
    /// The addresses that are new.
    pub added: Vec<IpAddr>,
    /// The addresses that the node no longer has.
    pub removed: Vec<IpAddr>,
}

/// Why the tables are not what they should be.
enum Failed {
    /// The kernel did not commit these commands.
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

/// Whether it failed only because this kernel has no tables that are owned and outlive their owner.
fn cannot_own(failed: &Failed) -> bool {
    let Failed::Commit(CommitError::Refused(refusals), commands) = failed else { return false };
    let command = |refusal: &Refusal| refusal.command.and_then(|index| commands.get(index));
    refusals.iter().any(|refusal| refusal.is_unsupported() && matches!(command(refusal), Some(Command::OwnTable(_))))
}

/// Whether it takes away clients that rules remembered.
fn deletes_clients(command: &Command) -> bool {
    matches!(command, Command::DeleteElements(_, set, _) | Command::DestroyElements(_, set, _) if set.flags.dynamic)
}

fn count(commands: &[Command]) -> (usize, usize) {
    commands.iter().fold((0, 0), |(added, removed), command| match command {
        Command::AddElements(_, _, list) => (added + list.len(), removed),
        Command::DeleteElements(_, _, list) | Command::DestroyElements(_, _, list) => (added, removed + list.len()),
        _ => (added, removed),
    })
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

    fn foreign_writes(&mut self, _: &[nft::TableName]) -> Result<ForeignWrites, ReadError> {
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

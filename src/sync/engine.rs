//! One sync, in five steps: recompute what is dirty, read back if need be, plan, commit, take over.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Command, CommitError, Committed, ReadError};
use tracing::warn;

use super::flows::{Reconciled, UdpFlows};
use super::health::HealthChecks;
use super::tables::Tables;
use crate::config::Config;
use crate::conntrack::Flow;
use crate::diff::Scope;
use crate::health::Snapshot;
use crate::kernel::Kernel;
use crate::model::{Dirty, Event, Family, State};
use crate::ruleset::{Layout, NodeFacts};
use crate::select::select;

/// Owns the state of the cluster and the tables, and makes the kernel follow.
pub struct Engine<K, L> {
    config: Config,
    state: State,
    tables: Tables<L>,
    health_checks: HealthChecks,
    udp: UdpFlows,
    kernel: K,
    /// The kernel's generation after our last commit; another one means that somebody else wrote.
    generation: Option<u32>,
    interfaces: Vec<IpAddr>,
    /// The node's facts were not taken over yet.
    first: bool,
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
    /// UDP flows that were looked through afterwards, by family.
    pub flows: Vec<Reconciled>,
}

/// Why a sync failed. The rules from before it are in force.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The kernel did not commit the transaction.
    #[error("cannot commit: {0}")]
    Commit(#[from] CommitError),
    /// The tables could not be read back.
    #[error("cannot read the tables: {0}")]
    Read(#[from] ReadError),
}

impl<K: Kernel, L: Layout> Engine<K, L> {
    /// An engine that knows nothing of the cluster yet.
    pub fn new(config: Config, layout: L, families: &[Family], kernel: K) -> Self {
        let state = State::new(&config.node_name);
        let tables = Tables::new(layout, families, &config);
        let health_checks = HealthChecks::default();
        let udp = UdpFlows::default();
        let interfaces = Vec::new();
        Self { config, state, tables, health_checks, udp, kernel, generation: None, interfaces, first: true }
    }

    /// Takes an event over. Says whether it asks for a sync.
    pub fn apply(&mut self, event: Event) -> bool {
        self.state.apply(event);
        for conflict in self.state.take_conflicts() {
            warn!("{conflict}");
        }
        self.state.is_complete() && self.state.is_dirty()
    }

    /// Whether every object that existed at the start has arrived (G1).
    pub fn is_ready(&self) -> bool {
        self.state.is_complete()
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        self.tables.families()
    }

    /// Whether the node is eligible for traffic; `None` while it is unknown (L5).
    pub fn node_eligible(&self) -> Option<bool> {
        self.state.node().map(|node| node.eligible)
    }

    /// The health checks as of the last sync (K1).
    pub fn health_checks(&self) -> Arc<Snapshot> {
        self.health_checks.snapshot()
    }

    /// Makes the kernel hold what it should. `settled` says that the last sync was at least a second ago: then what it left to
    /// be finished is finished (F8).
    ///
    /// # Errors
    /// See [`SyncError`]; the next sync reads back and compares everything.
    pub fn sync(&mut self, settled: bool) -> Result<Report, SyncError> {
        let families: Vec<Family> = self.families().collect();
        let services = self.recompute();
        let scope = self.read_back()?;
        let commands = self.tables.transaction(&mut self.kernel, scope, settled)?;
        let committed = self.commit(&commands)?;
        self.tables.committed(&commands, settled);
        let (added, removed) = count(&commands);
        let flows = self.udp.reconcile(&self.state, &mut self.kernel, &families, &self.interfaces);
        Ok(Report { full: scope == Scope::Everything, services, added, removed, committed, flows })
    }

    fn recompute(&mut self) -> usize {
        let Dirty { services, node, service_cidrs } = self.state.take_dirty();
        if self.first || node || service_cidrs {
            self.refresh_node();
            self.first = false;
        }
        let families: Vec<Family> = self.families().collect();
        for name in &services {
            self.health_checks.set_service(&self.state, name, &families);
            self.udp.service_changed(&self.state, name);
            self.tables.set_service(name, select(&self.state, name).as_ref());
        }
        services.len()
    }

    /// Takes over the node's facts and addresses.
    fn refresh_node(&mut self) {
        match self.kernel.addresses() {
            Ok(addresses) => self.interfaces = addresses,
            Err(error) => warn!(%error, "cannot list the node's addresses; node ports keep those known before"),
        }
        let facts = NodeFacts { service_cidrs: self.state.service_cidrs(), ..NodeFacts::default() };
        self.health_checks.set_node(&self.config, self.state.node(), &self.interfaces);
        self.tables.set_node(&self.config, self.state.node(), &self.interfaces, facts);
    }

    /// Makes sure that what the kernel holds is known, and says how much is to be compared.
    fn read_back(&mut self) -> Result<Scope, SyncError> {
        if self.tables.known() {
            return Ok(Scope::Touched);
        }
        self.generation = self.kernel.generation().ok();
        self.tables.read_back(&mut self.kernel)?;
        Ok(Scope::Everything)
    }

    fn commit(&mut self, commands: &[Command]) -> Result<Option<Committed>, SyncError> {
        if commands.is_empty() {
            return Ok(None);
        }
        let before = self.kernel.generation().ok();
        match self.kernel.commit(commands) {
            Ok(committed) => {
                // Only if nobody else wrote in between is the new generation one that we know the content of.
                let after = self.kernel.generation().ok();
                let ours = before.zip(after).is_some_and(|(before, after)| after == before.wrapping_add(1));
                self.generation = after.filter(|_| ours);
                Ok(Some(committed))
            }
            Err(error) => {
                self.tables.forget();
                Err(error.into())
            }
        }
    }

    /// Looks at the node's addresses. Says whether the next sync has to take over other ones (G11).
    pub fn addresses_changed(&mut self) -> bool {
        let changed = self.kernel.addresses().is_ok_and(|addresses| addresses != self.interfaces);
        if changed {
            self.refresh_node();
        }
        changed
    }

    /// Whether something is left to do that has to wait for a second.
    pub fn unfinished(&self) -> bool {
        self.tables.unfinished()
    }

    /// Looks whether somebody else wrote rules since our last commit, and if so has the next sync compare everything. Says
    /// whether a sync is needed.
    pub fn check(&mut self) -> bool {
        let generation = match self.kernel.generation() {
            Ok(generation) => generation,
            Err(error) => {
                warn!(%error, "cannot ask for the generation of the rules");
                return false;
            }
        };
        if self.generation == Some(generation) {
            return false;
        }
        // The tables are read by the sync that follows; a write between here and there is in what it reads.
        self.generation = Some(generation);
        self.tables.forget();
        true
    }

    /// Has the next sync look at everything again: the node's addresses, and what the kernel holds.
    pub fn distrust(&mut self) {
        self.refresh_node();
        self.tables.forget();
    }

    /// Everything the tables should hold, as nft text wants it.
    pub fn content(&mut self) -> nft::Ruleset {
        self.recompute();
        self.tables.content()
    }
}

fn count(commands: &[Command]) -> (usize, usize) {
    commands.iter().fold((0, 0), |(added, removed), command| match command {
        Command::AddElements(_, _, list) => (added + list.len(), removed),
        Command::DeleteElements(_, _, list) => (added, removed + list.len()),
        _ => (added, removed),
    })
}

/// A kernel for `render`, which touches none.
pub struct NoKernel;

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

    fn generation(&mut self) -> Result<u32, ReadError> {
        Ok(0)
    }

    fn udp_flows(&mut self, _: Family) -> io::Result<Vec<Flow>> {
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, _: &[Flow]) -> io::Result<usize> {
        Ok(0)
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        crate::kernel::addresses::list()
    }
}

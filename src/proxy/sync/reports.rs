//! Sends the loop's reports to the log, the metrics, the health server, and the functions that make Kubernetes events.
//!
//! Takes the result of a sync or a check and does not change it.

use std::time::{Duration, Instant, SystemTime};

use tracing::{debug, error, info, warn};

use super::conflicts::LostReport;
use super::ephemeral_ports::Finding;
use super::no_local_endpoints::Counts;
use super::repairs::Unlogged;
use super::{LostFrontend, NotProgrammed, Report, Sync};
use crate::metrics::Transactions;
use cluster::source::{NODE_REMEDY, no_such_node};
use component::logging::{duration, list};
use inspect::history::CommitOutcome;
use node::kernel::Kernel;
use node::kernel::local_ports::LocalPorts;
use rules::ruleset::reading;

impl<K: Kernel> Sync<K> {
    pub(super) fn report_pending(&self) {
        let (slices, services) = self.engine.pending.numbers();
        self.metrics.pending(slices, services);
    }

    pub(super) fn report_left_out(&mut self) {
        self.metrics.quarantined(self.engine.quarantined().len());
        self.health.quarantined(self.engine.quarantined());
        self.metrics.oversized(self.engine.oversized().len());
        self.health.oversized(self.engine.oversized());
        self.report_problems();
        for oversized in self.engine.take_oversized() {
            error!(err = %oversized, service = %oversized.service, "Service is left out until it is smaller");
            self.engine.journal.left_out(&oversized.service, CommitOutcome::Oversized, &oversized.to_string());
            if let Some(report) = &self.on_not_programmed {
                let reason = format!("nothing of it is programmed, because {oversized}");
                report(NotProgrammed { service: oversized.service, reason });
            }
        }
        for refused in self.engine.take_refused_services() {
            let NotProgrammed { service, reason } = &refused;
            error!(err = reason, %service, "Service is left out until it changes, because the kernel refuses it");
            self.engine.journal.left_out(service, CommitOutcome::Quarantined, reason);
            if let Some(report) = &self.on_not_programmed {
                report(refused);
            }
        }
    }

    pub(super) fn report_other_proxy(&mut self) {
        if self.engine.tables.other_proxy.take_news() {
            warn!(
                "Another kube-proxy, in mode nftables, writes to the same tables; its own rules are left alone, and its changes \
                 of ours are repaired: end one of the two"
            );
            self.on_other_proxy.iter().for_each(|report| report());
        }
    }

    /// Reports that a sync succeeded. While the Node object of this node is missing, the proxy is not ready, so that a rolling update with
    /// a wrong node name stops at the first node.
    pub(super) fn report_ready(&mut self) {
        let Some(node) = self.engine.missing_node() else {
            self.node_is_missing = false;
            return match self.foreign_owners.reason() {
                None => self.health.ready(),
                Some(reason) => self.health.not_ready(reason),
            };
        };
        let reason = no_such_node(node);
        if !self.node_is_missing {
            error!(node, err = reason, remedy = NODE_REMEDY, "The Node does not exist; not ready until it does");
        }
        self.health.not_ready(format!("{reason}; {NODE_REMEDY}"));
        self.node_is_missing = true;
    }

    /// Tells the health pages whether an operator drains the node, and logs when that begins and ends (L10).
    pub(super) fn report_drained(&mut self) {
        let is_drained = self.engine.state.node().is_some_and(|node| node.drained);
        if is_drained != self.is_drained {
            let answer = if is_drained { "503" } else { "what they say without the mark" };
            info!(
                drained = is_drained,
                answer,
                "The mark of the Node that drains this node changed: /healthz and health-check node ports answer"
            );
            self.health.drained(is_drained);
        }
        self.is_drained = is_drained;
    }

    /// Sets the problems that the health pages show.
    fn report_problems(&mut self) {
        let mut problems = self.engine.left_out();
        problems.extend_from_slice(self.lost_frontends.current(&self.engine.state));
        self.health.problems(problems);
    }

    pub(super) fn report_lost_claims(&mut self) {
        let lost = self.engine.lost_claims();
        self.metrics.lost_claims(lost);
        self.health.lost_claims(lost);
        let report = self.engine.take_lost_claims();
        // Only notes the claims: each change of a claim leads to a sync, and the sync puts the claims on the health pages.
        self.lost_frontends.note(lost, !report.frontends.is_empty());
        let LostReport { frontends, left_out } = self.recent_reports.limited(report, Instant::now());
        for LostFrontend { services, reason, .. } in frontends {
            match &services[..] {
                [conflicts] => {
                    warn!(service = %conflicts.service, reason, "Service does not get an address or a node port")
                }
                _ => warn!(reason, "Services do not get an address or a node port"),
            }
            if let Some(report) = &self.on_lost_claims {
                services.into_iter().for_each(report);
            }
        }
        if left_out > 0 {
            warn!(
                numFrontends = left_out,
                "Further Services do not get an address or a node port; kubeproxy_nft_lost_claims has the number of such claims"
            );
        }
    }

    /// Reports node ports that the kernel may give to programs of this node (N6). After a full comparison, the sysctls are read again.
    pub(super) fn report_ephemeral_ports(&mut self, full: bool) {
        let Some((ports, report)) = &mut self.ephemeral_ports else { return };
        if full {
            match LocalPorts::read() {
                Ok(local) => ports.sysctls(local, self.engine.state.services_unordered()),
                Err(error) => {
                    debug!(err = %error, "It is not known which node ports the kernel may give to programs of this node")
                }
            }
        }
        if let Some(Finding { ports, reason, remedy }) = ports.report(Instant::now()) {
            warn!(nodePorts = ports, reason, remedy, "Node ports are ephemeral ports of this node");
            report(format!("node ports {ports} are ephemeral ports of this node: {reason}; {remedy}"));
        }
    }

    pub(super) fn report_queued(&self) {
        for family in self.engine.tables.families() {
            self.metrics.sync_queued(family, SystemTime::now());
            self.health.queued(family, Instant::now());
        }
    }

    /// Logs what other programs did to the tables, unless that was logged often enough lately.
    pub(super) fn log_foreign_writes(&mut self, now: Instant) {
        let Some(mut unlogged) = self.repairs.take_due(now) else { return };
        let has_repair = unlogged.repair.is_some();
        self.tell_repairs(&mut unlogged);
        let Unlogged { times, by, found, .. } = unlogged;
        let is_known = has_repair || !by.is_empty() || !found.is_empty();
        let is_nameless = by.is_empty() && times > 0;
        let by = if is_nameless { list(["unknown until it writes again"]) } else { list(by) };
        let found = list(found);
        if self.engine.tables.other_proxy.is_present(now) {
            debug!(times, by, found, "Another kube-proxy changed our rules; comparing and repairing them");
        } else if is_known {
            warn!(times, by, found, "Another program changed our rules; comparing and repairing them");
        } else {
            debug!(times, "Another program wrote to nf_tables; our rules are as they should be");
        }
    }

    /// Logs the first successful sync: from now on the node serves. Warns if the configured number of maps leaves a map so large that it
    /// takes long to read back.
    pub(super) fn log_first(&self, took: Duration) {
        let (elapsed, since_start) = (duration(took), duration(self.started.elapsed()));
        let (services, endpoints) = (self.engine.state.service_count(), self.engine.endpoint_count());
        info!(
            numServices = services, numEndpoints = endpoints, %elapsed, sinceStart = %since_start,
            "Synced for the first time"
        );
        if self.engine.chooses_maps() {
            return;
        }
        let mut counts = self.engine.table_counts().flat_map(|(_, counts)| counts);
        if let Some((map, elements)) = counts.find(|(map, elements)| reading::takes_long(map, *elements)) {
            warn!(
                map,
                elements,
                "Reading this map back takes long, because the kernel lists it in a time that grows with the square of its size; leave \
                 nftables.endpointMaps (--endpoint-maps) out, or set it to 64"
            );
        }
    }

    /// Adds the results of a successful sync, or of a check of session-affinity clients, to the metrics.
    pub(super) fn count(&self, report: &Report) {
        for (family, latency) in &report.programmed {
            self.metrics.programmed(*family, *latency);
        }
        for done in &report.flows {
            self.metrics.flows_reconciled(done.family, done.took, number(done.deleted), number(done.walks));
        }
        for family in self.engine.tables.families() {
            let Counts { internal, external } = self.engine.observers.no_local_endpoints.total(family);
            self.metrics.no_local_endpoints(family, internal, external);
        }
        if let Some(committed) = &report.committed {
            self.metrics.transactions(Transactions {
                count: number(report.transactions),
                added: number(report.added),
                removed: number(report.removed),
                bytes: number(committed.bytes),
                kernel_time: report.kernel_time,
            });
        }
        if report.full || report.committed.is_some() {
            self.engine.table_counts().for_each(|(family, counts)| self.metrics.table_elements(family, counts));
        }
        if report.full && self.foreign_owners.are_none() {
            self.metrics.verified(SystemTime::now());
        }
        if report.repaired {
            self.metrics.repaired();
        }
    }
}

/// Converts a count for the metrics.
fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

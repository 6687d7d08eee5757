//! The metrics of this process, and the HTTP server that shows them.
//!
//! Takes plain numbers from the other modules; returns the text that Prometheus scrapes. Names, types, labels and buckets are upstream's,
//! except for metrics that start with `kubeproxy_nft_`, which only this program has. `families` declares the metrics that are counted here;
//! `conntrack`, `process` and `services` declare those whose numbers the kernel counts. A counter in `families` shows 0 from the start for
//! labels that are known in advance; any other labelled series appears when it is first used.
//!
//! Left out: most `go_*` metrics, because this is no Go program, and the `rest_client_*` metrics that describe parts of upstream's client
//! library (its rate limiter, retries, transports and DNS look-ups).

mod conntrack;
mod families;
mod process;
pub(crate) mod server;
mod services;
mod text;

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rules::model::{Family, Protocol};

use families::{
    ByBuild, ByCode, ByFeature, ByHost, ByKind, ByMap, ByPolicy, ByProtocol, ByRequest, ByResource, Families, ip_family,
};

/// The sum of the committed transactions of a sync, or of a check of session-affinity clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transactions {
    /// The number of transactions.
    pub(crate) count: u64,
    /// Elements added to sets and maps.
    pub(crate) added: u64,
    /// Elements removed from sets and maps.
    pub(crate) removed: u64,
    /// Bytes of the transactions' netlink messages.
    pub(crate) bytes: u64,
    /// How long the kernel took for them.
    pub(crate) kernel_time: Duration,
}

/// The labels of `kubernetes_build_info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Build {
    /// Kubernetes' major version.
    pub(crate) major: String,
    /// Kubernetes' minor version.
    pub(crate) minor: String,
    /// The version that this process reports.
    pub(crate) git_version: String,
    /// `os/architecture` in Go's names.
    pub(crate) platform: String,
}

/// The metrics of this process. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct Metrics {
    inner: Arc<Families>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Makes the metrics, with all numbers at zero.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: Arc::new(Families::new()) }
    }

    /// Makes the metrics, and adds those of connection tracking, which are read at each scrape.
    #[must_use]
    pub(crate) fn with_conntrack(read: conntrack::Read) -> Self {
        let mut families = Families::new();
        families.registry.register_collector(Box::new(conntrack::Conntrack(read)));
        Self { inner: Arc::new(families) }
    }

    /// Notes for a family that a sync was requested, or that the sync loop starts.
    pub(crate) fn sync_queued(&self, family: Family, at: SystemTime) {
        self.inner.last_queued_timestamp.get_or_create(&family.into()).set(seconds(at));
    }

    /// Notes for a family that a sync ended: when, how long it took, whether it was a full one, and whether it succeeded.
    pub(crate) fn sync_finished(&self, family: Family, at: SystemTime, took: Duration, full: bool, ok: bool) {
        let labels = family.into();
        let kind = if full { &self.inner.full_duration } else { &self.inner.partial_duration };
        for histograms in [&self.inner.duration, kind] {
            histograms.get_or_create(&labels).observe(took.as_secs_f64());
        }
        if ok {
            self.inner.last_timestamp.get_or_create(&labels).set(seconds(at));
        } else {
            self.inner.sync_failures.get_or_create(&labels).inc();
        }
    }

    /// Notes the time from a change of an EndpointSlice until the kernel had the rules for it.
    pub(crate) fn programmed(&self, family: Family, latency: Duration) {
        self.inner.programming.get_or_create(&family.into()).observe(latency.as_secs_f64());
    }

    /// Sets whether another program owns the table of a family, so that the family is not programmed.
    pub(crate) fn foreign_owner(&self, family: Family, is_owned: bool) {
        self.inner.own.foreign_owner.get_or_create(&family.into()).set(is_owned.into());
    }

    /// Counts a failed sync in which the kernel refused to delete a chain or set of this family.
    pub(crate) fn cleanup_failed(&self, family: Family) {
        self.inner.cleanup_failures.get_or_create(&family.into()).inc();
    }

    /// Counts an event about an EndpointSlice of a served family or about one that was deleted, whether it changed something or not.
    pub(crate) fn endpoint_change(&self) {
        self.inner.endpoint_changes.inc();
    }

    /// Counts an event about a Service, once for each served family.
    pub(crate) fn service_change(&self, families: usize) {
        self.inner.service_changes.inc_by(u64::try_from(families).unwrap_or(u64::MAX));
    }

    /// Sets the number of changes of EndpointSlices since the last sync, and the number of Services that changed since then.
    pub(crate) fn pending(&self, slices: usize, services: usize) {
        self.inner.endpoint_changes_pending.set(number(slices));
        self.inner.service_changes_pending.set(number(services));
    }

    /// Sets the numbers of service ports of a family with traffic policy Local that have endpoints, but none on this node.
    pub(crate) fn no_local_endpoints(&self, family: Family, internal: usize, external: usize) {
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let labels = ByPolicy { ip_family: ip_family(family), traffic_policy };
            self.inner.no_local_endpoints.get_or_create(&labels).set(number(count));
        }
    }

    /// Notes that the flows of a family were checked, how long that took, how many stale ones were deleted, and how many lists it took.
    pub(crate) fn flows_reconciled(&self, family: Family, took: Duration, deleted: u64, walks: u64) {
        let labels = family.into();
        self.inner.reconciler_duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.inner.reconciler_deleted.get_or_create(&labels).inc_by(deleted);
        self.inner.own.conntrack_walks.inc_by(walks);
    }

    /// Counts a response of `/healthz` with this HTTP status.
    pub(crate) fn healthz(&self, code: u16) {
        self.inner.healthz.get_or_create(&ByCode { code }).inc();
    }

    /// Counts a response of `/livez` with this HTTP status.
    pub(crate) fn livez(&self, code: u16) {
        self.inner.livez.get_or_create(&ByCode { code }).inc();
    }

    /// Counts a response of `/readyz` with this HTTP status.
    pub(crate) fn readyz(&self, code: u16) {
        self.inner.own.readyz.get_or_create(&ByCode { code }).inc();
    }

    /// Sets the version that this program reports, in place of the one before.
    pub(crate) fn build_info(&self, build: Build) {
        let Build { major, minor, git_version, platform } = build;
        let unknown = String::new;
        let labels = ByBuild {
            build_date: unknown(),
            compiler: "rustc".to_owned(),
            git_commit: unknown(),
            git_tree_state: unknown(),
            git_version,
            go_version: unknown(),
            major,
            minor,
            platform,
        };
        // A scrape between these two steps has no such series; the next one has it.
        self.inner.build_info.clear();
        self.inner.build_info.get_or_create(&labels).set(1);
    }

    /// Sets whether a feature gate is on. `stage` is `ALPHA`, `BETA`, `DEPRECATED`, or empty for a stable feature.
    pub(crate) fn feature_enabled(&self, name: &'static str, stage: &'static str, enabled: bool) {
        self.inner.features.get_or_create(&ByFeature { name, stage }).set(i64::from(enabled));
    }

    /// Adds the committed transactions of a sync.
    pub(crate) fn transactions(&self, transactions: Transactions) {
        let own = &self.inner.own;
        own.transactions.inc_by(transactions.count);
        own.elements_added.inc_by(transactions.added);
        own.elements_removed.inc_by(transactions.removed);
        own.bytes.inc_by(transactions.bytes);
        own.kernel_time.observe(transactions.kernel_time.as_secs_f64());
    }

    /// Sets the numbers of elements of the sets and maps of a family's table. Removes the series of all other maps of the family.
    pub(crate) fn table_elements<'a>(&self, family: Family, counts: impl Iterator<Item = (&'a str, usize)>) {
        let own = &self.inner.own;
        let ip_family = ip_family(family);
        let mut named = BTreeSet::new();
        for (map, count) in counts {
            let labels = ByMap { ip_family, map: map.to_owned() };
            own.elements.get_or_create(&labels).set(number(count));
            named.insert(labels);
        }
        // After a panic of another thread the set is still consistent.
        let mut maps = own.maps.lock().unwrap_or_else(PoisonError::into_inner);
        maps.retain(|labels| {
            let stays = labels.ip_family != ip_family || named.contains(labels);
            if !stays {
                own.elements.remove(labels);
            }
            stays
        });
        maps.extend(named);
    }

    /// Counts that another program was found to have written to this proxy's tables.
    pub(crate) fn foreign_change(&self) {
        self.inner.own.foreign_changes.inc();
    }

    /// Counts a sync that repaired changes of another program.
    pub(crate) fn repaired(&self) {
        self.inner.own.repairs.inc();
    }

    /// Sets when all tables were last read back and compared.
    pub(crate) fn verified(&self, at: SystemTime) {
        self.inner.own.verified.set(seconds(at));
    }

    /// Sets the number of Services whose rules the kernel refuses.
    pub(crate) fn quarantined(&self, services: usize) {
        self.inner.own.quarantined.set(number(services));
    }

    /// Sets the number of addresses with a port, and node ports, that a Service claims and does not get.
    pub(crate) fn lost_claims(&self, claims: usize) {
        self.inner.own.lost_claims.set(number(claims));
    }

    /// Sets the number of Services that are left out because they need more elements than the limit.
    pub(crate) fn oversized(&self, services: usize) {
        self.inner.own.oversized.set(number(services));
    }

    /// Sets the number of listeners for node ports on loopback addresses.
    pub(crate) fn localhost_listeners(&self, family: Family, listeners: usize) {
        self.inner.localhost.listeners.get_or_create(&family.into()).set(number(listeners));
    }

    /// Counts a node port on a loopback address that cannot be listened on.
    pub(crate) fn localhost_listen_failed(&self, family: Family) {
        self.inner.localhost.failures.get_or_create(&family.into()).inc();
    }

    /// Adds to the number of refused packets to node ports on loopback addresses.
    pub(crate) fn localhost_rejected(&self, family: Family, protocol: Protocol, packets: u64) {
        self.inner.localhost.rejected.get_or_create(&ByProtocol::new(family, protocol)).inc_by(packets);
    }

    /// Adds invalid packets of endpoints on this node that were dropped (D27).
    pub(crate) fn invalid_dropped(&self, family: Family, packets: u64) {
        self.inner.own.invalid_dropped.get_or_create(&family.into()).inc_by(packets);
    }

    /// Counts a failed transaction or dump. `kind` is one of a few fixed words.
    pub(crate) fn netlink_error(&self, kind: &'static str) {
        self.inner.own.errors.get_or_create(&ByKind { kind }).inc();
    }

    /// Counts a request to the API server at a URL, with the HTTP status of the response; `None` if there was no response.
    pub(crate) fn api_request(&self, method: &'static str, url: &str, code: Option<u16>, took: Duration) {
        let client = &self.inner.client;
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        client.requests.get_or_create(&ByRequest { code, host: host(url), method }).inc();
        client.duration.get_or_create(&ByHost { host: host(url), verb: method }).observe(took.as_secs_f64());
    }

    /// Notes the size of the API server's response to a GET.
    pub(crate) fn api_answer_size(&self, url: &str, bytes: usize) {
        let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.inner.client.response_size.get_or_create(&ByHost { host: host(url), verb: "GET" }).observe(bytes);
    }

    /// Sets whether the watch of a kind of objects is connected. `resource` is the kind, such as `Service`.
    pub(crate) fn source_connected(&self, resource: &'static str, is: bool) {
        self.inner.own.connected.get_or_create(&ByResource { resource }).set(i64::from(is));
        // The series exists as soon as the kind is watched; 0 means that nothing was received yet.
        drop(self.inner.own.last_received.get_or_create(&ByResource { resource }));
    }

    /// Sets when the API server last sent something about a kind of objects: objects, changes or bookmarks.
    pub(crate) fn source_received(&self, resource: &'static str, at: SystemTime) {
        self.inner.own.last_received.get_or_create(&ByResource { resource }).set(seconds(at));
    }

    /// Counts that the watch of a kind of objects works again after a failure. `resource` is the kind, such as `Service`.
    pub(crate) fn source_reconnected(&self, resource: &'static str) {
        self.inner.own.reconnects.get_or_create(&ByResource { resource }).inc();
    }

    /// Counts a new problem with an object of which a part or all is ignored. `kind` is the object's kind, such as `Service`, or `unknown`.
    pub(crate) fn object_rejected(&self, kind: &'static str) {
        self.inner.own.rejected.get_or_create(&ByKind { kind }).inc();
    }

    /// Adds log lines that were dropped.
    pub(crate) fn log_lines_dropped(&self, lines: u64) {
        self.inner.own.log_lines_dropped.inc_by(lines);
    }

    /// Replaces the totals of the counters in the rules.
    pub(crate) fn counted(&self, counted: node::counters::Counted) {
        self.inner.own.counted.set(counted);
    }

    /// Returns all metrics in the classic text format of Prometheus, version 0.0.4.
    #[must_use]
    pub fn text(&self) -> String {
        text::classic(&self.open_metrics())
    }

    /// Returns all metrics in the text format of OpenMetrics, version 1.0.0.
    #[must_use]
    pub(crate) fn open_metrics(&self) -> String {
        text::open_metrics(&self.inner.registry)
    }
}

fn seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns the host name or address in a URL, with the port if the URL has one.
fn host(url: &str) -> String {
    let behind_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    behind_scheme.split('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;

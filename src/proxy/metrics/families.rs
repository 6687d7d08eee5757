//! Declares the name, type, labels, buckets and help text of each metric family that this process counts itself. `conntrack`, `process` and
//! `services` declare those whose numbers the kernel counts, `server::slis` those of `/metrics/slis`.
//!
//! Counters are registered without the suffix `_total`: prometheus-client adds it to their samples, and `text` to their HELP and TYPE.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::process::Process;
use super::services::Latest;
use cluster::source::KINDS;
use rules::model::{Family, Protocol};

/// The label value for an object without a kind; only manifests have such objects.
const NO_KIND: &str = "unknown";

/// The label values for failed transactions and dumps.
const FAILURES: [&str; 7] = ["decode", "encode", "refused", "socket", "too_large", "unconfirmed", "unstable"];

/// The status codes of the health server.
const CODES: [u16; 2] = [200, 503];

/// Label `ip_family`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByFamily {
    ip_family: &'static str,
}

impl From<Family> for ByFamily {
    fn from(family: Family) -> Self {
        Self { ip_family: ip_family(family) }
    }
}

/// The value of label `ip_family`.
pub(super) const fn ip_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// Labels of `kubeproxy_sync_proxy_rules_no_local_endpoints_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByPolicy {
    pub(super) ip_family: &'static str,
    pub(super) traffic_policy: &'static str,
}

/// Labels of `kubeproxy_nftables_localhost_nodeport_rejected_packets_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByProtocol {
    ip_family: &'static str,
    protocol: &'static str,
}

impl ByProtocol {
    /// Makes the labels. Protocols are written as in the API, such as `TCP`, because upstream does so.
    pub(super) const fn new(family: Family, protocol: Protocol) -> Self {
        Self { ip_family: ip_family(family), protocol: protocol.api_name() }
    }
}

/// Label `code`: an HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByCode {
    pub(super) code: u16,
}

/// Labels of `kubeproxy_nft_table_elements`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct ByMap {
    pub(super) ip_family: &'static str,
    pub(super) map: String,
}

/// Labels of `rest_client_requests_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByRequest {
    /// The HTTP status, or `<error>`.
    pub(super) code: String,
    pub(super) host: String,
    pub(super) method: &'static str,
}

/// Labels of the other `rest_client_...` metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByHost {
    pub(super) host: String,
    pub(super) verb: &'static str,
}

/// Label `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByKind {
    pub(super) kind: &'static str,
}

/// Label `resource`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByResource {
    pub(super) resource: &'static str,
}

/// Labels of `kubernetes_feature_enabled`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByFeature {
    pub(super) name: &'static str,
    pub(super) stage: &'static str,
}

/// Labels of `kubernetes_build_info`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByBuild {
    pub(super) build_date: String,
    pub(super) compiler: String,
    pub(super) git_commit: String,
    pub(super) git_tree_state: String,
    pub(super) git_version: String,
    pub(super) go_version: String,
    pub(super) major: String,
    pub(super) minor: String,
    pub(super) platform: String,
}

/// Labels of `registered_metrics_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStability {
    deprecated_version: &'static str,
    stability_level: &'static str,
}

pub(super) type Histograms = Series<ByFamily, Histogram, fn() -> Histogram>;
pub(super) type Seconds = Gauge<f64, AtomicU64>;

/// 0.001 · 2^k seconds, k = 0 to 14: upstream's buckets for syncs and for checks of flows.
fn sync_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Upstream's buckets for the network programming latency, in seconds: 0, 0.25 and 0.5, then steps of 1 up to 60, steps of 5 up to 120, and
/// steps of 30 up to 300.
fn programming_buckets() -> Histogram {
    let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    Histogram::new([0.0, 0.25, 0.5].into_iter().chain(whole.map(f64::from)))
}

/// 0.0001 · 2^k seconds, k = 0 to 17: 0.1 ms to 13.1 s.
fn kernel_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 18))
}

/// The buckets in seconds of upstream's client for requests.
fn request_buckets() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
}

/// The buckets in bytes of upstream's client for response sizes.
fn size_buckets() -> Histogram {
    let sizes = [64, 256, 512, 1024, 4096, 16384, 65536, 262_144, 1_048_576, 4_194_304, 16_777_216];
    Histogram::new(sizes.map(f64::from))
}

/// The metrics of requests to the API server, under the names of upstream's client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) requests: Series<ByRequest, Counter>,
    pub(super) duration: Series<ByHost, Histogram, fn() -> Histogram>,
    pub(super) response_size: Series<ByHost, Histogram, fn() -> Histogram>,
}

impl Client {
    fn new(r: &mut Registrar) -> Self {
        Self {
            requests: r.empty(
                "rest_client_requests",
                "Number of HTTP requests, partitioned by status code, method, and host.",
            ),
            duration: r.add(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                Series::new_with_constructor(request_buckets),
            ),
            response_size: r.add(
                "rest_client_response_size_bytes",
                "Response size in bytes. Broken down by verb and host.",
                Series::new_with_constructor(size_buckets),
            ),
        }
    }
}

impl Localhost {
    fn new(r: &mut Registrar) -> Self {
        Self {
            listeners: r.empty(
                "kubeproxy_nftables_localhost_nodeport_listeners",
                "Number of active localhost NodePort listeners",
            ),
            failures: r.empty(
                "kubeproxy_nftables_localhost_nodeport_listener_creation_failures",
                "Number of localhost NodePort listeners that could not be created",
            ),
            rejected: r.empty(
                "kubeproxy_nftables_localhost_nodeport_rejected_packets",
                "Number of packets to localhost NodePorts that were rejected",
            ),
        }
    }
}

#[derive(Debug)]
pub(super) struct Families {
    pub(super) registry: Registry,
    pub(super) duration: Histograms,
    pub(super) full_duration: Histograms,
    pub(super) partial_duration: Histograms,
    pub(super) last_timestamp: Series<ByFamily, Seconds>,
    pub(super) last_queued_timestamp: Series<ByFamily, Seconds>,
    pub(super) programming: Histograms,
    pub(super) endpoint_changes_pending: Gauge,
    pub(super) endpoint_changes: Counter,
    pub(super) service_changes_pending: Gauge,
    pub(super) service_changes: Counter,
    pub(super) no_local_endpoints: Series<ByPolicy, Gauge>,
    pub(super) sync_failures: Series<ByFamily, Counter>,
    pub(super) cleanup_failures: Series<ByFamily, Counter>,
    pub(super) reconciler_duration: Histograms,
    pub(super) reconciler_deleted: Series<ByFamily, Counter>,
    pub(super) healthz: Series<ByCode, Counter>,
    pub(super) livez: Series<ByCode, Counter>,
    pub(super) build_info: Series<ByBuild, Gauge>,
    pub(super) features: Series<ByFeature, Gauge>,
    pub(super) client: Client,
    pub(super) localhost: Localhost,
    pub(super) own: Own,
}

/// The metrics of node ports on loopback addresses.
#[derive(Debug)]
pub(super) struct Localhost {
    pub(super) listeners: Series<ByFamily, Gauge>,
    pub(super) failures: Series<ByFamily, Counter>,
    pub(super) rejected: Series<ByProtocol, Counter>,
}

/// Metric families that upstream does not have.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) transactions: Counter,
    pub(super) elements_added: Counter,
    pub(super) elements_removed: Counter,
    pub(super) bytes: Counter,
    pub(super) kernel_time: Histogram,
    pub(super) elements: Series<ByMap, Gauge>,
    /// The labels of `elements`, so that the series of deleted maps can be removed.
    pub(super) maps: Mutex<BTreeSet<ByMap>>,
    pub(super) foreign_changes: Counter,
    pub(super) repairs: Counter,
    pub(super) conntrack_walks: Counter,
    pub(super) verified: Seconds,
    pub(super) foreign_owner: Series<ByFamily, Gauge>,
    pub(super) quarantined: Gauge,
    pub(super) lost_claims: Gauge,
    pub(super) oversized: Gauge,
    pub(super) errors: Series<ByKind, Counter>,
    pub(super) connected: Series<ByResource, Gauge>,
    pub(super) last_received: Series<ByResource, Seconds>,
    pub(super) reconnects: Series<ByResource, Counter>,
    pub(super) rejected: Series<ByKind, Counter>,
    pub(super) invalid_dropped: Series<ByFamily, Counter>,
    pub(super) log_lines_dropped: Counter,
    pub(super) readyz: Series<ByCode, Counter>,
    pub(super) counted: Latest,
}

/// Registers metrics, and counts them by stability.
#[derive(Default)]
struct Registrar {
    registry: Registry,
    alpha: u64,
    beta: u64,
}

impl Registrar {
    /// Registers a collector. Does not count its metric families, because they depend on what it reads.
    fn collector<C: Collector + Clone + Default>(&mut self) -> C {
        let collector = C::default();
        self.registry.register_collector(Box::new(collector.clone()));
        collector
    }

    fn add<M>(&mut self, name: &str, help: &str, metric: M) -> M
    where
        M: Clone + std::fmt::Debug + EncodeMetric + Send + Sync + 'static,
    {
        self.alpha += 1;
        self.registry.register(name, format!("[ALPHA] {help}"), metric.clone());
        metric
    }

    /// Adds a metric that starts without series or at 0.
    fn empty<M>(&mut self, name: &str, help: &str) -> M
    where
        M: Clone + Default + std::fmt::Debug + EncodeMetric + Send + Sync + 'static,
    {
        self.add(name, help, M::default())
    }

    fn beta<M>(&mut self, name: &str, help: &str, metric: M) -> M
    where
        M: Clone + std::fmt::Debug + EncodeMetric + Send + Sync + 'static,
    {
        self.beta += 1;
        self.registry.register(name, format!("[BETA] {help}"), metric.clone());
        metric
    }

    fn sync_times(&mut self, name: &str, help: &str) -> Histograms {
        self.add(name, help, Histograms::new_with_constructor(sync_buckets))
    }

    /// Adds the metrics of the process, and upstream's metrics about metrics: how many are registered, disabled and hidden. This program
    /// disables and hides none.
    fn finish(mut self) -> Registry {
        let registered = Series::<ByStability, Counter>::default();
        let help = "The count of registered metrics broken by stability level and deprecation version.";
        self.beta("registered_metrics", help, registered.clone());
        self.beta("disabled_metrics", "The count of disabled metrics.", Counter::<u64>::default());
        self.beta("hidden_metrics", "The count of hidden metrics.", Counter::<u64>::default());
        for (stability_level, count) in [("ALPHA", self.alpha), ("BETA", self.beta)] {
            registered.get_or_create(&ByStability { deprecated_version: "", stability_level }).inc_by(count);
        }
        self.registry.register_collector(Box::new(Process));
        self.registry
    }
}

/// Makes a counter show 0 for these labels, because an alert on the increase of a counter misses the first event if the series only appears
/// with that event.
fn show_zero<L>(series: &Series<L, Counter>, labels: impl IntoIterator<Item = L>)
where
    L: Clone + std::hash::Hash + Eq,
{
    labels.into_iter().for_each(|labels| drop(series.get_or_create(&labels)));
}

impl Families {
    pub(super) fn new() -> Self {
        let families = Self::without_series();
        for counter in [&families.sync_failures, &families.cleanup_failures, &families.reconciler_deleted] {
            show_zero(counter, Family::BOTH.map(ByFamily::from));
        }
        let localhost = &families.localhost;
        show_zero(&localhost.failures, Family::BOTH.map(ByFamily::from));
        Family::BOTH.into_iter().for_each(|family| drop(localhost.listeners.get_or_create(&family.into())));
        let of_family = |family| Protocol::ALL.map(|protocol| ByProtocol::new(family, protocol));
        show_zero(&localhost.rejected, Family::BOTH.into_iter().flat_map(of_family));
        for counter in [&families.healthz, &families.livez, &families.own.readyz] {
            show_zero(counter, CODES.map(|code| ByCode { code }));
        }
        show_zero(&families.own.errors, FAILURES.map(|kind| ByKind { kind }));
        show_zero(&families.own.reconnects, KINDS.map(|resource| ByResource { resource }));
        show_zero(&families.own.invalid_dropped, Family::BOTH.map(ByFamily::from));
        Family::BOTH.into_iter().for_each(|family| drop(families.own.foreign_owner.get_or_create(&family.into())));
        show_zero(&families.own.rejected, KINDS.into_iter().chain([NO_KIND]).map(|kind| ByKind { kind }));
        families
    }

    fn without_series() -> Self {
        let mut r = Registrar::default();
        let r = &mut r;
        Self {
            duration: r.sync_times("kubeproxy_sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds"),
            full_duration: r.sync_times(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
            ),
            partial_duration: r.sync_times(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
            ),
            last_timestamp: r.empty(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
            ),
            last_queued_timestamp: r.empty(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
            ),
            programming: r.add(
                "kubeproxy_network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                Histograms::new_with_constructor(programming_buckets),
            ),
            endpoint_changes_pending: r
                .empty("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Pending proxy rules Endpoint changes"),
            endpoint_changes: r
                .empty("kubeproxy_sync_proxy_rules_endpoint_changes", "Cumulative proxy rules Endpoint changes"),
            service_changes_pending: r
                .empty("kubeproxy_sync_proxy_rules_service_changes_pending", "Pending proxy rules Service changes"),
            service_changes: r
                .empty("kubeproxy_sync_proxy_rules_service_changes", "Cumulative proxy rules Service changes"),
            no_local_endpoints: r.empty(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Number of services with a Local traffic policy and no endpoints",
            ),
            sync_failures: r
                .empty("kubeproxy_sync_proxy_rules_nftables_sync_failures", "Cumulative proxy nftables sync failures"),
            cleanup_failures: r.empty(
                "kubeproxy_sync_proxy_rules_nftables_cleanup_failures",
                "Cumulative proxy nftables cleanup failures",
            ),
            reconciler_duration: r.sync_times(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
            ),
            reconciler_deleted: r.empty(
                "kubeproxy_conntrack_reconciler_deleted_entries",
                "Cumulative conntrack flows deleted by conntrack reconciler",
            ),
            healthz: r.empty("kubeproxy_proxy_healthz", "Cumulative proxy healthz HTTP status"),
            livez: r.empty("kubeproxy_proxy_livez", "Cumulative proxy livez HTTP status"),
            build_info: r.empty(
                "kubernetes_build_info",
                "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, \
                 build date, Go version, and compiler from which Kubernetes was built, and platform on which it is \
                 running.",
            ),
            features: r.beta(
                "kubernetes_feature_enabled",
                "This metric records the data about the stage and enablement of a k8s feature.",
                Series::default(),
            ),
            client: Client::new(r),
            localhost: Localhost::new(r),
            own: Own::new(r),
            registry: std::mem::take(r).finish(),
        }
    }
}

impl Own {
    fn new(r: &mut Registrar) -> Self {
        Self {
            transactions: r.empty("kubeproxy_nft_transactions", "Transactions that the kernel committed"),
            elements_added: r.empty("kubeproxy_nft_elements_added", "Elements of sets and maps that were added; a changed element counts as added and removed"),
            elements_removed: r.empty("kubeproxy_nft_elements_removed", "Elements of sets and maps that were removed"),
            bytes: r.empty("kubeproxy_nft_message_bytes", "Bytes of netlink messages that were committed"),
            kernel_time: r.add(
                "kubeproxy_nft_commit_duration_seconds",
                "Seconds from sending the transaction of a sync to the kernel's answer; of several, from the first one to the last answer",
                kernel_buckets(),
            ),
            elements: r.empty("kubeproxy_nft_table_elements", "Elements of each set or map that this process wrote"),
            maps: Mutex::default(),
            foreign_changes: r.empty(
                "kubeproxy_nft_foreign_changes",
                "Times that another program changed the tables",
            ),
            repairs: r.empty("kubeproxy_nft_repairs", "Syncs that put right what another program had changed"),
            conntrack_walks: r.empty(
                "kubeproxy_nft_conntrack_walks",
                "Lists of tracked connections, for each of which the kernel walks over its whole table",
            ),
            verified: r.empty(
                "kubeproxy_nft_tables_verified_timestamp_seconds",
                "The time when both tables were last read back as a whole and compared with what they should hold, 0 if never; what differed was \
                 put right in the same sync. At the start, after a failed sync, after another program wrote to the tables, and about once an hour",
            ),
            foreign_owner: r.empty(
                "kubeproxy_nft_table_foreign_owner",
                "1 if another program owns the table of the IP family, so that the family is not programmed, else 0",
            ),
            quarantined: r.empty(
                "kubeproxy_nft_quarantined_services",
                "Services that are left out, or keep the rules from before their last change, because the kernel refuses them",
            ),
            lost_claims: r.empty(
                "kubeproxy_nft_lost_claims",
                "Claims on an address with a port, or on a node port, that a Service does not get",
            ),
            oversized: r.empty(
                "kubeproxy_nft_oversized_services",
                "Services that are left out because they take more elements than nftables.serviceElementsLimit",
            ),
            errors: r.empty("kubeproxy_nft_errors", "Failed transactions and reads: refused by the kernel, socket failed, too_large, unconfirmed (the answer was lost), unstable (the \
                 tables changed while they were read), decode (an answer could not be read), encode (a command could not be written)"),
            connected: r.empty(
                "kubeproxy_nft_source_connected",
                "1 if the API server lets this process follow that kind of objects, else 0",
            ),
            last_received: r.empty(
                "kubeproxy_nft_source_last_received_timestamp_seconds",
                "The time when the API server last sent anything about that kind, bookmarks included; 0 if never",
            ),
            reconnects: r.empty("kubeproxy_nft_source_reconnects", "Times that following that kind had to begin again"),
            rejected: r.empty(
                "kubeproxy_nft_rejected_objects",
                "Objects of which something could not be used, counted when that is found or changes; unknown for a manifest that does not say its \
                 kind",
            ),
            invalid_dropped: r.empty(
                "kubeproxy_nft_invalid_dropped_packets",
                "Packets from the address and port of an endpoint on this node that were dropped because connection tracking found them \
                 invalid (nftables.dropInvalidFromEndpoints)",
            ),
            log_lines_dropped: r.empty(
                "kubeproxy_nft_log_lines_dropped",
                "Log lines that were dropped because no program read the log, or because it could not be written",
            ),
            readyz: r.empty("kubeproxy_nft_readyz", "Answers of /readyz by HTTP status"),
            counted: r.collector(),
        }
    }
}

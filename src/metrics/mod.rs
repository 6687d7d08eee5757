//! Every metric's name, unit and meaning.
//!
//! Takes plain numbers from the sync loop, gives the text that Prometheus scrapes. Names, types, labels and buckets are upstream's
//! (surface.md section 6); those that start with `kubeproxy_nft_` are our own. A labelled series appears when it is first used.

pub mod server;
mod text;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::model::Family;

/// Label `ip_family`: `IPv4` or `IPv6`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByFamily {
    ip_family: String,
}

impl From<Family> for ByFamily {
    fn from(family: Family) -> Self {
        Self { ip_family: family.to_string() }
    }
}

type Histograms = Series<ByFamily, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

/// 0.001 · 2^k seconds, k = 0 to 14, as upstream has for syncs.
fn sync_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// What a transaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Elements added.
    pub added: u64,
    /// Elements removed.
    pub removed: u64,
    /// Bytes of its netlink messages.
    pub bytes: u64,
}

/// The metrics of this process. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    duration: Histograms,
    full_duration: Histograms,
    partial_duration: Histograms,
    last_timestamp: Series<ByFamily, Seconds>,
    last_queued_timestamp: Series<ByFamily, Seconds>,
    sync_failures: Series<ByFamily, Counter>,
    endpoint_changes: Counter,
    service_changes: Counter,
    reconciler_duration: Histograms,
    reconciler_deleted: Series<ByFamily, Counter>,
    transactions: Counter,
    elements_added: Counter,
    elements_removed: Counter,
    bytes: Counter,
}

/// Registers metrics under their final names.
struct Registrar(Registry);

impl Registrar {
    fn add<M>(&mut self, name: &str, help: &str, metric: M) -> M
    where
        M: Clone + std::fmt::Debug + prometheus_client::encoding::EncodeMetric + Send + Sync + 'static,
    {
        self.0.register(name, format!("[ALPHA] {help}"), metric.clone());
        metric
    }

    fn histograms(&mut self, name: &str, help: &str) -> Histograms {
        self.add(name, help, Histograms::new_with_constructor(sync_buckets))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics that nothing was counted in yet.
    #[must_use]
    pub fn new() -> Self {
        const SYNC: &str = "kubeproxy_sync_proxy_rules";
        let mut r = Registrar(Registry::default());
        let named = |rest: &str| format!("{SYNC}_{rest}");
        let inner = Inner {
            duration: r.histograms(&named("duration_seconds"), "SyncProxyRules latency in seconds"),
            full_duration: r.histograms(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
            ),
            partial_duration: r.histograms(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
            ),
            last_timestamp: r.add(
                &named("last_timestamp_seconds"),
                "The last time proxy rules were successfully synced",
                Series::default(),
            ),
            last_queued_timestamp: r.add(
                &named("last_queued_timestamp_seconds"),
                "The last time a sync of proxy rules was queued",
                Series::default(),
            ),
            sync_failures: r.add(
                &named("nftables_sync_failures"),
                "Cumulative proxy nftables sync failures",
                Series::default(),
            ),
            endpoint_changes: r.add(
                &named("endpoint_changes"),
                "Cumulative proxy rules Endpoint changes",
                Counter::default(),
            ),
            service_changes: r.add(
                &named("service_changes"),
                "Cumulative proxy rules Service changes",
                Counter::default(),
            ),
            reconciler_duration: r.histograms(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
            ),
            reconciler_deleted: r.add(
                "kubeproxy_conntrack_reconciler_deleted_entries",
                "Cumulative conntrack flows deleted by conntrack reconciler",
                Series::default(),
            ),
            transactions: r.add("kubeproxy_nft_transactions", "Committed netlink transactions", Counter::default()),
            elements_added: r.add("kubeproxy_nft_elements_added", "Set and map elements added", Counter::default()),
            elements_removed: r.add(
                "kubeproxy_nft_elements_removed",
                "Set and map elements removed",
                Counter::default(),
            ),
            bytes: r.add("kubeproxy_nft_message_bytes", "Bytes of committed netlink messages", Counter::default()),
            registry: r.0,
        };
        Self { inner: Arc::new(inner) }
    }

    /// A sync of a family was asked for.
    pub fn sync_queued(&self, family: Family, at: SystemTime) {
        self.inner.last_queued_timestamp.get_or_create(&family.into()).set(seconds(at));
    }

    /// A sync of a family ended.
    pub fn sync_finished(&self, family: Family, at: SystemTime, took: Duration, full: bool, ok: bool) {
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

    /// An event about a slice arrived.
    pub fn endpoint_change(&self) {
        self.inner.endpoint_changes.inc();
    }

    /// An event about a Service arrived.
    pub fn service_change(&self) {
        self.inner.service_changes.inc();
    }

    /// The UDP flows of a family were looked through.
    pub fn flows_reconciled(&self, family: Family, took: Duration, deleted: u64) {
        let labels = family.into();
        self.inner.reconciler_duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.inner.reconciler_deleted.get_or_create(&labels).inc_by(deleted);
    }

    /// A transaction was committed.
    pub fn transaction(&self, transaction: Transaction) {
        self.inner.transactions.inc();
        self.inner.elements_added.inc_by(transaction.added);
        self.inner.elements_removed.inc_by(transaction.removed);
        self.inner.bytes.inc_by(transaction.bytes);
    }

    /// Everything in the text format of Prometheus, version 0.0.4.
    #[must_use]
    pub fn text(&self) -> String {
        text::encode(&self.inner.registry)
    }
}

fn seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(metrics: &Metrics, name: &str) -> Vec<String> {
        let starts = |line: &&str| line.starts_with(name);
        metrics.text().lines().filter(starts).map(str::to_owned).collect()
    }

    #[test]
    fn series_appear_when_they_are_used() {
        let metrics = Metrics::new();
        assert!(lines(&metrics, "kubeproxy_sync_proxy_rules_last_timestamp_seconds").is_empty());
        metrics.sync_finished(Family::V4, UNIX_EPOCH + Duration::from_millis(1500), Duration::ZERO, true, true);
        assert_eq!(
            lines(&metrics, "kubeproxy_sync_proxy_rules_last_timestamp_seconds"),
            ["kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.5"]
        );
    }

    #[test]
    fn a_failed_sync_is_counted_and_leaves_the_timestamp_alone() {
        let metrics = Metrics::new();
        metrics.sync_finished(Family::V6, SystemTime::now(), Duration::from_millis(3), false, false);
        assert!(lines(&metrics, "kubeproxy_sync_proxy_rules_last_timestamp_seconds{").is_empty());
        assert_eq!(
            lines(&metrics, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{"),
            ["kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv6\"} 1"]
        );
        let count = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1";
        assert_eq!(lines(&metrics, "kubeproxy_sync_partial_proxy_rules_duration_seconds_count"), [count]);
    }

    #[test]
    fn durations_have_upstreams_buckets() {
        let metrics = Metrics::new();
        metrics.sync_finished(Family::V4, SystemTime::now(), Duration::from_millis(3), true, true);
        let buckets = lines(&metrics, "kubeproxy_sync_proxy_rules_duration_seconds_bucket");
        assert_eq!(buckets.len(), 16);
        assert!(buckets[0].contains("le=\"0.001\"") && buckets[0].ends_with(" 0"), "{}", buckets[0]);
        assert!(buckets[2].contains("le=\"0.004\"") && buckets[2].ends_with(" 1"), "{}", buckets[2]);
        assert!(buckets[14].contains("le=\"16.384\""), "{}", buckets[14]);
    }

    #[test]
    fn transactions_add_up() {
        let metrics = Metrics::new();
        metrics.transaction(Transaction { added: 2, removed: 1, bytes: 100 });
        metrics.transaction(Transaction { added: 3, removed: 0, bytes: 50 });
        assert_eq!(lines(&metrics, "kubeproxy_nft_transactions_total"), ["kubeproxy_nft_transactions_total 2"]);
        assert_eq!(lines(&metrics, "kubeproxy_nft_elements_added_total"), ["kubeproxy_nft_elements_added_total 5"]);
        assert_eq!(lines(&metrics, "kubeproxy_nft_message_bytes_total"), ["kubeproxy_nft_message_bytes_total 150"]);
    }
}

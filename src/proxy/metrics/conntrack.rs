//! The metrics of connection tracking, read from the kernel at each scrape.
//!
//! While the kernel does not give the numbers, for example because connection tracking is not loaded, the metric families are left out.

use std::fmt;
use std::io;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use node::kernel::ConntrackLoad;

/// A function that reads from the kernel how many connections it tracks, how many it may track, and what it dropped.
pub(crate) type Read = fn() -> io::Result<ConntrackLoad>;

/// The collector of these metrics.
#[derive(Debug)]
pub(super) struct Conntrack(pub(super) Read);

impl Collector for Conntrack {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(load) = self.0() else { return Ok(()) };
        let gauges = [
            ("entries", "Connections of this network namespace that the kernel tracks, of all programs", load.entries),
            ("limit", "The most connections that the kernel tracks (nf_conntrack_max)", load.limit),
        ];
        for (name, help, value) in gauges {
            encode(&mut encoder, name, help, &ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)))?;
        }
        let counters = [
            (
                "dropped_packets",
                "Packets that the kernel dropped because it could not track their connection",
                load.drops,
            ),
            (
                "failed_inserts",
                "Packets that the kernel dropped because another connection had the same addresses and ports at that moment",
                load.failed_inserts,
            ),
            (
                "early_drops",
                "Connections without an answer that the kernel forgot to make room for others",
                load.early_drops,
            ),
        ];
        counters
            .into_iter()
            .try_for_each(|(name, help, value)| encode(&mut encoder, name, help, &ConstCounter::new(value)))
    }
}

fn encode(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
    let (name, help) = (format!("kubeproxy_nft_conntrack_{name}"), format!("[ALPHA] {help}."));
    metric.encode(encoder.encode_descriptor(&name, &help, None, metric.metric_type())?)
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn each_scrape_has_the_numbers_of_that_moment_and_without_numbers_there_are_no_families() {
        let load = || Ok(ConntrackLoad { entries: 7, limit: 262_144, drops: 3, failed_inserts: 2, early_drops: 1 });
        let text = Metrics::with_conntrack(load).text();
        for line in [
            "# TYPE kubeproxy_nft_conntrack_entries gauge",
            "kubeproxy_nft_conntrack_entries 7",
            "kubeproxy_nft_conntrack_limit 262144",
            "# TYPE kubeproxy_nft_conntrack_dropped_packets_total counter",
            "kubeproxy_nft_conntrack_dropped_packets_total 3",
            "kubeproxy_nft_conntrack_failed_inserts_total 2",
            "kubeproxy_nft_conntrack_early_drops_total 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        for metrics in [Metrics::new(), Metrics::with_conntrack(|| Err(io::ErrorKind::PermissionDenied.into()))] {
            assert!(!metrics.text().contains("kubeproxy_nft_conntrack_entries"));
        }
    }
}

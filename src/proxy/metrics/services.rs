//! The metrics of service ports and of unused cluster IPs, if the rules have counters (`nftables.counters`).
//!
//! Takes the latest numbers of the busiest service ports, of all others together, and of unused cluster IPs; returns their series. Before
//! the first reading there are no series.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use node::counters::{Counted, ServiceCounts};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelValue, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// The latest counts; `None` before the first reading. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Latest(Arc<Mutex<Option<Counted>>>);

impl Latest {
    pub(super) fn set(&self, counted: Counted) {
        // After a panic of another thread the value is still consistent.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(counted);
    }
}

/// Returns the labels of the service port `namespace/name:port`. For an empty text, which stands for all other service ports together, all
/// labels are empty.
fn labels(label: &str) -> [(&'static str, String); 3] {
    let (namespace, rest) = label.split_once('/').unwrap_or(("", label));
    let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
    [("namespace", namespace.to_owned()), ("service", name.to_owned()), ("port", port.to_owned())]
}

impl Collector for Latest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(counted) = &*latest else { return Ok(()) };
        let series = Series(counted);
        series.connections(&mut encoder)?;
        series.rejected(&mut encoder)?;
        series.of_endpoints(&mut encoder)?;
        series.unused(&mut encoder)
    }
}

/// Writes the series of the latest counts.
struct Series<'a>(&'a Counted);

impl Series<'_> {
    /// Returns the busiest service ports with their numbers, and at the end the sum of all other service ports, with an empty label.
    fn all(&self) -> impl Iterator<Item = (&str, &ServiceCounts)> {
        self.0.services.iter().map(|(label, counts)| (&**label, counts)).chain([("", &self.0.others)])
    }

    fn connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Only with --counters: new connections that went to a service port, read every 10 s; those of all service ports \
                    beyond --metrics-services-limit together have empty labels";
        let mut metric = family(encoder, "kubeproxy_nft_service_connections", help)?;
        self.all().try_for_each(|(label, counts)| sample(&mut metric, &labels(label), counts.connections))
    }

    fn rejected(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Only with --counters: packets to a service port that were refused because it has no endpoints (no_endpoints), or \
             dropped because its policy is Local and no endpoint is on this node (no_local_endpoints) or because \
             loadBalancerSourceRanges lacks the source (source_ranges)";
        let mut metric = family(encoder, "kubeproxy_nft_service_rejected_packets", help)?;
        for (label, counts) in self.all() {
            let reasons = [
                ("no_endpoints", counts.no_endpoints),
                ("no_local_endpoints", counts.no_local_endpoints),
                ("source_ranges", counts.source_ranges),
            ];
            for (reason, count) in reasons {
                let [namespace, service, port] = labels(label);
                sample(&mut metric, &[namespace, service, port, ("reason", reason.to_owned())], count)?;
            }
        }
        Ok(())
    }

    fn of_endpoints(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.services.iter().all(|(_, counts)| counts.endpoints.is_empty()) {
            return Ok(());
        }
        let help = "Only with --counters=endpoints: new connections to an endpoint, for the 100 busiest of each service port that has \
                    series; in layout maps without those of clients that session affinity remembered";
        let mut metric = family(encoder, "kubeproxy_nft_endpoint_connections", help)?;
        for (label, counts) in &self.0.services {
            for (endpoint, count) in &counts.endpoints {
                let [namespace, service, port] = labels(label);
                sample(&mut metric, &[namespace, service, port, ("endpoint", endpoint.to_string())], *count)?;
            }
        }
        Ok(())
    }

    fn unused(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Only with --counters: packets to a cluster IP whose Service has no such port (port), and to an address of a \
                    ServiceCIDR that no Service has (address)";
        let mut metric = family(encoder, "kubeproxy_nft_unused_cluster_ip_packets", help)?;
        let counts = [("port", self.0.unused_ports), ("address", self.0.unused_addresses)];
        counts.into_iter().try_for_each(|(unused, count)| sample(&mut metric, &[("unused", unused)], count))
    }
}

fn family<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, &format!("[ALPHA] {help}."), None, MetricType::Counter)
}

fn sample<V: EncodeLabelValue>(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&'static str, V)],
    count: u64,
) -> fmt::Result {
    ConstCounter::new(count).encode(metric.encode_family(&labels)?)
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn there_are_no_series_before_the_first_reading() {
        assert!(!Metrics::new().text().contains("kubeproxy_nft_service_connections"));
    }

    #[test]
    fn the_busiest_have_their_names_and_the_others_none() {
        let web = ServiceCounts {
            connections: 5,
            source_ranges: 2,
            endpoints: vec![("[fd00::1]:80".parse().unwrap(), 4)],
            ..ServiceCounts::default()
        };
        let others = ServiceCounts { connections: 3, ..ServiceCounts::default() };
        let metrics = Metrics::new();
        metrics.counted(Counted {
            services: vec![("shop/web:http".into(), web)],
            others,
            unused_ports: 1,
            unused_addresses: 0,
        });
        let text = metrics.text();
        for line in [
            "# TYPE kubeproxy_nft_service_connections_total counter",
            "kubeproxy_nft_service_connections_total{namespace=\"shop\",service=\"web\",port=\"http\"} 5",
            "kubeproxy_nft_service_connections_total{namespace=\"\",service=\"\",port=\"\"} 3",
            "kubeproxy_nft_service_rejected_packets_total{namespace=\"shop\",service=\"web\",port=\"http\",reason=\"source_ranges\"} 2",
            "kubeproxy_nft_endpoint_connections_total{namespace=\"shop\",service=\"web\",port=\"http\",endpoint=\"[fd00::1]:80\"} 4",
            "kubeproxy_nft_unused_cluster_ip_packets_total{unused=\"port\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}

//! Counts the connections of each frontend and endpoint, each time in one walk over the connections that the kernel tracks.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::tables::{EndpointView, FrontendView, View};
use crate::traffic::{Count, TrafficSample, Walks, added, is_accounting};
use node::kernel::connections::Counters;

/// The numbers of the last listing of connections.
#[derive(Default)]
pub(crate) struct Stats {
    look: TrafficSample,
    walks: Walks,
    /// The time between the last two walks.
    elapsed: Option<Duration>,
    /// Whether the kernel counts packets and bytes.
    accounting: bool,
}

/// The numbers of a frontend or an endpoint. Packets and bytes are counted for tracked connections only, in both directions; `None` while the
/// kernel does not account those of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Numbers {
    /// Connections on which both sides sent packets, and that are not closed.
    pub(crate) open: u64,
    /// Connections without an answer yet.
    pub(crate) unanswered: u64,
    /// All its connections that the kernel tracks, closed ones included.
    pub(crate) connections: u64,
    /// The connections that the nftables counters have counted since they were created; `None` without counters.
    pub(crate) counted: Option<u64>,
    pub(crate) packets: Option<u64>,
    pub(crate) bytes: Option<u64>,
    /// The traffic per second; `None` before the second walk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rates: Option<Rates>,
}

/// The traffic per second, on average since the previous walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rates {
    pub(crate) connections_per_second: f64,
    pub(crate) packets_per_second: Option<f64>,
    pub(crate) bytes_per_second: Option<f64>,
}

impl Numbers {
    /// Adds the numbers of another frontend of the same Service, or those that the same endpoint has for another frontend.
    pub(crate) fn add(&mut self, other: Self) {
        self.open += other.open;
        self.unanswered += other.unanswered;
        self.connections += other.connections;
        self.counted = added(self.counted, other.counted, u64::saturating_add);
        self.packets = added(self.packets, other.packets, u64::saturating_add);
        self.bytes = added(self.bytes, other.bytes, u64::saturating_add);
        self.rates = added(self.rates, other.rates, |a, b| Rates {
            connections_per_second: a.connections_per_second + b.connections_per_second,
            packets_per_second: added(a.packets_per_second, b.packets_per_second, |a, b| a + b),
            bytes_per_second: added(a.bytes_per_second, b.bytes_per_second, |a, b| a + b),
        });
    }
}

impl Stats {
    /// Counts the connections of these frontends.
    ///
    /// # Errors
    /// When the kernel does not list its connections.
    pub(crate) fn count(&mut self, view: &View) -> Result<()> {
        (self.look, self.elapsed) = self.walks.look(&view.to_count())?;
        self.accounting = is_accounting();
        Ok(())
    }

    /// The numbers of the frontend at a position of the view.
    pub(crate) fn of_frontend(&self, position: usize, frontend: &FrontendView) -> Numbers {
        let numbers = self.look.frontends.get(position).map_or_else(Numbers::default, |count| self.numbers(count));
        Numbers { counted: frontend.counted, ..numbers }
    }

    /// The numbers of an endpoint of the frontend at a position of the view.
    pub(crate) fn of_endpoint(&self, position: usize, endpoint: &EndpointView) -> Numbers {
        let count = self.look.endpoints.get(&(position, endpoint.address)).copied();
        // An endpoint without connections had no new ones, so its rate of connections is 0 and not unknown.
        let none = Count { since: self.elapsed.map(|_| Default::default()), ..Count::default() };
        Numbers { counted: endpoint.counted, ..self.numbers(&count.unwrap_or(none)) }
    }

    fn numbers(&self, count: &Count) -> Numbers {
        let accounted = |counters: Option<Counters>| self.accounting.then(|| counters.unwrap_or_default());
        let rates = self.elapsed.zip(count.since).map(|(elapsed, since)| {
            let per_second = |number| rate(number, elapsed);
            Rates {
                connections_per_second: per_second(since.connections),
                packets_per_second: accounted(since.counters).map(|counters| per_second(counters.packets)),
                bytes_per_second: accounted(since.counters).map(|counters| per_second(counters.bytes)),
            }
        });
        Numbers {
            open: count.open,
            unanswered: count.unanswered,
            connections: count.open + count.unanswered + count.ended,
            counted: None,
            packets: accounted(count.counters).map(|counters| counters.packets),
            bytes: accounted(count.counters).map(|counters| counters.bytes),
            rates,
        }
    }

    /// Whether there are rates, which need two walks.
    pub(crate) fn has_rates(&self) -> bool {
        self.elapsed.is_some()
    }
}

/// A number per second, to one decimal.
#[allow(clippy::cast_precision_loss, reason = "a rate is read by people, to a few digits")]
fn rate(number: u64, elapsed: Duration) -> f64 {
    (number as f64 / elapsed.as_secs_f64().max(0.001) * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::testing::frontend;
    use crate::tables::Kind;

    // As `top` has it: 0 where the kernel counts, and unknown where it does not, whatever older connections had.
    #[test]
    fn without_connections_packets_are_none_or_unknown() {
        let endpoints = [("10.244.1.10:8080", true)];
        let web = frontend("shop/web:http", Some("10.96.0.10"), 80, Kind::ClusterIP, &endpoints);
        let numbers = |accounting, counters| {
            let count = Count { counters, since: Some(Default::default()), ..Count::default() };
            let look = TrafficSample { frontends: vec![count], ..TrafficSample::default() };
            let stats = Stats { look, accounting, elapsed: Some(Duration::from_secs(2)), ..Stats::default() };
            [stats.of_frontend(0, &web), stats.of_endpoint(0, &web.endpoints[0])]
                .map(|numbers| (numbers.packets, numbers.bytes, numbers.rates.unwrap().bytes_per_second))
        };
        assert_eq!(numbers(true, None), [(Some(0), Some(0), Some(0.0)); 2]);
        assert_eq!(numbers(false, Some(Counters { packets: 1, bytes: 60 })), [(None, None, None); 2]);
    }
}

//! Adds up the kernel's counters to totals that never decrease as long as the service port has a counter.
//!
//! A service port is one port of a Service. A reading holds the value of every counter; the module takes readings and returns the totals of
//! each service port. A counter starts at zero when its element or its rule is written again, so the metrics cannot show the kernel's
//! numbers directly: the module adds up the differences between successive readings. Memory is bounded: totals of service ports and
//! endpoints that are not in the latest reading are removed. The module does no I/O.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use nft::Data;

use super::{Counted, ServiceCounts};
use rules::model::Family;
use rules::ruleset::counters::Meaning;

/// The largest number of endpoints per service port whose connections are reported separately.
const MAX_ENDPOINTS: usize = 100;

/// Identifies a counter in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CounterId {
    /// The counter of a set's element: the family, the index of the set among those with counters, and the key of the element.
    Element(Family, u16, Data),
    /// The counters of the rules of a chain, added up.
    Chain(Family, Arc<str>),
}

/// The counts of one service port, or the sums over several service ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Numbers {
    connections: u64,
    no_endpoints: u64,
    no_local_endpoints: u64,
    source_ranges: u64,
}

impl Numbers {
    fn all(&self) -> u64 {
        self.connections + self.no_endpoints + self.no_local_endpoints + self.source_ranges
    }

    fn add(&mut self, more: &Self) {
        self.connections += more.connections;
        self.no_endpoints += more.no_endpoints;
        self.no_local_endpoints += more.no_local_endpoints;
        self.source_ranges += more.source_ranges;
    }

    fn without(&self, less: &Self) -> Self {
        Self {
            connections: self.connections.saturating_sub(less.connections),
            no_endpoints: self.no_endpoints.saturating_sub(less.no_endpoints),
            no_local_endpoints: self.no_local_endpoints.saturating_sub(less.no_local_endpoints),
            source_ranges: self.source_ranges.saturating_sub(less.source_ranges),
        }
    }
}

/// The totals of a service port.
#[derive(Debug, Default)]
struct Port {
    /// The sums of the kernel's counters. Here `connections` includes the connections that a rule dropped later.
    raw: Numbers,
    /// Connections that were counted in `raw.connections` and then dropped by a rule.
    dropped_later: u64,
    /// The numbers that the metrics show; they never decrease.
    shown: Numbers,
    endpoints: BTreeMap<SocketAddr, u64>,
}

impl Port {
    fn add(&mut self, id: &CounterId, meaning: &Meaning, more: u64) {
        match meaning {
            Meaning::Connections(_) => self.raw.connections += more,
            Meaning::NoEndpoints(_) => self.raw.no_endpoints += more,
            Meaning::NoLocalEndpoints(_) => self.raw.no_local_endpoints += more,
            Meaning::SourceRanges(_) => self.raw.source_ranges += more,
            Meaning::Endpoint(_, endpoint) => *self.endpoints.entry(*endpoint).or_default() += more,
            Meaning::UnusedPort | Meaning::UnusedAddress => {}
        }
        let drops = matches!(meaning, Meaning::NoLocalEndpoints(_) | Meaning::SourceRanges(_));
        if drops && matches!(id, CounterId::Chain(..)) {
            self.dropped_later += more;
        }
    }

    /// Updates the numbers that the metrics show, and returns how much they grew. If more drops than connections are new, such as after an
    /// element was written again and its counter began at zero, the shown number of connections stays unchanged.
    fn show(&mut self) -> Numbers {
        let before = self.shown;
        let connections = self.raw.connections.saturating_sub(self.dropped_later).max(before.connections);
        self.shown = Numbers { connections, ..self.raw };
        self.shown.without(&before)
    }
}

/// The totals of all counters.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    seen: HashMap<(CounterId, Meaning), u64>,
    ports: BTreeMap<Arc<str>, Port>,
    /// The sums over service ports that were not among the busiest ones: what each counted while it was not reported separately.
    others: Numbers,
    unused_port: u64,
    unused_address: u64,
}

impl Ledger {
    /// Adds the growth since the last reading to the totals; returns the totals of the `limit` busiest service ports.
    pub(super) fn take(&mut self, reading: HashMap<(CounterId, Meaning), u64>, limit: usize) -> Counted {
        let mut present = HashSet::default();
        for ((id, meaning), now) in &reading {
            let before = self.seen.get(&(id.clone(), meaning.clone())).copied().unwrap_or(0);
            // A lower value than in the last reading means that the counter was created again and began at zero.
            let more = if *now < before { *now } else { now - before };
            match meaning {
                Meaning::UnusedPort => self.unused_port += more,
                Meaning::UnusedAddress => self.unused_address += more,
                Meaning::Connections(label)
                | Meaning::NoEndpoints(label)
                | Meaning::NoLocalEndpoints(label)
                | Meaning::SourceRanges(label)
                | Meaning::Endpoint(label, _) => {
                    self.ports.entry(Arc::clone(label)).or_default().add(id, meaning, more);
                    present.insert(Arc::clone(label));
                }
            }
        }
        self.forget(&reading, &present);
        self.seen = reading;
        self.busiest(limit)
    }

    fn forget(&mut self, reading: &HashMap<(CounterId, Meaning), u64>, present: &HashSet<Arc<str>>) {
        self.ports.retain(|label, _| present.contains(label));
        let endpoints: HashSet<(&str, SocketAddr)> = reading
            .keys()
            .filter_map(|(_, meaning)| match meaning {
                Meaning::Endpoint(label, endpoint) => Some((&**label, *endpoint)),
                _ => None,
            })
            .collect();
        for (label, port) in &mut self.ports {
            port.endpoints.retain(|endpoint, _| endpoints.contains(&(&**label, *endpoint)));
        }
    }

    fn busiest(&mut self, limit: usize) -> Counted {
        let new: Vec<(Arc<str>, Numbers)> =
            self.ports.iter_mut().map(|(label, port)| (Arc::clone(label), port.show())).collect();
        let mut order: Vec<(&Arc<str>, &Port)> = self.ports.iter().collect();
        // The sort is stable and the labels are sorted already, so service ports with equal counts keep their order from one reading to the
        // next.
        order.sort_by_key(|(_, port)| std::cmp::Reverse(port.shown.all()));
        order.truncate(limit);
        let own: HashSet<&str> = order.iter().map(|(label, _)| &***label).collect();
        new.iter().filter(|(label, _)| !own.contains(&**label)).for_each(|(_, more)| self.others.add(more));
        Counted {
            services: order
                .into_iter()
                .map(|(label, port)| (Arc::clone(label), counts(&port.shown, &port.endpoints)))
                .collect(),
            others: counts(&self.others, &BTreeMap::new()),
            unused_ports: self.unused_port,
            unused_addresses: self.unused_address,
        }
    }
}

fn counts(numbers: &Numbers, endpoints: &BTreeMap<SocketAddr, u64>) -> ServiceCounts {
    let mut endpoints: Vec<(SocketAddr, u64)> = endpoints.iter().map(|(endpoint, count)| (*endpoint, *count)).collect();
    endpoints.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    endpoints.truncate(MAX_ENDPOINTS);
    ServiceCounts {
        connections: numbers.connections,
        no_endpoints: numbers.no_endpoints,
        no_local_endpoints: numbers.no_local_endpoints,
        source_ranges: numbers.source_ranges,
        endpoints,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(set: u16, key: u8) -> CounterId {
        CounterId::Element(Family::V4, set, Data::from(key))
    }

    fn web() -> Arc<str> {
        "shop/web:http".into()
    }

    fn reading<const N: usize>(counters: [(CounterId, Meaning, u64); N]) -> HashMap<(CounterId, Meaning), u64> {
        counters.into_iter().map(|(id, meaning, count)| ((id, meaning), count)).collect()
    }

    fn connections(counted: &Counted) -> Vec<(&str, u64)> {
        counted.services.iter().map(|(label, counts)| (&**label, counts.connections)).collect()
    }

    #[test]
    fn a_counter_that_starts_anew_goes_on_in_the_total() {
        let mut ledger = Ledger::default();
        let mut total = |count| {
            let counted = ledger.take(reading([(element(0, 1), Meaning::Connections(web()), count)]), 10);
            counted.services[0].1.connections
        };
        assert_eq!([5, 7, 2, 2, 4].map(&mut total), [5, 7, 9, 9, 11]);
    }

    #[test]
    fn what_a_rule_drops_behind_the_dispatch_is_no_connection_and_the_number_never_falls() {
        let mut ledger = Ledger::default();
        let chain = CounterId::Chain(Family::V4, "KUBE-FW-X".into());
        let mut numbers = |dispatched, dropped| {
            let counted = ledger.take(
                reading([
                    (element(2, 1), Meaning::Connections(web()), dispatched),
                    (chain.clone(), Meaning::SourceRanges(web()), dropped),
                ]),
                10,
            );
            (counted.services[0].1.connections, counted.services[0].1.source_ranges)
        };
        assert_eq!(numbers(10, 3), (7, 3));
        assert_eq!(numbers(10, 4), (7, 4));
        assert_eq!(numbers(12, 4), (8, 4));
    }

    #[test]
    fn a_drop_before_the_dispatch_is_not_taken_from_the_connections() {
        let mut ledger = Ledger::default();
        let counted = ledger.take(
            reading([
                (element(0, 1), Meaning::Connections(web()), 5),
                (element(8, 1), Meaning::SourceRanges(web()), 3),
            ]),
            10,
        );
        assert_eq!((counted.services[0].1.connections, counted.services[0].1.source_ranges), (5, 3));
    }

    #[test]
    fn the_busiest_have_numbers_of_their_own_and_the_rest_is_added_up() {
        let label = |number: u8| -> Arc<str> { format!("ns/s{number}").into() };
        let of = |counts: [u64; 3]| {
            let all = (1..).zip(counts).map(|(n, count)| ((element(0, n), Meaning::Connections(label(n))), count));
            all.collect::<HashMap<_, _>>()
        };
        let mut ledger = Ledger::default();
        let counted = ledger.take(of([1, 5, 3]), 2);
        assert_eq!((connections(&counted), counted.others.connections), (vec![("ns/s2", 5), ("ns/s3", 3)], 1));
        // The sum of the other service ports never decreases, even when one of them starts to be reported separately.
        let counted = ledger.take(of([11, 5, 4]), 2);
        assert_eq!((connections(&counted), counted.others.connections), (vec![("ns/s1", 11), ("ns/s2", 5)], 2));
        assert_eq!(ledger.take(of([11, 5, 4]), 0).services, []);
    }

    #[test]
    fn what_is_gone_from_the_tables_is_forgotten() {
        let mut ledger = Ledger::default();
        let [first, second] = ["10.0.0.1:80", "10.0.0.2:80"].map(|text| text.parse::<SocketAddr>().unwrap());
        let endpoint = |to| Meaning::Endpoint(web(), to);
        ledger.take(reading([(element(12, 1), endpoint(first), 4), (element(12, 2), endpoint(second), 2)]), 10);
        let counted = ledger.take(reading([(element(12, 2), endpoint(second), 3)]), 10);
        assert_eq!(counted.services[0].1.endpoints, [(second, 3)]);
        assert_eq!(ledger.take(HashMap::default(), 10).services, []);
        assert!(ledger.seen.is_empty() && ledger.ports.is_empty());
    }
}

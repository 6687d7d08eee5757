//! Gives endpoints their shares of the new connections (E15). The list of endpoints to choose from names an endpoint several times, in
//! proportion to its weight: the weights 2 and 6 give one and three entries. Each entry gets the same share. The counts are the weights
//! divided by their greatest common divisor, and made smaller if the list would be too long.
//!
//! Takes the endpoints of a service port with the weights of their slices, and the weights that the Service gives to this node and its zone.
//! Returns the list, or how long it becomes at most. Pure.
//!
//! Invariants: equal weights give a list with one entry for each endpoint; a list never has more than [`most_slots`] entries, and has at
//! least one for each endpoint.

use std::net::SocketAddr;

use crate::model::{Endpoint, EndpointSlice, Service, Weights, Zone};

use super::topology::NodeTopology;

/// A weighted list may always have this many entries. A longer list is shortened in proportion, so that weights take a bounded amount of
/// memory. 100 endpoints with weights of at most 100 never need more.
const ENOUGH: u64 = 10_000;
/// A weighted list may have this many entries for each endpoint, if that is more than [`ENOUGH`] in all.
const ENOUGH_FOR_EACH: u64 = 8;

/// An endpoint of a service port.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    /// Its address and port number.
    pub(super) address: SocketAddr,
    pub(super) endpoint: &'a Endpoint,
    /// The weight of its slice.
    pub(super) weight: u8,
}

/// The weights of a Service's endpoints, as seen from this node.
#[derive(Clone, Copy)]
pub(super) struct Weighing<'a> {
    pub(super) node: NodeTopology<'a>,
    weights: Weights,
    /// This node's zone; `None` if it is not known, or if no weight depends on it.
    zone: Option<Zone>,
}

impl<'a> Weighing<'a> {
    pub(super) fn of(service: &Service, node: NodeTopology<'a>) -> Self {
        let zone = service.weights.zone.and_then(|_| Zone::of(node.zone?));
        Self { node, weights: service.weights, zone }
    }

    /// The weight of an endpoint: the weight of its slice, times the weight of its place (this node, this node's zone, or elsewhere).
    fn weight(self, endpoint: &Endpoint, of_slice: u8) -> u32 {
        let is_local = || self.node.is_local(endpoint);
        let is_in_zone = || self.zone.is_some() && (endpoint.zone == self.zone || is_local());
        let of_place = match self.weights {
            Weights { local: Some(local), .. } if is_local() => local,
            Weights { zone: Some(zone), .. } if is_in_zone() => zone,
            _ => 1,
        };
        u32::from(of_place) * u32::from(of_slice)
    }

    /// The sum of the weights of a slice's endpoints, ready or not.
    pub(super) fn sum(self, slice: &EndpointSlice) -> u64 {
        if self.weights == Weights::default() {
            return number(slice.endpoints.len()) * u64::from(slice.weight);
        }
        slice.endpoints.iter().map(|endpoint| u64::from(self.weight(endpoint, slice.weight))).sum()
    }

    /// The addresses of the wanted endpoints, each as often as its weight asks for.
    pub(super) fn list(self, endpoints: &[Entry<'_>], wanted: impl Fn(&Endpoint) -> bool) -> Vec<SocketAddr> {
        let entries = endpoints.iter().filter(|entry| wanted(entry.endpoint));
        let mut list = Vec::with_capacity(endpoints.len());
        list.extend(entries.clone().map(|entry| entry.address));
        let mut weights = entries.map(|entry| self.weight(entry.endpoint, entry.weight));
        let first = weights.next();
        if weights.clone().all(|weight| Some(weight) == first) {
            return list;
        }
        let counts = counts(first.into_iter().chain(weights).collect());
        list.into_iter().zip(counts).flat_map(|(address, count)| (0..count).map(move |_| address)).collect()
    }
}

/// How many entries each endpoint has in its list: the smallest numbers with the proportions of the weights or, if these numbers are too
/// large, smaller ones with nearly the same proportions.
fn counts(weights: Vec<u32>) -> impl Iterator<Item = u64> {
    let divisor = u64::from(weights.iter().copied().fold(0, gcd).max(1));
    let sum = weights.iter().map(|weight| u64::from(*weight)).sum::<u64>() / divisor;
    let enough = enough(number(weights.len()));
    weights.into_iter().map(move |weight| {
        let weight = u64::from(weight) / divisor;
        if sum <= enough { weight } else { ((weight * enough + sum / 2) / sum).max(1) }
    })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn enough(endpoints: u64) -> u64 {
    endpoints.saturating_mul(ENOUGH_FOR_EACH).max(ENOUGH)
}

/// The most entries that a list can have, given the number of its endpoints and the sum of their weights.
pub(super) fn most_slots(endpoints: u64, sum: u64) -> u64 {
    // Rounding up can give a shortened list one more entry for each endpoint.
    sum.min(enough(endpoints).saturating_add(endpoints))
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The number of different endpoints of a list, which is sorted.
pub(super) fn different(list: &[SocketAddr]) -> usize {
    list.chunk_by(|a, b| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::endpoints::select;
    use crate::model::testing::{name, node, port, service, slice, slice_port, state};
    use crate::model::{Event, TrafficPolicy};

    /// A slice with endpoints of this weight.
    fn weighted(slice_name: &str, weight: u8, endpoints: &[&str]) -> EndpointSlice {
        EndpointSlice { weight, ..slice(slice_name, "ns/web", &[slice_port("http", 80)], endpoints) }
    }

    /// The last bytes of the endpoints in the lists for policies Cluster and Local, on a node in zone a.
    fn lists(weights: Weights, slices: &[EndpointSlice], policy: TrafficPolicy) -> [Vec<u8>; 2] {
        let mut web = service("ns/web", &["172.30.0.1"]);
        (web.ports, web.weights) = (vec![port("http", 80)], weights);
        web.external_policy = policy;
        web.ports[0].node_port = Some(30080);
        let events = [Event::NodeApplied(node(Some("a"))), Event::ServiceApplied(web)];
        let state = state(events.into_iter().chain(slices.iter().cloned().map(Event::SliceApplied)));
        let port = &select(&state, &name("ns/web")).unwrap().ports[0];
        let last = |address: &SocketAddr| address.ip().to_string().rsplit('.').next().unwrap().parse().unwrap();
        [&port.cluster, &port.local].map(|list| list.iter().map(last).collect())
    }

    fn cluster(weights: Weights, slices: &[EndpointSlice]) -> Vec<u8> {
        let [cluster, _] = lists(weights, slices, TrafficPolicy::Cluster);
        cluster
    }

    const LOCAL_4: Weights = Weights { local: Some(4), zone: None };
    const PLACES: [&str; 4] = ["10.0.0.1 @here zone=a", "10.0.0.2 @there zone=a", "10.0.0.3 @far zone=b", "10.0.0.4"];

    // An endpoint on this node has the weight `local`, another one in this node's zone `zone`, and any other one 1 (E15).
    #[test]
    fn an_endpoint_counts_by_where_it_runs() {
        let list = |local, zone| cluster(Weights { local, zone }, &[weighted("ns/a", 1, &PLACES)]);
        assert_eq!(list(None, None), [1, 2, 3, 4]);
        assert_eq!(list(Some(4), None), [1, 1, 1, 1, 2, 3, 4]);
        assert_eq!(list(None, Some(2)), [1, 1, 2, 2, 3, 4], "this node is in its zone");
        assert_eq!(list(Some(4), Some(2)), [1, 1, 1, 1, 2, 2, 3, 4], "the nearer place counts, and not both");
        assert_eq!(list(Some(1), Some(2)), [1, 2, 2, 3, 4]);
        let elsewhere = [weighted("ns/a", 1, &PLACES[2..])];
        assert_eq!(cluster(Weights { local: Some(4), zone: Some(2) }, &elsewhere), [3, 4]);
    }

    // The weight of a slice multiplies the weights that its endpoints have by their place (E16).
    #[test]
    fn slices_have_weights_too() {
        let slices = [weighted("ns/a", 3, &["10.0.0.1 @here", "10.0.0.2"]), weighted("ns/b", 1, &["10.0.0.3 @here"])];
        assert_eq!(cluster(Weights::default(), &slices), [1, 1, 1, 2, 2, 2, 3]);
        let times_two = [[1; 6].as_slice(), &[2; 3], &[3; 2]].concat();
        assert_eq!(cluster(Weights { local: Some(2), zone: None }, &slices), times_two);
        // An endpoint that is in two slices has the weight of the slice that counts for it, here the later one (B10).
        let twice = [slices[0].clone(), weighted("ns/c", 2, &["10.0.0.2"])];
        assert_eq!(cluster(Weights::default(), &twice), [1, 1, 1, 2, 2]);
    }

    // The numbers of entries are the smallest with the proportions of the weights (E15).
    #[test]
    fn weights_are_reduced() {
        let slices = [weighted("ns/a", 90, &["10.0.0.1"]), weighted("ns/b", 60, &["10.0.0.2"])];
        assert_eq!(cluster(Weights::default(), &slices), [1, 1, 1, 2, 2]);
        assert_eq!(cluster(LOCAL_4, &[weighted("ns/a", 7, &["10.0.0.1 @here", "10.0.0.2 @here"])]), [1, 2]);
        // All endpoints of the list for policy Local are on this node, so only the weights of slices count there.
        let slices = [weighted("ns/a", 2, &["10.0.0.1 @here", "10.0.0.2"]), weighted("ns/b", 1, &["10.0.0.3 @here"])];
        let [cluster, local] = lists(LOCAL_4, &slices, TrafficPolicy::Local);
        assert_eq!((cluster, local), ([[1; 4].as_slice(), &[2], &[3; 2]].concat(), vec![1, 1, 3]));
    }

    // A list that would be too long is shortened in proportion, and each endpoint keeps at least one entry (E15).
    #[test]
    fn too_many_entries_are_cut_in_proportion() {
        let listed = |weights: Vec<u32>| counts(weights).collect::<Vec<u64>>();
        assert_eq!(listed([vec![100; 99], vec![1; 1]].concat()), [vec![100; 99], vec![1; 1]].concat());
        assert_eq!(
            listed([vec![100; 200], vec![50; 199], vec![1]].concat())[199..],
            [vec![33], vec![17; 199], vec![1]].concat()
        );
        assert_eq!(listed([vec![4; 2500], vec![1; 2500]].concat()), [vec![4; 2500], vec![1; 2500]].concat());
    }

    proptest! {
        // Each endpoint gets exactly the share of its weight if 10,000 entries are enough: always with 100 endpoints and weights up to 100.
        #[test]
        fn shares_are_as_asked(weights in proptest::collection::vec(1_u32..=100, 1..100)) {
            let counts: Vec<u64> = counts(weights.clone()).collect();
            let (sum, all) = (weights.iter().copied().map(u64::from).sum::<u64>(), counts.iter().sum::<u64>());
            for (weight, count) in weights.iter().zip(&counts) {
                prop_assert_eq!(u64::from(*weight) * all, count * sum);
            }
        }

        // The list is never longer than the length that was computed in advance, and has each endpoint.
        #[test]
        fn lists_are_bounded(weights in proptest::collection::vec(prop_oneof![1_u32..=4, 1_u32..=10_000], 1..300)) {
            let sum = weights.iter().copied().map(u64::from).sum();
            let counts: Vec<u64> = counts(weights.clone()).collect();
            prop_assert!(counts.iter().sum::<u64>() <= most_slots(number(weights.len()), sum));
            prop_assert!(counts.iter().all(|count| *count >= 1));
        }
    }
}

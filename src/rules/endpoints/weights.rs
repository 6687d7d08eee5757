//! Gives endpoints their shares of the new connections: an endpoint of weight 3 is three times in its list, and each entry of a list gets
//! the same share (C11).
//!
//! Takes the endpoints of a service port with the weights of their slices, and the weights that the Service gives to this node and its zone.
//! Returns the list, or how long it can become. Pure.
//!
//! Invariants: equal weights give a list without repeats; a list never has more than [`most_slots`] entries, and each endpoint at least once.

use std::net::SocketAddr;

use crate::model::{Endpoint, Service, Weights, Zone};

use super::categories::Entry;
use super::topology::NodeTopology;

/// A weighted list may always have this many entries; what needs more is cut down in proportion. So a share is at most one thousandth off,
/// and a Service of a few endpoints cannot fill the tables.
const ENOUGH: u64 = 1024;
/// A weighted list may have this many entries for each endpoint, if that is more.
const ENOUGH_FOR_EACH: u64 = 8;

/// How much each endpoint of a Service counts, as seen from this node.
#[derive(Clone, Copy)]
pub(super) struct Weighing<'a> {
    pub(super) node: NodeTopology<'a>,
    weights: Weights,
    /// This node's zone, if a weight depends on it.
    zone: Option<Zone>,
}

impl<'a> Weighing<'a> {
    pub(super) fn of(service: &Service, node: NodeTopology<'a>) -> Self {
        let zone = service.weights.zone.and_then(|_| Zone::of(node.zone?));
        Self { node, weights: service.weights, zone }
    }

    /// The weight of an endpoint: that of its slice, times that of its place.
    fn weight(self, Entry { endpoint, weight, .. }: &Entry<'_>) -> u32 {
        let is_local = || self.node.is_local(endpoint);
        let is_in_zone = || self.zone.is_some() && (endpoint.zone == self.zone || is_local());
        let of_place = match self.weights {
            Weights { local: Some(local), .. } if is_local() => local,
            Weights { zone: Some(zone), .. } if is_in_zone() => zone,
            _ => 1,
        };
        u32::from(of_place) * u32::from(*weight)
    }

    /// The list of the wanted endpoints.
    pub(super) fn list(self, endpoints: &[Entry<'_>], wanted: impl Fn(&Endpoint) -> bool) -> Vec<SocketAddr> {
        let entries = endpoints.iter().filter(|entry| wanted(entry.endpoint));
        let mut list = Vec::with_capacity(endpoints.len());
        list.extend(entries.clone().map(|entry| entry.address));
        let mut weights = entries.map(|entry| self.weight(entry));
        let first = weights.next();
        if weights.clone().all(|weight| Some(weight) == first) {
            return list;
        }
        let counts = counts(first.into_iter().chain(weights).collect());
        list.into_iter().zip(counts).flat_map(|(address, count)| (0..count).map(move |_| address)).collect()
    }
}

/// How often each endpoint is in its list: the smallest numbers with the proportions of the weights, or where these are too many, numbers
/// that come close.
fn counts(weights: Vec<u32>) -> impl Iterator<Item = u64> {
    let divisor = u64::from(weights.iter().copied().fold(0, gcd).max(1));
    let sum = weights.iter().map(|weight| u64::from(*weight)).sum::<u64>() / divisor;
    let enough = enough(u64::try_from(weights.len()).unwrap_or(u64::MAX));
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

/// The most entries that a list of this many endpoints has, none of which has a weight above `largest`.
pub(super) fn most_slots(endpoints: u64, largest: u64) -> u64 {
    // What is cut down has at most one entry more for each endpoint, from rounding up.
    endpoints.saturating_mul(largest).min(enough(endpoints).saturating_add(endpoints)).max(endpoints)
}

/// The number of different endpoints of a list, which is sorted.
pub(super) fn different(list: &[SocketAddr]) -> usize {
    list.chunk_by(|a, b| a == b).count()
}

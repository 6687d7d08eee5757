//! Computes the endpoint lists of a service port.
//!
//! Takes the port's slices; returns the endpoints for traffic policy Cluster, the endpoints for policy Local, the endpoints that may
//! connect to themselves, and whether there is any usable endpoint. Invariant: the lists are sorted and free of duplicates.

use std::net::SocketAddr;

use crate::model::{Endpoint, Family, PortSlice, Service, ServicePort, TrafficPolicy};

use super::topology::{NodeTopology, Topology};

/// An endpoint of a service port, with its address and port number.
pub(super) type Entry<'a> = (SocketAddr, &'a Endpoint);

/// Merges the endpoints of a service port from all slices, which come sorted by name (B4). Returns them sorted by IP and port number,
/// each pair of IP and port number once.
///
/// Of two entries with the same IP and port number, the one from the later slice wins, unless that one is terminating: then the earlier one
/// stays (B10). Each slice can give a named port a different number, so entries with the same IP and different port numbers all stay.
pub(super) fn merge<'a>(slices: &[PortSlice<'a>]) -> Vec<Entry<'a>> {
    let mut merged = Vec::with_capacity(slices.iter().map(|one| one.slice.endpoints.len()).sum());
    for PortSlice { slice, port, .. } in slices {
        merged.extend(slice.endpoints.iter().map(|endpoint| (SocketAddr::new(endpoint.address, *port), endpoint)));
    }
    // A stable sort: duplicates stay in the order of their slices.
    merged.sort_by_key(|(address, _)| *address);
    merged.dedup_by(|later, earlier| {
        let same = later.0 == earlier.0;
        if same && !later.1.conditions.terminating {
            *earlier = *later;
        }
        same
    });
    merged
}

/// The endpoint lists that a service port needs (A15).
#[derive(Clone, Copy)]
pub(super) struct Uses {
    cluster: bool,
    local: bool,
}

impl Uses {
    pub(super) fn of(service: &Service, port: &ServicePort, family: Family) -> Self {
        let internal_local = service.internal_policy == TrafficPolicy::Local;
        let external = service.externally_accessible(port, family);
        let external_local = external && service.external_policy == TrafficPolicy::Local;
        Self { cluster: !internal_local || external, local: internal_local || external_local }
    }
}

/// The endpoints that a service port may use.
pub(super) struct Lists {
    /// The endpoints for traffic policy Cluster (C3).
    pub(super) cluster: Vec<SocketAddr>,
    /// The endpoints on this node, for traffic policy Local (C4).
    pub(super) local: Vec<SocketAddr>,
    /// The endpoints in `cluster` or `local` that run on this node and may connect to themselves (C7, D10).
    pub(super) hairpin: Vec<SocketAddr>,
    /// Whether any endpoint on any node is usable (C6).
    pub(super) has_any: bool,
}

impl Lists {
    pub(super) fn new(endpoints: &[Entry<'_>], uses: Uses, node: NodeTopology<'_>) -> Self {
        let cluster = if uses.cluster { cluster_list(endpoints, node) } else { Vec::new() };
        let local = if uses.local { local_list(endpoints, node) } else { Vec::new() };
        // Independent of `uses`: a needed cluster list is empty only if no endpoint is usable.
        let has_any = endpoints.iter().any(|(_, endpoint)| usable(endpoint));
        let reachable =
            |address: &SocketAddr| [&cluster, &local].iter().any(|list| list.binary_search(address).is_ok());
        let here = endpoints.iter().filter(|(_, endpoint)| node.is_local(endpoint));
        let hairpin = here.map(|(address, _)| *address).filter(reachable).collect();
        Self { cluster, local, hairpin, has_any }
    }
}

/// The Ready endpoints that the topology hints allow; if no endpoint is Ready, the endpoints that still serve while they terminate.
///
/// If there are Ready endpoints, the hints allow at least one of them. If there are none, the hints are ignored.
fn cluster_list(endpoints: &[Entry<'_>], node: NodeTopology<'_>) -> Vec<SocketAddr> {
    let ready = endpoints.iter().map(|(_, endpoint)| *endpoint).filter(|endpoint| endpoint.conditions.ready);
    let topology = Topology::of(ready, node);
    ready_or_terminating(endpoints, |endpoint| topology.allows(endpoint, node))
}

/// The Ready endpoints on this node; if there is none, the endpoints on this node that still serve while they terminate. Topology hints
/// are ignored.
fn local_list(endpoints: &[Entry<'_>], node: NodeTopology<'_>) -> Vec<SocketAddr> {
    ready_or_terminating(endpoints, |endpoint| node.is_local(endpoint))
}

fn ready_or_terminating(endpoints: &[Entry<'_>], wanted: impl Fn(&Endpoint) -> bool) -> Vec<SocketAddr> {
    let ready = addresses(endpoints, |endpoint| endpoint.conditions.ready && wanted(endpoint));
    if !ready.is_empty() {
        return ready;
    }
    addresses(endpoints, |endpoint| endpoint.conditions.serving_terminating() && wanted(endpoint))
}

/// Whether an endpoint may be used at all: it is ready, or serves while it terminates (C8).
const fn usable(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready || endpoint.conditions.serving_terminating()
}

fn addresses(endpoints: &[Entry<'_>], wanted: impl Fn(&Endpoint) -> bool) -> Vec<SocketAddr> {
    let mut list = Vec::with_capacity(endpoints.len());
    list.extend(endpoints.iter().filter(|(_, endpoint)| wanted(endpoint)).map(|(address, _)| *address));
    list
}

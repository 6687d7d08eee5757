//! Computes the endpoint lists of a service port.
//!
//! Takes the port's slices; returns the endpoints for traffic policy Cluster, the endpoints for policy Local, those of both that run on
//! this node, and whether there is any usable endpoint. Invariant: the lists are sorted, and have each endpoint once, or with weights as
//! often as [`super::weights`] says.

use std::net::SocketAddr;

use crate::model::{Endpoint, EndpointSlice, Family, Service, ServicePort, TrafficPolicy};

use super::topology::Topology;
use super::weights::{Entry, Weighing};

/// Merges the endpoints of slices. The slices come sorted by name, each with the number that it gives the service port (B4). Returns the
/// endpoints sorted by IP and port number, each pair of IP and port number once.
///
/// Of two entries with the same IP and port number, the one from the later slice wins, unless that one is terminating: then the earlier one
/// stays (B10). Each slice can give a named port a different number, so entries with the same IP and different port numbers all stay.
pub(super) fn merge<'a>(slices: impl Iterator<Item = (&'a EndpointSlice, u16)> + Clone) -> Vec<Entry<'a>> {
    let mut merged = Vec::with_capacity(slices.clone().map(|(slice, _)| slice.endpoints.len()).sum());
    for (slice, port) in slices {
        merged.extend(slice.endpoints.iter().map(|endpoint| Entry {
            address: SocketAddr::new(endpoint.address, port),
            endpoint,
            weight: slice.weight,
        }));
    }
    // A stable sort: duplicates stay in the order of their slices.
    merged.sort_by_key(|entry| entry.address);
    merged.dedup_by(|later, earlier| {
        let same = later.address == earlier.address;
        if same && !later.endpoint.conditions.terminating {
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

/// Which endpoints a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// The endpoints that are Ready.
    Ready,
    /// The endpoints that serve while they terminate, because none that the list may have is Ready.
    Terminating,
    /// No endpoint, because none is usable.
    Nothing,
}

/// The endpoints that a service port may use.
pub(super) struct Lists {
    /// The endpoints for traffic policy Cluster (C3).
    pub(super) cluster: Vec<SocketAddr>,
    /// The endpoints on this node, for traffic policy Local (C4).
    pub(super) local: Vec<SocketAddr>,
    /// The endpoints in `cluster` or `local` that run on this node: a pod that is one may connect to itself through the Service (C7, D10).
    pub(super) hairpin: Vec<SocketAddr>,
    /// Whether any endpoint on any node is usable (C6).
    pub(super) has_any: bool,
    /// Why the lists are what they are.
    pub(super) reasons: Reasons,
}

/// Why the lists of a service port are what they are; `None` for a list that no frontend uses (A15).
#[derive(Clone, Copy)]
pub(super) struct Reasons {
    /// The category of [`Lists::cluster`], and how topology hints restrict it.
    pub(super) cluster: Option<(Category, Topology)>,
    /// The category of [`Lists::local`].
    pub(super) local: Option<Category>,
}

impl Lists {
    pub(super) fn new(endpoints: &[Entry<'_>], uses: Uses, weighing: Weighing<'_>) -> Self {
        let node = weighing.node;
        let (cluster, by_hints) = uses.cluster.then(|| cluster_list(endpoints, weighing)).unzip();
        let (cluster, from) = cluster.unzip();
        // Topology hints do not restrict the endpoints on this node.
        let local = uses.local.then(|| ready_or_terminating(endpoints, weighing, |endpoint| node.is_local(endpoint)));
        let (local, local_from) = local.unzip();
        let reasons = Reasons { cluster: from.zip(by_hints), local: local_from };
        let (cluster, local) = (cluster.unwrap_or_default(), local.unwrap_or_default());
        // Do not look at the list `cluster` for this: it is also empty if no frontend uses it.
        let has_any = endpoints.iter().any(|entry| category(entry.endpoint) != Category::Nothing);
        let reachable =
            |address: &SocketAddr| [&cluster, &local].iter().any(|list| list.binary_search(address).is_ok());
        let here = endpoints.iter().filter(|entry| node.is_local(entry.endpoint));
        let hairpin = here.map(|entry| entry.address).filter(reachable).collect();
        Self { cluster, local, hairpin, has_any, reasons }
    }
}

type List = (Vec<SocketAddr>, Category);

/// The Ready endpoints that the topology hints allow; if no endpoint is Ready, the endpoints that still serve while they terminate.
///
/// If there are Ready endpoints, the hints allow at least one of them. If there are none, the hints are ignored.
fn cluster_list(endpoints: &[Entry<'_>], weighing: Weighing<'_>) -> (List, Topology) {
    let ready = endpoints.iter().map(|entry| entry.endpoint).filter(|endpoint| endpoint.conditions.ready);
    let topology = Topology::of(ready, weighing.node);
    (ready_or_terminating(endpoints, weighing, |endpoint| topology.allows(endpoint, weighing.node)), topology)
}

/// The wanted endpoints that are Ready; if there is none, the wanted endpoints that still serve while they terminate.
fn ready_or_terminating(endpoints: &[Entry<'_>], weighing: Weighing<'_>, wanted: impl Fn(&Endpoint) -> bool) -> List {
    for of in [Category::Ready, Category::Terminating] {
        let list = weighing.list(endpoints, |endpoint| category(endpoint) == of && wanted(endpoint));
        if !list.is_empty() {
            return (list, of);
        }
    }
    (Vec::new(), Category::Nothing)
}

/// The category of one endpoint: `Terminating` if it may be used only when no endpoint is Ready, `Nothing` if it may never be used (C8).
pub(super) const fn category(endpoint: &Endpoint) -> Category {
    match endpoint.conditions {
        conditions if conditions.ready => Category::Ready,
        conditions if conditions.serving_terminating() => Category::Terminating,
        _ => Category::Nothing,
    }
}

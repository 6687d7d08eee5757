//! Selects the endpoints of each frontend of a Service, and decides whether traffic without an endpoint is rejected or dropped.
//!
//! Takes the [`State`] and a Service's name, returns a [`ServiceSelection`]. Pure, and independent of nftables: no code here
//! uses chains, maps or marks.
//!
//! Invariants: the result depends only on the Service, its slices, the node's name, zone and IPs, and on which Service owns each frontend;
//! every list is sorted and has each endpoint once, or with weights several times; if an [`Action`] uses [`PortSelection::cluster`], that
//! list is not empty; IPv4 and IPv6 never mix (D24).

mod categories;
pub mod causes;
pub mod health;
pub mod size;
mod sources;
mod topology;
mod weights;

#[cfg(test)]
pub(crate) mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::{
    Destination, Family, Frontend, FrontendKind, ObjectName, PortSlices, Protocol, Scheduler, Service, ServicePort,
    State, TrafficPolicy,
};

use categories::{Lists, Uses};
use health::{Counting, HealthCheck};
use topology::NodeTopology;
use weights::Weighing;

pub use categories::Category;
pub(crate) use sources::allowed_sources;
pub use topology::{Hint, Ignored, Topology};

/// The endpoints and actions that were selected for one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSelection {
    /// The cluster IPs of the Service, IPv4 first.
    pub cluster_ips: Vec<IpAddr>,
    /// One entry for each service port and each family with a cluster IP (A4, A5), in the order of the ports.
    pub ports: Vec<PortSelection>,
    /// The answer of its health-check node port in each family with a cluster IP, IPv4 first; empty if the Service has no health-check node
    /// port (A13).
    pub health_checks: Vec<HealthCheck>,
}

/// The endpoints and frontends of one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSelection {
    /// The IP family of all addresses in this struct.
    pub family: Family,
    /// `namespace/name:port`, or `namespace/name` when the port has no name.
    pub label: Arc<str>,
    /// The transport protocol of the port.
    pub protocol: Protocol,
    /// The endpoints for traffic policy Cluster (C3), sorted; empty when no frontend uses them (A15). With weights an endpoint has
    /// several entries, so that each entry gets the same share of the connections (E15).
    pub cluster: Vec<SocketAddr>,
    /// The endpoints on this node for traffic policy Local (C4), sorted and weighted as those of `cluster`; empty when no frontend uses them (A15).
    pub local: Vec<SocketAddr>,
    /// The endpoints in `cluster` or `local` that run on this node, sorted: a pod that is an endpoint may connect to itself through the
    /// Service (C7, D10).
    pub hairpin: Vec<SocketAddr>,
    /// The frontends that the port owns, in the order of [`FrontendKind`].
    pub frontends: Vec<FrontendSelection>,
    /// Time-out of the session affinity in seconds, if there is affinity (A11).
    pub affinity_seconds: Option<u32>,
    /// The scheduler that an annotation of the Service asks for, if any.
    pub scheduler: Option<Scheduler>,
    /// The answer of the Service's health-check node port (K2); set only in the entries of the Service's first port, because the number is
    /// one for the whole Service and the table keeps it once.
    pub health_check: Option<HealthCheck>,
}

/// The action for traffic to one frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendSelection {
    /// The address or node port that the client connects to.
    pub frontend: Frontend,
    /// The kind of the frontend; when the Service lists its address as several kinds, the first in the order of [`FrontendKind`].
    pub kind: FrontendKind,
    /// The traffic policy that applies to the frontend.
    pub policy: TrafficPolicy,
    /// The action for new connections.
    pub action: Action,
    /// The client ranges that may connect, whatever the action is (D17); `None` if all clients may.
    pub sources: Option<Vec<IpNet>>,
}

/// The action for a new connection to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it to an endpoint of [`PortSelection::cluster`] (D1, D5).
    Cluster {
        /// Whether to masquerade it whatever its source is.
        masquerade: bool,
    },
    /// Send it to an endpoint of [`PortSelection::local`], which is not empty (D1).
    Local,
    /// External policy Local (D6): if it comes from a local pod or this host, send it to an endpoint of [`PortSelection::cluster`], otherwise
    /// to one of [`PortSelection::local`], or drop it if `local` is empty (D3).
    ByOrigin,
    /// Reject it: there is no usable endpoint on any node (D2, D3).
    Reject,
    /// Drop it: there are usable endpoints, but not on this node (D2).
    Drop,
}

/// A Service with the slices of each of its ports, gathered once and then used for the size, the selection, the causes and the question
/// whether a slice has a UDP port.
pub struct Gathered<'a> {
    state: &'a State,
    /// `None` when the Service is unknown.
    service: Option<&'a Service>,
    slices: PortSlices<'a>,
}

impl<'a> Gathered<'a> {
    /// Gathers a Service and its slices from the state.
    #[must_use]
    pub fn of(state: &'a State, name: &ObjectName) -> Self {
        Self { state, service: state.service(name), slices: PortSlices::of(state.slices_of(name)) }
    }

    /// Whether a slice has a UDP port (B15); also for slices whose Service is unknown.
    #[must_use]
    pub fn has_udp_endpoints(&self) -> bool {
        self.slices.has(Protocol::Udp)
    }

    /// Selects the endpoints of each frontend; `None` when the Service is unknown.
    #[must_use]
    pub fn select(&self) -> Option<ServiceSelection> {
        let (state, service) = (self.state, self.service?);
        let families: Vec<(Family, IpAddr)> =
            Family::BOTH.into_iter().filter_map(|family| Some((family, service.cluster_ips.get(family)?))).collect();
        let restricted = Family::BOTH.map(|family| sources::allowed_sources(service, family, state.node()));
        let [v4, v6] = &restricted;
        let node = NodeTopology::of(state);
        let weighing = Weighing::of(service, node);
        let mut health = Counting::new(service, node);
        let mut ports = Vec::with_capacity(service.ports.len() * families.len());
        for (index, port) in service.ports.iter().enumerate() {
            for (family, _) in &families {
                let slices = self.slices.get(port, *family);
                let endpoints = categories::merge(slices.iter().map(|one| (one.slice, one.port)));
                health.add(*family, &endpoints);
                let sources = if *family == Family::V4 { v4 } else { v6 };
                let lists = Lists::new(&endpoints, Uses::of(service, port, *family), weighing);
                ports.push(select_port(state, service, (index, port), *family, lists, sources.as_ref()));
            }
        }
        let health_checks = health.checks(families.iter().map(|(family, _)| *family));
        // The entries of the first port come first, one for each family.
        for (port, check) in ports.iter_mut().zip(&health_checks) {
            port.health_check = Some(*check);
        }
        let cluster_ips = families.iter().map(|(_, ip)| *ip).collect();
        Some(ServiceSelection { cluster_ips, ports, health_checks })
    }
}

/// The selection for one Service; `None` when the Service is unknown.
#[must_use]
pub fn select(state: &State, name: &ObjectName) -> Option<ServiceSelection> {
    Gathered::of(state, name).select()
}

/// Makes the selection for one service port, given with its index, in one family.
fn select_port(
    state: &State,
    service: &Service,
    (index, port): (usize, &ServicePort),
    family: Family,
    lists: Lists,
    sources: Option<&Vec<IpNet>>,
) -> PortSelection {
    let frontends = service.frontends(port, family).into_iter();
    let owned = frontends.filter(|(_, frontend)| state.owns(&service.name, index, frontend));
    let frontends = owned.map(|(kind, frontend)| {
        let sources = sources.filter(|_| counts_as_load_balancer(service, kind, &frontend)).cloned();
        let policy = policy(kind, service);
        FrontendSelection { frontend, kind, policy, action: action(kind, policy, &lists), sources }
    });
    PortSelection {
        family,
        label: label(&service.name, port),
        protocol: port.protocol,
        frontends: frontends.collect(),
        cluster: lists.cluster,
        local: lists.local,
        hairpin: lists.hairpin,
        affinity_seconds: service.affinity_seconds,
        scheduler: service.scheduler,
        health_check: None,
    }
}

/// Whether source ranges apply to a frontend (D17): its address is a load balancer IP, also when it is the cluster IP too. (An address that
/// is listed both as a load balancer IP and as an external IP has kind `LoadBalancerIp`.)
fn counts_as_load_balancer(service: &Service, kind: FrontendKind, frontend: &Frontend) -> bool {
    match (kind, frontend.destination) {
        (FrontendKind::LoadBalancerIp, _) => true,
        (FrontendKind::ClusterIp, Destination::Address(ip)) => service.load_balancer_ips.contains(&ip),
        _ => false,
    }
}

/// Whether the address of a frontend is a load balancer IP, also when it is listed as an external IP too.
pub(crate) fn is_load_balancer(service: &Service, frontend: &Frontend) -> bool {
    match frontend.destination {
        Destination::Address(ip) => service.load_balancer_ips.contains(&ip),
        Destination::NodePort(_) => false,
    }
}

fn policy(kind: FrontendKind, service: &Service) -> TrafficPolicy {
    match kind {
        FrontendKind::ClusterIp => service.internal_policy,
        FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp | FrontendKind::NodePort => service.external_policy,
    }
}

fn action(kind: FrontendKind, policy: TrafficPolicy, lists: &Lists) -> Action {
    match (kind, policy) {
        _ if !lists.has_any => Action::Reject,
        (FrontendKind::ClusterIp, TrafficPolicy::Cluster) => Action::Cluster { masquerade: false },
        (FrontendKind::ClusterIp, TrafficPolicy::Local) if lists.local.is_empty() => Action::Drop,
        (FrontendKind::ClusterIp, TrafficPolicy::Local) => Action::Local,
        (_, TrafficPolicy::Cluster) => Action::Cluster { masquerade: true },
        (_, TrafficPolicy::Local) => Action::ByOrigin,
    }
}

/// Returns the name of a service port: `namespace/name:port`, or `namespace/name` for a port without a name.
#[must_use]
pub fn label(service: &ObjectName, port: &ServicePort) -> Arc<str> {
    let (namespace, name) = (&service.namespace, &service.name);
    let parts: &[&str] =
        if port.name.is_empty() { &[namespace, "/", name] } else { &[namespace, "/", name, ":", &port.name] };
    parts.concat().into()
}

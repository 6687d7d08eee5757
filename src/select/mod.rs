//! Which endpoints each front of a Service uses, and what becomes of traffic that has none.
//!
//! Takes the [`State`] and a Service's name, gives a [`ServiceSelection`]. Pure, and independent of how traffic is steered:
//! nothing here knows of chains, maps or marks.
//!
//! Invariants: the result depends only on the Service, its slices, the node's name and zone, and on which Service
//! owns each front; every list is sorted and free of duplicates; an [`Action`] that uses the cluster list finds it
//! non-empty; the families never mix (D24).

mod endpoints;
pub mod health;
pub mod size;
mod sources;
mod topology;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::{
    Backends, Destination, Family, Front, FrontKind, ObjectName, Protocol, Scheduler, Service, ServicePort, State,
    TrafficPolicy,
};

use endpoints::{Lists, Uses};
use health::HealthCheck;
use topology::Site;

/// What to do for one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSelection {
    /// Its cluster IPs, IPv4 first.
    pub cluster_ips: Vec<IpAddr>,
    /// One entry for each service port and family that exists (A4, A5), in the order of the ports.
    pub ports: Vec<PortSelection>,
    /// What its health-check node port answers, in each family that exists, IPv4 first; empty without such a port (A13).
    pub health_checks: Vec<HealthCheck>,
}

/// What to do for one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSelection {
    /// The family of all addresses below.
    pub family: Family,
    /// `namespace/name:port`, or `namespace/name` when the port has no name.
    pub label: Arc<str>,
    /// Transport protocol.
    pub protocol: Protocol,
    /// The cluster list (C3), sorted; empty when no front uses it (A15).
    pub cluster: Vec<SocketAddr>,
    /// The local list (C4), sorted; empty when no front uses it (A15).
    pub local: Vec<SocketAddr>,
    /// The endpoints on this node among the two lists, sorted: they may be called by themselves (C7, D10).
    pub hairpin: Vec<SocketAddr>,
    /// The fronts that the port owns, in the order of [`FrontKind`].
    pub fronts: Vec<FrontSelection>,
    /// Time-out of the session affinity in seconds, if there is affinity (A11).
    pub affinity_seconds: Option<u32>,
    /// How endpoints are chosen, if the Service says so.
    pub scheduler: Option<Scheduler>,
    /// What the Service's health-check node port answers (K2); with the Service's first port only.
    pub health_check: Option<HealthCheck>,
}

/// What to do with traffic to one front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontSelection {
    /// What the client connects to.
    pub front: Front,
    /// What the front is to the Service; the first kind, when its address is listed as several.
    pub kind: FrontKind,
    /// The traffic policy that applies to it.
    pub policy: TrafficPolicy,
    /// What becomes of the traffic.
    pub action: Action,
    /// The sources that may connect, whatever the action is (D17); `None` for every source.
    pub sources: Option<Vec<IpNet>>,
}

/// What becomes of a new connection to a front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes to a member of the cluster list (D1, D5).
    Cluster {
        /// Whether it is masqueraded whatever its source is.
        masquerade: bool,
    },
    /// It goes to a member of the local list, which is not empty (D1).
    Local,
    /// External policy Local (D6): from a pod or the host it goes to the cluster list, from elsewhere to the local
    /// list; where that is empty it is dropped (D3).
    ByOrigin,
    /// It is rejected: there is no endpoint at all (D2, D3).
    Reject,
    /// It is dropped: there are endpoints, but not on this node (D2).
    Drop,
}

/// The selection for one Service; `None` when the Service is unknown.
#[must_use]
pub fn select(state: &State, name: &ObjectName) -> Option<ServiceSelection> {
    let service = state.service(name)?;
    let families: Vec<(Family, IpAddr)> =
        Family::BOTH.into_iter().filter_map(|family| service.cluster_ips.get(family).map(|ip| (family, ip))).collect();
    let backends = Backends::of(state.slices_of(name));
    let restricted = Family::BOTH.map(|family| sources::allowed_sources(service, family, state.node()));
    let [v4, v6] = &restricted;
    let selecting = Selecting { state, service, backends: &backends };
    let ports = service.ports.iter().enumerate().flat_map(|(index, port)| {
        families.iter().map(move |(family, _)| {
            let sources = if *family == Family::V4 { v4 } else { v6 };
            selecting.port(index, port, *family, sources.as_ref())
        })
    });
    let mut ports: Vec<PortSelection> = ports.collect();
    let health_checks = health::health_checks(state, service, &backends);
    // The first port stands first, once for each family.
    for (port, check) in ports.iter_mut().zip(&health_checks) {
        port.health_check = Some(*check);
    }
    let cluster_ips = families.iter().map(|(_, ip)| *ip).collect();
    Some(ServiceSelection { cluster_ips, ports, health_checks })
}

/// A Service while its ports are selected one after the other.
#[derive(Clone, Copy)]
struct Selecting<'a> {
    state: &'a State,
    service: &'a Service,
    backends: &'a Backends<'a>,
}

impl Selecting<'_> {
    fn port(self, index: usize, port: &ServicePort, family: Family, sources: Option<&Vec<IpNet>>) -> PortSelection {
        let Self { state, service, backends } = self;
        let endpoints = endpoints::merge(backends.get(port, family));
        let lists = Lists::new(&endpoints, Uses::of(service, port, family), Site::of(state));
        let fronts = service.fronts(port, family).into_iter();
        let owned = fronts.filter(|(_, front)| state.owns(&service.name, index, front));
        let fronts = owned.map(|(kind, front)| {
            let sources = sources.filter(|_| is_load_balancer(service, &front)).cloned();
            let policy = policy(kind, service);
            FrontSelection { front, kind, policy, action: action(kind, policy, &lists), sources }
        });
        PortSelection {
            family,
            label: label(&service.name, port),
            protocol: port.protocol,
            fronts: fronts.collect(),
            cluster: lists.cluster,
            local: lists.local,
            hairpin: lists.hairpin,
            affinity_seconds: service.affinity_seconds,
            scheduler: service.scheduler,
            health_check: None,
        }
    }
}

/// Whether a front has a load balancer IP, also when the same address is listed as an external IP.
fn is_load_balancer(service: &Service, front: &Front) -> bool {
    match front.destination {
        Destination::Address(ip) => service.load_balancer_ips.contains(&ip),
        Destination::NodePort(_) => false,
    }
}

fn policy(kind: FrontKind, service: &Service) -> TrafficPolicy {
    match kind {
        FrontKind::ClusterIp => service.internal_policy,
        FrontKind::ExternalIp | FrontKind::LoadBalancerIp | FrontKind::NodePort => service.external_policy,
    }
}

fn action(kind: FrontKind, policy: TrafficPolicy, lists: &Lists) -> Action {
    match (kind, policy) {
        _ if !lists.has_any => Action::Reject,
        (FrontKind::ClusterIp, TrafficPolicy::Cluster) => Action::Cluster { masquerade: false },
        (FrontKind::ClusterIp, TrafficPolicy::Local) if lists.local.is_empty() => Action::Drop,
        (FrontKind::ClusterIp, TrafficPolicy::Local) => Action::Local,
        (_, TrafficPolicy::Cluster) => Action::Cluster { masquerade: true },
        (_, TrafficPolicy::Local) => Action::ByOrigin,
    }
}

fn label(service: &ObjectName, port: &ServicePort) -> Arc<str> {
    let (namespace, name) = (&service.namespace, &service.name);
    let parts: &[&str] =
        if port.name.is_empty() { &[namespace, "/", name] } else { &[namespace, "/", name, ":", &port.name] };
    parts.concat().into()
}

//! Which endpoints stand behind each front, and what to do with the rest.
//!
//! Takes the [`State`], gives a [`ServiceSelection`]. Pure; knows nothing of how traffic is steered. The families never mix (D24):
//! everything here is per service port and family.

mod endpoints;
mod topology;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::model::{Family, Front, ObjectName, Protocol, Service, State, TrafficPolicy};

pub use crate::model::FrontKind;
use endpoints::Candidate;

/// What was selected for one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSelection {
    /// Its cluster IPs.
    pub cluster_ips: Vec<IpAddr>,
    /// Its ports, once for each family that the Service has.
    pub ports: Vec<PortSelection>,
}

/// What was selected for one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSelection {
    /// The family.
    pub family: Family,
    /// `namespace/name:port`, or `namespace/name` when the port has no name.
    pub label: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// Endpoints for traffic that may leave the node (C3); sorted.
    pub cluster: Vec<SocketAddr>,
    /// Endpoints for traffic that must stay on the node (C4); sorted.
    pub local: Vec<SocketAddr>,
    /// Endpoints on this node that the port can reach, which may reach themselves through it (C7, D10); sorted.
    pub hairpin: Vec<SocketAddr>,
    /// The fronts that the port owns.
    pub fronts: Vec<FrontSelection>,
    /// Session affinity time-out in seconds.
    pub affinity_seconds: Option<u32>,
}

/// What becomes of traffic to a front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontSelection {
    /// The front.
    pub front: Front,
    /// What it is for.
    pub kind: FrontKind,
    /// What to do.
    pub action: Action,
}

/// What to do with new connections to a front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To one of the cluster list.
    Cluster {
        /// Hide the client's address from the endpoint (D5).
        masquerade: bool,
    },
    /// To one of the local list.
    Local,
    /// Pods of this node and the node itself to the cluster list, others to the local list, or nowhere when that is empty (D6).
    ByOrigin,
    /// Refuse: the Service has no endpoint anywhere (D2, D3).
    Reject,
    /// Discard: the Service has endpoints, but none that this traffic may use (D2).
    Drop,
}

/// Selects for one Service; `None` when it is unknown.
#[must_use]
pub fn select(state: &State, name: &ObjectName) -> Option<ServiceSelection> {
    let service = state.service(name)?;
    let mut selection = ServiceSelection { cluster_ips: Vec::new(), ports: Vec::new() };
    for family in Family::BOTH {
        let Some(ip) = service.cluster_ips.get(family) else { continue };
        selection.cluster_ips.push(ip);
        selection.ports.extend((0..service.ports.len()).map(|index| select_port(state, service, index, family)));
    }
    Some(selection)
}

fn select_port(state: &State, service: &Service, index: usize, family: Family) -> PortSelection {
    let port = &service.ports[index];
    let candidates = endpoints::candidates(state, &service.name, port, family);
    let lists = Lists::choose(service, index, family, &candidates, state);
    let fronts = service.fronts(index).into_iter().filter(|(front, _)| {
        front.family() == family && state.owns(&service.name, index, front)
    });
    let fronts = fronts.map(|(front, kind)| FrontSelection { front, kind, action: lists.action(service, kind) });
    PortSelection {
        family,
        label: label(&service.name, &port.name),
        protocol: port.protocol,
        fronts: fronts.collect(),
        cluster: lists.cluster,
        local: lists.local,
        hairpin: lists.hairpin,
        affinity_seconds: service.affinity_seconds,
    }
}

fn label(service: &ObjectName, port: &str) -> Arc<str> {
    if port.is_empty() { service.to_string().into() } else { format!("{service}:{port}").into() }
}

/// The lists of endpoints of one service port.
struct Lists {
    cluster: Vec<SocketAddr>,
    local: Vec<SocketAddr>,
    hairpin: Vec<SocketAddr>,
    /// Whether the port has any endpoint that somebody could use (C6).
    any: bool,
}

impl Lists {
    fn choose(service: &Service, index: usize, family: Family, candidates: &[Candidate<'_>], state: &State) -> Self {
        let external = service.is_externally_accessible(index, family);
        let internal_local = service.internal_policy == TrafficPolicy::Local;
        let uses_cluster = !internal_local || external;
        let uses_local = internal_local || (service.external_policy == TrafficPolicy::Local && external);
        let cluster = if uses_cluster { topology::cluster_list(candidates, state) } else { Vec::new() };
        let local = if uses_local { topology::local_list(candidates) } else { Vec::new() };
        let usable = |c: &Candidate<'_>| c.conditions.ready || c.conditions.serving_terminating();
        let any = !cluster.is_empty() || (uses_local && candidates.iter().any(usable));
        let reachable = |c: &&Candidate<'_>| cluster.contains(&c.address) || local.contains(&c.address);
        let hairpin = candidates.iter().filter(|c| c.local).filter(reachable).map(|c| c.address).collect();
        Self { hairpin, cluster, local, any }
    }

    fn action(&self, service: &Service, kind: FrontKind) -> Action {
        let policy = match kind {
            FrontKind::ClusterIp => service.internal_policy,
            FrontKind::ExternalIp | FrontKind::LoadBalancerIp | FrontKind::NodePort => service.external_policy,
        };
        match (kind, policy) {
            _ if !self.any => Action::Reject,
            (FrontKind::ClusterIp, TrafficPolicy::Cluster) => Action::Cluster { masquerade: false },
            (FrontKind::ClusterIp, TrafficPolicy::Local) if self.local.is_empty() => Action::Drop,
            (FrontKind::ClusterIp, TrafficPolicy::Local) => Action::Local,
            (_, TrafficPolicy::Cluster) => Action::Cluster { masquerade: true },
            (_, TrafficPolicy::Local) => Action::ByOrigin,
        }
    }
}

//! Says why each port of a Service has the endpoints that it has: how many there are, which were taken, and whether topology hints are
//! used.
//!
//! Takes a Service with its slices ([`Gathered`]), returns a [`PortCause`] for each port and each family with a cluster IP. The lists and
//! the reasons come from `Lists`. The selection uses `Lists` too, so the causes always agree with it.
//!
//! Invariant: the work is bounded by `MOST_WORK`, whatever the slices hold; what does not fit is left out, and [`Causes::is_complete`] says
//! so.

use std::sync::Arc;

use crate::model::{CloseConnections, Family, PortSlice, Protocol, Service, ServicePort, TrafficPolicy, Weights};

use super::categories::{self, Category, Lists, Uses};
use super::topology::{NodeTopology, Topology};
use super::weights::{Entry, Weighing, different};
use super::{Gathered, label};

/// The most work for one Service, over all its ports and both families, counted in endpoints that are looked at.
pub(super) const MOST_WORK: usize = 200_000;
/// The work that each port adds to the work for its endpoints, counted in endpoints.
pub(super) const PORT_WORK: usize = 200;

/// Why each port of a Service has the endpoints that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Causes {
    /// One entry for each family with a cluster IP (A4), IPv4 first, and each service port, in the order of the ports.
    pub ports: Vec<PortCause>,
    /// The zone of this node.
    pub zone: Option<Arc<str>>,
    /// Whether the Service asks for topology hints. Hints are used whether it does or not; see [`Service::asks_for_hints`].
    pub asks_for_hints: bool,
    /// Which open connections the Service asks to close, if any (J13).
    pub close_connections: Option<CloseConnections>,
    /// Whether the Service asks to keep UDP flows to endpoints that do not serve, as long as they are in a slice (J3).
    pub keeps_unready_udp_flows: bool,
    /// The weights that the Service gives to endpoints by where they run.
    pub weights: Weights,
    /// Whether `ports` has all ports; if the Service is too large, further ports are left out.
    pub is_complete: bool,
}

/// Why a service port has the endpoints that it has in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCause {
    /// The IP family of the endpoints.
    pub family: Family,
    /// The name of the service port: `namespace/name:port`, or `namespace/name` when the port has no name.
    pub label: Arc<str>,
    /// The name of the port; empty when it has none.
    pub port: Arc<str>,
    /// The transport protocol of the port.
    pub protocol: Protocol,
    /// The endpoints of all slices of the Service in this family, whatever their ports are; each address counts once.
    pub pods: Counts,
    /// The endpoints in slices with this port.
    pub endpoints: Counts,
    /// The endpoints in `endpoints` that are on this node.
    pub here: Counts,
    /// The traffic policy of the cluster IP (`spec.internalTrafficPolicy`).
    pub internal: TrafficPolicy,
    /// The traffic policy of the port's other frontends (`spec.externalTrafficPolicy`); `None` if the port has no others (A14).
    pub external: Option<TrafficPolicy>,
    /// The endpoints for traffic policy Cluster, and how hints restrict them; `None` when no frontend uses them (A15).
    pub cluster: Option<(Taken, Topology)>,
    /// The endpoints for traffic policy Local; `None` when no frontend uses them (A15).
    pub local: Option<Taken>,
}

/// How many endpoints there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of all endpoints, in whatever condition.
    pub all: usize,
    /// The number of endpoints that are Ready.
    pub ready: usize,
    /// The number of endpoints that are not Ready, but serve while they terminate.
    pub terminating: usize,
}

/// The endpoints that were taken into a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Whether these endpoints are Ready or terminating, or whether there are none.
    pub category: Category,
    /// The number of endpoints, whatever their weights are.
    pub count: usize,
}

impl Counts {
    fn of<'a>(endpoints: impl Iterator<Item = &'a Entry<'a>>) -> Self {
        let mut counts = Self::default();
        for Entry { endpoint, .. } in endpoints {
            counts.all += 1;
            match categories::category(endpoint) {
                Category::Ready => counts.ready += 1,
                Category::Terminating => counts.terminating += 1,
                Category::Nothing => {}
            }
        }
        counts
    }
}

impl Gathered<'_> {
    /// Why each port of the Service has the endpoints that it has; `None` when the Service is unknown.
    #[must_use]
    pub fn causes(&self) -> Option<Causes> {
        let service = self.service?;
        let mut causes = Causes {
            ports: Vec::new(),
            zone: self.state.node().and_then(|node| node.zone.clone()),
            asks_for_hints: service.asks_for_hints,
            close_connections: service.close_connections,
            keeps_unready_udp_flows: service.keeps_unready_udp_flows,
            weights: service.weights,
            is_complete: true,
        };
        let mut left = MOST_WORK;
        for family in Family::BOTH.into_iter().filter(|family| service.cluster_ips.get(*family).is_some()) {
            let slices = self.state.slices_of(&service.name).filter(|slice| slice.family == family);
            let slices: Vec<_> = slices.map(|slice| (slice, 0)).collect();
            if !take(&mut left, slices.iter().map(|(slice, _)| slice.endpoints.len()).sum()) {
                return Some(Causes { is_complete: false, ..causes });
            }
            let pods = Counts::of(categories::merge(slices.iter().copied()).iter());
            for port in &service.ports {
                let slices = self.slices.get(port, family);
                if !take(&mut left, PORT_WORK + slices.iter().map(|one| one.slice.endpoints.len()).sum::<usize>()) {
                    return Some(Causes { is_complete: false, ..causes });
                }
                causes.ports.push(cause(
                    service,
                    (port, family),
                    slices,
                    pods,
                    Weighing::of(service, NodeTopology::of(self.state)),
                ));
            }
        }
        Some(causes)
    }
}

/// Subtracts `work` from the work that is left. Returns whether enough was left.
fn take(left: &mut usize, work: usize) -> bool {
    left.checked_sub(work).map(|rest| *left = rest).is_some()
}

fn cause(
    service: &Service,
    (port, family): (&ServicePort, Family),
    slices: &[PortSlice<'_>],
    pods: Counts,
    weighing: Weighing<'_>,
) -> PortCause {
    let endpoints = categories::merge(slices.iter().map(|one| (one.slice, one.port)));
    let lists = Lists::new(&endpoints, Uses::of(service, port, family), weighing);
    let (cluster, local) = (different(&lists.cluster), different(&lists.local));
    PortCause {
        family,
        label: label(&service.name, port),
        port: Arc::clone(&port.name),
        protocol: port.protocol,
        pods,
        endpoints: Counts::of(endpoints.iter()),
        here: Counts::of(endpoints.iter().filter(|entry| weighing.node.is_local(entry.endpoint))),
        internal: service.internal_policy,
        external: service.externally_accessible(port, family).then_some(service.external_policy),
        cluster: lists.reasons.cluster.map(|(category, topology)| (Taken { category, count: cluster }, topology)),
        local: lists.reasons.local.map(|category| Taken { category, count: local }),
    }
}

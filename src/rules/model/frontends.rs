//! Lists the frontends (address or node port, with protocol and port number) that a Service claims for one of its ports.
//!
//! Both the claims of the [`State`](super::State) and `endpoints::select` use this list, so the two cannot disagree.
//!
//! Invariants: a frontend is listed once; every frontend is of the requested family; a family without a cluster IP
//! has no frontends (A4).

use std::net::IpAddr;

use foldhash::HashSet;

use super::names::{Destination, Family, Frontend};
use super::service::{Service, ServicePort};

/// The kind of a frontend. The variants are in the order of precedence (A16): the first kind counts when a Service lists one address as
/// several kinds, and when several Services claim one frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// The Service's cluster IP (A4).
    ClusterIp,
    /// A load balancer's VIP (A8).
    LoadBalancerIp,
    /// One of `spec.externalIPs` (A7).
    ExternalIp,
    /// A port on the node's addresses.
    NodePort,
}

impl FrontendKind {
    /// The kind in words, with an article: `a cluster IP`.
    pub(super) const fn one(self) -> &'static str {
        match self {
            Self::ClusterIp => "a cluster IP",
            Self::LoadBalancerIp => "a load balancer IP",
            Self::ExternalIp => "an external IP",
            Self::NodePort => "a node port",
        }
    }
}

impl Service {
    /// The frontends that a port of this Service claims in a family, in the order of [`FrontendKind`], each once.
    #[must_use]
    pub fn frontends(&self, port: &ServicePort, family: Family) -> Vec<(FrontendKind, Frontend)> {
        let Some(cluster_ip) = self.cluster_ips.get(family) else { return Vec::new() };
        let frontend = |destination, number| Frontend { destination, protocol: port.protocol, port: number };

        let addresses = std::iter::once((FrontendKind::ClusterIp, cluster_ip))
            .chain(of_family(&self.load_balancer_ips, family).map(|ip| (FrontendKind::LoadBalancerIp, ip)))
            .chain(of_family(&self.external_ips, family).map(|ip| (FrontendKind::ExternalIp, ip)))
            .map(|(kind, ip)| (kind, frontend(Destination::Address(ip), port.port)));
        let node_port =
            port.node_port.map(|number| (FrontendKind::NodePort, frontend(Destination::NodePort(family), number)));

        if self.external_ips.is_empty() && self.load_balancer_ips.is_empty() {
            return addresses.chain(node_port).collect();
        }
        let mut seen = HashSet::default();
        addresses.chain(node_port).filter(|(_, frontend)| seen.insert(*frontend)).collect()
    }

    /// The number of addresses at which each port is served in a family. An address that is listed twice counts twice.
    #[must_use]
    pub(crate) fn address_count(&self, family: Family) -> usize {
        let others = of_family(&self.external_ips, family).count() + of_family(&self.load_balancer_ips, family).count();
        if self.cluster_ips.get(family).is_some() { 1 + others } else { 0 }
    }

    /// An upper bound of the number of frontends that all its ports claim.
    #[must_use]
    pub(crate) fn frontend_count(&self) -> usize {
        let in_family = |family| {
            let addresses = self.address_count(family);
            let node_ports =
                if addresses > 0 { self.ports.iter().filter(|port| port.node_port.is_some()).count() } else { 0 };
            addresses * self.ports.len() + node_ports
        };
        Family::BOTH.into_iter().map(in_family).sum()
    }

    /// Whether there is a node port for a port, or a load balancer IP or external IP of a family (A14).
    #[must_use]
    pub(crate) fn externally_accessible(&self, port: &ServicePort, family: Family) -> bool {
        port.node_port.is_some()
            || of_family(&self.external_ips, family).next().is_some()
            || of_family(&self.load_balancer_ips, family).next().is_some()
    }
}

fn of_family(ips: &[IpAddr], family: Family) -> impl Iterator<Item = IpAddr> {
    ips.iter().copied().filter(move |ip| Family::of(*ip) == family)
}

//! Which frontends a Service claims: a Service and one of its ports give a list of frontends.
//!
//! The claims of the [`State`](super::State) and `select` both ask here, so the two cannot disagree.
//!
//! Invariants: a frontend is listed once; every frontend is of the family asked for; a family without a cluster IP
//! has none (A4).

use std::net::IpAddr;

use foldhash::HashSet;

use super::names::{Destination, Family, Frontend};
use super::service::{Service, ServicePort};

/// What a frontend is to its Service. The order decides which kind an address counts as when it is listed as several, and which of two
/// Services gets a frontend.
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
    /// The kind in words, with the article.
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
    /// The frontends that a port claims in a family, in the order of [`FrontendKind`], each once.
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

    /// The number of addresses under which each port can be reached in a family; one that is listed twice counts twice.
    #[must_use]
    pub(crate) fn address_count(&self, family: Family) -> usize {
        let others = of_family(&self.external_ips, family).count() + of_family(&self.load_balancer_ips, family).count();
        if self.cluster_ips.get(family).is_some() { 1 + others } else { 0 }
    }

    /// At least the number of frontends that all its ports claim.
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

    /// Whether a port can be reached in a family by something else than its cluster IP (A14).
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

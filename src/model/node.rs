//! This node, as far as the proxy cares.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

/// Facts of the Node object this proxy runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: Arc<str>,
    /// Label `topology.kubernetes.io/zone`; `None` when absent or empty (C2, C9).
    pub zone: Option<Arc<str>>,
    /// Its raw IPs: the first InternalIP, else the first ExternalIP, then the first address of the other family (M4).
    pub ips: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// A deletion timestamp or the cluster autoscaler's taint is absent (L5).
    pub eligible: bool,
}

impl Node {
    /// The node's IPv4 address, if it has one (M4).
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.ips.iter().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        })
    }

    /// The node's IPv6 address, if it has one (M4).
    #[must_use]
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.ips.iter().find_map(|ip| match ip {
            IpAddr::V6(ip) => Some(*ip),
            IpAddr::V4(_) => None,
        })
    }
}

//! The facts about this node that the proxy uses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

use super::Family;

/// The fields of this node's Node object that the proxy uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// `metadata.name` of the Node.
    pub name: Arc<str>,
    /// Label `topology.kubernetes.io/zone`; `None` when absent or empty (C2, C9).
    pub zone: Option<Arc<str>>,
    /// The node's IPs: the first InternalIP or, if there is none, the first ExternalIP; then the first address of the other family, chosen
    /// in the same way (M4). [`Node::with_bind_address`] applies `bindAddress`.
    pub ips: Vec<IpAddr>,
    /// `spec.podCIDRs`: the address ranges of the pods on this node.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether load balancers may send traffic here: the Node has neither a deletion timestamp nor the cluster autoscaler's taint (L5).
    pub eligible: bool,
    /// Whether an operator drains the node: the Node has the mark that the configuration names (L10).
    pub drained: bool,
}

impl Node {
    /// Puts `address`, the configured `bindAddress`, first and in place of the node's IP of its family, unless it is unspecified (M6).
    #[must_use]
    pub fn with_bind_address(mut self, address: IpAddr) -> Self {
        if !address.is_unspecified() {
            self.ips.retain(|ip| ip.is_ipv4() != address.is_ipv4());
            self.ips.insert(0, address);
        }
        self
    }

    /// The family of the node's first IP; IPv4 when it has none (M5).
    #[must_use]
    pub fn primary_family(&self) -> Family {
        self.ips.first().map_or(Family::V4, |ip| Family::of(*ip))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ips: &[&str]) -> Node {
        Node { ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(), ..Node::default() }
    }

    // The family of the first IP is the primary one; without an IP it is IPv4 (M5).
    #[test]
    fn the_first_ip_decides_the_primary_family() {
        assert_eq!(node(&["2001:db8::2", "192.0.2.2"]).primary_family(), Family::V6);
        assert_eq!(node(&["192.0.2.2", "2001:db8::2"]).primary_family(), Family::V4);
        assert_eq!(node(&[]).primary_family(), Family::V4);
    }

    // A bind address replaces the IP of its family and makes that family the primary one (M6).
    #[test]
    fn the_bind_address_replaces_the_ip_of_its_family_and_comes_first() {
        let bound = |ips: &[&str], address: &str| node(ips).with_bind_address(address.parse().unwrap());
        let v6 = bound(&["192.0.2.2", "2001:db8::2"], "2001:db8::9");
        assert_eq!((v6.ips.clone(), v6.primary_family()), (node(&["2001:db8::9", "192.0.2.2"]).ips, Family::V6));
        assert_eq!(bound(&["192.0.2.2"], "0.0.0.0"), node(&["192.0.2.2"]), "unspecified");
        assert_eq!(bound(&["192.0.2.2"], "::"), node(&["192.0.2.2"]), "unspecified");
        assert_eq!(bound(&[], "192.0.2.9"), node(&["192.0.2.9"]));
    }
}

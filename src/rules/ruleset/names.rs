//! The name of every chain, set and map of our tables, in all layouts.
//!
//! The layouts write these names, and [`SetKind`](super::kinds::SetKind) and [`ChainKind`](super::kinds::ChainKind) read them. No other
//! file has such a name as text, so that a chain that is renamed here cannot lose its explanation elsewhere.
//!
//! A chain and a map may have the same name, because nftables keeps them apart.

use crate::model::{Destination, Frontend, Protocol};
use crate::table::SetName;

/// The name of our table in each family.
pub const TABLE: &str = "kube-proxy";

/// Names of sets and maps.
pub mod set {
    /// The cluster IPs in use.
    pub const CLUSTER_IPS: &str = "cluster-ips";
    /// Addresses of the node that accept node ports. Upstream's name is `nodeport-ips`: its start in match-all mode deletes that set, and
    /// fails if a rule of this proxy uses it.
    pub const NODEPORT_ADDRESSES: &str = "nodeport-addresses";
    /// The ranges of the ServiceCIDRs.
    pub const SERVICE_CIDRS: &str = "service-cidrs";
    /// Endpoints on this node, which may reach themselves.
    pub const HAIRPIN: &str = "hairpin";
    /// The answers of the health-check node ports.
    pub const HEALTH_CHECKS: &str = "health-check-nodeports";
    /// Node ports that are refused on loopback addresses.
    pub const LOCALHOST_NODEPORTS: &str = "localhost-nodeports";

    /// Frontends without endpoints; in the layouts with chains only those with a cluster IP.
    pub const NO_ENDPOINTS: &str = "no-endpoints";
    /// The other frontends with an address and without endpoints, in the layouts with chains.
    pub const NO_ENDPOINTS_EXTERNAL: &str = "no-endpoints-external";
    /// Node ports without endpoints.
    pub const NO_ENDPOINTS_NODEPORTS: &str = "no-endpoints-nodeports";

    /// Layout `maps`: frontends with an address, and where their packets go.
    pub const SERVICES: &str = "services";
    /// Layout `maps`: the same for node ports.
    pub const NODEPORTS: &str = "nodeports";
    /// Layout `maps`: external policy Local, for pods and the host.
    pub const CLUSTER_POLICY: &str = "cluster-policy";
    /// Layout `maps`: the same for node ports.
    pub const NODEPORT_CLUSTER_POLICY: &str = "nodeport-cluster-policy";
    /// Layout `maps`: external policy Local, for other clients.
    pub const LOCAL_POLICY: &str = "local-policy";
    /// Layout `maps`: the same for node ports.
    pub const NODEPORT_LOCAL_POLICY: &str = "nodeport-local-policy";
    /// Layout `maps`: frontends with source ranges.
    pub const RESTRICTED: &str = "lb-restricted";
    /// Layout `maps`: these source ranges.
    pub const SOURCES: &str = "lb-sources";

    /// Layouts with chains: frontends with an address, and the chains of their service ports.
    pub const CHAINS_SERVICES: &str = super::chain::SERVICES;
    /// Layouts with chains: the same for node ports.
    pub const CHAINS_NODEPORTS: &str = super::chain::NODEPORTS;
    /// Layout `chains`: the first endpoint of each frontend with an address.
    pub const FALLBACK: &str = "fallback";
    /// Layout `chains`: the same for node ports.
    pub const NODEPORT_FALLBACK: &str = "nodeport-fallback";
    /// Layout `chains`: how the names of the maps from numbers to the chains of endpoints begin, for the cluster list and the local list.
    /// Metrics count the elements of these maps under these beginnings.
    pub const VERDICT_MAPS: [&str; 2] = ["KUBE-SVC", "KUBE-SVL"];

    pub(in crate::ruleset) const ENDPOINTS: &str = "endpoints";
    pub(in crate::ruleset) const LOCAL_ENDPOINTS: &str = "local-endpoints";
    pub(in crate::ruleset) const NODEPORT_ENDPOINTS: &str = "nodeport-endpoints";
    pub(in crate::ruleset) const NODEPORT_LOCAL_ENDPOINTS: &str = "nodeport-local-endpoints";
    pub(in crate::ruleset) const AFFINITY_SERVICES: &str = "affinity-services-";
    pub(in crate::ruleset) const AFFINITY_NODEPORTS: &str = "affinity-nodeports-";
}

/// Names of chains.
pub mod chain {
    /// Looks frontends up.
    pub const SERVICES: &str = "KUBE-SERVICES";
    /// Looks node ports up.
    pub const NODEPORTS: &str = "KUBE-NODEPORTS";
    /// Marks packets for masquerading.
    pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
    /// Masquerades what is marked.
    pub const POSTROUTING: &str = "KUBE-POSTROUTING";
    /// Refuses what arrives for this host.
    pub const INPUT: &str = "KUBE-INPUT";
    /// Refuses what passes through; in the layouts with chains it drops packets of no known connection.
    pub const FORWARD: &str = "KUBE-FORWARD";
    /// Layout `maps`: refuses what this host sends.
    pub const OUTPUT: &str = "KUBE-OUTPUT";
    /// Answers that nothing serves a port.
    pub const REJECT: &str = "KUBE-REJECT";
    /// Finds out which map remembers a client.
    pub const AFFINITY: &str = "KUBE-AFFINITY";
    /// Refuses node ports on loopback addresses.
    pub const LOCALHOST: &str = "KUBE-LOCALHOST";

    /// Layouts with chains: the part of iptables' chain `KUBE-SERVICES` that is in its table `filter`. nftables has one namespace for
    /// all chains of a table.
    pub const SERVICES_FILTER: &str = "KUBE-SERVICES-FILTER";
    /// Layouts with chains: refuses external frontends without endpoints.
    pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
    /// Layouts with chains: drops sources that may not connect.
    pub const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
    /// Layouts with chains: sends a packet that met a change to the first endpoint of its frontend.
    pub const FALLBACK: &str = "KUBE-FALLBACK";

    /// The base chain for new connections that arrive.
    pub const NAT_PREROUTING: &str = "nat-prerouting";
    /// The base chain for new connections of this host.
    pub const NAT_OUTPUT: &str = "nat-output";
    /// The base chain for masquerading.
    pub const NAT_POSTROUTING: &str = "nat-postrouting";
    /// The base chain for packets to this host.
    pub const FILTER_INPUT: &str = "filter-input";
    /// The base chain for packets that pass through.
    pub const FILTER_FORWARD: &str = "filter-forward";
    /// The base chain for packets of this host.
    pub const FILTER_OUTPUT: &str = "filter-output";
    /// The base chain that remembers clients of endpoints elsewhere.
    pub const AFFINITY_POSTROUTING: &str = "nat-affinity-postrouting";
    /// The base chain that remembers clients of endpoints on this host.
    pub const AFFINITY_INPUT: &str = "nat-affinity-input";

    /// How the names of all chains begin that iptables mode has too.
    pub const OF_IPTABLES_MODE: &str = "KUBE-";

    pub(in crate::ruleset) const EXTERNAL_LOCAL: &str = "external-local";
    pub(in crate::ruleset) const EXTERNAL_LOCAL_HOST: &str = "external-local-host";
    pub(in crate::ruleset) const BALANCER: &str = "lb-";
    pub(in crate::ruleset) const STICKY: &str = "affinity-";
    pub(in crate::ruleset) const LEARN: &str = "learn-affinity-";
    pub(in crate::ruleset) const CLUSTER: &str = "KUBE-SVC-";
    pub(in crate::ruleset) const LOCAL: &str = "KUBE-SVL-";
    pub(in crate::ruleset) const EXTERNAL: &str = "KUBE-EXT-";
    pub(in crate::ruleset) const SOURCE_RANGES: &str = "KUBE-FW-";
    pub(in crate::ruleset) const INTERNAL_SOURCE_RANGES: &str = "KUBE-FWI-";
    pub(in crate::ruleset) const ENDPOINT: &str = "KUBE-SEP-";
}

/// Marks what is about node ports.
pub(super) const NODEPORT: &str = "nodeport-";
/// Marks what is about the endpoints on this node.
pub(super) const LOCAL: &str = "local-";
/// Marks session affinity chains and maps for the endpoints on this node. It has a dot, which no namespace has: the names of Service `x/web`
/// cannot be those of a Service in namespace `local-x`.
pub(super) const STICKY_LOCAL: &str = "local.";
/// Marks chains that mark packets for masquerading first.
pub(super) const MASQUERADE: &str = "masq-";

/// Frontends are addresses or node ports. These have maps of their own, because the key of a node port has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrontendType {
    /// An address, a protocol and a port.
    Address,
    /// A protocol and a port, on the addresses of the node.
    NodePort,
}

impl FrontendType {
    /// Both types.
    pub const BOTH: [Self; 2] = [Self::Address, Self::NodePort];

    /// The type of a frontend.
    #[must_use]
    pub const fn of(frontend: &Frontend) -> Self {
        match frontend.destination {
            Destination::Address(_) => Self::Address,
            Destination::NodePort(_) => Self::NodePort,
        }
    }

    /// The beginning of the names of its chains.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Address => "",
            Self::NodePort => NODEPORT,
        }
    }
}

/// One of the two lists of endpoints of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// The endpoints of the cluster.
    Cluster,
    /// The endpoints on this node.
    Local,
}

impl List {
    /// Both lists.
    pub const BOTH: [Self; 2] = [Self::Cluster, Self::Local];

    /// The part that the names of its chains have in them.
    pub(super) const fn infix(self) -> &'static str {
        match self {
            Self::Cluster => "",
            Self::Local => LOCAL,
        }
    }
}

/// The map from a frontend to its verdict, in layout `maps`.
#[must_use]
pub const fn dispatch(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::SERVICES,
        FrontendType::NodePort => set::NODEPORTS,
    }
}

/// The map from a frontend with external policy Local to its verdict for pods and the host.
#[must_use]
pub const fn cluster_policy(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::CLUSTER_POLICY,
        FrontendType::NodePort => set::NODEPORT_CLUSTER_POLICY,
    }
}

/// The map from a frontend with external policy Local to its verdict for other clients.
#[must_use]
pub const fn local_policy(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::LOCAL_POLICY,
        FrontendType::NodePort => set::NODEPORT_LOCAL_POLICY,
    }
}

/// The map from a frontend without endpoints to its verdict in the filter chains, in layout `maps`.
#[must_use]
pub const fn no_endpoints(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::NO_ENDPOINTS,
        FrontendType::NodePort => set::NO_ENDPOINTS_NODEPORTS,
    }
}

/// The map from frontend and number to endpoint, if there is only one of it.
#[must_use]
pub const fn endpoints(frontend_type: FrontendType, list: List) -> &'static str {
    match (frontend_type, list) {
        (FrontendType::Address, List::Cluster) => set::ENDPOINTS,
        (FrontendType::Address, List::Local) => set::LOCAL_ENDPOINTS,
        (FrontendType::NodePort, List::Cluster) => set::NODEPORT_ENDPOINTS,
        (FrontendType::NodePort, List::Local) => set::NODEPORT_LOCAL_ENDPOINTS,
    }
}

/// The map from the original destination of a connection to the chain that remembers its client; nft cannot put the protocol into the key.
#[must_use]
pub fn affinity_map(frontend_type: FrontendType, protocol: Protocol) -> String {
    match frontend_type {
        FrontendType::Address => format!("{}{protocol}", set::AFFINITY_SERVICES),
        FrontendType::NodePort => format!("{}{protocol}", set::AFFINITY_NODEPORTS),
    }
}

/// The types of frontends and the lists that have a map of endpoints, in the order of the tables.
pub const ENDPOINT_MAPS: [(FrontendType, List); 4] = [
    (FrontendType::Address, List::Cluster),
    (FrontendType::Address, List::Local),
    (FrontendType::NodePort, List::Cluster),
    (FrontendType::NodePort, List::Local),
];

/// The names of all maps of this kind, where so many maps share the endpoints of each kind.
pub fn endpoint_maps(frontend_type: FrontendType, list: List, maps: u8) -> impl Iterator<Item = SetName> {
    let name = endpoints(frontend_type, list);
    (0..maps.max(1)).map(move |part| with_part(name, (maps > 1).then_some(part)))
}

/// A name for one of several maps, or for the only one.
pub(super) fn with_part(name: &'static str, part: Option<u8>) -> SetName {
    match part {
        Some(part) => format!("{name}.{part}").into(),
        None => name.into(),
    }
}

/// A name without its part, and the part.
pub(super) fn split_part(name: &str) -> (&str, Option<u8>) {
    if let Some((before, part)) = name.rsplit_once('.')
        && let Ok(part) = part.parse()
    {
        return (before, Some(part));
    }
    (name, None)
}

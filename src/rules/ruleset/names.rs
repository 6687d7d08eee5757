//! The names of all chains, sets and maps of the tables `kube-proxy`, for all ruleset layouts (`--ruleset-layout`).
//!
//! Modules `maps` and `chains` write these names; [`SetKind`](super::kinds::SetKind) and [`ChainKind`](super::kinds::ChainKind) parse them.
//! Other production code uses these constants, so a name can be changed here alone; the test `names` checks that for names with a hyphen.
//! (Crate `node` has the names of iptables mode's chains, some of which are the same.)
//!
//! A chain and a map may have the same name, because chains and maps have separate namespaces in nftables.

use crate::model::{Destination, Frontend, Protocol};
use crate::table::SetName;

/// The name of this program's table in each family.
pub const TABLE: &str = "kube-proxy";
/// The comment of this table.
pub const TABLE_COMMENT: &str = "rules for kube-proxy";

/// Names of sets and maps.
pub mod set {
    /// The cluster IPs in use.
    pub const CLUSTER_IPS: &str = "cluster-ips";
    /// External IPs and load balancer IPs in use; only where a rule looks them up.
    pub const EXTERNAL_IPS: &str = "external-ips";
    /// Addresses of the node that accept node ports. Not upstream's name `nodeport-ips`: upstream kube-proxy deletes the set of this name
    /// when it starts and all addresses accept node ports. The deletion would fail if a rule of this proxy used the set.
    pub const NODEPORT_ADDRESSES: &str = "nodeport-addresses";
    /// The ranges of the ServiceCIDRs.
    pub const SERVICE_CIDRS: &str = "service-cidrs";
    /// Reachable endpoints on this node (C7), which may connect to themselves through a Service.
    pub const HAIRPIN: &str = "hairpin";
    /// The numbers of local endpoints that the health-check node ports report.
    pub const HEALTH_CHECKS: &str = "health-check-nodeports";
    /// Node ports that are refused on loopback addresses.
    pub const LOCALHOST_NODEPORTS: &str = "localhost-nodeports";

    /// Frontends with an address and without endpoints; with `--ruleset-layout=chains` only cluster IPs.
    pub const NO_ENDPOINTS: &str = "no-endpoints";
    /// With `--ruleset-layout=chains`: external IPs and load balancer IPs without endpoints.
    pub const NO_ENDPOINTS_EXTERNAL: &str = "no-endpoints-external";
    /// Node ports without endpoints.
    pub const NO_ENDPOINTS_NODEPORTS: &str = "no-endpoints-nodeports";

    /// With `--ruleset-layout=maps`: frontends with an address, and the verdict for their packets.
    pub const SERVICES: &str = "services";
    /// With `--ruleset-layout=maps`: node ports, and the verdict for their packets.
    pub const NODEPORTS: &str = "nodeports";
    /// With `--ruleset-layout=maps`: frontends with an address and external policy Local, and the verdict for packets from local pods and from
    /// this host.
    pub const CLUSTER_POLICY: &str = "cluster-policy";
    /// With `--ruleset-layout=maps`: node ports with external policy Local, and the verdict for packets from local pods and from this host.
    pub const NODEPORT_CLUSTER_POLICY: &str = "nodeport-cluster-policy";
    /// With `--ruleset-layout=maps`: frontends with an address and external policy Local, and the verdict for packets from other clients.
    pub const LOCAL_POLICY: &str = "local-policy";
    /// With `--ruleset-layout=maps`: node ports with external policy Local, and the verdict for packets from other clients.
    pub const NODEPORT_LOCAL_POLICY: &str = "nodeport-local-policy";
    /// With `--ruleset-layout=maps`: frontends with source ranges.
    pub const RESTRICTED: &str = "lb-restricted";
    /// With `--ruleset-layout=maps`: the source ranges of the frontends in `lb-restricted`.
    pub const SOURCES: &str = "lb-sources";

    /// With `--ruleset-layout=chains`: frontends with an address, and the verdict for their packets (a chain of their service port, or drop).
    pub const CHAINS_SERVICES: &str = super::chain::SERVICES;
    /// With `--ruleset-layout=chains`: node ports, and the verdict for their packets (a chain of their service port, or drop).
    pub const CHAINS_NODEPORTS: &str = super::chain::NODEPORTS;
    /// With `--ruleset-layout=chains`: the first endpoint of each frontend with an address whose endpoints have chains.
    pub const FALLBACK: &str = "fallback";
    /// With `--ruleset-layout=chains`: the first endpoint of each node port whose endpoints have chains.
    pub const NODEPORT_FALLBACK: &str = "nodeport-fallback";
    /// With `--ruleset-layout=chains`: the prefixes of the maps from numbers to endpoint chains, for policies Cluster and Local. Metrics count
    /// the elements of all maps with one prefix together.
    pub const VERDICT_MAPS: [&str; 2] = ["KUBE-SVC", "KUBE-SVL"];

    pub(in crate::ruleset) const ENDPOINTS: &str = "endpoints";
    pub(in crate::ruleset) const LOCAL_ENDPOINTS: &str = "local-endpoints";
    pub(in crate::ruleset) const NODEPORT_ENDPOINTS: &str = "nodeport-endpoints";
    pub(in crate::ruleset) const NODEPORT_LOCAL_ENDPOINTS: &str = "nodeport-local-endpoints";
    pub(in crate::ruleset) const COUNTED_ENDPOINTS: &str = "counted-endpoints";
    pub(in crate::ruleset) const COUNTED_LOCAL_ENDPOINTS: &str = "counted-local-endpoints";
    pub(in crate::ruleset) const COUNTED_NODEPORT_ENDPOINTS: &str = "counted-nodeport-endpoints";
    pub(in crate::ruleset) const COUNTED_NODEPORT_LOCAL_ENDPOINTS: &str = "counted-nodeport-local-endpoints";
    pub(in crate::ruleset) const AFFINITY_SERVICES: &str = "affinity-services-";
    pub(in crate::ruleset) const AFFINITY_NODEPORTS: &str = "affinity-nodeports-";
}

/// Names of chains.
pub mod chain {
    /// Looks up the frontend of a packet.
    pub const SERVICES: &str = "KUBE-SERVICES";
    /// Looks up the node port of a packet.
    pub const NODEPORTS: &str = "KUBE-NODEPORTS";
    /// Marks packets for masquerading.
    pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
    /// Masquerades marked packets.
    pub const POSTROUTING: &str = "KUBE-POSTROUTING";
    /// Refuses packets to this host if their frontend has no endpoints.
    pub const INPUT: &str = "KUBE-INPUT";
    /// Refuses or drops forwarded packets, and packets from this host, to frontends without endpoints and to addresses and ports of Services
    /// that nothing serves: the chain `KUBE-SERVICES` of iptables mode in table `filter`. iptables mode has a second chain of this name in
    /// table `nat`; here all chains are in one table, so this chain needs another name.
    pub const SERVICES_FILTER: &str = "KUBE-SERVICES-FILTER";
    /// With `--ruleset-layout=chains`: drops forwarded packets in conntrack state `invalid` (D22).
    pub const FORWARD: &str = "KUBE-FORWARD";
    /// Rejects all packets that come to it: those to frontends without endpoints, and to ports that no Service serves.
    pub const REJECT: &str = "KUBE-REJECT";
    /// Finds the chain that records the client of a new connection (session affinity).
    pub const AFFINITY: &str = "KUBE-AFFINITY";
    /// Translates pings to addresses of Services, so that they go to an address of this node.
    pub const PINGS: &str = "KUBE-PINGS";
    /// Refuses ports of external IPs and load balancer IPs that no Service has.
    pub const EXTERNAL_IPS: &str = "KUBE-EXTERNAL-IPS";
    /// Drops invalid packets of endpoints on this node.
    pub const INVALID: &str = "KUBE-INVALID";
    /// Refuses node ports on loopback addresses.
    pub const LOCALHOST: &str = "KUBE-LOCALHOST";

    /// With `--ruleset-layout=chains`: refuses packets to external IPs and load balancer IPs without endpoints.
    pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
    /// With `--ruleset-layout=chains`: drops packets from clients that are not in the source ranges of a load balancer IP.
    pub const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
    /// With `--ruleset-layout=chains`: sends a packet for which no rule chose an endpoint, because the endpoints just changed, to the first
    /// endpoint of its frontend.
    pub const FALLBACK: &str = "KUBE-FALLBACK";

    /// The base chain for new connections from other hosts and from pods: DNAT in hook prerouting.
    pub const NAT_PREROUTING: &str = "nat-prerouting";
    /// The base chain for new connections of this host: DNAT in hook output.
    pub const NAT_OUTPUT: &str = "nat-output";
    /// The base chain for masquerading.
    pub const NAT_POSTROUTING: &str = "nat-postrouting";
    /// The base chain for packets to this host.
    pub const FILTER_INPUT: &str = "filter-input";
    /// The base chain for forwarded packets.
    pub const FILTER_FORWARD: &str = "filter-forward";
    /// The base chain for packets that this host sends.
    pub const FILTER_OUTPUT: &str = "filter-output";
    /// The base chain that records the clients of endpoints outside the host's network namespace: pods, and other nodes (session affinity).
    pub const AFFINITY_POSTROUTING: &str = "nat-affinity-postrouting";
    /// The base chain that records the clients of endpoints in the host's network namespace (session affinity).
    pub const AFFINITY_INPUT: &str = "nat-affinity-input";

    /// The prefix of the names of all chains of iptables mode. Some chains that only this program has begin with it too.
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

/// The part of a name that stands for node ports.
pub(super) const NODEPORT: &str = "nodeport-";
/// The part of a name that stands for the endpoints on this node.
pub(super) const LOCAL: &str = "local-";
/// The part of the name of a session affinity chain or map that stands for the endpoints on this node. It has a dot, which no namespace
/// may have, so that a name for Service `x/web` never equals a name for a Service in namespace `local-x`.
pub(super) const STICKY_LOCAL: &str = "local.";
/// The part of the name of a chain that first marks packets for masquerading.
pub(super) const MASQUERADE: &str = "masq-";

/// The two types of frontends. Node ports have maps of their own, because their keys have no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrontendType {
    /// An address, a protocol and a port.
    Address,
    /// A protocol and a port, on the addresses of the node.
    NodePort,
}

impl FrontendType {
    /// Both types, addresses first.
    pub const BOTH: [Self; 2] = [Self::Address, Self::NodePort];

    /// The type of a frontend.
    #[must_use]
    pub const fn of(frontend: &Frontend) -> Self {
        match frontend.destination {
            Destination::Address(_) => Self::Address,
            Destination::NodePort(_) => Self::NodePort,
        }
    }

    /// The prefix of the names of chains for this type.
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
    /// The endpoints for traffic policy Cluster.
    Cluster,
    /// The endpoints on this node, for traffic policy Local.
    Local,
}

impl List {
    /// Both lists, first that of traffic policy Cluster.
    pub const BOTH: [Self; 2] = [Self::Cluster, Self::Local];

    /// The part of a chain's name that stands for this list.
    pub(super) const fn infix(self) -> &'static str {
        match self {
            Self::Cluster => "",
            Self::Local => LOCAL,
        }
    }
}

/// The map from a frontend to its verdict, with `--ruleset-layout=maps`.
#[must_use]
pub const fn dispatch(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::SERVICES,
        FrontendType::NodePort => set::NODEPORTS,
    }
}

/// The map from a frontend with external policy Local to its verdict for packets from local pods and from this host, with
/// `--ruleset-layout=maps`.
#[must_use]
pub const fn cluster_policy(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::CLUSTER_POLICY,
        FrontendType::NodePort => set::NODEPORT_CLUSTER_POLICY,
    }
}

/// The map from a frontend with external policy Local to its verdict for packets from other clients, with `--ruleset-layout=maps`.
#[must_use]
pub const fn local_policy(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::LOCAL_POLICY,
        FrontendType::NodePort => set::NODEPORT_LOCAL_POLICY,
    }
}

/// The map from a frontend without endpoints to its verdict in the filter chains, with `--ruleset-layout=maps`.
#[must_use]
pub const fn no_endpoints(frontend_type: FrontendType) -> &'static str {
    match frontend_type {
        FrontendType::Address => set::NO_ENDPOINTS,
        FrontendType::NodePort => set::NO_ENDPOINTS_NODEPORTS,
    }
}

/// The name of the map from frontend and number to endpoint. If the map is split into several, their names begin with it. A map whose
/// elements have counters has another name than one without: the kernel cannot change the one into the other, and a table needs both while
/// a change of the layout goes on (F8).
#[must_use]
pub const fn endpoints(frontend_type: FrontendType, list: List, is_counted: bool) -> &'static str {
    match (frontend_type, list, is_counted) {
        (FrontendType::Address, List::Cluster, false) => set::ENDPOINTS,
        (FrontendType::Address, List::Local, false) => set::LOCAL_ENDPOINTS,
        (FrontendType::NodePort, List::Cluster, false) => set::NODEPORT_ENDPOINTS,
        (FrontendType::NodePort, List::Local, false) => set::NODEPORT_LOCAL_ENDPOINTS,
        (FrontendType::Address, List::Cluster, true) => set::COUNTED_ENDPOINTS,
        (FrontendType::Address, List::Local, true) => set::COUNTED_LOCAL_ENDPOINTS,
        (FrontendType::NodePort, List::Cluster, true) => set::COUNTED_NODEPORT_ENDPOINTS,
        (FrontendType::NodePort, List::Local, true) => set::COUNTED_NODEPORT_LOCAL_ENDPOINTS,
    }
}

/// The name of the map from a connection's original destination to the chain that records its client. There is one map for each protocol,
/// and the protocol is not part of its keys.
#[must_use]
pub fn affinity_map(frontend_type: FrontendType, protocol: Protocol) -> String {
    match frontend_type {
        FrontendType::Address => format!("{}{protocol}", set::AFFINITY_SERVICES),
        FrontendType::NodePort => format!("{}{protocol}", set::AFFINITY_NODEPORTS),
    }
}

/// The combinations of frontend type and list that have a map of endpoints, in the order of these maps in the table.
pub const ENDPOINT_MAPS: [(FrontendType, List); 4] = [
    (FrontendType::Address, List::Cluster),
    (FrontendType::Address, List::Local),
    (FrontendType::NodePort, List::Cluster),
    (FrontendType::NodePort, List::Local),
];

/// The names of the maps from frontend and number to endpoint, for a frontend type and a list, when the endpoints are split over `maps`
/// maps.
pub fn endpoint_maps(
    frontend_type: FrontendType,
    list: List,
    is_counted: bool,
    maps: u8,
) -> impl Iterator<Item = SetName> {
    let name = endpoints(frontend_type, list, is_counted);
    (0..maps.max(1)).map(move |part| with_part(name, (maps > 1).then_some(part)))
}

/// The name of one of several maps (`NAME.PART`), or of the only map (`NAME`).
pub(super) fn with_part(name: &'static str, part: Option<u8>) -> SetName {
    match part {
        Some(part) => format!("{name}.{part}").into(),
        None => name.into(),
    }
}

/// Splits `NAME.PART` into the name and the number of the part, if there is one.
pub(super) fn split_part(name: &str) -> (&str, Option<u8>) {
    if let Some((before, part)) = name.rsplit_once('.')
        && let Ok(part) = part.parse()
    {
        return (before, Some(part));
    }
    (name, None)
}

//! Finds the use of a chain, set or map of this program's tables by its name: the inverse of [`names`](super::names). Pure.
//!
//! Code that explains, counts or verifies the tables can match on these kinds in place of names.

use std::fmt;

use super::names::{
    ENDPOINT_MAPS, FrontendType, LOCAL, List, MASQUERADE, NODEPORT, STICKY_LOCAL, chain, endpoints, set, split_part,
};
use crate::model::Protocol;

/// The use of a set or map. A set or map with the same use may have a different name in each ruleset layout (`--ruleset-layout`: `maps` or
/// `chains`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// The cluster IPs in use.
    ClusterIps,
    /// The external IPs and load balancer IPs in use.
    ExternalIps,
    /// Addresses of the node that accept node ports.
    NodePortAddresses,
    /// The ranges of the ServiceCIDRs.
    ServiceCidrs,
    /// Reachable endpoints on this node (C7), each as source and destination of a packet to itself.
    Hairpin,
    /// The numbers of local endpoints that the health-check node ports report.
    HealthChecks,
    /// Node ports that are refused on loopback addresses.
    LocalhostNodePorts,
    /// Frontends with the verdict for their packets.
    Dispatch(FrontendType),
    /// Frontends with external policy Local, with the verdict for packets from local pods and from this host.
    ClusterPolicy(FrontendType),
    /// Frontends with external policy Local, with the verdict for packets from other clients.
    LocalPolicy(FrontendType),
    /// Frontends without endpoints.
    NoEndpoints(FrontendType),
    /// Frontends with source ranges.
    Restricted,
    /// The source ranges of the frontends in `Restricted`.
    Sources,
    /// The endpoints of frontends, by frontend and number.
    Endpoints(FrontendType, List),
    /// The first endpoint of each frontend, for packets for which no other rule chose one, because the endpoints just changed.
    Fallback(FrontendType),
    /// Frontends with session affinity, with the chain that records their clients.
    Affinity(FrontendType, Protocol),
    /// The endpoint chains of a service port, by number.
    VerdictMap(List),
    /// The clients that session affinity has recorded for a service port, or for one of its endpoints.
    Clients(List),
}

impl SetKind {
    /// The kind of the set or map with this name; `None` when this program never makes a set with this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        use FrontendType::{Address, NodePort};
        Some(match name {
            set::CLUSTER_IPS => Self::ClusterIps,
            set::EXTERNAL_IPS => Self::ExternalIps,
            set::NODEPORT_ADDRESSES => Self::NodePortAddresses,
            set::SERVICE_CIDRS => Self::ServiceCidrs,
            set::HAIRPIN => Self::Hairpin,
            set::HEALTH_CHECKS => Self::HealthChecks,
            set::LOCALHOST_NODEPORTS => Self::LocalhostNodePorts,
            set::SERVICES | set::CHAINS_SERVICES => Self::Dispatch(Address),
            set::NODEPORTS | set::CHAINS_NODEPORTS => Self::Dispatch(NodePort),
            set::CLUSTER_POLICY => Self::ClusterPolicy(Address),
            set::NODEPORT_CLUSTER_POLICY => Self::ClusterPolicy(NodePort),
            set::LOCAL_POLICY => Self::LocalPolicy(Address),
            set::NODEPORT_LOCAL_POLICY => Self::LocalPolicy(NodePort),
            set::NO_ENDPOINTS | set::NO_ENDPOINTS_EXTERNAL => Self::NoEndpoints(Address),
            set::NO_ENDPOINTS_NODEPORTS => Self::NoEndpoints(NodePort),
            set::RESTRICTED => Self::Restricted,
            set::SOURCES => Self::Sources,
            set::FALLBACK => Self::Fallback(Address),
            set::NODEPORT_FALLBACK => Self::Fallback(NodePort),
            _ => return Self::of_several(name),
        })
    }

    /// The kind of a set or map whose name has variable parts.
    fn of_several(name: &str) -> Option<Self> {
        for (frontend_type, list) in ENDPOINT_MAPS {
            let names = [false, true].map(|is_counted| endpoints(frontend_type, list, is_counted));
            if names.contains(&split_part(name).0) {
                return Some(Self::Endpoints(frontend_type, list));
            }
        }
        if let Some(protocol) = name.strip_prefix(set::AFFINITY_SERVICES).and_then(protocol_named) {
            return Some(Self::Affinity(FrontendType::Address, protocol));
        }
        if let Some(protocol) = name.strip_prefix(set::AFFINITY_NODEPORTS).and_then(protocol_named) {
            return Some(Self::Affinity(FrontendType::NodePort, protocol));
        }
        match ChainKind::of(name)? {
            ChainKind::ServicePort(list) => Some(Self::VerdictMap(list)),
            ChainKind::Endpoint => Some(Self::Clients(List::Cluster)),
            ChainKind::Sticky { list, .. } => Some(Self::Clients(list)),
            _ => None,
        }
    }

    /// How elements of this kind decide what happens to a frontend's packets; `None` if they have none of these roles.
    #[must_use]
    pub const fn role(self) -> Option<Role> {
        match self {
            Self::Dispatch(_) => Some(Role::Dispatch),
            Self::LocalPolicy(_) => Some(Role::FromOutside),
            Self::NoEndpoints(_) => Some(Role::Refuse),
            _ => None,
        }
    }
}

/// How an element whose key is a frontend decides what happens to the frontend's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its verdict applies to the packets to the frontend that no rule dropped before.
    Dispatch,
    /// Its verdict applies, after the `Dispatch` verdict, to packets that come neither from a local pod nor from this host.
    FromOutside,
    /// Refuses the packets to the frontend that no rule dropped before.
    Refuse,
}

/// What the rules of a chain do. Many kinds of chains are in one of the two ruleset layouts only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// Looks up the frontend of a packet.
    Services,
    /// Looks up the node port of a packet.
    NodePorts,
    /// Marks packets for masquerading.
    MarkMasq,
    /// Masquerades marked packets.
    Postrouting,
    /// Refuses packets to this host if their frontend has no endpoints.
    Input,
    /// With `--ruleset-layout=chains`: drops forwarded packets in conntrack state `invalid` (D22).
    Forward,
    /// Refuses or drops forwarded packets, and packets from this host, to frontends without endpoints and to addresses and ports of Services
    /// that nothing serves.
    ServicesFilter,
    /// Refuses packets to external IPs and load balancer IPs without endpoints.
    ExternalServices,
    /// Drops packets from clients that are not in the source ranges of a load balancer IP.
    Firewall,
    /// Rejects all packets that come to it: those to frontends without endpoints, and to ports that no Service serves.
    Reject,
    /// Sends packets for which no rule chose an endpoint, because the endpoints just changed, to the first endpoint of their frontend.
    Fallback,
    /// Finds the chain that records the client of a new connection (session affinity).
    Affinity,
    /// Translates pings to addresses of Services, so that they go to an address of this node.
    Pings,
    /// Refuses ports of external IPs and load balancer IPs that no Service has.
    ExternalIps,
    /// Drops invalid packets of endpoints on this node.
    Invalid,
    /// Refuses node ports on loopback addresses.
    Localhost,
    /// External policy Local: uses the endpoints for policy Cluster or those on this node, by the origin of the packet.
    ExternalLocal(FrontendType),
    /// External policy Local: marks packets that this host sends for masquerading, and uses the endpoints for policy Cluster for them.
    ExternalLocalHost(FrontendType),
    /// Chooses an endpoint of a frontend.
    Balancer {
        /// The type of its frontends.
        frontend_type: FrontendType,
        /// The list that it chooses from.
        list: List,
        /// Whether packets are marked for masquerading first.
        masquerade: bool,
    },
    /// Uses the endpoint that session affinity has recorded for the client, or else chooses one.
    Sticky {
        /// The type of its frontends.
        frontend_type: FrontendType,
        /// The list that it chooses from.
        list: List,
        /// Whether packets are marked for masquerading first.
        masquerade: bool,
    },
    /// Records the endpoint of a client for session affinity.
    Learn,
    /// Chooses an endpoint of a service port.
    ServicePort(List),
    /// For external traffic to a service port: marks it for masquerading, or chooses the list of endpoints by its origin.
    External,
    /// Lets only clients in the source ranges of a service port go on to its other chains.
    SourceRanges {
        /// Whether their packets go to a chain for the cluster IP, because the address is a cluster IP too.
        is_internal: bool,
    },
    /// Translates packets to one endpoint (DNAT).
    Endpoint,
}

impl ChainKind {
    /// The kind of the chain with this name; `None` for a base chain, and for a name that this program gives to no chain.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::split(name).map(|(kind, _)| kind)
    }

    /// The kind of a chain, and the rest of its name after the prefix that all chains of this kind have; `None` as for [`Self::of`].
    pub(super) fn split(name: &str) -> Option<(Self, &str)> {
        let kind = match name {
            chain::SERVICES => Self::Services,
            chain::NODEPORTS => Self::NodePorts,
            chain::MARK_MASQ => Self::MarkMasq,
            chain::POSTROUTING => Self::Postrouting,
            chain::INPUT => Self::Input,
            chain::FORWARD => Self::Forward,
            chain::SERVICES_FILTER => Self::ServicesFilter,
            chain::EXTERNAL_SERVICES => Self::ExternalServices,
            chain::FIREWALL => Self::Firewall,
            chain::REJECT => Self::Reject,
            chain::FALLBACK => Self::Fallback,
            chain::AFFINITY => Self::Affinity,
            chain::PINGS => Self::Pings,
            chain::EXTERNAL_IPS => Self::ExternalIps,
            chain::INVALID => Self::Invalid,
            chain::LOCALHOST => Self::Localhost,
            _ => return Self::of_service_port(name).or_else(|| Self::of_frontends(name)),
        };
        Some((kind, ""))
    }

    /// The kind of a chain that the frontends of a service port share, or of an endpoint's chain.
    fn of_service_port(name: &str) -> Option<(Self, &str)> {
        const PREFIXES: [(&str, ChainKind); 7] = [
            (chain::CLUSTER, ChainKind::ServicePort(List::Cluster)),
            (chain::LOCAL, ChainKind::ServicePort(List::Local)),
            (chain::EXTERNAL, ChainKind::External),
            (chain::SOURCE_RANGES, ChainKind::SourceRanges { is_internal: false }),
            (chain::INTERNAL_SOURCE_RANGES, ChainKind::SourceRanges { is_internal: true }),
            (chain::ENDPOINT, ChainKind::Endpoint),
            (chain::LEARN, ChainKind::Learn),
        ];
        for (prefix, kind) in PREFIXES {
            if let Some(rest) = name.strip_prefix(prefix) {
                return Some((kind, rest));
            }
        }
        None
    }

    /// The kind of a chain of which there are two variants, for addresses and for node ports.
    fn of_frontends(name: &str) -> Option<(Self, &str)> {
        let (is_node_port, name) = strip(name, NODEPORT);
        let frontend_type = if is_node_port { FrontendType::NodePort } else { FrontendType::Address };
        match name {
            chain::EXTERNAL_LOCAL => return Some((Self::ExternalLocal(frontend_type), "")),
            chain::EXTERNAL_LOCAL_HOST => return Some((Self::ExternalLocalHost(frontend_type), "")),
            _ => {}
        }
        let (masquerade, name) = strip(name, MASQUERADE);
        let (is_balancer, name) = strip(name, chain::BALANCER);
        let (is_local, rest) =
            if is_balancer { strip(name, LOCAL) } else { strip(name.strip_prefix(chain::STICKY)?, STICKY_LOCAL) };
        let list = if is_local { List::Local } else { List::Cluster };
        let kind = match is_balancer {
            true => Self::Balancer { frontend_type, list, masquerade },
            false => Self::Sticky { frontend_type, list, masquerade },
        };
        Some((kind, rest))
    }
}

/// Prints the name of the chain, or the prefix of the names if there are several chains of the kind.
impl fmt::Display for ChainKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::Services => chain::SERVICES,
            Self::NodePorts => chain::NODEPORTS,
            Self::MarkMasq => chain::MARK_MASQ,
            Self::Postrouting => chain::POSTROUTING,
            Self::Input => chain::INPUT,
            Self::Forward => chain::FORWARD,
            Self::ServicesFilter => chain::SERVICES_FILTER,
            Self::ExternalServices => chain::EXTERNAL_SERVICES,
            Self::Firewall => chain::FIREWALL,
            Self::Reject => chain::REJECT,
            Self::Fallback => chain::FALLBACK,
            Self::Affinity => chain::AFFINITY,
            Self::Pings => chain::PINGS,
            Self::ExternalIps => chain::EXTERNAL_IPS,
            Self::Invalid => chain::INVALID,
            Self::Localhost => chain::LOCALHOST,
            Self::ExternalLocal(frontend_type) => {
                return write!(f, "{}{}", frontend_type.prefix(), chain::EXTERNAL_LOCAL);
            }
            Self::ExternalLocalHost(frontend_type) => {
                return write!(f, "{}{}", frontend_type.prefix(), chain::EXTERNAL_LOCAL_HOST);
            }
            Self::Balancer { frontend_type, list, masquerade } => {
                let masquerade = if masquerade { MASQUERADE } else { "" };
                return write!(f, "{}{masquerade}{}{}", frontend_type.prefix(), chain::BALANCER, list.infix());
            }
            Self::Sticky { frontend_type, list, masquerade } => {
                let masquerade = if masquerade { MASQUERADE } else { "" };
                let infix = if list == List::Local { STICKY_LOCAL } else { "" };
                return write!(f, "{}{masquerade}{}{infix}", frontend_type.prefix(), chain::STICKY);
            }
            Self::ServicePort(List::Cluster) => chain::CLUSTER,
            Self::ServicePort(List::Local) => chain::LOCAL,
            Self::External => chain::EXTERNAL,
            Self::SourceRanges { is_internal: false } => chain::SOURCE_RANGES,
            Self::SourceRanges { is_internal: true } => chain::INTERNAL_SOURCE_RANGES,
            Self::Endpoint => chain::ENDPOINT,
            Self::Learn => chain::LEARN,
        })
    }
}

/// Tells whether text begins with a prefix, and returns the text without it.
fn strip<'a>(text: &'a str, prefix: &str) -> (bool, &'a str) {
    match text.strip_prefix(prefix) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

/// The protocol with this lower-case name: `tcp`, `udp` or `sctp`.
fn protocol_named(text: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.to_string() == text)
}

/// The name of the chain that uses the endpoint that session affinity has recorded for a client. `id` is unique to the service port.
pub(super) fn sticky_chain(frontend_type: FrontendType, list: List, masquerade: bool, id: &str) -> String {
    format!("{}{id}", ChainKind::Sticky { frontend_type, list, masquerade })
}

/// The name of a service port's map from client to endpoint address, for endpoints with this port number.
pub(super) fn clients_map(list: List, id: &str, port: u16) -> String {
    format!("{}-{port}", sticky_chain(FrontendType::Address, list, false, id))
}

#[cfg(test)]
mod tests {
    use super::super::names::{affinity_map, endpoint_maps};
    use super::*;

    #[test]
    fn the_name_of_each_chain_says_what_it_is_for() {
        let fixed = [
            ChainKind::Services,
            ChainKind::NodePorts,
            ChainKind::MarkMasq,
            ChainKind::Postrouting,
            ChainKind::Input,
            ChainKind::Forward,
            ChainKind::ServicesFilter,
            ChainKind::ExternalServices,
            ChainKind::Firewall,
            ChainKind::Reject,
            ChainKind::Fallback,
            ChainKind::Affinity,
            ChainKind::Pings,
            ChainKind::ExternalIps,
            ChainKind::Invalid,
            ChainKind::Localhost,
        ];
        let of_frontends =
            FrontendType::BOTH.map(|of| [ChainKind::ExternalLocal(of), ChainKind::ExternalLocalHost(of)]);
        for kind in fixed.into_iter().chain(of_frontends.into_iter().flatten()) {
            assert_eq!(ChainKind::split(&kind.to_string()), Some((kind, "")));
        }
        let mut several = vec![
            ChainKind::ServicePort(List::Cluster),
            ChainKind::ServicePort(List::Local),
            ChainKind::External,
            ChainKind::SourceRanges { is_internal: false },
            ChainKind::SourceRanges { is_internal: true },
            ChainKind::Endpoint,
            ChainKind::Learn,
        ];
        for (frontend_type, list) in ENDPOINT_MAPS {
            for masquerade in [false, true] {
                several.push(ChainKind::Balancer { frontend_type, list, masquerade });
                several.push(ChainKind::Sticky { frontend_type, list, masquerade });
            }
        }
        for kind in several {
            assert_eq!(ChainKind::split(&format!("{kind}X")), Some((kind, "X")));
        }
        for foreign in ["", "nat-output", "KUBE-FIREWALL", "nodeport-", "masq-", "services", "mine"] {
            assert_eq!(ChainKind::of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn only_maps_of_endpoints_have_parts() {
        for (frontend_type, list) in ENDPOINT_MAPS {
            for (is_counted, maps) in [(false, 1), (false, 64), (true, 1), (true, 64)] {
                for name in endpoint_maps(frontend_type, list, is_counted, maps) {
                    assert_eq!(SetKind::of(&name), Some(SetKind::Endpoints(frontend_type, list)), "{name}");
                }
            }
        }
        for foreign in ["endpoints.", "endpoints.x", "endpoints.1.1", "endpoints.256", "services.1", "mine"] {
            assert_eq!(SetKind::of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn maps_of_session_affinity_are_told_from_maps_of_clients() {
        for frontend_type in FrontendType::BOTH {
            for protocol in Protocol::ALL {
                let name = affinity_map(frontend_type, protocol);
                assert_eq!(SetKind::of(&name), Some(SetKind::Affinity(frontend_type, protocol)));
            }
        }
        for list in List::BOTH {
            assert_eq!(SetKind::of(&clients_map(list, "shop/web/tcp", 8080)), Some(SetKind::Clients(list)));
        }
        assert_eq!(SetKind::of("KUBE-SVL-H"), Some(SetKind::VerdictMap(List::Local)));
    }
}

//! The use of a chain, a set or a map of our tables, by its name: the way back from [`names`](super::names). Pure.
//!
//! Whoever explains, counts or verifies our tables matches on these kinds and not on names.

use std::fmt;

use super::names::{
    ENDPOINT_MAPS, FrontendType, LOCAL, List, MASQUERADE, NODEPORT, STICKY_LOCAL, chain, endpoints, set, split_part,
};
use crate::model::Protocol;

/// The use of a set or map. Layouts may have different names for one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// The cluster IPs in use.
    ClusterIps,
    /// Addresses of the node that accept node ports.
    NodePortAddresses,
    /// The ranges of the ServiceCIDRs.
    ServiceCidrs,
    /// Endpoints on this node, each as source and destination.
    Hairpin,
    /// The answers of the health-check node ports.
    HealthChecks,
    /// Node ports that are refused on loopback addresses.
    LocalhostNodePorts,
    /// Frontends, and where their packets go.
    Dispatch(FrontendType),
    /// Frontends with external policy Local, and where packets of pods and of the host go.
    ClusterPolicy(FrontendType),
    /// Frontends with external policy Local, and where packets of other clients go.
    LocalPolicy(FrontendType),
    /// Frontends without endpoints.
    NoEndpoints(FrontendType),
    /// Frontends with source ranges.
    Restricted,
    /// These source ranges.
    Sources,
    /// The endpoints of frontends, by number.
    Endpoints(FrontendType, List),
    /// The first endpoint of each frontend.
    Fallback(FrontendType),
    /// Frontends with session affinity, and the chain that remembers their clients.
    Affinity(FrontendType, Protocol),
    /// The chains of the endpoints of a service port, by number.
    VerdictMap(List),
    /// The clients that session affinity remembers for a service port, or for one of its endpoints.
    Clients(List),
}

impl SetKind {
    /// The kind of the set or map with this name; `None` when it is not one of ours.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        use FrontendType::{Address, NodePort};
        Some(match name {
            set::CLUSTER_IPS => Self::ClusterIps,
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

    /// The kind of a set or map of which there are several.
    fn of_several(name: &str) -> Option<Self> {
        for (frontend_type, list) in ENDPOINT_MAPS {
            if split_part(name).0 == endpoints(frontend_type, list) {
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

    /// The use of elements whose keys are frontends; `None` when they have no influence on where packets go.
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

/// The use of an element whose key is a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leads packets to the frontend somewhere.
    Dispatch,
    /// Leads packets of other clients to the frontend somewhere, beside a dispatch.
    FromOutside,
    /// Refuses packets to the frontend, whatever its dispatch is.
    Refuse,
}

/// The use of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// Looks frontends up.
    Services,
    /// Looks node ports up.
    NodePorts,
    /// Marks packets for masquerading.
    MarkMasq,
    /// Masquerades what is marked.
    Postrouting,
    /// Refuses what arrives for this host.
    Input,
    /// Refuses what passes through, or drops what belongs to no known connection.
    Forward,
    /// Refuses what this host sends.
    Output,
    /// Refuses what passes through or is sent by this host.
    ServicesFilter,
    /// Refuses external frontends without endpoints.
    ExternalServices,
    /// Drops sources that may not connect.
    Firewall,
    /// Answers that nothing serves a port.
    Reject,
    /// Sends packets that met a change to the first endpoint of their frontend.
    Fallback,
    /// Finds out which map remembers a client.
    Affinity,
    /// Refuses node ports on loopback addresses.
    Localhost,
    /// Chooses the list of endpoints by the origin of the packet.
    ExternalLocal(FrontendType),
    /// Chooses the list of endpoints for packets that this host sends.
    ExternalLocalHost(FrontendType),
    /// Picks an endpoint of a frontend.
    Balancer {
        /// Of which frontends.
        frontend_type: FrontendType,
        /// From which list.
        list: List,
        /// Whether packets are marked for masquerading first.
        masquerade: bool,
    },
    /// Looks for the endpoint that is remembered for the client, and picks one when there is none.
    Sticky {
        /// Of which frontends.
        frontend_type: FrontendType,
        /// From which list.
        list: List,
        /// Whether packets are marked for masquerading first.
        masquerade: bool,
    },
    /// Remembers the endpoint of a client.
    Learn,
    /// Picks an endpoint of a service port.
    ServicePort(List),
    /// Marks external traffic to a service port, or chooses the list of endpoints by its origin.
    External,
    /// Lets the sources pass that may connect to a service port.
    SourceRanges {
        /// Whether they go on to the chain of a cluster IP, because the address is one.
        is_internal: bool,
    },
    /// Translates to an endpoint.
    Endpoint,
}

impl ChainKind {
    /// The kind of the chain with this name; `None` when it is a base chain, or not one of ours.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::split(name).map(|(kind, _)| kind)
    }

    /// The kind of a chain, and what its name has behind the part that all chains of this kind have.
    pub(super) fn split(name: &str) -> Option<(Self, &str)> {
        let kind = match name {
            chain::SERVICES => Self::Services,
            chain::NODEPORTS => Self::NodePorts,
            chain::MARK_MASQ => Self::MarkMasq,
            chain::POSTROUTING => Self::Postrouting,
            chain::INPUT => Self::Input,
            chain::FORWARD => Self::Forward,
            chain::OUTPUT => Self::Output,
            chain::SERVICES_FILTER => Self::ServicesFilter,
            chain::EXTERNAL_SERVICES => Self::ExternalServices,
            chain::FIREWALL => Self::Firewall,
            chain::REJECT => Self::Reject,
            chain::FALLBACK => Self::Fallback,
            chain::AFFINITY => Self::Affinity,
            chain::LOCALHOST => Self::Localhost,
            _ => return Self::of_service_port(name).or_else(|| Self::of_frontends(name)),
        };
        Some((kind, ""))
    }

    /// The kind of a chain of a service port that there is once for all of its frontends.
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

    /// The kind of a chain that there is for addresses and for node ports.
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

/// The name of a chain of which there is one; of others what all their names begin with.
impl fmt::Display for ChainKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::Services => chain::SERVICES,
            Self::NodePorts => chain::NODEPORTS,
            Self::MarkMasq => chain::MARK_MASQ,
            Self::Postrouting => chain::POSTROUTING,
            Self::Input => chain::INPUT,
            Self::Forward => chain::FORWARD,
            Self::Output => chain::OUTPUT,
            Self::ServicesFilter => chain::SERVICES_FILTER,
            Self::ExternalServices => chain::EXTERNAL_SERVICES,
            Self::Firewall => chain::FIREWALL,
            Self::Reject => chain::REJECT,
            Self::Fallback => chain::FALLBACK,
            Self::Affinity => chain::AFFINITY,
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

/// Whether text begins with a prefix, and the text without it.
fn strip<'a>(text: &'a str, prefix: &str) -> (bool, &'a str) {
    match text.strip_prefix(prefix) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

/// The protocol that is printed so.
fn protocol_named(text: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.to_string() == text)
}

/// The chain of a service port that looks for the endpoint that is remembered for a client. `id` is the part of the name that no other
/// service port has.
pub(super) fn sticky_chain(frontend_type: FrontendType, list: List, masquerade: bool, id: &str) -> String {
    format!("{}{id}", ChainKind::Sticky { frontend_type, list, masquerade })
}

/// The map from client to endpoint of a service port, for endpoints with this port number.
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
            ChainKind::Output,
            ChainKind::ServicesFilter,
            ChainKind::ExternalServices,
            ChainKind::Firewall,
            ChainKind::Reject,
            ChainKind::Fallback,
            ChainKind::Affinity,
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
            for name in endpoint_maps(frontend_type, list, 1).chain(endpoint_maps(frontend_type, list, 64)) {
                assert_eq!(SetKind::of(&name), Some(SetKind::Endpoints(frontend_type, list)), "{name}");
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

//! Layout `maps`: a fixed program, Services as data.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @services, @nodeports   (front : verdict)
//!                │ goto lb-N, or masq-lb-N: mark for masquerading first, or external-local: choose by origin
//!                ▼
//!              lb-N ─► numgen random mod N ─► @endpoints   (front . slot : endpoint) ─► dnat
//! ```
//!
//! The scheduler of a front is in the name of its chain: `lb-hash-N` takes the slot that a hash of the client's address gives, and
//! `lb-maglev-P` tries places of a sparse table, one after the other, which are numbers above all slots in the same map (`maglev`).
//!
//! No chain, rule or set exists for a Service: it is elements of maps. A front has one verdict, for the number of its endpoints,
//! and as many slots. An endpoint that changes is one slot; a number that changes is one slot and the verdict.
//!
//! Session affinity is the exception: a service port that has it owns a map of clients and a few chains (`affinity`).

mod affinity;
mod balancer;
mod elements;
mod maglev;
mod program;

use super::balancing::Balancing;
use super::reading::Role;
use crate::select::size::PortSize;

use balancer::List;
pub(super) use elements::service;
pub(super) use program::program;

/// What a service port of this size counts in elements.
pub(super) fn weight(balancing: Balancing, size: &PortSize) -> u64 {
    let PortSize { fronts, sources, endpoints, scheduler, .. } = *size;
    let slots = fronts.saturating_mul(balancing.elements(scheduler, endpoints).saturating_add(1));
    slots.saturating_add(sources).saturating_add(affinity::weight(size))
}

/// The sets whose keys are a front and a number, and whose values are endpoints.
pub(super) fn endpoint_sets() -> [&'static str; 4] {
    let [[a, b], [c, d]] = Side::BOTH.map(|side| [List::Cluster, List::Local].map(|list| list.map(side)));
    [a, b, c, d]
}

/// The sets whose keys are fronts and whose values say where packets go, each with whether the fronts are node ports.
pub(super) fn front_sets() -> [(&'static str, bool, Role); 6] {
    let [address, node_port] = Side::BOTH.map(|side| {
        let is_node_port = side == Side::NodePort;
        [
            (side.dispatch(), is_node_port, Role::Dispatch),
            (side.local_policy(), is_node_port, Role::FromOutside),
            (side.no_endpoints(), is_node_port, Role::Refuse),
        ]
    });
    let ([a, b, c], [d, e, f]) = (address, node_port);
    [a, b, c, d, e, f]
}

/// Names of the sets and maps.
mod set {
    pub(super) use crate::ruleset::shared::set::{CLUSTER_IPS, NODEPORT_IPS, SERVICE_CIDRS};
    pub(super) const HAIRPIN: &str = "hairpin";
    pub(super) const RESTRICTED: &str = "lb-restricted";
    pub(super) const SOURCES: &str = "lb-sources";
    pub(super) const NO_ENDPOINTS: &str = "no-endpoints";
    pub(super) const NO_ENDPOINTS_NODEPORTS: &str = "no-endpoints-nodeports";
}

/// Names of the chains that elements lead to.
mod chain {
    pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
    pub(super) const REJECT: &str = "KUBE-REJECT";
}

/// Fronts come in two kinds with maps of their own: addresses, and node ports, whose key has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Address,
    NodePort,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Address, Self::NodePort];

    /// The map from a front to its verdict.
    const fn dispatch(self) -> &'static str {
        match self {
            Self::Address => "services",
            Self::NodePort => "nodeports",
        }
    }

    /// The map from a front with external policy Local to its verdict for pods and the host.
    const fn cluster_policy(self) -> &'static str {
        match self {
            Self::Address => "cluster-policy",
            Self::NodePort => "nodeport-cluster-policy",
        }
    }

    /// The map from a front with external policy Local to its verdict for other clients.
    const fn local_policy(self) -> &'static str {
        match self {
            Self::Address => "local-policy",
            Self::NodePort => "nodeport-local-policy",
        }
    }

    /// The map from a front without endpoints to its verdict in the filter chains.
    const fn no_endpoints(self) -> &'static str {
        match self {
            Self::Address => set::NO_ENDPOINTS,
            Self::NodePort => set::NO_ENDPOINTS_NODEPORTS,
        }
    }

    /// The chain that chooses by the packet's origin (D6).
    const fn external_local(self) -> &'static str {
        match self {
            Self::Address => "external-local",
            Self::NodePort => "nodeport-external-local",
        }
    }

    /// The same for packets of this host.
    const fn external_local_host(self) -> &'static str {
        match self {
            Self::Address => "external-local-host",
            Self::NodePort => "nodeport-external-local-host",
        }
    }
}

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
//! `lb-maglev-P` tries places of a sparse table, one after the other, which are numbers above all slots in the same map.
//!
//! No chain, rule or set exists for a Service: it is elements of maps. A front has one verdict, for the number of its endpoints,
//! and as many slots. An endpoint that changes is one slot; a number that changes is one slot and the verdict.
//!
//! Session affinity is the exception: a service port that has it owns a map of clients and a few chains.

mod elements;
mod program;

use super::endpoints::Side;
use super::reading::Role;

pub(super) use super::endpoints::weight;
pub(super) use elements::service;
pub(super) use program::program;

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
    pub(super) use crate::ruleset::shared::set::{CLUSTER_IPS, SERVICE_CIDRS};
    pub(super) const RESTRICTED: &str = "lb-restricted";
    pub(super) const SOURCES: &str = "lb-sources";
    pub(super) const NO_ENDPOINTS: &str = "no-endpoints";
    pub(super) const NO_ENDPOINTS_NODEPORTS: &str = "no-endpoints-nodeports";
}

/// The names that belong to a kind of front.
impl Side {
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

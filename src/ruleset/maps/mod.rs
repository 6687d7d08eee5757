//! Layout `maps`: a fixed program, Services as data.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @services, @nodeports   (front : verdict)
//!                │ goto lb-N, or masq-lb-N: mark for masquerading first, or external-local: choose by origin
//!                ▼
//!              lb-N ─► numgen random mod N ─► @endpoints   (front . slot : endpoint) ─► dnat
//! ```
//!
//! No chain, rule or set exists for a Service: it is elements of maps. A front has one verdict, for the number of its endpoints,
//! and as many slots. An endpoint that changes is one slot; a number that changes is one slot and the verdict.
//!
//! Session affinity is the exception: a service port that has it owns a map of clients and a few chains (`affinity`).

mod affinity;
mod balancer;
mod elements;
mod program;

use crate::select::size::PortSize;

pub(super) use elements::service;
pub(super) use program::program;

/// What a service port of this size counts in elements.
pub(super) fn weight(size: &PortSize) -> u64 {
    let PortSize { fronts, sources, endpoints, .. } = *size;
    let slots = fronts.saturating_mul(endpoints.saturating_add(1));
    slots.saturating_add(sources).saturating_add(affinity::weight(size))
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

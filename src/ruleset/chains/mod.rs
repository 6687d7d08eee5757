//! Layout `chains`: the tree of chains that iptables mode has, for people and tools that know it.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @KUBE-SERVICES (front : verdict)             KUBE-NODEPORTS ─► @KUBE-NODEPORTS
//!     │ cluster IP                │ external, load balancer IP                  │ node port
//!     │                           │   source ranges: KUBE-FW-H ─┐               │
//!     ▼                           ▼                             ▼               ▼
//!  KUBE-SVC-H, KUBE-SVL-H  ◄──  KUBE-EXT-H: mark for masquerading, choose by origin
//!     │ the client's endpoint by @KUBE-SEP-H, else numgen random mod N vmap @KUBE-SVC-H
//!     ▼
//!  KUBE-SEP-H: mark for masquerading when it called itself, remember the client, count, dnat
//! ```
//!
//! A service port owns its chains, the maps of its choices and, with session affinity, a set of clients for each endpoint. Nothing is
//! shared between service ports but the dispatch. What becomes of a packet is the same as in layout `maps`; what a sync costs the
//! kernel is more, because it checks every chain that can be reached whenever a rule or a verdict is added.
//!
//! The choice at random is a named map, not one within the rule: an endpoint that is replaced is one element, whatever the number of
//! the others, and the kernel need not find a new name for a map among those of all Services. A lone endpoint needs no map.

mod hash;
mod port;
mod program;

use nft::Element;

use crate::model::Family;
use crate::ruleset::reading::Role;
use crate::ruleset::{Settings, localhost};
use crate::select::ServiceSelection;
use crate::table::Fragment;

pub(super) use port::weight;
pub(super) use program::program;

/// What stands in a table for a Service.
pub(super) fn service(settings: &Settings, selection: &ServiceSelection) -> Fragment {
    let mut fragment = Fragment::default();
    let cluster_ips = selection.cluster_ips.iter().filter(|ip| Family::of(**ip) == settings.family);
    fragment.extend(set::CLUSTER_IPS, cluster_ips.map(|ip| Element::new((*ip).into())));
    for port in selection.ports.iter().filter(|port| port.family == settings.family) {
        port::write(settings, port, &mut fragment);
        localhost::write(settings, port, &mut fragment);
    }
    fragment
}

/// The sets whose keys are fronts and whose values say where packets go, each with whether the fronts are node ports.
pub(super) const fn front_sets() -> [(&'static str, bool, Role); 5] {
    [
        (set::SERVICES, false, Role::Dispatch),
        (set::NODEPORTS, true, Role::Dispatch),
        (set::NO_ENDPOINTS, false, Role::Refuse),
        (set::NO_ENDPOINTS_EXTERNAL, false, Role::Refuse),
        (set::NO_ENDPOINTS_NODEPORTS, true, Role::Refuse),
    ]
}

/// Names of the sets and maps of the fixed program.
mod set {
    pub(super) use crate::ruleset::shared::set::{CLUSTER_IPS, SERVICE_CIDRS};
    pub(super) const SERVICES: &str = "KUBE-SERVICES";
    pub(super) const NODEPORTS: &str = "KUBE-NODEPORTS";
    pub(super) const NO_ENDPOINTS: &str = "no-endpoints";
    pub(super) const NO_ENDPOINTS_EXTERNAL: &str = "no-endpoints-external";
    pub(super) const NO_ENDPOINTS_NODEPORTS: &str = "no-endpoints-nodeports";
}

/// Names of the chains that parts lead to.
mod chain {
    pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
    pub(super) const REJECT: &str = "KUBE-REJECT";
    pub(super) const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
}

//! Layout `chains`: the tree of chains that iptables mode has, for people and tools that know it.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @KUBE-SERVICES (front : verdict)             KUBE-NODEPORTS ─► @KUBE-NODEPORTS
//!     │ cluster IP                │ external, load balancer IP                  │ node port
//!     │                           │   source ranges: KUBE-FW-H ─┐               │
//!     ▼                           ▼                             ▼               ▼
//!  KUBE-SVC-H, KUBE-SVL-H  ◄──  KUBE-EXT-H: mark for masquerading, choose by origin
//!     │ mark for masquerading, the endpoint that is remembered for the client, else
//!     ▼
//!  lb-N ─► numgen random mod N ─► @endpoints (front . slot : endpoint) ─► dnat, counted for each endpoint
//! ```
//!
//! A service port owns its chains. Its endpoints, its session affinity and its schedulers are those of layout `maps` (`endpoints`):
//! iptables mode has a chain `KUBE-SEP-H` for each endpoint, and here it is one element with the endpoint's counter.
//!
//! What was tried with 5,000 Services of 10 endpoints, and what it cost. A chain for each endpoint and a map of verdicts for each service
//! port: one endpoint 70 ms, the first sync 3 s, because the kernel checks every chain that can be reached whenever a rule or a verdict is
//! added (`nft_table_validate`), and finds a map by walking through all of them (`nft_set_lookup`). One map, looked up in a rule of each
//! service port: one endpoint 0.4 ms, the first sync 9 s, because each element that is added is compared with each rule that looks at its
//! map (`nft_add_set_elem`). So only the few chains `lb-N` look at it.

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
    pub(super) use crate::ruleset::shared::chain::{MARK_MASQ, REJECT};
    pub(super) const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
}

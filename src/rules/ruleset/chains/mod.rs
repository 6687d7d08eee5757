//! Layout `chains`: the tree of chains that iptables mode has, for people and tools that know it.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @KUBE-SERVICES (frontend : verdict)             KUBE-NODEPORTS ─► @KUBE-NODEPORTS
//!     │ cluster IP                │ external, load balancer IP                  │ node port
//!     │                           │   source ranges: KUBE-FW-H ─┐               │
//!     ▼                           ▼                             ▼               ▼
//!  KUBE-SVC-H, KUBE-SVL-H  ◄──  KUBE-EXT-H: mark for masquerading, choose by origin
//!     │ mark for masquerading, the endpoint that is remembered for the client, else
//!     ├─► numgen random mod N vmap @KUBE-SVC-H ─► KUBE-SEP-H: mark what reaches itself, remember the client, count, dnat
//!     │ or, without chains of endpoints
//!     └─► lb-N ─► numgen random mod N ─► @endpoints (frontend . slot : endpoint) ─► dnat, counted for each endpoint
//! ```
//!
//! A service port owns its chains, and the map of verdicts that chooses among those of its endpoints. There are two forms with the same
//! static rules, so that the change from one to the other is a sync like any other:
//!
//! - With a chain for each endpoint, as iptables mode has them. The kernel checks every chain that can be reached whenever a
//!   transaction adds a rule or a verdict (`nft_table_validate`), and finds a map by walking through all maps of a table (`nft_set_lookup`):
//!   a sync takes longer with each endpoint of the cluster. Linux 6.19 (8e1a1bc4f5a4, also in 6.18.6 and 6.12.66) notes for each chain the
//!   hooks and the depth that it was checked for, and checks it once in a transaction for each hook, not once for each path to it. It
//!   forgets that at the end of the transaction, so that the next one checks every chain again. To check only the chains that
//!   changed was proposed in May 2025 ("validating incremental ruleset updates") and is not in 6.19; the module of Debian's 7.2.13 has none
//!   of its functions either.
//! - Without them (`nftables.endpointChains: false`): endpoints, session affinity and schedulers are those of layout `maps` (`endpoints`).
//!   Only the few chains `lb-N` look at the maps of endpoints, because the kernel compares each element that is added with each rule that looks at
//!   its map (`nft_add_set_elem`): a rule for each service port made the first sync of 5,000 Services take 9 s.
//!
//! A Service with scheduler `maglev` has the second form always: a table of places in verdicts would be checked as a whole at each change.
//!
//! A packet that meets a change between two look-ups may find a number gone, or a chain that has no rules yet for it. It comes back to
//! the base chain, and `KUBE-FALLBACK` sends it to the first endpoint of its frontend: none falls through to the reject rules.

mod hash;
mod port;
mod static_rules;

use nft::Element;

use crate::endpoints::ServiceSelection;
use crate::model::Family;
use crate::ruleset::names::set;
use crate::ruleset::{Settings, localhost};
use crate::table::ServiceObjects;

pub(super) use port::weight;
pub(super) use static_rules::static_rules;

/// The objects for a Service, with or without a chain for each endpoint.
pub(super) fn service(settings: &Settings, selection: &ServiceSelection, endpoint_chains: bool) -> ServiceObjects {
    let mut objects = ServiceObjects::default();
    let cluster_ips = selection.cluster_ips.iter().filter(|ip| Family::of(**ip) == settings.family);
    objects.extend(set::CLUSTER_IPS, cluster_ips.map(|ip| Element::new((*ip).into())));
    for port in selection.ports.iter().filter(|port| port.family == settings.family) {
        port::write(settings, port, endpoint_chains, &mut objects);
        localhost::write(settings, port, &mut objects);
    }
    objects
}

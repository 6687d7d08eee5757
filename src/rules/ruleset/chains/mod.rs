//! The ruleset for `--ruleset-layout=chains`: the tree of chains that iptables mode has, for people and tools that know it.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @KUBE-SERVICES (frontend : verdict)             KUBE-NODEPORTS ─► @KUBE-NODEPORTS
//!     │ cluster IP                │ external, load balancer IP                  │ node port
//!     │                           │   source ranges: KUBE-FW-H ─┐               │
//!     ▼                           ▼                             ▼               ▼
//!  KUBE-SVC-H, KUBE-SVL-H  ◄──  KUBE-EXT-H: mark for masquerading, choose by origin
//!     │ mark for masquerading; use the endpoint recorded for the client (session affinity), else
//!     ├─► numgen random mod N vmap @KUBE-SVC-H ─► KUBE-SEP-H: mark hairpin packets, record the client, count, dnat
//!     │ or, without chains of endpoints
//!     └─► lb-N ─► numgen random mod N ─► @endpoints (frontend . number : endpoint) ─► dnat, counted for each endpoint
//! ```
//!
//! A service port has chains of its own, and a map of verdicts that chooses among the chains of its endpoints. There are two forms with
//! the same static rules, so that changing from one form to the other is an ordinary sync:
//!
//! - With a chain for each endpoint, as in iptables mode. Whenever a transaction adds a rule or a verdict, the kernel validates every
//!   reachable chain (`nft_table_validate`), and it finds a map by walking through all maps of a table (`nft_set_lookup`): each endpoint
//!   in the cluster makes a sync slower. `src/decisions/0001-maps-and-chains.md` has the figures, and what newer kernels do.
//! - Without chains of endpoints (`nftables.endpointChains: false`): endpoints, session affinity and schedulers work as with
//!   `--ruleset-layout=maps` (module `endpoint_sets`). Only the few chains `lb-N` have rules that look up the maps of endpoints, because
//!   the kernel validates each element that is added against each rule that uses its map (`nft_add_set_elem`).
//!
//! A Service with scheduler `maglev` always has the second form: the kernel would validate all verdicts of a Maglev table at each change.
//!
//! While a packet passes these look-ups, a change may remove the number that it looks for, or the rules of a chain. If endpoints have chains,
//! the packet then returns to the base chain, and `KUBE-FALLBACK` sends it to the first endpoint of its frontend; otherwise the last rule of
//! `lb-N` sends it to number 0. So the reject rules do not see it.

mod hash;
mod port;
mod static_rules;

use crate::endpoints::ServiceSelection;
use crate::ruleset::{Settings, localhost, service_ips};
use crate::table::ServiceObjects;

pub(super) use port::weight;
pub(super) use static_rules::static_rules;

/// The objects for a Service, with or without a chain for each endpoint.
pub(super) fn service(settings: &Settings, selection: &ServiceSelection, endpoint_chains: bool) -> ServiceObjects {
    let mut objects = ServiceObjects::default();
    service_ips::write(settings, selection, &mut objects);
    for port in selection.ports.iter().filter(|port| port.family == settings.family) {
        port::write(settings, port, endpoint_chains, &mut objects);
        localhost::write(settings, port, &mut objects);
    }
    objects
}

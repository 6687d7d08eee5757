//! Layout `maps`: static rules, and Services as elements of maps.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @services, @nodeports   (frontend : verdict)
//!                │ goto lb-N, or masq-lb-N: mark for masquerading first, or external-local: choose by origin
//!                ▼
//!              lb-N ─► numgen random mod N ─► @endpoints   (frontend . slot : endpoint) ─► dnat
//! ```
//!
//! The scheduler of a frontend is in the name of its chain: `lb-hash-N` takes the slot that a hash of the client's address gives, and
//! `lb-maglev-P` tries places of a sparse table, one after the other, which are numbers above all slots in the same map.
//!
//! No chain, rule or set exists for a Service: it is elements of maps. A frontend has one verdict, for the number of its endpoints,
//! and as many slots. An endpoint that changes is one slot; a number that changes is one slot and the verdict.
//!
//! Session affinity is the exception: a service port that has it owns a map of clients and a few chains.

mod elements;
mod static_rules;

pub(super) use super::endpoint_sets::weight;
pub(super) use elements::service;
pub(super) use static_rules::static_rules;

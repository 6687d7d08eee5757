//! The ruleset for `--ruleset-layout=maps`: static rules, with Services as elements of maps.
//!
//! ```text
//!  packet ─► KUBE-SERVICES ─► @services, @nodeports   (frontend : verdict)
//!                │ goto lb-N, or masq-lb-N: mark for masquerading first, or external-local: choose by origin
//!                ▼
//!              lb-N ─► numgen random mod N ─► @endpoints   (frontend . number : endpoint) ─► dnat
//! ```
//!
//! The name of the chain shows the scheduler: `lb-hash-N` computes the endpoint's number from a hash of the client's address, and
//! `lb-maglev-P` tries positions of a sparse Maglev table, one after the other. The map `@endpoints` holds the Maglev table too, under
//! higher numbers.
//!
//! No chain, rule or set exists for a Service: a Service is only elements of sets and maps. With traffic policy Cluster and scheduler
//! `random`, a frontend has one verdict, which depends on the number of its endpoints, and one element for each endpoint. Replacing an
//! endpoint changes one element of each frontend; adding or removing one also changes the verdict.
//!
//! Session affinity is the exception: a service port with affinity has a map of clients and a few chains.

mod elements;
mod static_rules;

pub(super) use super::endpoint_sets::weight;
pub(super) use elements::service;
pub(super) use static_rules::static_rules;

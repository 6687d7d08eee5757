//! The objects of the cluster as the proxy needs them, and which Services a change concerns.
//!
//! Takes [`Event`]s, gives a [`State`] and the set of what became dirty. Pure: no I/O, no clock, no Kubernetes types, no nftables.
//!
//! Invariants: the state depends only on the last content of each object, never on the order or number of the events; an
//! event that changes nothing dirties nothing.

pub mod backends;
pub mod claims;
pub mod endpoint;
pub mod event;
pub mod fronts;
pub mod names;
pub mod node;
pub mod service;
pub mod state;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use backends::{Backend, Backends};
pub use claims::{Conflict, Winner};
pub use endpoint::{Conditions, Endpoint, EndpointSlice, Hints, SlicePort, TriggerTime};
pub use event::Event;
pub use fronts::FrontKind;
pub use names::{Destination, Family, Front, ObjectName, Protocol};
pub use node::Node;
pub use service::{ClusterIps, Scheduler, Service, ServicePort, TrafficPolicy};
pub use state::{Dirty, State};

//! The cluster's objects in the form that the proxy needs, and which Services each change affects.
//!
//! Takes [`Event`]s and keeps a [`State`]; returns what each event changed and which Services became dirty, that is, must be computed
//! again. Pure: no I/O, no clock, no Kubernetes types, no nftables.
//!
//! Invariants: the state depends only on the last content of each object, never on the order or number of the events; an
//! event that changes nothing makes nothing dirty.

pub mod change;
pub mod claims;
pub mod conflicts;
pub mod endpoint;
pub mod event;
pub mod frontends;
pub mod names;
pub mod node;
mod port_slices;
mod ranges;
pub mod service;
mod slices;
pub mod state;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use change::Change;
pub use conflicts::{Conflict, Contest, Winner};
pub use endpoint::{Conditions, Endpoint, EndpointSlice, Hints, SlicePort, TriggerTime, Zone};
pub use event::Event;
pub use frontends::FrontendKind;
pub use names::{Destination, Family, Frontend, ObjectName, Protocol};
pub use node::Node;
pub(crate) use port_slices::{PortSlice, PortSlices};
pub use ranges::Ranges;
pub use service::{CloseConnections, ClusterIps, MOST_WEIGHT, Scheduler, Service, ServicePort, TrafficPolicy, Weights};
pub use state::{Dirty, State};

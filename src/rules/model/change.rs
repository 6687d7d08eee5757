//! What an event changed in the state.
//!
//! [`State::apply`](super::State::apply) compares each event with what it knows, once, and gives a [`Change`]. Whoever needs to know what was there before, for the
//! log, the metrics or UDP flows, takes it from there and compares nothing again.

use super::endpoint::EndpointSlice;
use super::names::ObjectName;
use super::service::Service;

/// Something that an event changed, with its content before. The state has the present content.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A Service.
    Service {
        /// Its name.
        name: ObjectName,
        /// `None` when it is new.
        before: Option<Box<Service>>,
    },
    /// A slice.
    Slice {
        /// The name of the slice.
        name: ObjectName,
        /// `None` when it is new.
        before: Option<EndpointSlice>,
    },
    /// The node, the ServiceCIDRs, the addresses of the API server, or that all objects are known now.
    Other,
}

//! Describes the change that an event made in the state.
//!
//! [`State::apply`](super::State::apply) compares each event once with the object that it has, and returns a [`Change`] if they differ.
//! Others, such as the history of changes and the deletion of flows, learn from the [`Change`] what changed, and take the old object from it.

use super::endpoint::EndpointSlice;
use super::names::ObjectName;
use super::service::Service;

/// An object that an event changed, with its old content. The state has the new content.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A Service was added, changed or deleted.
    Service {
        /// The namespace and the name of the Service.
        name: ObjectName,
        /// The old content; `None` if the Service is new.
        before: Option<Box<Service>>,
    },
    /// An EndpointSlice was added, changed or deleted.
    Slice {
        /// The namespace and the name of the slice.
        name: ObjectName,
        /// The old content; `None` if the slice is new.
        before: Option<EndpointSlice>,
    },
    /// The node, the ServiceCIDRs or the API server's addresses changed, or the initial list of objects is complete.
    Other,
}

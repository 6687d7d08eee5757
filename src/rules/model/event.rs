//! What a source gives to the model.

use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::endpoint::EndpointSlice;
use super::names::ObjectName;
use super::node::Node;
use super::service::Service;

/// One change of the cluster. Any order, repeats and deletions of unknown objects are fine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A Service exists with this content.
    ServiceApplied(Service),
    /// A Service is gone, or is not for this proxy any more (A1 to A3).
    ServiceDeleted(ObjectName),
    /// A slice exists with this content.
    SliceApplied(EndpointSlice),
    /// A slice is gone, or cannot be used (B1 to B3). The name is the slice's.
    SliceDeleted(ObjectName),
    /// A Node exists with this content. Sources may send all nodes; the model keeps its own.
    NodeApplied(Node),
    /// A Node is gone.
    NodeDeleted(Arc<str>),
    /// A ServiceCIDR exists with these ranges.
    ServiceCidrApplied(Arc<str>, Vec<IpNet>),
    /// A ServiceCIDR is gone.
    ServiceCidrDeleted(Arc<str>),
    /// The API server is reached at these addresses, and at no others.
    ApiServerAt(Vec<SocketAddr>),
    /// Every object that existed when the source started has been sent (G1, C10).
    InitialListDone,
}

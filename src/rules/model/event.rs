//! The events that a source (the API server or a folder of manifests) sends to the model.

use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::endpoint::EndpointSlice;
use super::names::ObjectName;
use super::node::Node;
use super::service::Service;

/// One change of the cluster. Events may come in any order and more than once, and may delete unknown objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A Service exists with this content.
    ServiceApplied(Service),
    /// A Service was deleted, or this proxy does not handle it any more (A1 to A3).
    ServiceDeleted(ObjectName),
    /// An EndpointSlice exists with this content.
    SliceApplied(EndpointSlice),
    /// The EndpointSlice with this name was deleted, or this proxy cannot use it (B1 to B3).
    SliceDeleted(ObjectName),
    /// A Node exists with this content. Sources may send all nodes; the model keeps only this node.
    NodeApplied(Node),
    /// The Node with this name was deleted.
    NodeDeleted(Arc<str>),
    /// The ServiceCIDR with this name exists with these ranges.
    ServiceCidrApplied(Arc<str>, Vec<IpNet>),
    /// The ServiceCIDR with this name was deleted.
    ServiceCidrDeleted(Arc<str>),
    /// This process reaches the API server, or a proxy on the way to it, at these addresses, and at no others.
    ApiServerAt(Vec<SocketAddr>),
    /// Every object that existed when the source started has been sent (G1, C10).
    InitialListDone,
    /// Changes nothing: wakes a receiver that has to look at something other than the cluster's objects.
    Wake,
}

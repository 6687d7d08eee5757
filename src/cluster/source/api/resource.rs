//! The four kinds of objects that the proxy lists and watches: their paths at the API server, and the selectors of the objects (P10).

use crate::source::Key;
use rules::model::ObjectName;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Resource {
    Node,
    Service,
    EndpointSlice,
    ServiceCidr,
}

impl Resource {
    /// All kinds, in the order in which [`watch_bytes`](super::decode::watch_bytes) numbers them.
    pub(super) const ALL: [Self; 4] = [Self::Node, Self::Service, Self::EndpointSlice, Self::ServiceCidr];

    /// Returns the name of the kind, as in the field `kind` of objects.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    /// Returns the path of the kind's objects at the API server.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Node => "/api/v1/nodes",
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
        }
    }

    /// Returns the label selector of requests for the kind; `None` for all labels.
    pub(super) const fn label_selector(self) -> Option<&'static str> {
        match self {
            Self::Service => Some("!service.kubernetes.io/service-proxy-name"),
            Self::EndpointSlice => Some("!service.kubernetes.io/headless"),
            Self::Node | Self::ServiceCidr => None,
        }
    }

    /// Returns the field selector of requests for the kind; `None` for all objects.
    pub(super) fn field_selector(self, node_name: &str) -> Option<String> {
        match self {
            Self::Service => Some("spec.clusterIP!=None".into()),
            Self::Node => Some(format!("metadata.name={node_name}")),
            Self::EndpointSlice | Self::ServiceCidr => None,
        }
    }

    /// Returns whether a cluster may lack the kind: older clusters have no ServiceCIDRs, or no RBAC rule that allows the proxy to read
    /// them.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self, Self::ServiceCidr)
    }

    /// Returns the identity of an object of the kind.
    pub(super) fn key(self, namespace: &str, name: &str) -> Key {
        match self {
            Self::Node => Key::Node(name.into()),
            Self::ServiceCidr => Key::ServiceCidr(name.into()),
            Self::Service => Key::Service(ObjectName::new(namespace, name)),
            Self::EndpointSlice => Key::Slice(ObjectName::new(namespace, name)),
        }
    }
}

//! Reads the cluster's objects from one of two sources: the API server (`api`) or a directory of manifests (`manifests`).
//!
//! The module converts Kubernetes objects to [`Event`]s for `rules::model`, and reports each part of an object that cannot be used.
//! `objects` defines the fields of each kind that the proxy reads, and `convert` converts objects to events; `api` and `manifests` use
//! both. Besides [`crate::events`], this is the only module that uses types of k8s-openapi.
//!
//! Invariants: an invalid object or field is reported, and an invalid object affects no other object; a change of a manifest that does not
//! matter to the proxy causes no event.

pub mod api;
pub mod convert;
pub mod manifests;
pub mod objects;

use std::fmt;
use std::sync::Arc;

use tracing::warn;

use component::excerpt::{MESSAGE, excerpt};
use rules::model::{Event, ObjectName};

pub use convert::ConvertOptions;

/// The kinds of objects that are read from either source.
pub const KINDS: [&str; 4] = ["EndpointSlice", "Node", "Service", "ServiceCIDR"];

/// What to do when there is no Node of the proxy's name.
pub const NODE_REMEDY: &str = "give the name of this node with --hostname-override or hostnameOverride";

/// Returns the sentence that there is no Node of this name.
#[must_use]
pub fn no_such_node(name: &str) -> String {
    format!("there is no Node {name}: node ports listen nowhere by default, and no endpoint is local")
}

/// A problem with one object, such as a field with an invalid value.
///
/// Prints as `Service demo/web: spec.externalIPs[1]: "300.1.1.1" is not an IP address; ignored`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The kind of the object, such as `Service`.
    pub kind: &'static str,
    /// The object as `namespace/name`, or only the name if the kind has no namespaces.
    pub object: String,
    /// The path of the field, such as `spec.ports[0].port`.
    pub field: String,
    /// What is wrong with the field, and what the proxy does instead, such as `ignored`.
    pub text: String,
}

impl Problem {
    /// The most characters of an object's name (namespace, slash and name have at most 317), and of a field's path.
    const NAME: usize = 320;

    /// Returns a problem. Cuts what is too long, because all of it may come from the object.
    fn new(kind: &'static str, object: &str, field: &str, text: &str) -> Self {
        let [object, field] = [object, field].map(|name| excerpt(name, Self::NAME).into_owned());
        Self { kind, object, field, text: excerpt(text, MESSAGE).into_owned() }
    }

    fn log(&self) {
        let Self { kind, object, field, text } = self;
        let of = |wanted| (*kind == wanted).then_some(&**object);
        let (service, slice, node, cidr) = (of("Service"), of("EndpointSlice"), of("Node"), of("ServiceCIDR"));
        warn!(
            service,
            endpointSlice = slice,
            node,
            serviceCIDR = cidr,
            field,
            err = text,
            "Object has a field that cannot be used"
        );
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.object, self.field, self.text)
    }
}

/// The identity of an object: kind and name. When a manifest file is read again, its changes are sent in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Node(Arc<str>),
    ServiceCidr(Arc<str>),
    Service(ObjectName),
    Slice(ObjectName),
}

impl Key {
    /// Returns the object that an event is about; `None` for events that are not about an object.
    fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::ServiceApplied(service) => Self::Service(service.name.clone()),
            Event::ServiceDeleted(name) => Self::Service(name.clone()),
            Event::SliceApplied(slice) => Self::Slice(slice.name.clone()),
            Event::SliceDeleted(name) => Self::Slice(name.clone()),
            Event::NodeApplied(node) => Self::Node(Arc::clone(&node.name)),
            Event::NodeDeleted(name) => Self::Node(Arc::clone(name)),
            Event::ServiceCidrApplied(name, _) | Event::ServiceCidrDeleted(name) => Self::ServiceCidr(Arc::clone(name)),
            Event::ApiServerAt(_) | Event::InitialListDone | Event::Wake => return None,
        })
    }

    /// Returns the event that deletes the object.
    fn deletion(&self) -> Event {
        match self {
            Self::Node(name) => Event::NodeDeleted(Arc::clone(name)),
            Self::ServiceCidr(name) => Event::ServiceCidrDeleted(Arc::clone(name)),
            Self::Service(name) => Event::ServiceDeleted(name.clone()),
            Self::Slice(name) => Event::SliceDeleted(name.clone()),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "Node {name}"),
            Self::ServiceCidr(name) => write!(f, "ServiceCIDR {name}"),
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Slice(name) => write!(f, "EndpointSlice {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_kind_object_and_field() {
        let problem = Problem {
            kind: "Service",
            object: "demo/web".into(),
            field: "spec.externalIPs[1]".into(),
            text: "\"300.1.1.1\" is not an IP address; ignored".into(),
        };
        assert_eq!(
            problem.to_string(),
            "Service demo/web: spec.externalIPs[1]: \"300.1.1.1\" is not an IP address; ignored"
        );
    }
}

//! The kinds that the server has, and which requests for them the role of the proxy allows.
//!
//! Takes paths, methods and queries, and returns an [`Ask`]. Pure.

use hyper::Method;

use super::query::Query;

/// A kind that can be listed and watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    /// `v1` Node; like ServiceCIDR, it has no namespace.
    Node,
    /// `networking.k8s.io/v1` ServiceCIDR.
    ServiceCidr,
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// `GET /version`; allowed without authentication.
    Version,
    /// All objects of a kind, of all namespaces.
    List(Resource),
    /// The changes of a kind, of all namespaces.
    Watch(Resource),
    /// One Node.
    Get(String),
    /// A new Event, or a change of one.
    Event,
    /// Whether the client may do something; open to everybody.
    Review,
    /// Nothing that the role `system:node-proxier` allows.
    Forbidden,
}

impl Resource {
    /// All kinds.
    pub(crate) const ALL: [Self; 4] = [Self::Node, Self::ServiceCidr, Self::Service, Self::EndpointSlice];

    /// Returns the `kind` of an object.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
        }
    }

    /// Returns the `apiVersion` of an object.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::Node | Self::Service => "v1",
            Self::ServiceCidr => "networking.k8s.io/v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
        }
    }

    /// Returns the path of the list of all objects.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Node => "/api/v1/nodes",
            Self::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
        }
    }

    /// Returns the fields that a selector may name, besides the name and the namespace.
    pub(crate) const fn selectable(self) -> &'static [&'static str] {
        match self {
            Self::Node => &["spec.unschedulable"],
            Self::Service => &["spec.clusterIP", "spec.type"],
            Self::ServiceCidr | Self::EndpointSlice => &[],
        }
    }

    /// Returns the kind with this name.
    pub(crate) fn of_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.kind() == kind)
    }
}

/// Returns the path of all namespaces and the namespace, of a path of the EndpointSlices of one namespace.
pub(crate) fn namespaced(path: &str) -> Option<(String, &str)> {
    let rest = path.strip_prefix("/apis/discovery.k8s.io/v1/namespaces/")?;
    let namespace = rest.strip_suffix("/endpointslices").filter(|name| !name.is_empty() && !name.contains('/'))?;
    Some((Resource::EndpointSlice.path().to_owned(), namespace))
}

/// Returns what a request asks for; [`Ask::Forbidden`] if the role does not allow it.
pub(crate) fn ask(method: &Method, path: &str, query: &Query) -> Ask {
    if path == "/version" && *method == Method::GET {
        return Ask::Version;
    }
    if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" && *method == Method::POST {
        return Ask::Review;
    }
    if let Some(resource) = Resource::ALL.into_iter().find(|resource| resource.path() == path) {
        return match *method {
            Method::GET if query.is_true("watch") => Ask::Watch(resource),
            Method::GET => Ask::List(resource),
            _ => Ask::Forbidden,
        };
    }
    let node = path.strip_prefix("/api/v1/nodes/").filter(|name| !name.is_empty() && !name.contains('/'));
    if let (Some(name), &Method::GET) = (node, method) {
        return Ask::Get(name.to_owned());
    }
    if is_event(method, path) { Ask::Event } else { Ask::Forbidden }
}

/// Returns whether a request creates an Event or changes one.
fn is_event(method: &Method, path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/apis/events.k8s.io/v1/namespaces/") else { return false };
    let parts: Vec<&str> = rest.split('/').collect();
    match parts[..] {
        [namespace, "events"] => *method == Method::POST && !namespace.is_empty(),
        [_, "events", name] => [Method::PATCH, Method::PUT].contains(method) && !name.is_empty(),
        _ => false,
    }
}

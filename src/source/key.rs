//! The identity of an object, whatever its kind.
//!
//! Takes events and names, gives keys to keep books by. Pure.

use std::fmt;
use std::sync::Arc;

use crate::model::{Event, ObjectName};

/// The identity of an object. The order is that in which a file's events are sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    Node(Arc<str>),
    ServiceCidr(Arc<str>),
    Service(ObjectName),
    Slice(ObjectName),
}

impl Key {
    /// The object that an event is about.
    pub(super) fn of(event: &Event) -> Option<Self> {
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

    /// The event that says that the object is gone.
    pub(super) fn deletion(&self) -> Event {
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

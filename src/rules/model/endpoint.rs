//! EndpointSlices, with the fields that the proxy uses.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::names::{Destination, Family, Frontend, ObjectName, Protocol};

/// An EndpointSlice with the Service it belongs to (B2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSlice {
    /// Namespace and name of the slice.
    pub name: ObjectName,
    /// The Service named by label `kubernetes.io/service-name`.
    pub service: ObjectName,
    /// IP family of all its addresses (B3).
    pub family: Family,
    /// The slice's ports that have a name and a number (B5); an unnamed port has the empty name.
    pub ports: Vec<SlicePort>,
    /// Endpoints that have an address (B6).
    pub endpoints: Vec<Endpoint>,
    /// The weight of each of its endpoints, from 1 to [`MOST_WEIGHT`](super::MOST_WEIGHT): 1, unless an annotation of the slice says
    /// otherwise.
    pub weight: u8,
    /// The time of the cluster change that made the control plane write this version of the slice.
    pub trigger: TriggerTime,
}

impl EndpointSlice {
    /// Every endpoint address combined with every port: the destinations that packets to these endpoints have.
    pub(super) fn addressed(&self) -> impl Iterator<Item = Frontend> {
        self.endpoints.iter().flat_map(|endpoint| {
            let destination = Destination::Address(endpoint.address);
            self.ports.iter().map(move |port| Frontend { destination, protocol: port.protocol, port: port.port })
        })
    }
}

/// The time of the cluster change that made the control plane write a slice: nanoseconds since the epoch, if known.
///
/// All values compare as equal, because the time belongs to a version of the slice and not to its content: two slices that differ only
/// in this time are equal, so the second is no change.
#[derive(Clone, Copy, Debug, Default)]
pub struct TriggerTime(pub Option<i64>);

impl PartialEq for TriggerTime {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TriggerTime {}

impl Hash for TriggerTime {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A port of a slice. It belongs to the service port with the same name and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlicePort {
    /// Name of the service port.
    pub name: Arc<str>,
    /// Transport protocol; TCP if the slice names none.
    pub protocol: Protocol,
    /// Port on the endpoint.
    pub port: u16,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The first address of the endpoint; it has the slice's family (B6).
    pub address: IpAddr,
    /// Whether the endpoint is ready, serving or terminating (B7).
    pub conditions: Conditions,
    /// Name of the node that the endpoint runs on (B8).
    pub node: Option<Arc<str>>,
    /// The zone that the endpoint runs in.
    pub zone: Option<Zone>,
    /// Topology hints; `None` when there are none (B9).
    pub hints: Option<Box<Hints>>,
}

/// A zone, as a hash of its name, because a large cluster has very many endpoints, and these four bytes fit into padding of [`Endpoint`].
/// Two zones have the same hash with a probability of one in four billion; that does little harm, because only weights depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zone(NonZeroU32);

impl Zone {
    /// The zone with this name; `None` when the name is empty.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let [a, b, c, d, ..] = hasher.finish().to_ne_bytes();
        let hash = NonZeroU32::new(u32::from_ne_bytes([a, b, c, d])).unwrap_or(NonZeroU32::MIN);
        (!name.is_empty()).then_some(Self(hash))
    }
}

/// The three conditions of an endpoint with their defaults applied (B7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// The endpoint takes new connections; if the field is absent, true.
    pub ready: bool,
    /// The endpoint still answers; if the field is absent, true.
    pub serving: bool,
    /// The endpoint is shutting down; if the field is absent, false.
    pub terminating: bool,
}

impl Conditions {
    /// All defaults: ready, serving, not terminating.
    pub const READY: Self = Self { ready: true, serving: true, terminating: false };

    /// The endpoint is shutting down but still answers: unless it is ready, it is used only when no endpoint is (C3, C4).
    #[must_use]
    pub(crate) const fn serving_terminating(self) -> bool {
        self.serving && self.terminating
    }
}

/// Topology hints of an endpoint (B9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// `hints.forZones[].name`.
    pub zones: Vec<Arc<str>>,
    /// `hints.forNodes[].name`.
    pub nodes: Vec<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    // A large cluster has very many endpoints, so the field `zone` must not make an endpoint larger.
    #[test]
    fn the_zone_takes_no_memory_of_its_own() {
        let parts = size_of::<IpAddr>() + size_of::<Conditions>();
        assert!(parts.is_multiple_of(4) && !parts.is_multiple_of(8), "{parts}");
        assert_eq!(size_of::<Endpoint>(), parts + 4 + size_of::<Option<Arc<str>>>() + size_of::<Option<Box<Hints>>>());
        assert!(Zone::of("a").is_some() && Zone::of("a") == Zone::of("a") && Zone::of("a") != Zone::of("b"));
        assert_eq!(Zone::of(""), None);
    }
}

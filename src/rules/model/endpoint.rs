//! EndpointSlices as the proxy sees them.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::names::{Destination, Family, Frontend, ObjectName, Protocol};

/// An EndpointSlice with the Service it belongs to (B2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSlice {
    /// Namespace and name of the slice.
    pub name: ObjectName,
    /// The Service named by label `kubernetes.io/service-name`.
    pub service: ObjectName,
    /// Family of all its addresses (B3).
    pub family: Family,
    /// Ports that have a name and a number (B5); an unnamed port has the empty name.
    pub ports: Vec<SlicePort>,
    /// Endpoints that have an address (B6).
    pub endpoints: Vec<Endpoint>,
    /// When the cluster changed so that the slice had to.
    pub trigger: TriggerTime,
}

impl EndpointSlice {
    /// Every address with every port, as a packet to it has them.
    pub(super) fn addressed(&self) -> impl Iterator<Item = Frontend> {
        self.endpoints.iter().flat_map(|endpoint| {
            let destination = Destination::Address(endpoint.address);
            self.ports.iter().map(move |port| Frontend { destination, protocol: port.protocol, port: port.port })
        })
    }
}

/// The time of the change that a slice is about: nanoseconds since the epoch, if known.
///
/// Belongs to a version of the slice, not to its content. Therefore all are equal: slices that differ in nothing else are the
/// same, and no change.
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

/// A port of a slice. It belongs to the service port of the same name and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlicePort {
    /// Name of the service port.
    pub name: Arc<str>,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port on the endpoint.
    pub port: u16,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its first address, of the slice's family (B6).
    pub address: IpAddr,
    /// Its conditions (B7).
    pub conditions: Conditions,
    /// Name of the node it runs on (B8).
    pub node: Option<Arc<str>>,
    /// Topology hints; `None` when there are none (B9).
    pub hints: Option<Box<Hints>>,
}

/// The three conditions of an endpoint with their defaults applied (B7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// Takes new connections; absent means true.
    pub ready: bool,
    /// Still answers; absent means true.
    pub serving: bool,
    /// Is going away; absent means false.
    pub terminating: bool,
}

impl Conditions {
    /// All defaults: ready, serving, not terminating.
    pub const READY: Self = Self { ready: true, serving: true, terminating: false };

    /// Going away but still answering: used only when nothing is ready (C3, C4).
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

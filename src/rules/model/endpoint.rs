//! EndpointSlices, with the fields that the proxy uses.

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
    /// IP family of all its addresses (B3).
    pub family: Family,
    /// The slice's ports that have a name and a number (B5); an unnamed port has the empty name.
    pub ports: Vec<SlicePort>,
    /// Endpoints that have an address (B6).
    pub endpoints: Vec<Endpoint>,
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
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port on the endpoint.
    pub port: u16,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The first address of the endpoint; it has the slice's family (B6).
    pub address: IpAddr,
    /// Its conditions (B7).
    pub conditions: Conditions,
    /// Name of the node that the endpoint runs on (B8).
    pub node: Option<Arc<str>>,
    /// Topology hints; `None` when there are none (B9).
    pub hints: Option<Box<Hints>>,
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

    /// The endpoint is shutting down but still answers: it is used only when no endpoint is ready (C3, C4).
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

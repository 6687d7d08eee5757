//! Which slices serve each port of a Service.
//!
//! Takes the slices of a Service, gives for a service port and a family the slices with endpoints for it, and the port number on
//! these. Both a Service and a slice may have thousands of ports, so the slices are not searched for each port.
//!
//! Invariant: what is given for a port is in the order in which the slices were.

use super::endpoint::{EndpointSlice, SlicePort};
use super::names::{Family, Protocol};
use super::service::ServicePort;

/// The slices of a Service by port.
#[derive(Debug)]
pub struct Backends<'a>(Vec<Backend<'a>>);

/// A port of a slice, with the slice.
#[derive(Clone, Copy, Debug)]
pub struct Backend<'a> {
    /// The slice.
    pub slice: &'a EndpointSlice,
    /// The number of the port on the slice's endpoints.
    pub port: u16,
    key: Key<'a>,
}

/// What ties a port of a slice to one of the Service (B4).
type Key<'a> = (Family, Protocol, &'a str);

impl<'a> Backends<'a> {
    /// The ports of these slices.
    #[must_use]
    pub fn of(slices: impl Iterator<Item = &'a EndpointSlice>) -> Self {
        let backend = |slice: &'a EndpointSlice, SlicePort { name, protocol, port }: &'a SlicePort| Backend {
            slice,
            port: *port,
            key: (slice.family, *protocol, name),
        };
        let mut backends = Vec::new();
        for slice in slices {
            backends.extend(slice.ports.iter().map(|port| backend(slice, port)));
        }
        backends.sort_by_key(|backend| backend.key);
        Self(backends)
    }

    /// What serves a port in a family.
    #[must_use]
    pub fn get(&self, port: &ServicePort, family: Family) -> &[Backend<'a>] {
        let key: Key<'_> = (family, port.protocol, &port.name);
        let start = self.0.partition_point(|backend| backend.key < key);
        let end = start + self.0[start..].partition_point(|backend| backend.key == key);
        &self.0[start..end]
    }
}

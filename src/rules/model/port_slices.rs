//! An index of a Service's slices by service port.
//!
//! Takes the slices of a Service; returns for a service port and a family the slices that have this port, each with the port number on
//! its endpoints. Both a Service and a slice may have many ports, so an index avoids a search of all slices for each port.
//!
//! Invariant: the slices that are returned for a port keep the order of the input.

use super::endpoint::{EndpointSlice, SlicePort};
use super::names::{Family, Protocol};
use super::service::ServicePort;

/// The slices of a Service, indexed by port.
#[derive(Debug)]
pub(crate) struct PortSlices<'a>(Vec<PortSlice<'a>>);

/// A slice with one of its ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortSlice<'a> {
    pub slice: &'a EndpointSlice,
    /// The number of the port on the slice's endpoints.
    pub port: u16,
    key: Key<'a>,
}

/// A slice's port belongs to the service port with the same key (B4).
type Key<'a> = (Family, Protocol, &'a str);

impl<'a> PortSlices<'a> {
    /// Builds the index of these slices.
    #[must_use]
    pub(crate) fn of(slices: impl Iterator<Item = &'a EndpointSlice>) -> Self {
        let mut gathered = Vec::new();
        for slice in slices {
            for SlicePort { name, protocol, port } in &slice.ports {
                gathered.push(PortSlice { slice, port: *port, key: (slice.family, *protocol, name) });
            }
        }
        gathered.sort_by_key(|one| one.key);
        Self(gathered)
    }

    /// The slices that have a service port in a family.
    #[must_use]
    pub(crate) fn get(&self, port: &ServicePort, family: Family) -> &[PortSlice<'a>] {
        let key: Key<'_> = (family, port.protocol, &port.name);
        let start = self.0.partition_point(|one| one.key < key);
        let end = start + self.0[start..].partition_point(|one| one.key == key);
        &self.0[start..end]
    }

    /// Whether any slice has a port of this protocol.
    #[must_use]
    pub(crate) fn has(&self, protocol: Protocol) -> bool {
        self.0.iter().any(|one| one.key.1 == protocol)
    }
}

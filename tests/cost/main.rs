//! What a change costs in each layout: elements, messages and bytes that go over netlink, whatever else the cluster holds.
//!
//! Drives the engine with a kernel that only remembers; needs no root. Every cost is asserted for 10 and for 2,000 Services.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod chains;
mod maps;
mod service_chains;
mod walks;

use rules::model::{Endpoint, Event, Family, Service, Weights};

use support::cluster::{address, endpoint, endpoints, service, slice};
use support::ledger::ENDPOINTS;
use support::plan::NODE;

/// The weight of endpoints on this node in [`weighted`].
const LOCAL: usize = 4;

/// The IPv4 slice of a Service.
fn v4_slice(n: u16, endpoints: Vec<Endpoint>) -> Event {
    Event::SliceApplied(slice(n, Family::V4, endpoints))
}

/// The IPv4 endpoints of Service 0 with the last one replaced.
fn one_replaced() -> Vec<Endpoint> {
    let mut list = endpoints(0, Family::V4, ENDPOINTS);
    list.pop();
    list.push(endpoint(address(Family::V4, 245, 1)));
    list
}

/// Service 0, in which an endpoint on this node counts [`LOCAL`].
fn weighted() -> Event {
    let weights = Weights { local: u8::try_from(LOCAL).ok(), zone: None };
    Event::ServiceApplied(Service { weights, ..service(0) })
}

/// The IPv4 slice of Service 0 with these endpoints and the `n`-th one of this node.
fn with_local(n: u16, mut list: Vec<Endpoint>) -> Event {
    list.push(Endpoint { node: Some(NODE.into()), ..endpoint(address(Family::V4, 246, n)) });
    v4_slice(0, list)
}

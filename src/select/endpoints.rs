//! The endpoints of one service port, merged from all slices of its Service.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::model::{Conditions, Endpoint, Family, Hints, ObjectName, ServicePort, State};

/// An endpoint of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate<'a> {
    pub(super) address: SocketAddr,
    pub(super) conditions: Conditions,
    /// It runs on this node (B8).
    pub(super) local: bool,
    pub(super) hints: Option<&'a Hints>,
}

/// The endpoints of a service port, sorted, each address once (B4, B10).
///
/// Slices are taken in the order of their names, so that of two running entries with the same address the same one wins always.
pub(super) fn candidates<'a>(
    state: &'a State,
    service: &ObjectName,
    port: &ServicePort,
    family: Family,
) -> Vec<Candidate<'a>> {
    let mut merged: BTreeMap<SocketAddr, Candidate<'a>> = BTreeMap::new();
    for slice in state.slices_of(service).filter(|slice| slice.family == family) {
        let matching = slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol);
        for number in matching.map(|p| p.port) {
            for endpoint in &slice.endpoints {
                let candidate = candidate(state, endpoint, number);
                // A terminating entry never takes the place of another one.
                if !candidate.conditions.terminating || !merged.contains_key(&candidate.address) {
                    merged.insert(candidate.address, candidate);
                }
            }
        }
    }
    merged.into_values().collect()
}

fn candidate<'a>(state: &State, endpoint: &'a Endpoint, port: u16) -> Candidate<'a> {
    Candidate {
        address: SocketAddr::new(endpoint.address, port),
        conditions: endpoint.conditions,
        local: endpoint.node.as_deref().is_some_and(|node| !node.is_empty() && node == state.node_name()),
        hints: endpoint.hints.as_deref(),
    }
}

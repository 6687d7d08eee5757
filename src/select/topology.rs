//! Which of a port's endpoints traffic may use: readiness, topology hints, and the fall-backs.

use std::net::SocketAddr;

use super::endpoints::Candidate;
use crate::model::State;

/// How far hints narrow the choice (C2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    SameNode,
    SameZone,
    Anywhere,
}

/// The endpoints for traffic that may leave the node: ready ones that the hints allow, else serving and terminating ones,
/// everywhere and whatever their hints (C3).
pub(super) fn cluster_list(candidates: &[Candidate<'_>], state: &State) -> Vec<SocketAddr> {
    let mode = mode(candidates, state);
    let ready = addresses(candidates, |c| c.conditions.ready && allows(mode, c, state));
    if !ready.is_empty() {
        return ready;
    }
    addresses(candidates, |c| c.conditions.serving_terminating())
}

/// The endpoints for traffic that must stay on the node: ready ones, else serving and terminating ones; hints do not matter (C4).
pub(super) fn local_list(candidates: &[Candidate<'_>]) -> Vec<SocketAddr> {
    let ready = addresses(candidates, |c| c.local && c.conditions.ready);
    if !ready.is_empty() {
        return ready;
    }
    addresses(candidates, |c| c.local && c.conditions.serving_terminating())
}

fn addresses(candidates: &[Candidate<'_>], wanted: impl Fn(&Candidate<'_>) -> bool) -> Vec<SocketAddr> {
    candidates.iter().filter(|c| wanted(c)).map(|c| c.address).collect()
}

/// Hints count only when every ready endpoint has one of the kind, and one of them means this node or its zone (C2).
fn mode(candidates: &[Candidate<'_>], state: &State) -> Mode {
    let decides = |has: fn(&Candidate<'_>) -> bool, mode: Mode| {
        let mut ready = candidates.iter().filter(|c| c.conditions.ready);
        let means_us = ready.clone().any(|c| allows(mode, c, state));
        means_us && ready.all(has)
    };
    if decides(|c| c.hints.is_some_and(|hints| !hints.nodes.is_empty()), Mode::SameNode) {
        Mode::SameNode
    } else if decides(|c| c.hints.is_some_and(|hints| !hints.zones.is_empty()), Mode::SameZone) {
        Mode::SameZone
    } else {
        Mode::Anywhere
    }
}

fn allows(mode: Mode, candidate: &Candidate<'_>, state: &State) -> bool {
    let zone = state.node().and_then(|node| node.zone.as_deref());
    match mode {
        Mode::Anywhere => true,
        Mode::SameNode => {
            candidate.hints.is_some_and(|hints| hints.nodes.iter().any(|node| **node == *state.node_name()))
        }
        Mode::SameZone => candidate
            .hints
            .is_some_and(|hints| zone.is_some_and(|zone| hints.zones.iter().any(|hint| **hint == *zone))),
    }
}

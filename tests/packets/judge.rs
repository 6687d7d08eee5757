//! Assertions about a flow: it reaches these endpoints evenly and shows this source, or it has this one outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::support::netns::Namespace;
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, probe, probe_many};
use crate::support::stats::assert_even;
use crate::support::world::World;

/// Enough probes that one of four endpoints is missed by chance less than once in a billion times.
pub(crate) const FEW: u32 = 80;

/// Which source an endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The client's own.
    Kept,
    /// Another address, one of the node's.
    Masqueraded,
}

/// The plan's endpoints of a family, by number, with a port.
pub(crate) fn endpoints(family: Family, which: &[u8], port: u16) -> Vec<SocketAddr> {
    which.iter().map(|n| SocketAddr::new(family.endpoint(*n), port)).collect()
}

/// `count` probes reach exactly `endpoints`, evenly, and every one of them shows the expected source.
pub(crate) fn assert_reaches(from: &Namespace, flow: Flow, endpoints: &[SocketAddr], source: Source, count: u32) {
    let (mut counts, mut sources) = (BTreeMap::<SocketAddr, u32>::new(), BTreeSet::<IpAddr>::new());
    let tally = probe_many(from, flow, count);
    for (outcome, times) in &tally {
        let Outcome::Reached(answer) = outcome else { panic!("{flow:?}: {outcome:?}, in all {tally:?}") };
        *counts.entry(SocketAddr::new(answer.endpoint, answer.port)).or_default() += times;
        sources.insert(answer.seen_source);
    }
    let reached: BTreeSet<SocketAddr> = counts.keys().copied().collect();
    assert_eq!(reached, endpoints.iter().copied().collect(), "{flow:?}");
    assert_even(&format!("{flow:?}"), &counts.into_values().collect::<Vec<_>>());
    let is_expected = |seen: &IpAddr| match source {
        Source::Kept => *seen == flow.source,
        Source::Masqueraded => *seen != flow.source && World::is_node_address(*seen),
    };
    assert!(sources.iter().all(is_expected), "{flow:?}: wanted {source:?}, the endpoints saw {sources:?}");
}

/// One probe has this outcome.
pub(crate) fn assert_outcome(from: &Namespace, flow: Flow, expected: &Outcome) {
    assert_eq!(&probe(from, flow), expected, "{flow:?}");
}

/// One probe from a process on the node itself is stopped: there the kernel may give the sender an error at once (`EPERM`).
pub(crate) fn assert_stopped_on_node(node: &Namespace, flow: Flow, expected: &Outcome) {
    let outcome = probe(node, flow);
    assert!([expected, &Outcome::NotPermitted].contains(&&outcome), "{flow:?}: {outcome:?} instead of {expected:?}");
}

/// One probe reaches no endpoint, whatever else becomes of it.
pub(crate) fn assert_not_reached(from: &Namespace, flow: Flow) {
    let outcome = probe(from, flow);
    assert!(!matches!(outcome, Outcome::Reached(_)), "{flow:?}: {outcome:?}");
}

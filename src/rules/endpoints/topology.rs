//! Finds the endpoints that topology hints allow for this node, and why hints are used or ignored (C2).
//!
//! Takes the Ready endpoints with their hints, the node's name and its zone; gives a [`Topology`].

use crate::model::{Endpoint, State};

/// The node and zone where this proxy runs.
#[derive(Clone, Copy)]
pub(super) struct NodeTopology<'a> {
    /// The node's name; `None` when it is empty: then no endpoint is local (B8).
    node: Option<&'a str>,
    /// The node's zone; if it is `None`, no zone hint matches (C2, C9).
    pub(super) zone: Option<&'a str>,
}

impl<'a> NodeTopology<'a> {
    pub(super) fn of(state: &'a State) -> Self {
        let node = Some(state.node_name()).filter(|name| !name.is_empty());
        Self { node, zone: state.node().and_then(|node| node.zone.as_deref()) }
    }

    /// Whether an endpoint runs on this node. Its address does not matter (B8).
    pub(super) fn is_local(self, endpoint: &Endpoint) -> bool {
        self.node.is_some() && endpoint.node.as_deref() == self.node
    }

    fn node_hinted(self, endpoint: &Endpoint) -> bool {
        let Some(hints) = &endpoint.hints else { return false };
        hints.nodes.iter().any(|node| Some(&**node) == self.node)
    }

    fn zone_hinted(self, endpoint: &Endpoint) -> bool {
        let Some(hints) = &endpoint.hints else { return false };
        hints.zones.iter().any(|zone| Some(&**zone) == self.zone)
    }
}

/// How topology hints restrict the Ready endpoints for traffic policy Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Only endpoints hinted for this node or this zone are used.
    Used(Hint),
    /// Hints are ignored, for this reason.
    Ignored(Ignored),
}

/// What a hint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A node (`hints.forNodes`).
    Node,
    /// A zone (`hints.forZones`).
    Zone,
}

/// Why hints are ignored. If there are hints for zones, the reason is about them, otherwise about the hints for nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// No endpoint is Ready.
    NoneReady,
    /// No Ready endpoint has hints.
    NoHints,
    /// Some Ready endpoints have no hint of the kind `hint`.
    Missing {
        /// Whether the missing hints are for nodes or for zones.
        hint: Hint,
        /// The number of Ready endpoints without a hint of this kind.
        without: usize,
    },
    /// The zone of this node is not known.
    NoZone,
    /// No Ready endpoint is hinted for this node or this zone.
    NotHere(Hint),
}

/// How many Ready endpoints have hints of one kind.
#[derive(Clone, Copy, Default)]
struct Hinted {
    /// Endpoints with a hint of this kind, whatever node or zone it names.
    any: usize,
    /// Endpoints with a hint for this node or zone.
    here: usize,
}

impl Hinted {
    fn add(&mut self, has_any: bool, is_here: bool) {
        self.any += usize::from(has_any);
        self.here += usize::from(is_here);
    }

    /// Whether hints of this kind apply: every Ready endpoint has some, and at least one endpoint is hinted for this node or zone.
    const fn apply(self, ready: usize) -> bool {
        self.any == ready && self.here > 0
    }
}

impl Topology {
    /// Chooses the hints to use: those for nodes if they apply, else those for zones if they apply, else none.
    pub(super) fn of<'a>(ready: impl Iterator<Item = &'a Endpoint>, node: NodeTopology<'_>) -> Self {
        let (mut nodes, mut zones, mut count) = (Hinted::default(), Hinted::default(), 0);
        for endpoint in ready {
            count += 1;
            if let Some(hints) = &endpoint.hints {
                nodes.add(!hints.nodes.is_empty(), node.node_hinted(endpoint));
                zones.add(!hints.zones.is_empty(), node.zone_hinted(endpoint));
            }
        }
        if nodes.apply(count) {
            return Self::Used(Hint::Node);
        }
        if zones.apply(count) {
            return Self::Used(Hint::Zone);
        }
        let (hint, hinted) = if zones.any > 0 { (Hint::Zone, zones) } else { (Hint::Node, nodes) };
        Self::Ignored(match hint {
            _ if count == 0 => Ignored::NoneReady,
            _ if hinted.any == 0 => Ignored::NoHints,
            hint if hinted.any < count => Ignored::Missing { hint, without: count - hinted.any },
            Hint::Zone if node.zone.is_none() => Ignored::NoZone,
            hint => Ignored::NotHere(hint),
        })
    }

    pub(super) fn allows(self, endpoint: &Endpoint, node: NodeTopology<'_>) -> bool {
        match self {
            Self::Ignored(_) => true,
            Self::Used(Hint::Zone) => node.zone_hinted(endpoint),
            Self::Used(Hint::Node) => node.node_hinted(endpoint),
        }
    }
}

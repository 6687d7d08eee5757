//! Finds the endpoints that topology hints allow for this node (C2).

use crate::model::{Endpoint, State};

/// The node and zone where this proxy runs.
#[derive(Clone, Copy)]
pub(super) struct NodeTopology<'a> {
    /// The node's name; `None` when it is empty: then no endpoint is local (B8).
    node: Option<&'a str>,
    /// The node's zone; if it is `None`, no zone hint matches (C2, C9).
    zone: Option<&'a str>,
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
#[derive(Clone, Copy)]
pub(super) enum Topology {
    /// Hints are ignored.
    Anywhere,
    /// Only endpoints hinted for this node's zone.
    SameZone,
    /// Only endpoints hinted for this node.
    SameNode,
}

impl Topology {
    /// Chooses the mode: hints for nodes (or else for zones) apply only if every Ready endpoint has a hint of this kind and at least one
    /// Ready endpoint is hinted for this node (or its zone).
    pub(super) fn of<'a>(ready: impl Iterator<Item = &'a Endpoint> + Clone, node: NodeTopology<'_>) -> Self {
        let has_nodes = |endpoint: &Endpoint| endpoint.hints.as_ref().is_some_and(|hints| !hints.nodes.is_empty());
        let has_zones = |endpoint: &Endpoint| endpoint.hints.as_ref().is_some_and(|hints| !hints.zones.is_empty());
        if ready.clone().all(has_nodes) && ready.clone().any(|endpoint| node.node_hinted(endpoint)) {
            Self::SameNode
        } else if ready.clone().all(has_zones) && ready.clone().any(|endpoint| node.zone_hinted(endpoint)) {
            Self::SameZone
        } else {
            Self::Anywhere
        }
    }

    pub(super) fn allows(self, endpoint: &Endpoint, node: NodeTopology<'_>) -> bool {
        match self {
            Self::Anywhere => true,
            Self::SameZone => node.zone_hinted(endpoint),
            Self::SameNode => node.node_hinted(endpoint),
        }
    }
}

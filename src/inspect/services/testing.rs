//! Frontends and listings as values, for tests.

use super::Listing;
use crate::services::Selection;
use crate::tables::{EndpointView, FrontendView, Kind, Policy, State, View};
use rules::model::{Destination, Family, Frontend, Protocol};

/// A frontend, served if it has endpoints, refused if it has none; without an address it is a node port. Each endpoint is an address, and
/// whether it is on this node.
pub(crate) fn frontend(
    service: &str,
    address: Option<&str>,
    port: u16,
    kind: Kind,
    endpoints: &[(&str, bool)],
) -> FrontendView {
    let destination =
        address.map_or(Destination::NodePort(Family::V4), |address| Destination::Address(address.parse().unwrap()));
    let endpoint = |(address, local): &(&str, bool)| EndpointView {
        address: address.parse().unwrap(),
        local: *local,
        share: None,
        share_outside: None,
        counted: None,
    };
    FrontendView {
        service: Some(service.into()),
        frontend: Frontend { destination, protocol: Protocol::Tcp, port },
        kind: Some(kind),
        state: Some(if endpoints.is_empty() { State::Refused } else { State::Served }),
        policy: Some(Policy::Cluster),
        affinity: None,
        counted: None,
        shares_counters: false,
        sources: None,
        endpoints: endpoints.iter().map(endpoint).collect(),
    }
}

/// The listing of these frontends, without a running proxy.
pub(crate) fn listing_of(frontends: Vec<FrontendView>) -> Listing {
    let view = View { frontends, ..View::default() };
    Listing::selected(view, None, &Selection::default()).unwrap()
}

//! The optional counters of the rules (`nftables.counters`), and the meaning of each counter.
//!
//! Sets and maps that packets are looked up in anyway get a counter on each element, and the kernel counts each look-up that finds the
//! element. Only the first packet of a connection passes the nat chains, so their maps count connections; the filter chains and
//! the source ranges count packets. In the kernel a counter takes 16 bytes for each CPU, and needs no rule of its own.
//!
//! Takes the kind of a set with one of its elements, or a rule, and returns the counter's [`Meaning`]. Pure.

use std::net::SocketAddr;
use std::sync::Arc;

use nft::{Element, Expr, RuleDump, Set, Value, Verdict};

use super::kinds::{ChainKind, SetKind};
use super::names::{ENDPOINT_MAPS, chain, endpoint_maps, set};
use super::{notes, reading};
use crate::model::{Family, Frontend};
use crate::table::SetName;

/// The counters that the rules have (`nftables.counters`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counters {
    /// No counters for single Services or endpoints, except those that `--ruleset-layout=chains` always has.
    #[default]
    Off,
    /// New connections of each frontend, and packets that are refused or dropped.
    Services,
    /// New connections of each endpoint as well.
    Endpoints,
}

impl Counters {
    /// Whether maps of endpoints have counters with `--ruleset-layout=maps`; with `chains` they always have.
    pub(super) fn count_endpoints(self) -> bool {
        self >= Self::Endpoints
    }
}

/// The meaning of a counter. The text is the label of a service port: `namespace/name:port`, or `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Meaning {
    /// New connections to a frontend. With `--ruleset-layout=chains` includes connections that its source ranges or its policy drop later.
    Connections(Arc<str>),
    /// New connections that were sent to an endpoint. Connections whose endpoint session affinity chose count only with
    /// `--ruleset-layout=chains`, where each endpoint has a chain.
    Endpoint(Arc<str>, SocketAddr),
    /// Packets to a frontend without endpoints.
    NoEndpoints(Arc<str>),
    /// Packets to a frontend with policy Local that has no endpoint on this node.
    NoLocalEndpoints(Arc<str>),
    /// Packets from a source that is not in the frontend's source ranges.
    SourceRanges(Arc<str>),
    /// Packets to a cluster IP, on a port that no Service has at this address.
    UnusedPort,
    /// Packets to an address in a ServiceCIDR that no Service has as its cluster IP.
    UnusedAddress,
}

/// The sets with counters whose elements stand for frontends, for all ruleset layouts. [`sets`] adds the maps of endpoints.
const NAMED: [&str; 12] = [
    set::SERVICES,
    set::NODEPORTS,
    set::CHAINS_SERVICES,
    set::CHAINS_NODEPORTS,
    set::CLUSTER_POLICY,
    set::NODEPORT_CLUSTER_POLICY,
    set::LOCAL_POLICY,
    set::NODEPORT_LOCAL_POLICY,
    set::NO_ENDPOINTS,
    set::NO_ENDPOINTS_EXTERNAL,
    set::NO_ENDPOINTS_NODEPORTS,
    set::RESTRICTED,
];

/// The names of the sets that have counters, with those of the maps of endpoints at the end if `of_endpoints`; each of these is split into
/// `maps` maps.
#[must_use]
pub fn sets(of_endpoints: bool, maps: u8) -> Vec<SetName> {
    let mut names: Vec<SetName> = NAMED.map(SetName::Borrowed).into();
    // The maps of endpoints have most of the elements of a table, so a caller leaves them out where they have no counters.
    if of_endpoints {
        for (frontend_type, list) in ENDPOINT_MAPS {
            names.extend(endpoint_maps(frontend_type, list, true, maps));
        }
    }
    names
}

/// The lowest setting of [`Counters`] with which the sets of a kind have counters; `None` if no setting gives them counters.
const fn least(kind: SetKind) -> Option<Counters> {
    match kind {
        SetKind::Dispatch(_)
        | SetKind::ClusterPolicy(_)
        | SetKind::LocalPolicy(_)
        | SetKind::NoEndpoints(_)
        | SetKind::Restricted => Some(Counters::Services),
        SetKind::Endpoints(..) => Some(Counters::Endpoints),
        _ => None,
    }
}

/// Turns counters on in the sets that have them with this setting.
pub(super) fn add(counters: Counters, sets: &mut [Set]) {
    for set in sets {
        if SetKind::of(&set.name).and_then(least).is_some_and(|least| least <= counters) {
            set.counter = true;
        }
    }
}

/// The label of the service port in the comment of a frontend, without the notes (module [`notes`]) that may follow it.
fn service_port(comment: &Arc<str>) -> Arc<str> {
    match notes::service_port(comment) {
        label if label.len() == comment.len() => Arc::clone(comment),
        label => label.into(),
    }
}

/// The meaning of an element's counter; `None` if it is not one of [`Meaning`]. For elements without a comment, `label_of` looks up the
/// comment of their frontend.
#[must_use]
pub fn of_element(
    kind: SetKind,
    family: Family,
    element: &Element,
    label_of: impl Fn(&Frontend) -> Option<Arc<str>>,
) -> Option<Meaning> {
    let label = || element.comment.as_ref().map(service_port);
    let label_of_key = || {
        let frontend = reading::frontend(kind, family, element.key.as_slice())?;
        label_of(&frontend).as_ref().map(service_port)
    };
    match kind {
        // Frontends with external policy Local are counted in the maps of their policy, not here.
        SetKind::Dispatch(_) if leads_to_policy(&element.value) => None,
        SetKind::Dispatch(_) | SetKind::ClusterPolicy(_) | SetKind::LocalPolicy(_) => {
            let is_dropped = element.value == Value::Verdict(Verdict::Drop);
            label().map(if is_dropped { Meaning::NoLocalEndpoints } else { Meaning::Connections })
        }
        SetKind::NoEndpoints(_) => label().map(Meaning::NoEndpoints),
        SetKind::Restricted => label_of_key().map(Meaning::SourceRanges),
        SetKind::Endpoints(..) => {
            let Value::Data(endpoint) = &element.value else { return None };
            let endpoint = reading::slot_endpoint(family, endpoint.as_slice())?;
            Some(Meaning::Endpoint(label_of_key()?, endpoint))
        }
        _ => None,
    }
}

fn leads_to_policy(value: &Value) -> bool {
    let Value::Verdict(verdict) = value else { return false };
    let chain = verdict.chain().and_then(|chain| ChainKind::of(chain));
    matches!(chain, Some(ChainKind::ExternalLocal(_)))
}

/// The meaning of a rule's counter; `None` if it is not one of [`Meaning`].
#[must_use]
pub fn of_rule(chain: &str, rule: &RuleDump) -> Option<Meaning> {
    if looks_up(rule, set::CLUSTER_IPS) && leads_to(rule, chain::REJECT) {
        return Some(Meaning::UnusedPort);
    }
    if looks_up(rule, set::SERVICE_CIDRS) {
        return Some(Meaning::UnusedAddress);
    }
    match ChainKind::of(chain)? {
        ChainKind::SourceRanges { .. } if leads_to(rule, chain::FIREWALL) => {
            rule.comment.clone().map(Meaning::SourceRanges)
        }
        ChainKind::External => rule.comment.clone().map(Meaning::NoLocalEndpoints),
        ChainKind::Endpoint => Some(Meaning::Endpoint(rule.comment.clone()?, reading::rule_endpoint(rule)?)),
        _ => None,
    }
}

fn looks_up(rule: &RuleDump, set: &str) -> bool {
    rule.exprs.iter().filter_map(Expr::set).any(|name| &**name == set)
}

fn leads_to(rule: &RuleDump, chain: &str) -> bool {
    rule.exprs.iter().any(|expr| match expr {
        Expr::ImmediateVerdict(verdict) => verdict.chain().is_some_and(|name| &**name == chain),
        _ => false,
    })
}

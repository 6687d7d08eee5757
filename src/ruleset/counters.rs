//! What the rules count when the operator wants counters (`nftables.counters`), and what each counter stands for.
//!
//! Counters belong to the sets and maps that a packet is looked up in anyway: the kernel gives each of their elements one, and counts
//! what finds it. The nat chains see only the first packet of a connection, so a dispatch map counts connections; the filter chains and
//! the source ranges count packets. Each counter is one 16-byte number pair for each CPU in the kernel, and has no rule of its own.
//!
//! Takes the name of a set with an element, or a rule, and gives its [`Meaning`]. Pure.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nft::{Data, Element, Expr, RuleDump, Set, Value, Verdict};

use super::shared::set::{CLUSTER_IPS, SERVICE_CIDRS};
use super::{endpoints, notes};
use crate::table::SetName;

/// What the rules count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counters {
    /// Nothing that has a Service's name.
    #[default]
    Off,
    /// New connections of each front, and packets that are refused or dropped.
    Services,
    /// New connections of each endpoint as well.
    Endpoints,
}

/// What a counter counts. The label of a service port is `namespace/name:port`, or `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Meaning {
    /// New connections to a front. In layout `chains` also those that its source ranges or its policy drop later.
    Connections(Arc<str>),
    /// New connections that were sent to an endpoint, without those that session affinity remembered.
    Endpoint(Arc<str>, SocketAddr),
    /// Packets to a front without endpoints.
    NoEndpoints(Arc<str>),
    /// Packets to a front with policy Local that has no endpoint on this node.
    NoLocalEndpoints(Arc<str>),
    /// Packets from a source that is not in the front's source ranges.
    SourceRanges(Arc<str>),
    /// Packets to a cluster IP with a port that no service port has.
    UnusedPort,
    /// Packets to an address of a ServiceCIDR that no Service has.
    UnusedAddress,
}

/// The sets with counters, of both layouts; those whose elements name a service port come first. Only those of endpoints have [`Counters::Endpoints`].
const SETS: &[(&str, Counters)] = &[
    ("services", Counters::Services),
    ("nodeports", Counters::Services),
    ("KUBE-SERVICES", Counters::Services),
    ("KUBE-NODEPORTS", Counters::Services),
    ("cluster-policy", Counters::Services),
    ("nodeport-cluster-policy", Counters::Services),
    ("local-policy", Counters::Services),
    ("nodeport-local-policy", Counters::Services),
    ("no-endpoints", Counters::Services),
    ("no-endpoints-external", Counters::Services),
    ("no-endpoints-nodeports", Counters::Services),
    ("lb-restricted", Counters::Services),
    ("endpoints", Counters::Endpoints),
    ("local-endpoints", Counters::Endpoints),
    ("nodeport-endpoints", Counters::Endpoints),
    ("nodeport-local-endpoints", Counters::Endpoints),
];

/// The names of the sets with counters, where so many maps share the endpoints of each kind.
#[must_use]
pub fn sets(endpoint_maps: u8) -> Vec<SetName> {
    let names = |(name, least): &(&'static str, Counters)| match least {
        Counters::Endpoints => endpoints::names(name, endpoint_maps).collect(),
        Counters::Off | Counters::Services => vec![SetName::Borrowed(*name)],
    };
    SETS.iter().flat_map(names).collect()
}

/// Gives counters to the sets that have them.
pub(super) fn add(counters: Counters, sets: &mut [Set]) {
    let counts = |set: &Set| {
        let name = endpoints::map(&set.name).unwrap_or(&set.name);
        SETS.iter().any(|(known, least)| *known == name && *least <= counters)
    };
    sets.iter_mut().filter(|set| counts(set)).for_each(|set| set.counter = true);
}

/// The label in the comment of a front.
fn service_port(comment: &Arc<str>) -> Arc<str> {
    match notes::service_port(comment) {
        label if label.len() == comment.len() => Arc::clone(comment),
        label => label.into(),
    }
}

/// What the counter of an element stands for. `port_of` gives the label of the service port whose front has this key in a dispatch map.
#[must_use]
pub fn of_element(set: &str, element: &Element, port_of: impl Fn(&str, &[u8]) -> Option<Arc<str>>) -> Option<Meaning> {
    let label = || element.comment.as_ref().map(service_port);
    let dropped = element.value == Value::Verdict(Verdict::Drop);
    match endpoints::map(set).unwrap_or(set) {
        // The fronts with an external policy Local are counted where the policy is applied.
        "services" | "nodeports" if leads_to_policy(&element.value) => None,
        "services"
        | "nodeports"
        | "KUBE-SERVICES"
        | "KUBE-NODEPORTS"
        | "cluster-policy"
        | "nodeport-cluster-policy"
        | "local-policy"
        | "nodeport-local-policy" => {
            label().map(if dropped { Meaning::NoLocalEndpoints } else { Meaning::Connections })
        }
        "no-endpoints" | "no-endpoints-external" | "no-endpoints-nodeports" => label().map(Meaning::NoEndpoints),
        "lb-restricted" => {
            let key = element.key.as_slice();
            port_of("services", key)
                .or_else(|| port_of("no-endpoints", key))
                .map(|label| Meaning::SourceRanges(service_port(&label)))
        }
        "endpoints" | "local-endpoints" => of_slot(["services", "KUBE-SERVICES"], element, port_of),
        "nodeport-endpoints" | "nodeport-local-endpoints" => of_slot(["nodeports", "KUBE-NODEPORTS"], element, port_of),
        _ => None,
    }
}

fn leads_to_policy(value: &Value) -> bool {
    let Value::Verdict(verdict) = value else { return false };
    verdict.chain().is_some_and(|chain| matches!(&**chain, "external-local" | "nodeport-external-local"))
}

/// The endpoint in a slot, whose key is that of its front and a number. The front is in the dispatch map of one of the layouts.
fn of_slot(
    dispatch: [&str; 2],
    element: &Element,
    port_of: impl Fn(&str, &[u8]) -> Option<Arc<str>>,
) -> Option<Meaning> {
    let (front, _) = element.key.as_slice().split_last_chunk::<4>()?;
    let Value::Data(endpoint) = &element.value else { return None };
    let label = dispatch.iter().find_map(|map| port_of(map, front))?;
    Some(Meaning::Endpoint(service_port(&label), socket_address(endpoint)?))
}

/// An address and a port, as the values of endpoint maps have them.
fn socket_address(data: &Data) -> Option<SocketAddr> {
    let (address, port) = data.as_slice().split_last_chunk::<4>()?;
    let address = match address.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_be_bytes([port[0], port[1]])))
}

/// What the counter of a rule stands for.
#[must_use]
pub fn of_rule(chain: &str, rule: &RuleDump) -> Option<Meaning> {
    let looks_up = |set: &str| rule.exprs.iter().filter_map(Expr::set).any(|name| &**name == set);
    let comment = || rule.comment.clone();
    match chain {
        _ if looks_up(CLUSTER_IPS) && leads_to(rule, "KUBE-REJECT") => Some(Meaning::UnusedPort),
        _ if looks_up(SERVICE_CIDRS) => Some(Meaning::UnusedAddress),
        _ if chain.starts_with("KUBE-FW") && leads_to(rule, "KUBE-PROXY-FIREWALL") => {
            comment().map(Meaning::SourceRanges)
        }
        _ if chain.starts_with("KUBE-EXT-") => comment().map(Meaning::NoLocalEndpoints),
        _ => None,
    }
}

fn leads_to(rule: &RuleDump, chain: &str) -> bool {
    let target = |expr: &Expr| match expr {
        Expr::ImmediateVerdict(verdict) => verdict.chain().cloned(),
        _ => None,
    };
    rule.exprs.iter().filter_map(target).any(|name| &*name == chain)
}

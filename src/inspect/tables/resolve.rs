//! Follows each frontend to its endpoints. Pure.
//!
//! The map element of a frontend leads to a chain whose name shows what it does (`nft/README.md`). Layout `maps`: `lb-N` chooses among N
//! endpoints; `masq-` before it stands for external traffic, `local-` for the endpoints on this node, `affinity-` for session affinity.
//! `external-local` has external policy Local. Layout `chains`: `KUBE-FW-H` leads to `KUBE-EXT-H`, and that to `KUBE-SVC-H` or
//! `KUBE-SVL-H` (H is a hash); their rules show the next chain. Endpoints are elements of maps, or chains `KUBE-SEP-H` to which these
//! chains or their maps lead.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use ipnet::IpNet;

use super::collect::{Chain, Collected, Record, Slot, Target};
use super::{Affinity, EndpointView, FrontendView, Kind, Policy, State};
use crate::traffic::added;
use rules::model::{Destination, Family, Frontend};
use rules::ruleset::kinds::{ChainKind, SetKind};
use rules::ruleset::names::{List, chain};
use rules::ruleset::notes::{EXTERNAL_IP, POLICY_LOCAL, service_port};

/// The frontends of a family's table.
pub(super) fn frontends(family: Family, mut collected: Collected) -> Vec<FrontendView> {
    let records = std::mem::take(&mut collected.frontends);
    let of_family = records.into_iter().filter(|(frontend, _)| frontend.family() == family);
    // Skip a frontend without a verdict: no packet reaches what other maps have for it.
    let known = of_family.filter(|(_, record)| record.target.is_some() || record.is_refused);
    known.map(|(frontend, record)| view(&collected, frontend, record)).collect()
}

fn view(collected: &Collected, frontend: Frontend, mut record: Record) -> FrontendView {
    let way = match record.target.take() {
        Some(Target::Chain(chain)) if chain.starts_with(chain::OF_IPTABLES_MODE) => in_chains(collected, &chain),
        Some(Target::Chain(chain)) => in_maps(&chain, &record),
        Some(Target::Drop) => Way { is_dropped: true, ends: true, policy: Some(Policy::Local), ..Way::default() },
        Some(Target::Other) | None => Way { ends: true, ..Way::default() },
    };
    let (cluster, local) = (endpoint_chains(collected, &way.cluster), endpoint_chains(collected, &way.local));
    let shares_counters = !(cluster.is_empty() && local.is_empty());
    record.cluster.extend(cluster.iter().filter_map(|chain| chain.endpoint));
    record.local.extend(local.iter().filter_map(|chain| chain.endpoint));
    let affinity = match record.learns.as_ref().filter(|_| !way.ends).and_then(|chain| collected.chain(chain)) {
        Some(chain) => affinity(collected, [chain]),
        None => affinity(collected, if cluster.is_empty() { &local } else { &cluster }.iter().copied()),
    };
    let endpoints = match way.ends {
        true => Vec::new(),
        false => endpoints(collected, frontend, &mut record, way.only_local, shares_counters),
    };
    let notes = record.comment.as_deref().unwrap_or_default();
    let is_restricted = record.is_restricted || way.sources.is_some();
    let mut sources: Vec<IpNet> = record.sources.into_iter().chain(way.sources.into_iter().flatten()).collect();
    // If a range contains the node's address, the proxy adds the frontend's own address, which is not one of the source ranges.
    sources.retain(|range| {
        Destination::Address(range.addr()) != frontend.destination || range.prefix_len() != max_len(range)
    });
    sources.sort();
    let policy = way.policy.or_else(|| notes.ends_with(POLICY_LOCAL).then_some(Policy::Local));
    FrontendView {
        service: record.comment.as_deref().map(|comment| Arc::from(service_port(comment))),
        frontend,
        kind: kind(collected, frontend, is_restricted, notes),
        state: match (record.is_refused, way.is_dropped) {
            (true, _) => Some(State::Refused),
            (false, true) => Some(State::Dropped),
            (false, false) => (way.is_known && !endpoints.is_empty()).then_some(State::Served),
        },
        // No chain shows the policy of a refused frontend. Its comment has a note if the policy is Local; a complete comment without this
        // note means Cluster.
        policy: policy.or_else(|| (record.is_refused && !is_cut(notes)).then_some(Policy::Cluster)),
        affinity,
        counted: record.counted,
        shares_counters,
        sources: is_restricted.then_some(sources),
        endpoints,
    }
}

fn max_len(range: &IpNet) -> u8 {
    if range.addr().is_ipv4() { 32 } else { 128 }
}

/// Whether a frontend's comment cannot be relied on to have its notes, which follow the name of the service port (`rules::ruleset::notes`):
/// there is no comment, or it was cut because it was too long.
fn is_cut(comment: &str) -> bool {
    comment.is_empty() || comment.ends_with("...")
}

fn kind(collected: &Collected, frontend: Frontend, is_restricted: bool, notes: &str) -> Option<Kind> {
    match frontend.destination {
        Destination::NodePort(_) => Some(Kind::NodePort),
        Destination::Address(ip) if collected.cluster_ips.contains(&ip) => Some(Kind::ClusterIP),
        Destination::Address(_) if notes.contains(EXTERNAL_IP) => Some(Kind::ExternalIP),
        Destination::Address(_) if is_restricted || !is_cut(notes) => Some(Kind::LoadBalancer),
        Destination::Address(_) => None,
    }
}

/// What the chains between a frontend and its endpoints show.
#[derive(Default)]
struct Way {
    /// Whether the chains are ones that the proxy writes. If not, it is unknown whether the endpoints behind them are used.
    is_known: bool,
    /// Whether the chains end before an endpoint is chosen.
    ends: bool,
    /// Whether connections are dropped: all of them, or those from outside the cluster.
    is_dropped: bool,
    /// Whether only endpoints on this node are used, for every client.
    only_local: bool,
    policy: Option<Policy>,
    sources: Option<Vec<IpNet>>,
    /// The chain that chooses among the endpoints for policy Cluster (layout `chains`).
    cluster: Option<Arc<str>>,
    /// The chain that chooses among the endpoints on this node (layout `chains`).
    local: Option<Arc<str>>,
}

/// Layout `maps`: the name of the chain says what it does.
fn in_maps(chain: &str, record: &Record) -> Way {
    let kind = ChainKind::of(chain);
    let by_origin = matches!(kind, Some(ChainKind::ExternalLocal(_)));
    let list = match kind {
        Some(ChainKind::Balancer { list, .. } | ChainKind::Sticky { list, .. }) => Some(list),
        _ => None,
    };
    let only_local = list == Some(List::Local);
    let is_known = by_origin || list.is_some();
    let policy = if by_origin || only_local { Policy::Local } else { Policy::Cluster };
    Way {
        is_known,
        is_dropped: by_origin && record.local_target == Some(Target::Drop),
        only_local,
        policy: is_known.then_some(policy),
        ..Way::default()
    }
}

/// The most chains to follow from a frontend to the choice of an endpoint. The proxy writes at most three (`KUBE-FW-H`, `KUBE-EXT-H`,
/// `KUBE-SVC-H`), but another program may write a loop.
const MAX_STEPS: usize = 4;

/// Layout `chains`: follows the chains from the frontend to the one that chooses an endpoint.
fn in_chains(collected: &Collected, first: &str) -> Way {
    let mut way = Way::default();
    let mut name = first;
    for _ in 0..MAX_STEPS {
        let Some(chain) = collected.chain(name) else { return way };
        match ChainKind::of(name) {
            Some(ChainKind::SourceRanges { .. }) => way.sources = Some(chain.sources.clone()),
            Some(ChainKind::External) => {
                way.local = chain.gotos.iter().find(|to| is_local(to)).cloned();
                way.is_dropped = chain.drops && way.local.is_none();
                way.policy = (way.local.is_some() || chain.drops).then_some(Policy::Local);
            }
            Some(ChainKind::ServicePort(list)) => {
                way.only_local = list == List::Local;
                *if way.only_local { &mut way.local } else { &mut way.cluster } = Some(name.into());
                way.is_known = true;
                way.policy = way.policy.or(Some(if way.only_local { Policy::Local } else { Policy::Cluster }));
                return way;
            }
            _ => {}
        }
        match chain.gotos.first() {
            Some(next) if next.starts_with(chain::OF_IPTABLES_MODE) => name = next,
            _ => return way,
        }
    }
    way
}

/// Whether a chain chooses among the endpoints on this node.
fn is_local(chain: &str) -> bool {
    ChainKind::of(chain) == Some(ChainKind::ServicePort(List::Local))
}

/// The chains of endpoints that a chain `KUBE-SVC-H` or `KUBE-SVL-H` chooses among.
fn endpoint_chains<'a>(collected: &'a Collected, chain: &Option<Arc<str>>) -> Vec<&'a Chain> {
    let Some(name) = chain else { return Vec::new() };
    let gotos = collected.chain(name).map_or(&[][..], |chain| &chain.gotos);
    let names = collected.verdict_maps.get(name).map_or(gotos, Vec::as_slice);
    let chains = names.iter().filter_map(|name| collected.chain(name));
    chains.filter(|chain| chain.endpoint.is_some()).collect()
}

/// The session affinity from chains that remember clients: the chain `learn-affinity-X`, or the chains of endpoints, each with its own set.
/// A client in the map of the endpoints on this node may be in a map of all endpoints too, so the larger number counts and not the sum.
fn affinity<'a>(collected: &Collected, chains: impl IntoIterator<Item = &'a Chain>) -> Option<Affinity> {
    // Counts each set once: with weights, `chains` may have a chain several times.
    let learns: BTreeMap<_, _> = chains.into_iter().flat_map(|chain| chain.learns.iter().cloned()).collect();
    let clients = |of_local: bool| -> u64 {
        let is_wanted = |set: &&Arc<str>| (SetKind::of(set) == Some(SetKind::Clients(List::Local))) == of_local;
        learns.keys().filter(is_wanted).filter_map(|set| collected.clients.get(set)).sum()
    };
    Some(Affinity { seconds: *learns.values().next()?, clients: clients(false).max(clients(true)) })
}

/// The endpoints of a frontend, sorted by address.
fn endpoints(
    collected: &Collected,
    frontend: Frontend,
    record: &mut Record,
    only_local: bool,
    shares_counters: bool,
) -> Vec<EndpointView> {
    let here = std::mem::take(&mut record.local);
    let mut slots: Vec<Slot> = if only_local { Vec::new() } else { std::mem::take(&mut record.cluster) };
    let local: HashSet<SocketAddr> = here.iter().map(|slot| slot.address).collect();
    let outside = shares(&here);
    let everywhere = if only_local { outside.clone() } else { shares(&slots) };
    slots.extend(here);
    slots.sort_unstable();
    // An endpoint in both lists, or with a weight, has several map elements, whose counts are added, or one chain with one count.
    slots.dedup_by(|later, first| {
        let same = later.address == first.address;
        if same && !shares_counters {
            first.counted = added(first.counted, later.counted, u64::saturating_add);
        }
        same
    });
    let is_here =
        |address: &SocketAddr| local.contains(address) || collected.local.contains(&(*address, frontend.protocol));
    let endpoint = |Slot { address, counted, .. }| EndpointView {
        address,
        local: is_here(&address),
        share: everywhere.get(&address).copied(),
        share_outside: outside.get(&address).copied().filter(|_| !only_local),
        counted,
    };
    slots.into_iter().map(endpoint).collect()
}

/// The share of each endpoint of a list in tenths of a percent; empty if all are alike.
fn shares(list: &[Slot]) -> HashMap<SocketAddr, u16> {
    // Beside a Maglev table there is one element for the few clients that find no endpoint in the table.
    let is_table = list.iter().any(|slot| slot.is_place);
    let mut counts = HashMap::default();
    list.iter().filter(|slot| slot.is_place == is_table).for_each(|slot| *counts.entry(slot.address).or_default() += 1);
    let (sum, smallest) = (counts.values().sum::<u64>(), counts.values().min().copied());
    if counts.values().max().copied() == smallest {
        return HashMap::default();
    }
    counts
        .into_iter()
        .map(|(address, count)| (address, u16::try_from((count * 1000 + sum / 2) / sum).unwrap_or_default()))
        .collect()
}

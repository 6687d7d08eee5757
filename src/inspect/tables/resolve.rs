//! Follows each front to its endpoints. Pure.
//!
//! A front's element leads to a chain whose name says what it does (`nft/README.md`). Layout `maps`: `lb-N`, with `masq-` before it for
//! external traffic, `local-` in it for the endpoints of this node, `affinity-` when clients are remembered, or `external-local`.
//! Layout `chains`: `KUBE-FW-H` to `KUBE-EXT-H` to `KUBE-SVC-H` or `KUBE-SVL-H` to `KUBE-SEP-H`, which are found by their rules.

use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::HashSet;
use ipnet::IpNet;

use super::collect::{Collected, Record, Rest, Slot, Target};
use super::{Affinity, EndpointView, FrontView, Kind, Policy, State};
use crate::model::{Destination, Family, Front};
use crate::ruleset::notes::{EXTERNAL_IP, POLICY_LOCAL, service_port};

/// The fronts of a family's table.
pub(super) fn fronts(family: Family, mut collected: Collected) -> Vec<FrontView> {
    let records = std::mem::take(&mut collected.fronts);
    let of_family = records.into_iter().filter(|(front, _)| front.family() == family);
    // Without a verdict nothing leads to what the other maps hold for it.
    let known = of_family.filter(|(_, record)| record.target.is_some() || record.is_refused);
    known.map(|(front, record)| view(&collected, front, record)).collect()
}

fn view(collected: &Collected, front: Front, mut record: Record) -> FrontView {
    let path = match record.target.take() {
        Some(Target::Chain(chain)) => follow(collected, &chain, front, &mut record),
        Some(Target::Drop) => Path { state: Some(State::Dropped), policy: Some(Policy::Local), ..Path::default() },
        Some(Target::Other) | None => Path::default(),
    };
    let notes = record.comment.as_deref().unwrap_or_default();
    let is_restricted = record.is_restricted || path.sources.is_some();
    let mut sources: Vec<IpNet> = record.sources.into_iter().chain(path.sources.into_iter().flatten()).collect();
    // The proxy adds the front's own address where a range holds the node's.
    sources.retain(|range| {
        Destination::Address(range.addr()) != front.destination || range.prefix_len() != max_len(range)
    });
    sources.sort();
    let policy = path.policy.or_else(|| notes.ends_with(POLICY_LOCAL).then_some(Policy::Local));
    FrontView {
        service: record.comment.as_deref().map(|comment| Arc::from(service_port(comment))),
        front,
        kind: kind(collected, front, is_restricted, notes),
        state: if record.is_refused { Some(State::Refused) } else { path.state },
        // A refused front leads nowhere; the proxy notes the policy when it is Local.
        policy: policy.or_else(|| (record.is_refused && !is_cut(notes)).then_some(Policy::Cluster)),
        affinity: path.affinity,
        counted: record.counted,
        shares_counters: path.shares_counters,
        sources: is_restricted.then_some(sources),
        endpoints: path.endpoints,
    }
}

fn max_len(range: &IpNet) -> u8 {
    if range.addr().is_ipv4() { 32 } else { 128 }
}

/// Whether the notes behind a name are missing, because the comment was too long.
fn is_cut(comment: &str) -> bool {
    comment.is_empty() || comment.ends_with("...")
}

fn kind(collected: &Collected, front: Front, is_restricted: bool, notes: &str) -> Option<Kind> {
    match front.destination {
        Destination::NodePort(_) => Some(Kind::NodePort),
        Destination::Address(ip) if collected.cluster_ips.contains(&ip) => Some(Kind::ClusterIP),
        Destination::Address(_) if notes.contains(EXTERNAL_IP) => Some(Kind::ExternalIP),
        Destination::Address(_) if is_restricted || !is_cut(notes) => Some(Kind::LoadBalancer),
        Destination::Address(_) => None,
    }
}

/// What is found on the way of a front.
#[derive(Default)]
struct Path {
    state: Option<State>,
    policy: Option<Policy>,
    affinity: Option<Affinity>,
    sources: Option<Vec<IpNet>>,
    shares_counters: bool,
    endpoints: Vec<EndpointView>,
    /// The addresses of `endpoints`.
    seen: HashSet<SocketAddr>,
}

fn follow(collected: &Collected, chain: &str, front: Front, record: &mut Record) -> Path {
    if chain.starts_with("KUBE-") { in_chains(collected, chain) } else { in_maps(collected, chain, front, record) }
}

/// Layout `maps`: the name of the chain says what it does, the endpoints are elements.
fn in_maps(collected: &Collected, chain: &str, front: Front, record: &mut Record) -> Path {
    let by_origin = chain.ends_with("external-local");
    let name = chain.trim_start_matches("nodeport-").trim_start_matches("masq-");
    let is_local = name.starts_with("lb-local-") || name.starts_with("affinity-local-");
    let is_known = by_origin || name.starts_with("lb-") || name.starts_with("affinity-");
    // Behind an unknown chain the slots may still be used; whether they are is not known.
    let policy = if by_origin || is_local { Policy::Local } else { Policy::Cluster };
    let is_dropped = by_origin && record.local_target == Some(Target::Drop);
    let here = std::mem::take(&mut record.local);
    let mut slots: Vec<Slot> = if is_local { Vec::new() } else { std::mem::take(&mut record.cluster) };
    let local: HashSet<SocketAddr> = here.iter().map(|(address, _)| *address).collect();
    slots.extend(here);
    slots.sort_unstable();
    // An endpoint of both lists has two slots.
    slots.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 = first.1.zip(later.1).map(|(a, b)| a + b).or(first.1).or(later.1);
        }
        same
    });
    let is_here =
        |address: &SocketAddr| local.contains(address) || collected.local.contains(&(*address, front.protocol));
    let endpoint = |(address, counted)| EndpointView { local: is_here(&address), address, counted };
    let endpoints: Vec<EndpointView> = slots.into_iter().map(endpoint).collect();
    let leads = if is_dropped { Some(State::Dropped) } else { (!endpoints.is_empty()).then_some(State::Served) };
    let rules = record.learns.as_ref().and_then(|chain| collected.chain(chain)).and_then(|chain| chain.rest.as_deref());
    Path {
        state: leads.filter(|_| is_known),
        policy: is_known.then_some(policy),
        affinity: rules.and_then(|rest| affinity(collected, rest)),
        endpoints,
        ..Path::default()
    }
}

/// The affinity that a chain of layout `maps` learns for: its maps for the cluster list and for the local list have the same clients.
fn affinity(collected: &Collected, rest: &Rest) -> Option<Affinity> {
    let (_, seconds) = rest.learns.first()?;
    let clients = |is_local: bool| -> u64 {
        let maps = rest.learns.iter().filter(|(map, _)| map.starts_with("affinity-local-") == is_local);
        maps.filter_map(|(map, _)| collected.clients.get(map)).sum()
    };
    Some(Affinity { seconds: *seconds, clients: clients(false).max(clients(true)) })
}

/// The largest number of chains from a front to the choice of an endpoint: `KUBE-FW-H`, `KUBE-EXT-H`, `KUBE-SVC-H`.
const MAX_STEPS: usize = 4;

/// Layout `chains`.
fn in_chains(collected: &Collected, first: &str) -> Path {
    let mut path = Path { shares_counters: true, ..Path::default() };
    let empty = Rest::default();
    let mut name = first;
    for _ in 0..MAX_STEPS {
        let Some(chain) = collected.chain(name) else { return path };
        let rest = chain.rest.as_deref().unwrap_or(&empty);
        let next = rest.gotos.first();
        if name.starts_with("KUBE-FW") {
            path.sources = Some(rest.sources.clone());
        } else if name.starts_with("KUBE-EXT-") {
            let local = rest.gotos.iter().find(|to| to.starts_with("KUBE-SVL-"));
            if local.is_some() || rest.drops {
                path.policy = Some(Policy::Local);
                path.state = Some(if local.is_some() { State::Served } else { State::Dropped });
                if let Some(local) = local {
                    choose(collected, local, true, &mut path);
                }
            }
        } else if name.starts_with("KUBE-SVC-") || name.starts_with("KUBE-SVL-") {
            let is_local = name.starts_with("KUBE-SVL-");
            choose(collected, name, is_local, &mut path);
            path.policy = path.policy.or(Some(if is_local { Policy::Local } else { Policy::Cluster }));
            path.state = path.state.or((!path.endpoints.is_empty()).then_some(State::Served));
            return path;
        }
        match next {
            Some(next) if next.starts_with("KUBE-") => name = next,
            _ => return path,
        }
    }
    path
}

/// Adds the endpoints that a chain `KUBE-SVC-H` or `KUBE-SVL-H` chooses among, and the clients that they remember.
fn choose(collected: &Collected, name: &str, is_local: bool, path: &mut Path) {
    let gotos = collected.chain(name).and_then(|chain| chain.rest.as_deref()).map_or(&[][..], |rest| &rest.gotos);
    let choices = collected.choices.get(name).map_or(&[][..], Vec::as_slice);
    let lone = gotos.iter().filter(|_| choices.is_empty()).filter_map(|to| collected.chain(to));
    for chain in choices.iter().map(|number| collected.chain_at(*number)).chain(lone) {
        let Some(address) = chain.endpoint else { continue };
        if !path.seen.insert(address) {
            continue;
        }
        path.endpoints.push(EndpointView { address, local: is_local || chain.marks, counted: chain.counted });
        if let Some((set, seconds)) = chain.rest.as_deref().and_then(|rest| rest.learns.first()) {
            let known = path.affinity.get_or_insert(Affinity { seconds: *seconds, clients: 0 });
            known.clients += collected.clients.get(set).copied().unwrap_or(0);
        }
    }
    path.endpoints.sort_unstable();
}

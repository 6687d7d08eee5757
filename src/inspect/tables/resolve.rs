//! Follows each front to its endpoints. Pure.
//!
//! A front's element leads to a chain whose name says what it does (`nft/README.md`). Layout `maps`: `lb-N`, with `masq-` before it for
//! external traffic, `local-` in it for the endpoints of this node, `affinity-` when clients are remembered, or `external-local`.
//! Layout `chains`: `KUBE-FW-H` to `KUBE-EXT-H` to `KUBE-SVC-H` or `KUBE-SVL-H`, which are found by their rules. The endpoints of a front
//! are elements in either layout.

use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::HashSet;
use ipnet::IpNet;

use super::collect::{Chain, Collected, Record, Slot, Target};
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
    let way = match record.target.take() {
        Some(Target::Chain(chain)) if chain.starts_with("KUBE-") => in_chains(collected, &chain),
        Some(Target::Chain(chain)) => in_maps(&chain, &record),
        Some(Target::Drop) => Way { is_dropped: true, ends: true, policy: Some(Policy::Local), ..Way::default() },
        Some(Target::Other) | None => Way { ends: true, ..Way::default() },
    };
    let endpoints = if way.ends { Vec::new() } else { endpoints(collected, front, &mut record, way.only_local) };
    let learns = record.learns.as_ref().filter(|_| !way.ends).and_then(|chain| collected.chain(chain));
    let notes = record.comment.as_deref().unwrap_or_default();
    let is_restricted = record.is_restricted || way.sources.is_some();
    let mut sources: Vec<IpNet> = record.sources.into_iter().chain(way.sources.into_iter().flatten()).collect();
    // The proxy adds the front's own address where a range holds the node's.
    sources.retain(|range| {
        Destination::Address(range.addr()) != front.destination || range.prefix_len() != max_len(range)
    });
    sources.sort();
    let policy = way.policy.or_else(|| notes.ends_with(POLICY_LOCAL).then_some(Policy::Local));
    FrontView {
        service: record.comment.as_deref().map(|comment| Arc::from(service_port(comment))),
        front,
        kind: kind(collected, front, is_restricted, notes),
        state: match (record.is_refused, way.is_dropped) {
            (true, _) => Some(State::Refused),
            (false, true) => Some(State::Dropped),
            (false, false) => (way.is_known && !endpoints.is_empty()).then_some(State::Served),
        },
        // A refused front leads nowhere; the proxy notes the policy when it is Local.
        policy: policy.or_else(|| (record.is_refused && !is_cut(notes)).then_some(Policy::Cluster)),
        affinity: learns.and_then(|chain| affinity(collected, chain)),
        counted: record.counted,
        sources: is_restricted.then_some(sources),
        endpoints,
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

/// What is found on the way from a front to its endpoints.
#[derive(Default)]
struct Way {
    /// Whether the proxy writes such a way. The endpoints behind another one may still be used; whether they are is not known.
    is_known: bool,
    /// Whether it ends before an endpoint is chosen.
    ends: bool,
    /// Whether clients outside are dropped.
    is_dropped: bool,
    /// Whether only endpoints on this node are used, whatever the client.
    only_local: bool,
    policy: Option<Policy>,
    sources: Option<Vec<IpNet>>,
}

/// Layout `maps`: the name of the chain says what it does.
fn in_maps(chain: &str, record: &Record) -> Way {
    let by_origin = chain.ends_with("external-local");
    let name = chain.trim_start_matches("nodeport-").trim_start_matches("masq-");
    let only_local = name.starts_with("lb-local-") || name.starts_with("affinity-local-");
    let is_known = by_origin || name.starts_with("lb-") || name.starts_with("affinity-");
    let policy = if by_origin || only_local { Policy::Local } else { Policy::Cluster };
    Way {
        is_known,
        is_dropped: by_origin && record.local_target == Some(Target::Drop),
        only_local,
        policy: is_known.then_some(policy),
        ..Way::default()
    }
}

/// The largest number of chains from a front to the choice of an endpoint: `KUBE-FW-H`, `KUBE-EXT-H`, `KUBE-SVC-H`.
const MAX_STEPS: usize = 4;

/// Layout `chains`.
fn in_chains(collected: &Collected, first: &str) -> Way {
    let mut way = Way::default();
    let mut name = first;
    for _ in 0..MAX_STEPS {
        let Some(chain) = collected.chain(name) else { return way };
        if name.starts_with("KUBE-FW") {
            way.sources = Some(chain.sources.clone());
        } else if name.starts_with("KUBE-EXT-") {
            let local = chain.gotos.iter().any(|to| to.starts_with("KUBE-SVL-"));
            way.is_dropped = chain.drops && !local;
            way.policy = (local || chain.drops).then_some(Policy::Local);
        } else if name.starts_with("KUBE-SVC-") || name.starts_with("KUBE-SVL-") {
            way.only_local = name.starts_with("KUBE-SVL-");
            way.is_known = true;
            way.policy = way.policy.or(Some(if way.only_local { Policy::Local } else { Policy::Cluster }));
            return way;
        }
        match chain.gotos.first() {
            Some(next) if next.starts_with("KUBE-") => name = next,
            _ => return way,
        }
    }
    way
}

/// The endpoints of a front, sorted by address.
fn endpoints(collected: &Collected, front: Front, record: &mut Record, only_local: bool) -> Vec<EndpointView> {
    let here = std::mem::take(&mut record.local);
    let mut slots: Vec<Slot> = if only_local { Vec::new() } else { std::mem::take(&mut record.cluster) };
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
    slots.into_iter().map(endpoint).collect()
}

/// The affinity that a chain learns for: its maps for the cluster list and for the local list have the same clients.
fn affinity(collected: &Collected, chain: &Chain) -> Option<Affinity> {
    let (_, seconds) = chain.learns.first()?;
    let clients = |is_local: bool| -> u64 {
        let maps = chain.learns.iter().filter(|(map, _)| map.starts_with("affinity-local-") == is_local);
        maps.filter_map(|(map, _)| collected.clients.get(map)).sum()
    };
    Some(Affinity { seconds: *seconds, clients: clients(false).max(clients(true)) })
}

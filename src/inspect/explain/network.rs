//! What the network around the rules does with a packet: the source that masquerading gives it, and whether its answers come back.
//!
//! Takes the paths of a packet ([`Walk`]) and this host; adds to the [`Explanation`] that was made from the rules.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nft::machine::{Branch, Effect, Link, Walk};

use super::kernel::ThisHost;
use super::verdict::{Explanation, MasqueradeSource};
use node::kernel::bridges;
use rules::model::Family;

/// Adds the sources of masqueraded packets, and the endpoints whose answers pass a bridge and no rule.
pub(super) fn add(explanation: &mut Explanation, walk: &Walk, host: &mut ThisHost) {
    let reached = walk.branches.iter().filter(|branch| branch.fate.is_none());
    let reached: Vec<(&Branch, SocketAddr)> = reached.filter_map(|branch| Some((branch, branch.endpoint?))).collect();
    let mut told = BTreeSet::new();
    for (branch, to) in reached.iter().filter(|(branch, to)| branch.masqueraded && told.insert(*to)) {
        let Some((source, reason)) = source(branch, walk, host) else { continue };
        let known = &mut explanation.masquerade_sources;
        match known.iter_mut().find(|known| (known.source, &known.reason) == (source, &reason)) {
            Some(known) => known.endpoints.push(*to),
            None => known.push(MasqueradeSource { source, reason, endpoints: vec![*to] }),
        }
    }
    let mut bridged = reached.iter().filter_map(|(branch, to)| Some((bridge(branch)?, to)));
    if let Some((bridge, to)) = bridged.next()
        && bridges::bypasses_rules(bridge, Family::of(to.ip()))
    {
        let others = if bridged.next().is_some() { " and others" } else { "" };
        let sysctl = bridges::sysctl(Family::of(to.ip()));
        explanation.reason += &format!(
            ", but the answers of {to}{others} are not translated back: they go over the bridge {bridge} past the rules, because {sysctl} is \
             not 1 (modprobe br_netfilter, sysctl -w {sysctl}=1)"
        );
        explanation.is_wrong = true;
    }
}

/// The source of a masqueraded packet when it leaves, and why it is this one.
fn source(branch: &Branch, walk: &Walk, host: &mut ThisHost) -> Option<(IpAddr, String)> {
    if let Some(known) = walk.known {
        return Some((known.source, "as in the first packet of the connection".to_owned()));
    }
    let steps = branch.steps.iter().rev();
    steps.into_iter().find_map(|step| {
        step.effects.iter().find_map(|effect| match effect {
            Effect::Masquerade => host.masqueraded(&step.packet),
            Effect::SourceTo(source) => Some((*source, "which a rule of another program gives".to_owned())),
            _ => None,
        })
    })
}

/// The interface through which the packet both arrives and leaves with its own source. If it is a bridge, the answers pass only the bridge.
fn bridge(branch: &Branch) -> Option<&str> {
    let packet = &branch.packet;
    let Link::Known(_, name) = &packet.input else { return None };
    (!branch.masqueraded && packet.input == packet.output).then_some(name)
}

//! Explains a packet by the rules that manifests lead to, without a kernel and without root.
//!
//! Takes the tables as values and the addresses of the node; implements [`Ruleset`], [`Host`] and [`Routes`] for them. Pure. The tables are
//! read as if the kernel listed them, so that the verdict is the one on a node with these rules and no rules of other programs. The output
//! interface is unknown, and without `--iface` the input interface too: a rule that depends on an unknown one makes the verdict unknown.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Result, bail};
use nft::decode::{ChainHead, RuleHead, SetHead};
use nft::{Data, ElementRef, TableDump, TableName};

use super::kernel::among;
use super::machine::{Host, Lookup, Ruleset};
use super::packet::{Link, Packet};
use super::path::{Next, Routes, walk};
use super::place::{self, Pair};
use super::verdict::{self, Explanation, Verdict};
use super::{Args, around};
use node::kernel::routes;
use rules::model::Frontend;
use rules::ruleset::reading;

/// The node that manifests describe, with the tables that a proxy would write on it.
#[derive(Clone, Debug)]
pub struct ManifestNode {
    /// The tables of the proxy, one for each family.
    pub tables: Vec<TableDump>,
    /// The frontends with a cluster IP, each after its service port `namespace/name:port`.
    pub cluster_ips: Vec<(Arc<str>, Frontend)>,
    /// The addresses of the node, without those of `lo`.
    pub addresses: Vec<IpAddr>,
    /// Whether the proxy itself serves node ports on loopback addresses.
    pub serves_localhost: bool,
}

/// Explains the first packet of a connection.
///
/// # Errors
/// When the arguments contradict each other or do not fit the node.
pub(super) fn answer(args: &Args, node: &ManifestNode) -> Result<(Packet, Explanation)> {
    let Pair { source: from, target: to, .. } = place::resolve_offline(&args.from, &args.to, &node.cluster_ips)?;
    let mut host = node;
    let is_own = host.address_type(from.address)? == routes::LOCAL;
    let input = match &args.iface {
        Some(name) if is_own => bail!(super::arrives_nowhere(from.address, name)),
        Some(name) => Link::Known(if name == "lo" { LOOPBACK } else { LOOPBACK + 1 }, name.as_str().into()),
        None if is_own => Link::None,
        None => Link::Unknown,
    };
    let packet = super::first_packet((from, to), input);
    let of_family = |table: &&TableDump| table.table.name.family == super::family(packet.source);
    let Some(table) = node.tables.iter().find(of_family) else {
        bail!("the manifests lead to no table for packets to {}", to.address)
    };
    let (name, mut rules) = (&table.table.name, Rules(table));
    let walk = walk(packet.clone(), is_own, None, &mut rules, &mut host)?;
    let owner = around::owner(&packet, name, &mut rules)?;
    let mut explanation = verdict::explain(&walk, &packet, owner.as_deref());
    let on_loopback = |explanation: &mut Explanation, packet: &Packet, service: &str| {
        let (port, target) = (packet.port, packet.target());
        explanation.reason = if node.serves_localhost {
            explanation.verdict = Verdict::Proxied;
            format!(
                "{service} has node port {port}; kube-proxy listens on {target} and connects to one of its endpoints"
            )
        } else {
            format!("{service} has node port {port}, but no rule serves node ports on loopback addresses")
        };
    };
    around::correct(&mut explanation, &packet, name, false, (&mut rules, &mut host), on_loopback)?;
    if explanation.verdict == Verdict::Unknown && packet.input == Link::Unknown {
        explanation.warnings.push("the interface at which the packet arrives is not known: give --iface".to_owned());
    }
    Ok((packet, explanation))
}

/// The index of `lo`.
const LOOPBACK: u32 = 1;

/// The rules for packets of one family.
struct Rules<'a>(&'a TableDump);

impl Ruleset for Rules<'_> {
    fn base_chains(&mut self) -> Result<Vec<ChainHead>> {
        let chains = self.0.chains.values().filter(|(chain, _)| chain.base.is_some());
        Ok(chains.map(|(chain, _)| ChainHead::of(&self.0.table.name, chain)).collect())
    }

    fn rules(&mut self, _: &TableName, chain: &str) -> Result<Arc<[RuleHead]>> {
        let rules = self.0.chains.get(chain).into_iter().flat_map(|(_, rules)| rules);
        Ok(rules.map(|rule| RuleHead { handle: 0, rule: rule.clone() }).collect())
    }

    fn find(&mut self, _: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup> {
        let Some((set, elements)) = self.0.sets.get(set) else { return Ok(Lookup::Missing) };
        let head = SetHead::of(set);
        let Some(key) = key.get(..head.key_len).and_then(Data::from_bytes) else {
            bail!("set {} has keys that are too long", set.name)
        };
        Ok(among(&head, elements.iter().map(ElementRef::element), &key, unknown & ((1 << key.len()) - 1)))
    }

    fn addresses(&mut self, _: &TableName, set: &str) -> Result<Vec<IpAddr>> {
        let elements = self.0.sets.get(set).into_iter().flat_map(|(_, elements)| elements);
        Ok(elements.filter_map(|element| reading::address(element.key())).collect())
    }
}

impl Host for &ManifestNode {
    fn address_type(&mut self, address: IpAddr) -> Result<u8> {
        let is_own = address.is_loopback() || self.addresses.contains(&address);
        Ok(if is_own { routes::LOCAL } else { routes::UNICAST })
    }
}

impl Routes for &ManifestNode {
    fn next(&mut self, packet: &Packet) -> Result<Next> {
        let is_here = self.address_type(packet.destination)? == routes::LOCAL;
        Ok(if is_here { Next::Here } else { Next::Elsewhere(Link::Unknown) })
    }

    fn loopback(&mut self) -> Result<Link> {
        Ok(Link::Known(LOOPBACK, "lo".into()))
    }
}

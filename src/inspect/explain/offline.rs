//! Explains a packet by the rules that manifests lead to, without a kernel and without root.
//!
//! Takes the tables as values and the addresses of the node; implements [`Host`] and [`Routes`] for them. Pure. The tables are
//! read as if the kernel listed them, so that the verdict is the one on a node with these rules and no rules of other programs. Of packets
//! that leave the node the output interface is unknown, and of packets that arrive without `--iface` the input interface is. A rule that
//! depends on an unknown interface can make the verdict unknown.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Result, bail};
use nft::TableDump;
use nft::machine::{Host, Link, Listed, Next, Packet, Routes, walk};

use super::around::{self, Known};
use super::localhost::{Listener, Program};
use super::place::{self, FromArg, Pair, ToArg};
use super::verdict::{self, Explanation, Verdict};
use crate::running::Problem;
use node::kernel::routes;
use rules::model::Frontend;

/// The node that manifests describe, with the tables that a proxy would write on it.
#[derive(Clone, Debug)]
pub struct ManifestNode {
    /// The tables of the proxy, at most one for each family.
    pub tables: Vec<TableDump>,
    /// The frontends with a cluster IP, each after its service port `namespace/name:port`.
    pub cluster_ips: Vec<(Arc<str>, Frontend)>,
    /// The addresses of pods, each after its `namespace/name`.
    pub pods: Vec<(String, IpAddr)>,
    /// The addresses of the node, without those of `lo`.
    pub addresses: Vec<IpAddr>,
    /// Whether the proxy itself serves node ports on loopback addresses.
    pub serves_localhost: bool,
    /// The problems that the proxy would report.
    pub problems: Vec<Problem>,
}

/// Finds the addresses of both arguments, as [`place::resolve`] does, among the cluster IPs and pods of manifests.
///
/// # Errors
/// When a name is unknown or stands for several ports, or when the families differ.
pub(super) fn resolve(from: &FromArg, to: &ToArg, node: &ManifestNode) -> Result<Pair> {
    let cluster_ips: Vec<_> = node.cluster_ips.iter().map(|(service, frontend)| (&**service, *frontend)).collect();
    let pods = |pod: &str| Ok(node.pods.iter().filter(|(name, _)| name == pod).map(|(_, ip)| *ip).collect());
    place::named(from, to, |name, protocol| place::targets(&cluster_ips, name, protocol), pods)
}

/// Explains the first packet of a connection.
///
/// # Errors
/// When the arguments contradict each other or do not fit the node.
pub(super) fn answer(pair: &Pair, iface: Option<&str>, node: &ManifestNode) -> Result<(Packet, Explanation)> {
    let mut host = node;
    let is_own = host.address_type(pair.source.address) == routes::LOCAL;
    let input = match iface {
        Some(name) if is_own => bail!(super::arrives_nowhere(pair.source.address, name)),
        Some(name) => Link::Known(if name == "lo" { LOOPBACK } else { LOOPBACK + 1 }, name.into()),
        None if is_own => Link::None,
        None => Link::Unknown,
    };
    let packet = super::first_packet(pair, input);
    let of_family = |table: &&TableDump| table.table.name.family == super::family(packet.source);
    let Some(table) = node.tables.iter().find(of_family) else {
        bail!("the manifests lead to no table for packets to {}", packet.destination)
    };
    let (table, mut rules) = (&table.table.name, Listed(table));
    let walk = walk(packet.clone(), None, &mut rules, &mut host)?;
    let owner = around::owner(&packet, table, &mut rules)?;
    let mut explanation = verdict::explain(&walk, &packet, owner.as_deref());
    let known = Known { table, is_dormant: false, problems: &node.problems, asked: pair.service.as_deref() };
    let listener = |address| node.serves_localhost.then(|| Listener { address, program: Some(Program::kube_proxy()) });
    around::correct(&mut explanation, &packet, known, (&mut rules, &mut host), listener)?;
    if explanation.verdict == Verdict::Unknown && packet.input == Link::Unknown {
        explanation.warnings.push("the interface at which the packet arrives is not known: give --iface".to_owned());
    }
    Ok((packet, explanation))
}

/// The index of `lo`.
const LOOPBACK: u32 = 1;

impl Host for &ManifestNode {
    fn address_type(&mut self, address: IpAddr) -> u8 {
        let is_own = address.is_loopback() || self.addresses.contains(&address);
        if is_own { routes::LOCAL } else { routes::UNICAST }
    }
}

impl Routes for &ManifestNode {
    fn next(&mut self, packet: &Packet) -> Next {
        let is_here = self.address_type(packet.destination) == routes::LOCAL;
        if is_here { Next::Here } else { Next::Elsewhere(Link::Unknown) }
    }

    fn loopback(&mut self) -> Link {
        Link::Known(LOOPBACK, "lo".into())
    }
}

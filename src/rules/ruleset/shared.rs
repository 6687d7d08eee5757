//! Code that all ruleset layouts share: the packet fields of keys, the node's elements, and matches of a packet's origin and destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use nft::expr::FibAddress;
use nft::statement::CtBit;
use nft::{
    BaseChain, Chain, ChainType, Data, DataType, Element, Field, Hook, Operand, Rule, Set, SetFlags, Statement, Types,
    Verdict,
};

use super::names::{FrontendType, set};
use super::{LocalTraffic, NodeFacts, NodePorts, Settings};
use crate::model::{Family, Protocol};
use crate::table::{ChainContent, ServiceObjects};

/// The standard netfilter priorities. DNAT and masquerading have the priorities that upstream kube-proxy documents (F7).
pub(super) mod priority {
    pub(in crate::ruleset) const DSTNAT: i32 = -100;
    pub(in crate::ruleset) const FILTER: i32 = 0;
    pub(in crate::ruleset) const SRCNAT: i32 = 100;
}

/// The packet fields and the type that differ between IPv4 and IPv6.
pub(super) struct Fields {
    pub(super) source: Field,
    pub(super) destination: Field,
    pub(super) address: DataType,
}

impl Fields {
    pub(super) const fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self { source: Field::IpSaddr, destination: Field::IpDaddr, address: DataType::Ipv4Addr },
            Family::V6 => Self { source: Field::Ip6Saddr, destination: Field::Ip6Daddr, address: DataType::Ipv6Addr },
        }
    }

    /// The key of frontends with an address.
    pub(super) fn frontend(&self) -> Vec<Field> {
        vec![self.destination, Field::L4Proto, Field::ThDport]
    }

    /// The key of frontends of a type.
    pub(super) fn of_type(&self, frontend_type: FrontendType) -> Vec<Field> {
        match frontend_type {
            FrontendType::Address => self.frontend(),
            FrontendType::NodePort => self.node_port(),
        }
    }

    /// The key of node ports.
    pub(super) fn node_port(&self) -> Vec<Field> {
        vec![Field::L4Proto, Field::ThDport]
    }
}

/// Matches packets that an endpoint sends to itself through a Service, after DNAT (D10).
pub(super) fn from_itself(fields: &Fields) -> [Statement; 2] {
    let pair = vec![fields.source, fields.destination, Field::L4Proto, Field::ThDport];
    [Statement::CtBit(CtBit::StatusDnat), Statement::Match(pair, Operand::InSet(set::HAIRPIN.into()))]
}

/// Matches marked packets that were translated, and clears the mark, which a tunnel device may keep: the outer packet would be masqueraded
/// too (D9). A packet that was not translated has the mark from another program, which means something else by it.
pub(super) fn marked(mask: u32) -> [Statement; 3] {
    [Statement::MarkBits { mask, set: true }, Statement::CtBit(CtBit::StatusDnat), Statement::ClearMarkBits(mask)]
}

/// Matches packets of a protocol.
pub(super) fn is_protocol(protocol: Protocol) -> Statement {
    Statement::Match(vec![Field::L4Proto], Operand::Is(Data::from(protocol.number())))
}

pub(super) fn jump(target: &str) -> Statement {
    Statement::Verdict(Verdict::Jump(target.into()))
}

pub(super) fn goto(target: &str) -> Statement {
    Statement::Verdict(Verdict::Goto(target.into()))
}

/// A base chain: the kernel calls it at a hook.
pub(super) fn base(
    name: &str,
    kind: ChainType,
    hook: Hook,
    priority: i32,
    comment: &str,
    rules: Vec<Rule>,
) -> ChainContent {
    let base = Some(BaseChain { kind, hook, priority });
    ChainContent { chain: Chain { name: name.into(), base, comment: Some(comment.into()) }, rules }
}

/// A regular chain: packets come to it from rules and map elements of other chains.
pub(super) fn regular(name: &str, text: &str, rules: Vec<Rule>) -> ChainContent {
    let comment = Some(comment(&text.into()));
    ChainContent { chain: Chain { name: name.into(), base: None, comment }, rules }
}

/// Puts a rule in front of the others of these base chains.
pub(super) fn lead(chains: &mut [ChainContent], from: [&str; 2], rule: &Rule) {
    let entered = chains.iter_mut().filter(|content| from.contains(&&*content.chain.name));
    entered.for_each(|content| content.rules.insert(0, rule.clone()));
}

/// Comments of chains and sets that several ruleset layouts have. The kernel cannot change a comment, so that a chain or set with another one
/// could not stay where the layout changes.
pub(super) mod purpose {
    pub(in crate::ruleset) const PREROUTING: &str = "New connections that arrive: to which endpoint";
    pub(in crate::ruleset) const OUTPUT: &str = "New connections of this host: to which endpoint";
    pub(in crate::ruleset) const POSTROUTING: &str = "New connections that leave: masquerading";
    pub(in crate::ruleset) const FILTER_INPUT: &str = "New connections to this host that no endpoint serves";
    pub(in crate::ruleset) const FILTER_FORWARD: &str = "New connections to elsewhere that no endpoint serves";
    pub(in crate::ruleset) const FILTER_OUTPUT: &str = "New connections of this host that no endpoint serves";
    pub(in crate::ruleset) const SERVICES: &str = "Service ports by address, then by node port";
    pub(in crate::ruleset) const NODEPORTS: &str = "Service ports by node port";
    pub(in crate::ruleset) const MARK_MASQ: &str = "Marks what is to be masqueraded";
    pub(in crate::ruleset) const REJECT: &str = "Nothing serves this port";
    pub(in crate::ruleset) const SERVICES_FILTER: &str =
        "Refuses unused ports of cluster IPs, drops unused cluster IPs";
    pub(in crate::ruleset) const NO_ENDPOINTS: &str = "Frontend without endpoints";
}

/// Matches packets from local pods, or if `is_local` is false, all other packets (I1 to I3).
pub(super) fn local_pod(fields: &Fields, local: &LocalTraffic, is_local: bool) -> Statement {
    match local {
        LocalTraffic::Source(range) => {
            let (network, len) = (range.network(), range.prefix_len());
            let operand = if is_local { Operand::InPrefix(network, len) } else { Operand::NotInPrefix(network, len) };
            Statement::Match(vec![fields.source], operand)
        }
        LocalTraffic::Interface(name) => {
            let name = interface(name);
            let operand = if is_local { Operand::Is(name) } else { Operand::IsNot(name) };
            Statement::Match(vec![Field::IifName], operand)
        }
        LocalTraffic::InterfacePrefix(prefix) => {
            let prefix = Arc::clone(prefix);
            let operand = if is_local { Operand::StartsWith(prefix) } else { Operand::StartsNotWith(prefix) };
            Statement::Match(vec![Field::IifName], operand)
        }
    }
}

/// Matches packets to the addresses that accept node ports (D19), which never include loopback (D20).
pub(super) fn to_node_port_address(settings: &Settings) -> Vec<Statement> {
    match settings.node_ports {
        NodePorts::Listed => vec![match_destination(settings, Operand::InSet(set::NODEPORT_ADDRESSES.into()))],
        NodePorts::Everywhere => {
            let (loopback, len) = loopback(settings.family);
            let elsewhere = match_destination(settings, Operand::NotInPrefix(loopback, len));
            vec![elsewhere, Statement::FibLocal(FibAddress::Destination)]
        }
    }
}

/// Matches packets to the loopback addresses of a family.
pub(super) fn to_loopback(family: Family) -> Statement {
    let (network, len) = loopback(family);
    Statement::Match(vec![Fields::of(family).destination], Operand::InPrefix(network, len))
}

fn loopback(family: Family) -> (IpAddr, u8) {
    match family {
        Family::V4 => (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
        Family::V6 => (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    }
}

fn match_destination(settings: &Settings, operand: Operand) -> Statement {
    Statement::Match(vec![Fields::of(settings.family).destination], operand)
}

/// An interface name as `iifname` loads it: sixteen bytes, padded with zeros, of which a name has at most fifteen.
fn interface(name: &str) -> nft::Data {
    let mut bytes = [0; 16];
    let len = name.len().min(15);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    nft::Data::from_bytes(&bytes).expect("sixteen bytes")
}

/// The elements for this node's addresses and the ServiceCIDRs.
pub(super) fn node(settings: &Settings, facts: &NodeFacts) -> ServiceObjects {
    let mut objects = ServiceObjects::default();
    let of_family = |ip: &IpAddr| Family::of(*ip) == settings.family;
    let addresses = facts.node_port_addresses.iter().filter(|ip| of_family(ip));
    objects.extend(set::NODEPORT_ADDRESSES, addresses.map(|ip| Element::new((*ip).into())));
    let ranges: Vec<IpNet> = facts.service_cidrs.iter().copied().filter(|range| of_family(&range.addr())).collect();
    // Aggregated, because the kernel refuses overlapping ranges in one set.
    objects.extend(set::SERVICE_CIDRS, IpNet::aggregate(&ranges).iter().map(range));
    objects
}

fn range(range: &IpNet) -> Element {
    Element { key_end: Some(Box::new(range.broadcast().into())), ..Element::new(range.network().into()) }
}

/// Cuts a text to the length that nft allows for a comment; names of Services and ports may be longer.
pub(super) fn comment(label: &Arc<str>) -> Arc<str> {
    const CUT: &str = "...";
    if label.len() <= Element::MAX_COMMENT {
        return Arc::clone(label);
    }
    let mut end = Element::MAX_COMMENT - CUT.len();
    while !label.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", &label[..end]).into()
}

/// The sets of addresses that all ruleset layouts have.
pub(super) fn common_sets(family: Family) -> [Set; 3] {
    let address = || Types::Named(vec![Fields::of(family).address]);
    let mut ranges = commented(Set::new(set::SERVICE_CIDRS, address()), "ServiceCIDRs");
    ranges.flags = SetFlags { interval: true, ..SetFlags::default() };
    [
        commented(Set::new(set::CLUSTER_IPS, address()), "Cluster IPs in use"),
        commented(Set::new(set::NODEPORT_ADDRESSES, address()), "Addresses that accept node ports"),
        ranges,
    ]
}

pub(super) fn commented(mut set: Set, comment: &str) -> Set {
    set.comment = Some(comment.into());
    set
}

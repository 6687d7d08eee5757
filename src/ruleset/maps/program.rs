//! The fixed part of a table: sets, maps, chains and rules that stay the same whatever Services there are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nft::expr::FibAddress;
use nft::statement::CtBit;
use nft::{
    BaseChain, Chain, ChainType, DataType, Field, Hook, Operand, Rule, Set, SetFlags, Statement, Table, TableName,
    Types, ValueType, Verdict,
};

use super::balancer::{Balancer, List};
use super::{Side, affinity, chain, set};
use crate::diff::{ChainContent, Program};
use crate::model::Family;
use crate::ruleset::{LocalTraffic, NodePorts, Settings};

/// Netfilter's usual priorities; DNAT and masquerading happen where upstream documents them (F7).
mod priority {
    pub(super) const DSTNAT: i32 = -100;
    pub(super) const FILTER: i32 = 0;
    pub(super) const SRCNAT: i32 = 100;
}

/// Slot numbers are typed as what `numgen` gives below this number; it bounds nothing but the text of the type.
const SLOT_TYPE: Field = Field::NumgenRandom(1 << 16);

/// The selectors that differ between the families.
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

    /// The key of fronts with an address.
    pub(super) fn front(&self) -> Vec<Field> {
        vec![self.destination, Field::L4Proto, Field::ThDport]
    }

    /// The key of node ports.
    pub(super) fn node_port(&self) -> Vec<Field> {
        vec![Field::L4Proto, Field::ThDport]
    }

    fn key(&self, side: Side) -> Vec<Field> {
        match side {
            Side::Address => self.front(),
            Side::NodePort => self.node_port(),
        }
    }
}

pub(super) fn program(settings: &Settings) -> Program {
    let name = TableName::new(settings.family.into(), "kube-proxy");
    let family = settings.family;
    Program {
        table: Table { name, comment: Some("rules for kube-proxy".into()) },
        owned: settings.owned,
        sets: sets(family).into_iter().map(Arc::new).collect(),
        slotted: Side::BOTH
            .into_iter()
            .flat_map(|side| [List::Cluster, List::Local].map(|l| l.map(side).into()))
            .collect(),
        chains: Rules { settings, fields: Fields::of(family) }.chains(),
        on_demand: match family {
            Family::V4 => |name| Balancer::parse(name).map(|balancer| balancer.content(Family::V4)),
            Family::V6 => |name| Balancer::parse(name).map(|balancer| balancer.content(Family::V6)),
        },
    }
}

fn commented(mut set: Set, comment: &str) -> Set {
    set.comment = Some(comment.into());
    set
}

fn sets(family: Family) -> Vec<Set> {
    let fields = Fields::of(family);
    let address = || Types::Named(vec![fields.address]);
    let mut ranges = Set::new(set::SERVICE_CIDRS, address());
    ranges.flags = SetFlags { interval: true, ..SetFlags::default() };
    let mut sets = vec![
        commented(Set::new(set::CLUSTER_IPS, address()), "Cluster IPs in use"),
        commented(Set::new(set::NODEPORT_IPS, address()), "Addresses that accept node ports"),
        commented(ranges, "ServiceCIDRs"),
        commented(Set::new(set::HAIRPIN, hairpin_type(&fields)), "Local endpoints that may reach themselves"),
    ];
    sets.extend(source_sets(&fields));
    for side in Side::BOTH {
        sets.extend(side_maps(&fields, side));
    }
    sets.extend(affinity::sets(family));
    sets
}

/// Fronts that not everybody may use, and who may (D17).
fn source_sets(fields: &Fields) -> [Set; 2] {
    let front = [fields.address, DataType::InetProto, DataType::InetService];
    let source = front.into_iter().chain([fields.address]).collect();
    let mut sources = Set::new(set::SOURCES, Types::Named(source));
    sources.flags = SetFlags { interval: true, ..SetFlags::default() };
    [
        commented(Set::new(set::RESTRICTED, Types::Named(front.to_vec())), "Fronts with source ranges"),
        commented(sources, "Front . source range that may use it"),
    ]
}

fn hairpin_type(fields: &Fields) -> Types {
    Types::Named(vec![fields.address, fields.address, DataType::InetProto, DataType::InetService])
}

/// The maps of one kind of front.
fn side_maps(fields: &Fields, side: Side) -> Vec<Set> {
    let key = fields.key(side);
    let verdicts = |name: &str, comment| {
        let types = Types::Named(key.iter().map(|f| f.data_type()).collect());
        commented(Set::map(name, types, ValueType::Verdict), comment)
    };
    let slots = |list: List, comment| {
        let key = key.iter().copied().chain([SLOT_TYPE]).collect();
        let endpoint = Types::Of(vec![fields.destination, Field::ThDport]);
        commented(Set::map(list.map(side), Types::Of(key), ValueType::Data(endpoint)), comment)
    };
    vec![
        verdicts(side.dispatch(), "Front : number of endpoints and how to get there"),
        verdicts(side.cluster_policy(), "External policy Local, for pods and this host"),
        verdicts(side.local_policy(), "External policy Local, for everybody else"),
        verdicts(side.no_endpoints(), "Front without endpoints"),
        slots(List::Cluster, "Front . slot : endpoint of the cluster"),
        slots(List::Local, "Front . slot : endpoint on this node"),
    ]
}

/// Writes the rules of one table.
struct Rules<'a> {
    settings: &'a Settings,
    fields: Fields,
}

fn jump(target: &str) -> Statement {
    Statement::Verdict(Verdict::Jump(target.into()))
}

fn goto(target: &str) -> Statement {
    Statement::Verdict(Verdict::Goto(target.into()))
}

fn base(name: &str, kind: ChainType, hook: Hook, priority: i32, rules: Vec<Rule>) -> ChainContent {
    let chain = Chain { name: name.into(), base: Some(BaseChain { kind, hook, priority }), comment: None };
    ChainContent { chain, rules }
}

fn regular(name: &str, rules: Vec<Rule>) -> ChainContent {
    ChainContent { chain: Chain { name: name.into(), base: None, comment: None }, rules }
}

impl Rules<'_> {
    fn chains(&self) -> Vec<ChainContent> {
        let mut chains = self.base_chains();
        chains.extend([
            regular("KUBE-SERVICES", self.services()),
            regular("KUBE-NODEPORTS", vec![self.vmap(Side::NodePort, Side::NodePort.dispatch())]),
            regular(chain::MARK_MASQ, vec![Rule::new([Statement::SetMarkBits(self.settings.masquerade_mark)])]),
            regular("KUBE-POSTROUTING", self.postrouting()),
            regular("KUBE-INPUT", self.input()),
            regular("KUBE-FORWARD", self.forward()),
            regular("KUBE-OUTPUT", self.forward()),
            regular(chain::REJECT, vec![Rule::new([Statement::Reject])]),
        ]);
        for side in Side::BOTH {
            chains.push(regular(side.external_local(), self.external_local(side)));
            chains.push(regular(side.external_local_host(), self.external_local_host(side)));
        }
        chains.extend(affinity::chains(self.settings.family));
        chains
    }

    /// Only the first packet of a connection walks the nat chains; the filter chains leave an established one after a rule.
    fn base_chains(&self) -> Vec<ChainContent> {
        let call = |target| vec![Rule::new([jump(target)])];
        let new_only = |target| vec![Rule::new([Statement::CtBit(CtBit::StateNew), jump(target)])];
        let nat = |name, hook, priority, target| base(name, ChainType::Nat, hook, priority, call(target));
        let filter = |name, hook, target| base(name, ChainType::Filter, hook, priority::FILTER, new_only(target));
        vec![
            nat("nat-prerouting", Hook::Prerouting, priority::DSTNAT, "KUBE-SERVICES"),
            nat("nat-output", Hook::Output, priority::DSTNAT, "KUBE-SERVICES"),
            nat("nat-postrouting", Hook::Postrouting, priority::SRCNAT, "KUBE-POSTROUTING"),
            filter("filter-input", Hook::Input, "KUBE-INPUT"),
            filter("filter-forward", Hook::Forward, "KUBE-FORWARD"),
            filter("filter-output", Hook::Output, "KUBE-OUTPUT"),
        ]
    }

    /// Obeys the map's verdict for the packet's front.
    fn vmap(&self, side: Side, map: &str) -> Rule {
        Rule::new([Statement::Vmap(self.fields.key(side), map.into())])
    }

    fn match_destination(&self, operand: Operand) -> Statement {
        Statement::Match(vec![self.fields.destination], operand)
    }

    fn to_cluster_ip(&self) -> Statement {
        self.match_destination(Operand::InSet(set::CLUSTER_IPS.into()))
    }

    /// D1, D3, D8, D17, D19.
    fn services(&self) -> Vec<Rule> {
        let front_and_source = self.fields.front().into_iter().chain([self.fields.source]).collect();
        let mut rules = vec![Rule::new([
            Statement::Match(self.fields.front(), Operand::InSet(set::RESTRICTED.into())),
            Statement::Match(front_and_source, Operand::NotInSet(set::SOURCES.into())),
            Statement::Verdict(Verdict::Drop),
        ])];
        let mark = jump(chain::MARK_MASQ);
        if self.settings.masquerade_all {
            rules.push(Rule::new([self.to_cluster_ip(), mark]));
        } else if let Some(local) = &self.settings.local_traffic {
            rules.push(Rule::new([self.to_cluster_ip(), self.local_pod(local, false), mark]));
        }
        rules.push(self.vmap(Side::Address, Side::Address.dispatch()));
        rules.push(Rule::new([self.to_node_port_address(), vec![goto("KUBE-NODEPORTS")]].concat()));
        rules
    }

    /// Matches packets of local pods, or all others (I1 to I3).
    fn local_pod(&self, local: &LocalTraffic, is_local: bool) -> Statement {
        match local {
            LocalTraffic::Source(range) => {
                let (network, len) = (range.network(), range.prefix_len());
                let operand =
                    if is_local { Operand::InPrefix(network, len) } else { Operand::NotInPrefix(network, len) };
                Statement::Match(vec![self.fields.source], operand)
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

    /// D19, D20.
    fn to_node_port_address(&self) -> Vec<Statement> {
        match self.settings.node_ports {
            NodePorts::Listed => vec![self.match_destination(Operand::InSet(set::NODEPORT_IPS.into()))],
            NodePorts::Everywhere => {
                let (loopback, len) = match self.settings.family {
                    Family::V4 => (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
                    Family::V6 => (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
                };
                let elsewhere = self.match_destination(Operand::NotInPrefix(loopback, len));
                vec![elsewhere, Statement::FibLocal(FibAddress::Destination)]
            }
        }
    }

    /// D6, D7.
    fn external_local(&self, side: Side) -> Vec<Rule> {
        let mut rules = Vec::new();
        if let Some(local) = &self.settings.local_traffic {
            let to_cluster = Statement::Vmap(self.fields.key(side), side.cluster_policy().into());
            rules.push(Rule::new([self.local_pod(local, true), to_cluster]));
        }
        rules.push(Rule::new([Statement::FibLocal(FibAddress::Source), goto(side.external_local_host())]));
        rules.push(self.vmap(side, side.local_policy()));
        rules
    }

    fn external_local_host(&self, side: Side) -> Vec<Rule> {
        vec![Rule::new([jump(chain::MARK_MASQ)]), self.vmap(side, side.cluster_policy())]
    }

    /// D9, D10. The mark is taken off first: the kernel may keep it through a tunnel device and masquerade the outer packet too.
    fn postrouting(&self) -> Vec<Rule> {
        let mask = self.settings.masquerade_mark;
        let itself = vec![self.fields.source, self.fields.destination, Field::L4Proto, Field::ThDport];
        vec![
            Rule::new([
                Statement::MarkBits { mask, set: true },
                Statement::ClearMarkBits(mask),
                Statement::MasqueradeFullyRandom,
            ]),
            Rule::new([
                Statement::CtBit(CtBit::StatusDnat),
                Statement::Match(itself, Operand::InSet(set::HAIRPIN.into())),
                Statement::MasqueradeFullyRandom,
            ]),
        ]
    }

    /// D13: node ports without endpoints are refused where packets for this host arrive, and only there.
    fn input(&self) -> Vec<Rule> {
        let mut node_ports = self.to_node_port_address();
        node_ports.push(Statement::Vmap(self.fields.node_port(), set::NO_ENDPOINTS_NODEPORTS.into()));
        vec![Rule::new(node_ports), self.vmap(Side::Address, set::NO_ENDPOINTS)]
    }

    /// D2, D3, D14, D15.
    fn forward(&self) -> Vec<Rule> {
        let unallocated = self.match_destination(Operand::InSet(set::SERVICE_CIDRS.into()));
        vec![
            self.vmap(Side::Address, set::NO_ENDPOINTS),
            Rule::new([self.to_cluster_ip(), goto(chain::REJECT)]),
            Rule::new([unallocated, Statement::Verdict(Verdict::Drop)]),
        ]
    }
}

/// An interface name as `iifname` loads it: sixteen bytes, padded with zeros.
fn interface(name: &str) -> nft::Data {
    let mut bytes = [0; 16];
    let len = name.len().min(15);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    nft::Data::from_bytes(&bytes).expect("sixteen bytes")
}

//! Session affinity, unless endpoints have chains: each service port with affinity has a map from client to endpoint, however many endpoints
//! there are.
//!
//! ```text
//!  the chain of service port X (--ruleset-layout=maps: affinity-X, chains: KUBE-SVC-H):
//!      dnat to @affinity-X-8080 (client : address), port 8080; else an endpoint is chosen
//!  after DNAT, on the first packet of each connection:
//!  @affinity-services-tcp: original frontend ─► learn-affinity-X:   update @affinity-X-8080 { client timeout T : address }
//! ```
//!
//! The map is updated after DNAT, because nft 1.0.6 cannot list a rule in which one look-up takes the result of another. A connection
//! whose endpoint came from the map refreshes its entry in the same way (E3). When the map is full, new clients are balanced but not
//! recorded. The endpoints on this node (policy Local) have a map of their own, with entries for these endpoints only (E5).
//!
//! Each service port has its own map, although the kernel finds a map by walking through all of them, so that the time for many service
//! ports with affinity grows with the square of their number. A single map would need the service port in its key. But no field of a packet
//! identifies a service port: its frontends differ in address and port and share their clients' entries (E4). A number for each service
//! port would need a look-up that takes the result of another, or a constant within a concatenation; nft 1.0.6 can list neither. And one
//! tenant could fill a shared map for all others, and the whole map would have to be read whenever an endpoint is removed. Therefore these
//! objects count towards the Service's element limit ([`weight`]).
//!
//! A map holds addresses only, and there is one map for each port number that the endpoints have, because nft 1.0.6 cannot load a rule that
//! stores an IPv6 address together with a port.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nft::statement::CtBit;
use nft::{
    ChainType, Data, DataType, Element, Field, Hook, Operand, Rule, Set, SetFlags, Statement, Types, Value, ValueType,
    Verdict,
};

use super::Balancer;
use crate::endpoints::PortSelection;
use crate::endpoints::size::PortSize;
use crate::model::{Destination, Family, Frontend, Protocol};
use crate::ruleset::kinds::{ChainKind, clients_map, sticky_chain};
use crate::ruleset::names::{FrontendType, List, affinity_map, chain, set};
use crate::ruleset::shared::{Fields, base, comment, is_protocol, jump, regular};
use crate::ruleset::stable_hash::fnv1a;
use crate::table::{ChainContent, DynamicSet, ServiceObjects, SetName};

/// The largest number of clients that one map or set records (E7). It bounds the kernel memory that clients can fill.
pub(in crate::ruleset) const MAX_CLIENTS: u32 = 65_536;
/// The priority of the chains that record clients: before this program and others masquerade, because after source NAT the kernel skips the
/// other nat chains of the hook.
const BEFORE_SRCNAT: i32 = 90;

fn original_address(family: Family) -> Field {
    match family {
        Family::V4 => Field::CtOriginalIpDaddr,
        Family::V6 => Field::CtOriginalIp6Daddr,
    }
}

/// Estimates the cost of the affinity objects of a service port, in elements. Measured: a first sync of 1,000 service ports with affinity
/// and one frontend takes as long as a first sync of 100,000 elements, with five frontends twice as long. The time grows with the square of
/// their number, so the estimate is about right for the largest Service that the default limit of elements allows, and too high for smaller
/// ones.
pub(super) fn weight(size: &PortSize) -> u64 {
    const MAP: u64 = 75;
    const CHAIN: u64 = 25;
    if !size.affinity {
        return 0;
    }
    size.targets.saturating_mul(MAP).saturating_add(size.frontends.saturating_mul(CHAIN))
}

/// The maps from original destination to the chain that records the client; part of the static rules.
pub(in crate::ruleset) fn sets(family: Family) -> Vec<Set> {
    let address = Fields::of(family).address;
    let map = |frontend_type, protocol| {
        let key = match frontend_type {
            FrontendType::Address => vec![address, DataType::InetService],
            FrontendType::NodePort => vec![DataType::InetService],
        };
        let mut map = Set::map(&affinity_map(frontend_type, protocol), Types::Named(key), ValueType::Verdict);
        map.comment = Some("Original destination : what remembers the client".into());
        map
    };
    FrontendType::BOTH
        .into_iter()
        .flat_map(|frontend_type| Protocol::ALL.map(|protocol| map(frontend_type, protocol)))
        .collect()
}

/// The static chains that run after DNAT and find the chain that records the client. The hook `postrouting` sees packets to endpoints on
/// other nodes or in pods of this node, the hook `input` those to endpoints in the host's network namespace.
pub(in crate::ruleset) fn chains(family: Family) -> Vec<ChainContent> {
    let base = |name: &str, hook| {
        let rule = Rule::new([Statement::CtBit(CtBit::StatusDnat), jump(chain::AFFINITY)]);
        base(
            name,
            ChainType::Nat,
            hook,
            BEFORE_SRCNAT,
            "New connections that were translated: session affinity",
            vec![rule],
        )
    };
    let rules = FrontendType::BOTH
        .into_iter()
        .flat_map(|frontend_type| Protocol::ALL.map(|protocol| learn_rule(family, frontend_type, protocol)));
    vec![
        base(chain::AFFINITY_POSTROUTING, Hook::Postrouting),
        base(chain::AFFINITY_INPUT, Hook::Input),
        regular(chain::AFFINITY, "Finds what remembers the client, by the original destination", rules.collect()),
    ]
}

fn learn_rule(family: Family, frontend_type: FrontendType, protocol: Protocol) -> Rule {
    let address = original_address(family);
    let map = affinity_map(frontend_type, protocol).into();
    match frontend_type {
        FrontendType::Address => {
            Rule::new([is_protocol(protocol), Statement::Vmap(vec![address, Field::CtOriginalProtoDst], map)])
        }
        // A packet with the number of a node port that goes to any other address does not use the node port.
        FrontendType::NodePort => Rule::new([
            is_protocol(protocol),
            Statement::Match(vec![address], Operand::InSet(set::NODEPORT_ADDRESSES.into())),
            Statement::Vmap(vec![Field::CtOriginalProtoDst], map),
        ]),
    }
}

/// The session affinity of one service port in one family.
pub(in crate::ruleset) struct Affinity<'a> {
    port: &'a PortSelection,
    timeout: Duration,
    /// The part of its objects' names that is unique to the service port.
    id: String,
}

impl<'a> Affinity<'a> {
    /// The session affinity of a service port; `None` if the port has none.
    pub(in crate::ruleset) fn of(port: &'a PortSelection) -> Option<Self> {
        let timeout = Duration::from_secs(u64::from(port.affinity_seconds?));
        Some(Self { port, timeout, id: identifier(&port.label, port.protocol) })
    }

    /// The name of the chain that uses the client's recorded endpoint, or else goes to this balancer.
    pub(in crate::ruleset) fn chain_name(&self, balancer: Balancer) -> String {
        sticky_chain(balancer.frontend_type, balancer.list, balancer.masquerade, &self.id)
    }

    fn map_name(&self, list: List, port: u16) -> String {
        clients_map(list, &self.id, port)
    }

    /// The different port numbers that the endpoints of a list have.
    fn ports(&self, list: List) -> BTreeSet<u16> {
        list.of(self.port).iter().map(SocketAddr::port).collect()
    }

    fn learn_name(&self) -> String {
        format!("{}{}", ChainKind::Learn, self.id)
    }

    /// Adds the maps and the chain that all frontends of the port share.
    pub(in crate::ruleset) fn write_shared(&self, objects: &mut ServiceObjects) {
        let lists = [List::Cluster, List::Local];
        let maps = lists.into_iter().flat_map(|list| self.ports(list).into_iter().map(move |port| (list, port)));
        let maps: Vec<(List, u16)> = maps.collect();
        if maps.is_empty() {
            return;
        }
        objects.dynamic_sets.extend(maps.iter().map(|(list, port)| self.map(*list, *port)));
        let rules = maps.iter().map(|(list, port)| self.update(*list, *port)).collect();
        let comment = format!("Remembers a client of {}", self.port.label);
        objects.chains.push(regular(&self.learn_name(), &comment, rules));
    }

    fn map(&self, list: List, port: u16) -> DynamicSet {
        let fields = Fields::of(self.port.family);
        let value = ValueType::Data(Types::Of(vec![fields.destination]));
        let mut set = Set::map(&self.map_name(list, port), Types::Of(vec![fields.source]), value);
        set.flags = SetFlags { dynamic: true, timeout: true, ..SetFlags::default() };
        set.size = Some(MAX_CLIENTS);
        set.comment = Some(comment(&self.port.label));
        let endpoints = list.of(self.port).iter().filter(|endpoint| endpoint.port() == port);
        let mut allowed: Vec<Data> = endpoints.map(|endpoint| Data::from(endpoint.ip())).collect();
        allowed.sort();
        // With weights an endpoint may be several times in its list.
        allowed.dedup();
        DynamicSet { set: Arc::new(set), allowed: Some(allowed) }
    }

    /// The rule that records the endpoint of a connection in the map of a list. For the list of endpoints on this node, the rule matches
    /// only if the endpoint is on this node.
    fn update(&self, list: List, port: u16) -> Rule {
        let fields = Fields::of(self.port.family);
        let has_port = Statement::Match(vec![Field::ThDport], Operand::Is(Data::from(port)));
        let update = Statement::Update {
            set: self.map_name(list, port).into(),
            key: vec![fields.source],
            value: vec![fields.destination],
            timeout: Some(self.timeout),
        };
        // The hairpin set has the reachable endpoints on this node (C7), each address twice: as source and as destination.
        let endpoint_twice = vec![fields.destination, fields.destination, Field::L4Proto, Field::ThDport];
        let is_local = Statement::Match(endpoint_twice, Operand::InSet(set::HAIRPIN.into()));
        match list {
            List::Cluster => Rule::new([has_port, update]),
            List::Local => Rule::new([has_port, is_local, update]),
        }
    }

    /// The rules that send a client to the endpoint that is recorded for it in the map of this list.
    pub(in crate::ruleset) fn remembered(&self, list: List) -> Vec<Vec<Statement>> {
        let source = Fields::of(self.port.family).source;
        // nft accepts a DNAT with a port only after a match of the protocol in the same rule.
        let sticky = |port| {
            let map = self.map_name(list, port).into();
            vec![is_protocol(self.port.protocol), Statement::DnatToMapAndPort(vec![source], map, port)]
        };
        self.ports(list).into_iter().map(sticky).collect()
    }

    /// Adds the element through which the rules record the clients of a frontend.
    pub(in crate::ruleset) fn learn_from(&self, frontend: &Frontend, comment: &Arc<str>, objects: &mut ServiceObjects) {
        let (frontend_type, key) = match frontend.destination {
            Destination::Address(ip) => (FrontendType::Address, Data::from(ip).then(frontend.port)),
            Destination::NodePort(_) => (FrontendType::NodePort, Data::from(frontend.port)),
        };
        let mut element = Element::mapping(key, Value::Verdict(Verdict::Goto(self.learn_name().into())));
        element.comment = Some(Arc::clone(comment));
        objects.elements.push((SetName::Owned(affinity_map(frontend_type, frontend.protocol)), element));
    }
}

/// The part of nft names that is unique to a service port: `namespace/name/port/protocol`. The kernel allows names of 255 bytes, so
/// a long text is cut, and a hash makes it unique.
fn identifier(label: &str, protocol: Protocol) -> String {
    const MAX: usize = 200;
    let full = format!("{}/{protocol}", label.replace(':', "/"));
    if full.len() <= MAX {
        return full;
    }
    let mut end = MAX - 17;
    while !full.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{:016x}", &full[..end], fnv1a(full.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_whose_name_begins_with_local_has_names_of_its_own() {
        // With `local-` instead of `local.` both names would be `affinity-local-x/web/http/tcp`.
        let [of_x, of_local_x] = ["x/web:http", "local-x/web:http"].map(|label| identifier(label, Protocol::Tcp));
        let chain = |list, id| sticky_chain(FrontendType::Address, list, false, id);
        assert_ne!(chain(List::Local, &of_x), chain(List::Cluster, &of_local_x));
        assert_ne!(clients_map(List::Local, &of_x, 8080), clients_map(List::Cluster, &of_local_x, 8080));
    }

    #[test]
    fn identifiers_are_short_and_distinct() {
        assert_eq!(identifier("shop/web:http", Protocol::Tcp), "shop/web/http/tcp");
        assert_eq!(identifier("shop/web", Protocol::Udp), "shop/web/udp");
        let long = format!("shop/{}", "a".repeat(253));
        let (tcp, udp) = (identifier(&long, Protocol::Tcp), identifier(&long, Protocol::Udp));
        assert_ne!(tcp, udp);
        assert!(tcp.len() <= 200 && "nodeport-masq-affinity-local.".len() + tcp.len() <= 255);
    }
}

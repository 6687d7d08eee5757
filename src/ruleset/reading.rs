//! What the parts of a table say of fronts and endpoints: the way back from what the layouts write.
//!
//! Takes elements, values and chains of a Service in either layout, gives fronts, what becomes of their traffic, and endpoints. Pure.
//! Invariant: what a layout writes for a selection is read as the fronts and endpoints of that selection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nft::packed::ValueRef;
use nft::{Statement, Verdict};

use super::{chains, endpoints, maps};
use crate::model::{Destination, Family, Front, Protocol};
use crate::table::ChainContent;

/// What an element with a front as its key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leads packets to the front somewhere.
    Dispatch,
    /// Leads packets of other clients to the front somewhere, beside a dispatch.
    FromOutside,
    /// Refuses packets to the front, whatever its dispatch is.
    Refuse,
}

/// A set whose keys are fronts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontSet {
    /// What its elements are for.
    pub role: Role,
    is_node_port: bool,
}

/// The set of this name, in either layout; `None` when its keys are no fronts, or say nothing of where packets go.
#[must_use]
pub fn front_set(name: &str) -> Option<FrontSet> {
    let known = maps::front_sets().into_iter().chain(chains::front_sets());
    let mut fitting = known.filter(|(known, ..)| *known == name);
    fitting.next().map(|(_, is_node_port, role)| FrontSet { role, is_node_port })
}

impl FrontSet {
    /// The front of a key.
    #[must_use]
    pub fn front(self, family: Family, key: &[u8]) -> Option<Front> {
        let (destination, rest) = if self.is_node_port {
            (Destination::NodePort(family), key)
        } else {
            let (ip, rest) = address(family, key)?;
            (Destination::Address(ip), rest)
        };
        let (protocol, port) = rest.split_first_chunk::<4>()?;
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let protocol = protocols.into_iter().find(|known| known.number() == protocol[0])?;
        Some(Front { destination, protocol, port: number(port)? })
    }
}

/// Whether an element with this value drops packets; `chains` are those of its Service, by name in order.
#[must_use]
pub fn drops(value: ValueRef<'_>, chains: &[ChainContent]) -> bool {
    match value {
        ValueRef::Verdict(_, Some(chain)) => chain_drops(chain, chains, 2),
        ValueRef::Verdict(number, None) => number == 0,
        ValueRef::None | ValueRef::Data(_) => false,
    }
}

/// Whether a chain, or one that it leads to over so many steps, drops what reaches its end.
fn chain_drops(name: &str, chains: &[ChainContent], steps: usize) -> bool {
    let Ok(index) = chains.binary_search_by(|content| (*content.chain.name).cmp(name)) else { return false };
    has_drop(&chains[index])
        || steps > 0 && chains[index].targets().any(|target| chain_drops(target, chains, steps - 1))
}

/// Whether a chain has a rule that drops packets.
#[must_use]
pub fn has_drop(content: &ChainContent) -> bool {
    let mut statements = content.rules.iter().flat_map(|rule| &rule.statements);
    statements.any(|statement| matches!(statement, Statement::Verdict(Verdict::Drop)))
}

/// The name without its part of a set whose values are endpoints of fronts; `None` for any other set.
#[must_use]
pub fn endpoint_map(set: &str) -> Option<&'static str> {
    endpoints::map(set)
}

/// Whether a map of so many endpoints takes long to read, so that several maps should share them (`nftables.endpointMaps`). Measured on
/// kernel 6.18: three seconds for this number, which grow with the square.
#[must_use]
pub fn takes_long(set: &str, elements: usize) -> bool {
    endpoint_map(set).is_some() && elements > 300_000
}

/// The endpoint in a value of a slot or place.
#[must_use]
pub fn slot_endpoint(family: Family, value: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = address(family, value)?;
    Some(SocketAddr::new(ip, number(port)?))
}

/// The address at the beginning of a key or value, and the rest.
fn address(family: Family, bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        Family::V4 => bytes.split_first_chunk::<4>().map(|(ip, rest)| (Ipv4Addr::from(*ip).into(), rest)),
        Family::V6 => bytes.split_first_chunk::<16>().map(|(ip, rest)| (Ipv6Addr::from(*ip).into(), rest)),
    }
}

/// A port number at the beginning of bytes, which are padded.
fn number(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|port| u16::from_be_bytes(*port))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::model::testing::{self, name, port, service, slice, slice_port};
    use crate::model::{Event, TrafficPolicy};
    use crate::ruleset::counters::Counters;
    use crate::ruleset::{Layout, NodePorts, Settings};
    use crate::select::{Action, ServiceSelection, select};
    use nft::packed::pack;
    use nft::{Element, ElementRef};

    fn settings(family: Family) -> Settings {
        Settings {
            family,
            masquerade_mark: 0x4000,
            masquerade_all: false,
            local_traffic: None,
            node_ports: NodePorts::Listed,
            drop_invalid: false,
            balancing: crate::ruleset::Balancing::default(),
            endpoint_maps: 1,
            localhost: crate::ruleset::Localhost::Ignored,
            counters: Counters::Off,
            owned: false,
        }
    }

    fn value_of<T>(element: &Element, read: impl FnOnce(ValueRef<'_>) -> T) -> T {
        let mut bytes = Vec::new();
        pack(&mut bytes, element);
        read(ElementRef::from_packed(&bytes).parts().value)
    }

    /// The fronts with the description of each, and the endpoints, as they are read from what a layout writes.
    fn read(
        layout: Layout,
        family: Family,
        selection: &ServiceSelection,
    ) -> (BTreeMap<Front, &'static str>, BTreeSet<SocketAddr>) {
        let mut fragment = layout.service(&settings(family), selection);
        fragment.chains.sort_by(|a, b| a.chain.name.cmp(&b.chain.name));
        let mut fronts = BTreeMap::new();
        for (set, element) in &fragment.elements {
            let Some(set) = front_set(set) else { continue };
            let front = set.front(family, element.key.as_slice()).expect("a front");
            let drops = value_of(element, |value| drops(value, &fragment.chains));
            let told = match set.role {
                Role::Refuse => "refused",
                Role::Dispatch | Role::FromOutside if drops => "dropped",
                Role::Dispatch | Role::FromOutside => "served",
            };
            let known = fronts.entry(front).or_insert(told);
            // The words are in the order of their weight, but for the first letter.
            *known = ["served", "dropped", "refused"].into_iter().rfind(|word| word == known || *word == told).unwrap();
        }
        let slots = fragment.slots.iter().flat_map(|slots| slots.values.iter());
        let slots = slots.map(|value| slot_endpoint(family, value).expect("an endpoint"));
        (fronts, slots.collect())
    }

    /// The same from the selection.
    fn expected(family: Family, selection: &ServiceSelection) -> (BTreeMap<Front, &'static str>, BTreeSet<SocketAddr>) {
        let ports = || selection.ports.iter().filter(|port| port.family == family);
        let (mut fronts, mut endpoints) = (BTreeMap::new(), BTreeSet::new());
        for port in ports() {
            for front in &port.fronts {
                let (told, lists): (_, &[&Vec<SocketAddr>]) = match front.action {
                    Action::Cluster { .. } => ("served", &[&port.cluster]),
                    Action::Local => ("served", &[&port.local]),
                    Action::ByOrigin if port.local.is_empty() => ("dropped", &[&port.cluster]),
                    Action::ByOrigin => ("served", &[&port.cluster, &port.local]),
                    Action::Drop => ("dropped", &[]),
                    Action::Reject => ("refused", &[]),
                };
                fronts.insert(front.front, told);
                endpoints.extend(lists.iter().copied().flatten());
            }
        }
        (fronts, endpoints)
    }

    #[test]
    fn what_each_layout_writes_is_read_back() {
        let policies = [TrafficPolicy::Cluster, TrafficPolicy::Local];
        let nodes: [&[&str]; 4] =
            [&[], &["10.0.0.1 @here", "10.0.0.2 @there", "10.0.0.3 @here"], &["10.0.0.2 @there"], &["10.0.0.1 @here"]];
        let mut seen = BTreeSet::new();
        for (internal, external) in policies.into_iter().flat_map(|one| policies.map(|other| (one, other))) {
            for (endpoints, affinity, ranges) in
                nodes.into_iter().flat_map(|list| [(list, None, false), (list, Some(60), true)])
            {
                let mut web = service("ns/web", &["172.30.0.1", "fd30::1"]);
                web.ports = vec![port("http", 80), port("dns", 53)];
                web.ports[0].node_port = Some(30080);
                web.external_ips = vec!["192.0.2.9".parse().unwrap(), "2001:db8::9".parse().unwrap()];
                web.load_balancer_ips = vec!["192.0.2.10".parse().unwrap()];
                (web.internal_policy, web.external_policy) = (internal, external);
                web.affinity_seconds = affinity;
                web.source_ranges = if ranges { vec!["10.1.0.0/16".parse().unwrap()] } else { Vec::new() };
                let ports = [slice_port("http", 8080), slice_port("dns", 5353)];
                let six: Vec<String> = endpoints.iter().map(|endpoint| endpoint.replace("10.0.0.", "fd00::")).collect();
                let six: Vec<&str> = six.iter().map(String::as_str).collect();
                let slices = [slice("ns/four", "ns/web", &ports, endpoints), slice("ns/six", "ns/web", &ports, &six)];
                let slices = slices.into_iter().filter(|slice| !slice.endpoints.is_empty()).map(Event::SliceApplied);
                let state = testing::state(std::iter::once(Event::ServiceApplied(web)).chain(slices));
                let selection = select(&state, &name("ns/web")).unwrap();
                for (layout, family) in [Layout::Maps, Layout::Chains]
                    .into_iter()
                    .flat_map(|layout| Family::BOTH.map(|family| (layout, family)))
                {
                    let found = read(layout, family, &selection);
                    assert_eq!(found, expected(family, &selection), "{layout:?} {family} {internal:?} {external:?}");
                    seen.extend(found.0.into_values());
                }
            }
        }
        assert_eq!(seen, BTreeSet::from(["dropped", "refused", "served"]));
    }

    #[test]
    fn only_maps_of_endpoints_are_shared_out_when_they_are_large() {
        for map in ["endpoints", "nodeport-local-endpoints", "endpoints.15"] {
            assert!(takes_long(map, 300_001) && !takes_long(map, 300_000), "{map}");
        }
        assert!(!takes_long("services", 300_001) && !takes_long("affinity-a/endpoints", 300_001));
    }

    #[test]
    fn other_bytes_are_no_front_and_no_endpoint() {
        let services = front_set("services").unwrap();
        for bytes in [&[][..], &[10, 0, 0, 1], &[10, 0, 0, 1, 6, 0, 0, 0], &[10, 0, 0, 1, 99, 0, 0, 0, 0, 80, 0, 0]] {
            assert_eq!(services.front(Family::V4, bytes), None);
        }
        assert_eq!(slot_endpoint(Family::V6, &[0; 16]), None);
        assert_eq!(front_set("cluster-ips"), None);
    }
}

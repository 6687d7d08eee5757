//! Property tests: parsing the objects that a ruleset layout makes for a Service gives that Service's frontends and endpoints.

use std::collections::{BTreeMap, BTreeSet};

use nft::packed::pack;
use nft::{Element, ElementRef, Value};
use proptest::prelude::*;
use proptest::sample::{select as one_of, subsequence};

use super::*;
use crate::endpoints::{Action, PortSelection, ServiceSelection, select};
use crate::model::testing::{self, name, port, service, slice, slice_port};
use crate::model::{EndpointSlice, Event, FrontendKind, Scheduler, TrafficPolicy, Weights};
use crate::ruleset::counters::Counters;
use crate::ruleset::kinds::ChainKind;
use crate::ruleset::names::List;
use crate::ruleset::{Layout, Localhost, NodePorts, Settings};
use crate::table::{ServiceObjects, SetName};

const ENDPOINTS: [&str; 4] = ["10.0.0.1 @here", "10.0.0.2 @there", "10.0.0.3 @here", "10.0.0.4"];

/// The facts about a Service that can be parsed from its objects.
#[derive(Debug, Default, PartialEq)]
struct Facts {
    cluster_ips: BTreeSet<IpAddr>,
    /// What the rules do with packets to each frontend.
    fates: BTreeMap<Frontend, Fate>,
    endpoints: BTreeSet<SocketAddr>,
    /// The endpoints of each list, if endpoints are map elements and have no chains; the key's `bool` is true for the local list.
    /// An endpoint is listed once for each entry that its weight gives it, or once if it has positions in a Maglev table.
    lists: BTreeMap<(Frontend, bool), Vec<SocketAddr>>,
    /// The endpoints of each map from numbers to their chains, each once for each entry that its weight gives it.
    numbered: BTreeSet<Vec<SocketAddr>>,
    here: BTreeSet<(SocketAddr, Protocol)>,
    sources: BTreeSet<(IpAddr, IpAddr)>,
    /// The frontends with session affinity, if endpoints are map elements and have no chains.
    remembered: BTreeSet<Frontend>,
    refused_on_loopback: BTreeSet<Frontend>,
    health_check: Option<u16>,
}

/// What the rules do with packets to a frontend. If its elements differ, the last variant counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Served,
    Dropped,
    Refused,
}

fn settings(family: Family, endpoint_maps: u8) -> Settings {
    Settings {
        family,
        masquerade_mark: 0x4000,
        masquerade_all: false,
        local_traffic: None,
        node_ports: NodePorts::Listed,
        drop_invalid: false,
        guard_endpoints: false,
        pings: crate::ruleset::Pings::Ignored,
        refuse_unused: false,
        balancing: crate::ruleset::Balancing::default(),
        endpoint_maps,
        localhost: Localhost::Refused,
        counters: Counters::Off,
        owned: false,
    }
}

fn drops_in(element: &Element, chains: &[ChainContent]) -> bool {
    let mut bytes = Vec::new();
    pack(&mut bytes, element);
    drops(ElementRef::from_packed(&bytes).parts().value, chains)
}

/// All elements, including those of [`Slots`](crate::table::Slots).
fn elements(objects: &ServiceObjects) -> Vec<(SetName, Element)> {
    let mut all = objects.elements.clone();
    for slots in &objects.slots {
        for (slot, value) in (0_u32..).zip(slots.values.iter()) {
            let value = Value::Data(Data::from_bytes(value).unwrap());
            all.push((slots.set.clone(), Element::mapping(slots.prefix.then(slot), value)));
        }
    }
    all
}

impl Facts {
    /// The facts as parsed from the objects that a layout makes.
    fn read(layout: Layout, settings: &Settings, selection: &ServiceSelection) -> Self {
        let mut objects = layout.service(settings, selection);
        objects.chains.sort_by(|a, b| a.chain.name.cmp(&b.chain.name));
        let mut facts = Self::default();
        for (set, element) in elements(&objects) {
            let kind = SetKind::of(&set).unwrap_or_else(|| panic!("the set {set} has no kind"));
            let key = key(kind, settings.family, element.key.as_slice());
            let key = key.unwrap_or_else(|| panic!("{element:?} of {set} is not read"));
            facts.element(settings.family, kind, key, &element, &objects.chains);
        }
        for content in &objects.chains {
            facts.chain(settings.family, content);
        }
        for set in &objects.dynamic_sets {
            assert!(matches!(SetKind::of(&set.set.name), Some(SetKind::Clients(_))), "{:?}", set.set);
        }
        for map in &objects.verdict_maps {
            assert!(matches!(SetKind::of(&map.set.name), Some(SetKind::VerdictMap(_))), "{:?}", map.set);
            let chain = |verdict: &Verdict| {
                let name = verdict.chain().expect("a verdict leads to a chain");
                objects.chains.iter().find(|content| content.chain.name == *name).and_then(chain_endpoint).unwrap()
            };
            facts.numbered.insert(sorted(map.verdicts.iter().map(chain).collect()));
        }
        facts.lists.values_mut().for_each(|list| list.sort());
        for (frontend, is_local) in tables(&elements(&objects), settings.family) {
            facts.lists.get_mut(&(frontend, is_local)).unwrap().dedup();
        }
        facts
    }

    fn element(&mut self, family: Family, kind: SetKind, key: Key, element: &Element, chains: &[ChainContent]) {
        match (kind, key) {
            (SetKind::ClusterIps, Key::Address(address)) => drop(self.cluster_ips.insert(address)),
            (SetKind::Hairpin, Key::Endpoint(endpoint, protocol)) => drop(self.here.insert((endpoint, protocol))),
            (SetKind::Sources, Key::Source(..)) => drop(self.sources.insert(range(kind, family, element).unwrap())),
            (SetKind::Affinity(..), Key::Frontend(frontend)) => drop(self.remembered.insert(frontend)),
            (SetKind::LocalhostNodePorts, Key::Frontend(frontend)) => drop(self.refused_on_loopback.insert(frontend)),
            (SetKind::HealthChecks, Key::HealthCheck(port, _)) => self.health_check = Some(port),
            (SetKind::Endpoints(..) | SetKind::Fallback(_), _) => {
                let Value::Data(value) = &element.value else { panic!("{element:?} has no endpoint") };
                let endpoint = slot_endpoint(family, value.as_slice()).expect("an endpoint");
                self.endpoints.insert(endpoint);
                if let (SetKind::Endpoints(_, list), Some(frontend)) = (kind, key.frontend()) {
                    self.lists.entry((frontend, list == List::Local)).or_default().push(endpoint);
                }
            }
            (_, Key::Frontend(frontend)) => {
                let fate = match kind.role() {
                    Some(Role::Refuse) => Fate::Refused,
                    Some(Role::Dispatch | Role::FromOutside) if drops_in(element, chains) => Fate::Dropped,
                    Some(Role::Dispatch | Role::FromOutside) => Fate::Served,
                    None => return,
                };
                let known = self.fates.entry(frontend).or_insert(fate);
                *known = fate.max(*known);
            }
            other => panic!("{other:?} is no key of this set"),
        }
    }

    fn chain(&mut self, family: Family, content: &ChainContent) {
        let kind = ChainKind::of(&content.chain.name).expect("each chain has a kind");
        let dumps: Vec<RuleDump> = content.rules.iter().map(|rule| rule.to_dump(family.into())).collect();
        let endpoint = chain_endpoint(content);
        assert_eq!(dumps.iter().find_map(rule_endpoint), endpoint, "written and not written rules say the same");
        assert_eq!(kind == ChainKind::Endpoint, endpoint.is_some(), "{}", content.chain.name);
        self.endpoints.extend(endpoint);
        if matches!(kind, ChainKind::SourceRanges { .. }) {
            let networks = dumps.iter().filter_map(rule_source);
            self.sources.extend(networks.map(|network| (network.network(), network.broadcast())));
        }
    }

    /// The facts as the selection has them.
    fn expected(layout: Layout, family: Family, selection: &ServiceSelection) -> Self {
        let mut facts = Self::default();
        facts.cluster_ips.extend(selection.cluster_ips.iter().filter(|ip| Family::of(**ip) == family));
        for port in selection.ports.iter().filter(|port| port.family == family) {
            facts.here.extend(port.hairpin.iter().map(|endpoint| (*endpoint, port.protocol)));
            for frontend in &port.frontends {
                facts.expect_frontend(layout, port, frontend.frontend, frontend.action);
                let is_written = layout == Layout::Maps || frontend.action != Action::Drop;
                for range in frontend.sources.iter().flatten().filter(|_| is_written) {
                    facts.sources.insert((range.network(), range.broadcast()));
                }
                if matches!(frontend.frontend.destination, Destination::NodePort(_)) {
                    facts.refused_on_loopback.insert(frontend.frontend);
                }
                if frontend.kind == FrontendKind::ClusterIp && port.health_check.is_some() {
                    facts.health_check = port.health_check.map(|check| check.port);
                }
            }
        }
        facts
    }

    fn expect_frontend(&mut self, layout: Layout, port: &PortSelection, frontend: Frontend, action: Action) {
        let (fate, lists): (Fate, &[(bool, &Vec<SocketAddr>)]) = match action {
            Action::Cluster { .. } => (Fate::Served, &[(false, &port.cluster)]),
            Action::Local => (Fate::Served, &[(true, &port.local)]),
            Action::ByOrigin if port.local.is_empty() => (Fate::Dropped, &[(false, &port.cluster)]),
            Action::ByOrigin => (Fate::Served, &[(false, &port.cluster), (true, &port.local)]),
            Action::Drop => (Fate::Dropped, &[]),
            Action::Reject => (Fate::Refused, &[]),
        };
        self.fates.insert(frontend, fate);
        let elements = layout != Layout::Chains || has_table(port);
        for (is_local, list) in lists {
            self.endpoints.extend(list.iter());
            if elements {
                let mut list = list.to_vec();
                if port.scheduler == Some(Scheduler::Maglev) && list.len() > 1 {
                    list.dedup();
                }
                self.lists.insert((frontend, *is_local), list);
            } else if list.len() > 1 {
                self.numbered.insert(list.to_vec());
            }
        }
        if elements && port.affinity_seconds.is_some() && !lists.is_empty() {
            self.remembered.insert(frontend);
        }
    }
}

fn sorted(mut list: Vec<SocketAddr>) -> Vec<SocketAddr> {
    list.sort();
    list
}

/// The lists of frontends that have a Maglev table.
fn tables(elements: &[(SetName, Element)], family: Family) -> BTreeSet<(Frontend, bool)> {
    let of_element = |(set, element): &(SetName, Element)| {
        let kind @ SetKind::Endpoints(_, list) = SetKind::of(set)? else { return None };
        let Some(Key::Numbered(frontend, number)) = key(kind, family, element.key.as_slice()) else { return None };
        is_place(number).then_some((frontend, list == List::Local))
    };
    elements.iter().filter_map(of_element).collect()
}

/// Whether a service port needs a Maglev table, so that its endpoints are elements in every layout.
fn has_table(port: &PortSelection) -> bool {
    port.scheduler == Some(Scheduler::Maglev) && port.cluster.len().max(port.local.len()) > 1
}

/// Random selections for a Service with two ports and both families.
fn selection() -> impl Strategy<Value = ServiceSelection> {
    let policy = || one_of(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
    let scheduler = one_of(vec![None, Some(Scheduler::SourceHash), Some(Scheduler::Maglev)]);
    let ranges = one_of(vec![&[][..], &["10.1.0.0/16", "203.0.113.9/32", "2001:db8::/33"]]);
    let endpoints = subsequence(ENDPOINTS.to_vec(), 0..=4);
    let affinity = one_of(vec![None, Some(60)]);
    let more = (any::<bool>(), any::<bool>(), any::<bool>());
    let weights = (proptest::option::of(1..4_u8), 1..4_u8);
    (policy(), policy(), scheduler, ranges, endpoints, affinity, (more, weights)).prop_map(
        |(internal, external, scheduler, ranges, endpoints, affinity, (more, (local, weight)))| {
            let (node_port, external_ip, health) = more;
            let mut web = service("ns/web", &["172.30.0.1", "fd30::1"]);
            web.ports = vec![port("http", 80), port("dns/udp", 53)];
            web.ports[0].node_port = node_port.then_some(30080);
            if external_ip {
                web.external_ips = vec!["192.0.2.9".parse().unwrap(), "2001:db8::9".parse().unwrap()];
            }
            web.load_balancer_ips = vec!["192.0.2.10".parse().unwrap(), "172.30.0.1".parse().unwrap()];
            (web.internal_policy, web.external_policy) = (internal, external);
            (web.affinity_seconds, web.scheduler) = (affinity, scheduler);
            web.weights = Weights { local, zone: None };
            web.health_check_node_port = health.then_some(30000);
            web.source_ranges = testing::ranges(ranges);
            let ports = [slice_port("http", 8080), slice_port("dns/udp", 5353)];
            let six: Vec<String> = endpoints.iter().map(|endpoint| endpoint.replace("10.0.0.", "fd00::")).collect();
            let six: Vec<&str> = six.iter().map(String::as_str).collect();
            let (first, others) = endpoints.split_at(endpoints.len().min(1));
            let slices = [
                EndpointSlice { weight, ..slice("ns/four", "ns/web", &ports, first) },
                slice("ns/fours", "ns/web", &ports, others),
                slice("ns/six", "ns/web", &ports, &six),
            ];
            let slices = slices.into_iter().filter(|slice| !slice.endpoints.is_empty()).map(Event::SliceApplied);
            let state = testing::state(std::iter::once(Event::ServiceApplied(web)).chain(slices));
            select(&state, &name("ns/web")).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn what_each_layout_writes_is_read_back(selection in selection(), endpoint_maps in one_of(vec![1_u8, 3])) {
        for layout in Layout::ALL {
            for family in Family::BOTH {
                let found = Facts::read(layout, &settings(family, endpoint_maps), &selection);
                prop_assert_eq!(&found, &Facts::expected(layout, family, &selection), "{:?} {}", layout, family);
            }
        }
    }
}

#[test]
fn the_facts_of_a_node_are_read_back() {
    let facts = crate::ruleset::NodeFacts {
        node_port_addresses: vec!["192.0.2.1".parse().unwrap()],
        service_cidrs: testing::ranges(&["10.96.0.0/12"]),
    };
    let objects = Layout::Maps.node(&settings(Family::V4, 1), &facts);
    let [(addresses, address), (cidrs, cidr)] = &objects.elements[..] else { panic!("two elements") };
    assert_eq!(SetKind::of(addresses), Some(SetKind::NodePortAddresses));
    let read = key(SetKind::NodePortAddresses, Family::V4, address.key.as_slice());
    assert_eq!(read, Some(Key::Address("192.0.2.1".parse().unwrap())));
    assert_eq!(SetKind::of(cidrs), Some(SetKind::ServiceCidrs));
    let ends = ["10.96.0.0", "10.111.255.255"].map(|ip| ip.parse().unwrap());
    assert_eq!(range(SetKind::ServiceCidrs, Family::V4, cidr), Some((ends[0], ends[1])));
}

#[test]
fn only_maps_of_endpoints_are_shared_out_when_they_are_large() {
    for map in ["endpoints", "nodeport-local-endpoints", "endpoints.15"] {
        assert!(takes_long(map, 300_001) && !takes_long(map, 300_000), "{map}");
    }
    assert!(!takes_long("services", 300_001) && !takes_long("affinity-a/endpoints", 300_001));
}

#[test]
fn other_bytes_are_no_frontend_and_no_endpoint() {
    let services = frontend_set("services").unwrap();
    for bytes in [&[][..], &[10, 0, 0, 1], &[10, 0, 0, 1, 6, 0, 0, 0], &[10, 0, 0, 1, 99, 0, 0, 0, 0, 80, 0, 0]] {
        assert_eq!(services.frontend(Family::V4, bytes), None);
    }
    // Another program may have made a set of this name, with further fields in its key.
    let key = [&[10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0][..], &[0; 4]].concat();
    assert!(services.frontend(Family::V4, &key[..12]).is_some());
    assert_eq!(services.frontend(Family::V4, &key), None);
    let address = |bytes: &[u8]| Element::new(nft::Data::from_bytes(bytes).unwrap());
    let is_range = |bytes: &[u8]| range(SetKind::ServiceCidrs, Family::V4, &address(bytes)).is_some();
    assert_eq!([&[10, 0, 0, 0][..], &[10, 0, 0, 0, 0, 0, 0, 0]].map(is_range), [true, false]);
    assert_eq!(slot_endpoint(Family::V6, &[0; 16]), None);
    assert_eq!([8, 12].map(|len| slot_endpoint(Family::V4, &vec![0; len]).is_some()), [true, false]);
    assert_eq!(frontend_set("cluster-ips"), None);
}

//! Property tests of the rules by the packets that pass them: `nft::machine` sends a packet to each frontend of a random cluster, through
//! the table that a layout makes for it, and it has to reach exactly the endpoints of the selection, or to be refused or dropped as the
//! selection says. The seeds are fixed, so that a failure can be repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nft::machine::{Branch, Effect, Fate, Host, Link, Listed, Next, Packet, Routes, protocol, walk};
use nft::{Data, Element, TableDump, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngSeed, TestCaseError, TestCaseResult, TestRunner};

use super::{Balancing, Counters, Layout, LocalTraffic, Localhost, NodeFacts, NodePorts, Pings, Settings};
use crate::diff::Records;
use crate::diff::differences::as_read;
use crate::endpoints::tests::properties::world;
use crate::endpoints::{Action, FrontendSelection, PortSelection, ServiceSelection, select as selection_of};
use crate::model::testing::{NODE, name, slice_port};
use crate::model::{Destination, EndpointSlice, Event, Family, ObjectName, Scheduler, State};

/// Where a packet comes from.
struct Client {
    address: IpAddr,
    input: Link,
    is_pod: bool,
}

/// A client elsewhere, a pod that is an endpoint too, a pod that is no endpoint, and this host.
fn clients(family: Family) -> [Client; 4] {
    let link = |index, name: &str| Link::Known(index, name.into());
    let client = |address: &str, input, is_pod| Client { address: address.parse().unwrap(), input, is_pod };
    let [outside, endpoint, pod] = match family {
        Family::V4 => ["203.0.113.7", "10.244.0.1", "10.244.0.9"],
        Family::V6 => ["2001:db8:1::7", "fd01::1", "fd01::9"],
    };
    [
        client(outside, link(2, "eth0"), false),
        client(endpoint, link(3, "cni0"), true),
        client(pod, link(3, "cni0"), true),
        Client { address: own(family), input: Link::None, is_pod: false },
    ]
}

/// The address of this host.
fn own(family: Family) -> IpAddr {
    match family {
        Family::V4 => [192, 0, 2, 9].into(),
        Family::V6 => "2001:db8::9".parse().unwrap(),
    }
}

/// This host: all addresses but its own are elsewhere.
struct Node;

impl Host for Node {
    fn address_type(&mut self, address: IpAddr) -> u8 {
        const LOCAL: u8 = 2;
        const UNICAST: u8 = 1;
        if address.is_loopback() || Family::BOTH.map(own).contains(&address) { LOCAL } else { UNICAST }
    }
}

impl Routes for Node {
    fn next(&mut self, packet: &Packet) -> Next {
        if self.address_type(packet.destination) == 2 { Next::Here } else { Next::Elsewhere(Link::Unknown) }
    }

    fn loopback(&mut self) -> Link {
        Link::Known(1, "lo".into())
    }
}

/// How local pods are recognised.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Detect {
    Nothing,
    Source,
    Interface,
    Prefix,
}

impl Detect {
    fn of_family(self, family: Family) -> Option<LocalTraffic> {
        match (self, family) {
            (Self::Nothing, _) => None,
            (Self::Source, Family::V4) => Some(LocalTraffic::Source("10.244.0.0/24".parse().unwrap())),
            (Self::Source, Family::V6) => Some(LocalTraffic::Source("fd01::/64".parse().unwrap())),
            (Self::Interface, _) => Some(LocalTraffic::Interface("cni0".into())),
            (Self::Prefix, _) => Some(LocalTraffic::InterfacePrefix("cni".into())),
        }
    }
}

prop_compose! {
    /// How local pods are recognised, and the settings of the IPv4 table without that. The caller adds it for each family.
    fn settings()(
        detect in select(vec![Detect::Nothing, Detect::Source, Detect::Interface, Detect::Prefix]),
        (masquerade_all, drop_invalid, with_port) in any::<(bool, bool, bool)>(),
        (guard_endpoints, refuse_unused, answers_pings) in any::<(bool, bool, bool)>(),
        node_ports in select(vec![NodePorts::Everywhere, NodePorts::Listed]),
        scheduler in select(vec![Scheduler::Random, Scheduler::Random, Scheduler::SourceHash, Scheduler::Maglev]),
        counters in select(vec![Counters::Off, Counters::Services, Counters::Endpoints]),
        endpoint_maps in 1..4_u8,
    ) -> (Detect, Settings) {
        let balancing = Balancing { scheduler, with_port, table_size: 31 };
        let localhost = Localhost::Ignored;
        let (family, local_traffic, masquerade_mark, owned) = (Family::V4, None, 0x4000, false);
        let pings = if answers_pings { Pings::AnsweredBy(None) } else { Pings::Ignored };
        (detect, Settings {
            family, masquerade_mark, masquerade_all, local_traffic, node_ports, drop_invalid, balancing, endpoint_maps, localhost,
            counters, owned, guard_endpoints, refuse_unused, pings,
        })
    }
}

/// The result for a packet: its possible endpoints, each with its share and whether the source address is translated; or no endpoint.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Endpoints(BTreeMap<SocketAddr, (f64, bool)>),
    Refused,
    Dropped,
    Passed,
}

/// A cluster with the table of one family.
struct Table {
    settings: Settings,
    selections: BTreeMap<ObjectName, ServiceSelection>,
    dump: TableDump,
}

impl Table {
    fn new(layout: Layout, settings: Settings, state: &State) -> Self {
        let names = state.services().map(|service| service.name.clone());
        let selections: BTreeMap<_, _> =
            names.map(|name| (name.clone(), selection_of(state, &name).unwrap())).collect();
        let facts =
            NodeFacts { node_port_addresses: Family::BOTH.map(own).into(), service_cidrs: state.service_cidrs() };
        let mut records = Records::new(layout.static_rules(&settings));
        records.put(None, layout.node(&settings, &facts));
        for (name, selection) in &selections {
            records.put(Some(name.clone()), layout.service(&settings, selection));
        }
        Self { dump: as_read(&records.content()), settings, selections }
    }

    /// The paths that the first packet of a connection may take.
    fn ways(&self, client: &Client, protocol: u8, to: SocketAddr) -> Vec<Branch> {
        let packet = Packet::new((client.address, Some(40_000)), to, protocol, client.input.clone());
        let branches = walk(packet, None, &mut Listed(&self.dump), &mut Node).unwrap().branches;
        assert!(branches.iter().all(|branch| branch.worlds.is_empty()), "each of our rules can be evaluated");
        branches
    }

    fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.selections.values().any(|selection| selection.cluster_ips.contains(&address))
    }

    /// The outcome that the selection asks for, for packets of a client to a frontend.
    fn wanted(&self, client: &Client, to: IpAddr, port: &PortSelection, frontend: &FrontendSelection) -> Outcome {
        let (is_own, is_local) = (client.input == Link::None, client.is_pod && self.settings.local_traffic.is_some());
        if frontend.sources.as_ref().is_some_and(|ranges| !ranges.iter().any(|range| range.contains(&client.address))) {
            return Outcome::Dropped;
        }
        let (endpoints, masquerade) = match frontend.action {
            Action::Reject => return Outcome::Refused,
            Action::Drop => return Outcome::Dropped,
            Action::Cluster { masquerade } => (&port.cluster, masquerade),
            Action::Local => (&port.local, false),
            Action::ByOrigin if is_own || is_local => (&port.cluster, is_own),
            Action::ByOrigin if port.local.is_empty() => return Outcome::Dropped,
            Action::ByOrigin => (&port.local, false),
        };
        let is_outside = self.settings.local_traffic.is_some() && !is_local;
        let masquerade = masquerade || self.is_cluster_ip(to) && (self.settings.masquerade_all || is_outside);
        // With weights the list may have an endpoint several times.
        let part = 1.0 / f64::from(u32::try_from(endpoints.len()).unwrap());
        let mut shares = BTreeMap::new();
        for endpoint in endpoints.iter() {
            let is_itself = endpoint.ip() == client.address && port.hairpin.contains(endpoint);
            shares.entry(*endpoint).or_insert((0.0, masquerade || is_itself)).0 += part;
        }
        Outcome::Endpoints(shares)
    }

    /// Whether a hash of the client chooses among this many endpoints.
    fn hashes(&self, port: &PortSelection, endpoints: usize) -> bool {
        self.settings.balancing.scheduler(port.scheduler, endpoints) != Scheduler::Random
    }
}

/// The outcome for a packet that may take these paths.
fn outcome(ways: &[Branch]) -> Outcome {
    let mut endpoints: BTreeMap<SocketAddr, (f64, bool)> = BTreeMap::new();
    for way in ways {
        match (&way.fate, way.endpoint) {
            (Some(Fate::Refused), None) => return Outcome::Refused,
            (Some(Fate::Dropped), None) => return Outcome::Dropped,
            (None, None) => return Outcome::Passed,
            (None, Some(endpoint)) => {
                let (share, _) = endpoints.get(&endpoint).copied().unwrap_or_default();
                endpoints.insert(endpoint, (share + way.probability, way.masqueraded));
            }
            (fate, endpoint) => panic!("a packet to {endpoint:?} ends with {fate:?}"),
        }
    }
    Outcome::Endpoints(endpoints)
}

/// Rounds shares: they are sums of fractions, so they are not exact.
fn rounded(outcome: Outcome) -> Outcome {
    let Outcome::Endpoints(endpoints) = outcome else { return outcome };
    let round = |share: f64| (share * 1e6).round() / 1e6;
    Outcome::Endpoints(
        endpoints.into_iter().map(|(to, (share, masquerade))| (to, (round(share), masquerade))).collect(),
    )
}

/// How many packets had each kind of outcome.
#[derive(Debug, Default)]
struct Seen {
    endpoints: usize,
    hashed: usize,
    remembered: usize,
    refused: usize,
    dropped: usize,
}

/// Sends packets of each client to each frontend.
fn send(table: &mut Table, seen: &mut Seen) -> TestCaseResult {
    let family = table.settings.family;
    let ports = table.selections.values().flat_map(|selection| selection.ports.clone());
    let ports: Vec<PortSelection> = ports.filter(|port| port.family == family).collect();
    for port in &ports {
        for (frontend, client) in port.frontends.iter().flat_map(|one| clients(family).map(|client| (one, client))) {
            let address = match frontend.frontend.destination {
                Destination::Address(address) => address,
                Destination::NodePort(_) => own(family),
            };
            let to = SocketAddr::new(address, frontend.frontend.port);
            let ways = table.ways(&client, port.protocol.number(), to);
            let (wanted, found) = (rounded(table.wanted(&client, address, port, frontend)), rounded(outcome(&ways)));
            let about =
                format!("from {} to {to}/{} of {}: {frontend:?}", client.address, port.protocol.number(), port.label);
            match (&wanted, &found) {
                (Outcome::Endpoints(all), Outcome::Endpoints(one)) if table.hashes(port, all.len()) => {
                    let [(endpoint, (share, masquerade))] = one.iter().collect::<Vec<_>>()[..] else {
                        return Err(TestCaseError::fail(format!(
                            "{about}: a hash gives one endpoint, and not {one:?}"
                        )));
                    };
                    prop_assert_eq!(
                        (*share, all.get(endpoint).map(|(_, all)| all)),
                        (1.0, Some(masquerade)),
                        "{}",
                        about
                    );
                    seen.hashed += 1;
                }
                _ => prop_assert_eq!(&wanted, &found, "{}", about),
            }
            match &found {
                Outcome::Endpoints(_) => seen.endpoints += 1,
                Outcome::Refused => seen.refused += 1,
                Outcome::Dropped => seen.dropped += 1,
                Outcome::Passed => {}
            }
            if port.affinity_seconds.is_some() && matches!(found, Outcome::Endpoints(_)) {
                come_back(table, &client, (port, to), &ways)?;
                seen.remembered += 1;
            }
        }
    }
    Ok(())
}

/// Adds the session affinity entries that the last path of a client's first packet adds, and sends the client's next packet, which must
/// reach the same endpoint (E1).
fn come_back(
    table: &mut Table,
    client: &Client,
    (port, to): (&PortSelection, SocketAddr),
    ways: &[Branch],
) -> TestCaseResult {
    let last = ways.last().unwrap();
    let endpoint = last.endpoint.unwrap();
    let sets = last.steps.iter().flat_map(|step| &step.effects).filter_map(|effect| match effect {
        Effect::Remember(set) => Some(set),
        _ => None,
    });
    let sets: BTreeSet<_> = sets.cloned().collect();
    prop_assert!(!sets.is_empty(), "{} does not remember its client", port.label);
    let before = table.dump.sets.clone();
    // The same client may be remembered for the endpoints on this node too (E5).
    for name in sets {
        let (set, elements) = table.dump.sets.get_mut(&name).unwrap();
        let key = Data::from(client.address);
        elements.push(&match set.value {
            Some(_) => Element::mapping(key, Value::Data(Data::from(endpoint.ip()))),
            None => Element::new(key),
        });
    }
    let again = outcome(&table.ways(client, port.protocol.number(), to));
    table.dump.sets = before;
    let expected = Outcome::Endpoints(BTreeMap::from([(endpoint, (1.0, last.masqueraded))]));
    prop_assert_eq!(again, expected, "{} comes back to {} of {}", client.address, to, port.label);
    Ok(())
}

/// Sends packets to ports of cluster IPs that no Service has (D14), to an address of a ServiceCIDR that no Service has (D15), and pings (D25).
fn send_elsewhere(table: &Table, state: &State) -> TestCaseResult {
    let family = table.settings.family;
    let cluster_ips = table.selections.values().flat_map(|selection| selection.cluster_ips.clone());
    let unused: IpAddr = if family == Family::V4 { [10, 96, 0, 99].into() } else { "fd00::99".parse().unwrap() };
    let in_range = state.service_cidrs().iter().any(|range| range.contains(&unused));
    let unused = (unused, if in_range { Outcome::Dropped } else { Outcome::Passed });
    let cluster_ips: Vec<IpAddr> = cluster_ips.filter(|ip| Family::of(*ip) == family).collect();
    let answered = Outcome::Endpoints(BTreeMap::from([(SocketAddr::new(own(family), 0), (1.0, false))]));
    let wanted = if table.settings.pings == Pings::Ignored { Outcome::Refused } else { answered };
    for (address, client) in cluster_ips.iter().flat_map(|ip| clients(family).map(|client| (*ip, client))) {
        let protocol = if family == Family::V4 { protocol::ICMP } else { protocol::ICMPV6 };
        let found = outcome(&table.ways(&client, protocol, SocketAddr::new(address, 0)));
        prop_assert_eq!(&found, &wanted, "a ping from {} to {}", client.address, address);
    }
    let targets = cluster_ips.into_iter().map(|ip| (ip, Outcome::Refused)).chain([unused]);
    for (address, wanted) in targets {
        for client in clients(family) {
            let found = outcome(&table.ways(&client, 6, SocketAddr::new(address, 9)));
            prop_assert_eq!(&found, &wanted, "from {} to {}", client.address, address);
        }
    }
    Ok(())
}

/// The events in place of one, so that many Services have endpoints: none for the deletion of a Service or slice, and for a slice one slice
/// for each Service. Removes the second of two service ports with the same name and protocol, as the conversion of API objects does.
fn with_endpoints(mut event: Event) -> Vec<Event> {
    match &mut event {
        Event::ServiceDeleted(_) | Event::SliceDeleted(_) => return Vec::new(),
        Event::ServiceApplied(service) => {
            let mut seen = BTreeSet::new();
            service.ports.retain(|port| seen.insert((Arc::clone(&port.name), port.protocol)));
        }
        Event::SliceApplied(slice) if slice.name != slice.service => {
            let ports = vec![slice_port("p", 8080), slice_port("q", 8081), slice_port("p/udp", 8080)];
            let one = |service| EndpointSlice {
                name: name(&format!("{service}-{}", slice.name.name)),
                service: name(service),
                ports: ports.clone(),
                ..slice.clone()
            };
            return world::SERVICES.map(one).map(Event::SliceApplied).into();
        }
        _ => {}
    }
    vec![event]
}

fn assert_packets_reach_what_is_selected(layout: Layout, seed: u64) {
    const CASES: u32 = 220;
    let rng_seed = RngSeed::Fixed(seed);
    let config = ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::with_cases(CASES) };
    let seen = std::cell::RefCell::new(Seen::default());
    let clusters = (vec(world::history(), 5).prop_map(|parts| parts.concat()), settings());
    let result = TestRunner::new(config).run(&clusters, |(events, (detect, settings))| {
        let mut state = State::new(NODE);
        events.into_iter().flat_map(with_endpoints).for_each(|event| {
            state.apply(event);
        });
        for family in Family::BOTH {
            let pings =
                if settings.pings == Pings::Ignored { Pings::Ignored } else { Pings::AnsweredBy(Some(own(family))) };
            let local_traffic = detect.of_family(family);
            let settings = Settings { family, local_traffic, pings, ..settings.clone() };
            let mut table = Table::new(layout, settings, &state);
            send(&mut table, &mut seen.borrow_mut())?;
            send_elsewhere(&table, &state)?;
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    let Seen { endpoints, hashed, remembered, refused, dropped } = seen.into_inner();
    for (what, count) in [endpoints, hashed, remembered, refused, dropped].into_iter().enumerate() {
        assert!(count > 80, "the clusters showed too little of outcome {what}: {count}");
    }
}

// Each frontend reaches the endpoints of its selection and no other (D1, D2, D3, D6, D7, D11, D17, D19, D24), with the source that they are
// to see (D5, D8, D10); unused ports of cluster IPs are refused, unused addresses dropped (D14, D15); and a client that is remembered
// comes back to its endpoint (E1).
#[test]
fn packets_reach_what_is_selected_in_layout_maps() {
    assert_packets_reach_what_is_selected(Layout::Maps, 1);
}

// Packets reach the endpoints of the selection if each Service and each endpoint has a chain (D1, D2, D3, D6, D17, E1).
#[test]
fn packets_reach_what_is_selected_in_layout_chains() {
    assert_packets_reach_what_is_selected(Layout::Chains, 2);
}

// Packets reach the endpoints of the selection if Services have chains and endpoints have none (D1, D2, D3, D6, D17, E1).
#[test]
fn packets_reach_what_is_selected_in_chains_of_services() {
    assert_packets_reach_what_is_selected(Layout::ServiceChains, 3);
}

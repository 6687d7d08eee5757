//! Random events of a cluster with so few addresses, ports, ages and names that its Services often claim the same frontends.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::model::testing::{endpoint, name, node, port, ranges, service, slice_port};
use crate::model::{
    Endpoint, EndpointSlice, Event, Family, Node, Scheduler, Service, ServicePort, TrafficPolicy, TriggerTime,
};

pub(crate) const SERVICES: [&str; 3] = ["default/a", "default/b", "prod/a"];
const SLICES: [&str; 4] = ["default/s1", "default/s2", "default/s3", "prod/s1"];
const API_SERVER: &str = "default/kubernetes";
const ADDRESSES: [&str; 4] = ["192.0.2.1", "192.0.2.2", "10.96.0.1", "2001:db8::1"];
/// Ranges of clients; a Service has at most two of them.
const RANGES: [&str; 4] = ["203.0.113.0/24", "10.244.0.0/30", "2001:db8:1::/64", "192.0.2.0/24"];

/// A sequence of random events; it may be empty.
pub(crate) fn history() -> impl Strategy<Value = Vec<Event>> {
    vec(event(), 0..24)
}

/// Deletions of objects that never occur in [`history`].
pub(super) fn deletion_of_unknown() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::ServiceDeleted(name("default/never"))),
        Just(Event::SliceDeleted(name("default/never"))),
        Just(Event::NodeDeleted("never".into())),
        Just(Event::ServiceCidrDeleted("never".into())),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => a_service().prop_map(Event::ServiceApplied),
        2 => select(&SERVICES[..]).prop_map(|text| Event::ServiceDeleted(name(text))),
        6 => a_slice().prop_map(Event::SliceApplied),
        2 => select(&SLICES[..]).prop_map(|text| Event::SliceDeleted(name(text))),
        2 => a_node().prop_map(Event::NodeApplied),
        1 => select(&["here", "there"][..]).prop_map(|text| Event::NodeDeleted(text.into())),
        1 => (select(&["x", "y"][..]), subsequence(vec!["10.96.0.0/16", "fd00::/112"], 0..=2))
            .prop_map(|(name, texts)| Event::ServiceCidrApplied(name.into(), ranges(&texts))),
        1 => select(&["x", "y"][..]).prop_map(|text| Event::ServiceCidrDeleted(text.into())),
        2 => an_api_server().prop_map(Event::SliceApplied),
        1 => Just(Event::SliceDeleted(name(API_SERVER))),
    ]
}

fn a_service() -> impl Strategy<Value = Service> {
    let names = (select(&SERVICES[..]), 0..3_i64, subsequence(vec!["10.96.0.1", "fd00::1"], 0..=2));
    let addresses = (some_addresses(), some_addresses());
    let policies = (a_policy(), a_policy());
    let schedulers = vec![Scheduler::Random, Scheduler::SourceHash, Scheduler::Maglev];
    let clients =
        (subsequence(RANGES.to_vec(), 0..=2), option::of(1..100_u32), option::weighted(0.2, select(schedulers)));
    let parts = (names, addresses, policies, clients, vec(a_port(), 0..3));
    parts.prop_map(|(names, addresses, policies, clients, ports)| Service {
        source_ranges: ranges(&clients.0),
        affinity_seconds: clients.1,
        scheduler: clients.2,
        created: names.1,
        external_ips: addresses.0,
        load_balancer_ips: addresses.1,
        internal_policy: policies.0,
        external_policy: policies.1,
        ports,
        ..service(names.0, &names.2)
    })
}

fn some_addresses() -> impl Strategy<Value = Vec<IpAddr>> {
    subsequence(ADDRESSES.map(|text| text.parse().unwrap()).to_vec(), 0..=2)
}

fn a_policy() -> impl Strategy<Value = TrafficPolicy> {
    select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local])
}

fn a_port() -> impl Strategy<Value = ServicePort> {
    (select(&["p", "q", "p/udp"][..]), 80..82_u16, option::of(30080..30082_u16))
        .prop_map(|(name, number, node_port)| ServicePort { node_port, ..port(name, number) })
}

fn a_slice() -> impl Strategy<Value = EndpointSlice> {
    let names = (select(&SLICES[..]), select(&["default/a", "default/b", "prod/a", "default/none"][..]));
    let ports = vec((select(&["p", "q", "p/udp"][..]), 8080..8082_u16), 0..3);
    let endpoints = prop_oneof![
        3 => vec(an_endpoint(&["10.244.0.1", "10.244.0.2", "10.244.0.3"]), 0..4).prop_map(|list| (Family::V4, list)),
        1 => vec(an_endpoint(&["fd01::1", "fd01::2"]), 0..3).prop_map(|list| (Family::V6, list)),
    ];
    let weight = select(&[1, 1, 1, 2, 3][..]);
    (names, ports, endpoints, weight).prop_map(|(names, ports, (family, endpoints), weight)| EndpointSlice {
        name: name(names.0),
        service: name(names.1),
        family,
        ports: ports.into_iter().map(|(name, number)| slice_port(name, number)).collect(),
        endpoints,
        weight,
        trigger: TriggerTime::default(),
    })
}

/// A slice with endpoints of the API server, whose addresses and ports Services claim too.
fn an_api_server() -> impl Strategy<Value = EndpointSlice> {
    let addresses = subsequence(ADDRESSES[..3].to_vec(), 0..=2);
    (addresses, 80..82_u16).prop_map(|(addresses, number)| EndpointSlice {
        name: name(API_SERVER),
        service: name(API_SERVER),
        family: Family::V4,
        ports: vec![slice_port("p", number)],
        endpoints: addresses.into_iter().map(endpoint).collect(),
        weight: 1,
        trigger: TriggerTime::default(),
    })
}

fn an_endpoint(addresses: &'static [&'static str]) -> impl Strategy<Value = Endpoint> {
    let conditions = select(&["", "", " unready", " terminating", " dead"][..]);
    let places = select(&["", " @here", " @there", " zone=a", " @here zone=a", " @there zone=b"][..]);
    let hints = select(&["", "", " zones=a", " zones=b", " nodes=here", " nodes=there zones=a"][..]);
    (select(addresses), conditions, places, hints)
        .prop_map(|(address, conditions, place, hints)| endpoint(&format!("{address}{conditions}{place}{hints}")))
}

fn a_node() -> impl Strategy<Value = Node> {
    (select(&["here", "here", "there"][..]), option::of(select(&["a", "b"][..])), any::<bool>())
        .prop_map(|(name, zone, eligible)| Node { name: name.into(), eligible, ..node(zone) })
}

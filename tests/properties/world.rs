//! Random changes of a cluster that has so few addresses, ports, ages and names that its objects often claim the same.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rules::model::{
    ClusterIps, Conditions, Endpoint, EndpointSlice, Event, Family, Hints, Node, ObjectName, Protocol, Scheduler,
    Service, ServicePort, SlicePort, TrafficPolicy, TriggerTime, Weights, Zone,
};

use crate::support::plan::{NODE, OTHER_NODE};

const SERVICES: [&str; 3] = ["a", "b", "c"];
const SLICES: [&str; 5] = ["s1", "s2", "s3", "s4", "s5"];
const CIDRS: [&str; 2] = ["x", "y"];
const EXTERNAL: [&str; 5] = ["198.51.100.1", "198.51.100.2", "10.96.0.1", "2001:db8:51::1", "2001:db8:51::2"];
/// Ranges that contain each other, ranges that are neighbours, and one that covers everything.
const SOURCES: [&str; 6] =
    ["10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/24", "203.0.113.0/25", "0.0.0.0/0", "2001:db8:113::/48"];
const RANGES: [&str; 5] = ["10.96.0.0/16", "10.97.0.0/16", "10.96.0.0/12", "fd00:10:96::/112", "fd00:10::/32"];

/// Changes, and in each of them some events that come together.
pub(crate) fn changes() -> impl Strategy<Value = Vec<Vec<Event>>> {
    vec(vec(event(), 1..10), 2..6)
}

/// Deletions of objects that [`changes`] never names.
pub(crate) fn deletion_of_unknown() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::ServiceDeleted(name("never"))),
        Just(Event::SliceDeleted(name("never"))),
        Just(Event::NodeDeleted("never".into())),
        Just(Event::ServiceCidrDeleted("never".into())),
    ]
}

/// The object that an event is about.
pub(crate) fn object(event: &Event) -> String {
    match event {
        Event::ServiceApplied(service) => format!("Service {}", service.name),
        Event::ServiceDeleted(name) => format!("Service {name}"),
        Event::SliceApplied(slice) => format!("EndpointSlice {}", slice.name),
        Event::SliceDeleted(name) => format!("EndpointSlice {name}"),
        Event::NodeApplied(node) => format!("Node {}", node.name),
        Event::NodeDeleted(name) => format!("Node {name}"),
        Event::ServiceCidrApplied(name, _) | Event::ServiceCidrDeleted(name) => format!("ServiceCIDR {name}"),
        Event::ApiServerAt(_) => "API server".to_owned(),
        Event::InitialListDone => "InitialListDone".to_owned(),
        Event::Wake => "Wake".to_owned(),
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => a_service().prop_map(Event::ServiceApplied),
        2 => select(&SERVICES[..]).prop_map(|text| Event::ServiceDeleted(name(text))),
        8 => a_slice().prop_map(Event::SliceApplied),
        1 => select(&SLICES[..]).prop_map(|text| Event::SliceDeleted(name(text))),
        2 => a_node().prop_map(Event::NodeApplied),
        2 => (select(&CIDRS[..]), some(&RANGES)).prop_map(|(name, ranges)| Event::ServiceCidrApplied(name.into(), ranges)),
        1 => select(&CIDRS[..]).prop_map(|text| Event::ServiceCidrDeleted(text.into())),
    ]
}

fn name(text: &str) -> ObjectName {
    ObjectName::new("shop", text)
}

/// Some of these, parsed.
fn some<T>(texts: &'static [&'static str]) -> impl Strategy<Value = Vec<T>>
where
    T: std::str::FromStr<Err: std::fmt::Debug> + Clone + std::fmt::Debug + 'static,
{
    let parse = |text: &&str| text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}"));
    subsequence(texts.iter().map(parse).collect::<Vec<T>>(), 0..=3)
}

fn a_service() -> impl Strategy<Value = Service> {
    let cluster_ips =
        (option::weighted(0.9, select(&["10.96.0.1", "10.96.0.2"][..])), option::of(Just("fd00:10:96::1")));
    let names = (select(&SERVICES[..]), 0..3_i64, cluster_ips);
    let addresses = (some::<IpAddr>(&EXTERNAL), some::<IpAddr>(&EXTERNAL), some::<IpNet>(&SOURCES));
    let scheduler = option::of(select(vec![Scheduler::Random, Scheduler::SourceHash, Scheduler::Maglev]));
    let policies = (a_policy(), a_policy(), option::of(Just(10_800)), scheduler, weights());
    (names, addresses, policies, vec(a_port(), 1..3)).prop_map(|(names, addresses, policies, ports)| Service {
        ignores_external_ips: false,
        asks_for_hints: false,
        name: name(names.0),
        created: names.1,
        cluster_ips: ClusterIps {
            v4: names.2.0.and_then(|ip| ip.parse().ok()),
            v6: names.2.1.and_then(|ip| ip.parse().ok()),
        },
        external_ips: addresses.0,
        load_balancer_ips: addresses.1,
        source_ranges: addresses.2,
        internal_policy: policies.0,
        external_policy: policies.1,
        affinity_seconds: policies.2,
        scheduler: policies.3,
        close_connections: None,
        keeps_unready_udp_flows: false,
        weights: policies.4,
        health_check_node_port: None,
        ports,
    })
}

fn weights() -> impl Strategy<Value = Weights> {
    let weight = || option::weighted(0.3, 1..=4_u8);
    (weight(), weight()).prop_map(|(local, zone)| Weights { local, zone })
}

fn a_policy() -> impl Strategy<Value = TrafficPolicy> {
    select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local])
}

fn port_name() -> impl Strategy<Value = (Arc<str>, Protocol)> {
    select(vec![("p", Protocol::Tcp), ("q", Protocol::Tcp), ("p", Protocol::Udp), ("p", Protocol::Sctp)])
        .prop_map(|(name, protocol)| (name.into(), protocol))
}

fn a_port() -> impl Strategy<Value = ServicePort> {
    (port_name(), 80..82_u16, option::of(30_080..30_082_u16))
        .prop_map(|((name, protocol), port, node_port)| ServicePort { name, protocol, port, node_port })
}

fn a_slice() -> impl Strategy<Value = EndpointSlice> {
    let names = (select(&SLICES[..]), select(&["a", "a", "b", "b", "c", "none"][..]));
    let ports = vec((port_name(), 8080..8082_u16), 2..5);
    let v4 = &["10.244.1.10", "10.244.1.11", "10.244.2.10", "10.244.2.11", "10.244.2.12"];
    let v6 = &["fd00:10:244:1::10", "fd00:10:244:2::10", "fd00:10:244:2::11"];
    let endpoints = prop_oneof![
        3 => vec(an_endpoint(v4), 0..6).prop_map(|list| (Family::V4, list)),
        1 => vec(an_endpoint(v6), 0..4).prop_map(|list| (Family::V6, list)),
    ];
    let weight = select(&[1, 1, 1, 2, 3][..]);
    (names, ports, endpoints, weight).prop_map(|(names, ports, (family, endpoints), weight)| EndpointSlice {
        name: name(names.0),
        service: name(names.1),
        family,
        ports: ports.into_iter().map(|((name, protocol), port)| SlicePort { name, protocol, port }).collect(),
        endpoints,
        weight,
        trigger: TriggerTime::default(),
    })
}

fn an_endpoint(addresses: &'static [&'static str]) -> impl Strategy<Value = Endpoint> {
    let conditions = prop_oneof![
        3 => Just(Conditions::READY),
        2 => (any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(ready, serving, terminating)| Conditions { ready, serving, terminating }),
    ];
    let place = option::of(select(vec![NODE, OTHER_NODE]));
    let hints = prop_oneof![
        3 => Just(None),
        2 => (subsequence(vec!["a", "b"], 0..=2), subsequence(vec![NODE, OTHER_NODE], 0..=1)).prop_map(Some),
    ];
    let zone = select(&["", "a", "b"][..]);
    (select(addresses), conditions, place, zone, hints).prop_map(|(address, conditions, place, zone, hints)| Endpoint {
        address: address.parse().expect("an address"),
        conditions,
        node: place.map(Into::into),
        zone: Zone::of(zone),
        hints: hints.map(|(zones, nodes)| Box::new(Hints { zones: shared(zones), nodes: shared(nodes) })),
    })
}

fn shared(texts: Vec<&str>) -> Vec<Arc<str>> {
    texts.into_iter().map(Into::into).collect()
}

fn a_node() -> impl Strategy<Value = Node> {
    let ips = some::<IpAddr>(&["192.0.2.2", "10.0.0.7", "2001:db8::2"]);
    let pod_cidrs = some::<IpNet>(&["10.244.1.0/24", "10.244.2.0/24", "fd00:10:244:1::/64"]);
    (select(vec![NODE, NODE, OTHER_NODE]), option::of(select(vec!["a", "b"])), ips, pod_cidrs).prop_map(
        |(name, zone, ips, pod_cidrs)| Node {
            name: name.into(),
            zone: zone.map(Into::into),
            ips,
            pod_cidrs,
            eligible: true,
            drained: false,
        },
    )
}

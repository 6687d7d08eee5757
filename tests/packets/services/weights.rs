//! Weights: an endpoint with a larger weight gets more of the new connections, in each layout and with each scheduler; the output of
//! `services`, `explain` and `verify` about it; and the cost of a change of an endpoint.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::scheduler::{connect_all, frontend, world_of_clients};
use crate::inspect::{command, outcome};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slice};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe_many};
use crate::support::proxy::{Proxy, config_in};
use crate::support::stats::assert_shares;
use crate::support::world::World;

const WEIGHTS: &str = "kube-proxy-nft/weights";
const WEIGHT: &str = "kube-proxy-nft/weight";
const SCHEDULER: &str = "kube-proxy-nft/scheduler";
const HTTP: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const NODE_PORT: u16 = 30080;
const ZONE: &str = "a";
/// Enough connections to distinguish a share of one in ten from a share of one in five.
const MANY: u32 = 300;

/// The endpoints 0 and 1 are on this node, the others are not; 2 is in this node's zone.
const ALL: [u8; 4] = [0, 1, 2, 3];

fn web() -> ServiceBuilder {
    service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT)
}

fn annotated(mut object: Value, annotations: &[(&str, &str)]) -> Value {
    for (key, value) in annotations {
        object["metadata"]["annotations"][key] = json!(value);
    }
    object
}

/// A slice of `shop/web` with these endpoints, each in its zone.
fn slice_of(name: &str, family: Family, which: &[u8]) -> Value {
    let endpoints: Vec<IpAddr> = which.iter().map(|n| family.endpoint(*n)).collect();
    let mut slice = slice("shop", "web", &format!("{name}-{family:?}").to_lowercase(), &endpoints, &HTTP);
    for (index, n) in which.iter().enumerate() {
        slice["endpoints"][index]["zone"] = json!(if *n == 3 { "b" } else { ZONE });
    }
    slice
}

fn slices_of(name: &str, which: &[u8]) -> Vec<Value> {
    Family::ALL.map(|family| slice_of(name, family, which)).to_vec()
}

/// Slices whose endpoints have this weight.
fn heavy(name: &str, which: &[u8], weight: &str) -> Vec<Value> {
    slices_of(name, which).into_iter().map(|slice| annotated(slice, &[(WEIGHT, weight)])).collect()
}

fn cluster(web: Value, slices: Vec<Value>) -> Vec<Value> {
    let mut node = node();
    node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(ZONE);
    [vec![node, service_cidr(), web], slices].concat()
}

/// How often the connections of a flow reach each of the endpoints.
fn counts(from: &Namespace, flow: Flow) -> BTreeMap<IpAddr, u32> {
    let mut counts = BTreeMap::new();
    for (outcome, times) in probe_many(from, flow, MANY) {
        let Outcome::Reached(answer) = outcome else { panic!("{flow:?}: {outcome:?}") };
        *counts.entry(answer.endpoint).or_default() += times;
    }
    counts
}

/// Connections to a frontend reach the plan's endpoints in proportion to these weights.
fn assert_weighted(from: &Namespace, flow: Flow, weights: &[(u8, u32)]) {
    let counts = counts(from, flow);
    let family = Family::of(flow.target.ip());
    let reached = |n: u8| counts.get(&family.endpoint(n)).copied().unwrap_or(0);
    let cells: Vec<(u32, u32)> = weights.iter().map(|(n, weight)| (reached(*n), *weight)).collect();
    assert_eq!(cells.iter().map(|(count, _)| count).sum::<u32>(), MANY, "{flow:?}: {counts:?}");
    assert_shares(&format!("{flow:?}"), &cells);
}

fn to_cluster_ip(family: Family, source: IpAddr) -> Flow {
    Flow::new(Proto::Tcp, source, family.cluster_ip(1), 80)
}

fn json_of(node: &Namespace, args: &[&str]) -> Value {
    let (_, text, errors) = outcome(&mut command(node, args));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{errors}"))
}

/// The shares in percent of each frontend's endpoints, by the numbers of the plan, as `services` prints them: of all, and from outside.
fn listed(node: &Namespace, field: &str) -> BTreeMap<String, Vec<Option<f64>>> {
    let listed = json_of(node, &["services", "-o", "json"]);
    let shares = |service: &Value| {
        let endpoints = service["endpoints"].as_array().expect("a list of endpoints").iter();
        endpoints.map(|endpoint| endpoint[field].as_f64()).collect()
    };
    let services = listed["services"].as_array().expect("a list of frontends").iter();
    services.map(|one| (format!("{} {}", one["front"]["kind"], one["front"]["family"]), shares(one))).collect()
}

/// Each frontend's endpoints have these shares in percent, in what `services` prints.
fn assert_listed(node: &Namespace, shares: &[f64]) {
    let found = listed(node, "sharePercent");
    assert_eq!(found.len(), 4, "cluster IP and node port of each family: {found:?}");
    for (frontend, found) in found {
        assert_eq!(found, shares.iter().copied().map(Some).collect::<Vec<_>>(), "{frontend}");
    }
}

/// The probability of each endpoint, as `explain` has it.
fn explained(node: &Namespace, flow: Flow) -> Vec<f64> {
    let (from, to) = (flow.source.to_string(), flow.target.to_string());
    let found = json_of(node, &["explain", "--from", &from, "--to", &to, "-o", "json"]);
    let endpoints = found["endpoints"].as_array().unwrap_or_else(|| panic!("{found}"));
    endpoints.iter().map(|endpoint| endpoint["probability"].as_f64().unwrap_or_default()).collect()
}

fn assert_explained(node: &Namespace, flow: Flow, expected: &[f64]) {
    let found = explained(node, flow);
    let is_near = |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-6;
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_near), "{flow:?}: {found:?}");
}

/// The rules and elements of a node, without the times of remembered clients and the numbers of counters.
fn rules(node: &Namespace) -> String {
    let listing = nft::list_ruleset(node);
    let mut kept: Vec<&str> = Vec::new();
    for word in listing.split_whitespace() {
        let is_number = matches!(kept.last(), Some(&("expires" | "packets" | "bytes")));
        kept.extend((!is_number).then_some(word));
    }
    kept.join(" ")
}

/// `verify` finds no difference, and a new process of the proxy writes nothing.
fn assert_settled(world: &World, proxy: &mut Proxy<'_>) {
    let path = |path: &Path| path.to_str().expect("a temporary path is text").to_owned();
    let (config, manifests) = (path(&proxy.config_path()), path(proxy.manifests().path()));
    let verified = || outcome(&mut command(&world.node, &["verify", "--config", &config, "--manifests", &manifests]));
    assert_eq!(verified().0, Some(0), "verify: {}", verified().1);
    let before = rules(&world.node);
    proxy.kill();
    proxy.launch();
    assert_eq!(rules(&world.node), before, "a restart changed rules");
    assert_eq!(verified().0, Some(0), "verify: {}", verified().1);
}

// Endpoints on this node, and in its zone, get as many times the connections as the annotation of the Service says, at each frontend
// and whatever the change; without it all get the same (E15).
test_in_each_layout!(endpoints_near_by_get_more_connections);
fn endpoints_near_by_get_more_connections(layout: Layout) {
    let world = World::new();
    let weighted = |weights| annotated(web().json(), &[(WEIGHTS, weights)]);
    let mut proxy =
        Proxy::start(&world.node, &config_in(layout), &cluster(weighted("local=4"), slices_of("web", &ALL)));
    let near = [(0, 4), (1, 4), (2, 1), (3, 1)];
    for family in Family::ALL {
        assert_weighted(&world.client, to_cluster_ip(family, family.client()), &near);
        let node_port = Flow::new(Proto::Tcp, family.client(), family.node(), NODE_PORT);
        assert_weighted(&world.client, node_port, &near);
        assert_explained(&world.node, node_port, &[0.4, 0.4, 0.1, 0.1]);
    }
    assert_listed(&world.node, &[40.0, 40.0, 10.0, 10.0]);
    assert_settled(&world, &mut proxy);
    let v4 = to_cluster_ip(Family::V4, Family::V4.client());
    for (weights, expected, shares) in [
        ("zone=3", [(0, 3), (1, 3), (2, 3), (3, 1)], [30.0, 30.0, 30.0, 10.0]),
        ("local=4,zone=2", [(0, 4), (1, 4), (2, 2), (3, 1)], [36.4, 36.4, 18.2, 9.1]),
    ] {
        proxy.apply(&[weighted(weights)]);
        assert_listed(&world.node, &shares);
        assert_weighted(&world.client, v4, &expected);
    }
    assert_settled(&world, &mut proxy);
    proxy.apply(&slices_of("web", &[0, 3]));
    assert_listed(&world.node, &[80.0, 20.0]);
    assert_weighted(&world.client, v4, &[(0, 4), (3, 1)]);
    proxy.apply(&[web().json()]);
    assert!(listed(&world.node, "sharePercent").values().flatten().all(Option::is_none), "all are alike again");
    assert_weighted(&world.client, v4, &[(0, 1), (3, 1)]);
}

// The endpoints of a slice have the weight of its annotation, also under policy Local, and an invalid weight is named (E16).
test_in_each_layout!(endpoints_of_a_slice_with_a_weight_get_more_connections);
fn endpoints_of_a_slice_with_a_weight_get_more_connections(layout: Layout) {
    let world = World::new();
    let local = web().spec("externalTrafficPolicy", json!("Local")).json();
    let slices = [heavy("stable", &[0, 2], "90"), heavy("canary", &[1], "10")].concat();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(local, slices));
    for family in Family::ALL {
        assert_weighted(&world.client, to_cluster_ip(family, family.client()), &[(0, 9), (1, 1), (2, 9)]);
        let node_port = Flow::new(Proto::Tcp, family.client(), family.node(), NODE_PORT);
        assert_weighted(&world.client, node_port, &[(0, 9), (1, 1)]);
        assert_explained(&world.node, node_port, &[0.9, 0.1]);
    }
    assert_listed(&world.node, &[47.4, 5.3, 47.4]);
    let outside = listed(&world.node, "sharePercentOutside");
    assert_eq!(outside["\"NodePort\" \"IPv4\""], [Some(90.0), Some(10.0), None], "{outside:?}");
    let (_, text, _) = outcome(&mut command(&world.node, &["services", "shop/web"]));
    let line = text.lines().find(|line| line.contains("from outside")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("local 47.4% 90.0% from outside"), "{text}");
    assert_settled(&world, &mut proxy);
    let log = proxy.log().len();
    proxy.apply(&heavy("canary", &[1], "1000"));
    let news = proxy.log()[log..].to_owned();
    assert!(news.contains("metadata.annotations[kube-proxy-nft/weight]") && news.contains("1 is used"), "{news}");
    let log = proxy.log().len();
    proxy.apply(&[annotated(web().json(), &[(WEIGHTS, "local=4;zone=2")])]);
    let news = proxy.log()[log..].to_owned();
    assert!(news.contains("metadata.annotations[kube-proxy-nft/weights]") && news.contains("; ignored"), "{news}");
}

// With a scheduler that chooses by the client, each endpoint gets its share of the clients, each client keeps its endpoint, and a restart
// changes nothing (E15, E9, E10).
test_in_each_layout!(clients_are_shared_by_weight_too);
fn clients_are_shared_by_weight_too(layout: Layout) {
    let world = world_of_clients();
    let with = |scheduler| annotated(web().json(), &[(WEIGHTS, "local=4"), (SCHEDULER, scheduler)]);
    let objects = cluster(with("random"), slices_of("web", &ALL));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for scheduler in ["maglev", "source-hash"] {
        proxy.apply(&[with(scheduler)]);
        for family in Family::ALL {
            let first = connect_all(&world, Proto::Tcp, frontend(family));
            let count = |n: u8| first.values().filter(|reached| reached.ip() == family.endpoint(n)).count();
            let cells =
                [(0, 4), (1, 4), (2, 1), (3, 1)].map(|(n, weight)| (u32::try_from(count(n)).unwrap_or(0), weight));
            assert_shares(scheduler, &cells);
            assert_eq!(connect_all(&world, Proto::Tcp, frontend(family)), first, "{scheduler}");
        }
        assert_listed(&world.node, &[40.0, 40.0, 10.0, 10.0]);
        assert_settled(&world, &mut proxy);
    }
}

// A client that session affinity remembers stays with its endpoint when weights come and go; they count for new clients (E13, E15).
test_in_each_layout!(remembered_clients_stay_whatever_the_weights);
fn remembered_clients_stay_whatever_the_weights(layout: Layout) {
    let world = world_of_clients();
    let sticky = || web().client_ip_affinity(10_800).json();
    let slices = slices_of("web", &ALL);
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(sticky(), slices));
    let first = connect_all(&world, Proto::Tcp, frontend(Family::V4));
    proxy.apply(&[annotated(sticky(), &[(WEIGHTS, "local=50")])]);
    assert_eq!(connect_all(&world, Proto::Tcp, frontend(Family::V4)), first);
    let new = connect_all(&world, Proto::Tcp, frontend(Family::V6));
    let near = [Family::V6.endpoint(0), Family::V6.endpoint(1)];
    let count = new.values().filter(|reached| near.contains(&reached.ip())).count();
    assert!(count > new.len() * 9 / 10, "{count} of {} new clients reach this node", new.len());
    assert_settled(&world, &mut proxy);
}

// The userspace proxy of node ports on loopback chooses by weight too (E15, R3).
#[test]
fn a_node_port_on_loopback_has_the_same_shares() {
    let world = World::new();
    let mut config = config_in(Layout::Maps);
    config["featureGates"] = json!({ "KubeProxyNFTablesLocalhostNodePorts": true });
    config["nodePortAddresses"] = json!(["primary", "localhost"]);
    let weighted = annotated(web().json(), &[(WEIGHTS, "local=4")]);
    let _proxy = Proxy::start(&world.node, &config, &cluster(weighted, slices_of("web", &ALL)));
    let loopback = Family::V4.loopback();
    let flow = Flow::new(Proto::Tcp, loopback, loopback, NODE_PORT);
    let counts = counts(&world.node, flow);
    let cells = [(0, 4), (1, 4), (2, 1), (3, 1)]
        .map(|(n, weight)| (counts.get(&Family::V4.endpoint(n)).copied().unwrap_or(0), weight));
    assert_shares("loopback", &cells);
}

//! Schedulers that choose by the client: the same endpoint as long as the endpoints stay, even shares, few clients that move, the same
//! choice on every node, and what `explain` tells of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::inspect::{command, outcome};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slice, slices};
use crate::support::plan::{Family, host_prefix};
use crate::support::probe::{Flow, Outcome, Proto, probe_served};
use crate::support::proxy::{Proxy, config_in};
use crate::support::server::Server;
use crate::support::stats::assert_even;
use crate::support::world::World;

const ANNOTATION: &str = "kube-proxy-nft/scheduler";
const PORTS: [(&str, Proto, u16); 3] =
    [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 8080), ("sig", Proto::Sctp, 8080)];
/// Clients of each family.
const CLIENTS: u8 = 120;
/// Endpoints where it is about those that come and go.
const MANY: u8 = 10;

/// The endpoint of each client.
pub(super) type Reached = BTreeMap<IpAddr, SocketAddr>;

fn client(family: Family, n: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("203.0.113.{}", 100 + n) } else { format!("2001:db8:113::1:{n}") };
    text.parse().expect("a client's address is well-formed")
}

fn endpoint(family: Family, n: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("10.244.3.{}", 1 + n) } else { format!("fd00:10:244:3::{}", 1 + n) };
    text.parse().expect("an endpoint's address is well-formed")
}

/// A world whose client has [`CLIENTS`] more addresses in each family.
pub(super) fn world_of_clients() -> World {
    let world = World::new();
    for family in Family::ALL {
        let add = |n| format!("addr add {} dev eth0", host_prefix(client(family, n)));
        world.client.ip(&(0..CLIENTS).map(add).collect::<Vec<_>>());
    }
    world.node.ip(&[
        "route add 203.0.113.0/24 via 169.254.2.2 dev to-client",
        "route add 2001:db8:113::/64 via fe80::2 dev to-client",
    ]);
    world
}

/// Gives the other node [`MANY`] more endpoints in each family, with a server.
fn add_endpoints(world: &World) -> Server {
    let all: Vec<IpAddr> =
        Family::ALL.into_iter().flat_map(|family| (0..MANY).map(move |n| endpoint(family, n))).collect();
    world.remote.ip(&all.iter().map(|ip| format!("addr add {} dev eth0 nodad", host_prefix(*ip))).collect::<Vec<_>>());
    world.node.ip(&[
        "route add 10.244.3.0/24 via 169.254.3.2 dev to-remote",
        "route add fd00:10:244:3::/64 via fe80::2 dev to-remote",
    ]);
    Server::start(&world.remote, &all, &[8080])
}

fn config_with(layout: Layout, scheduler: &str) -> Value {
    let mut config = config_in(layout);
    config["nftables"]["scheduler"] = json!(scheduler);
    config
}

fn web() -> ServiceBuilder {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80);
    web.port("dns", Proto::Udp, 53).port("sig", Proto::Sctp, 99)
}

fn cluster(web: ServiceBuilder, which: &[u8]) -> Vec<Value> {
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", which, &PORTS));
    objects
}

/// The slices of `shop/web` with these endpoints of the many.
fn many(which: impl Iterator<Item = u8> + Clone) -> Vec<Value> {
    let of = |family: Family| {
        let endpoints: Vec<IpAddr> = which.clone().map(|n| endpoint(family, n)).collect();
        slice("shop", "web", &format!("web-{family:?}").to_lowercase(), &endpoints, &PORTS)
    };
    Family::ALL.map(of).to_vec()
}

pub(super) fn frontend(family: Family) -> SocketAddr {
    SocketAddr::new(family.cluster_ip(1), 80)
}

/// One new connection of a client.
fn connect(from: &Namespace, client: IpAddr, proto: Proto, frontend: SocketAddr) -> SocketAddr {
    match probe_served(from, Flow::new(proto, client, frontend.ip(), frontend.port())) {
        Outcome::Reached(answer) => SocketAddr::new(answer.endpoint, answer.port),
        other => panic!("{client} to {frontend} over {proto:?}: {other:?}"),
    }
}

/// One new connection of each client.
pub(super) fn connect_all(world: &World, proto: Proto, frontend: SocketAddr) -> Reached {
    let family = Family::of(frontend.ip());
    let one = |n| (client(family, n), connect(&world.client, client(family, n), proto, frontend));
    (0..CLIENTS).map(one).collect()
}

fn shares(reached: &Reached, endpoints: usize) -> Vec<u32> {
    let mut counts: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    reached.values().for_each(|endpoint| *counts.entry(*endpoint).or_default() += 1);
    assert_eq!(counts.len(), endpoints, "{counts:?}");
    counts.into_values().collect()
}

/// The endpoint that `explain` names.
fn explained(node: &Namespace, from: &str, to: SocketAddr) -> Vec<String> {
    let (_, text, errors) =
        outcome(&mut command(node, &["explain", "--from", from, "--to", &to.to_string(), "-o", "json"]));
    let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{errors}"));
    let endpoints = found["endpoints"].as_array().unwrap_or_else(|| panic!("no endpoints in {text}"));
    endpoints.iter().map(|e| e["address"].as_str().unwrap_or_default().to_owned()).collect()
}

// A client reaches the same endpoint with each connection, all clients together reach each endpoint as often, and `explain` names the
// endpoint (E9, E10).
fn a_client_stays_with_its_endpoint(layout: Layout, scheduler: &str) {
    let world = world_of_clients();
    let proxy = Proxy::start(&world.node, &config_with(layout, scheduler), &cluster(web(), &[0, 1, 2, 3]));
    for family in Family::ALL {
        let ip = family.cluster_ip(1);
        let first = connect_all(&world, Proto::Tcp, frontend(family));
        assert_even(scheduler, &shares(&first, 4));
        assert_eq!(connect_all(&world, Proto::Tcp, frontend(family)), first);
        for n in 0..20 {
            let (client, endpoint) = (client(family, n), first[&client(family, n)]);
            // The ports of a Service have the same endpoints here, and the hash is that of the client.
            let udp = connect(&world.client, client, Proto::Udp, SocketAddr::new(ip, 53));
            let sctp = connect(&world.client, client, Proto::Sctp, SocketAddr::new(ip, 99));
            assert_eq!((udp, sctp), (endpoint, endpoint), "{client}");
            assert_eq!(explained(&world.node, &client.to_string(), frontend(family)), [endpoint.ip().to_string()]);
        }
    }
    let path = |path: &Path| path.to_str().expect("a temporary path is text").to_owned();
    let (config, manifests) = (path(&proxy.config_path()), path(proxy.manifests().path()));
    let (code, text, _) =
        outcome(&mut command(&world.node, &["verify", "--config", &config, "--manifests", &manifests]));
    assert_eq!(code, Some(0), "verify: {text}");
    let (_, text, _) = outcome(&mut command(&world.node, &["services", "-o", "json"]));
    let listed: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let services = listed["services"].as_array().unwrap_or_else(|| panic!("{text}"));
    assert_eq!(services.len(), 6, "three ports in two families: {text}");
    assert!(services.iter().all(|service| service["endpoints"].as_array().is_some_and(|all| all.len() == 4)), "{text}");
    // What is written can be listed, and what is listed can be loaded.
    let listing = nft::without_owner(&nft::list_ruleset(&world.node));
    let other = Namespace::new("reload");
    nft::load(&other, &listing);
    let relisted = nft::list_ruleset(&other);
    if nft::keeps_numbers() {
        assert_eq!(relisted, listing);
    } else {
        assert_eq!(nft::normalised(&relisted), nft::normalised(&listing));
    }
}

test_in_each_layout!(with_source_hash_a_client_stays_with_its_endpoint);
fn with_source_hash_a_client_stays_with_its_endpoint(layout: Layout) {
    a_client_stays_with_its_endpoint(layout, "source-hash");
}

test_in_each_layout!(with_maglev_a_client_stays_with_its_endpoint);
fn with_maglev_a_client_stays_with_its_endpoint(layout: Layout) {
    a_client_stays_with_its_endpoint(layout, "maglev");
}

/// How many clients moved, and how many had to because their endpoint went.
fn moved(before: &Reached, after: &Reached, gone: IpAddr) -> (usize, usize) {
    let moved = before.iter().filter(|(client, endpoint)| after[*client] != **endpoint).count();
    (moved, before.values().filter(|endpoint| endpoint.ip() == gone).count())
}

// When one of ten endpoints goes, little more clients move than it had, and all are back when it is back (E10).
#[test]
fn with_maglev_few_clients_move_when_an_endpoint_goes_or_comes() {
    let world = world_of_clients();
    let _server = add_endpoints(&world);
    let objects = [vec![node(), service_cidr(), web().json()], many(0..MANY)].concat();
    let mut proxy = Proxy::start(&world.node, &config_with(Layout::Maps, "maglev"), &objects);
    let all = || Family::ALL.map(|family| connect_all(&world, Proto::Tcp, frontend(family)));
    let before = all();
    before.iter().for_each(|reached| assert_even("maglev", &shares(reached, usize::from(MANY))));
    let (mut moves, mut had) = (0, 0);
    for gone in [0, 4, 9] {
        proxy.apply(&many((0..MANY).filter(|n| *n != gone)));
        for (family, (before, after)) in Family::ALL.into_iter().zip(before.iter().zip(&all())) {
            let (moved, had_to) = moved(before, after, endpoint(family, gone));
            assert!(moved >= had_to, "{moved} of {had_to}");
            (moves, had) = (moves + moved, had + had_to);
        }
        proxy.apply(&many(0..MANY));
        assert_eq!(all(), before, "endpoint {gone} is back");
    }
    assert!(had > 0 && 2 * moves <= 3 * had, "{moves} moved, {had} had to");
}

// A hash of the client moves nobody as long as the endpoints stay, and brings all back when they are back (E9).
test_in_each_layout!(with_source_hash_the_same_endpoints_have_the_same_clients);
fn with_source_hash_the_same_endpoints_have_the_same_clients(layout: Layout) {
    let world = world_of_clients();
    let mut proxy = Proxy::start(&world.node, &config_with(layout, "source-hash"), &cluster(web(), &[0, 1, 2, 3]));
    let before = connect_all(&world, Proto::Tcp, frontend(Family::V4));
    proxy.apply(&slices("shop", "web", &[0, 1, 3], &PORTS));
    assert_even("of three", &shares(&connect_all(&world, Proto::Tcp, frontend(Family::V4)), 3));
    proxy.apply(&slices("shop", "web", &[3, 2, 1, 0], &PORTS));
    assert_eq!(connect_all(&world, Proto::Tcp, frontend(Family::V4)), before);
}

// Two nodes choose alike, however the endpoints came and in any layout, and so does a process that finds the rules of another (E11).
#[test]
fn nodes_and_restarts_choose_alike() {
    // With `maglev` the two forms of layout `chains` are the same.
    let cases = [("source-hash", Layout::Chains), ("maglev", Layout::Chains), ("source-hash", Layout::ServiceChains)];
    for (scheduler, layout) in cases {
        let (one, other) = (world_of_clients(), world_of_clients());
        let _one = Proxy::start(&one.node, &config_with(Layout::Maps, scheduler), &cluster(web(), &[0, 1, 2, 3]));
        // The other node got there over other endpoints, one after the other, and was started anew in between.
        let mut proxy = Proxy::start(&other.node, &config_with(layout, scheduler), &cluster(web(), &[2]));
        proxy.apply(&slices("shop", "web", &[3, 1], &PORTS));
        proxy.kill();
        proxy.manifests().apply(&web().json());
        slices("shop", "web", &[1, 3, 0, 2], &PORTS).iter().for_each(|slice| proxy.manifests().apply(slice));
        proxy.launch();
        for family in Family::ALL {
            let [first, second] = [&one, &other].map(|world| connect_all(world, Proto::Tcp, frontend(family)));
            assert_eq!(first, second, "{scheduler}, {layout:?}");
        }
        // Chains that the last sync emptied are deleted a second later.
        let mut before = nft::list_ruleset(&other.node);
        loop {
            thread::sleep(Duration::from_millis(1_500));
            let now = nft::list_ruleset(&other.node);
            if std::mem::replace(&mut before, now.clone()) == now {
                break;
            }
        }
        proxy.kill();
        proxy.launch();
        assert_eq!(nft::list_ruleset(&other.node), before, "{scheduler}, {layout:?}: a restart changed rules");
    }
}

// The annotation of a Service counts before the configuration, and goes with it (E12).
test_in_each_layout!(an_annotation_is_for_one_service);
fn an_annotation_is_for_one_service(layout: Layout) {
    let world = world_of_clients();
    let annotated = |name: &str| {
        let mut object = web().json();
        object["metadata"]["annotations"] = json!({ ANNOTATION: name });
        object
    };
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(web(), &[0, 1, 2, 3]));
    let twice = || [0, 1].map(|_| connect_all(&world, Proto::Tcp, frontend(Family::V4)));
    let differ = |[first, second]: [Reached; 2]| first != second;
    assert!(differ(twice()), "120 clients chose the same of four endpoints twice, at random");
    for name in ["source-hash", "maglev"] {
        proxy.apply(&[annotated(name)]);
        assert!(!differ(twice()), "{name}");
    }
    proxy.apply(&[annotated("random")]);
    assert!(differ(twice()));
    let log = proxy.log();
    proxy.apply(&[annotated("lc")]);
    assert!(differ(twice()));
    let news = proxy.log()[log.len()..].to_owned();
    assert!(news.contains("is unknown, known are: random, source-hash, maglev; ignored"), "{news}");
}

// A client that session affinity remembers stays where it is; the scheduler chooses for the others (E13).
test_in_each_layout!(session_affinity_counts_before_the_scheduler);
fn session_affinity_counts_before_the_scheduler(layout: Layout) {
    let world = world_of_clients();
    let sticky = || web().client_ip_affinity(10_800);
    let mut proxy = Proxy::start(&world.node, &config_with(layout, "source-hash"), &cluster(sticky(), &[0, 1, 3]));
    let first = connect_all(&world, Proto::Tcp, frontend(Family::V4));
    proxy.apply(&slices("shop", "web", &[0, 1, 2, 3], &PORTS));
    assert_eq!(connect_all(&world, Proto::Tcp, frontend(Family::V4)), first, "remembered clients stay");
    proxy.delete(&[sticky().json()]);
    proxy.apply(&[web().json()]);
    let by_hash = connect_all(&world, Proto::Tcp, frontend(Family::V4));
    proxy.apply(&[sticky().json()]);
    assert_eq!(connect_all(&world, Proto::Tcp, frontend(Family::V4)), by_hash, "the hash chooses for new clients");
    assert_ne!(by_hash, first);
}

// Node ports and policies have the lists that they have with any scheduler: external policy Local keeps to this node (E9, E10, D6).
test_in_each_layout!(policies_and_node_ports_choose_among_their_own_lists);
fn policies_and_node_ports_choose_among_their_own_lists(layout: Layout) {
    let world = world_of_clients();
    for scheduler in ["source-hash", "maglev"] {
        let local = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
        let mut objects = vec![node(), service_cidr(), local.spec("externalTrafficPolicy", json!("Local")).json()];
        objects.extend(slices("shop", "web", &[0, 1, 2, 3], &PORTS[..1]));
        let _proxy = Proxy::start(&world.node, &config_with(layout, scheduler), &objects);
        for family in Family::ALL {
            let node_port = SocketAddr::new(family.node(), 30080);
            let first = connect_all(&world, Proto::Tcp, node_port);
            assert_even(scheduler, &shares(&first, 2));
            let local = [family.endpoint(0), family.endpoint(1)];
            assert!(first.values().all(|endpoint| local.contains(&endpoint.ip())), "{first:?}");
            assert_eq!(connect_all(&world, Proto::Tcp, node_port), first);
            // A pod uses the whole list.
            let pod: Vec<SocketAddr> =
                (0..2).map(|_| connect(&world.shell, family.shell(), Proto::Tcp, frontend(family))).collect();
            assert_eq!(pod[0], pod[1]);
        }
    }
}

// With the port in the hash, the connections of one client are spread, and one connection stays (E9, E10).
test_in_each_layout!(with_the_port_the_connections_of_a_client_are_spread);
fn with_the_port_the_connections_of_a_client_are_spread(layout: Layout) {
    let world = World::new();
    for scheduler in ["source-hash", "maglev"] {
        let mut config = config_with(layout, scheduler);
        config["nftables"]["schedulerHash"] = json!("source-and-port");
        let _proxy = Proxy::start(&world.node, &config, &cluster(web(), &[0, 1, 2, 3]));
        for family in Family::ALL {
            let mut counts: BTreeMap<SocketAddr, u32> = BTreeMap::new();
            for _ in 0..CLIENTS {
                *counts.entry(connect(&world.client, family.client(), Proto::Tcp, frontend(family))).or_default() += 1;
            }
            assert_eq!(counts.len(), 4, "{counts:?}");
            assert_even(scheduler, &counts.into_values().collect::<Vec<_>>());
            let from = SocketAddr::new(family.client(), 40_000).to_string();
            let name = explained(&world.node, &from, frontend(family));
            assert!(name.len() == 1 && name == explained(&world.node, &from, frontend(family)), "{name:?}");
        }
    }
}

//! Session affinity: who comes back to the same endpoint, for how long, and what ends it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::judge::{assert_outcome, endpoints};
use crate::support::netns::run;
use crate::support::nft;
use crate::support::objects::{ServiceBuilder, node, service, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe_many};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];
/// Clients outside the cluster, besides the world's own.
const CLIENTS: u8 = 12;

/// A Service with affinity on a TCP and a UDP port.
fn web(seconds: u32) -> ServiceBuilder {
    let affinity = json!({ "clientIP": { "timeoutSeconds": seconds } });
    service("shop", "web")
        .cluster_ips(1)
        .port("http", Proto::Tcp, 80)
        .node_port(30080)
        .port("dns", Proto::Udp, 53)
        .spec("sessionAffinity", json!("ClientIP"))
        .spec("sessionAffinityConfig", affinity)
}

fn cluster(service: ServiceBuilder, which: &[u8]) -> Vec<Value> {
    let mut objects = vec![node(), service.json()];
    objects.extend(slices("shop", "web", which, &PORTS));
    objects
}

fn client(family: Family, n: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("203.0.113.{}", 50 + n) } else { format!("2001:db8:113::50:{n}") };
    text.parse().expect("an address")
}

/// Gives the client's namespace more addresses, and the node a way back to them.
fn add_clients(world: &World) {
    for family in Family::ALL {
        let suffix = if family == Family::V4 { "/32" } else { "/128 nodad" };
        let lines: Vec<String> =
            (0..CLIENTS).map(|n| format!("address add {}{suffix} dev lo", client(family, n))).collect();
        world.client.ip(&lines);
        let len = if family == Family::V4 { 32 } else { 128 };
        let way = run(world.node.command("ip").args(["-o", "route", "get", &family.client().to_string()]));
        let via = way.split(" src ").next().and_then(|way| Some(way.split_once(' ')?.1.replace("from :: ", "")));
        let via = via.expect("the node has a way to the client");
        let routes: Vec<String> =
            (0..CLIENTS).map(|n| format!("route add {}/{len} {via}", client(family, n))).collect();
        world.node.ip(&routes);
    }
}

/// The one endpoint that all of `count` probes reach.
fn endpoint_of(world: &World, flow: Flow, count: u32) -> SocketAddr {
    let tally = probe_many(&world.client, flow, count);
    let reached = tally.keys().map(|outcome| match outcome {
        Outcome::Reached(answer) => SocketAddr::new(answer.endpoint, answer.port),
        other => panic!("{flow:?}: {other:?}, in all {tally:?}"),
    });
    let mut reached: Vec<SocketAddr> = reached.collect();
    reached.dedup();
    assert_eq!(reached.len(), 1, "{flow:?} reached {reached:?}");
    reached[0]
}

/// The endpoint of every client, asked `count` times each.
fn endpoints_of_all(world: &World, family: Family, count: u32) -> BTreeMap<u8, SocketAddr> {
    let flow = |n| Flow::new(Proto::Tcp, client(family, n), family.cluster_ip(1), 80);
    (0..CLIENTS).map(|n| (n, endpoint_of(world, flow(n), count))).collect()
}

/// A table's objects whose names belong to a service port with affinity.
fn affinity_objects(world: &World) -> Vec<String> {
    let listing = nft::list_ruleset(&world.node);
    let own = listing.lines().map(str::trim).filter(|line| line.ends_with('{') && line.contains("affinity-"));
    own.filter(|line| line.contains("/web")).map(str::to_owned).collect()
}

// E1 E2 E4
#[test]
fn a_client_stays_with_its_endpoint_whatever_address_it_uses() {
    let world = World::new();
    add_clients(&world);
    let objects = cluster(web(600).external_ip(Family::V4.external_ip(1)), &[0, 1, 2, 3]);
    let _proxy = Proxy::start(&world.node, &config(), &objects);
    for family in Family::ALL {
        let chosen = endpoints_of_all(&world, family, 8);
        let spread: std::collections::BTreeSet<&SocketAddr> = chosen.values().collect();
        assert!(spread.len() > 1, "{family:?}: twelve clients share one endpoint");
        for (n, endpoint) in &chosen {
            let by_node_port = Flow::new(Proto::Tcp, client(family, *n), family.node(), 30080);
            assert_eq!(endpoint_of(&world, by_node_port, 4), *endpoint);
            let udp = Flow::new(Proto::Udp, client(family, *n), family.cluster_ip(1), 53);
            endpoint_of(&world, udp, 8);
        }
        let by_udp = |n: &u8| Flow::new(Proto::Udp, client(family, *n), family.cluster_ip(1), 53);
        let differs = |(n, endpoint): (&u8, &SocketAddr)| endpoint_of(&world, by_udp(n), 1).ip() != endpoint.ip();
        assert!(chosen.iter().any(differs), "{family:?}: the ports of the Service share their memory");
    }
    let family = Family::V4;
    let known = endpoint_of(&world, Flow::new(Proto::Tcp, client(family, 0), family.cluster_ip(1), 80), 1);
    let external = Flow::new(Proto::Tcp, client(family, 0), family.external_ip(1), 80);
    assert_eq!(endpoint_of(&world, external, 4), known);
}

/// Seconds that the memory of a client has left.
fn seconds_left(world: &World, client: IpAddr) -> u64 {
    let map = ["-j", "list", "map", "ip", "kube-proxy", "affinity-shop/web/http/tcp-8080"];
    let listing: Value = serde_json::from_str(&run(world.node.command("nft").args(map))).expect("nft prints JSON");
    let text = listing.to_string();
    let entry = text.split(&format!("\"val\":\"{client}\"")).nth(1).map(str::to_owned);
    let before = text.split(&format!("\"val\":\"{client}\"")).next().unwrap_or_default();
    let expires =
        |part: &str| part.rsplit("\"expires\":").next().and_then(|rest| rest.split([',', '}']).next()?.parse().ok());
    assert!(entry.is_some(), "{client} is not remembered: {text}");
    expires(before).unwrap_or_else(|| panic!("no time-out in {text}"))
}

// E3 E8
#[test]
fn each_new_connection_refreshes_the_memory_with_the_time_out_of_then() {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &cluster(web(60), &[0, 1, 2, 3]));
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.cluster_ip(1), 80);
    let chosen = endpoint_of(&world, flow, 4);
    assert!((50..=60).contains(&seconds_left(&world, Family::V4.client())));
    sleep(Duration::from_secs(3));
    assert!(seconds_left(&world, Family::V4.client()) <= 57, "without a connection the time runs");
    endpoint_of(&world, flow, 1);
    assert!(seconds_left(&world, Family::V4.client()) >= 58);
    proxy.apply(&[web(900).json()]);
    assert!(seconds_left(&world, Family::V4.client()) <= 60, "memories of before keep their time");
    assert_eq!(endpoint_of(&world, flow, 1), chosen);
    assert!(seconds_left(&world, Family::V4.client()) >= 890);
}

// E5
#[test]
fn policy_local_uses_what_was_learnt_of_endpoints_on_this_node() {
    let world = World::new();
    add_clients(&world);
    let local = web(600).spec("externalTrafficPolicy", json!("Local"));
    let _proxy = Proxy::start(&world.node, &config(), &cluster(local, &[0, 1, 2, 3]));
    for family in Family::ALL {
        let here = endpoints(family, &[0, 1], 8080);
        for (n, endpoint) in endpoints_of_all(&world, family, 4) {
            let external = Flow::new(Proto::Tcp, client(family, n), family.node(), 30080);
            let reached = endpoint_of(&world, external, 8);
            assert!(here.contains(&reached), "{reached} is not on this node");
            if here.contains(&endpoint) {
                assert_eq!(reached, endpoint, "client {n}");
            }
        }
    }
}

// E6
#[test]
fn clients_of_a_removed_endpoint_are_balanced_anew_and_the_others_stay() {
    let world = World::new();
    add_clients(&world);
    let mut proxy = Proxy::start(&world.node, &config(), &cluster(web(600), &[0, 1, 2, 3]));
    let before = Family::ALL.map(|family| endpoints_of_all(&world, family, 2));
    proxy.apply(&slices("shop", "web", &[1, 2, 3], &PORTS));
    for (family, before) in Family::ALL.into_iter().zip(before) {
        let gone = family.endpoint(0);
        let after = endpoints_of_all(&world, family, 4);
        for (n, endpoint) in before {
            if endpoint.ip() == gone {
                assert_ne!(after[&n].ip(), gone, "client {n} is sent to an endpoint that is gone");
            } else {
                assert_eq!(after[&n], endpoint, "client {n} lost its endpoint");
            }
        }
    }
}

// E6
#[test]
fn memory_outlives_the_process() {
    let world = World::new();
    add_clients(&world);
    let mut proxy = Proxy::start(&world.node, &config(), &cluster(web(600), &[0, 1, 2, 3]));
    let before = endpoints_of_all(&world, Family::V4, 2);
    proxy.stop();
    assert_eq!(endpoints_of_all(&world, Family::V4, 2), before, "while nobody runs");
    proxy.launch();
    assert_eq!(endpoints_of_all(&world, Family::V4, 2), before, "after the restart");
}

// E7
#[test]
fn when_the_memory_is_full_new_clients_are_balanced_without_it() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config(), &cluster(web(600), &[0, 1, 2, 3]));
    let elements: Vec<String> =
        (0..65_536_u32).map(|n| format!("11.{}.{}.{} : 10.244.1.10", n >> 16, (n >> 8) & 255, n & 255)).collect();
    let fill = format!("add element ip kube-proxy affinity-shop/web/http/tcp-8080 {{ {} }}\n", elements.join(", "));
    nft::load(&world.node, &fill);
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.cluster_ip(1), 80);
    let tally = probe_many(&world.client, flow, 40);
    let reached = |outcome: &Outcome| matches!(outcome, Outcome::Reached(_));
    assert!(tally.keys().all(reached), "{tally:?}");
    assert!(tally.len() > 1, "a client that is not remembered is balanced: {tally:?}");
}

// E8
#[test]
fn affinity_switched_off_leaves_nothing_behind() {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &cluster(web(600), &[0, 1]));
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.cluster_ip(1), 80);
    endpoint_of(&world, flow, 4);
    assert!(!affinity_objects(&world).is_empty());
    proxy.apply(&[web(600).spec("sessionAffinity", json!("None")).json()]);
    // Chains are emptied at once and deleted a moment later (F8).
    let end = Instant::now() + Duration::from_secs(5);
    while !affinity_objects(&world).is_empty() {
        assert!(Instant::now() < end, "still there: {:?}", affinity_objects(&world));
        sleep(Duration::from_millis(100));
    }
    proxy.apply(&slices("shop", "web", &[], &PORTS));
    assert_outcome(&world.client, flow, &Outcome::Refused);
}

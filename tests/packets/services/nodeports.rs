//! Which addresses of the node answer on node ports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::judge::{Source, assert_not_reached, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{node, service, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in, is_slow};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 8080)];
const NONE: [bool; 2] = [false, false];
const PRIMARY: [bool; 2] = [true, false];
const SECOND: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true, true];

/// `nodePortAddresses`, and which of the node's two addresses then answer in IPv4 and in IPv6.
fn table() -> Vec<(Value, [[bool; 2]; 2])> {
    vec![
        // An empty list is `primary` (H1).
        (json!([]), [PRIMARY, PRIMARY]),
        // Only the node's IP of each family (H2).
        (json!(["primary"]), [PRIMARY, PRIMARY]),
        // IPv4: the addresses in the range. IPv6 has no range, so all of its addresses (H3, H5).
        (json!(["198.18.0.0/16"]), [SECOND, BOTH]),
        // IPv4: all, because a range has prefix length 0. IPv6: the addresses in the range (H4, H5).
        (json!(["192.0.2.2/32", "0.0.0.0/0", "2001:db8:18::/48"]), [BOTH, SECOND]),
        // No address is in a range (H5).
        (json!(["198.51.100.0/24", "2001:db8:99::/48"]), [NONE, NONE]),
        // Keywords and ranges add up, in any combination (H6).
        (json!(["primary", "localhost"]), [PRIMARY, PRIMARY]),
        (json!(["198.18.0.0/16", "primary"]), [BOTH, PRIMARY]),
        (json!(["primary", "all"]), [BOTH, BOTH]),
        (json!(["all", "localhost"]), [BOTH, BOTH]),
        (json!(["localhost"]), [NONE, NONE]),
        (json!(["localhost", "2001:db8:18::/48"]), [NONE, SECOND]),
        // Loopback addresses never. IPv4: the addresses in the other range. IPv6: all (D20, H4, H5).
        (json!(["127.0.0.0/8", "192.0.2.0/24", "::1/128", "::/0"]), [PRIMARY, BOTH]),
    ]
}

fn check(world: &World, family: Family, answering: [bool; 2]) {
    for (_, proto, target) in PORTS {
        for (address, answers) in [family.node(), family.node_second()].into_iter().zip(answering) {
            let flow = Flow::new(proto, family.client(), address, 30080);
            if answers {
                assert_reaches(&world.client, flow, &endpoints(family, &[0, 2], target), Source::Masqueraded, 40);
            } else {
                assert_not_reached(&world.client, flow);
            }
        }
        // Loopback addresses serve no node port (D20).
        let flow = Flow::new(proto, family.loopback(), family.loopback(), 30080);
        assert_not_reached(&world.node, flow);
    }
}

test_in_each_layout!(node_ports_answer_on_the_configured_addresses_only);
fn node_ports_answer_on_the_configured_addresses_only(layout: Layout) {
    // Node ports are served on the addresses of `nodePortAddresses`, and never on loopback (D19, D20, H1 to H6).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let mut objects = vec![node(), web.port("dns", Proto::Udp, 80).node_port(30080).json()];
    objects.extend(slices("shop", "web", &[0, 2], &PORTS));
    for (addresses, answering) in table() {
        eprintln!("nodePortAddresses {addresses}");
        let mut config = config_in(layout);
        config["nodePortAddresses"] = addresses;
        // The next round's proxy finds the rules of this one in the kernel.
        let _proxy = Proxy::start(&world.node, &config, &objects);
        for (family, answering) in Family::ALL.into_iter().zip(answering) {
            check(&world, family, answering);
        }
    }
}

/// A served node port, and the node with these addresses.
fn objects_with(addresses: &[std::net::IpAddr]) -> Vec<Value> {
    let mut objects = vec![node_with(addresses)];
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    objects.push(web.port("dns", Proto::Udp, 80).node_port(30080).json());
    objects.extend(slices("shop", "web", &[0, 2], &PORTS));
    objects
}

fn node_with(addresses: &[std::net::IpAddr]) -> Value {
    let mut node = node();
    let list = addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address }));
    node["status"]["addresses"] = list.collect();
    node
}

test_in_each_layout!(primary_follows_the_node_object);
fn primary_follows_the_node_object(layout: Layout) {
    // New addresses of the Node take effect with the next sync; upstream keeps those of its start (M7, M8).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects_with(&Family::ALL.map(Family::node)));
    Family::ALL.into_iter().for_each(|family| check(&world, family, PRIMARY));
    proxy.apply(&[node_with(&Family::ALL.map(Family::node_second))]);
    Family::ALL.into_iter().for_each(|family| check(&world, family, SECOND));
}

test_in_each_layout!(the_bind_address_stands_for_the_nodes_ip_of_its_family);
fn the_bind_address_stands_for_the_nodes_ip_of_its_family(layout: Layout) {
    // `bindAddress` takes the place of the Node's IP of its family (M6).
    let world = World::new();
    let mut config = config_in(layout);
    config["bindAddress"] = json!(Family::V6.node_second());
    let _proxy = Proxy::start(&world.node, &config, &objects_with(&Family::ALL.map(Family::node)));
    check(&world, Family::V4, PRIMARY);
    check(&world, Family::V6, SECOND);
}

test_in_each_layout!(only_addresses_that_can_serve_node_ports_cause_a_sync_and_are_named);
fn only_addresses_that_can_serve_node_ports_cause_a_sync_and_are_named(layout: Layout) {
    // Each pod brings an interface with a link-local address, which is no change of the node's addresses (G11).
    const CHANGED: &str = "The addresses of this node changed";
    let all = json!(["0.0.0.0/0", "::/0"]);
    let some = json!(["198.18.0.0/16", "2001:db8:18::/64"]);
    for (ranges, added, others) in [
        (json!([]), &[][..], &["198.18.0.9/32", "2001:db8:18::9/128", "203.0.113.200/32"][..]),
        (all, &["198.18.0.9/32", "2001:db8:18::9/128", "203.0.113.200/32"], &["127.0.0.9/32"]),
        (some, &["198.18.0.9/32", "2001:db8:18::9/128"], &["203.0.113.200/32", "127.0.0.9/32"]),
    ] {
        let world = World::new();
        let mut config = config_in(layout);
        config["nodePortAddresses"] = ranges.clone();
        let proxy = Proxy::start(&world.node, &config, &objects_with(&Family::ALL.map(Family::node)));
        // The addresses are first listed again a second after the first sync.
        thread::sleep(Duration::from_millis(1_500));
        let before = proxy.sync_times();
        world.node.ip(&["link add veth-new type veth peer name veth-peer".to_owned()]);
        world.node.ip(&["link set veth-new up".to_owned(), "link set veth-peer up".to_owned()]);
        world.node.ip(&["addr add 169.254.77.1/32 dev veth-new".to_owned()]);
        // Without duplicate detection, which takes its time beside many other namespaces and is not what this is about.
        let add = |address: &&str| {
            let flag = if address.contains(':') { " nodad" } else { "" };
            world.node.ip(&[format!("addr add {address} dev veth-new{flag}")]);
        };
        others.iter().for_each(add);
        thread::sleep(Duration::from_millis(2_500));
        assert_eq!((proxy.sync_times(), proxy.log().contains(CHANGED)), (before, false), "{ranges}: {}", proxy.log());
        added.iter().for_each(add);
        let end = Instant::now() + Duration::from_secs(20);
        let named = |address: &&&str| {
            let address = address.split('/').next().unwrap_or_default();
            proxy.log().lines().any(|line| line.contains(CHANGED) && line.contains(address))
        };
        while added.iter().filter(named).count() < added.len() {
            assert!(Instant::now() < end, "{ranges}: {}", proxy.log());
            thread::sleep(Duration::from_millis(50));
        }
        let (address, family) = (Family::V4.node_second(), Family::V4);
        let answers = !added.is_empty();
        let second = Flow::new(Proto::Tcp, family.client(), address, 30080);
        let served = matches!(probe(&world.client, second), Outcome::Reached(_));
        assert_eq!(served, answers, "{ranges}");
    }
}

/// Time from a new address to an answer on its node port: a second, and as much again for a busy machine.
const SOON: Duration = Duration::from_secs(2);

test_in_each_layout!(an_address_gets_its_node_ports_within_a_second_while_the_cluster_changes_all_the_time);
fn an_address_gets_its_node_ports_within_a_second_while_the_cluster_changes_all_the_time(layout: Layout) {
    // A failover address is served at once, also when each second has a sync (G11).
    let world = World::new();
    let mut config = config_in(layout);
    config["nodePortAddresses"] = json!(["198.18.0.0/24", "2001:db8:18::/64"]);
    config["nftables"]["minSyncPeriod"] = json!("1s");
    let proxy = Proxy::start(&world.node, &config, &objects_with(&Family::ALL.map(Family::node)));
    let new: std::net::IpAddr = "198.18.0.77".parse().expect("an address");
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), new, 30080);
    let stop = AtomicBool::new(false);
    let times = thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                let endpoints = if round % 2 == 0 { [0, 2] } else { [1, 3] };
                slices("shop", "web", &endpoints, &PORTS).iter().for_each(|slice| proxy.manifests().apply(slice));
                round += 1;
                thread::sleep(Duration::from_millis(200));
            }
        });
        let timed = |command: &str, served: bool| {
            world.node.ip(&[format!("address {command} {new}/32 dev lo")]);
            let start = Instant::now();
            // The flow may meet an endpoint that is just being replaced; it is served when one answers.
            while matches!(probe(&world.client, flow), Outcome::Reached(_)) != served {
                if start.elapsed() > 4 * SOON {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
            start.elapsed()
        };
        thread::sleep(Duration::from_secs(2));
        let mut times = Vec::new();
        for _ in 0..2 {
            times.push(timed("add", true));
            // Time for another sync, so that what follows is seen by itself.
            thread::sleep(Duration::from_millis(1_200));
            timed("del", false);
        }
        stop.store(true, Ordering::Relaxed);
        times
    });
    println!("a new address answered on its node port after {times:?}");
    assert!(is_slow() || times.iter().all(|time| *time <= SOON), "{times:?}");
}

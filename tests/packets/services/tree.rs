//! What only layout `chains` has: chains of service ports and endpoints that come and go, a counter for each endpoint, an even choice, and
//! the drop of packets of no connection.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use crate::judge::{Source, assert_reaches, endpoints};
use crate::support::layout::Layout;
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Proto};
use crate::support::proxy::{Proxy, config_in, is_slow};
use crate::support::server::Answer;
use crate::support::wire::raw_payload;
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const PROBES: u32 = 40;

/// The connections that were sent to each IPv4 endpoint, by the counters of the elements.
fn counted(world: &World) -> BTreeMap<String, u64> {
    let listing = nft::list_json(&world.node);
    let objects = listing["nftables"].as_array().expect("a list of objects");
    let mut maps = objects.iter().filter_map(|object| object.get("map"));
    let map =
        maps.find(|map| map["family"] == "ip" && map["name"] == Layout::ServiceChains.endpoints()).expect("the map");
    let elements = map["elem"].as_array().map(Vec::as_slice).unwrap_or_default();
    let read = |element: &Value| {
        let endpoint = element[1]["concat"][0].as_str().expect("an endpoint").to_owned();
        (endpoint, element[0]["elem"]["counter"]["packets"].as_u64().expect("a counter"))
    };
    elements.iter().map(read).collect()
}

#[test]
fn each_endpoint_that_is_an_element_counts_its_connections() {
    // The choice is even, and an endpoint that stays counts on (D11).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let mut objects = vec![node(), service_cidr(), web];
    objects.extend(slices("shop", "web", &[0, 1, 2], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(Layout::ServiceChains), &objects);
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.cluster_ip(1), 80);
    assert_reaches(&world.client, flow, &endpoints(Family::V4, &[0, 1, 2], 8080), Source::Masqueraded, PROBES);
    let before = counted(&world);
    assert_eq!(before.len(), 3);
    assert_eq!(before.values().sum::<u64>(), u64::from(PROBES));

    proxy.apply(&slices("shop", "web", &[1, 2], &PORTS));
    let after = counted(&world);
    assert_eq!(after.len(), 2);
    assert_reaches(&world.client, flow, &endpoints(Family::V4, &[1, 2], 8080), Source::Masqueraded, PROBES);
    let stayed: u64 = after.iter().filter(|(name, count)| before[*name] == **count).map(|_| 1).sum();
    // The endpoint with the highest number may have taken the place of the one that went.
    assert!(stayed >= 1, "{before:?} {after:?}");
    assert_eq!(counted(&world).values().sum::<u64>(), after.values().sum::<u64>() + u64::from(PROBES));
}

/// The chains of a family's endpoints with the rules in them: `None` when there is none that translates, else what it counted.
fn endpoint_chains(world: &World, family: Family) -> BTreeMap<String, Option<u64>> {
    let table = if family == Family::V4 { "ip" } else { "ip6" };
    let listing = nft::list_json(&world.node);
    let objects = listing["nftables"].as_array().expect("a list of objects");
    let of_family = |kind: &'static str| {
        objects.iter().filter_map(move |object| object.get(kind)).filter(|object| object["family"] == table)
    };
    let names = of_family("chain").filter_map(|chain| chain["name"].as_str());
    let counted = |name: &str| {
        let rules = of_family("rule").filter(|rule| rule["chain"] == name);
        rules.filter_map(|rule| rule["expr"].as_array()).find_map(|expr| translated(expr))
    };
    names.filter(|name| name.starts_with("KUBE-SEP-")).map(|name| (name.to_owned(), counted(name))).collect()
}

/// The packets that a translating rule counted.
fn translated(expr: &[Value]) -> Option<u64> {
    expr.iter().find(|expr| expr.get("dnat").is_some())?;
    expr.iter().find_map(|expr| expr["counter"]["packets"].as_u64())
}

#[test]
fn the_chain_of_an_endpoint_counts_its_connections_and_goes_with_it() {
    // The choice is even, and an emptied chain is deleted by a later transaction (D11, F8).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let mut objects = vec![node(), service_cidr(), web];
    objects.extend(slices("shop", "web", &[0, 1, 2], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(Layout::Chains), &objects);
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.cluster_ip(1), 80);
    assert_reaches(&world.client, flow, &endpoints(Family::V4, &[0, 1, 2], 8080), Source::Masqueraded, PROBES);
    let before = endpoint_chains(&world, Family::V4);
    assert_eq!(before.len(), 3);
    assert_eq!(before.values().map(|count| count.expect("it translates")).sum::<u64>(), u64::from(PROBES));

    proxy.apply(&slices("shop", "web", &[1, 2], &PORTS));
    let emptied = endpoint_chains(&world, Family::V4);
    let (gone, left): (Vec<_>, Vec<_>) = emptied.iter().partition(|(_, count)| count.is_none());
    // Emptied chains are deleted after a second, which may have passed.
    assert!(gone.len() <= 1 && left.len() == 2, "{emptied:?}");
    assert!(left.iter().all(|(name, count)| **count == before[*name]), "the others count on");
    let deadline = Instant::now() + Duration::from_secs(5);
    while endpoint_chains(&world, Family::V4).len() > 2 {
        assert!(Instant::now() < deadline, "the emptied chain is never deleted");
        sleep(Duration::from_millis(100));
    }
    assert_reaches(&world.client, flow, &endpoints(Family::V4, &[1, 2], 8080), Source::Masqueraded, PROBES);
}

const CONNECTIONS: u16 = 60_000;
/// So many are under way at once, which the buffers of three endpoints hold.
const AT_ONCE: u16 = 64;
/// How often a datagram is sent that is not answered.
const TRIES: usize = 5;

/// A UDP connection from each of these ports to the frontend: the endpoints that answered, and how many datagrams were sent again.
fn answered(ports: Range<u16>, family: Family) -> (Vec<IpAddr>, u64) {
    let bound = |port| {
        let socket = UdpSocket::bind((family.client(), port)).expect("the port is free");
        socket
            .set_read_timeout(Some(Duration::from_secs(if is_slow() { 5 } else { 1 })))
            .expect("a time-out can be set");
        socket.connect((family.cluster_ip(1), 53)).expect("the node is reachable");
        socket
    };
    let mut open: Vec<UdpSocket> = ports.map(bound).collect();
    let (mut endpoints, mut again) = (Vec::new(), 0);
    for round in 0..TRIES {
        if round > 0 {
            again += open.len() as u64;
        }
        for socket in &open {
            socket.send(b"x").expect("the node takes it");
        }
        open.retain(|socket| {
            let mut answer = [0; 128];
            let Ok(length) = socket.recv(&mut answer) else { return true };
            let answer: Answer = str::from_utf8(&answer[..length]).expect("text").parse().expect("an answer");
            endpoints.push(answer.endpoint);
            false
        });
    }
    (endpoints, again)
}

#[test]
fn sixty_thousand_connections_are_spread_evenly_by_the_map_of_verdicts() {
    // Spread within 1 %: the share of each endpoint is a third of all connections to within one percentage point, which of 60,000 are
    // 20,000 +- 600, five standard deviations of a fair choice (D11).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("dns", Proto::Udp, 53).json();
    let mut objects = vec![node(), service_cidr(), web];
    objects.extend(slices("shop", "web", &[0, 1, 2], &[("dns", Proto::Udp, 9090)]));
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Chains), &objects);
    let listing = nft::list_ruleset(&world.node);
    let elements = listing.matches(" : goto KUBE-SEP-").count();
    assert!(listing.contains("numgen random mod 3 vmap @KUBE-SVC-") && elements >= 3, "{listing}");
    Family::ALL.iter().for_each(|family| assert_even(&world, *family));
}

fn assert_even(world: &World, family: Family) {
    // UDP from a port of its own is a connection to the kernel, and takes the same map of verdicts as one over TCP.
    let (mut reached, mut sent_again): (BTreeMap<IpAddr, u64>, u64) = (BTreeMap::new(), 0);
    world.client.enter(|| {
        let end = 1024 + CONNECTIONS;
        for first in (1024..end).step_by(usize::from(AT_ONCE)) {
            let (endpoints, again) = answered(first..end.min(first + AT_ONCE), family);
            sent_again += again;
            for endpoint in endpoints {
                *reached.entry(endpoint).or_default() += 1;
            }
        }
    });
    assert_eq!(reached.values().sum::<u64>(), u64::from(CONNECTIONS), "each is answered: {reached:?}");
    let third = u64::from(CONNECTIONS / 3);
    let is_even = |count: &u64| count.abs_diff(third) <= u64::from(CONNECTIONS / 100);
    assert!(reached.len() == 3 && reached.values().all(is_even), "{reached:?}");
    // The chains of the endpoints counted the same connections. A datagram that was lost before its flow was confirmed counts again when it
    // is sent again.
    let mut counted: Vec<u64> = endpoint_chains(world, family).into_values().flatten().collect();
    let mut reached: Vec<u64> = reached.into_values().collect();
    counted.sort_unstable();
    reached.sort_unstable();
    let lost = counted.iter().sum::<u64>().checked_sub(u64::from(CONNECTIONS));
    assert!(
        lost.is_some_and(|lost| lost <= sent_again),
        "{family:?}: {counted:?}, {reached:?}, {sent_again} sent again"
    );
    assert!(counted.iter().zip(&reached).all(|(counted, reached)| counted >= reached), "{counted:?}, {reached:?}");
}

#[test]
fn the_chains_of_a_service_go_with_it() {
    // An emptied chain is deleted by a later transaction (F8).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let mut objects = vec![node(), service_cidr(), web.clone()];
    objects.extend(slices("shop", "web", &[0, 1, 2], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(Layout::Chains), &objects);
    let has_chain = || nft::list_ruleset(&world.node).contains("chain KUBE-SVC-");
    assert!(has_chain());
    proxy.delete(&[web]);
    let deadline = Instant::now() + Duration::from_secs(5);
    while has_chain() {
        assert!(Instant::now() < deadline, "the emptied chain is never deleted");
        sleep(Duration::from_millis(100));
    }
}

/// Sends a TCP header with a wrong checksum from outside to a pod through the node; says whether it arrives.
fn stray_packet_arrives(world: &World, family: Family, source_port: u16) -> bool {
    let raw = |address: IpAddr| -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(SocketAddr::new(address, 0)), Type::RAW, Some(Protocol::TCP))?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        Ok(socket)
    };
    let target = family.endpoint(2);
    let receiver = world.remote.enter(|| raw(target)).expect("a raw socket can be opened");
    let mut header = [0; 20];
    header[..2].copy_from_slice(&source_port.to_be_bytes());
    header[2..4].copy_from_slice(&8080_u16.to_be_bytes());
    // Five words of header, and an acknowledgement of nothing.
    header[12..14].copy_from_slice(&[5 << 4, 1 << 4]);
    let sender = world.client.enter(|| raw(family.client())).expect("a raw socket can be opened");
    sender.send_to(&header, &SocketAddr::new(target, 0).into()).expect("a packet can be sent");
    let mut packet = [0; 512];
    while let Ok(length) = (&receiver).read(&mut packet) {
        let payload = raw_payload(family, &packet[..length]).unwrap_or_default();
        if payload.get(..2) == Some(&source_port.to_be_bytes()) {
            return true;
        }
    }
    false
}

#[test]
fn packets_of_no_connection_are_dropped_unless_conntrack_is_to_be_liberal() {
    // Layout `chains` drops invalid packets on purpose, as iptables mode does; layout `maps` has no such rule (D22).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let objects = [node(), service_cidr(), web];
    let strict = Proxy::start(&world.node, &config_in(Layout::Chains), &objects);
    for family in Family::ALL {
        assert!(!stray_packet_arrives(&world, family, 4001), "{family:?}");
    }
    drop(strict);
    let mut liberal = config_in(Layout::Chains);
    liberal["conntrack"]["tcpBeLiberal"] = json!(true);
    let _proxy = Proxy::start(&world.node, &liberal, &objects);
    assert!(!nft::list_ruleset(&world.node).contains("ct state invalid"));
    for family in Family::ALL {
        assert!(stray_packet_arrives(&world, family, 4002), "{family:?}");
    }
}

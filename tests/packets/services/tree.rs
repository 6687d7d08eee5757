//! What only layout `chains` has: chains of service ports that come and go, a counter for each endpoint, and the drop of packets of no connection.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
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
use crate::support::proxy::{Proxy, config_in};
use crate::support::wire::raw_payload;
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const PROBES: u32 = 40;

/// The connections that were sent to each IPv4 endpoint, by the counters of the elements.
fn counted(world: &World) -> BTreeMap<String, u64> {
    let listing = nft::list_json(&world.node);
    let objects = listing["nftables"].as_array().expect("a list of objects");
    let mut maps = objects.iter().filter_map(|object| object.get("map"));
    let map = maps.find(|map| map["family"] == "ip" && map["name"] == "endpoints").expect("the map");
    let elements = map["elem"].as_array().map(Vec::as_slice).unwrap_or_default();
    let read = |element: &Value| {
        let endpoint = element[1]["concat"][0].as_str().expect("an endpoint").to_owned();
        (endpoint, element[0]["elem"]["counter"]["packets"].as_u64().expect("a counter"))
    };
    elements.iter().map(read).collect()
}

#[test]
fn each_endpoint_counts_its_connections() {
    // The choice is even, and an endpoint that stays counts on (D11).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let mut objects = vec![node(), service_cidr(), web];
    objects.extend(slices("shop", "web", &[0, 1, 2], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(Layout::Chains), &objects);
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

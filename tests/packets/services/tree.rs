//! What only layout `chains` has: chains of endpoints that come and go, counters, and the drop of packets of no connection.

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

/// The IPv4 chains of endpoints with the rules in them: `None` when there is none that translates, else what it counted.
fn endpoint_chains(world: &World) -> BTreeMap<String, Option<u64>> {
    let listing = nft::list_json(&world.node);
    let objects = listing["nftables"].as_array().expect("a list of objects");
    let of_family = |kind: &'static str| {
        objects.iter().filter_map(move |object| object.get(kind)).filter(|object| object["family"] == "ip")
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
fn each_endpoint_counts_its_connections_and_its_chain_goes_with_it() {
    // The choice is even, and an emptied chain is deleted by a later transaction (D11, F8).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let mut objects = vec![node(), service_cidr(), web];
    objects.extend(slices("shop", "web", &[0, 1, 2], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(Layout::Chains), &objects);
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.cluster_ip(1), 80);
    assert_reaches(&world.client, flow, &endpoints(Family::V4, &[0, 1, 2], 8080), Source::Masqueraded, PROBES);
    let before = endpoint_chains(&world);
    assert_eq!(before.len(), 3);
    assert_eq!(before.values().map(|count| count.expect("it translates")).sum::<u64>(), u64::from(PROBES));

    proxy.apply(&slices("shop", "web", &[1, 2], &PORTS));
    let emptied = endpoint_chains(&world);
    let (gone, left): (Vec<_>, Vec<_>) = emptied.iter().partition(|(_, count)| count.is_none());
    // Emptied chains are deleted after a second, which may have passed.
    assert!(gone.len() <= 1 && left.len() == 2, "{emptied:?}");
    assert!(left.iter().all(|(name, count)| **count == before[*name]), "the others count on");
    let deadline = Instant::now() + Duration::from_secs(5);
    while endpoint_chains(&world).len() > 2 {
        assert!(Instant::now() < deadline, "the emptied chain is never deleted");
        sleep(Duration::from_millis(100));
    }
    assert_reaches(&world.client, flow, &endpoints(Family::V4, &[1, 2], 8080), Source::Masqueraded, PROBES);
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

//! A Service on node A whose pods run on node B: which pods are reached, with which source, mark and packet size.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use super::overlay::{Nodes, OVERLAY_MTU, overlay_address};
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{Family, SERVED_PORTS};
use crate::support::probe::{Flow, Outcome, Proto, probe_many};
use crate::support::proxy::{Proxy, config};
use crate::support::server::Server;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];
const PROBES: u32 = 40;
/// Counts what leaves node A through the tunnel: marked on the way in, marked when it goes out, and inside an outer packet.
const COUNTERS: &str = "
table inet watch {
    counter marked { }
    counter inner-marked { }
    counter outer { }
    counter outer-marked { }
    chain forward { type filter hook forward priority 200; oifname overlay meta mark & 0x4000 != 0 counter name marked; }
    chain postrouting { type filter hook postrouting priority 300;
        oifname overlay meta mark & 0x4000 != 0 counter name inner-marked
        oifname eth0 udp dport 4789 counter name outer
        oifname eth0 udp dport 4789 meta mark & 0x4000 != 0 counter name outer-marked
    }
}";

/// A Service with all pods on B, its servers, and the proxy on A.
fn start(nodes: &Nodes) -> (Server, Proxy<'_>) {
    let addresses: Vec<IpAddr> = Family::ALL.iter().flat_map(|f| [f.endpoint(2), f.endpoint(3)]).collect();
    let server = Server::start(&nodes.remote, &addresses, &SERVED_PORTS);
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let web = web.port("dns", Proto::Udp, 53).node_port(30053);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &[2, 3], &PORTS));
    (server, Proxy::start(&nodes.a, &config(), &objects))
}

/// Every probe reaches an endpoint on B, both are reached, and all see this source.
fn assert_served(from: &Namespace, flow: Flow, family: Family, source: IpAddr) {
    let tally = probe_many(from, flow, PROBES);
    let reached = tally.keys().map(|outcome| match outcome {
        Outcome::Reached(answer) => (answer.endpoint, answer.seen_source),
        _ => panic!("{flow:?}: {tally:?}"),
    });
    let expected = BTreeSet::from([2, 3].map(|n| (family.endpoint(n), source)));
    assert_eq!(reached.collect::<BTreeSet<_>>(), expected, "{flow:?}");
}

fn counter(namespace: &Namespace, name: &str) -> u64 {
    let listing = nft::list_json(namespace);
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let found = objects.filter_map(|object| object.get("counter")).find(|counter| counter["name"] == name);
    found.and_then(|counter| counter["packets"].as_u64()).unwrap_or_else(|| panic!("no counter {name}"))
}

#[test]
fn pods_on_another_node_are_reached_through_the_overlay() {
    // A Service of the API reaches endpoints on both nodes (A1, D1).
    let nodes = Nodes::new();
    let _running = start(&nodes);
    for family in Family::ALL {
        for (proto, port, node_port) in [(Proto::Tcp, 80, 30080), (Proto::Udp, 53, 30053)] {
            let inside = Flow::new(proto, family.shell(), family.cluster_ip(1), port);
            assert_served(&nodes.shell, inside, family, family.shell());
            let outside = Flow::new(proto, super::overlay::client(family), family.node(), node_port);
            assert_served(&nodes.client, outside, family, overlay_address(family, 1));
        }
    }
}

#[test]
fn the_mark_does_not_go_through_the_tunnel() {
    // The mark for masquerading is taken off a packet that is masqueraded (D9).
    let nodes = Nodes::new();
    let _running = start(&nodes);
    nft::load(&nodes.a, COUNTERS);
    for family in Family::ALL {
        let flow = Flow::new(Proto::Tcp, super::overlay::client(family), family.node(), 30080);
        assert_served(&nodes.client, flow, family, overlay_address(family, 1));
    }
    let probes = u64::from(PROBES) * 2;
    assert!(counter(&nodes.a, "marked") >= probes, "nothing was marked for masquerading");
    assert!(counter(&nodes.a, "outer") >= probes, "nothing went through the tunnel");
    assert_eq!(counter(&nodes.a, "inner-marked"), 0, "marked packets enter the tunnel");
    assert_eq!(counter(&nodes.a, "outer-marked"), 0, "outer packets are marked");
}

#[test]
fn full_packets_find_the_mtu_of_the_overlay() {
    // Masquerading leaves the discovery of the MTU intact (D9).
    const SENT: usize = 128 * 1024;
    /// What the server reads at once, and answers with a line.
    const PIECE: usize = 256;
    let nodes = Nodes::new();
    let _running = start(&nodes);
    for family in Family::ALL {
        let target = SocketAddr::new(family.node(), 30080);
        let lines = nodes.client.enter(|| {
            let mut stream = TcpStream::connect(target).expect("the node port answers");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out can be set");
            let mut sender = stream.try_clone().expect("a socket can be shared");
            std::thread::scope(|scope| {
                scope.spawn(move || sender.write_all(&vec![b'x'; SENT]).expect("all can be sent"));
                count_lines(&mut stream, SENT / PIECE)
            })
        });
        assert!(lines >= SENT / PIECE, "{target}: {lines} answers; full packets are lost");
        let route = run(nodes.client.command("ip").args(["route", "get", &family.node().to_string()]));
        assert!(route.contains(&format!("mtu {OVERLAY_MTU}")), "{target}: no packet was too big: {route}");
    }
}

/// Reads until `wanted` lines have come, or nothing comes any more.
fn count_lines(stream: &mut TcpStream, wanted: usize) -> usize {
    let (mut lines, mut buffer) = (0, [0; 4096]);
    while lines < wanted {
        match stream.read(&mut buffer) {
            Ok(length @ 1..) => lines += buffer[..length].iter().filter(|byte| **byte == b'\n').count(),
            _ => break,
        }
    }
    lines
}

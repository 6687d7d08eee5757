//! Other things that a node's kernel may do with packets: conntrack zones, a bridge whose packets pass the IP hooks, and marks of other
//! programs.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::judge::{FEW, Source, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{Family, SERVED_PORTS};
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config, config_in};
use crate::support::server::Server;
use crate::support::wiring::new_node;
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];
/// Longer than it takes to delete the flows of an endpoint, on a slow machine too.
const MOVED_WITHIN: Duration = Duration::from_secs(20);

/// The Node, the ServiceCIDR and a Service with cluster and external IPs and these endpoints.
fn objects(which: &[u8]) -> Vec<serde_json::Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53);
    let web = Family::ALL.iter().fold(web, |web, family| web.external_ip(family.external_ip(1)));
    [vec![node(), service_cidr(), web.json()], slices("shop", "web", which, &PORTS)].concat()
}

#[test]
fn traffic_and_the_clean_up_of_udp_flows_work_in_conntrack_zones() {
    // Flows to a removed endpoint are deleted: with everything in one zone, and with each client's packets in a zone of their own
    // whose answers are found in the common one (J5).
    for zones in ["ct zone set 5", "iifname to-client ct original zone set 7"] {
        let world = World::new();
        let rule = format!("chain raw {{ type filter hook prerouting priority raw; {zones}; }}");
        nft::load(&world.node, &format!("table inet zones {{\n{rule}\n}}"));
        let mut proxy = Proxy::start(&world.node, &config(), &objects(&[0, 2]));
        let flow = |family: Family, proto, port| Flow::new(proto, family.client(), family.external_ip(1), port);
        for family in Family::ALL {
            let to = endpoints(family, &[0, 2], 8080);
            assert_reaches(&world.client, flow(family, Proto::Tcp, 80), &to, Source::Masqueraded, FEW);
        }
        let open = |family| Connection::open(&world.client, flow(family, Proto::Udp, 53));
        let held: Vec<_> = Family::ALL.into_iter().flat_map(|family| (0..8).map(move |_| open(family))).collect();
        proxy.apply(&slices("shop", "web", &[2], &PORTS));
        let end = Instant::now() + MOVED_WITHIN;
        for (connection, first) in &held {
            let family = Family::of(first.endpoint);
            if first.endpoint == family.endpoint(2) {
                assert_eq!(connection.ask(), *first, "{zones}: a flow to an endpoint that stays is left alone");
                continue;
            }
            while connection.ask().endpoint != family.endpoint(2) {
                assert!(Instant::now() < end, "{zones}: {family:?}: a flow still leads to an endpoint that is gone");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Two pods on a bridge of the node, as CNIs with a bridge have them, with the node's address in the pods' net.
fn bridged() -> (Vec<Server>, Namespace, [Namespace; 2]) {
    let node = new_node(Family::ALL.map(Family::node));
    let pods: [Namespace; 2] =
        Namespace::several(&["pod0", "pod1"]).try_into().unwrap_or_else(|_| unreachable!("two names"));
    let mut lines = vec![
        "link add cbr0 type bridge".to_owned(),
        "addr add 10.244.1.1/24 dev cbr0".to_owned(),
        "addr add fd00:10:244:1::1/64 dev cbr0 nodad".to_owned(),
        "link set cbr0 up".to_owned(),
    ];
    for (n, pod) in pods.iter().enumerate() {
        lines.push(format!("link add port{n} type veth peer name eth0 netns {}", pod.name()));
        lines.push(format!("link set port{n} master cbr0 up"));
        // A pod that reaches itself through a Service.
        lines.push(format!("link set port{n} type bridge_slave hairpin on"));
    }
    node.ip(&lines);
    for (n, pod) in (0..).zip(&pods) {
        pod.ip(&[
            format!("addr add {}/24 dev eth0", Family::V4.endpoint(n)),
            format!("addr add {}/64 dev eth0 nodad", Family::V6.endpoint(n)),
            "link set eth0 up".to_owned(),
            "route add default via 10.244.1.1 dev eth0".to_owned(),
            "route add default via fd00:10:244:1::1 dev eth0".to_owned(),
        ]);
    }
    let addresses = |n: u8| Family::ALL.map(|family| -> IpAddr { family.endpoint(n) });
    let servers = [0, 1].map(|n| Server::start(&pods[usize::from(n)], &addresses(n), &SERVED_PORTS));
    (servers.into(), node, pods)
}

#[test]
fn pods_on_one_bridge_reach_each_other_and_themselves_through_a_service() {
    // Pods on a bridge reach each other, and themselves masqueraded (D9, D10). The answer of a pod to its neighbour passes the IP
    // hooks only with bridge-nf, which clusters with bridges set.
    let (_servers, node, pods) = bridged();
    for key in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
        node.set_sysctl(key, "1");
    }
    let _proxy = Proxy::start(&node, &config(), &objects(&[0, 1]));
    for family in Family::ALL {
        for (n, pod) in (0..).zip(&pods) {
            for (proto, port) in [(Proto::Tcp, 80), (Proto::Udp, 53)] {
                let flow = Flow::new(proto, family.endpoint(n), family.cluster_ip(1), port);
                let mut reached = [0, 0];
                for _ in 0..24 {
                    match probe(pod, flow) {
                        Outcome::Reached(answer) => reached[usize::from(answer.endpoint == family.endpoint(1))] += 1,
                        outcome => panic!("{family:?}: pod {n}: {proto:?}: {outcome:?}"),
                    }
                }
                assert!(reached.iter().all(|count| *count > 0), "{family:?}: pod {n}: {proto:?}: {reached:?}");
            }
        }
    }
}

/// The source that `to` sees of a datagram which the node sends to it with the packet mark `mark` from port `port`.
fn seen_source((node, port): (&Namespace, u16), mark: u32, (at, to): (&Namespace, SocketAddr)) -> SocketAddr {
    let seen = || -> io::Result<SocketAddr> {
        let receiver = at.enter(|| UdpSocket::bind(to))?;
        receiver.set_read_timeout(Some(MOVED_WITHIN))?;
        let sender = node.enter(|| Socket::new(Domain::for_address(to), Type::DGRAM, None))?;
        sender.bind(&SocketAddr::new(Family::of(to.ip()).node_second(), port).into())?;
        sender.set_mark(mark)?;
        sender.send_to(b"?", &to.into())?;
        Ok(receiver.recv_from(&mut [0])?.1)
    };
    seen().unwrap_or_else(|error| panic!("{to}: {error}"))
}

test_in_each_layout!(a_packet_that_another_program_marks_keeps_its_source);
fn a_packet_that_another_program_marks_keeps_its_source(layout: Layout) {
    // Only translated packets are masqueraded: 51820, the mark of WireGuard's own packets, has the mark bit of Services (D9).
    const WIREGUARD: u32 = 51_820;
    assert_eq!(WIREGUARD & 0x4000, 0x4000);
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects(&[0, 2]));
    for family in Family::ALL {
        let to = SocketAddr::new(family.client(), 51_821);
        let seen = seen_source((&world.node, 51_826), WIREGUARD, (&world.client, to));
        assert_eq!(seen, SocketAddr::new(family.node_second(), 51_826));
    }
}

//! What `explain` and `check` say of the network around the rules: bridges, the address that masquerading takes, and addresses and ports that
//! Services share with the node. What they say is what packets meet.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;

use serde_json::{Value, json};

use super::{command, outcome, said};
use crate::judge::{Source, assert_not_reached, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::server::Server;
use crate::support::wiring::forward;
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const NODE_PORT: u16 = 30080;

fn cluster(which: &[u8]) -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    [vec![node(), service_cidr(), web.json()], slices("shop", "web", which, &PORTS)].concat()
}

fn explained(node: &Namespace, flow: Flow) -> (Option<i32>, Value) {
    let (from, to) = (flow.source.to_string(), flow.target.to_string());
    let (code, text, errors) = outcome(&mut command(node, &["explain", "--from", &from, "--to", &to, "-o", "json"]));
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{errors}")))
}

/// A node with the bridge `cni0`, and on it the pod with endpoint 0 and the pod `shell`, whose routes to each other do not lead through the
/// node.
struct Bridge {
    node: Namespace,
    pod: Namespace,
    shell: Namespace,
    _server: Server,
}

impl Bridge {
    fn new() -> Self {
        let [node, pod, shell] =
            Namespace::several(&["this-node", "pod", "shell"]).try_into().unwrap_or_else(|_| unreachable!("three"));
        forward(&node);
        let at = |address: IpAddr| format!("{address}/{} ", if address.is_ipv4() { 24 } else { 64 });
        node.ip(&["link add cni0 type bridge", "link set cni0 up", "addr add 10.244.1.1/24 dev cni0"]);
        node.ip(&[
            "addr add fd00:10:244:1::1/64 dev cni0 nodad",
            "addr add 192.0.2.2/32 dev lo",
            "addr add 2001:db8::2/128 dev lo nodad",
        ]);
        for (space, name) in [(&pod, "pod"), (&shell, "shell")] {
            let address = |family: Family| if name == "pod" { family.endpoint(0) } else { family.shell() };
            node.ip(&[
                format!("link add to-{name} type veth peer name eth0 netns {}", space.name()),
                format!("link set to-{name} master cni0 up"),
            ]);
            space.ip(&[
                "link set eth0 up".to_owned(),
                format!("addr add {} dev eth0", at(address(Family::V4))),
                format!("addr add {} dev eth0 nodad", at(address(Family::V6))),
                "route add default via 10.244.1.1".to_owned(),
                "route add default via fd00:10:244:1::1".to_owned(),
            ]);
        }
        let server = Server::start(&pod, &Family::ALL.map(|family| family.endpoint(0)), &[8080]);
        Self { node, pod, shell, _server: server }
    }

    /// Whether the bridge gives its packets to the rules; `false` when this kernel has no module for that.
    fn set_rules(&self, are_met: bool) -> bool {
        let keys = ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"];
        let has_module = keys.iter().all(|key| Path::new("/proc/sys/net").join(key).exists());
        if has_module {
            keys.iter().for_each(|key| self.node.set_sysctl(key, if are_met { "1" } else { "0" }));
        }
        has_module && are_met
    }
}

// Answers between two pods of one bridge pass no rule, and are not translated back, unless br_netfilter gives them to the rules (Q1).
test_in_each_layout!(pods_of_one_bridge_whose_packets_meet_no_rules_do_not_reach_each_other);
fn pods_of_one_bridge_whose_packets_meet_no_rules_do_not_reach_each_other(layout: Layout) {
    let bridge = Bridge::new();
    let _proxy = Proxy::start(&bridge.node, &config_in(layout), &cluster(&[0]));
    for family in Family::ALL {
        let flow = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
        bridge.set_rules(false);
        assert_not_reached(&bridge.shell, flow);
        let (code, value) = explained(&bridge.node, flow);
        assert_eq!(code, Some(1), "{value:#}");
        let reason = value["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("cni0") && reason.contains("net.bridge.bridge-nf-call-ip"), "{value:#}");
        // A pod that reaches itself is masqueraded, and its answers pass the node.
        let itself = Flow::new(Proto::Tcp, family.endpoint(0), family.cluster_ip(1), 80);
        bridge.node.ip(&["link set to-pod type bridge_slave hairpin on"]);
        assert_eq!(explained(&bridge.node, itself).0, Some(0));
        assert!(matches!(probe(&bridge.pod, itself), Outcome::Reached(_)));
        if bridge.set_rules(true) {
            assert_reaches(&bridge.shell, flow, &endpoints(family, &[0], 8080), Source::Kept, 4);
            let (code, value) = explained(&bridge.node, flow);
            assert_eq!((code, &value["verdict"]), (Some(0), &json!("translated")), "{value:#}");
        }
    }
}

/// A node with an uplink `eth0`, behind which endpoints 2 and 3 are, and with an address on `lo` that no other host sees.
fn uplink() -> (Namespace, Namespace, Server) {
    let [node, remote] =
        Namespace::several(&["this-node", "remote"]).try_into().unwrap_or_else(|_| unreachable!("two"));
    forward(&node);
    node.ip(&[
        format!("link add eth0 type veth peer name eth0 netns {}", remote.name()),
        "link set eth0 up".to_owned(),
        "addr add 192.0.2.2/32 dev lo".to_owned(),
        "addr add 2001:db8::2/128 dev lo nodad".to_owned(),
        // What the node sends to a cluster IP needs a route before it is translated.
        "route add 10.96.0.0/16 dev lo".to_owned(),
        "route add fd00:10:96::/112 dev lo".to_owned(),
    ]);
    remote.ip(&[
        "link set eth0 up",
        "addr add 10.244.2.10/32 dev lo",
        "addr add fd00:10:244:2::10/128 dev lo nodad",
        "addr add 198.51.100.3/24 dev eth0",
        "addr add 203.0.113.3/24 dev eth0",
        "addr add fd00:51::3/64 dev eth0 nodad",
        "addr add fd00:52::3/64 dev eth0 nodad",
        "route add default via 198.51.100.2 onlink dev eth0",
        "route add default via fd00:51::2 dev eth0",
        "addr add fe80::3/64 dev eth0 nodad",
    ]);
    let server = Server::start(&remote, &Family::ALL.map(|family| family.endpoint(2)), &[8080]);
    (node, remote, server)
}

/// The source that masquerading takes for a connection of the node, as `explain` says and as the endpoint sees it; `explain` names it
/// with this reason.
fn assert_masqueraded_as(node: &Namespace, family: Family, source: &str, why: &str) {
    let flow = Flow::new(Proto::Tcp, family.node(), family.cluster_ip(1), 80);
    let outcome = probe(node, flow);
    let Outcome::Reached(answer) = outcome else { panic!("{source}: {outcome:?}") };
    assert_eq!(answer.seen_source.to_string(), source, "{why}");
    let (code, value) = explained(node, flow);
    assert_eq!((code, &value["masquerade"]), (Some(0), &json!(true)), "{value:#}");
    let [told] = &value["masqueradeSources"].as_array().expect("a list")[..] else { panic!("{value:#}") };
    assert_eq!(told["source"], source, "{value:#}");
    assert_eq!(told["endpoints"], json!([SocketAddr::new(family.endpoint(2), 8080)]), "{value:#}");
    assert!(told["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{why}: {value:#}");
    let (_, text) = said(node, &format!("explain --from {} --to {}", flow.source, flow.target));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("The endpoint sees {source}, ")), "{text}");
}

// Masquerading takes an address of the interface through which the packet leaves, whatever source the route has (Q1).
#[test]
fn explain_names_the_address_that_masquerading_takes_for_ipv4() {
    let (node, remote, _server) = uplink();
    let _proxy = Proxy::start(&node, &config_in(Layout::Maps), &cluster(&[2]));
    node.ip(&[
        "addr add 198.51.100.2/24 dev eth0",
        "addr add 198.51.100.9/24 dev eth0",
        "addr add 203.0.113.2/24 dev eth0",
    ]);
    let check = |source: &str, why: &str| assert_masqueraded_as(&node, Family::V4, source, why);
    node.ip(&["route add 10.244.2.0/24 via 198.51.100.3"]);
    check("198.51.100.2", "the address of eth0 in the network of the next hop, 198.51.100.3");
    node.ip(&["route replace 10.244.2.0/24 via 203.0.113.3"]);
    check("203.0.113.2", "the address of eth0 in the network of the next hop, 203.0.113.3");
    // The source of the route, which a packet of the node without an address takes, does not count.
    node.ip(&["route replace 10.244.2.0/24 via 203.0.113.3 src 192.0.2.2"]);
    check("203.0.113.2", "the source of the route, 192.0.2.2, does not count");
    // A next hop in no network of the interface: the first address.
    remote.ip(&["addr add 100.64.0.3/32 dev lo"]);
    node.ip(&["route replace 10.244.2.0/24 via 100.64.0.3 dev eth0 onlink"]);
    check("198.51.100.2", "the first address of eth0");
    node.ip(&["route replace 10.244.2.0/24 dev eth0"]);
    remote.set_sysctl("ipv4/conf/all/proxy_arp", "1");
    check("198.51.100.2", "the first address of eth0");
    // Addresses of link scope do not count, and without an address of its own the interface takes one of another.
    node.ip(&["addr flush dev eth0", "addr add 169.254.7.1/24 dev eth0 scope link"]);
    node.ip(&["route add 10.244.2.0/24 via 100.64.0.3 dev eth0 onlink"]);
    remote.ip(&["route add 192.0.2.2/32 dev eth0"]);
    node.set_sysctl("ipv4/conf/all/proxy_arp", "1");
    check("192.0.2.2", "an address of lo, because the interface towards the endpoint has none");
}

#[test]
fn explain_names_the_address_that_masquerading_takes_for_ipv6() {
    let (node, remote, _server) = uplink();
    let _proxy = Proxy::start(&node, &config_in(Layout::Maps), &cluster(&[2]));
    let check = |source: &str, why: &str| assert_masqueraded_as(&node, Family::V6, source, why);
    node.ip(&["addr add fe80::2/64 dev eth0 nodad", "addr add fd00:51::2/64 dev eth0 nodad"]);
    node.ip(&["route add fd00:10:244:2::/64 via fd00:51::3"]);
    check("fd00:51::2", "the address of eth0 that the kernel prefers");
    // The one that has most bits in common with the endpoint.
    node.ip(&["addr add fd00:10:244:7::2/64 dev eth0 nodad"]);
    remote.ip(&["route add fd00:10:244:7::2/128 dev eth0"]);
    check("fd00:10:244:7::2", "the address of eth0 that the kernel prefers");
    // The source of the route does not count.
    node.ip(&[
        "addr del fd00:10:244:7::2/64 dev eth0",
        "route replace fd00:10:244:2::/64 via fd00:51::3 src 2001:db8::2",
    ]);
    check("fd00:51::2", "the source of the route, 2001:db8::2, does not count");
    node.ip(&["addr flush dev eth0 scope global", "route replace fd00:10:244:2::/64 via fe80::3 dev eth0"]);
    remote.ip(&["route add 2001:db8::2/128 via fe80::2 dev eth0"]);
    check("2001:db8::2", "an address of lo, because the interface towards the endpoint has none");
}

// Each endpoint by itself, and by the manifests alone nothing is said (Q1).
#[test]
fn explain_names_one_address_for_the_endpoints_behind_each_interface() {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &cluster(&[0, 2]));
    world.node.ip(&["addr add 198.18.9.1/32 dev to-pod0"]);
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.node(), NODE_PORT);
    let (_, value) = explained(&world.node, flow);
    let told = value["masqueradeSources"].as_array().expect("a list");
    let seen: Vec<(&str, &Value)> =
        told.iter().map(|told| (told["source"].as_str().unwrap_or_default(), &told["endpoints"][0])).collect();
    let expected = [("198.18.9.1", &json!("10.244.1.10:8080")), ("192.0.2.2", &json!("10.244.2.10:8080"))];
    assert_eq!(seen, expected, "{value:#}");
    let config = proxy.config_path();
    let line = format!(
        "explain --from {} --to {} -o json --config {} --manifests {}",
        flow.source,
        flow.target,
        config.display(),
        proxy.manifests().path().display()
    );
    let (_, text) = said(&world.node, &line);
    let offline: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!((&offline["masquerade"], &offline["masqueradeSources"]), (&json!(true), &json!([])), "{offline:#}");
}

// A node port and an external IP take packets from what the node has there itself.
test_in_each_layout!(check_names_programs_and_addresses_of_the_node_whose_connections_services_take);
fn check_names_programs_and_addresses_of_the_node_whose_connections_services_take(layout: Layout) {
    let world = World::new();
    let v4 = Family::V4;
    let edge = service("shop", "edge").cluster_ips(2).port("admin", Proto::Tcp, 22).external_ip(v4.node_second());
    let mut objects = [cluster(&[0]), vec![edge.json()]].concat();
    objects.extend(slices("shop", "edge", &[0], &[("admin", Proto::Tcp, 8080)]));
    let listen = |address: IpAddr, port: u16| {
        world.node.enter(|| TcpListener::bind(SocketAddr::new(address, port)).expect("the port is free"))
    };
    // On loopback, and at an address that accepts no node ports, programs keep their connections.
    let _kept = [listen(v4.loopback(), NODE_PORT), listen(v4.node_second(), NODE_PORT)];
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let at_node = Flow::new(Proto::Tcp, v4.client(), v4.node(), NODE_PORT);
    assert_reaches(&world.client, at_node, &endpoints(v4, &[0], 8080), Source::Masqueraded, 4);
    let (_, text) = said(&world.node, "check");
    assert!(!text.contains("listens on 127.0.0.1:30080") && !text.contains("listens on 198.18.0.2:30080"), "{text}");
    let shared = "198.18.0.2 is an address of this node and an external IP of shop/edge:admin (TCP port 22)";
    assert!(text.contains(shared), "{text}");
    let _taken = listen(v4.node(), NODE_PORT);
    assert_reaches(&world.client, at_node, &endpoints(v4, &[0], 8080), Source::Masqueraded, 4);
    let (code, text) = said(&world.node, "check");
    assert!(
        text.contains("a program listens on 192.0.2.2:30080, which is the node port of shop/web:http"),
        "{code}: {text}"
    );
}

//! A cluster as one node sees it: the node, pods on it, another node's pods, a client outside, and the rest of the internet.
//!
//! Takes nothing, gives the namespaces wired to the node as [`super::plan`] says, with a server on every endpoint. The node
//! forwards; it holds no rule. Whatever nobody owns goes to `inet`, where it is dropped in silence.

use std::net::IpAddr;

use super::netns::Namespace;
use super::plan::{Family, SERVED_PORTS, host_prefix};
use super::server::Server;

/// The namespaces of one cluster; all gone when dropped.
pub(crate) struct World {
    // Fields are dropped in this order: the servers leave their namespaces before these are deleted.
    _servers: Vec<Server>,
    /// The node under test; the proxy runs here.
    pub(crate) node: Namespace,
    /// A pod on the node that is no endpoint.
    pub(crate) shell: Namespace,
    /// The local endpoints 0 and 1.
    pub(crate) pods: [Namespace; 2],
    /// The other node's pods, endpoints 2 and 3.
    pub(crate) remote: Namespace,
    /// A client outside the cluster.
    pub(crate) client: Namespace,
    _inet: Namespace,
}

impl World {
    /// Builds the cluster and starts its servers.
    pub(crate) fn new() -> Self {
        let node = new_node();
        let both = |address: fn(Family) -> IpAddr| Family::ALL.map(address).to_vec();
        let inet = attach(&node, 1, "inet", &[]);
        route_the_rest(&node, 1);
        let client = attach(&node, 2, "client", &both(Family::client));
        let remote = attach(&node, 3, "remote", &[both(|f| f.endpoint(2)), both(|f| f.endpoint(3))].concat());
        let pods = [
            attach(&node, 4, "pod0", &both(|family| family.endpoint(0))),
            attach(&node, 5, "pod1", &both(|family| family.endpoint(1))),
        ];
        let shell = attach(&node, 6, "shell", &both(Family::shell));
        let servers = vec![
            Server::start(&pods[0], &both(|family| family.endpoint(0)), &SERVED_PORTS),
            Server::start(&pods[1], &both(|family| family.endpoint(1)), &SERVED_PORTS),
            Server::start(&remote, &[both(|f| f.endpoint(2)), both(|f| f.endpoint(3))].concat(), &SERVED_PORTS),
        ];
        Self { _servers: servers, node, shell, pods, remote, client, _inet: inet }
    }

    /// Whether the node owns the address, so that a masqueraded connection may show it.
    pub(crate) fn is_node_address(address: IpAddr) -> bool {
        let family = Family::of(address);
        [family.node(), family.node_second()].contains(&address)
    }
}

fn new_node() -> Namespace {
    let node = Namespace::new("node");
    for (key, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        // A hairpin leaves through the interface it came from; that is no reason for a redirect.
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/default/send_redirects", "0"),
    ] {
        node.set_sysctl(key, value);
    }
    let addresses = Family::ALL.iter().flat_map(|family| [family.node(), family.node_second()]);
    node.ip(&addresses.map(|address| add_address(address, "lo")).collect::<Vec<_>>());
    // Masquerading then never picks the second address, so a probe from there shows whether it was masqueraded.
    node.ip(&[format!("addr change {} dev lo preferred_lft 0", host_prefix(Family::V6.node_second()))]);
    node
}

/// Makes a namespace that holds `addresses` and reaches everything else through the node.
fn attach(node: &Namespace, number: u8, name: &str, addresses: &[IpAddr]) -> Namespace {
    let space = Namespace::new(name);
    let device = format!("to-{name}");
    // The link's own addresses have link scope, so that masquerading never picks them.
    node.ip(&[
        format!("link add {device} type veth peer name eth0 netns {}", space.name()),
        format!("addr add 169.254.{number}.1/30 dev {device} scope link"),
        format!("addr add fe80::1/64 dev {device} nodad"),
        format!("link set {device} up"),
    ]);
    let mut inside = vec![
        format!("addr add 169.254.{number}.2/30 dev eth0 scope link"),
        "addr add fe80::2/64 dev eth0 nodad".to_owned(),
        "link set eth0 up".to_owned(),
    ];
    inside.extend(addresses.iter().map(|address| add_address(*address, "eth0")));
    inside.push(format!("route add 0.0.0.0/0 via 169.254.{number}.1 dev eth0"));
    inside.push("route add ::/0 via fe80::1 dev eth0".to_owned());
    space.ip(&inside);
    let routes = addresses.iter().map(|address| {
        let gateway = if address.is_ipv4() { format!("169.254.{number}.2") } else { "fe80::2".to_owned() };
        format!("route add {} via {gateway} dev {device}", host_prefix(*address))
    });
    node.ip(&routes.collect::<Vec<_>>());
    space
}

fn route_the_rest(node: &Namespace, number: u8) {
    node.ip(&[
        format!("route add 0.0.0.0/0 via 169.254.{number}.2 dev to-inet src {}", Family::V4.node()),
        format!("route add ::/0 via fe80::2 dev to-inet src {}", Family::V6.node()),
    ]);
}

fn add_address(address: IpAddr, device: &str) -> String {
    let flags = if address.is_ipv6() { "nodad" } else { "" };
    format!("addr add {} dev {device} {flags}", host_prefix(address))
}

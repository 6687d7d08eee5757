//! Two nodes with pods, and a client, on one bridge; the nodes' pods reach each other through VXLAN, as with flannel.
//!
//! Node A is the node under test of [`plan`](crate::support::plan), with endpoint 0 and the shell pod; node B is the other node,
//! with endpoints 2 and 3. The bridge has an MTU of 1500, so the overlay has 1450; the pods believe in 1500, so that path MTU discovery
//! has something to find. No server runs, and no proxy.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::support::netns::Namespace;
use crate::support::objects::node;
use crate::support::plan::{Family, OTHER_NODE, host_prefix};
use crate::support::proxy::config;
use crate::support::wiring::{attach, forward};

/// The MTU of the overlay: that of the bridge without outer Ethernet, IPv4, UDP and VXLAN headers.
pub(crate) const OVERLAY_MTU: u16 = 1450;

/// The namespaces; all gone when dropped.
pub(crate) struct Nodes {
    /// Node A.
    pub(crate) a: Namespace,
    /// Node B.
    pub(crate) b: Namespace,
    /// The shell pod on A.
    pub(crate) shell: Namespace,
    /// Endpoint 0 on A.
    pub(crate) pod: Namespace,
    /// Endpoints 2 and 3 on B.
    pub(crate) remote: Namespace,
    /// A client on the nodes' network.
    pub(crate) client: Namespace,
    _wire: Namespace,
}

/// Node B's address.
pub(crate) fn node_b(family: Family) -> IpAddr {
    parse(if family == Family::V4 { "192.0.2.3" } else { "2001:db8::3" })
}

/// The client's address.
pub(crate) fn client(family: Family) -> IpAddr {
    parse(if family == Family::V4 { "192.0.2.77" } else { "2001:db8::77" })
}

/// The address of node A or B in the overlay; masquerading picks it for what leaves through there.
pub(crate) fn overlay_address(family: Family, side: u8) -> IpAddr {
    parse(&match family {
        Family::V4 => format!("10.244.{side}.1"),
        Family::V6 => format!("fd00:10:244:{side}::1"),
    })
}

/// The configuration of the proxy on node B.
pub(crate) fn config_b() -> Value {
    let mut config = config();
    config["hostnameOverride"] = json!(OTHER_NODE);
    config
}

/// The Node object of node B.
pub(crate) fn object_b() -> Value {
    let mut object = node();
    object["metadata"]["name"] = json!(OTHER_NODE);
    object["metadata"]["uid"] = json!(OTHER_NODE);
    object["status"]["addresses"] =
        json!(Family::ALL.map(|family| json!({ "type": "InternalIP", "address": node_b(family) })));
    object
}

impl Nodes {
    /// Builds the network.
    pub(crate) fn new() -> Self {
        let wire = Namespace::new("wire");
        wire.ip(&["link add bridge type bridge", "link set bridge up"]);
        let a = on_wire(&wire, "a", Family::node);
        let b = on_wire(&wire, "b", node_b);
        let outside = on_wire(&wire, "client", client);
        join_overlay(&a, 1, [Family::V4.node(), node_b(Family::V4)], 2);
        join_overlay(&b, 2, [node_b(Family::V4), Family::V4.node()], 1);
        let both = |address: fn(Family) -> IpAddr| Family::ALL.map(address).to_vec();
        let on_a = [("shell".to_owned(), both(Family::shell)), ("pod".to_owned(), both(|f| f.endpoint(0)))];
        let on_b = [("remote".to_owned(), [both(|f| f.endpoint(2)), both(|f| f.endpoint(3))].concat())];
        let [shell, pod] = attach(&a, 1, &on_a).try_into().unwrap_or_else(|_| unreachable!("as many as places"));
        let [remote] = attach(&b, 3, &on_b).try_into().unwrap_or_else(|_| unreachable!("as many as places"));
        Self { a, b, shell, pod, remote, client: outside, _wire: wire }
    }
}

/// A namespace on the bridge; the nodes forward.
fn on_wire(wire: &Namespace, name: &str, address: fn(Family) -> IpAddr) -> Namespace {
    let space = Namespace::new(name);
    forward(&space);
    wire.ip(&[
        format!("link add port-{name} type veth peer name eth0 netns {}", space.name()),
        format!("link set port-{name} master bridge"),
        format!("link set port-{name} up"),
    ]);
    space.ip(&[
        format!("addr add {}/24 dev eth0", address(Family::V4)),
        format!("addr add {}/64 dev eth0 nodad", address(Family::V6)),
        "link set eth0 up".to_owned(),
    ]);
    space
}

/// The node's end of the tunnel, and the route to the other node's pods through it.
fn join_overlay(node: &Namespace, side: u8, [local, remote]: [IpAddr; 2], other: u8) {
    let mut lines =
        vec![format!("link add overlay type vxlan id 1 local {local} remote {remote} dstport 4789 dev eth0")];
    lines.extend(Family::ALL.map(|family| {
        let flags = if family == Family::V6 { "nodad" } else { "" };
        format!("addr add {} dev overlay {flags}", host_prefix(overlay_address(family, side)))
    }));
    lines.push("link set overlay up".to_owned());
    lines.push(format!("route add {} dev overlay", host_prefix(overlay_address(Family::V4, other))));
    lines.push(format!("route add {} dev overlay", host_prefix(overlay_address(Family::V6, other))));
    lines.push(format!("route add 10.244.{other}.0/24 via {} dev overlay", overlay_address(Family::V4, other)));
    lines.push(format!("route add fd00:10:244:{other}::/64 via {} dev overlay", overlay_address(Family::V6, other)));
    node.ip(&lines);
}

fn parse(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

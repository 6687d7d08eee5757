//! The fast path of established connections: off by default, kept by the proxy, and what it does to packets.
//!
//! Needs root, iproute2 and nft (`make deps`). Packets need a kernel with flowtables: those tests are ignored here and run in
//! virtual machines (`vm-tests/run`), which load the modules first.

mod packets;
mod table;
mod throughput;

use serde_json::Value;

use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::probe::Proto;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];

/// A Service with both protocols, served by endpoint 2 on the other node.
fn cluster() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let web = web.port("dns", Proto::Udp, 53).node_port(30053);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &[2], &PORTS));
    objects
}

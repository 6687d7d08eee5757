//! The proxy beside other programs of a node that write rules: NodeLocal DNSCache, the host ports of CNI, Docker and firewalld. Each test
//! shows what such a program does to traffic of Services, and that the remedy of `deploy/WISHES.md` works.
//!
//! `portmap` and firewalld are Debian's programs, which `make deps` unpacks into `target/tools/neighbours`. node-local-dns and Docker are
//! not run: Debian has no package of the first, and the second would need 180 MB and a container runtime. Their rules are written here as
//! these programs write them, by iptables-nft.

mod dns_cache;
mod docker;
mod firewalld;
mod host_port;
mod table_owner;

use std::path::{Path, PathBuf};

use crate::judge::{FEW, Source, assert_reaches, endpoints};
use crate::support::netns::{Namespace, run_with_input};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{CLUSTER_CIDR, Family};
use crate::support::probe::{Flow, Proto};
use crate::support::world::World;

/// The ports of the slices.
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
/// The endpoints of Service shop/web: one on this node, one elsewhere.
const WEB: [u8; 2] = [0, 2];
const NODE_PORT: u16 = 30080;

/// The Node, the `ServiceCIDR`, and Service shop/web with a cluster IP and a node port.
fn objects() -> Vec<serde_json::Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    [vec![node(), service_cidr(), web.json()], slices("shop", "web", &WEB, &PORTS)].concat()
}

/// A file that `make deps` has unpacked.
fn unpacked(path: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/neighbours").join(path);
    assert!(file.exists(), "no {}: run `make deps`", file.display());
    file
}

/// Writes rules of a family with iptables-nft.
fn iptables(node: &Namespace, family: Family, text: &str) {
    let program = if family == Family::V4 { "iptables-nft-restore" } else { "ip6tables-nft-restore" };
    run_with_input(node.command(program).arg("--noflush"), text);
}

/// The addresses of all pods of a family.
fn pods(family: Family) -> &'static str {
    CLUSTER_CIDR.split(',').nth(usize::from(family == Family::V6)).expect("a range for each family")
}

fn tcp(source: std::net::IpAddr, address: std::net::IpAddr, port: u16) -> Flow {
    Flow::new(Proto::Tcp, source, address, port)
}

/// A pod reaches shop/web through its cluster IP, and a client outside through the node port.
fn assert_web_is_forwarded(world: &World, family: Family) {
    let to = endpoints(family, &WEB, 8080);
    let from_pod = tcp(family.shell(), family.cluster_ip(1), 80);
    assert_reaches(&world.shell, from_pod, &to, Source::Kept, FEW);
    let from_outside = tcp(family.client(), family.node(), NODE_PORT);
    assert_reaches(&world.client, from_outside, &to, Source::Masqueraded, FEW);
}

//! Connections that go silent: whoever carried them has forgotten them, and says nothing.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::cluster::{base, served};
use crate::support::apiserver::{ApiServer, Format, Scheme};
use crate::support::netns::{Namespace, run_with_input};
use crate::support::nft;
use crate::support::proxy::{Proxy, config};

const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Passes what begins with a SYN from now on, and drops what is on the way of connections from before.
const FORGET: &str = "table inet forget {
    chain input {
        type filter hook input priority 0;
        tcp flags & (syn | ack) == syn ct mark set 1
        meta l4proto tcp ct mark != 1 drop
    }
    chain output {
        type filter hook output priority 0;
        meta l4proto tcp ct mark != 1 drop
    }
}";

/// The node's ports of the connections to the server that are open.
fn open_ports(node: &Namespace, server: u16) -> BTreeSet<String> {
    let table = node.enter(|| fs::read_to_string("/proc/thread-self/net/tcp")).expect("the kernel lists connections");
    let connections = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, local, remote, "01", ..] = fields[..] else { return None };
        remote.ends_with(&format!(":{server:04X}")).then(|| local.to_owned())
    });
    connections.collect()
}

#[test]
fn a_connection_that_goes_silent_is_noticed_within_30_seconds() {
    let mut spaces = Namespace::several(&["node", "server"]);
    let (node, away) = (spaces.remove(0), spaces.remove(0));
    node.ip(&[
        format!("link add eth0 type veth peer name eth0 netns {}", away.name()),
        format!("addr add {NODE}/24 dev eth0"),
        "link set eth0 up".to_owned(),
    ]);
    away.ip(&[format!("addr add {SERVER}/24 dev eth0"), "link set eth0 up".to_owned()]);
    let server = away.enter(|| ApiServer::start_at(SERVER, Scheme::Https, Format::Protobuf));
    server.apply(&base());
    server.apply(&served("web", 1));
    let mut proxy = Proxy::with_api(&node, &config(), &server.kubeconfig(&json!({})));
    proxy.launch();
    server.wait_for_watches();
    let port = server.address().port();
    let silent = open_ports(&node, port);
    assert!(silent.len() >= 4, "{silent:?}");
    run_with_input(away.command("nft").args(["-f", "-"]), FORGET);
    server.apply(&served("api", 2));
    let since = Instant::now();
    while !open_ports(&node, port).is_disjoint(&silent) {
        assert!(since.elapsed() < Duration::from_secs(160), "not noticed: {}", proxy.log());
        thread::sleep(Duration::from_millis(50));
    }
    let ended = since.elapsed();
    while !nft::list_ruleset(&node).contains("\"shop/api:http\"") {
        assert!(since.elapsed() < Duration::from_secs(160), "not noticed: {}", proxy.log());
        thread::sleep(Duration::from_millis(100));
    }
    let took = since.elapsed();
    println!("the last silent connection ended after {ended:?}, and the change is there after {took:?}");
    // The kernel ends it after 27 s, whatever the machine does.
    assert!(ended < Duration::from_secs(30), "{ended:?}: {}", proxy.log());
    // The wait before the next attempt, and what a loaded machine takes.
    assert!(took < ended + Duration::from_secs(3), "{took:?} after {ended:?}: {}", proxy.log());
}

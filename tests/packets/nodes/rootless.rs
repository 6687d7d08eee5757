//! A node in a user namespace, as rootless kind, k3s and usernetes make it: the kernel limits the send buffer there, and sysctls, scores
//! and processes of the machine belong to others.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::inspect::{command, outcome};
use crate::judge::{FEW, Source, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slice, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Proto};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];
const NODE_PORT: u16 = 30080;
const PATIENCE: Duration = Duration::from_secs(20);
/// Endpoints of each Service of the large cluster.
const ENDPOINTS: u32 = 100;

fn config(layout: Layout) -> Value {
    let mut config = config_in(layout);
    config["featureGates"] = json!({ "KubeProxyNFTablesLocalhostNodePorts": true });
    config["nodePortAddresses"] = json!(["primary", "localhost"]);
    config["conntrack"]["tcpCloseWaitTimeout"] = json!("61s");
    config["oomScoreAdj"] = json!(-999);
    config
}

/// A Service with these endpoints that closes connections to endpoints that are gone.
fn objects(which: &[u8]) -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    let mut web = web.port("dns", Proto::Udp, 53).json();
    web["metadata"]["annotations"] = json!({ "kube-proxy-nft/close-connections": "endpoint-gone" });
    [vec![node(), service_cidr(), web], slices("shop", "web", which, &PORTS)].concat()
}

fn to_cluster_ip(proto: Proto, family: Family) -> Flow {
    let port = if proto == Proto::Tcp { 80 } else { 53 };
    Flow::new(proto, family.shell(), family.cluster_ip(1), port)
}

fn assert_served(world: &World, which: &[u8]) {
    for family in Family::ALL {
        let http = endpoints(family, which, 8080);
        assert_reaches(&world.shell, to_cluster_ip(Proto::Tcp, family), &http, Source::Kept, FEW);
        let from_outside = Flow::new(Proto::Tcp, family.client(), family.node(), NODE_PORT);
        assert_reaches(&world.client, from_outside, &http, Source::Masqueraded, FEW);
        let on_loopback = Flow::new(Proto::Tcp, family.loopback(), family.loopback(), NODE_PORT);
        assert_reaches(&world.node, on_loopback, &http, Source::Masqueraded, FEW);
    }
}

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < end, "it never happened: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The warnings and errors of a log, each with its level and message only, in order and each once.
fn complaints(proxy: &Proxy<'_>) -> Vec<String> {
    let log = proxy.log();
    let lines = log.lines().filter(|line| line.starts_with(['W', 'E']));
    let message = |line: &str| Some(format!("{} {}", &line[..1], line.split_once("] \"")?.1.split_once('"')?.0));
    let mut all: Vec<String> = lines.filter_map(message).collect();
    all.sort();
    all.dedup();
    all
}

/// Standard output of a command that finds nothing wrong.
fn printed(node: &Namespace, args: &[&str]) -> String {
    let (code, stdout, stderr) = outcome(&mut command(node, args));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}: {stdout}");
    stdout
}

test_in_each_layout!(a_node_in_a_user_namespace_is_served_and_says_what_it_may_not_do);
fn a_node_in_a_user_namespace_is_served_and_says_what_it_may_not_do(layout: Layout) {
    // The proxy needs no right in the initial user namespace (O22); what it may not do there is a warning (N2, O6).
    let world = World::in_user_namespace();
    let mut proxy = Proxy::start(&world.node, &config(layout), &objects(&[0, 1, 2]));
    assert_served(&world, &[0, 1, 2]);

    // Connection tracking is this network namespace's own: flows and connections follow their endpoints (J12, J13).
    proxy.apply(&objects(&[0]));
    let (udp, first) = Connection::open(&world.shell, to_cluster_ip(Proto::Udp, Family::V4));
    assert_eq!(first.endpoint, Family::V4.endpoint(0));
    let mut tcp = world.shell.enter(|| TcpStream::connect((Family::V4.cluster_ip(1), 80))).expect("it is served");
    proxy.apply(&objects(&[3]));
    assert_eq!(udp.ask().endpoint, Family::V4.endpoint(3));
    let end = Instant::now() + PATIENCE;
    while tcp.write(b"?").is_ok() {
        assert!(Instant::now() < end, "the connection to the endpoint that is gone is not reset");
        thread::sleep(Duration::from_millis(20));
    }
    assert_served(&world, &[3]);

    assert_eq!(
        complaints(&proxy),
        ["W Cannot set oom_score_adj; when memory is short, the kernel may end this process early"],
        "{}",
        proxy.log()
    );
    let close_wait = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    assert_eq!(run(world.node.command("cat").arg(close_wait)).trim(), "61");
}

#[test]
fn the_commands_work_on_a_node_in_a_user_namespace() {
    let world = World::in_user_namespace();
    let proxy = Proxy::start(&world.node, &config(Layout::Maps), &objects(&[0, 1, 2]));
    for (args, says) in [
        (&["services"][..], "shop/web:http"),
        (&["verify"], "hold what they should"),
        (&["check"], "CAP_NET_ADMIN is there"),
        (&["explain", "--from", "10.244.1.99", "--to", "10.96.0.1:80"], "TRANSLATED"),
        (&["probe", "shop/web"], "shop/web"),
        (&["changes"], "first"),
        (&["services", "--stats"], "shop/web:http"),
    ] {
        let text = printed(&world.node, args);
        assert!(text.contains(says), "{args:?}: {text}");
        // Processes of other user namespaces are seen, and not in which network namespace they are.
        assert!(!text.contains("another kube-proxy"), "{args:?}: {text}");
    }

    // A write of another program is noticed, and its author named from the second one on (G10).
    let is_there = || nft::list_ruleset(&world.node).contains("table ip kube-proxy");
    nft::load(&world.node, "delete table ip kube-proxy\n");
    wait_until("it is logged", || proxy.log().contains("Another program changed our rules"));
    wait_until("the table is there again", is_there);
    nft::load(&world.node, "delete table ip kube-proxy\n");
    wait_until("the program is named", || proxy.log().contains("nft (pid "));
    wait_until("the table is there again", is_there);

    // The lock keeps a second process from writing (O12).
    let mut second = Proxy::prepare(&world.node, &config(Layout::Maps), &objects(&[3]));
    second.spawn();
    wait_until("the second waits", || second.log().contains("another kube-proxy writes the rules of this node"));
    drop(proxy);
    wait_until("the second takes over", || second.sync_times().iter().any(|time| *time > 0.0));
    assert_served(&world, &[3]);
}

/// So many Services that their rules are a batch of more than the 416 KiB that most machines allow; in layout `chains`, whose rules are
/// longer, of more than the 8 MiB that some allow.
fn many(layout: Layout) -> Value {
    let services = if layout == Layout::Chains { 160 } else { 130 };
    let address = |base: u32, n: u32| IpAddr::V4(Ipv4Addr::from(base + n));
    let objects = (0..services).flat_map(|n| {
        let name = format!("many-{n}");
        let endpoints: Vec<IpAddr> = (0..ENDPOINTS).map(|m| address(0x0af6_0000, n * ENDPOINTS + m)).collect();
        [
            service("many", &name).cluster_ip(address(0x0a60_4000, n)).port("http", Proto::Tcp, 80).json(),
            slice("many", &name, &name, &endpoints, &[("http", Proto::Tcp, 8080)]),
        ]
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>() })
}

test_in_each_layout!(a_first_sync_longer_than_the_send_buffer_of_a_user_namespace_succeeds_at_once);
fn a_first_sync_longer_than_the_send_buffer_of_a_user_namespace_succeeds_at_once(layout: Layout) {
    // It is sent in parts that the kernel takes (G8, O22). Of the machine's limit, sysctl net.core.wmem_max, the kernel gives twice as much.
    let world = World::in_user_namespace();
    let mut proxy = Proxy::prepare(&world.node, &config(layout), &objects(&[0, 1, 2]));
    proxy.manifests().apply(&many(layout));
    proxy.launch();
    assert_served(&world, &[0, 1, 2]);
    let log = proxy.log();
    assert!(!log.contains("Sync failed"), "{log}");
    let sum = |series| proxy.series(series).iter().sum::<f64>();
    let (bytes, transactions) = (sum("kubeproxy_nft_message_bytes_total"), sum("kubeproxy_nft_transactions_total"));
    let limit = fs::read_to_string("/proc/sys/net/core/wmem_max").expect("a sysctl");
    let needed = (bytes / (2.0 * limit.trim().parse::<f64>().expect("a number"))).ceil();
    assert!((needed..=needed + 6.0).contains(&transactions), "{transactions} transactions for {bytes} bytes");

    proxy.apply(&objects(&[3]));
    assert_served(&world, &[3]);
    assert!(printed(&world.node, &["verify"]).contains("hold what they should"));
}

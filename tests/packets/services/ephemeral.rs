//! Node ports that the kernel may give to programs of the node that ask for any free port.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_reaches, endpoints};
use crate::support::netns::{Namespace, run};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Proto};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const NODE_PORT: u16 = 30_081;
/// Ports that an operator has reserved.
const OTHERS: &str = "1001,1003,1005,1007,1009,1011,1013,8080";
const PATIENCE: Duration = Duration::from_secs(20);

fn objects() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    [vec![node(), service_cidr(), web.json()], slices("shop", "web", &[0, 2], &PORTS)].concat()
}

/// The sockets of a program that asks for any free port until no port is left.
fn all_free_ports(node: &Namespace) -> Vec<TcpListener> {
    let any = (IpAddr::from(Ipv4Addr::UNSPECIFIED), 0);
    node.enter(|| std::iter::from_fn(|| TcpListener::bind(any).ok()).collect())
}

fn ports(sockets: &[TcpListener]) -> Vec<u16> {
    sockets.iter().map(|socket| socket.local_addr().expect("a bound socket has an address").port()).collect()
}

/// The log lines about node ports that programs may get.
fn warnings(proxy: &Proxy<'_>) -> Vec<String> {
    let log = proxy.log();
    log.lines().filter(|line| line.contains("Node ports are ephemeral ports")).map(str::to_owned).collect()
}

fn reserved(node: &Namespace) -> String {
    run(node.command("cat").arg("/proc/sys/net/ipv4/ip_local_reserved_ports")).trim().to_owned()
}

#[test]
fn a_node_port_that_programs_may_get_is_named_and_can_be_reserved() {
    let world = World::new();
    world.node.set_sysctl("ipv4/ip_local_port_range", "30000 30199");
    // Reserves so many ports that the kernel returns the whole list only to a program that reads it with one system call.
    world.node.set_sysctl("ipv4/ip_local_reserved_ports", &format!("{OTHERS},30100-30101"));
    let mut proxy = Proxy::start(&world.node, &config(), &objects());

    // Without the flag nothing is reserved, and the node port is named with the line to set (N6).
    assert_eq!(reserved(&world.node), format!("{OTHERS},30100-30101"));
    let end = Instant::now() + PATIENCE;
    while warnings(&proxy).is_empty() {
        assert!(Instant::now() < end, "the node port is not named:\n{}", proxy.log());
        thread::sleep(Duration::from_millis(20));
    }
    let lines = warnings(&proxy);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let remedy = format!("net.ipv4.ip_local_reserved_ports = {OTHERS},30000-32767");
    for part in ["30081 (shop/web)", "30000-30199", &remedy] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
    // A program gets the port, and its packets go to the Service.
    let end = Instant::now() + PATIENCE;
    let taken = loop {
        let taken = all_free_ports(&world.node);
        if ports(&taken).contains(&NODE_PORT) {
            break taken;
        }
        assert!(Instant::now() < end, "no program gets port {NODE_PORT}, only {:?}", ports(&taken));
    };
    let to_node = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.node(), NODE_PORT);
    let expected = endpoints(Family::V4, &[0, 2], 8080);
    assert_reaches(&world.client, to_node, &expected, Source::Masqueraded, FEW);
    drop(taken);
    // Further syncs say nothing more.
    for which in [&[0][..], &[2], &[0, 2]] {
        proxy.apply(&slices("shop", "web", which, &PORTS));
    }
    assert_eq!(warnings(&proxy).len(), 1, "{}", proxy.log());

    // With the flag a start adds the range to what is reserved, and no program gets a port of it (N5).
    proxy.stop();
    let mut reserving = config();
    reserving["nftables"]["reserveNodePorts"] = json!("30000-30150");
    proxy.configure(&reserving);
    proxy.launch();
    assert_eq!(reserved(&world.node), format!("{OTHERS},30000-30150"));
    let taken = ports(&all_free_ports(&world.node));
    assert!(taken.len() > 10 && taken.iter().all(|port| (30_151..=30_199).contains(port)), "{taken:?}");
    assert_eq!(warnings(&proxy).len(), 1, "the log of before has one, and this start none: {}", proxy.log());

    // A start without the flag, or with another range, removes nothing from the reserved ports.
    for range in ["", "40000"] {
        proxy.stop();
        reserving["nftables"]["reserveNodePorts"] = json!(range);
        proxy.configure(&reserving);
        proxy.launch();
        let now = reserved(&world.node);
        assert!(now.starts_with(&format!("{OTHERS},30000-30150")) && now.contains(range), "{now}");
    }
}

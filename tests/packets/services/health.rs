//! Health-check node ports on the addresses of a node of which some cannot be listened on.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{Family, NODE};
use crate::support::probe::{Connection, Flow, Proto};
use crate::support::proxy::{Proxy, config, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const PATIENCE: Duration = Duration::from_secs(20);
/// An address that the client has as well.
const TWICE: &str = "2001:db8:113::99";

/// The status of a health-check node port as the client sees it; 0 without an answer.
fn ask(client: &Namespace, address: IpAddr, port: u16) -> u16 {
    client.enter(|| status(address, port))
}

fn status(address: IpAddr, port: u16) -> u16 {
    let answer = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    answer().ok().and_then(|text| text.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
}

fn wait_for(client: &Namespace, address: IpAddr, port: u16, wanted: u16) {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = ask(client, address, port);
        if status == wanted {
            return;
        }
        assert!(Instant::now() < end, "{address} port {port} answers {status}, not {wanted}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A Service with an endpoint on the node and a health-check node port, and its slices.
fn checked(name: &str, n: u8, port: u16) -> Vec<Value> {
    let web = service("shop", name).cluster_ips(n).port("http", Proto::Tcp, 80);
    let web = Family::ALL.into_iter().fold(web, |web, family| web.load_balancer_ip(family.load_balancer_ip(n)));
    let web = web.spec("externalTrafficPolicy", json!("Local")).spec("healthCheckNodePort", json!(port));
    [vec![web.json()], slices("shop", name, &[0], &PORTS)].concat()
}

/// A configuration with node ports on the addresses of two ranges.
fn in_ranges() -> Value {
    let mut config = config();
    config["nodePortAddresses"] = json!(["192.0.2.0/24", "198.18.0.0/16", "2001:db8::/32"]);
    config
}

fn addresses_that_are(node: &Namespace, state: &str) -> String {
    run(node.command("ip").args(["-6", "addr", "show", "dev", "to-client", state]))
}

/// Set when it goes, also by a panic.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Probes this address all the time while `work` runs; gives the number of probes, and when those that failed began.
fn probing(client: &Namespace, address: IpAddr, port: u16, work: impl FnOnce()) -> (usize, Vec<Duration>) {
    let (done, start) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        let probes = scope.spawn(|| {
            client.enter(|| {
                let (mut count, mut failed) = (0, Vec::new());
                while !done.load(Ordering::Relaxed) {
                    let at = start.elapsed();
                    count += 1;
                    if status(address, port) != 200 {
                        failed.push(at);
                    }
                    thread::sleep(Duration::from_millis(50));
                }
                (count, failed)
            })
        });
        let end = Done(&done);
        work();
        drop(end);
        probes.join().expect("no panic")
    })
}

#[test]
fn an_address_that_failed_duplicate_detection_closes_no_health_check_node_port() {
    // Addresses that the kernel does not use yet, or never, are left out; each other one has its listener (K4, K5).
    let world = World::new();
    world.client.ip(&[format!("addr add {TWICE}/128 dev eth0 nodad preferred_lft 0")]);
    world.node.set_sysctl("ipv6/conf/to-client/accept_dad", "1");
    world.node.set_sysctl("ipv6/conf/to-client/dad_transmits", "3");
    let objects = [vec![node(), service_cidr()], checked("web", 1, 32_101)].concat();
    let mut proxy = Proxy::start(&world.node, &in_ranges(), &objects);
    let (second, twice): (IpAddr, IpAddr) = (Family::V6.node_second(), TWICE.parse().expect("an address"));
    wait_for(&world.client, second, 32_101, 200);
    let (count, failed) = probing(&world.client, second, 32_101, || {
        world
            .node
            .ip(&[format!("addr add {TWICE}/128 dev to-client"), "addr add 2001:db8:113::98/128 dev to-client".into()]);
        assert!(
            addresses_that_are(&world.node, "tentative").contains(TWICE),
            "duplicate detection takes three seconds"
        );
        let end = Instant::now() + PATIENCE;
        while !addresses_that_are(&world.node, "dadfailed").contains(TWICE) {
            assert!(Instant::now() < end, "{}", addresses_that_are(&world.node, ""));
            thread::sleep(Duration::from_millis(50));
        }
        // The other new address is used as soon as the kernel uses it, and so is the port of a new Service.
        world.client.ip(&["route add 2001:db8:113::98/128 via fe80::1 dev eth0"]);
        wait_for(&world.client, "2001:db8:113::98".parse().expect("an address"), 32_101, 200);
        proxy.apply(&checked("late", 2, 32_102));
        wait_for(&world.client, second, 32_102, 200);
        thread::sleep(Duration::from_secs(2));
    });
    assert!(failed.is_empty(), "{} of {count} probes of {second} failed, at {failed:?}", failed.len());
    assert!(
        !proxy.log().contains("Failed to start healthcheck"),
        "an address that is left out is no failure:\n{}",
        proxy.log()
    );

    // Once it may be used, it is.
    world.client.ip(&[format!("addr del {TWICE}/128 dev eth0")]);
    world
        .node
        .ip(&[format!("addr del {TWICE}/128 dev to-client"), format!("addr add {TWICE}/128 dev to-client nodad")]);
    wait_for(&world.client, twice, 32_101, 200);
}

#[test]
fn a_health_check_node_port_in_use_at_one_address_is_served_at_the_others() {
    // Each address is listened on by itself; what fails is named and tried again (K4).
    let world = World::new();
    let [first, second] = [Family::V6.node(), Family::V6.node_second()];
    let other = world.node.enter(|| TcpListener::bind((first, 32_101))).expect("the port is free");
    let objects = [vec![node(), service_cidr()], checked("web", 1, 32_101)].concat();
    let mut proxy = Proxy::start(&world.node, &in_ranges(), &objects);
    wait_for(&world.client, second, 32_101, 200);
    for n in 0..5 {
        proxy.apply(&checked("more", 2, 32_102 + n));
    }
    let log = proxy.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("Failed to start healthcheck")).collect();
    let [line] = lines[..] else { panic!("{lines:?}\n{log}") };
    for part in ["shop/web", "[2001:db8::2]:32101", "ss -ltnp"] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
    drop(other);
    wait_for(&world.client, first, 32_101, 200);
    assert!(proxy.log().contains("Started healthcheck that had failed"), "{}", proxy.log());
    assert_eq!(ask(&world.client, second, 32_101), 200, "of {NODE}");
}

/// The Node, with or without the label.
fn labelled(labels: &Value) -> Value {
    let mut node = node();
    node["metadata"]["labels"] = labels.clone();
    node
}

fn drained(layout: Layout) {
    // The mark of the configuration drains the node: `/healthz` and health-check node ports answer 503; `/livez`, `/readyz` and all traffic
    // go on (L10).
    let world = World::new();
    let mut config = config_in(layout);
    config["nodePortAddresses"] = json!(["192.0.2.0/24", "2001:db8::/32"]);
    config["healthzBindAddress"] = json!("[::]:10256");
    config["nftables"]["drainOn"] = json!("label:example.com/drain=yes");
    let unmarked = labelled(&json!({ "example.com/drain": "no" }));
    let objects = [vec![unmarked.clone(), service_cidr()], checked("web", 1, 32_101)].concat();
    let proxy = Proxy::start(&world.node, &config, &objects);
    let balanced = |family: Family| Flow::new(Proto::Tcp, family.client(), family.load_balancer_ip(1), 80);
    let held = Family::ALL.map(|family| Connection::open(&world.client, balanced(family)));
    let marked = labelled(&json!({ "example.com/drain": "yes" }));
    for (node, status) in [(&unmarked, 200), (&marked, 503), (&unmarked, 200)] {
        proxy.manifests().apply(node);
        for family in Family::ALL {
            wait_for(&world.client, family.node(), 32_101, status);
            let to = endpoints(family, &[0], 8080);
            assert_reaches(&world.client, balanced(family), &to, Source::Kept, FEW);
        }
        let pages = |path: &str| proxy_status(&proxy.get("127.0.0.1:10256", path));
        assert_eq!(["/healthz", "/livez", "/readyz"].map(pages), [status, 200, 200], "{layout:?}");
        for (connection, first) in &held {
            assert_eq!(connection.ask(), *first, "{layout:?}: an open connection goes on");
        }
        let healthz = proxy.get("127.0.0.1:10256", "/healthz");
        assert_eq!(healthz.contains("the node is drained"), status == 503, "{healthz}");
    }
    let log = proxy.log();
    assert_eq!(log.matches("The mark of the Node that drains this node changed").count(), 2, "{log}");
}

test_in_each_layout!(drained);

/// The status of an answer.
fn proxy_status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

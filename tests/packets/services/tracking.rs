//! The metrics of connection tracking are the kernel's own numbers.

use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::support::netns::Namespace;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Proto};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const HELD: usize = 24;
const PATIENCE: Duration = Duration::from_secs(20);

fn sysctl(node: &Namespace, name: &str) -> f64 {
    let path = format!("/proc/sys/net/netfilter/{name}");
    let text = node.enter(|| fs::read_to_string(path)).expect("the module is loaded");
    text.trim().parse().expect("a number")
}

#[test]
fn the_metrics_of_connection_tracking_are_those_of_the_nodes_network_namespace() {
    // Each scrape has the entries, the limit and the counters of that moment (P13).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).external_ip(Family::V4.external_ip(1));
    let objects = [vec![node(), service_cidr(), web.json()], slices("shop", "web", &[0, 2], &PORTS)].concat();
    let proxy = Proxy::start(&world.node, &config(), &objects);
    let series = |name: &str| match proxy.series(&format!("kubeproxy_nft_conntrack_{name}"))[..] {
        [value] => value,
        ref other => panic!("{name}: {other:?}"),
    };
    assert!(series("limit") > 0.0 && series("limit").to_bits() == sysctl(&world.node, "nf_conntrack_max").to_bits());
    for name in ["dropped_packets_total", "failed_inserts_total", "early_drops_total"] {
        assert!(series(name) < 1.0, "{name}: nothing has been dropped in a new network namespace");
    }
    // Connections that are open count, and only those of this network namespace.
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.external_ip(1), 80);
    let before = series("entries");
    let held: Vec<_> = (0..HELD).map(|_| Connection::open(&world.client, flow)).collect();
    let end = Instant::now() + PATIENCE;
    loop {
        let (least, now, most) = (sysctl(&world.node, "nf_conntrack_count"), series("entries"), before + 100.0);
        if now >= 24.0 && now >= least && now <= most + least {
            break;
        }
        assert!(Instant::now() < end, "{now} entries, and the kernel says {least}");
        thread::sleep(Duration::from_millis(50));
    }
    drop(held);
}

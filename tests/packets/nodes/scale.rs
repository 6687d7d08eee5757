//! 5,000 Services with 10 endpoints each: the rules are there, one change is small, and both take a time that is printed.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use serde_json::json;

use crate::support::netns::Namespace;
use crate::support::netns::run;
use crate::support::objects::{node, service, service_cidr, slice};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};

const SERVICES: u32 = 5_000;
const ENDPOINTS: u32 = 10;
const PARTIAL: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds_sum";
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

/// Address number `n` of the network 10.`block`.0.0.
fn address(block: u32, n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from((10 << 24) + (block << 16) + n))
}

fn endpoints(n: u32, first: u32) -> serde_json::Value {
    let addresses: Vec<IpAddr> = (first..ENDPOINTS + first).map(|i| address(128, n * 16 + i)).collect();
    slice("shop", &format!("web-{n}"), &format!("web-{n}-v4"), &addresses, &PORTS)
}

fn elements(node: &Namespace, map: &str) -> usize {
    let text = run(node.command("nft").args(["-j", "list", "map", "ip", "kube-proxy", map]));
    let listing: serde_json::Value = serde_json::from_str(&text).expect("nft -j prints JSON");
    let objects = listing["nftables"].as_array().into_iter().flatten();
    objects.filter_map(|object| object["map"]["elem"].as_array()).map(Vec::len).sum()
}

#[test]
#[ignore = "takes minutes in an unoptimised build; vm-tests/run has it"]
fn five_thousand_services_and_one_change() {
    // A start writes all tables, and a change only what differs (F1, F9).
    let host = Namespace::new("node");
    let list = (0..SERVICES).map(|n| {
        service("shop", &format!("web-{n}")).cluster_ip(address(96, 256 + n)).port("http", Proto::Tcp, 80).json()
    });
    let slices = (0..SERVICES).map(|n| endpoints(n, 0));
    // Two Lists, as `kubectl get -o json` writes them: ten thousand files would be what is measured.
    let listed = |name: &str, items: Vec<serde_json::Value>| json!({ "apiVersion": "v1", "kind": "List", "metadata": { "name": name }, "items": items });
    let objects = [node(), service_cidr(), listed("services", list.collect()), listed("slices", slices.collect())];
    let start = Instant::now();
    let mut proxy = Proxy::start(&host, &config(), &objects);
    println!(
        "TIME {SERVICES} x {ENDPOINTS}: from process start to the first sync {:.2} s",
        start.elapsed().as_secs_f64()
    );
    assert_eq!(elements(&host, "services"), SERVICES as usize);
    assert_eq!(elements(&host, "endpoints"), (SERVICES * ENDPOINTS) as usize);

    let spent = |proxy: &Proxy<'_>| proxy.series(PARTIAL).iter().copied().fold(0.0, f64::max);
    let before = spent(&proxy);
    proxy.apply(&[
        endpoints(SERVICES, 0),
        service("shop", &format!("web-{SERVICES}"))
            .cluster_ip(address(96, 256 + SERVICES))
            .port("http", Proto::Tcp, 80)
            .json(),
    ]);
    let took = spent(&proxy) - before;
    assert!(took > 0.0, "the change was not a partial sync");
    println!("TIME {SERVICES} x {ENDPOINTS}: sync after one change {took:.4} s");
    assert_eq!(elements(&host, "endpoints"), ((SERVICES + 1) * ENDPOINTS) as usize);
}

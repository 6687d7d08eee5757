//! 5,000 Services with 10 endpoints each: the rules are there, an endpoint that is replaced changes these of its Service only, and both
//! take a time that is printed.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run};
use crate::support::objects::{node, service, service_cidr, slice};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config_in};

const SERVICES: u32 = 5_000;
const ENDPOINTS: u32 = 10;
/// Services of which an endpoint is replaced, one after the other.
const CHANGED: u32 = 5;
const PARTIAL: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds_sum";
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

/// Address number `n` of the network 10.`block`.0.0.
fn address(block: u32, n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from((10 << 24) + (block << 16) + n))
}

fn cluster_ip(n: u32) -> IpAddr {
    address(96, 256 + n)
}

/// The slice of Service `n`, with the endpoints of its 16 from this one on.
fn endpoints(n: u32, first: u32) -> Value {
    let addresses: Vec<IpAddr> = (first..ENDPOINTS + first).map(|i| address(128, n * 16 + i)).collect();
    slice("shop", &format!("web-{n}"), &format!("web-{n}-v4"), &addresses, &PORTS)
}

/// Two Lists, as `kubectl get -o json` writes them: ten thousand files would be what is measured. What is changed later has files.
fn objects() -> Vec<Value> {
    let web = |n| service("shop", &format!("web-{n}")).cluster_ip(cluster_ip(n)).port("http", Proto::Tcp, 80).json();
    let list = |name: &str, items: Vec<Value>| json!({ "apiVersion": "v1", "kind": "List", "metadata": { "name": name }, "items": items });
    let services = list("services", (0..SERVICES).map(web).collect());
    let slices = list("slices", (CHANGED..SERVICES).map(|n| endpoints(n, 0)).collect());
    [node(), service_cidr(), services, slices].into_iter().chain((0..CHANGED).map(|n| endpoints(n, 0))).collect()
}

/// The elements of a map, as `nft` prints them.
fn elements(node: &Namespace, map: &str) -> Vec<Value> {
    let text = run(node.command("nft").args(["-j", "list", "map", "ip", "kube-proxy", map]));
    let listing: Value = serde_json::from_str(&text).expect("nft -j prints JSON");
    let maps = listing["nftables"].as_array().into_iter().flatten();
    maps.filter_map(|object| object["map"]["elem"].as_array()).flatten().cloned().collect()
}

/// The map with the choice of Service `n`: its own with chains of endpoints, else the one of all endpoints.
fn choice(node: &Namespace, layout: Layout, n: u32) -> String {
    if layout != Layout::Chains {
        return layout.endpoints().to_owned();
    }
    let key = format!("{{ {} . tcp . 80 }}", cluster_ip(n));
    let text = run(node.command("nft").args(["get", "element", "ip", "kube-proxy", "KUBE-SERVICES", &key]));
    let name = text.split("goto ").nth(1).and_then(|rest| rest.split_whitespace().next());
    name.unwrap_or_else(|| panic!("no chain of Service {n}: {text}")).to_owned()
}

/// How many elements of one list the other one has not.
fn fewer(list: &[Value], other: &[Value]) -> usize {
    let other: std::collections::BTreeSet<String> = other.iter().map(ToString::to_string).collect();
    list.iter().filter(|element| !other.contains(&element.to_string())).count()
}

test_in_each_layout!(
    five_thousand_services_and_one_endpoint_replaced,
    ignore = "takes minutes in an unoptimised build; vm-tests/run has it"
);
fn five_thousand_services_and_one_endpoint_replaced(layout: Layout) {
    // A start writes all tables, and a change only what differs (F1, F9).
    let host = Namespace::new("node");
    let what = format!("{SERVICES} x {ENDPOINTS}, {}", layout.name());
    let start = Instant::now();
    let mut proxy = Proxy::start(&host, &config_in(layout), &objects());
    println!("TIME {what}: from process start to the first sync {:.2} s", start.elapsed().as_secs_f64());
    let services = if layout == Layout::Maps { "services" } else { "KUBE-SERVICES" };
    assert_eq!(elements(&host, services).len(), SERVICES as usize);
    let choice = choice(&host, layout, CHANGED - 1);
    let before = elements(&host, &choice);
    let all = if layout == Layout::Chains { ENDPOINTS } else { SERVICES * ENDPOINTS };
    assert_eq!(before.len(), all as usize);

    let spent = |proxy: &Proxy<'_>| proxy.series(PARTIAL).iter().copied().fold(0.0, f64::max);
    let mut took: Vec<f64> = Vec::new();
    for n in 0..CHANGED {
        let before = spent(&proxy);
        // The first of its endpoints goes, and another comes.
        proxy.apply(&[endpoints(n, 1)]);
        took.push(spent(&proxy) - before);
        assert!(took[n as usize] > 0.0, "the change was not a partial sync");
    }
    took.sort_unstable_by(f64::total_cmp);
    println!("TIME {what}: one endpoint replaced, median of {CHANGED} {:.4} s", took[took.len() / 2]);
    let after = elements(&host, &choice);
    let changed = if layout == Layout::Chains { 1 } else { CHANGED as usize };
    assert_eq!((after.len(), fewer(&before, &after)), (before.len(), changed), "one endpoint of each");
}

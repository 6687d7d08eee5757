//! What the rules count (`nftables.counters`), as the metrics show it: each number is compared with the packets that were sent.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe, probe_many};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const V4: Family = Family::V4;
/// The counters are read every ten seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// The value of a series; `None` without it.
fn value(text: &str, series: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until each series has a value that is right.
fn wait_until(proxy: &Proxy<'_>, expected: &[(&str, u64)], is_right: impl Fn(u64, u64) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = proxy.get("127.0.0.1:10249", "/metrics");
        let is_wrong =
            |(series, count): &&(&str, u64)| !value(&text, series).is_some_and(|found| is_right(found, *count));
        let wrong = expected.iter().filter(is_wrong);
        let wrong: Vec<_> = wrong.map(|(series, count)| (series, count, value(&text, series))).collect();
        if wrong.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "series, wanted, found: {wrong:#?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until each series has its value.
fn wait_for(proxy: &Proxy<'_>, expected: &[(&str, u64)]) {
    wait_until(proxy, expected, |found, wanted| found == wanted);
}

/// A Service with two endpoints and source ranges, one without endpoints, and one with policy Local and its endpoint elsewhere.
fn objects() -> Vec<serde_json::Value> {
    let web = service("shop", "web").cluster_ip(V4.cluster_ip(1)).port("http", Proto::Tcp, 80);
    let web = web.load_balancer_ip(V4.load_balancer_ip(1)).spec("loadBalancerSourceRanges", json!(["192.0.2.128/32"]));
    let empty = service("shop", "empty").cluster_ip(V4.cluster_ip(2)).port("http", Proto::Tcp, 80);
    let local = service("shop", "local").cluster_ip(V4.cluster_ip(3)).port("http", Proto::Tcp, 80);
    let local = local.load_balancer_ip(V4.load_balancer_ip(3)).spec("externalTrafficPolicy", json!("Local"));
    let mut objects = vec![node(), service_cidr(), web.json(), empty.json(), local.json()];
    objects.push(slices("shop", "web", &[0, 2], &[("http", Proto::Tcp, 8080)]).remove(0));
    objects.push(slices("shop", "local", &[2], &[("http", Proto::Tcp, 8080)]).remove(0));
    objects
}

test_in_each_layout!(every_connection_and_every_rejected_packet_is_counted_for_its_service);
fn every_connection_and_every_rejected_packet_is_counted_for_its_service(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    config["nftables"]["counters"] = json!("endpoints");
    let mut proxy = Proxy::start(&world.node, &config, &objects());
    let to = |address, port| Flow::new(Proto::Tcp, V4.client(), address, port);
    let tally = probe_many(&world.client, to(V4.cluster_ip(1), 80), 20);
    let reached = |n: u8| {
        let at = |outcome: &Outcome| matches!(outcome, Outcome::Reached(answer) if answer.endpoint == V4.endpoint(n));
        tally.iter().filter(|(outcome, _)| at(outcome)).map(|(_, times)| u64::from(*times)).sum::<u64>()
    };
    let [first, second] = [0, 2].map(reached);
    assert_eq!(first + second, 20, "{tally:?}");
    for _ in 0..3 {
        assert_eq!(probe(&world.client, to(V4.cluster_ip(2), 80)), Outcome::Refused);
        assert_eq!(probe(&world.client, to(V4.cluster_ip(1), 81)), Outcome::Refused);
    }
    for _ in 0..2 {
        assert_eq!(probe(&world.client, to(V4.load_balancer_ip(1), 80)), Outcome::Dropped);
    }
    assert_eq!(probe(&world.client, to(V4.load_balancer_ip(3), 80)), Outcome::Dropped);
    let listed = nft::list_ruleset(&world.node);
    assert!(listed.contains("counter packets 20 bytes"), "{listed}");

    let of = |name: &str| format!("{{namespace=\"shop\",service=\"{name}\",port=\"http\"");
    let connections = |name: &str| format!("kubeproxy_nft_service_connections_total{}}}", of(name));
    let rejected = |name: &str, reason: &str| {
        format!("kubeproxy_nft_service_rejected_packets_total{},reason=\"{reason}\"}}", of(name))
    };
    let endpoint =
        |n: u8| format!("kubeproxy_nft_endpoint_connections_total{},endpoint=\"{}:8080\"}}", of("web"), V4.endpoint(n));
    let unused = "kubeproxy_nft_unused_cluster_ip_packets_total{unused=\"port\"}";
    let expected = [
        (connections("web"), 20),
        (endpoint(0), first),
        (endpoint(2), second),
        (connections("empty"), 0),
        (connections("local"), 0),
        (rejected("empty", "no_endpoints"), 3),
        (rejected("web", "no_endpoints"), 0),
    ];
    let expected: Vec<(&str, u64)> = expected.iter().map(|(series, count)| (&**series, *count)).collect();
    wait_for(&proxy, &[&expected[..], &[(unused, 3)]].concat());
    // A client sends a SYN again that is not answered.
    let dropped = [(rejected("web", "source_ranges"), 2), (rejected("local", "no_local_endpoints"), 1)];
    let dropped: Vec<(&str, u64)> = dropped.iter().map(|(series, least)| (&**series, *least)).collect();
    wait_until(&proxy, &dropped, |found, least| found >= least);

    // The element of the endpoint that stays keeps its count, and the total of the Service goes on although elements are written anew.
    proxy.apply(&slices("shop", "web", &[0, 3], &[("http", Proto::Tcp, 8080)])[..1]);
    probe_many(&world.client, to(V4.cluster_ip(1), 80), 10);
    wait_for(&proxy, &[(&connections("web"), 30)]);
}

test_in_each_layout!(without_the_option_nothing_of_a_service_is_counted_and_a_restart_switches_it_on_and_off);
fn without_the_option_nothing_of_a_service_is_counted_and_a_restart_switches_it_on_and_off(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects());
    let flow = Flow::new(Proto::Tcp, V4.client(), V4.cluster_ip(1), 80);
    // Endpoints always count in layout `chains`.
    let map = if layout == Layout::Maps { "services" } else { "KUBE-SERVICES" };
    let counts = || {
        let listing = nft::list_ruleset(&world.node);
        let mut lines = listing.lines().map(str::trim).skip_while(|line| *line != format!("map {map} {{"));
        lines.by_ref().next().expect("the map is listed");
        lines.take_while(|line| *line != "}").any(|line| line == "counter")
    };
    for (value, expected) in [("off", false), ("services", true), ("endpoints", true), ("off", false)] {
        proxy.stop();
        let mut config = config_in(layout);
        config["nftables"]["counters"] = json!(value);
        proxy.configure(&config);
        proxy.launch();
        assert_eq!(counts(), expected, "{value}");
        assert!(matches!(probe(&world.client, flow), Outcome::Reached(_)), "{value}");
        let has_series = proxy.get("127.0.0.1:10249", "/metrics").contains("kubeproxy_nft_service_connections_total");
        assert!(expected || !has_series, "{value}");
    }
}

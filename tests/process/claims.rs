//! Very many Services of one namespace that claim one address and port: what they cost a start, from manifests and from an API server,
//! and what an operator sees of them.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Scheme, wait_for};
use crate::support::netns::Namespace;
use crate::support::nft::list_ruleset;
use crate::support::objects::{node, service, service_cidr};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};
use serde_json::{Value, json};

/// The Services of the tenant.
const TENANTS: u16 = 2000;
/// How much of a processor's time they may cost more than as many Services that claim nothing in common.
const MOST_DELAY: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 1 });
/// The most memory that they may take more, in MiB.
const MOST_MEMORY: u64 = 32;
/// The most lines of the log about them, whatever their number.
const MOST_LINES: usize = 5;

/// Service `n` of the tenant, older than all with a smaller name, on port 80 of this external IP.
fn tenant(n: u16, external_ip: Ipv4Addr) -> Value {
    let name = format!("tenant-{n:05}");
    let [high, low] = n.to_be_bytes();
    let builder = service("tenant", &name).cluster_ip(Ipv4Addr::new(10, 96, 64 + high, low).into());
    let mut object = builder.port("http", Proto::Tcp, 80).external_ip(external_ip.into()).json();
    let seconds = u32::from(TENANTS - n);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    object["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T{hour:02}:{minute:02}:{second:02}Z"));
    object
}

/// A Service of somebody else, and those of the tenant: all on one external IP, or each on its own.
fn objects(is_shared: bool) -> Vec<Value> {
    let external_ip = |n: u16| Ipv4Addr::from(0xc612_0000 + if is_shared { 0 } else { u32::from(n) });
    let honest = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let tenants = (0..TENANTS).map(|n| tenant(n, external_ip(n)));
    [node(), service_cidr(), honest].into_iter().chain(tenants).collect()
}

/// The lines of the log about claims that lose.
fn lines(proxy: &Proxy<'_>) -> Vec<String> {
    let log = proxy.log();
    log.lines()
        .filter(|line| line.starts_with('W') && line.contains("an address or a node port"))
        .map(str::to_owned)
        .collect()
}

/// Whether the address that all claim belongs to Service `n` of the tenant.
fn has(listing: &str, n: u16) -> bool {
    let owner = format!("\"tenant/tenant-{n:05}:http");
    listing.lines().any(|line| line.contains("198.18.0.0 . tcp . 80 ") && line.contains(&owner))
}

#[test]
fn services_with_one_external_ip_cost_a_start_no_more_than_others() {
    // Of claims of one kind the oldest Service's counts, in any number and any order (A16).
    let cost = |is_shared: bool| {
        let namespace = Namespace::new("claims");
        let proxy = Proxy::start(&namespace, &config(), &objects(is_shared));
        let (time, memory) = (proxy.processor_time(), proxy.peak_memory());
        let listing = list_ruleset(&namespace);
        assert!(listing.contains("\"shop/web:http\""), "the Service of somebody else is served");
        assert_eq!(has(&listing, TENANTS - 1), is_shared, "the oldest Service has the address");
        let lost = if is_shared { f64::from(TENANTS - 1) } else { 0.0 };
        assert_eq!(proxy.series("kubeproxy_nft_lost_claims"), [lost]);
        let lines = lines(&proxy);
        assert!(lines.len() <= MOST_LINES && lines.is_empty() != is_shared, "{lines:#?}");
        (time, memory)
    };
    let [(others, memory_of_others), (time, memory)] = [false, true].map(cost);
    println!(
        "{TENANTS} Services: {others:?} and {memory_of_others} MiB; with one external IP {time:?} and {memory} MiB"
    );
    assert!(time < others + MOST_DELAY, "{time:?}, {others:?} with an address each");
    assert!(memory < memory_of_others + MOST_MEMORY, "{memory} MiB, {memory_of_others} with an address each");
}

#[test]
fn from_an_api_server_they_are_summed_up_and_the_next_one_takes_over() {
    let namespace = Namespace::new("claims");
    let server = namespace.enter(|| ApiServer::start(Scheme::Http));
    server.apply(&objects(true));
    let mut proxy = Proxy::with_api(&namespace, &config(), &server.kubeconfig(&json!({})));
    proxy.launch();
    let oldest = format!("tenant/tenant-{:05} gets it", TENANTS - 1);
    let summary = wait_for("the line of the log", || lines(&proxy).into_iter().find(|line| line.contains(&oldest)));
    assert!(summary.contains(&format!("{TENANTS} claims on 198.18.0.0 port 80/tcp")), "{summary}");
    assert!(summary.contains(&format!("tenant/tenant-{:05}", TENANTS - 2)), "the next one is named: {summary}");
    assert!(summary.len() < 2000, "{summary}");
    let event =
        wait_for("the event", || server.events().into_iter().find(|event| event["reason"] == "FrontNotProgrammed"));
    assert_eq!(event["regarding"]["namespace"], "tenant");

    // The winner goes again and again, and each time the next one has the address at once.
    server.wait_for_watches();
    for gone in 1..=20 {
        server.delete(Resource::Service, "tenant", &format!("tenant-{:05}", TENANTS - gone));
        wait_for("the next one", || has(&list_ruleset(&namespace), TENANTS - gone - 1).then_some(()));
    }
    wait_for("the metric", || (proxy.series("kubeproxy_nft_lost_claims") == [f64::from(TENANTS - 21)]).then_some(()));
    assert!(lines(&proxy).len() <= MOST_LINES, "not a line for each that went: {:#?}", lines(&proxy));
    assert!(server.events().len() < 100, "{} events", server.events().len());
    drop(proxy);
    drop(server);
}

//! A Service that would take too many elements is left out alone: what it costs the others, in time and memory, from manifests and
//! from an API server, in each layout; and what an operator sees of it.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support::apiserver::{ApiServer, Scheme, wait_for};
use crate::support::cluster;
use crate::support::kernel::Recorder;
use crate::support::layout as support;
use crate::support::netns::Namespace;
use crate::support::nft::list_ruleset;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config_in};
use kube_proxy::sync::Engine;
use rules::model::{Event, Family};
use rules::ruleset::Layout;
use serde_json::{Value, json};

/// How much of a processor's time such a Service may cost the others; more in a build without optimisation.
const MOST_DELAY: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 1 });
/// The most memory that the process may ever have, in MiB.
const MOST_MEMORY: u64 = 300;

/// Twenty Services with two endpoints a family.
fn honest() -> Vec<Value> {
    let served = (1..=20).flat_map(|n| {
        let name = format!("web-{n}");
        let service = service("shop", &name).cluster_ips(n).port("http", Proto::Tcp, 80).json();
        [vec![service], slices("shop", &name, &[0, 2], &[("http", Proto::Tcp, 8080)])].concat()
    });
    [node(), service_cidr()].into_iter().chain(served).collect()
}

/// A Service of another namespace, number `n`, with one slice. Each of its ports is on each of its endpoints.
fn tenant(n: u8, ports: u16, endpoints: u16, affinity: bool) -> [Value; 2] {
    let (name, numbers) = (format!("tenant-{n}"), || (0..ports).map(|port| (format!("p{port}"), 1 + port)));
    let ip = Ipv4Addr::new(10, 96, 200, n);
    let ports: Vec<Value> = numbers().map(|(name, port)| json!({ "name": name, "port": port })).collect();
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "tenant", "name": name },
        "spec": { "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"], "ports": ports },
    });
    if affinity {
        object["spec"]["sessionAffinity"] = json!("ClientIP");
    }
    let endpoint = |i: u16| json!({ "addresses": [Ipv4Addr::from(0x0ac8_0000 + (u32::from(n) << 16) + u32::from(i))] });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "namespace": "tenant", "name": name, "labels": { "kubernetes.io/service-name": name } },
        "ports": numbers().map(|(name, port)| json!({ "name": name, "port": port, "protocol": "TCP" })).collect::<Vec<_>>(),
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    });
    [object, slice]
}

/// Services of millions of elements: one with 3,000 ports x 1,000 endpoints, and three with 1,000 x 1,000.
fn millions() -> Vec<Value> {
    [(1, 3000), (2, 1000), (3, 1000), (4, 1000)].iter().flat_map(|(n, ports)| tenant(*n, *ports, 1000, false)).collect()
}

/// What a proxy takes from its start to its first rules, and to program a change of an honest Service that comes with changes of the
/// tenants' slices. Time of the processor: what else runs on the machine is no matter.
#[derive(Clone, Copy, Debug)]
struct Cost {
    start: Duration,
    change: Duration,
    /// The most memory that it had, in MiB.
    memory: u64,
}

fn cost(layout: support::Layout, tenants: &[Value]) -> Cost {
    let namespace = Namespace::new("budget");
    let objects = [honest(), tenants.to_vec()].concat();
    let mut proxy = Proxy::start(&namespace, &config_in(layout), &objects);
    let start = proxy.processor_time();
    let listing = list_ruleset(&namespace);
    assert!(listing.contains("\"shop/web-20:http\""), "{listing}");
    proxy.wait_until_quiet();
    let before = proxy.processor_time();
    // The tenants get another endpoint each, and are as large as before.
    for slice in tenants.iter().filter(|object| object["kind"] == "EndpointSlice") {
        let mut slice = slice.clone();
        slice["endpoints"][0]["addresses"] = json!(["10.199.0.1"]);
        proxy.manifests().apply(&slice);
    }
    proxy.manifests().apply(&slices("shop", "web-7", &[3], &[("http", Proto::Tcp, 8080)])[0]);
    wait_for("the change", || list_ruleset(&namespace).contains("10.244.2.11").then_some(()));
    let change = proxy.processor_time() - before;
    Cost { start, change, memory: proxy.peak_memory() }
}

/// The others are programmed within a second of what it takes without the tenants.
fn assert_cheap(layout: support::Layout, tenants: &[Value]) {
    let [without, with] = [&[][..], tenants].map(|tenants| cost(layout, tenants));
    println!("layout {layout:?}: without {without:?}, with {with:?}");
    assert!(with.memory < MOST_MEMORY, "{with:?}");
    assert!(with.start < without.start + MOST_DELAY, "layout {layout:?}: {with:?}, {without:?} without");
    assert!(with.change < without.change + MOST_DELAY, "layout {layout:?}: {with:?}, {without:?} without");
}

#[test]
fn services_of_millions_of_elements_delay_no_other_service() {
    for layout in support::Layout::ALL {
        assert_cheap(layout, &millions());
    }
}

#[test]
fn a_service_of_15_000_ports_delays_no_other_service() {
    for layout in support::Layout::ALL {
        assert_cheap(layout, &tenant(1, 15_000, 1, false));
    }
}

#[test]
fn session_affinity_of_15_000_ports_delays_no_other_service() {
    for layout in support::Layout::ALL {
        assert_cheap(layout, &tenant(1, 15_000, 1, true));
    }
}

#[test]
fn an_operator_sees_which_service_is_left_out_and_why() {
    // A Service over the limit is in the log, the metrics and the health pages (A18).
    let namespace = Namespace::new("budget");
    let objects = [honest(), tenant(1, 6, 100, false).to_vec(), tenant(2, 12, 100, false).to_vec()].concat();
    let mut proxy =
        Proxy::start_with(&["--service-elements-limit=1000"], &namespace, &config_in(support::Layout::Maps), &objects);
    proxy.wait_until_quiet();
    let served = |address| list_ruleset(&namespace).contains(&format!("{address} . tcp . 6 "));
    let [first, second] = ["10.96.200.1", "10.96.200.2"];
    assert!(served(first) && !served(second), "only one is too large");
    assert_eq!(proxy.series("kubeproxy_nft_oversized_services"), [1.0]);
    let livez = proxy.get("127.0.0.1:10256", "/livez");
    assert!(livez.contains(" 200 OK") && livez.contains(r#""oversizedServices":["tenant/tenant-2"]"#), "{livez}");
    let log = proxy.log();
    let line = log.lines().find(|line| line.contains("tenant/tenant-2")).expect("a line of the log");
    assert!(line.contains("1212") && line.contains("1000") && line.contains("--service-elements-limit"), "{line}");

    // What it has when it grows is taken away, and comes back when it is smaller.
    proxy.apply(&tenant(1, 12, 100, false));
    assert!(!list_ruleset(&namespace).contains(first), "nothing of it is left");
    assert_eq!(proxy.series("kubeproxy_nft_oversized_services"), [2.0]);
    proxy.apply(&[tenant(1, 6, 50, false)[1].clone()]);
    assert!(served(first), "it is small enough again");
    assert_eq!(proxy.series("kubeproxy_nft_oversized_services"), [1.0]);

    proxy.stop();
    proxy.set_arguments(&["--service-elements-limit=0"]);
    proxy.launch();
    assert!(served(first) && served(second), "without a limit both are programmed");
    assert_eq!(proxy.series("kubeproxy_nft_oversized_services"), [0.0]);
}

#[test]
fn from_an_api_server_others_are_programmed_and_the_service_has_an_event() {
    // A Service over the limit stops no other and has an event (A18).
    support::Layout::ALL.into_iter().for_each(from_an_api_server);
}

fn from_an_api_server(layout: support::Layout) {
    let namespace = Namespace::new("budget");
    let server = namespace.enter(|| ApiServer::start(Scheme::Http));
    server.apply(&honest());
    server.apply(&millions());
    let mut proxy = Proxy::with_api(&namespace, &config_in(layout), &server.kubeconfig(&json!({})));
    proxy.launch();
    server.wait_for_watches();
    let event = wait_for("the Event", || {
        let about = |event: &Value| event["regarding"]["name"] == "tenant-1";
        server.events().into_iter().find(about)
    });
    assert_eq!((&event["reason"], &event["type"]), (&json!("ServiceNotProgrammed"), &json!("Warning")));
    let note = event["note"].as_str().expect("a note");
    // 3,000 ports with 1,000 endpoints each; a port is one element more, and 40 for its chains; with chains of endpoints 100 for its maps
    // of verdicts, and 10 for the chain of each endpoint.
    let size = match layout {
        support::Layout::Maps => "3003000",
        support::Layout::Chains => "33423000",
        support::Layout::ServiceChains => "3123000",
    };
    assert!(note.contains(size) && note.contains("nftables.serviceElementsLimit"), "{note}");
    // Each of its changes comes before one of an honest Service.
    for round in 0..3_u16 {
        server.apply(&tenant(1, 3000 - round, 1000, false));
        let (name, ip) = (format!("later-{round}"), 40 + u8::try_from(round).expect("a few"));
        let later = service("shop", &name).cluster_ips(ip).port("http", Proto::Tcp, 80).json();
        server.apply(&[vec![later], slices("shop", &name, &[0, 2], &[("http", Proto::Tcp, 8080)])].concat());
        let label = format!("\"shop/{name}:http\"");
        wait_for("a later Service", || list_ruleset(&namespace).contains(&label).then_some(()));
    }
    println!("layout {layout:?}, from an API server: peak of memory {} MiB", proxy.peak_memory());
    assert!(proxy.peak_memory() < MOST_MEMORY, "{} MiB", proxy.peak_memory());
    drop(proxy);
    drop(server);
}

/// An engine with the limit `elements`, and Services 1 and 2.
fn engine(layout: Layout, elements: u64) -> (Engine<Recorder>, Recorder) {
    let kernel = Recorder::default();
    let mut config = cluster::config();
    config.service_elements_limit = elements;
    let mut engine = Engine::new(config, layout, &Family::BOTH, kernel.clone());
    let services = [1, 2].into_iter().flat_map(|n| cluster::served(n, 3));
    [cluster::node(None)].into_iter().chain(services).chain([Event::InitialListDone]).for_each(|event| {
        engine.apply(event);
    });
    (engine, kernel)
}

/// Service 1 with many endpoints.
fn large() -> Event {
    let many = (0..2000).map(|n| cluster::endpoint(cluster::address(Family::V4, 200, n))).collect();
    Event::SliceApplied(cluster::slice(1, Family::V4, many))
}

// A Service over the limit has no rules, and what it had goes (A18).
#[test]
fn the_rules_are_those_of_a_cluster_without_the_service() {
    for layout in Layout::ALL {
        let (mut engine, kernel) = self::engine(layout, 5000);
        engine.sync(false).expect("nothing is wrong");
        assert_eq!(engine.oversized().len(), 0);
        engine.apply(large());
        let report = engine.sync(false).expect("nothing is wrong");
        assert!(report.removed > 0, "{report:?}");
        assert_eq!(engine.oversized().collect::<Vec<_>>(), [&cluster::name(1)]);
        let reported = engine.take_oversized();
        assert!(reported.len() == 1 && reported[0].size > 5000 && reported[0].limit == 5000, "{reported:?}");

        let mut other = Engine::new(cluster::config(), layout, &Family::BOTH, kernel.clone());
        let objects = [cluster::node(None)].into_iter().chain(cluster::served(2, 3)).chain([Event::InitialListDone]);
        objects.for_each(|event| {
            other.apply(event);
        });
        // Chains that were emptied are deleted later; nothing else differs.
        let report = other.sync(false).expect("nothing is wrong");
        assert_eq!((report.added, report.removed), (0, 0), "{report:?}");

        engine.apply(large());
        engine.sync(false).expect("nothing is wrong");
        assert_eq!(engine.take_oversized(), [], "the same is not reported again");
    }
}

#[test]
fn a_service_of_too_many_frontends_keeps_none_from_others() {
    let (mut engine, kernel) = self::engine(Layout::Maps, 5000);
    let mut greedy = cluster::service(1);
    // Older than Service 2, with its external IPs.
    greedy.external_ips.extend(cluster::service(2).external_ips);
    greedy.external_ips.extend((0..6000).map(|n| cluster::address(Family::V4, 150, n)));
    engine.apply(Event::ServiceApplied(greedy));
    engine.sync(false).expect("nothing is wrong");
    assert_eq!(engine.oversized().collect::<Vec<_>>(), [&cluster::name(1)]);
    let mut other = Engine::new(cluster::config(), Layout::Maps, &Family::BOTH, kernel);
    let objects = [cluster::node(None)].into_iter().chain(cluster::served(2, 3)).chain([Event::InitialListDone]);
    objects.for_each(|event| {
        other.apply(event);
    });
    let report = other.sync(false).expect("nothing is wrong");
    assert_eq!((report.added, report.removed, report.committed), (0, 0, None), "Service 2 has all of its frontends");
}

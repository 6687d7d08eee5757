//! A restart with another layout, or with another number of maps of endpoints, replaces the rules, and so does a table that grows past the
//! size at which it gets more maps; traffic goes on as before.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::inspect::{command, outcome};
use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe_served};
use crate::support::proxy::{Proxy, config_in};
use crate::support::server::Answer;
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];

/// From outside to every kind of frontend, and the port of the endpoints.
fn flows(family: Family) -> Vec<(Flow, u16)> {
    let to = |proto, address, port| Flow::new(proto, family.client(), address, port);
    vec![
        (to(Proto::Tcp, family.cluster_ip(1), 80), 8080),
        (to(Proto::Tcp, family.node(), 30080), 8080),
        (to(Proto::Tcp, family.external_ip(1), 80), 8080),
        (to(Proto::Udp, family.cluster_ip(1), 53), 9090),
        (to(Proto::Udp, family.node(), 30053), 9090),
    ]
}

fn all_flows() -> impl Iterator<Item = Flow> {
    Family::ALL.into_iter().flat_map(flows).map(|(flow, _)| flow)
}

/// A Service with every kind of frontend and four endpoints.
fn objects() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1);
    let web = web.port("http", Proto::Tcp, 80).node_port(30080).port("dns", Proto::Udp, 53).node_port(30053);
    let web = Family::ALL.iter().fold(web, |web, family| web.external_ip(family.external_ip(1)));
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &[0, 1, 2, 3], &PORTS));
    objects
}

/// Every new connection to the Service reaches an endpoint while `change` runs.
fn assert_served_during(world: &World, change: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut count = 0;
            while !is_done.load(Ordering::Relaxed) {
                for flow in all_flows() {
                    let outcome = probe_served(&world.client, flow);
                    assert!(matches!(outcome, Outcome::Reached(_)), "{flow:?}: {outcome:?}");
                    count += 1;
                }
            }
            count
        });
        change();
        is_done.store(true, Ordering::Relaxed);
        let count = prober.join().expect("every probe reaches an endpoint");
        assert!(count >= all_flows().count(), "nothing was probed during the change");
    });
}

/// New connections are served, and earlier ones stay with the same endpoint.
fn assert_serving(world: &World, held: &[(Connection, Answer)]) {
    for (family, (flow, port)) in Family::ALL.into_iter().flat_map(|f| flows(f).into_iter().map(move |flow| (f, flow)))
    {
        assert_reaches(&world.client, flow, &endpoints(family, &[0, 1, 2, 3], port), Source::Masqueraded, FEW);
    }
    for (connection, answer) in held {
        assert_eq!(connection.ask(), *answer);
    }
}

/// The frontends and where they lead, as `kube-proxy services` shows them.
fn frontends(world: &World) -> String {
    let (code, text, errors) = outcome(&mut command(&world.node, &["services", "-o", "wide"]));
    assert_eq!(code, Some(0), "{text}{errors}");
    text
}

/// A Service that remembers its clients.
fn sticky() -> Vec<Value> {
    let sticky = service("shop", "sticky").cluster_ips(9).port("http", Proto::Tcp, 80).client_ip_affinity(600);
    [vec![sticky.json()], slices("shop", "sticky", &[0, 1, 2, 3], &PORTS[..1])].concat()
}

/// The endpoints that [`sticky`] remembers for the client.
fn remembered(world: &World) -> [IpAddr; 2] {
    Family::ALL.map(|family| {
        let flow = Flow::new(Proto::Tcp, family.client(), family.cluster_ip(9), 80);
        match probe_served(&world.client, flow) {
            Outcome::Reached(answer) => answer.endpoint,
            other => panic!("{other:?}"),
        }
    })
}

test_in_each_layout!(a_change_of_layout_breaks_no_connection);
fn a_change_of_layout_breaks_no_connection(layout: Layout) {
    // Connections outlive a restart with other rules (D12, O7), and so does what session affinity remembers, unless endpoints get or lose
    // their chains (E6). The three tests together switch from each layout to each other one.
    let world = World::new();
    // On a translated processor more than the usual 30 s pass between two datagrams of one flow.
    world.node.set_sysctl("netfilter/nf_conntrack_udp_timeout", "600");
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &[objects(), sticky()].concat());
    let held: Vec<(Connection, Answer)> = all_flows().map(|flow| Connection::open(&world.client, flow)).collect();
    let mut present = layout;
    for (next, maps) in [(layout.other(), 1), (layout, 1), (layout, 16), (layout, 4)] {
        let (before, listed) = (remembered(&world), frontends(&world));
        proxy.stop();
        let mut config = config_in(next);
        config["nftables"]["endpointMaps"] = json!(maps);
        proxy.configure(&config);
        assert_served_during(&world, || proxy.launch());
        let listing = nft::list_ruleset(&world.node);
        assert_eq!(listing.contains("goto KUBE-SVC-"), next != Layout::Maps);
        assert_eq!(listing.contains("goto KUBE-SEP-"), next == Layout::Chains);
        assert_eq!(listing.contains("nodeport-endpoints.15 {"), maps == 16, "{listing}");
        assert_eq!(listing.contains("nodeport-endpoints.3 {"), maps >= 4, "{listing}");
        let is_remembered = (0..4).all(|_| remembered(&world) == before);
        let changes_chains = present != next && [present, next].contains(&Layout::Chains);
        assert!(is_remembered || changes_chains, "session affinity goes on from {present:?} to {next:?}");
        present = next;
        assert_eq!(frontends(&world), listed, "what operators see is the same");
        assert_serving(&world, &held);
    }
}

/// Another Service with `addresses` addresses in each family, for each of which it has four elements.
fn large(name: &str, number: u8, addresses: u8) -> Vec<Value> {
    let large = service("shop", name).cluster_ips(number).port("http", Proto::Tcp, 80);
    let external = (1..addresses).flat_map(|n| Family::ALL.map(|family| family.external_ip(10 * number + n)));
    let mut objects = vec![external.fold(large, |large, address| large.external_ip(address)).json()];
    objects.extend(slices("shop", name, &[0, 1, 2, 3], &PORTS[..1]));
    objects
}

test_in_each_layout!(a_table_that_grows_past_a_step_gets_more_maps_and_breaks_no_connection);
fn a_table_that_grows_past_a_step_gets_more_maps_and_breaks_no_connection(layout: Layout) {
    // The number of maps follows the size of the table (F10). With a chain for each endpoint there is nothing to split.
    let world = World::new();
    world.node.set_sysctl("netfilter/nf_conntrack_udp_timeout", "600");
    let maps = || {
        let listing = nft::list_ruleset(&world.node);
        listing.lines().filter(|line| line.trim().starts_with("map counted-endpoints")).count() / Family::ALL.len()
    };
    let wanted = |maps| if layout == Layout::Chains { 1 } else { maps };
    let mut config = config_in(layout);
    config["nftables"]["counters"] = json!("endpoints");
    let objects = [objects(), sticky()].concat();
    // These Services have 20 elements in the map of endpoints; 16 maps take eight times as many.
    let mut proxy = Proxy::start_under(&["env", "KUBE_PROXY_NFT_SPLIT_ELEMENTS=20"], &world.node, &config, &objects);
    let before = remembered(&world);
    let held: Vec<(Connection, Answer)> = all_flows().map(|flow| Connection::open(&world.client, flow)).collect();
    assert_eq!(maps(), 1);
    for (name, number, addresses, expected) in [("bigger", 2, 1, 16), ("biggest", 3, 36, 64)] {
        assert_served_during(&world, || {
            proxy.apply(&large(name, number, addresses));
            // On an emulated processor the sync that splits the maps takes longer than the silence after which a proxy counts as quiet.
            let end = Instant::now() + Duration::from_secs(60);
            while maps() != wanted(expected) {
                assert!(Instant::now() < end, "{} maps, not {}: {}", maps(), wanted(expected), proxy.log());
                thread::sleep(Duration::from_millis(100));
            }
            proxy.wait_until_quiet();
        });
        assert_serving(&world, &held);
        assert!((0..4).all(|_| remembered(&world) == before), "session affinity goes on");
        let flow = Flow::new(Proto::Tcp, Family::V6.client(), Family::V6.cluster_ip(number), 80);
        assert!(matches!(probe_served(&world.client, flow), Outcome::Reached(_)));
        let (code, text, errors) = outcome(&mut command(&world.node, &["verify"]));
        assert_eq!(code, Some(0), "{text}{errors}");
    }
    assert_eq!(
        proxy.log().matches("Split the maps of endpoints").count(),
        if layout == Layout::Chains { 0 } else { 2 }
    );
    // The thread of the counters finds them in the new maps.
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        let page = proxy.get("127.0.0.1:10249", "/metrics");
        let of_web =
            |line: &&str| line.starts_with("kubeproxy_nft_endpoint_connections_total{") && line.contains("\"web\"");
        if page.lines().filter(of_web).filter(|line| !line.ends_with(" 0")).count() > 1 {
            break;
        }
        assert!(Instant::now() < end, "no endpoint has a count: {page}");
        thread::sleep(Duration::from_millis(200));
    }

    // The next process would choose fewer, and keeps what it finds.
    let (listing, listed) = (nft::normalised(&nft::list_ruleset(&world.node)), frontends(&world));
    proxy.stop();
    proxy.set_wrapper(&[]);
    assert_served_during(&world, || proxy.launch());
    assert_eq!(maps(), wanted(64));
    assert_eq!(frontends(&world), listed);
    // Chains that the last sync of the process before no longer used may be gone: it deletes them a second later.
    let now = nft::normalised(&nft::list_ruleset(&world.node));
    assert_eq!(now.keys().filter(|name| !listing.contains_key(*name)).collect::<Vec<_>>(), [""; 0]);
    let gone: Vec<_> = listing.keys().filter(|name| !now.contains_key(*name) && !name.contains("lb-")).collect();
    assert_eq!(gone, [""; 0]);
    assert_serving(&world, &held);
}

test_in_each_layout!(the_flag_counts_beside_the_file);
fn the_flag_counts_beside_the_file(layout: Layout) {
    let world = World::new();
    let other = layout.other();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json();
    let [layout_flag, chains_flag] = other.flags();
    let _proxy = Proxy::start_with(
        &[&layout_flag, &chains_flag],
        &world.node,
        &config_in(layout),
        &[node(), service_cidr(), web],
    );
    let listing = nft::list_ruleset(&world.node);
    assert_eq!(listing.contains("map KUBE-SERVICES"), other != Layout::Maps, "{listing}");
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.cluster_ip(1), 80);
    assert_outcome(&world.client, flow, &Outcome::Refused);
}

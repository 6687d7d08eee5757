//! A restart with another layout, or with another number of maps of endpoints, replaces the rules, and traffic goes on as before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

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

test_in_each_layout!(a_change_of_layout_breaks_no_connection);
fn a_change_of_layout_breaks_no_connection(layout: Layout) {
    // Connections outlive a restart with other rules (D12, O7). The three tests together switch from each layout to each other one.
    let world = World::new();
    // On a translated processor more than the usual 30 s pass between two datagrams of one flow.
    world.node.set_sysctl("netfilter/nf_conntrack_udp_timeout", "600");
    let web = service("shop", "web").cluster_ips(1);
    let web = web.port("http", Proto::Tcp, 80).node_port(30080).port("dns", Proto::Udp, 53).node_port(30053);
    let web = Family::ALL.iter().fold(web, |web, family| web.external_ip(family.external_ip(1)));
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &[0, 1, 2, 3], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let all_flows = || Family::ALL.into_iter().flat_map(flows).map(|(flow, _)| flow);
    let held: Vec<(Connection, Answer)> = all_flows().map(|flow| Connection::open(&world.client, flow)).collect();
    for (next, maps) in [(layout.other(), 1), (layout, 1), (layout, 16)] {
        let listed = frontends(&world);
        proxy.stop();
        let mut config = config_in(next);
        config["nftables"]["endpointMaps"] = json!(maps);
        proxy.configure(&config);
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
            proxy.launch();
            is_done.store(true, Ordering::Relaxed);
            let count = prober.join().expect("every probe reaches an endpoint");
            assert!(count >= all_flows().count(), "nothing was probed during the change");
        });
        let listing = nft::list_ruleset(&world.node);
        assert_eq!(listing.contains("chain KUBE-SVC-"), next != Layout::Maps);
        assert_eq!(listing.contains("goto KUBE-SEP-"), next == Layout::Chains);
        assert_eq!(listing.contains("map nodeport-endpoints.15 {"), maps == 16, "{listing}");
        assert_eq!(frontends(&world), listed, "what operators see is the same");
        assert_serving(&world, &held);
    }
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

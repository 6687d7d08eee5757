//! A change from upstream's kube-proxy to this one and back, in the same table, under traffic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::upstream;
use crate::support::world::World;

/// The endpoints of `shop/web` in upstream's rules.
const UPSTREAM_WEB: [u8; 2] = [0, 2];
const OUR_WEB: [u8; 4] = [0, 1, 2, 3];
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

fn flows(family: Family) -> [Flow; 2] {
    let to = |address, port| Flow::new(Proto::Tcp, family.client(), address, port);
    [to(family.cluster_ip(1), 80), to(family.node(), 30080)]
}

fn assert_serving(world: &World, web: &[u8]) {
    for family in Family::ALL {
        for flow in flows(family) {
            assert_reaches(&world.client, flow, &endpoints(family, web, 8080), Source::Masqueraded, FEW);
        }
        let unserved = Flow::new(Proto::Tcp, family.client(), family.cluster_ip(2), 80);
        assert_outcome(&world.client, unserved, &Outcome::Refused);
    }
}

fn hold(world: &World) -> Vec<Connection> {
    Family::ALL.into_iter().flat_map(flows).map(|flow| Connection::open(&world.client, flow).0).collect()
}

fn ask(held: &[Connection]) {
    for connection in held {
        connection.ask();
    }
}

/// Runs `change` while clients keep connecting, each of which must be served; gives the result of `change`.
fn under_load<T: Send>(world: &World, change: impl FnOnce() -> T + Send) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut served = 0;
            while !done.load(Ordering::Relaxed) {
                for flow in Family::ALL.into_iter().flat_map(flows) {
                    let outcome = probe(&world.client, flow);
                    assert!(matches!(outcome, Outcome::Reached(_)), "{flow:?} after {served}: {outcome:?}");
                    served += 1;
                }
            }
            served
        });
        let outcome = change();
        done.store(true, Ordering::Relaxed);
        let served = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(served > 0, "clients connected meanwhile");
        outcome
    })
}

test_in_each_layout!(our_start_replaces_upstreams_table_and_upstreams_start_ours);
fn our_start_replaces_upstreams_table_and_upstreams_start_ours(layout: Layout) {
    // The tables have upstream's names, so each start replaces what the other program left (F1, F2, F9, O7).
    let world = World::new();
    nft::load(&world.node, upstream::RULES);
    assert_serving(&world, &UPSTREAM_WEB);
    let mut held = hold(&world);
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let empty = service("shop", "empty").cluster_ips(2).port("http", Proto::Tcp, 80);
    let sticky = service("shop", "sticky").cluster_ips(4).port("http", Proto::Tcp, 80).client_ip_affinity(10_800);
    let mut objects = vec![node(), service_cidr(), web.json(), empty.json(), sticky.json()];
    objects.extend(slices("shop", "web", &OUR_WEB, &PORTS));
    objects.extend(slices("shop", "sticky", &[1, 3], &PORTS));
    let mut proxy = under_load(&world, || Proxy::start(&world.node, &config_in(layout), &objects));
    assert_serving(&world, &OUR_WEB);
    ask(&held);
    let after = nft::normalised(&nft::list_ruleset(&world.node));
    let fresh = {
        let other = World::new();
        let _proxy = Proxy::start(&other.node, &config_in(layout), &objects);
        nft::normalised(&nft::list_ruleset(&other.node))
    };
    // The remembered clients differ, because more have connected since.
    let names = |rules: &std::collections::BTreeMap<String, Vec<String>>| rules.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&fresh), "only our program is in the tables");
    held.extend(hold(&world));

    proxy.stop();
    under_load(&world, || nft::load(&world.node, &upstream::start()));
    assert_serving(&world, &UPSTREAM_WEB);
    ask(&held);

    proxy.launch();
    assert_serving(&world, &OUR_WEB);
    ask(&held);
    assert_eq!(names(&nft::normalised(&nft::list_ruleset(&world.node))), names(&fresh), "again only our program");
}

test_in_each_layout!(upstream_can_delete_every_set_that_it_deletes_at_its_start);
fn upstream_can_delete_every_set_that_it_deletes_at_its_start(layout: Layout) {
    // In match-all mode upstream adds and deletes its set of node addresses, which fails if a rule of ours uses that
    // name (F4, F9).
    let world = World::new();
    let sticky = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let mut objects = vec![node(), service_cidr(), sticky.client_ip_affinity(10_800).json()];
    objects.extend(slices("shop", "web", &OUR_WEB, &PORTS));
    for addresses in [json!(["0.0.0.0/0", "::/0"]), json!(["primary"])] {
        let mut config = config_in(layout);
        config["nodePortAddresses"] = addresses;
        Proxy::start(&world.node, &config, &objects).stop();
        for (family, kind) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
            let set = format!("set {family} kube-proxy nodeport-ips");
            nft::load(&world.node, &format!("add {set} {{ type {kind}; }}\ndelete {set}\n"));
        }
    }
}

test_in_each_layout!(a_table_with_the_health_checks_where_they_were_before_is_taken_over);
fn a_table_with_the_health_checks_where_they_were_before_is_taken_over(layout: Layout) {
    // The rules of an older version serve until the first sync replaces them (O7).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let web = web.load_balancer_ip(Family::V4.load_balancer_ip(1)).spec("externalTrafficPolicy", json!("Local"));
    let mut objects = vec![node(), service_cidr(), web.spec("healthCheckNodePort", json!(32_123)).json()];
    objects.extend(slices("shop", "web", &OUR_WEB, &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let ours = nft::list_ruleset(&world.node);
    assert!(ours.contains("comment \"shop/web\" : 0x00000002"), "{ours}");
    proxy.stop();
    // As a table of a former version: no map for health checks, but a longer comment on the cluster IP.
    let map = if layout == Layout::Maps { "services" } else { "KUBE-SERVICES" };
    // Without /etc/protocols nft prints the number of a protocol.
    let frontends = ["10.96.0.1 . tcp . 80", "10.96.0.1 . 6 . 80"];
    let found = frontends
        .iter()
        .find_map(|frontend| Some((frontend, ours.split(&format!("{frontend} comment \"shop/web:http\" : ")).nth(1)?)));
    let (frontend, verdict) = found.unwrap_or_else(|| panic!("the frontend is not there: {ours}"));
    let verdict: String = verdict.chars().take_while(|c| !",\n}".contains(*c)).collect();
    nft::load(
        &world.node,
        &format!(
            "delete map ip kube-proxy health-check-nodeports\n\
             delete element ip kube-proxy {map} {{ {frontend} }}\n\
             add element ip kube-proxy {map} {{ {frontend} comment \
             \"shop/web:http; health check on 32123, local endpoints: 9\" : {verdict} }}\n"
        ),
    );
    let held = hold(&world);
    under_load(&world, || proxy.launch());
    ask(&held);
    assert_eq!(nft::normalised(&nft::list_ruleset(&world.node)), nft::normalised(&ours));
}

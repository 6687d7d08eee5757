//! Traffic policies and source ranges: which clients may use which endpoints, and which source address the endpoints see.

use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_outcome, assert_reaches, assert_stopped_on_node, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{ServiceBuilder, node, service, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const ALL: [u8; 4] = [0, 1, 2, 3];
const HERE: [u8; 2] = [0, 1];
const AWAY: [u8; 2] = [2, 3];

/// A Service on addresses of every kind.
fn web() -> ServiceBuilder {
    let service = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    Family::ALL.into_iter().fold(service, |service, family| {
        service.external_ip(family.external_ip(1)).load_balancer_ip(family.load_balancer_ip(1))
    })
}

fn local(service: ServiceBuilder, kind: &str) -> ServiceBuilder {
    service.spec(&format!("{kind}TrafficPolicy"), json!("Local"))
}

fn cluster(service: ServiceBuilder, which: &[u8]) -> Vec<Value> {
    let mut objects = vec![node(), service.json()];
    objects.extend(slices("shop", "web", which, &PORTS));
    objects
}

/// Flows to the external frontends of the Service.
fn external(family: Family, source: std::net::IpAddr) -> [Flow; 3] {
    let to = |address, port| Flow::new(Proto::Tcp, source, address, port);
    [to(family.node(), 30080), to(family.external_ip(1), 80), to(family.load_balancer_ip(1), 80)]
}

// With external policy Local the origin decides which endpoints are used and whether the source is kept (D3, D6).
test_in_each_layout!(external_policy_local_keeps_outsiders_on_this_node_with_their_address);
fn external_policy_local_keeps_outsiders_on_this_node_with_their_address(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(local(web(), "external"), &ALL));
    for family in Family::ALL {
        for flow in external(family, family.client()) {
            assert_reaches(&world.client, flow, &endpoints(family, &HERE, 8080), Source::Kept, FEW);
        }
        for flow in external(family, family.shell()) {
            assert_reaches(&world.shell, flow, &endpoints(family, &ALL, 8080), Source::Kept, FEW);
        }
        for flow in external(family, family.node()) {
            let tally = probe(&world.node, flow);
            assert!(matches!(tally, Outcome::Reached(_)), "{flow:?}: {tally:?}");
        }
    }
    proxy.apply(&slices("shop", "web", &AWAY, &PORTS));
    for family in Family::ALL {
        for flow in external(family, family.client()) {
            assert_outcome(&world.client, flow, &Outcome::Dropped);
        }
        for flow in external(family, family.shell()) {
            assert_reaches(&world.shell, flow, &endpoints(family, &AWAY, 8080), Source::Kept, FEW);
        }
    }
    proxy.apply(&slices("shop", "web", &[], &PORTS));
    for family in Family::ALL {
        for flow in external(family, family.client()) {
            assert_outcome(&world.client, flow, &Outcome::Refused);
        }
    }
}

// Where local pods cannot be recognised, they count as others (D7).
test_in_each_layout!(without_a_detector_pods_are_outsiders);
fn without_a_detector_pods_are_outsiders(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    config["clusterCIDR"] = json!("");
    let _proxy = Proxy::start(&world.node, &config, &cluster(local(web(), "external"), &ALL));
    for family in Family::ALL {
        for flow in external(family, family.shell()) {
            assert_reaches(&world.shell, flow, &endpoints(family, &HERE, 8080), Source::Kept, FEW);
        }
        let internal = Flow::new(Proto::Tcp, family.client(), family.cluster_ip(1), 80);
        assert_reaches(&world.client, internal, &endpoints(family, &ALL, 8080), Source::Kept, FEW);
    }
}

// With internal policy Local a cluster IP leads to local endpoints, or drops (D1, D2).
test_in_each_layout!(internal_policy_local_keeps_cluster_ip_traffic_on_this_node);
fn internal_policy_local_keeps_cluster_ip_traffic_on_this_node(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(local(web(), "internal"), &ALL));
    let flow = |family: Family| Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
    for family in Family::ALL {
        assert_reaches(&world.shell, flow(family), &endpoints(family, &HERE, 8080), Source::Kept, FEW);
        for outside in external(family, family.client()) {
            assert_reaches(&world.client, outside, &endpoints(family, &ALL, 8080), Source::Masqueraded, FEW);
        }
    }
    proxy.apply(&slices("shop", "web", &AWAY, &PORTS));
    Family::ALL.into_iter().for_each(|family| assert_outcome(&world.shell, flow(family), &Outcome::Dropped));
    proxy.apply(&slices("shop", "web", &[], &PORTS));
    Family::ALL.into_iter().for_each(|family| assert_outcome(&world.shell, flow(family), &Outcome::Refused));
}

// The cluster list and the local list fall back independently of each other (C3, C4, C5).
test_in_each_layout!(serving_terminating_endpoints_step_in_for_each_list_on_its_own);
fn serving_terminating_endpoints_step_in_for_each_list_on_its_own(layout: Layout) {
    let world = World::new();
    let mut objects = cluster(local(web(), "external"), &ALL);
    // Endpoint 0, on this node, terminates but serves; 1 is gone; 2 and 3, elsewhere, are ready.
    for slice in objects.iter_mut().filter(|object| object["kind"] == "EndpointSlice") {
        slice["endpoints"][0]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
        slice["endpoints"][1]["conditions"] = json!({ "ready": false, "serving": false, "terminating": true });
    }
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        let outside = external(family, family.client())[0];
        assert_reaches(&world.client, outside, &endpoints(family, &[0], 8080), Source::Kept, FEW);
        let inside = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
        assert_reaches(&world.shell, inside, &endpoints(family, &AWAY, 8080), Source::Kept, FEW);
    }
}

/// Fails the test when the connection is broken.
fn still_answers(connection: &Connection) {
    connection.ask();
}

// Changes concern new connections only (D12).
test_in_each_layout!(an_established_connection_survives_every_change_of_its_service);
fn an_established_connection_survives_every_change_of_its_service(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(web(), &AWAY));
    let open = |family: Family| {
        let internal = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
        let outside = external(family, family.client())[0];
        [Connection::open(&world.shell, internal).0, Connection::open(&world.client, outside).0]
    };
    let held: Vec<Connection> = Family::ALL.into_iter().flat_map(open).collect();
    let steps = [
        vec![local(local(web(), "external"), "internal").json()],
        vec![web().spec("loadBalancerSourceRanges", json!(["192.0.2.128/32", "2001:db8:dead::/64"])).json()],
        slices("shop", "web", &[], &PORTS),
    ];
    for step in &steps {
        proxy.apply(step);
        held.iter().for_each(still_answers);
    }
    proxy.delete(&[web().json()]);
    held.iter().for_each(still_answers);
}

// Source ranges that can be read guard load balancer IPs and nothing else (A9, D17).
test_in_each_layout!(source_ranges_guard_the_load_balancer_ips_only);
fn source_ranges_guard_the_load_balancer_ips_only(layout: Layout) {
    let world = World::new();
    let ranges = json!([format!("{}/32", Family::V4.client())]);
    let _proxy =
        Proxy::start(&world.node, &config_in(layout), &cluster(web().spec("loadBalancerSourceRanges", ranges), &ALL));
    let [node_port, external_ip, balanced] = external(Family::V4, Family::V4.client());
    let all = endpoints(Family::V4, &ALL, 8080);
    for flow in [node_port, external_ip, balanced] {
        assert_reaches(&world.client, flow, &all, Source::Masqueraded, FEW);
    }
    let [node_port, external_ip, balanced] = external(Family::V4, Family::V4.shell());
    assert_outcome(&world.shell, balanced, &Outcome::Dropped);
    for flow in [node_port, external_ip] {
        assert_reaches(&world.shell, flow, &all, Source::Masqueraded, FEW);
    }
    let from_node = external(Family::V4, Family::V4.node())[2];
    assert_stopped_on_node(&world.node, from_node, &Outcome::Dropped);
    // Ranges of one family leave the other open.
    let open = external(Family::V6, Family::V6.client())[2];
    assert_reaches(&world.client, open, &endpoints(Family::V6, &ALL, 8080), Source::Masqueraded, FEW);
}

// If a range contains the node, the Service's own load balancer IPs may connect (D18).
test_in_each_layout!(a_range_with_the_node_admits_the_load_balancer_ip_as_source);
fn a_range_with_the_node_admits_the_load_balancer_ip_as_source(layout: Layout) {
    let world = World::new();
    let vip = Family::V4.load_balancer_ip(1);
    let guarded = |range: &str| web().spec("loadBalancerSourceRanges", json!([range]));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(guarded("192.0.2.0/24"), &ALL));
    world.node.ip(&[format!("address add {vip}/32 dev lo")]);
    let from_vip = Flow::new(Proto::Tcp, vip, vip, 80);
    let admitted = probe(&world.node, from_vip);
    assert!(matches!(admitted, Outcome::Reached(_)), "{admitted:?}");
    proxy.apply(&[guarded("10.244.0.0/16").json()]);
    assert_stopped_on_node(&world.node, from_vip, &Outcome::Dropped);
}

//! What counts as local: pods by each detector, the node's own addresses, and facts that change while the proxy runs.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const ALL: [u8; 4] = [0, 1, 2, 3];

fn cluster() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &ALL, &PORTS));
    objects
}

fn to_cluster_ip(family: Family, source: IpAddr) -> Flow {
    Flow::new(Proto::Tcp, source, family.cluster_ip(1), 80)
}

/// Name of the node's end of the link to a pod on it.
fn pod_interface(world: &World) -> String {
    let route = crate::support::netns::run(world.node.command("ip").args([
        "-o",
        "route",
        "get",
        &Family::V4.shell().to_string(),
    ]));
    let device = route.split(" dev ").nth(1).and_then(|rest| rest.split(' ').next());
    device.expect("the node has a way to its pod").to_owned()
}

/// Pods of this node keep their address on the way to a cluster IP; all other traffic is masqueraded.
fn assert_detects(world: &World) {
    for family in Family::ALL {
        let all = endpoints(family, &ALL, 8080);
        assert_reaches(&world.shell, to_cluster_ip(family, family.shell()), &all, Source::Kept, FEW);
        assert_reaches(&world.client, to_cluster_ip(family, family.client()), &all, Source::Masqueraded, FEW);
    }
}

// `ClusterCIDR`: a source in the range is a local pod (I1).
test_in_each_layout!(pods_are_recognised_by_the_cluster_cidr);
fn pods_are_recognised_by_the_cluster_cidr(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    assert_detects(&world);
}

// `NodeCIDR`: a source in the Node's ranges is a local pod (I2).
test_in_each_layout!(pods_are_recognised_by_the_pod_cidrs_of_the_node);
fn pods_are_recognised_by_the_pod_cidrs_of_the_node(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    config["clusterCIDR"] = json!("");
    config["detectLocalMode"] = json!("NodeCIDR");
    let mut objects = cluster();
    objects[0]["spec"] = json!({ "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64"] });
    let _proxy = Proxy::start(&world.node, &config, &objects);
    assert_detects(&world);
}

// `BridgeInterface`: what comes through the interface is from a local pod (I3).
test_in_each_layout!(pods_are_recognised_by_the_interface);
fn pods_are_recognised_by_the_interface(layout: Layout) {
    let world = World::new();
    let name = pod_interface(&world);
    let mut config = config_in(layout);
    config["clusterCIDR"] = json!("");
    config["detectLocalMode"] = json!("BridgeInterface");
    config["detectLocal"] = json!({ "bridgeInterface": name });
    let _proxy = Proxy::start(&world.node, &config, &cluster());
    assert_detects(&world);
}

// `InterfaceNamePrefix`: what comes through such an interface is from a local pod (I3).
test_in_each_layout!(pods_are_recognised_by_the_start_of_the_interfaces_name);
fn pods_are_recognised_by_the_start_of_the_interfaces_name(layout: Layout) {
    let world = World::new();
    let name = pod_interface(&world);
    let mut config = config_in(layout);
    config["clusterCIDR"] = json!("");
    config["detectLocalMode"] = json!("InterfaceNamePrefix");
    config["detectLocal"] = json!({ "interfaceNamePrefix": &name[..name.len() - 1] });
    let _proxy = Proxy::start(&world.node, &config, &cluster());
    assert_detects(&world);
}

/// Asks until the answer is the wanted one.
fn wait_for(world: &World, flow: Flow, wanted: impl Fn(&Outcome) -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let outcome = probe(&world.client, flow);
        if wanted(&outcome) {
            return;
        }
        assert!(Instant::now() < end, "{flow:?}: still {outcome:?}");
        sleep(Duration::from_millis(100));
    }
}

// Addresses that come and go on the node's interfaces accept node ports, or no more, within seconds (G11, H5).
test_in_each_layout!(node_ports_follow_the_addresses_of_the_node);
fn node_ports_follow_the_addresses_of_the_node(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    config["nodePortAddresses"] = json!(["198.18.0.0/24", "2001:db8:18::/64"]);
    let _proxy = Proxy::start(&world.node, &config, &cluster());
    let reached = |outcome: &Outcome| matches!(outcome, Outcome::Reached(_));
    let new: IpAddr = "198.18.0.77".parse().expect("an address");
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), new, 30080);
    wait_for(&world, Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.node_second(), 30080), reached);
    world.node.ip(&[format!("address add {new}/32 dev lo")]);
    wait_for(&world, flow, reached);
    world.node.ip(&[format!("address del {new}/32 dev lo")]);
    wait_for(&world, flow, |outcome| !reached(outcome));
}

// A change of the ServiceCIDRs asks for a sync (D16).
test_in_each_layout!(a_change_of_the_service_cidrs_takes_effect_at_once);
fn a_change_of_the_service_cidrs_takes_effect_at_once(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    let unallocated = |family: Family| Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(200), 80);
    for family in Family::ALL {
        assert_outcome(&world.shell, unallocated(family), &Outcome::Dropped);
    }
    let rules = || crate::support::nft::list_ruleset(&world.node);
    assert!(rules().contains("10.96.0.0/16"), "{}", rules());
    proxy.delete(&[service_cidr()]);
    assert!(!rules().contains("10.96.0.0/16"), "{}", rules());
    proxy.apply(&[service_cidr()]);
    for family in Family::ALL {
        assert_outcome(&world.shell, unallocated(family), &Outcome::Dropped);
    }
}

// A new zone of the Node narrows the choice anew (C2, C9).
test_in_each_layout!(a_zone_label_moves_traffic_at_once);
fn a_zone_label_moves_traffic_at_once(layout: Layout) {
    let world = World::new();
    let mut objects = cluster();
    for slice in objects.iter_mut().filter(|object| object["kind"] == "EndpointSlice") {
        for (n, endpoint) in slice["endpoints"].as_array_mut().into_iter().flatten().enumerate() {
            let zone = if n < 2 { "a" } else { "b" };
            endpoint["hints"] = json!({ "forZones": [{ "name": zone }] });
        }
    }
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let zoned = |zone: &str| {
        let mut node = node();
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(zone);
        node
    };
    let steps: [(Value, &[u8]); 3] = [(zoned("a"), &[0, 1]), (zoned("b"), &[2, 3]), (node(), &ALL)];
    for (object, expected) in steps {
        proxy.apply(&[object]);
        for family in Family::ALL {
            let flow = to_cluster_ip(family, family.shell());
            assert_reaches(&world.shell, flow, &endpoints(family, expected, 8080), Source::Kept, FEW);
        }
    }
}

//! Packets of established connections pass by the forward hook, and a connection that ends in conntrack ends there too.

use super::cluster;
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::slices;
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Proto};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

/// Counts what the forward hook sees of TCP and UDP.
const COUNTER: &str = "
table inet watch {
    counter seen { }
    chain forward { type filter hook forward priority 300; meta l4proto { tcp, udp } counter name seen; }
}";
/// Enough for a connection to be handed over.
const WARM: u32 = 30;
const ASKED: u32 = 50;

/// Packets that the forward hook has seen.
pub(crate) fn seen(node: &Namespace) -> u64 {
    let listing = nft::list_json(node);
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let found = objects.filter_map(|object| object.get("counter")).find(|counter| counter["name"] == "seen");
    found.and_then(|counter| counter["packets"].as_u64()).unwrap_or_else(|| panic!("no counter: {listing}"))
}

pub(crate) fn watch(node: &Namespace) {
    nft::load(node, COUNTER);
}

/// From a pod to a cluster IP, and from outside, masqueraded, to a node port.
fn flows(world: &World) -> Vec<(&Namespace, Flow)> {
    let mut flows = Vec::new();
    for family in Family::ALL {
        for (proto, port, node_port) in [(Proto::Tcp, 80, 30080), (Proto::Udp, 53, 30053)] {
            flows.push((&world.shell, Flow::new(proto, family.shell(), family.cluster_ip(1), port)));
            flows.push((&world.client, Flow::new(proto, family.client(), family.node(), node_port)));
        }
    }
    flows
}

/// Has a connection answer so often, and gives the packets of it that the forward hook saw.
fn ask(node: &Namespace, connection: &Connection, times: u32) -> u64 {
    let before = seen(node);
    for _ in 0..times {
        connection.ask();
    }
    seen(node) - before
}

#[test]
#[ignore = "needs a kernel with flowtables; vm-tests runs them"]
fn established_connections_pass_by_the_forward_hook() {
    let world = World::new();
    let mut proxy = Proxy::start_with(&["--flowtable=off"], &world.node, &config(), &cluster());
    watch(&world.node);
    for (from, flow) in flows(&world) {
        let (connection, _) = Connection::open(from, flow);
        ask(&world.node, &connection, WARM);
        let packets = ask(&world.node, &connection, ASKED);
        assert!(packets >= u64::from(ASKED) * 2, "{flow:?}: {packets} packets without the fast path");
    }
    proxy.stop();
    proxy.set_arguments(&["--flowtable=auto"]);
    proxy.launch();
    wait_for_table(&world.node);
    for (from, flow) in flows(&world) {
        let (connection, first) = Connection::open(from, flow);
        let early = ask(&world.node, &connection, 5);
        assert!(early >= 10, "{flow:?}: handed over after fewer than 16 packets");
        ask(&world.node, &connection, WARM);
        let packets = ask(&world.node, &connection, ASKED);
        assert!(packets <= 4, "{flow:?}: the forward hook saw {packets} packets of {ASKED} questions");
        assert_eq!(connection.ask(), first, "{flow:?}");
    }
}

#[test]
#[ignore = "needs a kernel with flowtables; vm-tests runs them"]
fn a_udp_flow_leaves_an_endpoint_that_is_removed() {
    // A flow to an endpoint that is gone is deleted, also when a flowtable carries it (J1, J5).
    let world = World::new();
    let mut proxy = Proxy::start_with(&["--flowtable=auto"], &world.node, &config(), &cluster());
    watch(&world.node);
    wait_for_table(&world.node);
    let mut at = 2;
    for (from, flow) in flows(&world).into_iter().filter(|(_, flow)| flow.proto == Proto::Udp) {
        let (connection, first) = Connection::open(from, flow);
        let family = Family::of(flow.source);
        assert_eq!(first.endpoint, family.endpoint(at), "{flow:?}");
        ask(&world.node, &connection, WARM);
        let packets = ask(&world.node, &connection, ASKED);
        assert!(packets <= 4, "{flow:?}: not in the flowtable, {packets} packets seen");
        at = 5 - at;
        proxy.apply(&slices("shop", "web", &[at], &super::PORTS));
        assert_eq!(connection.ask().endpoint, family.endpoint(at), "{flow:?}: it still goes where it went");
    }
    assert!(!proxy.log().contains("Cannot examine flows"), "{}", proxy.log());
}

/// Waits until the interfaces are in the flowtable.
pub(crate) fn wait_for_table(node: &Namespace) {
    for _ in 0..400 {
        let listing = run(node.command("nft").args(["list", "ruleset"]));
        if listing.contains("flow add @fastpath") && listing.contains("devices = {") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("no fast path: {}", run(node.command("nft").args(["list", "ruleset"])));
}

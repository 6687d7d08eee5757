//! Host ports of pods, which the CNI plugin `portmap` translates at the same priority as the proxy: whichever registered its chain later
//! sees a packet first. That matters only where a Service has the address and the port of a host port.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{assert_web_is_forwarded, objects, tcp, unpacked};
use crate::inspect::said;
use crate::judge::{FEW, Source, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run_with_input};
use crate::support::objects::{service, slices};
use crate::support::plan::{Family, host_prefix};
use crate::support::probe::{Flow, Proto};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

/// The host port of pod 0, which nothing else has.
const OWN: u16 = 8053;
/// The host port of pod 0 that Service shop/edge has on the node's second address.
const SHARED: u16 = 80;
/// The port in the pod to which both lead.
const IN_POD: u16 = 9090;

/// The configuration of the plugin, as a container runtime gives it for pod 0.
fn configuration(excluded: bool) -> Value {
    let mapping =
        |port: u16, protocol: &str| json!({ "hostPort": port, "containerPort": IN_POD, "protocol": protocol });
    let mut config = json!({
        "cniVersion": "0.4.0", "name": "pods", "type": "portmap", "snat": true,
        "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": [mapping(OWN, "tcp"), mapping(OWN, "udp"), mapping(SHARED, "tcp")] },
        "prevResult": {
            "cniVersion": "0.4.0",
            "interfaces": [{ "name": "eth0", "sandbox": "/run/netns/pod0" }],
            "ips": [
                { "version": "4", "interface": 0, "address": format!("{}/24", Family::V4.endpoint(0)) },
                { "version": "6", "interface": 0, "address": format!("{}/64", Family::V6.endpoint(0)) },
            ],
        },
    });
    if excluded {
        // The remedy of `deploy/WISHES.md`: the plugin leaves the address of the Service alone.
        config["conditionsV4"] = json!(["!", "-d", host_prefix(Family::V4.node_second())]);
        config["conditionsV6"] = json!(["!", "-d", host_prefix(Family::V6.node_second())]);
    }
    config
}

/// Runs the plugin: `ADD` when the pod starts, `DEL` when it ends.
fn portmap(node: &Namespace, command: &str, excluded: bool) {
    let plugin: PathBuf = unpacked("usr/lib/cni/portmap");
    let mut run = node.command(&plugin);
    run.env("CNI_COMMAND", command).env("CNI_CONTAINERID", "pod0").env("CNI_IFNAME", "eth0");
    run.env("CNI_NETNS", "/run/netns/pod0").env("CNI_PATH", plugin.parent().expect("a file is in a folder"));
    run_with_input(&mut run, &configuration(excluded).to_string());
}

/// The objects of all tests, and Service shop/edge, whose load balancer IP is the second address of the node: as ServiceLB of K3s does it.
fn all_objects() -> Vec<Value> {
    let edge = service("shop", "edge").cluster_ips(2).port("http", Proto::Tcp, SHARED);
    let edge = Family::ALL.into_iter().fold(edge, |edge, family| edge.load_balancer_ip(family.node_second()));
    [objects(), vec![edge.json()], slices("shop", "edge", &[2, 3], &super::PORTS)].concat()
}

/// What has the address and the port that the Service and the host port share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Pod,
    Service,
}

/// Host ports lead to the pod and Services to their endpoints, each with the right source; `first` has what both claim.
fn assert_all_are_served(world: &World, first: First) {
    for family in Family::ALL {
        assert_web_is_forwarded(world, family);
        let pod = endpoints(family, &[0], IN_POD);
        let host_port = |from: &Namespace, source: IpAddr, proto: Proto, port: u16, seen: Source| {
            assert_reaches(from, Flow::new(proto, source, family.node(), port), &pod, seen, 4);
        };
        for proto in [Proto::Tcp, Proto::Udp] {
            host_port(&world.client, family.client(), proto, OWN, Source::Kept);
            host_port(&world.remote, family.endpoint(2), proto, OWN, Source::Kept);
            // The plugin masquerades pods of the pod's own network.
            host_port(&world.shell, family.shell(), proto, OWN, Source::Masqueraded);
            host_port(&world.pods[0], family.endpoint(0), proto, OWN, Source::Masqueraded);
        }
        host_port(&world.client, family.client(), Proto::Tcp, SHARED, Source::Kept);
        let (to, source) = match first {
            First::Pod => (pod.clone(), Source::Kept),
            First::Service => (endpoints(family, &[2, 3], 8080), Source::Masqueraded),
        };
        assert_reaches(&world.client, tcp(family.client(), family.node_second(), SHARED), &to, source, FEW);
    }
}

test_in_each_layout!(host_ports_and_services_serve_beside_each_other_whichever_came_first);
fn host_ports_and_services_serve_beside_each_other_whichever_came_first(layout: Layout) {
    // Of two chains of one priority the kernel runs the one that was registered later first (F12).
    let world = World::new();
    portmap(&world.node, "ADD", false);
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &all_objects());
    assert_all_are_served(&world, First::Service);
    // A restart of the proxy leaves its chains, and so the order.
    proxy.stop();
    proxy.launch();
    assert_all_are_served(&world, First::Service);
    proxy.kill();
    drop(proxy);

    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &all_objects());
    portmap(&world.node, "ADD", false);
    assert_all_are_served(&world, First::Pod);
    assert_is_named(&world.node);
    // The pod starts again with the remedy, which makes the order irrelevant.
    portmap(&world.node, "DEL", false);
    let to = tcp(Family::V4.client(), Family::V4.node_second(), SHARED);
    assert_reaches(&world.client, to, &endpoints(Family::V4, &[2, 3], 8080), Source::Masqueraded, FEW);
    portmap(&world.node, "ADD", true);
    assert_all_are_served(&world, First::Service);
}

/// `explain` and `check` say that another program may translate the packet first (Q1).
fn assert_is_named(node: &Namespace) {
    let (code, text) = said(node, "explain --from 203.0.113.7 --to 198.18.0.2:80");
    assert!(code == 1 && text.contains("table ip nat, chain PREROUTING"), "{text}");
    let (_, text) = said(node, "check");
    assert!(text.contains("chain PREROUTING of table ip nat"), "{text}");
}

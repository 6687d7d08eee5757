//! Traffic that no endpoint serves: refused with ICMP, or dropped without an answer.

use std::net::IpAddr;

use crate::judge::{Source, assert_outcome, assert_reaches, assert_stopped_on_node, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

/// From outside, from a pod and from the node itself.
fn assert_everywhere(world: &World, proto: Proto, address: IpAddr, port: u16, expected: &Outcome) {
    let family = Family::of(address);
    let from = |source| Flow::new(proto, source, address, port);
    assert_outcome(&world.client, from(family.client()), expected);
    assert_outcome(&world.shell, from(family.shell()), expected);
    assert_stopped_on_node(&world.node, from(family.node()), expected);
}

test_in_each_layout!(a_service_without_endpoints_refuses_on_every_frontend);
fn a_service_without_endpoints_refuses_on_every_frontend(layout: Layout) {
    // Without an endpoint every address of a Service answers with ICMP port unreachable (D2, D3, D4, D13).
    let world = World::new();
    let ports = [("tcp", Proto::Tcp), ("udp", Proto::Udp), ("sctp", Proto::Sctp)];
    let empty = service("shop", "empty").cluster_ips(1);
    let empty = ports.iter().fold(empty, |empty, (name, proto)| empty.port(name, *proto, 80).node_port(30080));
    let empty = Family::ALL.iter().fold(empty, |empty, family| {
        empty.external_ip(family.external_ip(1)).load_balancer_ip(family.load_balancer_ip(1))
    });
    let _proxy = Proxy::start(&world.node, &config_in(layout), &[node(), service_cidr(), empty.json()]);
    for (family, proto) in Family::ALL.iter().flat_map(|family| Proto::ALL.map(|proto| (*family, proto))) {
        for address in [family.cluster_ip(1), family.external_ip(1), family.load_balancer_ip(1)] {
            assert_everywhere(&world, proto, address, 80, &Outcome::Refused);
        }
        assert_everywhere(&world, proto, family.node(), 30080, &Outcome::Refused);
    }
}

test_in_each_layout!(cluster_ips_refuse_what_no_port_serves_and_free_ones_swallow_everything);
fn cluster_ips_refuse_what_no_port_serves_and_free_ones_swallow_everything(layout: Layout) {
    // A cluster IP refuses other ports, and free addresses of a ServiceCIDR drop (D14, D15).
    let world = World::new();
    let mut objects =
        vec![node(), service_cidr(), service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json()];
    objects.extend(slices("shop", "web", &[0, 2], &[("http", Proto::Tcp, 8080)]));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        for (proto, port) in [(Proto::Tcp, 81), (Proto::Udp, 80), (Proto::Sctp, 80), (Proto::Ping, 0)] {
            assert_everywhere(&world, proto, family.cluster_ip(1), port, &Outcome::Refused);
        }
        for proto in Proto::ALL.into_iter().chain([Proto::Ping]) {
            assert_everywhere(&world, proto, family.cluster_ip(200), 80, &Outcome::Dropped);
        }
        let served = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
        assert_reaches(&world.shell, served, &endpoints(family, &[0, 2], 8080), Source::Kept, 60);
    }
}

test_in_each_layout!(endpoints_of_one_family_never_serve_the_other);
fn endpoints_of_one_family_never_serve_the_other(layout: Layout) {
    // The families never mix (A4, B3, D24).
    let world = World::new();
    let ports = [("http", Proto::Tcp, 8080)];
    let both = service("shop", "both").cluster_ips(1).port("http", Proto::Tcp, 80);
    let only_v4 =
        service("shop", "only-v4").cluster_ip(Family::V4.cluster_ip(2)).port("http", Proto::Tcp, 80).node_port(30090);
    let mut objects =
        vec![node(), service_cidr(), both.json(), only_v4.json(), slices("shop", "both", &[0, 1], &ports).remove(0)];
    objects.extend(slices("shop", "only-v4", &[2, 3], &ports));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let (v4, v6) = (Family::V4, Family::V6);
    let to = |family: Family, address, port| Flow::new(Proto::Tcp, family.client(), address, port);
    assert_reaches(&world.client, to(v4, v4.cluster_ip(1), 80), &endpoints(v4, &[0, 1], 8080), Source::Masqueraded, 40);
    assert_outcome(&world.client, to(v6, v6.cluster_ip(1), 80), &Outcome::Refused);
    assert_reaches(&world.client, to(v4, v4.node(), 30090), &endpoints(v4, &[2, 3], 8080), Source::Masqueraded, 40);
    // No program of the node listens on that port.
    assert_outcome(&world.client, to(v6, v6.node(), 30090), &Outcome::Reset);
}

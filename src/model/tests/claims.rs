use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{dirty_after, dirty_services, web};
use crate::model::testing::{NODE, name, port, service, state};
use crate::model::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address_front(text: &str, number: u16) -> Front {
    Front { destination: Destination::Address(ip(text)), protocol: Protocol::Tcp, port: number }
}

#[test]
fn a_port_claims_every_address_once() {
    // A4, A7, A8, A14
    let mut service = Service {
        external_ips: vec![ip("192.0.2.1"), ip("2001:db8::1"), ip("192.0.2.1")],
        load_balancer_ips: vec![ip("192.0.2.1"), ip("192.0.2.2"), ip("10.96.0.1")],
        ..web()
    };
    service.ports[0].node_port = Some(30080);
    let node_port = |family| Front { destination: Destination::NodePort(family), protocol: Protocol::Tcp, port: 30080 };
    let v4 = [
        (FrontKind::ClusterIp, address_front("10.96.0.1", 80)),
        (FrontKind::ExternalIp, address_front("192.0.2.1", 80)),
        (FrontKind::LoadBalancerIp, address_front("192.0.2.2", 80)),
        (FrontKind::NodePort, node_port(Family::V4)),
    ];
    assert_eq!(service.fronts(&service.ports[0], Family::V4), v4);
    assert_eq!(service.fronts(&service.ports[0], Family::V6), [], "no cluster IP, so not even the external IP");

    service.cluster_ips.v6 = Some("fd00::1".parse().unwrap());
    let v6 = [
        (FrontKind::ClusterIp, address_front("fd00::1", 80)),
        (FrontKind::ExternalIp, address_front("2001:db8::1", 80)),
        (FrontKind::NodePort, node_port(Family::V6)),
    ];
    assert_eq!(service.fronts(&service.ports[0], Family::V6), v6);
}

#[test]
fn externally_accessible_by_family() {
    // A14
    let plain = service("default/web", &["10.96.0.1", "fd00::1"]);
    let node_port = ServicePort { node_port: Some(30080), ..port("http", 80) };
    let cases = [
        ("cluster IP only", plain.clone(), port("http", 80), [false, false]),
        ("node port", plain.clone(), node_port, [true, true]),
        (
            "IPv4 external IP",
            Service { external_ips: vec![ip("192.0.2.1")], ..plain.clone() },
            port("", 80),
            [true, false],
        ),
        ("IPv6 VIP", Service { load_balancer_ips: vec![ip("2001:db8::1")], ..plain }, port("", 80), [false, true]),
    ];
    for (case, service, port, expected) in cases {
        assert_eq!(Family::BOTH.map(|family| service.externally_accessible(&port, family)), expected, "{case}");
    }
}

/// A Service that claims 192.0.2.1 port 80/tcp as external IP besides a cluster IP of its own.
fn claimant(service_name: &str, created: i64, cluster_ip: &str) -> Service {
    Service {
        created,
        external_ips: vec![ip("192.0.2.1")],
        ports: vec![port("http", 80)],
        ..service(service_name, &[cluster_ip])
    }
}

fn contested() -> Front {
    address_front("192.0.2.1", 80)
}

fn owner(state: &State) -> String {
    let owners: BTreeSet<String> = state
        .services()
        .filter(|service| state.owns(&service.name, 0, &contested()))
        .map(|service| service.name.to_string())
        .collect();
    assert!(owners.len() <= 1, "two owners: {owners:?}");
    owners.into_iter().next().unwrap_or_default()
}

fn conflict(owner: &str, loser: &str) -> Conflict {
    Conflict { front: contested(), owner: name(owner), loser: name(loser) }
}

#[test]
fn the_oldest_service_owns_a_front_and_both_sides_become_dirty() {
    let mut state = State::new(NODE);
    let age = |created| claimant("default/b", created, "10.96.0.2");
    let steps = [
        ("the only one", Event::ServiceApplied(age(5)), &["default/b"][..], "default/b"),
        ("a younger one", Event::ServiceApplied(claimant("default/a", 9, "10.96.0.1")), &["default/a"], "default/b"),
        (
            "an older one",
            Event::ServiceApplied(claimant("default/c", 1, "10.96.0.3")),
            &["default/b", "default/c"],
            "default/c",
        ),
        ("the oldest goes", Event::ServiceDeleted(name("default/c")), &["default/b", "default/c"], "default/b"),
        ("the owner is created again", Event::ServiceApplied(age(20)), &["default/a", "default/b"], "default/a"),
        ("same age, name decides", Event::ServiceApplied(age(9)), &["default/b"], "default/a"),
        (
            "the owner drops the address",
            Event::ServiceApplied(Service { external_ips: vec![], ..claimant("default/a", 9, "10.96.0.1") }),
            &["default/a", "default/b"],
            "default/b",
        ),
        ("the last one goes", Event::ServiceDeleted(name("default/b")), &["default/b"], ""),
    ];
    for (step, event, dirty, owned_by) in steps {
        assert_eq!(dirty_after(&mut state, event), dirty_services(dirty), "{step}");
        assert_eq!(owner(&state), owned_by, "{step}");
    }
}

#[test]
fn a_front_goes_to_the_port_that_claims_it_only() {
    let two = Service { ports: vec![port("a", 80), port("b", 80), port("c/udp", 80)], ..web() };
    let mut state = state([Event::ServiceApplied(two)]);
    let front = address_front("10.96.0.1", 80);
    assert_eq!([0, 1, 2].map(|index| state.owns(&name("default/web"), index, &front)), [true, false, false]);
    let udp = Front { protocol: Protocol::Udp, ..front };
    assert_eq!([0, 1, 2].map(|index| state.owns(&name("default/web"), index, &udp)), [false, false, true]);
    assert!(!state.owns(&name("default/none"), 0, &front));

    let conflicts = state.take_conflicts();
    let expected = Conflict { front, owner: name("default/web"), loser: name("default/web") };
    assert_eq!(conflicts, [expected]);
    assert_eq!(
        conflicts[0].to_string(),
        "two ports of Service default/web claim 10.96.0.1 port 80/tcp; the first of them gets it"
    );
}

#[test]
fn node_ports_are_claimed_too() {
    let with_node_port = |service_name: &str, cluster_ip: &str| {
        let port = ServicePort { node_port: Some(30080), ..port("http", 80) };
        Service { ports: vec![port], ..service(service_name, &[cluster_ip]) }
    };
    let mut state = state([
        Event::ServiceApplied(with_node_port("default/b", "10.96.0.2")),
        Event::ServiceApplied(with_node_port("default/a", "10.96.0.1")),
        Event::ServiceApplied(with_node_port("default/six", "fd00::1")),
    ]);
    let conflicts = state.take_conflicts();
    assert_eq!(conflicts.len(), 1, "the families do not meet");
    assert_eq!(
        conflicts[0].to_string(),
        "Services default/a and default/b both claim IPv4 node port 30080/tcp; default/a gets it, by age and then by name"
    );
}

#[test]
fn an_address_listed_twice_by_one_service_is_no_conflict() {
    let both = Service { load_balancer_ips: vec![ip("192.0.2.1")], ..claimant("default/a", 0, "10.96.0.1") };
    let mut state = state([Event::ServiceApplied(both)]);
    assert_eq!(state.take_conflicts(), []);
    assert_eq!(owner(&state), "default/a");
}

#[test]
fn a_conflict_is_told_when_it_arises_only() {
    let mut state = State::new(NODE);
    let apply = |service_name: &str, created, cluster_ip: &str| {
        Event::ServiceApplied(claimant(service_name, created, cluster_ip))
    };
    let steps = [
        ("alone", apply("default/b", 5, "10.96.0.2"), vec![]),
        ("a second", apply("default/c", 6, "10.96.0.3"), vec![conflict("default/b", "default/c")]),
        ("the second changes elsewhere", apply("default/c", 6, "10.96.0.9"), vec![]),
        ("somebody else", Event::ServiceApplied(web()), vec![]),
        (
            "a new owner",
            apply("default/a", 1, "10.96.0.4"),
            vec![conflict("default/a", "default/b"), conflict("default/a", "default/c")],
        ),
        ("one loser goes", Event::ServiceDeleted(name("default/b")), vec![]),
        ("and comes back", apply("default/b", 5, "10.96.0.2"), vec![conflict("default/a", "default/b")]),
    ];
    for (step, event, expected) in steps {
        state.apply(event);
        assert_eq!(state.take_conflicts(), expected, "{step}");
    }
}

#[test]
fn a_conflict_that_ended_before_it_was_told_is_not_told() {
    let mut state = state([
        Event::ServiceApplied(claimant("default/b", 5, "10.96.0.2")),
        Event::ServiceApplied(claimant("default/c", 6, "10.96.0.3")),
        Event::ServiceApplied(claimant("default/a", 1, "10.96.0.1")),
        Event::ServiceDeleted(name("default/c")),
    ]);
    assert_eq!(state.take_conflicts(), [conflict("default/a", "default/b")]);
}

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{dirty_after, dirty_services, web};
use crate::model::testing::{NODE, name, port, service, state};
use crate::model::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address_frontend(text: &str, number: u16) -> Frontend {
    Frontend { destination: Destination::Address(ip(text)), protocol: Protocol::Tcp, port: number }
}

#[test]
fn a_port_claims_every_address_once() {
    // A service port is served at the Service's cluster IPs, external IPs and load balancer IPs and at its node port (A4, A7, A8, A14).
    let mut service = Service {
        external_ips: vec![ip("192.0.2.1"), ip("2001:db8::1"), ip("192.0.2.1")],
        load_balancer_ips: vec![ip("192.0.2.1"), ip("192.0.2.2"), ip("10.96.0.1")],
        ..web()
    };
    service.ports[0].node_port = Some(30080);
    let node_port =
        |family| Frontend { destination: Destination::NodePort(family), protocol: Protocol::Tcp, port: 30080 };
    let v4 = [
        (FrontendKind::ClusterIp, address_frontend("10.96.0.1", 80)),
        (FrontendKind::LoadBalancerIp, address_frontend("192.0.2.1", 80)),
        (FrontendKind::LoadBalancerIp, address_frontend("192.0.2.2", 80)),
        (FrontendKind::NodePort, node_port(Family::V4)),
    ];
    assert_eq!(service.frontends(&service.ports[0], Family::V4), v4);
    assert_eq!(service.frontends(&service.ports[0], Family::V6), [], "no cluster IP, so not even the external IP");

    service.cluster_ips.v6 = Some("fd00::1".parse().unwrap());
    let v6 = [
        (FrontendKind::ClusterIp, address_frontend("fd00::1", 80)),
        (FrontendKind::ExternalIp, address_frontend("2001:db8::1", 80)),
        (FrontendKind::NodePort, node_port(Family::V6)),
    ];
    assert_eq!(service.frontends(&service.ports[0], Family::V6), v6);
}

#[test]
fn externally_accessible_by_family() {
    // A node port, load balancer IP or external IP makes a service port accessible from outside, in each family by itself (A14).
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

/// A Service that claims 192.0.2.1 port 80/tcp as an external IP, and has a cluster IP of its own.
fn claimant(service_name: &str, created: i64, cluster_ip: &str) -> Service {
    Service {
        created,
        external_ips: vec![ip("192.0.2.1")],
        ports: vec![port("http", 80)],
        ..service(service_name, &[cluster_ip])
    }
}

fn contested() -> Frontend {
    address_frontend("192.0.2.1", 80)
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
    let (loser, kind) = (name(loser), FrontendKind::ExternalIp);
    Conflict { frontend: contested(), winner: Winner::Service(name(owner), kind), loser, kind }
}

/// All conflicts that arose since the last call.
fn take_conflicts(state: &mut State) -> Vec<Conflict> {
    state.take_conflicts(usize::MAX).into_iter().flat_map(|contest| contest.conflicts).collect()
}

#[test]
fn the_oldest_service_owns_a_frontend_and_both_sides_become_dirty() {
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
fn a_frontend_goes_to_the_port_that_claims_it_only() {
    let two = Service { ports: vec![port("a", 80), port("b", 80), port("c/udp", 80)], ..web() };
    let mut state = state([Event::ServiceApplied(two)]);
    let frontend = address_frontend("10.96.0.1", 80);
    assert_eq!([0, 1, 2].map(|index| state.owns(&name("default/web"), index, &frontend)), [true, false, false]);
    let udp = Frontend { protocol: Protocol::Udp, ..frontend };
    assert_eq!([0, 1, 2].map(|index| state.owns(&name("default/web"), index, &udp)), [false, false, true]);
    assert!(!state.owns(&name("default/none"), 0, &frontend));

    let conflicts = take_conflicts(&mut state);
    let (web, kind) = (name("default/web"), FrontendKind::ClusterIp);
    let expected = Conflict { frontend, winner: Winner::Service(web.clone(), kind), loser: web, kind };
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
    let conflicts = take_conflicts(&mut state);
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
    assert_eq!(take_conflicts(&mut state), []);
    assert_eq!(owner(&state), "default/a");
}

#[test]
fn a_conflict_is_reported_when_it_arises_only() {
    let mut state = State::new(NODE);
    let apply = |service_name: &str, created, cluster_ip: &str| {
        Event::ServiceApplied(claimant(service_name, created, cluster_ip))
    };
    let steps = [
        ("alone", apply("default/b", 5, "10.96.0.2"), vec![]),
        ("a second", apply("default/c", 6, "10.96.0.3"), vec![conflict("default/b", "default/c")]),
        ("the second changes elsewhere", apply("default/c", 6, "10.96.0.9"), vec![]),
        ("another Service", Event::ServiceApplied(web()), vec![]),
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
        assert_eq!(take_conflicts(&mut state), expected, "{step}");
    }
}

#[test]
fn a_conflict_that_ended_before_it_was_reported_is_not_reported() {
    let mut state = state([
        Event::ServiceApplied(claimant("default/b", 5, "10.96.0.2")),
        Event::ServiceApplied(claimant("default/c", 6, "10.96.0.3")),
        Event::ServiceApplied(claimant("default/a", 1, "10.96.0.1")),
        Event::ServiceDeleted(name("default/c")),
    ]);
    assert_eq!(take_conflicts(&mut state), [conflict("default/a", "default/b")]);
}

/// A Service with port 80 that was created at this second.
fn aged(service_name: &str, created: i64, cluster_ip: &str) -> Service {
    Service { created, ports: vec![port("http", 80)], ..service(service_name, &[cluster_ip]) }
}

fn applied(service: &Service) -> Event {
    Event::ServiceApplied(service.clone())
}

/// All orders of a few events.
fn permutations(events: &[Event]) -> Vec<Vec<Event>> {
    let Some((first, others)) = events.split_first() else { return vec![Vec::new()] };
    let insert = |order: Vec<Event>| {
        (0..=order.len())
            .map(move |at| [&order[..at], std::slice::from_ref(first), &order[at..]].concat())
            .collect::<Vec<_>>()
    };
    permutations(others).into_iter().flat_map(insert).collect()
}

/// Four Services that claim 192.0.2.1 port 80/tcp: as a cluster IP, as a load balancer IP, and two as an external IP. A Service with a kind
/// that takes precedence is younger, so that age alone would choose otherwise.
fn every_kind() -> [Service; 4] {
    [
        aged("default/cluster", 40, "192.0.2.1"),
        Service { load_balancer_ips: vec![ip("192.0.2.1")], ..aged("default/balancer", 30, "10.96.0.8") },
        claimant("default/a", 20, "10.96.0.9"),
        claimant("default/b", 10, "10.96.0.10"),
    ]
}

#[test]
fn what_a_frontend_is_to_a_service_counts_more_than_age_in_any_order_of_events() {
    let [cluster, balanced, younger, older] = every_kind();
    let services = [&cluster, &balanced, &younger, &older].map(applied);
    // Deletes the owner repeatedly; each time the next claim gets the frontend: ordered by its kind, then by the age of its Service.
    let mut gone = Vec::new();
    for expected in ["default/cluster", "default/balancer", "default/b", "default/a", ""] {
        for order in permutations(&services) {
            let mut state = state(order);
            gone.iter().for_each(|service_name: &&str| {
                state.apply(Event::ServiceDeleted(name(service_name)));
            });
            assert_eq!(owner(&state), expected, "without {gone:?}");
            assert_eq!(state.lost_claims(), 3_usize.saturating_sub(gone.len()), "without {gone:?}");
        }
        gone.push(expected);
    }
}

#[test]
fn a_cluster_ip_takes_its_frontend_from_an_older_external_ip_and_gets_it_back() {
    let [cluster, _, external, _] = every_kind();
    let mut state = state([applied(&external)]);
    assert_eq!(owner(&state), "default/a");
    for _ in 0..2 {
        let dirty = dirty_after(&mut state, applied(&cluster));
        assert_eq!(
            (dirty, owner(&state)),
            (dirty_services(&["default/a", "default/cluster"]), "default/cluster".into())
        );
        let conflicts = take_conflicts(&mut state);
        let text = "Services default/cluster and default/a both claim 192.0.2.1 port 80/tcp; default/cluster gets it, because \
                    a cluster IP comes before an external IP";
        assert_eq!(conflicts.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
        let dirty = dirty_after(&mut state, Event::ServiceDeleted(cluster.name.clone()));
        assert_eq!((dirty, owner(&state)), (dirty_services(&["default/a", "default/cluster"]), "default/a".into()));
        assert_eq!((take_conflicts(&mut state), state.lost_claims()), (vec![], 0));
    }
}

#[test]
fn an_address_that_is_listed_as_two_kinds_counts_as_the_stronger_one() {
    let both = Service { load_balancer_ips: vec![ip("192.0.2.1")], ..claimant("default/b", 9, "10.96.0.2") };
    let other = claimant("default/a", 1, "10.96.0.1");
    for order in permutations(&[applied(&both), applied(&other)]) {
        assert_eq!(owner(&state(order)), "default/b");
    }
}

fn api_slice(address: &str, number: u16) -> Event {
    let slice = crate::model::testing::slice;
    let port = crate::model::testing::slice_port("https", number);
    Event::SliceApplied(slice("default/kubernetes", "default/kubernetes", &[port], &[address]))
}

#[test]
fn an_endpoint_of_the_api_server_is_not_an_external_ip_in_any_order_of_events() {
    let [cluster, balanced, external, _] = every_kind();
    let at = |text: &str| Event::ApiServerAt(vec![text.parse().unwrap()]);
    let elsewhere = [api_slice("192.0.2.1", 81), at("192.0.2.2:80")];
    for api_server in [api_slice("192.0.2.1", 80), at("192.0.2.1:80"), at("[::ffff:192.0.2.1]:80")] {
        for order in permutations(&[applied(&external), api_server.clone()]) {
            let mut state = state(order);
            assert_eq!((owner(&state), state.lost_claims()), (String::new(), 1));
            let text = "Service default/a does not get 192.0.2.1 port 80/tcp as an external IP, because it is an endpoint of the \
                        API server";
            assert_eq!(take_conflicts(&mut state).iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
            // An API server at another port of the address, and at another address, leaves the frontend to the Service.
            elsewhere.iter().for_each(|event| {
                state.apply(event.clone());
            });
            assert_eq!((owner(&state), state.lost_claims()), ("default/a".to_owned(), 0));
            state.apply(api_server.clone());
            assert_eq!(owner(&state), "");
            state.apply(Event::SliceDeleted(name("default/kubernetes")));
            state.apply(Event::ApiServerAt(vec![]));
            assert_eq!(owner(&state), "default/a");
        }
        // A load balancer IP wins over the API server, because a load balancer in front of the API servers may have the address by which
        // this process reaches them. So does a cluster IP.
        for stronger in [&balanced, &cluster] {
            for order in permutations(&[applied(stronger), api_server.clone(), applied(&external)]) {
                assert_eq!(owner(&state(order)), stronger.name.to_string());
            }
        }
    }
}

#[test]
fn an_address_of_a_service_cidr_is_not_an_external_ip_in_any_order_of_events() {
    let [cluster, balanced, younger, older] = every_kind();
    let ranges = |texts: &[&str]| Event::ServiceCidrApplied("x".into(), crate::model::testing::ranges(texts));
    for order in permutations(&[applied(&younger), applied(&older), ranges(&["192.0.2.0/24", "2001:db8::/64"])]) {
        let mut state = state(order);
        assert_eq!((owner(&state), state.lost_claims()), (String::new(), 2));
        let text = "Service default/b does not get 192.0.2.1 port 80/tcp as an external IP, because the address is in a \
                    ServiceCIDR and is not its cluster IP";
        assert_eq!(take_conflicts(&mut state)[0].to_string(), text);
        let dirty = dirty_after(&mut state, ranges(&["192.0.3.0/24"]));
        assert!(dirty.services.contains(&older.name) && dirty.service_cidrs, "{dirty:?}");
        assert_eq!((owner(&state), state.lost_claims()), ("default/b".to_owned(), 1));
        state.apply(ranges(&["192.0.0.0/16"]));
        assert_eq!((owner(&state), state.lost_claims()), (String::new(), 2));
        // A Service that has the address as its cluster IP or load balancer IP gets the frontend all the same.
        for stronger in [&balanced, &cluster] {
            state.apply(applied(stronger));
            assert_eq!(owner(&state), stronger.name.to_string());
        }
    }
}

#[test]
fn of_many_conflicts_at_a_frontend_the_first_are_named_and_the_others_counted() {
    let mut state = State::new(NODE);
    // Each Service is older than all before it, so each owns the frontend until the next one is applied.
    for n in 0_u8..100 {
        state.apply(applied(&claimant(&format!("default/s{n:02}"), 100 - i64::from(n), &format!("10.96.1.{n}"))));
    }
    let contests = state.take_conflicts(3);
    assert_eq!(contests.len(), 1);
    let Contest { conflicts, more, claims } = &contests[0];
    let losers = ["default/s98", "default/s97", "default/s96"];
    assert_eq!(
        *conflicts,
        losers.map(|loser| conflict("default/s99", loser)),
        "in the order in which they would get it"
    );
    assert_eq!((*more, *claims, state.lost_claims()), (96, 100, 99));
    assert_eq!(
        contests[0].to_string(),
        "100 claims on 192.0.2.1 port 80/tcp; default/s99 gets it, by age and then by name; those that do not get it: \
         default/s98, default/s97, default/s96 and 96 more"
    );
    // A Service that comes later and loses is the only new conflict.
    state.apply(applied(&claimant("default/later", 200, "10.96.2.1")));
    let contests = state.take_conflicts(3);
    assert_eq!(contests[0].conflicts, [conflict("default/s99", "default/later")]);
    assert_eq!((contests[0].more, contests[0].claims), (0, 101));
    // A Service may claim the frontend with several ports, and the sentence counts these.
    let mut twice = claimant("default/twice", 300, "10.96.2.2");
    twice.ports.push(ServicePort { name: "again".into(), ..twice.ports[0].clone() });
    state.apply(applied(&twice));
    state.apply(applied(&claimant("default/once", 301, "10.96.2.3")));
    let text = state.take_conflicts(3).last().unwrap().to_string();
    assert!(text.starts_with("104 claims on 192.0.2.1 port 80/tcp; default/s99 gets it"), "{text}");
    for gone in ["default/twice", "default/once"] {
        state.apply(Event::ServiceDeleted(name(gone)));
    }
    // The next Service gets the frontend, so the conflicts of all others are new.
    state.apply(Event::ServiceDeleted(name("default/s99")));
    let contests = state.take_conflicts(3);
    assert_eq!((contests[0].more, contests[0].claims, state.lost_claims()), (96, 100, 99));
    assert_eq!(contests[0].conflicts[0], conflict("default/s98", "default/s97"));
}

#[test]
fn what_arose_and_ended_is_not_reported_whichever_claim_goes() {
    let services = ["a", "b", "c"].map(|name| claimant(&format!("default/{name}"), 0, "10.96.0.1"));
    for order in permutations(&services.each_ref().map(applied)) {
        for left in ["default/a", "default/b", "default/c"] {
            let mut state = state(order.clone());
            let gone = services.iter().filter(|service| service.name != name(left));
            gone.for_each(|service| {
                state.apply(Event::ServiceDeleted(service.name.clone()));
            });
            assert_eq!((take_conflicts(&mut state), state.lost_claims(), owner(&state)), (vec![], 0, left.to_owned()));
        }
    }
}

#[test]
fn claims_that_none_wins_are_summed_up_with_the_reason() {
    let [cluster, _, younger, older] = every_kind();
    let reserved = Event::ServiceCidrApplied("x".into(), crate::model::testing::ranges(&["192.0.2.0/24"]));
    let cases = [
        (
            reserved,
            "none gets it as an external IP, because the address is in a ServiceCIDR and is not its cluster IP",
            "2 claims",
        ),
        (
            api_slice("192.0.2.1", 80),
            "none gets it as an external IP, because it is an endpoint of the API server",
            "2 claims",
        ),
        (applied(&cluster), "default/cluster gets it, because a cluster IP comes before an external IP", "3 claims"),
    ];
    for (event, reason, who) in cases {
        for order in permutations(&[applied(&younger), applied(&older), event]) {
            let contests = state(order).take_conflicts(1);
            let text =
                format!("{who} on 192.0.2.1 port 80/tcp; {reason}; those that do not get it: default/b and 1 more");
            assert_eq!(contests.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
        }
    }
}

#[test]
fn ranges_and_endpoints_of_the_api_server_that_are_listed_twice_count_until_the_last_is_gone() {
    let [_, _, external, _] = every_kind();
    let range =
        |name: &str, texts: &[&str]| Event::ServiceCidrApplied(name.into(), crate::model::testing::ranges(texts));
    let mut state =
        state([applied(&external), range("x", &["192.0.2.0/24"]), range("y", &["192.0.2.7/24", "192.0.2.0/25"])]);
    let steps = [
        (Event::ServiceCidrDeleted("x".into()), ""),
        (range("y", &["192.0.2.0/25"]), ""),
        (Event::ServiceCidrDeleted("y".into()), "default/a"),
        (Event::ApiServerAt(vec!["192.0.2.1:80".parse().unwrap()]), ""),
        (api_slice("192.0.2.1", 80), ""),
        (Event::ApiServerAt(vec![]), ""),
        (Event::SliceDeleted(name("default/kubernetes")), "default/a"),
    ];
    for (event, expected) in steps {
        let text = format!("{event:?}");
        state.apply(event);
        assert_eq!(
            (owner(&state), state.lost_claims()),
            (expected.to_owned(), usize::from(expected.is_empty())),
            "{text}"
        );
    }
}

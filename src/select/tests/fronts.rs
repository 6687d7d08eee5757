//! Tests of the action for each front.

use std::net::IpAddr;

use super::{CLUSTER, LOCAL, exposed, only_port, web, with_endpoints};
use crate::model::testing::{name, port, service};
use crate::model::{Event, FrontKind, Service, State};
use crate::select::{Action, select};

const ANY: Action = Action::Cluster { masquerade: false };
const MASQUERADED: Action = Action::Cluster { masquerade: true };

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// [`exposed`] with one front of each kind.
fn every_front(internal: super::TrafficPolicy, external: super::TrafficPolicy) -> Service {
    Service {
        external_ips: vec![ip("192.0.2.1")],
        load_balancer_ips: vec![ip("192.0.2.2")],
        ..exposed(internal, external)
    }
}

fn fronts(state: &State) -> Vec<(FrontKind, String, Action)> {
    let fronts = only_port(state).fronts.into_iter();
    fronts.map(|front| (front.kind, front.front.to_string(), front.action)).collect()
}

#[test]
fn policies_and_endpoints_decide() {
    // Internal policy, external policy, endpoints, action of the cluster IP and of the others (C6, D1, D2, D3, D5, D6).
    let cases: [(&str, _, _, &[&str], Action, Action); 13] = [
        ("no endpoint", CLUSTER, CLUSTER, &[], Action::Reject, Action::Reject),
        ("no endpoint", LOCAL, LOCAL, &[], Action::Reject, Action::Reject),
        ("none that may be used", CLUSTER, CLUSTER, &["1 @here unready", "2 dead"], Action::Reject, Action::Reject),
        ("none that may be used", LOCAL, LOCAL, &["1 @here serving"], Action::Reject, Action::Reject),
        ("elsewhere", CLUSTER, CLUSTER, &["1 @there"], ANY, MASQUERADED),
        ("elsewhere", CLUSTER, LOCAL, &["1 @there"], ANY, Action::ByOrigin),
        ("elsewhere", LOCAL, CLUSTER, &["1 @there"], Action::Drop, MASQUERADED),
        ("elsewhere", LOCAL, LOCAL, &["1 @there"], Action::Drop, Action::ByOrigin),
        ("here", CLUSTER, CLUSTER, &["1 @here"], ANY, MASQUERADED),
        ("here", LOCAL, CLUSTER, &["1 @here"], Action::Local, MASQUERADED),
        ("here", LOCAL, LOCAL, &["1 @here"], Action::Local, Action::ByOrigin),
        ("terminating elsewhere", LOCAL, LOCAL, &["1 @there terminating"], Action::Drop, Action::ByOrigin),
        ("terminating here", LOCAL, LOCAL, &["1 @here terminating", "2"], Action::Local, Action::ByOrigin),
    ];
    for (case, internal, external, endpoints, inside, outside) in cases {
        let state = with_endpoints(every_front(internal, external), endpoints);
        let expected = [
            (FrontKind::ClusterIp, "10.96.0.1 port 80/tcp".to_owned(), inside),
            (FrontKind::LoadBalancerIp, "192.0.2.2 port 80/tcp".to_owned(), outside),
            (FrontKind::ExternalIp, "192.0.2.1 port 80/tcp".to_owned(), outside),
            (FrontKind::NodePort, "IPv4 node port 30080/tcp".to_owned(), outside),
        ];
        assert_eq!(fronts(&state), expected, "{case}, internal {internal:?}, external {external:?}");
    }
}

#[test]
fn internal_local_without_external_access_sees_endpoints_elsewhere() {
    // No cluster list exists, but there is an endpoint somewhere, so drop and do not reject (C6).
    let internal_local = || Service { internal_policy: LOCAL, ..web() };
    for (endpoints, action) in [
        (&["1 @there"][..], Action::Drop),
        (&["1 @there terminating"], Action::Drop),
        (&["1 @there dead"], Action::Reject),
        (&["1 @there unready"], Action::Reject),
    ] {
        let port = only_port(&with_endpoints(internal_local(), endpoints));
        assert_eq!((port.cluster.len(), port.fronts[0].action), (0, action), "{endpoints:?}");
    }
}

#[test]
fn an_address_listed_twice_is_one_front() {
    let twice = Service {
        external_ips: vec![ip("192.0.2.1"), ip("10.96.0.1")],
        load_balancer_ips: vec![ip("192.0.2.1")],
        ..web()
    };
    let expected = [
        (FrontKind::ClusterIp, "10.96.0.1 port 80/tcp".to_owned(), ANY),
        (FrontKind::LoadBalancerIp, "192.0.2.1 port 80/tcp".to_owned(), MASQUERADED),
    ];
    assert_eq!(fronts(&with_endpoints(twice, &["1"])), expected);
}

#[test]
fn a_front_is_listed_by_its_owner_only() {
    let older = Service { created: -1, external_ips: vec![ip("192.0.2.1")], ..service("default/old", &["10.96.0.9"]) };
    let mut state = with_endpoints(every_front(CLUSTER, CLUSTER), &["1"]);
    state.apply(Event::ServiceApplied(Service { ports: vec![port("http", 80)], ..older }));
    let kinds: Vec<FrontKind> = fronts(&state).into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, [FrontKind::ClusterIp, FrontKind::LoadBalancerIp, FrontKind::NodePort]);

    let old = select(&state, &name("default/old")).unwrap().ports.remove(0);
    let actions: Vec<_> = old.fronts.iter().map(|front| (front.kind, front.action)).collect();
    assert_eq!(actions, [(FrontKind::ClusterIp, Action::Reject), (FrontKind::ExternalIp, Action::Reject)]);
}

//! Tests of the [`Action`] for each frontend.

use std::net::IpAddr;

use super::{CLUSTER, LOCAL, exposed, only_port, web, with_endpoints};
use crate::endpoints::{Action, select};
use crate::model::testing::{name, port, service};
use crate::model::{Event, FrontendKind, Service, State};

const ANY: Action = Action::Cluster { masquerade: false };
const MASQUERADED: Action = Action::Cluster { masquerade: true };

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The Service of [`exposed`] with one frontend of each kind.
fn every_frontend(internal: super::TrafficPolicy, external: super::TrafficPolicy) -> Service {
    Service {
        external_ips: vec![ip("192.0.2.1")],
        load_balancer_ips: vec![ip("192.0.2.2")],
        ..exposed(internal, external)
    }
}

fn frontends(state: &State) -> Vec<(FrontendKind, String, Action)> {
    let frontends = only_port(state).frontends.into_iter();
    frontends.map(|frontend| (frontend.kind, frontend.frontend.to_string(), frontend.action)).collect()
}

#[test]
fn policies_and_endpoints_decide() {
    // Columns: name, internal policy, external policy, endpoints, action of the cluster IP, action of the other frontends
    // (C6, D1, D2, D3, D5, D6).
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
        let state = with_endpoints(every_frontend(internal, external), endpoints);
        let expected = [
            (FrontendKind::ClusterIp, "10.96.0.1 port 80/tcp".to_owned(), inside),
            (FrontendKind::LoadBalancerIp, "192.0.2.2 port 80/tcp".to_owned(), outside),
            (FrontendKind::ExternalIp, "192.0.2.1 port 80/tcp".to_owned(), outside),
            (FrontendKind::NodePort, "IPv4 node port 30080/tcp".to_owned(), outside),
        ];
        assert_eq!(frontends(&state), expected, "{case}, internal {internal:?}, external {external:?}");
    }
}

#[test]
fn internal_local_without_external_access_sees_endpoints_elsewhere() {
    // No frontend uses endpoints of other nodes. If another node has a usable endpoint, traffic is dropped, and otherwise rejected (C6).
    let internal_local = || Service { internal_policy: LOCAL, ..web() };
    for (endpoints, action) in [
        (&["1 @there"][..], Action::Drop),
        (&["1 @there terminating"], Action::Drop),
        (&["1 @there dead"], Action::Reject),
        (&["1 @there unready"], Action::Reject),
    ] {
        let port = only_port(&with_endpoints(internal_local(), endpoints));
        assert_eq!((port.cluster.len(), port.frontends[0].action), (0, action), "{endpoints:?}");
    }
}

#[test]
fn an_address_listed_twice_is_one_frontend() {
    let twice = Service {
        external_ips: vec![ip("192.0.2.1"), ip("10.96.0.1")],
        load_balancer_ips: vec![ip("192.0.2.1")],
        ..web()
    };
    let expected = [
        (FrontendKind::ClusterIp, "10.96.0.1 port 80/tcp".to_owned(), ANY),
        (FrontendKind::LoadBalancerIp, "192.0.2.1 port 80/tcp".to_owned(), MASQUERADED),
    ];
    assert_eq!(frontends(&with_endpoints(twice, &["1"])), expected);
}

#[test]
fn a_frontend_is_listed_by_its_owner_only() {
    let older = Service { created: -1, external_ips: vec![ip("192.0.2.1")], ..service("default/old", &["10.96.0.9"]) };
    let mut state = with_endpoints(every_frontend(CLUSTER, CLUSTER), &["1"]);
    state.apply(Event::ServiceApplied(Service { ports: vec![port("http", 80)], ..older }));
    let kinds: Vec<FrontendKind> = frontends(&state).into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, [FrontendKind::ClusterIp, FrontendKind::LoadBalancerIp, FrontendKind::NodePort]);

    let old = select(&state, &name("default/old")).unwrap().ports.remove(0);
    let actions: Vec<_> = old.frontends.iter().map(|frontend| (frontend.kind, frontend.action)).collect();
    assert_eq!(actions, [(FrontendKind::ClusterIp, Action::Reject), (FrontendKind::ExternalIp, Action::Reject)]);
}

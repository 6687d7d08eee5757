//! Tests of the selection, as tables of cases. Endpoints are written as for [`endpoint`](crate::model::testing::endpoint); [`with_endpoints`]
//! takes only the last byte of their address 10.244.0.x. A list of endpoints is written as the last bytes, such as `1 2`.

mod causes;
mod frontends;
mod merging;
pub(crate) mod properties;

use std::net::SocketAddr;

use super::{PortSelection, ServiceSelection, select};
use crate::model::testing::{name, node, port, service, slice, slice_port, state};
use crate::model::{Event, Family, Service, ServicePort, State, TrafficPolicy};

const CLUSTER: TrafficPolicy = TrafficPolicy::Cluster;
const LOCAL: TrafficPolicy = TrafficPolicy::Local;

/// Service default/web with port http, 80/tcp, and cluster IP 10.96.0.1.
fn web() -> Service {
    Service { ports: vec![port("http", 80)], ..service("default/web", &["10.96.0.1"]) }
}

/// [`web`] with these traffic policies and node port 30080.
fn exposed(internal_policy: TrafficPolicy, external_policy: TrafficPolicy) -> Service {
    let port = ServicePort { node_port: Some(30080), ..port("http", 80) };
    Service { internal_policy, external_policy, ports: vec![port], ..web() }
}

fn addresses(endpoints: &[&str]) -> Vec<String> {
    endpoints.iter().map(|text| format!("10.244.0.{text}")).collect()
}

/// A state with this Service and one slice, on a node in zone a.
fn with_endpoints(service: Service, endpoints: &[&str]) -> State {
    let addresses = addresses(endpoints);
    let texts: Vec<&str> = addresses.iter().map(String::as_str).collect();
    state([
        Event::NodeApplied(node(Some("a"))),
        Event::ServiceApplied(service),
        Event::SliceApplied(slice("default/web-1", "default/web", &[slice_port("http", 8080)], &texts)),
    ])
}

fn selection(state: &State) -> ServiceSelection {
    select(state, &name("default/web")).unwrap()
}

/// The selection of the only port of Service default/web.
fn only_port(state: &State) -> PortSelection {
    let ports = selection(state).ports;
    assert_eq!(ports.len(), 1);
    ports.into_iter().next().unwrap()
}

fn last_bytes(list: &[SocketAddr]) -> String {
    let bytes: Vec<String> = list
        .iter()
        .map(|address| {
            assert_eq!(address.port(), 8080);
            address.ip().to_string().rsplit('.').next().unwrap().to_owned()
        })
        .collect();
    bytes.join(" ")
}

fn lists(state: &State) -> [String; 2] {
    let port = only_port(state);
    [last_bytes(&port.cluster), last_bytes(&port.local)]
}

#[test]
fn an_unknown_service_has_no_selection() {
    assert_eq!(select(&State::new("here"), &name("default/web")), None);
}

#[test]
fn conditions_choose_among_endpoints() {
    // Each list has the Ready endpoints, or if there is none, the endpoints that serve while they terminate (C1, C3, C4, C5, C8).
    let cases: [(&str, &[&str], &str, &str); 9] = [
        ("nothing", &[], "", ""),
        ("ready ones", &["1", "2 @here", "3 @there"], "1 2 3", "2"),
        ("what is not ready is not used", &["1 @here unready", "2 @here serving"], "", ""),
        ("ready ones go first", &["1 @here", "2 @here terminating", "3 terminating"], "1", "1"),
        (
            "terminating ones serve when nothing else does",
            &["1 @here terminating", "2 terminating", "3 unready"],
            "1 2",
            "1",
        ),
        ("the dead never do", &["1 @here dead", "2 dead"], "", ""),
        ("the local list falls back alone", &["1 @there", "2 @here terminating"], "1", "2"),
        ("nothing local", &["1 @there", "2"], "1 2", ""),
        ("the cluster list falls back with the local one empty", &["1 @there terminating", "2 @here dead"], "1", ""),
    ];
    for (case, endpoints, cluster, local) in cases {
        let state = with_endpoints(exposed(CLUSTER, LOCAL), endpoints);
        assert_eq!(lists(&state), [cluster, local], "{case}");
    }
}

#[test]
fn hints_narrow_the_cluster_list() {
    // This node has the name "here" and is in zone a (C2, B9).
    let cases: [(&str, &[&str], &str); 14] = [
        ("node hints, one for us", &["1 nodes=here", "2 nodes=there"], "1"),
        ("node hints, none for us", &["1 nodes=there", "2 nodes=other"], "1 2"),
        ("one without node hint", &["1 nodes=here", "2"], "1 2"),
        ("several nodes in a hint", &["1 nodes=x,here", "2 nodes=there", "3 nodes=here"], "1 3"),
        ("zone hints, one for us", &["1 zones=a", "2 zones=b", "3 zones=b,a"], "1 3"),
        ("zone hints, none for us", &["1 zones=b", "2 zones=c"], "1 2"),
        ("one without zone hint", &["1 zones=a", "2"], "1 2"),
        ("node before zone", &["1 zones=a nodes=here", "2 zones=a nodes=there"], "1"),
        ("zone when the node hints are not for us", &["1 zones=a nodes=there", "2 zones=b nodes=there"], "1"),
        ("zone when one has no node hint", &["1 zones=a nodes=here", "2 zones=a", "3 zones=b nodes=here"], "1 2"),
        ("only ready ones are asked", &["1 zones=a", "2 zones=b", "3 unready", "4 terminating"], "1"),
        ("hints of unready ones do not count", &["1 zones=b", "2 zones=a unready", "3 zones=c"], "1 3"),
        ("the fall-back ignores hints", &["1 zones=a terminating", "2 zones=b terminating"], "1 2"),
        ("the place of the endpoint is no hint", &["1 @here zones=b", "2 @there zones=a"], "2"),
    ];
    for (case, endpoints, cluster) in cases {
        assert_eq!(lists(&with_endpoints(web(), endpoints)), [cluster, ""], "{case}");
    }
}

#[test]
fn hints_do_not_touch_the_local_list() {
    // The list of endpoints on this node ignores topology hints (C4).
    let endpoints = ["1 @here zones=b nodes=there", "2 @there zones=a nodes=here"];
    assert_eq!(lists(&with_endpoints(exposed(LOCAL, LOCAL), &endpoints)), ["2", "1"]);
}

#[test]
fn a_node_without_zone_ignores_zone_hints() {
    // While the Node has no zone label, zone hints are ignored; a new label takes effect at once (C2, C9).
    let mut state = with_endpoints(web(), &["1 zones=a", "2 zones=b"]);
    for (zone, cluster) in [(Some("a"), "1"), (None, "1 2"), (Some("b"), "2"), (Some("c"), "1 2")] {
        state.apply(Event::NodeApplied(node(zone)));
        assert_eq!(lists(&state), [cluster, ""], "{zone:?}");
    }
}

#[test]
fn node_hints_work_before_the_node_is_seen() {
    // Node hints apply before the Node object arrives, because the node's name is known from the start (C2).
    let endpoints = ["10.244.0.1 nodes=here zones=a", "10.244.0.2 nodes=there zones=a"];
    let slice = slice("default/web-1", "default/web", &[slice_port("http", 8080)], &endpoints);
    let state = state([Event::ServiceApplied(web()), Event::SliceApplied(slice)]);
    assert_eq!(lists(&state), ["1", ""]);
}

#[test]
fn local_means_the_same_node_name() {
    // Only `nodeName` decides whether an endpoint is local (B8).
    let mut nameless = State::new("");
    let slice = slice("default/web-1", "default/web", &[slice_port("http", 8080)], &["10.244.0.1 @", "10.244.0.2"]);
    nameless.apply(Event::ServiceApplied(exposed(LOCAL, LOCAL)));
    nameless.apply(Event::SliceApplied(slice));
    assert_eq!(lists(&nameless), ["1 2", ""], "the empty name names no node");

    let endpoints = ["1 @here", "2 @Here", "3 @there", "4", "5 @here.example.org"];
    assert_eq!(lists(&with_endpoints(exposed(LOCAL, LOCAL), &endpoints))[1], "1");
}

#[test]
fn only_the_lists_that_are_used_exist() {
    // The traffic policies, and whether a frontend is reachable from outside, decide which lists a service port uses (A12, A15).
    let external = |policy| Service { external_policy: policy, ..web() };
    let internal_local = Service { internal_policy: LOCAL, ..web() };
    let cases = [
        ("cluster IP only", web(), ["1 2", ""]),
        ("an external policy without external access", external(LOCAL), ["1 2", ""]),
        ("internal Local, no external access", internal_local, ["", "1"]),
        ("node port, both Cluster", exposed(CLUSTER, CLUSTER), ["1 2", ""]),
        ("node port, internal Local", exposed(LOCAL, CLUSTER), ["1 2", "1"]),
        ("node port, external Local", exposed(CLUSTER, LOCAL), ["1 2", "1"]),
        ("node port, both Local", exposed(LOCAL, LOCAL), ["1 2", "1"]),
    ];
    for (case, service, expected) in cases {
        assert_eq!(lists(&with_endpoints(service, &["1 @here", "2 @there"])), expected, "{case}");
    }
}

#[test]
fn hairpin_is_what_is_local_and_reachable() {
    // An endpoint that connects to itself is masqueraded if it is local and reachable (C7, D10).
    let internal_local = Service { internal_policy: LOCAL, ..web() };
    let cases: [(&str, Service, &[&str], &str); 5] = [
        ("local ones of the cluster list", web(), &["1 @here", "2 @there", "3 @here unready"], "1"),
        ("local ones of the local list", internal_local, &["1 @here", "2 @there"], "1"),
        ("not in the cluster list because of hints", web(), &["1 @here zones=b", "2 @there zones=a"], ""),
        (
            "in the local list in spite of hints",
            exposed(CLUSTER, LOCAL),
            &["1 @here zones=b", "2 @here zones=a"],
            "1 2",
        ),
        ("terminating in the local list", exposed(CLUSTER, LOCAL), &["1 @here terminating", "2 @there"], "1"),
    ];
    for (case, service, endpoints, hairpin) in cases {
        assert_eq!(last_bytes(&only_port(&with_endpoints(service, endpoints)).hairpin), hairpin, "{case}");
    }
}

#[test]
fn there_is_one_entry_for_each_port_and_family() {
    // Each service port, identified by name and protocol, has one entry for each family (A4, A5).
    let ports = vec![port("dns", 53), port("dns/udp", 53), port("", 80)];
    let dual = Service { ports, affinity_seconds: Some(600), ..service("default/web", &["10.96.0.1", "fd00::1"]) };
    let selection = selection(&state([Event::ServiceApplied(dual)]));
    let entries: Vec<_> =
        selection.ports.iter().map(|port| format!("{} {} {}", port.label, port.protocol, port.family)).collect();
    assert_eq!(
        entries,
        [
            "default/web:dns tcp IPv4",
            "default/web:dns tcp IPv6",
            "default/web:dns udp IPv4",
            "default/web:dns udp IPv6",
            "default/web tcp IPv4",
            "default/web tcp IPv6",
        ]
    );
    assert_eq!(selection.cluster_ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.96.0.1", "fd00::1"]);
    // Every port has the Service's session affinity time-out (A11).
    assert!(selection.ports.iter().all(|port| port.affinity_seconds == Some(600)));
}

#[test]
fn a_family_without_cluster_ip_does_not_exist() {
    // A Service does not exist in a family in which it has no cluster IP (A4).
    let six = Service { cluster_ips: service("default/web", &["fd00::1"]).cluster_ips, ..exposed(CLUSTER, CLUSTER) };
    let six = Service { external_ips: vec!["192.0.2.1".parse().unwrap()], ..six };
    let port = only_port(&with_endpoints(six, &["1"]));
    assert_eq!((port.family, port.cluster), (Family::V6, vec![]));
    assert!(port.frontends.iter().all(|frontend| frontend.frontend.family() == Family::V6));
    assert_eq!(port.frontends.len(), 2);
}

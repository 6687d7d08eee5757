//! Helpers that build model objects from short texts, for the unit tests of several crates.

use ipnet::IpNet;

use super::{
    ClusterIps, Conditions, Endpoint, EndpointSlice, Event, Family, Hints, Node, ObjectName, Protocol, Service,
    ServicePort, SlicePort, State, TrafficPolicy, TriggerTime, Weights, Zone,
};

/// The node on which the tests run.
pub const NODE: &str = "here";

/// Parses a name that is written as `namespace/name`.
pub fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

/// A Service without ports, created at second 0.
pub fn service(service_name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        name: name(service_name),
        created: 0,
        cluster_ips: ClusterIps {
            v4: cluster_ips.iter().find_map(|ip| ip.parse().ok()),
            v6: cluster_ips.iter().find_map(|ip| ip.parse().ok()),
        },
        external_ips: Vec::new(),
        ignores_external_ips: false,
        asks_for_hints: false,
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        scheduler: None,
        close_connections: None,
        keeps_unready_udp_flows: false,
        weights: Weights::default(),
        health_check_node_port: None,
        ports: Vec::new(),
    }
}

/// A service port without node port. Its protocol is TCP unless the name is written as `name/protocol`.
pub fn port(name: &str, number: u16) -> ServicePort {
    let (name, protocol) = named_protocol(name);
    ServicePort { name: name.into(), protocol, port: number, node_port: None }
}

/// A slice port, written like [`port`].
pub fn slice_port(name: &str, number: u16) -> SlicePort {
    let (name, protocol) = named_protocol(name);
    SlicePort { name: name.into(), protocol, port: number }
}

fn named_protocol(text: &str) -> (&str, Protocol) {
    match text.split_once('/') {
        None | Some((_, "tcp")) => (text.trim_end_matches("/tcp"), Protocol::Tcp),
        Some((name, "udp")) => (name, Protocol::Udp),
        Some((name, "sctp")) => (name, Protocol::Sctp),
        Some(_) => panic!("no such protocol in {text}"),
    }
}

/// A slice of the family of its first endpoint (IPv4 when it has none), with endpoints written like [`endpoint`].
pub fn slice(slice_name: &str, service: &str, ports: &[SlicePort], endpoints: &[&str]) -> EndpointSlice {
    let endpoints: Vec<Endpoint> = endpoints.iter().map(|text| endpoint(text)).collect();
    EndpointSlice {
        name: name(slice_name),
        service: name(service),
        family: endpoints.first().map_or(Family::V4, |endpoint| Family::of(endpoint.address)),
        ports: ports.to_vec(),
        endpoints,
        weight: 1,
        trigger: TriggerTime::default(),
    }
}

/// An endpoint, ready and on no node unless the words after the address say otherwise.
///
/// `@node` and `zone=a`: where it runs; `unready`, `serving` (but neither ready nor terminating), `terminating` (and serving), `dead` (terminating, not
/// serving), `published` (terminating, but with condition ready); `zones=a,b` and `nodes=x,y`: its hints.
pub fn endpoint(text: &str) -> Endpoint {
    let mut words = text.split(' ');
    let address = words.next().unwrap().parse().unwrap();
    let mut endpoint = Endpoint { address, conditions: Conditions::READY, node: None, zone: None, hints: None };
    for word in words {
        if let Some(node) = word.strip_prefix('@') {
            endpoint.node = Some(node.into());
        } else if let Some(zone) = word.strip_prefix("zone=") {
            endpoint.zone = Zone::of(zone);
        } else if let Some((kind, names)) = word.split_once('=') {
            let hints = endpoint.hints.get_or_insert_with(|| Box::new(Hints::default()));
            let list = if kind == "zones" { &mut hints.zones } else { &mut hints.nodes };
            list.extend(names.split(',').map(Into::into));
        } else {
            endpoint.conditions = conditions(word);
        }
    }
    endpoint
}

fn conditions(word: &str) -> Conditions {
    let (ready, serving, terminating) = match word {
        "unready" => (false, false, false),
        "serving" => (false, true, false),
        "terminating" => (false, true, true),
        "dead" => (false, false, true),
        "published" => (true, true, true),
        other => panic!("no such condition: {other}"),
    };
    Conditions { ready, serving, terminating }
}

/// This node, in a zone or in none.
pub fn node(zone: Option<&str>) -> Node {
    Node { name: NODE.into(), zone: zone.map(Into::into), eligible: true, ..Node::default() }
}

/// Parses ranges such as `10.96.0.0/16`.
pub fn ranges(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The state of node [`NODE`] after these events. Nothing in it is dirty any more: `State::take_dirty` was called.
pub fn state(events: impl IntoIterator<Item = Event>) -> State {
    let mut state = State::new(NODE);
    for event in events {
        state.apply(event);
    }
    state.take_dirty();
    state
}

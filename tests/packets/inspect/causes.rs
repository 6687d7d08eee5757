//! Why a Service has the endpoints that it has: each state is made with a running proxy, a packet is sent, and what `services NAME` says is
//! what the packet met. The outputs are in `tests/data/inspect/causes.txt`; `BLESS=1 cargo test --test packets inspect::causes` writes them.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::states::said;
use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::objects::{node, service, service_cidr, slice};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const V4: Family = Family::V4;

/// A state of Service shop/web, and what becomes of a packet.
struct Case {
    /// What the state is, as the heading of the output.
    name: &'static str,
    /// Fields of the Service's spec.
    spec: Value,
    /// The port of the slice.
    port: &'static str,
    /// The endpoints' numbers, with what is set in each.
    endpoints: Vec<(u8, Value)>,
    /// The endpoints that the cluster IP leads to for a pod, and the node port for a client outside.
    reached: [Met; 2],
    /// `services[].cause.hints` of the cluster IP.
    hints: &'static str,
}

enum Met {
    Endpoints(Vec<u8>),
    Nothing(Outcome),
}

use Met::{Endpoints, Nothing};

fn ready() -> Value {
    json!({})
}

fn unready() -> Value {
    json!({ "conditions": { "ready": false, "serving": false, "terminating": false } })
}

fn terminating() -> Value {
    json!({ "conditions": { "ready": false, "serving": true, "terminating": true } })
}

fn for_zone(zone: &str) -> Value {
    json!({ "hints": { "forZones": [{ "name": zone }] } })
}

fn refused() -> [Met; 2] {
    [Nothing(Outcome::Refused), Nothing(Outcome::Refused)]
}

fn cases() -> Vec<Case> {
    let case =
        |name, endpoints, reached, hints| Case { name, spec: json!({}), port: "http", endpoints, reached, hints };
    let local = json!({ "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local" });
    vec![
        case("no pods", vec![], refused(), "noneReady"),
        case("no pod is ready", vec![(0, unready()), (1, unready()), (2, unready())], refused(), "noneReady"),
        Case { port: "web", ..case("no pod has the port", vec![(0, ready()), (2, ready())], refused(), "noneReady") },
        Case {
            spec: local.clone(),
            ..case(
                "policy Local, no pod on this node",
                vec![(2, ready()), (3, ready())],
                [Nothing(Outcome::Dropped), Nothing(Outcome::Dropped)],
                "policyLocal",
            )
        },
        Case {
            spec: local,
            ..case(
                "policy Local, the pod on this node terminates",
                vec![(0, terminating()), (2, ready())],
                [Endpoints(vec![0]), Endpoints(vec![0])],
                "policyLocal",
            )
        },
        case(
            "all pods terminate",
            vec![(0, terminating()), (2, terminating()), (3, unready())],
            [Endpoints(vec![0, 2]), Endpoints(vec![0, 2])],
            "noneReady",
        ),
        case(
            "hints for this zone",
            vec![(0, for_zone("a")), (1, for_zone("b")), (2, for_zone("a"))],
            [Endpoints(vec![0, 2]), Endpoints(vec![0, 2])],
            "usedForZone",
        ),
        case(
            "a pod without hint",
            vec![(0, for_zone("a")), (1, ready()), (2, for_zone("b"))],
            [Endpoints(vec![0, 1, 2]), Endpoints(vec![0, 1, 2])],
            "missing",
        ),
        case(
            "hints for other zones",
            vec![(0, for_zone("b")), (2, for_zone("c"))],
            [Endpoints(vec![0, 2]), Endpoints(vec![0, 2])],
            "notHere",
        ),
        Case {
            spec: json!({ "trafficDistribution": "PreferSameZone" }),
            ..case(
                "no hints, though the Service asks for them",
                vec![(0, ready()), (2, ready())],
                [Endpoints(vec![0, 2]), Endpoints(vec![0, 2])],
                "none",
            )
        },
        case("ready pods", vec![(0, ready()), (2, ready())], [Endpoints(vec![0, 2]), Endpoints(vec![0, 2])], "none"),
    ]
}

/// The objects of a case: the Service and its slice.
fn objects(case: &Case) -> [Value; 2] {
    let web = service("shop", "web").cluster_ip(V4.cluster_ip(1)).port("http", Proto::Tcp, 80).node_port(30080);
    let fields = case.spec.as_object().expect("an object").iter();
    let web = fields.fold(web, |web, (field, value)| web.spec(field, value.clone())).json();
    let addresses: Vec<_> = case.endpoints.iter().map(|(n, _)| V4.endpoint(*n)).collect();
    let mut slice = slice("shop", "web", "web-1", &addresses, &[(case.port, Proto::Tcp, 8080)]);
    for (index, (_, set)) in case.endpoints.iter().enumerate() {
        for (field, value) in set.as_object().expect("an object") {
            slice["endpoints"][index][field] = value.clone();
        }
    }
    [web, slice]
}

fn assert_met(from: &Namespace, flow: Flow, met: &Met, source: Source) {
    match met {
        Endpoints(which) => assert_reaches(from, flow, &endpoints(V4, which, 8080), source, FEW),
        Nothing(outcome) => assert_outcome(from, flow, outcome),
    }
}

/// The document says of the cluster IP what the packets met: which endpoints, whether hints are used, and whether endpoints only serve because
/// the others terminate.
fn assert_document(node: &Namespace, case: &Case) {
    let (code, text) = said(node, "services shop/web -o json");
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(code, 0, "{text}");
    let frontend = &document["services"][0];
    assert_eq!(frontend["cause"]["hints"], case.hints, "{}: {frontend:#}", case.name);
    let listed = frontend["endpoints"].as_array().expect("a list");
    let met = match &case.reached[0] {
        Endpoints(which) => which.len(),
        Nothing(_) => 0,
    };
    assert_eq!(listed.len(), met, "{frontend:#}");
    let cause = &frontend["cause"];
    let list = if case.hints == "policyLocal" { "local" } else { "cluster" };
    assert_eq!(cause[list]["count"], met, "{frontend:#}");
    let terminates = |n: u8| case.endpoints.iter().any(|(number, set)| *number == n && *set == terminating());
    for endpoint in listed {
        let n = (0..4).find(|n| endpoint["address"] == json!(V4.endpoint(*n))).expect("one of the plan");
        assert_eq!(endpoint["terminating"], terminates(n), "{}: {endpoint}", case.name);
    }
}

// What `services NAME` says of the causes is what packets meet (Q12).
test_in_each_layout!(the_cause_of_each_state_is_what_a_packet_meets);
fn the_cause_of_each_state_is_what_a_packet_meets(layout: Layout) {
    let world = World::new();
    let mut here = node();
    here["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("a");
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &[here, service_cidr()]);
    let mut found = String::new();
    for case in cases() {
        proxy.apply(&objects(&case));
        let inside = Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(1), 80);
        let outside = Flow::new(Proto::Tcp, V4.client(), V4.node(), 30080);
        assert_met(&world.shell, inside, &case.reached[0], Source::Kept);
        let is_local = case.hints == "policyLocal";
        assert_met(&world.client, outside, &case.reached[1], if is_local { Source::Kept } else { Source::Masqueraded });
        let (code, text) = said(&world.node, "services shop/web");
        assert_eq!(code, 0, "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        writeln!(found, "# {}\n{text}", case.name).expect("a String takes all");
        assert_document(&world.node, &case);
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/inspect/causes.txt");
    if std::env::var_os("BLESS").is_some() && layout == Layout::Maps {
        fs::write(&path, &found).expect("the expected text can be written");
    }
    assert_eq!(found, fs::read_to_string(&path).unwrap_or_default());
    // Only one Service is asked about, and a proxy that is gone is named in one line.
    assert!(!said(&world.node, "services").1.contains("ready pod"), "all Services");
    proxy.kill();
    let (code, text) = said(&world.node, "services shop/web");
    let note = "Causes need the running proxy: none at 127.0.0.1:10249 (--metrics-bind-address)";
    assert!(code == 0 && text.lines().last() == Some(note), "{text}");
    let document = said(&world.node, "services shop/web -o json").1;
    assert!(document.contains("\"cause\": null") && document.contains("\"terminating\": null"), "{document}");
}

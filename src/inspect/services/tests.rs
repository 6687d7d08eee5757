//! Tests of which frontends a name selects, and of how they are printed.

use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::output::Format;
use crate::tables::{Affinity, EndpointView, Kind, Policy};
use rules::model::{Family, Protocol};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(words: &[&str]) -> Args {
    Line::parse_from(std::iter::once(&"services").chain(words)).args
}

fn frontend(service: &str, address: Option<&str>, port: u16, kind: Kind, endpoints: &[(&str, bool)]) -> FrontendView {
    let destination =
        address.map_or(Destination::NodePort(Family::V4), |address| Destination::Address(address.parse().unwrap()));
    let endpoint = |(address, local): &(&str, bool)| EndpointView {
        address: address.parse().unwrap(),
        local: *local,
        counted: None,
    };
    FrontendView {
        service: Some(service.into()),
        frontend: Frontend { destination, protocol: Protocol::Tcp, port },
        kind: Some(kind),
        state: Some(if endpoints.is_empty() { State::Refused } else { State::Served }),
        policy: Some(Policy::Cluster),
        affinity: None,
        counted: None,
        shares_counters: false,
        sources: None,
        endpoints: endpoints.iter().map(endpoint).collect(),
    }
}

fn view() -> View {
    let endpoints = [("10.244.1.10:8080", true), ("10.244.2.10:8080", false)];
    let mut web = frontend("shop/web:http", Some("10.96.0.10"), 80, Kind::ClusterIP, &endpoints);
    web.affinity = Some(Affinity { seconds: Some(10_800), clients: 3 });
    let mut balancer = frontend("shop/web:http", Some("198.51.100.1"), 80, Kind::LoadBalancer, &endpoints);
    let ranges = ["10.0.0.0/8", "192.0.2.0/24", "203.0.113.0/24"];
    balancer.sources = Some(ranges.map(|range| range.parse().unwrap()).to_vec());
    let node_port = frontend("shop/web:http", None, 30080, Kind::NodePort, &endpoints);
    let idle = frontend("shop/idle", Some("10.96.0.11"), 80, Kind::ClusterIP, &[]);
    View { frontends: vec![idle, web, balancer, node_port], ..View::default() }
}

fn listing(words: &[&str]) -> Result<Listing> {
    Listing::of(view(), None, &args(words).names)
}

fn printed(words: &[&str]) -> String {
    let mut bytes = Vec::new();
    let args = args(words);
    let listing = Listing::of(view(), None, &args.names).unwrap();
    print::print(&args, &listing, None, &listing.positions(), &mut Output::to(&mut bytes, false)).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_name_selects_the_frontends_that_have_it() {
    let count = |word: &str| listing(&[word]).unwrap().view.frontends.len();
    assert_eq!(listing(&[]).unwrap().view.frontends.len(), 4);
    assert_eq!(count("shop/web"), 3);
    assert_eq!(count("shop/web:http"), 3);
    assert_eq!(count("10.96.0.10"), 1);
    assert_eq!(count("10.96.0.10:80/tcp"), 1);
    assert_eq!(count("*:30080"), 1);
    assert_eq!(count("10.244.2.10"), 3);
    assert_eq!(listing(&["shop/idle", "10.96.0.10"]).unwrap().view.frontends.len(), 2);
}

#[test]
fn a_name_that_nothing_has_is_an_error_with_near_names() {
    let error = |word: &str| listing(&[word]).map(|_| ()).unwrap_err().to_string();
    assert!(error("shop/wbe").ends_with("did you mean shop/web:http?"), "{}", error("shop/wbe"));
    assert!(error("shop/web:https").contains("shop/web:http"), "{}", error("shop/web:https"));
    assert!(error("10.96.0.10:81").contains("10.96.0.10:80/TCP"), "{}", error("10.96.0.10:81"));
    assert!(error("10.96.0.10:80/udp").contains("no Service has the frontend 10.96.0.10:80/UDP"));
    assert!(error("203.0.113.1").starts_with("no frontend and no endpoint"));
}

#[test]
fn the_table_has_a_line_a_frontend_and_one_service_also_its_endpoints() {
    let all = "\
SERVICE        FRONT                KIND          STATE    POLICY   AFFINITY           SOURCES                           ENDPOINTS
shop/idle      10.96.0.11:80/TCP    ClusterIP     refused  Cluster  -                  any                               none
shop/web:http  10.96.0.10:80/TCP    ClusterIP     served   Cluster  10800s, 3 clients  any                               2 (1 local)
shop/web:http  198.51.100.1:80/TCP  LoadBalancer  served   Cluster  -                  10.0.0.0/8, 192.0.2.0/24, 1 more  2 (1 local)
shop/web:http  *:30080/TCP          NodePort      served   Cluster  -                  any                               2 (1 local)
";
    assert_eq!(printed(&[]), all);
    let one = printed(&["198.51.100.1:80"]);
    let lines: Vec<&str> = one.lines().map(|line| line.rsplit("  ").next().unwrap()).collect();
    assert_eq!(lines, ["ENDPOINTS", "2 (1 local)", "10.244.1.10:8080 local", "10.244.2.10:8080"]);
    assert!(one.contains("203.0.113.0/24"), "{one}");
}

#[test]
fn json_has_the_documented_fields_in_any_case() {
    let document: Value = serde_json::from_str(&printed(&["-o", "json"])).unwrap();
    let services = document["services"].as_array().unwrap();
    assert_eq!(
        services[1],
        json!({
            "service": "shop/web:http",
            "front": {"address": "10.96.0.10", "port": 80, "protocol": "TCP", "kind": "ClusterIP", "family": "IPv4"},
            "state": "served",
            "policy": "Cluster",
            "affinitySeconds": 10800,
            "affinityClients": 3,
            "restricted": false,
            "sourceRanges": [],
            "endpoints": [
                {"address": "10.244.1.10", "port": 8080, "local": true},
                {"address": "10.244.2.10", "port": 8080, "local": false},
            ],
        })
    );
    assert_eq!(services[3]["front"]["address"], Value::Null);
    assert_eq!(services[2]["sourceRanges"], json!(["10.0.0.0/8", "192.0.2.0/24", "203.0.113.0/24"]));
    assert_eq!(services[0]["affinitySeconds"], Value::Null);
    assert_eq!((&document["quarantinedServices"], &document["unreadableObjects"]), (&Value::Null, &json!(0)));
    let yaml: Value = serde_saphyr::from_str(&printed(&["-o", "yaml"])).unwrap();
    assert_eq!(yaml, document);
}

#[test]
fn quarantined_services_are_told_apart_and_end_with_1() {
    let left_out = LeftOut { quarantined_services: vec!["shop/web".to_owned()], oversized_services: Vec::new() };
    let listing = Listing::of(view(), Some(left_out), &[]).unwrap();
    let states: Vec<_> = listing.view.frontends.iter().map(|frontend| frontend.state).collect();
    let quarantined = Some(State::Quarantined);
    assert_eq!(states, [Some(State::Refused), quarantined, quarantined, quarantined]);
    assert_eq!(listing.outcome(), CommandOutcome::Found);
    let mut bytes = Vec::new();
    print::print(&args(&[]), &listing, None, &listing.positions(), &mut Output::to(&mut bytes, false)).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.ends_with("Not as they should be: shop/web (the kernel refused them; the proxy's log says why)\n"),
        "{text}"
    );
    assert_eq!(Listing::of(view(), None, &[]).unwrap().outcome(), CommandOutcome::Fine);
}

#[test]
fn a_frontend_that_leads_elsewhere_ends_with_1() {
    let mut view = view();
    view.frontends[0].state = None;
    assert_eq!(Listing::of(view, None, &[]).unwrap().outcome(), CommandOutcome::Found);
}

#[test]
fn the_formats_are_table_wide_json_and_yaml() {
    assert_eq!(args(&[]).output.format, Format::Table);
    assert_eq!(args(&["-o", "wide"]).output.format, Format::Wide);
    assert!(Line::try_parse_from(["services", "-o", "xml"]).is_err());
}

//! Tests of which frontends a name selects, and of how they are printed.

use clap::Parser;
use serde_json::{Value, json};

use super::testing::frontend;
use super::*;
use crate::output::Format;
use crate::tables::{Affinity, Kind};
use rules::model::Family;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(words: &[&str]) -> Args {
    Line::parse_from(std::iter::once(&"services").chain(words)).args
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
    Listing::of(view(), None, &args(words))
}

fn printed(words: &[&str]) -> String {
    let mut bytes = Vec::new();
    let args = args(words);
    let listing = Listing::of(view(), None, &args).unwrap();
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

// Kubernetes allows names of ports that have digits only, so a number stands for both.
#[test]
fn a_number_behind_a_service_is_the_name_or_the_number_of_a_port() {
    let mut view = view();
    view.frontends.push(frontend("shop/web:443", Some("10.96.0.10"), 8443, Kind::ClusterIP, &[]));
    let found = |word: &str| {
        let listing = Listing::of(view.clone(), None, &args(&[word]))?;
        Ok::<_, anyhow::Error>(listing.view.frontends.iter().map(|view| view.frontend.port).collect::<Vec<_>>())
    };
    assert_eq!(found("shop/web:80").unwrap(), [80, 80, 30080], "the node port of the port too");
    assert_eq!((found("shop/web:443").unwrap(), found("shop/web:8443").unwrap()), (vec![8443], vec![8443]));
    assert_eq!(found("shop/idle:80").unwrap(), [80], "a port without a name");
    for word in ["shop/web:30080", "shop/web:81", "shop/api:80"] {
        let error = found(word).unwrap_err().to_string();
        assert!(error.starts_with(&format!("no Service {word} in the tables")), "{error}");
    }
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
SERVICE        FRONTEND             KIND          STATE    AFFINITY           SOURCES                           ENDPOINTS
shop/idle      10.96.0.11:80/TCP    ClusterIP     refused  -                  any                               none
shop/web:http  10.96.0.10:80/TCP    ClusterIP     served   10800s, 3 clients  any                               2 (1 local)
shop/web:http  198.51.100.1:80/TCP  LoadBalancer  served   -                  10.0.0.0/8, 192.0.2.0/24, 1 more  2 (1 local)
shop/web:http  *:30080/TCP          NodePort      served   -                  any                               2 (1 local)
";
    assert_eq!(printed(&[]), all);
    let one = "\
SERVICE             FRONTEND           KIND       STATE   AFFINITY           ENDPOINTS
shop/web:http       10.96.0.10:80/TCP  ClusterIP  served  10800s, 3 clients  2 (1 local)
  10.244.1.10:8080  local
  10.244.2.10:8080
";
    assert_eq!(printed(&["10.96.0.10:80"]), one);
    assert!(printed(&["198.51.100.1:80"]).contains("203.0.113.0/24"), "one Service has all its ranges");
    let node_port = printed(&["30080"]);
    assert!(node_port.lines().all(|line| line.len() <= 80), "{node_port}");
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
                {"address": "10.244.1.10", "port": 8080, "local": true, "terminating": null},
                {"address": "10.244.2.10", "port": 8080, "local": false, "terminating": null},
            ],
            "cause": null,
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
fn a_proxy_that_is_not_there_is_one_line_with_the_way_to_name_another() {
    // The kernel chooses a UDP port; it is unlikely that a program listens on the same port for TCP.
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let causes = Causes::ask(address, &view().frontends);
    assert_eq!(causes.note, Some(format!("Causes need the running proxy: none at {address} (--metrics-bind-address)")));
    assert_eq!(causes.of(&view().frontends[0]), None);
    // A name that the tables cut is not asked about.
    let cut = [frontend("shop/a-very-long-na...", Some("10.96.0.10"), 80, Kind::ClusterIP, &[])];
    assert_eq!(Causes::ask(address, &cut).note, None);
}

#[test]
fn what_a_silent_proxy_left_out_is_not_known() {
    let silent = Problem::of_node(ProblemKind::ProxySilent, "No kube-proxy answers".to_owned());
    for (reported, expected) in
        [(vec![silent], Value::Null), (Vec::new(), json!([])), (problems(), json!(["shop/web"]))]
    {
        let args = args(&["-o", "json"]);
        let listing = Listing::of(view(), Some(reported), &args).unwrap();
        let mut bytes = Vec::new();
        print::print(&args, &listing, None, &listing.positions(), &mut Output::to(&mut bytes, false)).unwrap();
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(document["quarantinedServices"], expected);
        assert_eq!(document["oversizedServices"].is_null(), expected.is_null());
    }
}

/// What a running proxy reports of three Services, and of the API server.
fn problems() -> Vec<Problem> {
    let of_service = |kind, service: &str, address: &str, text: &str| Problem {
        kind,
        service: Some(service.to_owned()),
        addresses: vec![address.parse().unwrap()],
        ports: if service == "shop/big" { Vec::new() } else { vec!["80/TCP".to_owned()] },
        node_ports: Vec::new(),
        text: text.to_owned(),
    };
    vec![
        of_service(
            ProblemKind::Quarantined,
            "shop/web",
            "10.96.0.10",
            "shop/web is left out, because the kernel refuses it",
        ),
        of_service(ProblemKind::Oversized, "shop/big", "10.96.0.90", "shop/big is left out: 3,000,000 elements"),
        of_service(
            ProblemKind::LostFrontend,
            "shop/collide",
            "10.96.0.10",
            "shop/collide does not get 10.96.0.10:80/TCP",
        ),
        Problem::of_node(ProblemKind::ApiServerLost, "The API server has not been heard".to_owned()),
    ]
}

#[test]
fn problems_that_the_proxy_reports_are_listed_for_what_was_asked_for_and_end_with_1() {
    let listed = |words: &[&str]| {
        let args = args(words);
        let listing = Listing::of(view(), Some(problems()), &args).unwrap();
        assert_eq!(listing.outcome(), CommandOutcome::Found);
        let mut bytes = Vec::new();
        print::print(&args, &listing, None, &listing.positions(), &mut Output::to(&mut bytes, false)).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let is_problem = |line: &&str| line.starts_with("shop/") && !line.contains("  ") || line.starts_with("The API");
        text.lines().filter(is_problem).map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["shop/web", "shop/big", "shop/collide", "The"]);
    assert_eq!(listed(&["shop/big"]), ["shop/big", "The"]);
    assert_eq!(listed(&["10.96.0.90"]), ["shop/big", "The"]);
    assert_eq!(listed(&["10.96.0.90:1000"]), ["shop/big", "The"]);
    assert_eq!(listed(&["shop/collide"]), ["shop/collide", "The"]);
    assert_eq!(listed(&["10.96.0.10"]), ["shop/web", "shop/collide", "The"]);
    assert_eq!(listed(&["10.96.0.10:80/tcp"]), ["shop/web", "shop/collide", "The"]);
}

#[test]
fn a_problem_is_about_its_ports_and_protocols_only() {
    let is_at = |problem: &Problem, name: &str| concerns(problem, &name.parse().unwrap());
    let [web, big, ..] = &problems()[..] else { panic!("there are four") };
    let some = Problem { ports: vec!["*/UDP".to_owned()], node_ports: vec!["30080/TCP".to_owned()], ..web.clone() };
    for (problem, name, expected) in [
        (web, "10.96.0.10:80", true),
        (web, "10.96.0.10:80/udp", false),
        (web, "10.96.0.10:81", false),
        (big, "10.96.0.90:53/udp", true),
        (&some, "10.96.0.10:1/udp", true),
        (&some, "10.96.0.10:1/tcp", false),
        (&some, "30080", true),
        (&some, "*:30080/udp", false),
        (&some, "30081", false),
    ] {
        assert_eq!(is_at(problem, name), expected, "{name}: {problem:?}");
    }
}

#[test]
fn frontends_of_a_quarantined_service_have_that_state() {
    let listing = Listing::of(view(), Some(problems()), &args(&[])).unwrap();
    let states: Vec<_> = listing.view.frontends.iter().map(|frontend| frontend.state).collect();
    let quarantined = Some(State::Quarantined);
    assert_eq!(states, [Some(State::Refused), quarantined, quarantined, quarantined]);
    assert_eq!(Listing::of(view(), None, &args(&[])).unwrap().outcome(), CommandOutcome::Fine);
}

// A name that the tables cut counts as the name of a Service if that Service has the frontend.
#[test]
fn a_quarantined_service_whose_name_the_tables_cut_has_that_state() {
    let cut = |address| frontend("shop/a-very-lo...", Some(address), 80, Kind::ClusterIP, &[]);
    let view = View { frontends: vec![cut("10.96.0.10"), cut("10.96.0.11")], ..View::default() };
    let quarantined = Problem { service: Some("shop/a-very-long-name".to_owned()), ..problems().remove(0) };
    let listing = Listing::of(view, Some(vec![quarantined]), &args(&["shop/a-very-long-name"])).unwrap();
    let is = |frontend: &FrontendView| frontend.state == Some(State::Quarantined);
    assert_eq!(listing.view.frontends.iter().map(is).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_dormant_table_is_listed_without_a_running_proxy() {
    let view = View { dormant: vec![Family::V4], ..view() };
    let listing = Listing::of(view, None, &args(&["shop/idle"])).unwrap();
    assert_eq!((listing.problems[0].kind, listing.outcome()), (ProblemKind::TableDormant, CommandOutcome::Found));
}

#[test]
fn a_table_that_another_program_owns_is_named_once_as_this_command_sees_it() {
    let view = View { owned: vec![(Family::V6, "process 7: nft -i".to_owned())], ..view() };
    let reported = vec![Problem::owned(Family::V6, "netlink port 7")];
    let listing = Listing::of(view, Some(reported), &args(&["shop/idle"])).unwrap();
    let [problem] = &listing.problems[..] else { panic!("{:?}", listing.problems) };
    assert!(problem.text.contains("(process 7: nft -i)"), "{problem:?}");
    assert_eq!((problem.kind, listing.outcome()), (ProblemKind::TableOwned, CommandOutcome::Found));
}

#[test]
fn a_namespace_and_a_state_select_frontends() {
    let count = |words: &[&str]| listing(words).unwrap().view.frontends.len();
    assert_eq!((count(&["shop"]), count(&["-n", "shop"])), (4, 4));
    assert_eq!(count(&["-n", "shop", "idle"]), 1);
    assert_eq!((count(&["--not-served"]), count(&["--not-served", "shop/web"])), (1, 0));
    assert_eq!(count(&["30080"]), 1);
    assert_eq!(printed(&["--not-served", "shop/web"]), "Every frontend is served.\n");
    for words in [&["shpo"][..], &["-n", "shpo"], &["-n", "shpo", "--not-served"]] {
        let error = listing(words).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("no namespace shpo in the tables"), "{error}");
    }
}

#[test]
fn a_frontend_that_leads_elsewhere_ends_with_1() {
    let mut view = view();
    view.frontends[0].state = None;
    assert_eq!(Listing::of(view, None, &args(&[])).unwrap().outcome(), CommandOutcome::Found);
}

#[test]
fn the_formats_are_table_wide_json_and_yaml() {
    assert_eq!(args(&[]).output.format, Format::Table);
    assert_eq!(args(&["-o", "wide"]).output.format, Format::Wide);
    assert!(Line::try_parse_from(["services", "-o", "xml"]).is_err());
}

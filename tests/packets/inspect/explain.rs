//! `kube-proxy explain`: what it tells of packets, beside what happens to them. The conformance cases are compared with it, too.
//!
//! `BLESS=1 cargo test --test packets explain` writes `tests/data/inspect/explain` again; look at the difference then.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{command, outcome};
use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe_from_port, probe_many};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

/// Services of each kind: served, Local, with source ranges, with affinity, without endpoints.
fn cluster() -> Vec<Value> {
    let v4 = Family::V4;
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let ranges = json!(["198.51.100.0/24", "2001:db8:51::/64"]);
    let lb = service("shop", "lb").cluster_ips(2).port("http", Proto::Tcp, 80).load_balancer_ip(v4.load_balancer_ip(2));
    let api =
        service("shop", "api").cluster_ips(3).port("http", Proto::Tcp, 80).load_balancer_ip(v4.load_balancer_ip(3));
    let sticky = service("shop", "cart").cluster_ips(4).port("http", Proto::Tcp, 80).client_ip_affinity(3600);
    let here = service("shop", "log")
        .cluster_ips(5)
        .port("http", Proto::Tcp, 80)
        .spec("internalTrafficPolicy", json!("Local"));
    let empty = service("shop", "old").cluster_ips(6).port("http", Proto::Tcp, 80).external_ip(v4.external_ip(6));
    let mut objects = vec![
        node(),
        service_cidr(),
        web.external_ip(v4.external_ip(1)).json(),
        lb.spec("loadBalancerSourceRanges", ranges).json(),
        api.spec("externalTrafficPolicy", json!("Local")).json(),
        sticky.json(),
        here.json(),
        empty.json(),
    ];
    for (name, which) in [("web", &[0, 1, 2][..]), ("lb", &[0]), ("api", &[2]), ("cart", &[0, 2]), ("log", &[3])] {
        objects.extend(slices("shop", name, which, &PORTS));
    }
    objects
}

fn explain(node: &Namespace, args: &[&str]) -> (Option<i32>, String, String) {
    outcome(&mut command(node, &[&["explain"], args].concat()))
}

fn json_of(node: &Namespace, from: &str, to: &str) -> Value {
    let (_, text, errors) = explain(node, &["--from", from, "--to", to, "-o", "json"]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{errors}"))
}

/// Questions of the expected texts, each with its exit code.
const QUESTIONS: [(&str, i32); 14] = [
    ("--from 203.0.113.7 --to 192.0.2.2:30080", 0),
    ("--from 10.244.1.99 --to 10.96.0.1:80", 0),
    ("--from 10.244.1.10 --to 10.96.0.1:80 -o wide", 0),
    ("--from 192.0.2.2 --to 10.96.0.1:80", 0),
    ("--from 203.0.113.7 --to 192.0.2.130:80 -o wide", 1),
    ("--from 203.0.113.7 --to 192.0.2.131:80", 1),
    ("--from 10.244.1.99 --to 192.0.2.131:80", 0),
    ("--from 10.244.1.99 --to 10.96.0.4:80", 0),
    ("--from 10.244.1.99 --to 10.96.0.5:80", 1),
    ("--from 10.244.1.99 --to 10.96.0.6:80", 1),
    ("--from 10.244.1.99 --to 10.96.0.1:81/udp", 1),
    ("--from 10.244.1.99 --to 10.96.0.1/icmp", 1),
    ("--from 10.244.1.99 --to 10.96.0.99:80", 1),
    ("--from 10.244.1.99 --to 203.0.113.7:443", 0),
];

test_in_each_layout!(packets_are_explained_in_words);
fn packets_are_explained_in_words(layout: Layout) {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    let mut text = String::new();
    for (question, code) in QUESTIONS {
        let (found, answer, errors) = explain(&world.node, &question.split(' ').collect::<Vec<_>>());
        assert_eq!((found, errors.as_str()), (Some(code), ""), "{question}: {answer}");
        text += &format!("$ kube-proxy explain {question}\n{answer}\n");
        assert_is_same_by_manifests(&world.node, &proxy, question, code);
    }
    let file = format!("tests/data/inspect/explain/{}.txt", layout.name());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be made");
        fs::write(&path, &text).expect("the expected text can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, expected);
}

/// What is explained by the manifests alone, without a capability and without the node, is what the node's tables lead to (Q1).
fn assert_is_same_by_manifests(node: &Namespace, proxy: &Proxy, question: &str, code: i32) {
    let question: Vec<&str> = question.split(' ').filter(|word| !["-o", "wide"].contains(word)).collect();
    let by_kernel: Value = {
        let (_, text, errors) = explain(node, &[&question[..], &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{errors}"))
    };
    let (manifests, config) = (proxy.manifests().path().to_owned(), proxy.config_path());
    // Without capabilities and in a network namespace without anything, nothing of a kernel's tables can be seen.
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(crate::support::proxy::binary()).arg("explain").args(&question).args(["-o", "json"]);
    let (found, text, errors) = outcome(command.arg("--config").arg(&config).arg("--manifests").arg(&manifests));
    assert_eq!(found, Some(code), "{question:?}: {text}{errors}");
    let by_manifests: Value = serde_json::from_str(&text).expect("JSON");
    for field in ["verdict", "service", "endpoints", "masquerade", "reason"] {
        assert_eq!(by_manifests[field], by_kernel[field], "{field} of {question:?}: {by_manifests:#}");
    }
}

#[test]
fn the_pages_show_these_words() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = ["README.md", "deploy/TROUBLESHOOTING.md"].map(|page| fs::read_to_string(project.join(page)));
    let page = pages.map(|page| page.expect("the page is there")).concat();
    let words = fs::read_to_string(project.join("tests/data/inspect/explain/maps.txt")).expect("the words are there");
    let mut shown = 0;
    for example in page.split("\n    $ kube-proxy explain ").skip(1) {
        let lines =
            example.split('\n').take_while(|line| line.is_empty() || line.starts_with("    ") || is_question(line));
        let text: Vec<&str> = lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
        let text = format!("$ kube-proxy explain {}", text.join("\n").trim_end());
        assert!(words.contains(&text), "not in the expected words:\n{text}");
        shown += 1;
    }
    assert!(shown >= 2, "the pages show {shown} commands");
}

/// Whether a line is the rest of a typed command.
fn is_question(line: &str) -> bool {
    line.starts_with("--from ")
}

fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

test_in_each_layout!(the_json_has_the_fields_that_are_documented);
fn the_json_has_the_fields_that_are_documented(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/REFERENCE.md");
    let page = fs::read_to_string(page).expect("the page of the commands can be read");
    for (from, to, verdict) in [
        ("203.0.113.7", "192.0.2.2:30080", "translated"),
        ("203.0.113.7", "192.0.2.130:80", "dropped"),
        ("10.244.1.99", "10.96.0.6:80", "refused"),
        ("10.244.1.99", "203.0.113.7:443", "passed"),
        ("2001:db8:113::7", "[2001:db8::2]:30080", "translated"),
    ] {
        let value = json_of(&world.node, from, to);
        assert_eq!(value["verdict"], verdict, "{value:#}");
        let fields = [
            "from",
            "to",
            "verdict",
            "service",
            "endpoints",
            "masquerade",
            "masqueradeReason",
            "masqueradeSources",
            "reason",
            "steps",
            "warnings",
        ];
        assert_eq!(names(&value), BTreeSet::from(fields));
        assert!(value["masquerade"].is_boolean() && value["warnings"].is_array());
        assert!(value["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{value:#}");
        assert_eq!(value["service"].is_string(), verdict != "passed", "{value:#}");
        for endpoint in value["endpoints"].as_array().expect("a list") {
            let fields = ["address", "port", "probability", "masquerade", "verdict"];
            assert_eq!(names(endpoint), BTreeSet::from(fields));
            assert!(endpoint["address"].as_str().is_some_and(|text| text.parse::<IpAddr>().is_ok()), "{endpoint}");
        }
        for step in value["steps"].as_array().expect("a list") {
            let fields: BTreeSet<&str> = names(step).into_iter().filter(|name| *name != "endpoints").collect();
            assert_eq!(fields, BTreeSet::from(["table", "chain", "rule", "text"]));
        }
        for field in fields {
            assert!(page.contains(&format!("`{field}`")), "{field} is not in deploy/REFERENCE.md");
        }
    }
}

/// The addresses that an explanation gives.
fn told(value: &Value) -> BTreeSet<SocketAddr> {
    let endpoint = |endpoint: &Value| {
        let address: IpAddr = endpoint["address"].as_str().expect("text").parse().expect("an address");
        let port = endpoint["port"].as_u64().and_then(|port| port.try_into().ok()).expect("a port");
        SocketAddr::new(address, port)
    };
    value["endpoints"].as_array().expect("a list").iter().map(endpoint).collect()
}

// A rule of another program decides like one of the proxy; one that cannot be evaluated leaves the verdict open (Q1).
test_in_each_layout!(a_rule_of_another_program_that_drops_earlier_is_found);
fn a_rule_of_another_program_that_drops_earlier_is_found(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    let v4 = Family::V4;
    let flow = Flow::new(Proto::Tcp, v4.shell(), v4.cluster_ip(1), 80);
    nft::load(
        &world.node,
        "table inet guard {
            set blocked { type ipv4_addr; flags interval; elements = { 10.96.0.0/30 } }
            chain early {
                type filter hook prerouting priority -150; policy accept;
                meta nfproto ipv4 ip daddr @blocked tcp dport 80 log prefix \"x\" drop
            }
        }",
    );
    assert_outcome(&world.shell, flow, &Outcome::Dropped);
    let value = json_of(&world.node, "10.244.1.99", "10.96.0.1:80");
    assert_eq!((&value["verdict"], &value["service"]), (&json!("dropped"), &json!("shop/web:http")), "{value:#}");
    let reason = value["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("table inet guard, chain early"), "{reason}");
    let warning = value["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("table inet guard, chain early") && warning.contains("-150"), "{value:#}");
    // It lets other packets by, and says so by the verdict.
    let other = json_of(&world.node, "10.244.1.99", "10.96.0.4:80");
    assert_eq!(other["verdict"], "translated", "{other:#}");
    nft::load(
        &world.node,
        "flush chain inet guard early\nadd rule inet guard early ip daddr 10.96.0.1 limit rate over 1/second drop",
    );
    let value = json_of(&world.node, "10.244.1.99", "10.96.0.1:80");
    assert_eq!(value["verdict"], "unknown", "{value:#}");
    assert!(value["reason"].as_str().is_some_and(|reason| reason.contains("limit")), "{value:#}");
    let (code, ..) = explain(&world.node, &["--from", "10.244.1.99", "--to", "10.96.0.1:80"]);
    assert_eq!(code, Some(1));
}

/// Writes an endpoint that no Service has into the table of a proxy that has ended, as another program may.
fn tamper(node: &Namespace, layout: Layout) {
    if layout != Layout::Chains {
        return nft::load(
            node,
            "delete element ip kube-proxy endpoints { 10.96.0.1 . tcp . 80 . 0 }
             add element ip kube-proxy endpoints { 10.96.0.1 . tcp . 80 . 0 : 10.244.2.11 . 9090 }",
        );
    }
    let listing = nft::list_ruleset(node);
    let chain = listing
        .split("\tchain ")
        .find(|chain| chain.contains("shop/web:http -> 10.244.1.10:8080"))
        .and_then(|chain| chain.split(' ').next())
        .expect("the chain of the endpoint");
    nft::load(
        node,
        &format!(
            "flush chain ip kube-proxy {chain}
             add rule ip kube-proxy {chain} meta l4proto tcp dnat to 10.244.2.11:9090"
        ),
    );
}

// The rules in the kernel are told, and not those that the proxy meant to write (Q1).
test_in_each_layout!(an_endpoint_that_another_program_wrote_into_the_table_is_told_as_packets_find_it);
fn an_endpoint_that_another_program_wrote_into_the_table_is_told_as_packets_find_it(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    // A running proxy would put it right.
    proxy.kill();
    tamper(&world.node, layout);
    let v4 = Family::V4;
    let flow = Flow::new(Proto::Tcp, v4.shell(), v4.cluster_ip(1), 80);
    let reached: BTreeSet<SocketAddr> = probe_many(&world.shell, flow, FEW)
        .into_keys()
        .map(|outcome| match outcome {
            Outcome::Reached(answer) => SocketAddr::new(answer.endpoint, answer.port),
            other => panic!("{other:?}"),
        })
        .collect();
    let value = json_of(&world.node, "10.244.1.99", "10.96.0.1:80");
    assert_eq!(told(&value), reached, "{value:#}");
    assert!(reached.contains(&SocketAddr::new(v4.endpoint(3), 9090)), "{reached:?}");
}

// The rules are met by the first packet of a connection only; the others go where that one went (Q2).
test_in_each_layout!(packets_of_a_connection_that_the_kernel_tracks_are_told_by_their_source_port);
fn packets_of_a_connection_that_the_kernel_tracks_are_told_by_their_source_port(layout: Layout) {
    let world = World::new();
    let ports = [("dns", Proto::Udp, 9090)];
    let mut objects = vec![node(), service("shop", "dns").cluster_ips(1).port("dns", Proto::Udp, 53).json()];
    objects.extend(slices("shop", "dns", &[0, 1, 2], &ports));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for (family, client) in [(Family::V4, &world.shell), (Family::V6, &world.client)] {
        let source = if family == Family::V4 { family.shell() } else { family.client() };
        let flow = Flow::new(Proto::Udp, source, family.cluster_ip(1), 53);
        let Outcome::Reached(answer) = probe_from_port(client, flow, 40_053) else { panic!("{flow:?}") };
        let to = format!("{}/udp", flow.target);
        let known = json_of(&world.node, &SocketAddr::new(source, 40_053).to_string(), &to);
        assert_eq!((&known["verdict"], &known["service"]), (&json!("translated"), &json!("shop/dns:dns")), "{known:#}");
        assert_eq!(told(&known), BTreeSet::from([SocketAddr::new(answer.endpoint, answer.port)]), "{known:#}");
        assert_eq!(known["masquerade"], answer.seen_source != source, "{known:#}");
        assert!(
            known["reason"].as_str().is_some_and(|why| why.contains("tracks this connection already")),
            "{known:#}"
        );
        assert_eq!(probe_from_port(client, flow, 40_053), Outcome::Reached(answer), "the same one again");
        for from in [SocketAddr::new(source, 40_054).to_string(), source.to_string()] {
            let new = json_of(&world.node, &from, &to);
            assert_eq!(told(&new).len(), 3, "{new:#}");
        }
    }
}

// What the kernel discards on the way to its endpoint reaches nobody, and is no fault of a rule (Q3).
test_in_each_layout!(a_packet_that_the_kernel_discards_on_the_way_to_its_endpoint_is_dropped_and_the_reason_says_so);
fn a_packet_that_the_kernel_discards_on_the_way_to_its_endpoint_is_dropped_and_the_reason_says_so(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    let v4 = Family::V4;
    let why = |value: &Value| value["reason"].as_str().unwrap_or_default().to_owned();
    // The kernel sends nothing from loopback to elsewhere.
    let loopback = Flow::new(Proto::Tcp, IpAddr::from([127, 0, 0, 1]), v4.node(), 30080);
    assert_outcome(&world.node, loopback, &Outcome::Dropped);
    let value = json_of(&world.node, "127.0.0.1", "192.0.2.2:30080");
    assert_eq!((&value["verdict"], &value["service"]), (&json!("dropped"), &json!("shop/web:http")), "{value:#}");
    assert!(why(&value).contains("this host does not send packets from 127.0.0.1 to 10.244."), "{value:#}");
    // From ::1 it sends them, and takes no answer.
    let (v6, loopback) = (Family::V6, IpAddr::from(std::net::Ipv6Addr::LOCALHOST));
    assert_outcome(&world.node, Flow::new(Proto::Tcp, loopback, v6.node(), 30080), &Outcome::Dropped);
    let value = json_of(&world.node, "::1", "[2001:db8::2]:30080");
    assert_eq!((&value["verdict"], &value["service"]), (&json!("dropped"), &json!("shop/web:http")), "{value:#}");
    assert!(why(&value).contains("IPv6 takes none to ::1 from outside"), "{value:#}");
    world.node.ip(&["route replace blackhole 10.244.2.10/32"]);
    let flow = Flow::new(Proto::Tcp, v4.shell(), v4.cluster_ip(3), 80);
    assert_outcome(&world.shell, flow, &Outcome::Dropped);
    let value = json_of(&world.node, "10.244.1.99", "10.96.0.3:80");
    assert_eq!(
        (&value["verdict"], &value["endpoints"][0]["verdict"]),
        (&json!("dropped"), &json!("dropped")),
        "{value:#}"
    );
    assert!(why(&value).contains("to 10.244.2.10: its route is a blackhole"), "{value:#}");
    let value = json_of(&world.node, "10.244.1.99", "10.96.0.1:80");
    assert_eq!(value["verdict"], "partly", "{value:#}");
    assert!(why(&value).contains("but 1 of these cannot be reached: this host does not send packets"), "{value:#}");
}

test_in_each_layout!(the_interface_decides_where_pods_are_known_by_it);
fn the_interface_decides_where_pods_are_known_by_it(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    config["detectLocalMode"] = json!("InterfaceNamePrefix");
    config["detectLocal"] = json!({ "interfaceNamePrefix": "to-shell" });
    let _proxy = Proxy::start(&world.node, &config, &cluster());
    let v4 = Family::V4;
    let flow = |source| Flow::new(Proto::Tcp, source, v4.cluster_ip(1), 80);
    let away = &endpoints(v4, &[0, 1, 2], 8080);
    assert_reaches(&world.shell, flow(v4.shell()), away, Source::Kept, FEW);
    assert_reaches(&world.client, flow(v4.client()), away, Source::Masqueraded, FEW);
    for (from, iface, masqueraded) in [
        ("10.244.1.99", None, false),
        ("203.0.113.7", None, true),
        ("203.0.113.7", Some("to-shell"), false),
        ("10.244.1.99", Some("to-client"), true),
        ("192.0.2.2", None, true),
    ] {
        let iface: Vec<&str> = iface.into_iter().flat_map(|name| ["--iface", name]).collect();
        let args = ["--from", from, "--to", "10.96.0.1:80", "-o", "json"];
        let (code, text, errors) = explain(&world.node, &[&args[..], &iface].concat());
        assert_eq!(code, Some(0), "{errors}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["masquerade"], masqueraded, "{from} {iface:?}: {value:#}");
    }
}

// A Service's name stands for its cluster IP of the family of the source.
test_in_each_layout!(a_service_can_be_named_in_place_of_its_cluster_ip);
fn a_service_can_be_named_in_place_of_its_cluster_ip(layout: Layout) {
    let world = World::new();
    let mut objects = cluster();
    let two = service("shop", "two").cluster_ips(7).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53);
    objects.push(two.port("dns-tcp", Proto::Tcp, 53).json());
    objects.extend(slices("shop", "two", &[0], &[("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)]));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for (from, to, address, verdict) in [
        ("10.244.1.99", "shop/web", "10.96.0.1:80/TCP", "translated"),
        ("10.244.1.99", "shop/web:http", "10.96.0.1:80/TCP", "translated"),
        ("2001:db8:113::7", "shop/web:80", "[fd00:10:96::1]:80/TCP", "translated"),
        ("10.244.1.99", "shop/two:dns", "10.96.0.7:53/UDP", "translated"),
        ("10.244.1.99", "shop/two:53/udp", "10.96.0.7:53/UDP", "translated"),
        ("10.244.1.99", "shop/two:53/tcp", "10.96.0.7:53/TCP", "refused"),
        ("10.244.1.99", "shop/old", "10.96.0.6:80/TCP", "refused"),
    ] {
        let value = json_of(&world.node, from, to);
        assert_eq!((&value["to"], &value["verdict"]), (&json!(address), &json!(verdict)), "{to}: {value:#}");
        let plain = json_of(&world.node, from, &address.to_lowercase());
        assert_eq!(plain, value, "{to} is {address}");
    }
    for (to, parts) in [
        ("shop/two", &["several ports", "http (80/tcp)", "dns (53/udp)", "dns-tcp (53/tcp)"][..]),
        ("shop/two:53", &["several ports", "dns (53/udp)"]),
        ("shop/two:metrics", &["no such port", "http (80/tcp)"]),
        ("shop/wbe", &["no Service shop/wbe", "did you mean shop/web"]),
        ("shop/web/icmp", &["tcp, udp or sctp"]),
    ] {
        let (code, out, errors) = explain(&world.node, &["--from", "10.244.1.99", "--to", to]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{to}");
        parts.iter().for_each(|part| assert!(errors.contains(part), "{to}: no {part} in {errors}"));
    }
}

#[test]
fn what_it_cannot_look_at_is_an_error_with_a_remedy() {
    let world = World::new();
    for (args, expected) in [
        ("--from 203.0.113.7 --to 10.96.0.1", "expected IP:PORT"),
        ("--from 203.0.113.7 --to [fd00::1]:80", "different families"),
        ("--from 203.0.113.7 --to 10.96.0.1:80 --iface to-clinet", "did you mean to-client"),
        ("--from 192.0.2.2 --to 10.96.0.1:80 --iface lo", "leave out --iface"),
        ("--from shop/web:http --to 10.96.0.1:80", "NAMESPACE/POD"),
        ("--from shop/web-abc12 --to 10.96.0.1:80", "give its IP"),
    ] {
        let (code, out, errors) = explain(&world.node, &args.split(' ').collect::<Vec<_>>());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args}");
        assert!(errors.contains(expected), "{args}: {errors}");
    }
}

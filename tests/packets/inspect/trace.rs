//! `kube-proxy trace`: what it says of real packets, and that its table is gone afterwards, whatever ends it.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{command, outcome};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::mixed;
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::{service, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PATIENCE: Duration = Duration::from_secs(30);

/// The tables of traces on a node.
fn tables(node: &Namespace) -> Vec<String> {
    let all = nft::list_tables(node);
    all.lines().filter(|line| line.contains("kube-proxy-trace-")).map(str::to_owned).collect()
}

fn wait_for_tables(node: &Namespace, count: usize) {
    let end = Instant::now() + PATIENCE;
    while tables(node).len() != count {
        assert!(Instant::now() < end, "not {count} tables: {:?}", tables(node));
        thread::sleep(Duration::from_millis(20));
    }
}

/// A trace of packets from and to these that has set its mark.
fn start(node: &Namespace, from: &str, to: &str, more: &[&str]) -> Child {
    let before = tables(node).len();
    let args = [&["trace", "--from", from, "--to", to], more].concat();
    let child = command(node, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    wait_for_tables(node, before + 1);
    child.expect("the binary can be run")
}

/// Exit code and output of a trace of one packet, which `source` sends.
pub(super) fn one(world: &World, source: &Namespace, flow: Flow, output: &str) -> (Option<i32>, String) {
    let protocol = flow.proto.name().to_lowercase();
    let (from, to) = (flow.source.to_string(), format!("{}/{protocol}", flow.target));
    let child = start(&world.node, &from, &to, &["--count", "1", "-o", output]);
    let became = probe(source, flow);
    let result = child.wait_with_output().expect("the child can be waited for");
    let errors = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(!result.stdout.is_empty(), "{became:?}, and no packet was seen: {errors}");
    (result.status.code(), String::from_utf8(result.stdout).expect("the output is text"))
}

fn document(world: &World, source: &Namespace, flow: Flow) -> (Option<i32>, Value) {
    let (code, text) = one(world, source, flow, "json");
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// That a document has the documented fields and no other.
fn assert_fields((_, story): &(Option<i32>, Value)) {
    let names = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
    let expected = [
        "endpoint",
        "flags",
        "from",
        "interface",
        "masquerade",
        "protocol",
        "reason",
        "service",
        "steps",
        "to",
        "verdict",
        "warnings",
    ];
    let mut found = names(story).expect("an object");
    found.sort();
    assert_eq!(found, expected, "{story:#}");
    for step in story["steps"].as_array().expect("a list") {
        let mut found = names(step).expect("an object");
        found.sort();
        assert_eq!(found, ["chain", "rule", "table", "text"], "{step:#}");
    }
}

/// Exit code, verdict and masquerading of a document.
fn verdict((code, story): &(Option<i32>, Value)) -> (Option<i32>, &str, bool) {
    (*code, story["verdict"].as_str().unwrap_or_default(), story["masquerade"] == json!(true))
}

/// The cluster that other tests share, and a Service of UDP.
fn cluster() -> Vec<Value> {
    let mut objects = mixed::cluster();
    objects.push(service("shop", "dns").cluster_ips(20).port("dns", Proto::Udp, 53).json());
    objects.extend(slices("shop", "dns", &[0], &[("dns", Proto::Udp, 9090)]));
    objects.push(service("shop", "one").cluster_ips(21).port("http", Proto::Tcp, 80).json());
    objects.extend(slices("shop", "one", &[2], &[("http", Proto::Tcp, 8080)]));
    objects
}

test_in_each_layout!(real_packets_are_told_as_they_fare);
fn real_packets_are_told_as_they_fare(layout: Layout) {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    for family in Family::ALL {
        let endpoints: Vec<String> = family.endpoints().iter().map(ToString::to_string).collect();
        let from_pod = |proto, n, port| Flow::new(proto, family.shell(), family.cluster_ip(n), port);

        let web = document(&world, &world.shell, from_pod(Proto::Tcp, 1, 80));
        assert_eq!(verdict(&web), (Some(0), "translated", false), "{web:?}");
        assert_eq!((&web.1["service"], &web.1["flags"]), (&json!("shop/web:http"), &json!("SYN")));
        let endpoint = web.1["endpoint"].as_str().unwrap_or_default();
        assert!(endpoints.iter().any(|ip| endpoint.trim_start_matches('[').starts_with(ip.as_str())), "{web:?}");
        assert!(web.1["reason"].as_str().is_some_and(|reason| reason.contains(endpoint)), "{web:?}");

        let dns = document(&world, &world.shell, from_pod(Proto::Udp, 20, 53));
        assert_eq!(verdict(&dns), (Some(0), "translated", false), "{dns:?}");
        assert_eq!(dns.1["endpoint"], json!(std::net::SocketAddr::new(family.endpoint(0), 9090)));

        let outside = Flow::new(Proto::Tcp, family.client(), family.external_ip(1), 80);
        let outside = document(&world, &world.client, outside);
        assert_eq!(verdict(&outside), (Some(0), "translated", true), "{outside:?}");
        assert!(outside.1["interface"].is_string(), "{outside:?}");

        let node_port = Flow::new(Proto::Tcp, family.client(), family.node(), 30080);
        let node_port = document(&world, &world.client, node_port);
        assert_eq!(verdict(&node_port), (Some(0), "translated", true), "{node_port:?}");
        assert_eq!(node_port.1["service"], "shop/web:http");

        let refused = document(&world, &world.shell, from_pod(Proto::Tcp, 6, 80));
        assert_eq!(verdict(&refused), (Some(1), "refused", false), "{refused:?}");
        assert_eq!(
            refused.1["reason"],
            format!("{} has no endpoints", refused.1["service"].as_str().unwrap_or_default())
        );

        let dropped = document(&world, &world.shell, from_pod(Proto::Tcp, 4, 80));
        assert_eq!(verdict(&dropped), (Some(1), "dropped", false), "{dropped:?}");

        let local = Flow::new(Proto::Tcp, family.node(), family.cluster_ip(1), 80);
        let local = document(&world, &world.node, local);
        [&web, &dns, &outside, &node_port, &refused, &dropped, &local].into_iter().for_each(assert_fields);
        assert_eq!((verdict(&local).1, &local.1["interface"]), ("translated", &Value::Null), "{local:?}");
    }
    wait_for_tables(&world.node, 0);
    assert!(!proxy.log().contains("changed our rules"), "the traces disturbed the proxy: {}", proxy.log());
}

test_in_each_layout!(a_paragraph_names_the_service_the_endpoint_and_the_rules);
fn a_paragraph_names_the_service_the_endpoint_and_the_rules(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    let flow = Flow::new(Proto::Udp, Family::V4.client(), Family::V4.cluster_ip(20), 53);
    let (_, text) = one(&world, &world.client, flow, "table");
    // The client's port is another one each time.
    let (source, rest) = text.split_once(" -> ").expect("an arrow");
    assert!(source.strip_prefix("203.0.113.7:").is_some_and(|port| port.parse::<u16>().is_ok()), "{source}");
    let told = format!("203.0.113.7:PORT -> {rest}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/inspect/trace-{}.txt", layout.name()));
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &told).expect("the expected text can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(told, expected);
    let (_, wide) = one(&world, &world.client, flow, "wide");
    assert!(wide.contains("dnat") && wide.contains("ip kube-proxy KUBE-POSTROUTING: "), "{wide}");
}

#[test]
fn only_the_packets_that_were_asked_for_are_traced_and_no_more_than_the_count() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &cluster());
    let (ours, theirs) = (Family::V4.shell(), Family::V4.client());
    let child = start(&world.node, &ours.to_string(), "10.96.0.1:80", &["--all", "--count", "3", "-o", "json"]);
    let vip = Family::V4.cluster_ip(1);
    let other = start(&world.node, &theirs.to_string(), "10.96.0.1:80", &["--count", "1", "-o", "json"]);
    for _ in 0..2 {
        probe(&world.client, Flow::new(Proto::Tcp, theirs, vip, 80));
        probe(&world.shell, Flow::new(Proto::Tcp, ours, Family::V4.cluster_ip(2), 80));
        probe(&world.shell, Flow::new(Proto::Tcp, ours, vip, 80));
    }
    for (child, count, source) in [(child, 3, ours), (other, 1, theirs)] {
        let output = child.wait_with_output().expect("the child can be waited for");
        let stories: Vec<Value> = serde_json::Deserializer::from_slice(&output.stdout)
            .into_iter()
            .collect::<Result<_, _>>()
            .expect("documents, one after the other");
        assert_eq!(stories.len(), count, "{stories:?}");
        for story in stories {
            assert_eq!(story["to"], "10.96.0.1:80");
            assert!(story["from"].as_str().is_some_and(|from| from.starts_with(&source.to_string())), "{story}");
        }
    }
    wait_for_tables(&world.node, 0);
}

#[test]
fn the_table_is_gone_whatever_ends_the_trace() {
    let node = Namespace::new("ended");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut child = start(&node, "203.0.113.7", "10.96.0.10:80", &["--for", "1m"]);
        // The program itself, not the one that entered the namespace, has this number.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process has a number");
        kill_process(pid, signal).expect("the process is there");
        child.wait().expect("the child can be waited for");
        wait_for_tables(&node, 0);
    }
    let table = || {
        let child = start(&node, "203.0.113.7", "10.96.0.10:80", &["--for", "1m"]);
        let text = run(node.command("nft").args(["list", "ruleset"]));
        (child, text)
    };
    let (mut child, text) = table();
    assert!(text.contains("limit rate 20/second") && text.contains("flags owner"), "{text}");
    assert!(text.contains("ip saddr 203.0.113.7 ip daddr 10.96.0.10 tcp dport 80"), "{text}");
    child.kill().and_then(|()| child.wait()).expect("a child can be ended");
}

#[test]
fn without_packets_or_with_wrong_arguments_it_says_so() {
    let node = Namespace::new("silent");
    let trace = |args: &[&str]| outcome(&mut command(&node, &[&["trace"], args].concat()));
    let (code, stdout, stderr) = trace(&["--from", "203.0.113.7", "--to", "10.96.0.10:80", "--for", "300ms"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("no first packet from 203.0.113.7 to 10.96.0.10:80 came by; --all"), "{stderr}");
    for (args, part) in [
        (&["--from", "fd00::1", "--to", "10.96.0.10:80"][..], "different families"),
        (&["--from", "203.0.113.7:80", "--to", "10.96.0.10:80"], "without a port"),
        (&["--from", "203.0.113.7", "--to", "10.96.0.10"], "IP:PORT"),
        (&["--from", "203.0.113.7", "--to", "10.96.0.10:80", "--for", "0s"], "more than 0s"),
    ] {
        let (code, _, stderr) = trace(args);
        assert!(code == Some(2) && stderr.contains(part), "{args:?}: {stderr}");
    }
    assert!(tables(&node).is_empty());
}

#[test]
fn later_packets_of_a_connection_are_told_where_the_first_one_went() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &cluster());
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.external_ip(1), 80);
    let (connection, _) = Connection::open(&world.client, flow);
    let child = start(&world.node, "203.0.113.7", "198.51.100.1:80", &["--all", "--count", "1", "-o", "json"]);
    connection.ask();
    let output = child.wait_with_output().expect("the child can be waited for");
    let story: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(verdict(&(Some(0), story.clone())), (Some(0), "translated", true), "{story}");
    assert!(story["reason"].as_str().is_some_and(|reason| reason.ends_with(" before")), "{story}");
}

/// The documents that a trace printed.
fn stories(child: Child) -> Vec<Value> {
    let output = child.wait_with_output().expect("the child can be waited for");
    let stories = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    stories.collect::<Result<_, _>>().expect("documents, one after the other")
}

// Without `--all` each connection is printed once, and `--count` counts the printed packets.
test_in_each_layout!(only_the_first_packet_of_each_connection_is_told);
fn only_the_first_packet_of_each_connection_is_told(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    for (proto, target) in [(Proto::Tcp, "shop/web:http"), (Proto::Udp, "shop/dns:53/udp")] {
        let port = if proto == Proto::Tcp { 80 } else { 53 };
        let vip = Family::V4.cluster_ip(if proto == Proto::Tcp { 1 } else { 20 });
        let flow = Flow::new(proto, Family::V4.shell(), vip, port);
        // Packets of a connection that is open already are printed with `--all` only.
        let (earlier, _) = Connection::open(&world.shell, flow);
        let first = start(&world.node, "10.244.1.99", target, &["--count", "2", "-o", "json"]);
        earlier.ask();
        let (later, _) = Connection::open(&world.shell, flow);
        later.ask();
        later.ask();
        probe(&world.shell, flow);
        let told = stories(first);
        let sources: std::collections::BTreeSet<&str> =
            told.iter().filter_map(|story| story["from"].as_str()).collect();
        assert_eq!((told.len(), sources.len()), (2, 2), "{proto:?}: two connections: {told:?}");
        assert!(told.iter().all(|story| story["verdict"] == "translated"), "{told:?}");
        let flags: Vec<Value> = told.iter().map(|story| story["flags"].clone()).collect();
        assert_eq!(flags, if proto == Proto::Tcp { vec![json!("SYN"); 2] } else { vec![Value::Null; 2] });
        let all = start(&world.node, "10.244.1.99", target, &["--all", "--count", "1", "-o", "json"]);
        earlier.ask();
        assert!(stories(all)[0]["reason"].as_str().is_some_and(|reason| reason.ends_with(" before")));
    }
    wait_for_tables(&world.node, 0);
}

// A first packet that a rule drops before connection tracking is printed for TCP.
#[test]
fn a_connection_that_is_dropped_before_it_is_tracked_is_told() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &cluster());
    nft::load(
        &world.node,
        "table ip early { chain raw { type filter hook prerouting priority -300; policy accept; ip daddr 10.96.0.1 drop; }; }",
    );
    let flow = Flow::new(Proto::Tcp, Family::V4.shell(), Family::V4.cluster_ip(1), 80);
    let story = document(&world, &world.shell, flow);
    assert_eq!(verdict(&story), (Some(1), "dropped", false), "{story:?}");
    assert!(story.1["reason"].as_str().is_some_and(|reason| reason.contains("ip early")), "{story:?}");
}

// The other program's chain is before or after ours at the same hook, and drops by a rule or by its policy, which is no rule.
test_in_each_layout!(another_program_that_drops_behind_the_choice_is_named_with_the_endpoint);
fn another_program_that_drops_behind_the_choice_is_named_with_the_endpoint(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    for (priority, policy, rule, what) in [
        (-350, "accept", "ip daddr 10.244.0.0/16 drop comment \"ask bob\"", "drops the packet (comment \"ask bob\")"),
        (10, "accept", "ip6 daddr fd00::/8 drop; ip daddr 10.244.0.0/16 drop", "drops the packet"),
        (-350, "drop", "ip6 daddr ::/0 accept", "drops the packet, by the policy of the chain"),
        (10, "drop", "ip6 daddr ::/0 accept", "drops the packet, by the policy of the chain"),
    ] {
        nft::load(
            &world.node,
            &format!(
                "table inet firewall {{ chain forw {{ type filter hook forward priority {priority}; policy {policy}; {rule}; }}; }}"
            ),
        );
        for (flow, service, endpoint) in [
            (
                Flow::new(Proto::Udp, Family::V4.shell(), Family::V4.cluster_ip(20), 53),
                "shop/dns:dns",
                "10.244.1.10:9090",
            ),
            (
                Flow::new(Proto::Tcp, Family::V4.shell(), Family::V4.cluster_ip(21), 80),
                "shop/one:http",
                "10.244.2.10:8080",
            ),
        ] {
            assert_eq!(probe(&world.shell, flow), Outcome::Dropped);
            let why = format!(
                "{service} sends it to {endpoint}, but another program (table inet firewall, chain forw) {what}"
            );
            let story = document(&world, &world.shell, flow);
            assert_eq!(verdict(&story), (Some(1), "dropped", false), "{story:?}");
            assert_eq!((&story.1["endpoint"], &story.1["reason"]), (&json!(endpoint), &json!(why)), "{story:?}");
            let (_, text) = one(&world, &world.shell, flow, "table");
            let (first, rest) = text.split_once('\n').expect("a line");
            assert!(first.ends_with(&format!(": dropped on the way to {endpoint} ({service})")), "{text}");
            assert!(rest.starts_with(&format!("  {why}.\n")), "{text}");
            // `explain`, which predicts what happens to the packet, uses the same words.
            let to = format!("{}/{}", flow.target, flow.proto.name().to_lowercase());
            let (code, text, _) =
                outcome(&mut command(&world.node, &["explain", "--from", "10.244.1.99", "--to", &to]));
            assert!(code == Some(1) && text.contains(&format!("\nDROPPED: {why}\n")), "{text}");
        }
        run(world.node.command("nft").arg("delete table inet firewall"));
    }
}

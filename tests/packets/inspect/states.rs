//! The commands in states in which the tables do not show all: for each a packet is sent, and what the commands say is what it met.

use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::{Value, json};

use super::{command, outcome};
use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto};
use crate::support::proxy::{Proxy, binary, config_in};
use crate::support::world::World;
use rustix::process::Signal;

const V4: Family = Family::V4;
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

fn web() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &[0, 1, 2], &PORTS));
    objects
}

/// The exit code and the output of a command, standard error last.
pub(crate) fn said(node: &Namespace, line: &str) -> (i32, String) {
    let (code, stdout, stderr) = outcome(&mut command(node, &line.split(' ').collect::<Vec<_>>()));
    (code.expect("it was not killed"), stdout + &stderr)
}

/// Asserts the exit code, and that the output has this text.
fn assert_says(node: &Namespace, line: &str, code: i32, text: &str) {
    let (found, output) = said(node, line);
    assert!(found == code && output.contains(text), "{line}: {found}, {text:?} is not in {output}");
}

/// Sends one packet while a trace runs, and asserts the exit code of the trace and that its output has this text.
fn assert_traces(world: &World, source: &Namespace, flow: Flow, code: i32, text: &str) {
    let (found, output) = super::trace::one(world, source, flow, "table");
    assert!(found == Some(code) && output.contains(text), "{flow:?}: {found:?}, {text:?} is not in {output}");
}

fn page(proxy: &Proxy, path: &str) -> Value {
    let answer = proxy.get("127.0.0.1:10256", path);
    let (_, text) = answer.split_once("\r\n\r\n").expect("a header and a body");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn texts(page: &Value) -> Vec<&str> {
    page["problems"].as_array().into_iter().flatten().filter_map(|problem| problem["text"].as_str()).collect()
}

// What the tables do not show is said by all commands and by the health pages in the same words (Q10).
test_in_each_layout!(a_service_that_is_too_large_is_said_to_be_left_out);
fn a_service_that_is_too_large_is_said_to_be_left_out(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    config["nftables"]["serviceElementsLimit"] = json!(900);
    // Both Services claim one address; the first one gets it.
    let shared = V4.external_ip(9);
    let ports: Vec<(String, u16)> = (0..99).map(|n| (format!("p{n}"), 1_000 + n)).collect();
    let large = |name, n| {
        let large = service("shop", name).cluster_ips(n).external_ip(shared);
        let large = Family::ALL.iter().fold(large, |large, family| large.load_balancer_ip(family.load_balancer_ip(n)));
        let large = ports.iter().fold(large, |large, (port, number)| large.port(port, Proto::Tcp, *number));
        let ports: Vec<_> = ports.iter().map(|(port, number)| (port.as_str(), Proto::Tcp, *number)).collect();
        let large = if name == "big" { large.node_port(30999) } else { large };
        [vec![large.json()], slices("shop", name, &[0, 1, 2], &ports)].concat()
    };
    let objects = [web(), large("big", 9), large("hog", 10)].concat();
    let proxy = Proxy::start(&world.node, &config, &objects);
    assert_outcome(&world.shell, Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(9), 1_000), &Outcome::Dropped);

    let why = "shop/big is left out: ";
    for command in
        ["services shop/big", "services 10.96.0.9", "services 10.96.0.9:1000", "services", "services -n shop"]
    {
        assert_says(&world.node, command, 1, why);
    }
    let question = "explain --from 10.244.1.99 --to 10.96.0.9:1000";
    assert_says(&world.node, question, 1, "DROPPED: shop/big is left out: ");
    let outside = |address, port| Flow::new(Proto::Tcp, V4.client(), address, port);
    assert_traces(&world, &world.shell, Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(9), 1_000), 1, why);
    for flow in [outside(V4.external_ip(9), 1_000), outside(V4.node(), 30999), outside(V4.external_ip(9), 2_000)] {
        assert_says(&world.node, &format!("explain --from 203.0.113.7 --to {}", flow.target), 1, why);
        assert_traces(&world, &world.client, flow, 1, why);
    }
    // A port with another protocol, and a node port of no Service, are not explained by the Service that is left out.
    for other in ["192.0.2.2:30999/udp", "192.0.2.3:30080/udp"] {
        let (code, text) = said(&world.node, &format!("explain --from 203.0.113.7 --to {other}"));
        assert!(code == 0 && text.contains("PASSED: no Service has ") && !text.contains("shop/big"), "{text}");
    }
    assert_says(&world.node, "services 30999", 1, why);
    assert_says(&world.node, "services *:30999/udp", 2, "no Service has the frontend *:30999/UDP");
    let (_, steps) = said(&world.node, question);
    assert!(!steps.contains("let through"), "the packet is dropped: {steps}");
    let (config, manifests) = (proxy.config_path(), proxy.manifests().path().to_owned());
    let alone = format!("{question} --config {} --manifests {}", config.display(), manifests.display());
    assert_says(&world.node, &alone, 1, "DROPPED: shop/big is left out: ");
    // Two Services that are left out claim one address: the answer names the Service that would get the address.
    let shared_question = format!("explain --from 10.244.1.99 --to {shared}:1000");
    for line in [format!("services {shared}"), shared_question.clone(), shared_question + &alone[question.len()..]] {
        let (code, text) = said(&world.node, &line);
        assert!(code == 1 && text.contains(why) && !text.contains("shop/hog is left out"), "{line}: {text}");
        assert!(text.contains(&format!("shop/hog does not get {shared}:")), "{line}: {text}");
    }
    assert_says(&world.node, "top --once --interval 100ms", 1, why);
    let health = page(&proxy, "/healthz");
    assert_eq!(health["oversizedServices"], json!(["shop/big", "shop/hog"]));
    let text = texts(&health)[0];
    assert!(text.starts_with(why) && text.contains("the limit is 900 "), "{health}");
    // Other Services are served, and the answers about them do not mention the Services that are left out.
    assert_says(&world.node, "services shop/web", 0, "served");
    assert_says(&world.node, "explain --from 10.244.1.99 --to 10.96.0.1:80", 0, "TRANSLATED");
}

test_in_each_layout!(a_service_that_does_not_get_a_frontend_is_named_with_the_service_that_has_it);
fn a_service_that_does_not_get_a_frontend_is_named_with_the_service_that_has_it(layout: Layout) {
    let world = World::new();
    let collide = service("shop", "collide").cluster_ips(8).port("http", Proto::Tcp, 80).external_ip(V4.cluster_ip(1));
    let mut objects = web();
    objects.push(collide.json());
    objects.extend(slices("shop", "collide", &[3], &PORTS));
    let proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let flow = Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(1), 80);
    assert_reaches(&world.shell, flow, &endpoints(V4, &[0, 1, 2], 8080), Source::Kept, FEW);

    let why = "shop/collide does not get 10.96.0.1:80/TCP, shop/web has it";
    for command in ["services shop/collide", "services 10.96.0.1", "services"] {
        assert_says(&world.node, command, 1, why);
    }
    assert_says(&world.node, "explain --from 10.244.1.99 --to 10.96.0.1:80", 0, why);
    assert_traces(&world, &world.shell, flow, 0, &format!("warning: {why}"));
    // A question about the Service that lost the frontend is answered with a warning, although its own cluster IP works.
    let own = Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(8), 80);
    assert_reaches(&world.shell, own, &endpoints(V4, &[3], 8080), Source::Kept, FEW);
    assert_says(&world.node, "explain --from 10.244.1.99 --to shop/collide", 0, &format!("warning: {why}"));
    let (_, text) = said(&world.node, "explain --from 10.244.1.99 --to 10.96.0.8:80");
    assert!(!text.contains("warning"), "{text}");
    // The same address and port with another protocol is another frontend, which was not lost.
    assert_says(&world.node, "services 10.96.0.1:80/udp", 2, "no Service has the frontend 10.96.0.1:80/UDP");
    let (code, text) = said(&world.node, "explain --from 10.244.1.99 --to 10.96.0.1:80/udp");
    assert!(code == 1 && !text.contains("shop/collide"), "{text}");
    assert_says(&world.node, "top --once --interval 100ms", 1, why);
    assert_eq!(texts(&page(&proxy, "/livez")), [why]);
    assert_says(&world.node, "services shop/web", 0, "served");
}

test_in_each_layout!(a_dormant_table_is_in_the_first_line_and_ends_with_1);
fn a_dormant_table_is_in_the_first_line_and_ends_with_1(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &web());
    // A running proxy would put it right.
    proxy.kill();
    run(world.node.command("nft").arg("add table ip kube-proxy { flags dormant; }"));
    let flow = Flow::new(Proto::Tcp, V4.client(), V4.node(), 30080);
    let Outcome::Reached(_) = crate::support::probe::probe(&world.client, flow) else {
        assert_says(
            &world.node,
            "explain --from 203.0.113.7 --to 192.0.2.2:30080",
            1,
            "PASSED: The IPv4 table is dormant: another program has switched its rules off; for now: no Service is served",
        );
        assert_traces(
            &world,
            &world.client,
            flow,
            1,
            "The IPv4 table is dormant: another program has switched its rules off",
        );
        assert_says(&world.node, "services shop/web", 1, "The IPv4 table is dormant");
        assert_says(&world.node, "top --once --interval 100ms", 1, "The IPv4 table is dormant");
        // The other table works on.
        assert_says(&world.node, "explain --from 2001:db8:113::7 --to [2001:db8::2]:30080", 0, "TRANSLATED");
        return;
    };
    panic!("a dormant table served a packet");
}

test_in_each_layout!(a_table_that_is_missing_beside_the_other_one_is_a_problem);
fn a_table_that_is_missing_beside_the_other_one_is_a_problem(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &web());
    // A running proxy would put it right.
    proxy.kill();
    run(world.node.command("nft").arg("delete table ip kube-proxy"));
    let flow = Flow::new(Proto::Tcp, V4.client(), V4.node(), 30080);
    assert!(!matches!(crate::support::probe::probe(&world.client, flow), Outcome::Reached(_)));
    for line in ["services", "services --not-served", "services shop/web", "top --once --interval 100ms"] {
        assert_says(&world.node, line, 1, "There is no IPv4 table");
    }
    assert_says(&world.node, "explain --from 203.0.113.7 --to 192.0.2.2:30080", 2, "no table ip kube-proxy");
}

// A namespace with a typing error is no namespace in which all is well, and a Service that a silent proxy may leave out is not just unknown.
test_in_each_layout!(an_unknown_name_is_not_fine_and_a_silent_proxy_is_said_with_it);
fn an_unknown_name_is_not_fine_and_a_silent_proxy_is_said_with_it(layout: Layout) {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config_in(layout), &web());
    for line in ["services -n shpo", "services -n shpo --not-served", "services shpo"] {
        assert_says(&world.node, line, 2, "shpo");
    }
    assert_says(&world.node, "services -n shop --not-served", 0, "Every frontend is served");
    for line in ["services shop/big", "explain --from 203.0.113.7 --to shop/big:http"] {
        assert_says(
            &world.node,
            &format!("{line} --healthz-address 127.0.0.1:99"),
            2,
            "No kube-proxy answers at 127.0.0.1:99",
        );
    }
    drop(proxy);
}

test_in_each_layout!(a_node_port_on_an_address_that_takes_none_is_named_with_the_address_that_does);
fn a_node_port_on_an_address_that_takes_none_is_named_with_the_address_that_does(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &web());
    let second = V4.node_second();
    let flow = |address| Flow::new(Proto::Tcp, V4.client(), address, 30080);
    assert_reaches(&world.client, flow(V4.node()), &endpoints(V4, &[0, 1, 2], 8080), Source::Masqueraded, FEW);
    assert_outcome(&world.client, flow(second), &Outcome::Reset);
    let expected = format!(
        "PASSED: node port 30080 is shop/web:http, but {second} accepts no node ports: only 192.0.2.2 does (nodePortAddresses)"
    );
    assert_says(&world.node, &format!("explain --from 203.0.113.7 --to {second}:30080"), 1, &expected);
    let (_, words) = expected.split_once(": ").expect("a verdict and a reason");
    assert_traces(&world, &world.client, flow(second), 1, words);
    assert_says(&world.node, "services 192.0.2.2:30080", 2, "node port 30080 is shop/web:http");
    assert_says(&world.node, "services 30080", 0, "*:30080/TCP");
}

// A connection of the node to a node port on a loopback address reaches the program that listens there, and never a Service (Q10).
test_in_each_layout!(a_node_port_on_loopback_is_answered_by_whoever_listens_there);
fn a_node_port_on_loopback_is_answered_by_whoever_listens_there(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &web());
    for family in Family::ALL {
        let target = SocketAddr::new(family.loopback(), 30080);
        let flow = Flow::new(Proto::Tcp, family.loopback(), family.loopback(), 30080);
        let question = format!("explain --from {} --to {target}", family.loopback());
        assert_outcome(&world.node, flow, &Outcome::Reset);
        let refused = format!(
            "node port 30080 is shop/web:http, but no program listens on {target}, and no rule serves node ports on loopback \
             addresses: the connection is refused"
        );
        assert_says(&world.node, &question, 1, &format!("PASSED: {refused}"));
        assert_traces(&world, &world.node, flow, 1, &refused);
        // A program that listens on all addresses gets the connection.
        let any = if target.is_ipv4() { "0.0.0.0:30080" } else { "[::]:30080" };
        let listener = world.node.enter(|| TcpListener::bind(any)).expect("the port is free");
        assert!(world.node.enter(|| TcpStream::connect(target)).is_ok(), "{target} does not answer");
        let taken = format!("(process {}) listens on {any}, and gets the connection", std::process::id());
        assert_says(&world.node, &question, 0, &taken);
        drop(listener);
    }
}

test_in_each_layout!(endpoints_of_which_some_cannot_be_reached_are_partly_reached);
fn endpoints_of_which_some_cannot_be_reached_are_partly_reached(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &web());
    nft::load(
        &world.node,
        "table inet myfw { chain forw { type filter hook forward priority 0; ip daddr 10.244.2.10 counter drop comment \"ask bob\"; }; }",
    );
    let flow = Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(1), 80);
    let tally = crate::support::probe::probe_many(&world.shell, flow, FEW);
    // A first packet that is sent again after a second may be given to another endpoint, so not each dropped one is a failed connection.
    let reached = |outcome: &Outcome| matches!(outcome, Outcome::Reached(answer) if answer.endpoint == V4.endpoint(2));
    assert!(!tally.keys().any(reached) && tally.keys().any(|outcome| *outcome != Outcome::Dropped), "{tally:?}");
    let dropped = nft::list_ruleset(&world.node);
    assert!(
        dropped.contains("ip daddr 10.244.2.10 counter packets ")
            && !dropped.contains("10.244.2.10 counter packets 0 "),
        "{dropped}"
    );
    let (code, text) = said(&world.node, "explain --from 10.244.1.99 --to 10.96.0.1:80");
    let first = text.lines().nth(1).unwrap_or_default();
    assert!(code == 1 && first.starts_with("PARTLY: shop/web:http sends it to one of 3 endpoints"), "{text}");
    assert!(first.contains("table inet myfw, chain forw") && first.contains("ask bob"), "{text}");
}

test_in_each_layout!(a_proxy_that_is_stopped_is_named_as_a_problem);
fn a_proxy_that_is_stopped_is_named_as_a_problem(layout: Layout) {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config_in(layout), &web());
    proxy.signal(Signal::STOP);
    // The kernel serves on.
    let flow = Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(1), 80);
    assert_reaches(&world.shell, flow, &endpoints(V4, &[0, 1, 2], 8080), Source::Kept, FEW);
    assert_says(&world.node, "services shop/web", 1, "The kube-proxy at 127.0.0.1:10256 gives no answer within 3s");
    assert_says(&world.node, "services shop/web", 1, "served");
    proxy.signal(Signal::CONT);
    assert_says(&world.node, "services shop/web", 0, "served");
}

#[test]
fn without_a_table_or_the_capability_explain_says_so_as_services_does() {
    let world = World::new();
    let question = ["explain", "--from", "203.0.113.7", "--to", "10.96.0.1:80"];
    let (code, stdout, stderr) = outcome(&mut command(&world.node, &question));
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("no table ip kube-proxy in this network namespace"), "{stderr}");
    for words in [&question[..], &["services"]] {
        let mut powerless = world.node.command("setpriv");
        powerless.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(binary()).args(words);
        let (code, stdout, stderr) = outcome(&mut powerless);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains("this needs CAP_NET_ADMIN in the node's network namespace"), "{stderr}");
    }
}

//! `kube-proxy probe`: endpoints that answer, refuse, are silent or cannot be reached, in both families, and what it says of each.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::{command, outcome};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slice, slices};
use crate::support::plan::{Family, host_prefix};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

fn cluster() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let all = service("shop", "all").cluster_ips(2).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53);
    let closed = service("shop", "closed").cluster_ips(3).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53);
    let none = service("shop", "none").cluster_ips(4).port("http", Proto::Tcp, 80);
    let dns = service("shop", "dns").cluster_ips(5).port("dns", Proto::Udp, 53);
    let mut objects = vec![node(), service_cidr()];
    objects.extend([web, all, closed, none, dns].map(|service| service.json()));
    objects.extend(slices("shop", "web", &[0, 2], &[("http", Proto::Tcp, 8080)]));
    objects.extend(slices("shop", "dns", &[0, 2], &[("dns", Proto::Udp, 8080)]));
    objects.extend(slices("shop", "all", &[0, 1, 2, 3], &[("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 8080)]));
    objects.extend(slices("shop", "closed", &[0], &[("http", Proto::Tcp, 7), ("dns", Proto::Udp, 7)]));
    objects
}

/// The exit code and the document of a probe.
fn probed(node: &Namespace, args: &[&str]) -> (Option<i32>, Value) {
    let (code, stdout, stderr) = outcome(&mut command(node, &[&["probe", "-o", "json"], args].concat()));
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
}

/// The result and the text for an address.
fn result(document: &Value, protocol: &str, ip: IpAddr, port: u16) -> (String, String) {
    let address = json!(SocketAddr::new(ip, port));
    let probes = document["probes"].as_array().expect("a list");
    let mut found = probes.iter().filter(|probe| probe["address"] == address && probe["protocol"] == protocol);
    let (Some(probe), None) = (found.next(), found.next()) else {
        panic!("not one {address}/{protocol}: {document:#}")
    };
    (probe["result"].as_str().expect("a word").to_owned(), probe["text"].as_str().expect("a text").to_owned())
}

fn assert_result(document: &Value, protocol: &str, ip: IpAddr, port: u16, wanted: (&str, &str)) {
    let (kind, text) = result(document, protocol, ip, port);
    assert!(kind == wanted.0 && text.starts_with(wanted.1), "{ip} {port}/{protocol} is {kind}, {text}: {document:#}");
}

/// The words of a text with the times and the spaces of alignment taken out.
fn without_times(text: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> =
            line.split_whitespace().map(|word| if word.parse::<f64>().is_ok() { "N" } else { word }).collect();
        words.join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

test_in_each_layout!(who_answers_is_listed_with_times_and_who_does_not_with_the_cause);
fn who_answers_is_listed_with_times_and_who_does_not_with_the_cause(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());

    let (code, document) = probed(&world.node, &["shop/web", "shop/dns", "--timeout", "5s"]);
    assert_eq!(code, Some(0), "{document:#}");
    for family in Family::ALL {
        for (protocol, ip, port) in [
            ("TCP", family.cluster_ip(1), 80),
            ("TCP", family.node(), 30080),
            ("TCP", family.endpoint(0), 8080),
            ("TCP", family.endpoint(2), 8080),
            ("UDP", family.cluster_ip(5), 53),
            ("UDP", family.endpoint(0), 8080),
            ("UDP", family.endpoint(2), 8080),
        ] {
            assert_result(&document, protocol, ip, port, ("answers", "answers in "));
        }
    }
    let probes = document["probes"].as_array().expect("a list");
    assert_eq!(probes.len(), 14, "each endpoint once, whatever frontends lead to it: {document:#}");
    let sources = |probe: &&Value| {
        let source: IpAddr = serde_json::from_value(probe["source"].clone()).expect("an address");
        World::is_node_address(source) && probe["seconds"].as_f64().is_some_and(|seconds| seconds < 5.0)
    };
    assert_eq!(probes.iter().filter(sources).count(), 14, "{document:#}");

    let (code, text, _) = outcome(&mut command(&world.node, &["probe", "10.96.0.1:80"]));
    let expected = "SERVICE ADDRESS RESULT\nshop/web:http 10.96.0.1:80/TCP answers in N ms\n\
                    endpoint, local 10.244.1.10:8080/TCP answers in N ms\nendpoint 10.244.2.10:8080/TCP answers in N ms\n\
                    N of N frontends and N of N endpoints answer\n";
    assert_eq!((code, without_times(&text).as_str()), (Some(0), expected), "{text}");
    assert!(text.ends_with("\n1 of 1 frontends and 2 of 2 endpoints answer\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    // Endpoint 1 drops, endpoint 2 is behind a route that refuses, endpoint 3 behind one that drops.
    nft::load(
        &world.pods[1],
        "table inet t { chain c { type filter hook input priority 0; meta l4proto { tcp, udp } drop; }; }",
    );
    for family in Family::ALL {
        world.node.ip(&[
            format!("route replace unreachable {}", host_prefix(family.endpoint(2))),
            format!("route replace blackhole {}", host_prefix(family.endpoint(3))),
        ]);
    }
    let (code, document) = probed(&world.node, &["-n", "shop", "all", "closed", "none", "--timeout", "700ms"]);
    assert_eq!(code, Some(1), "{document:#}");
    for family in Family::ALL {
        let end = |n| family.endpoint(n);
        assert_result(&document, "TCP", end(0), 8080, ("answers", "answers in "));
        assert_result(&document, "TCP", end(1), 8080, ("noAnswer", "no answer within 700ms"));
        assert_result(&document, "TCP", end(2), 8080, ("noRoute", "host unreachable"));
        assert_result(&document, "TCP", end(3), 8080, ("noRoute", "no route"));
        assert_result(&document, "TCP", end(0), 7, ("refused", "refused"));
        assert_result(&document, "UDP", end(0), 8080, ("answers", "answers in "));
        assert_result(&document, "UDP", end(1), 8080, ("unknown", "no answer (UDP may be silent)"));
        assert_result(&document, "UDP", end(2), 8080, ("noRoute", "host unreachable"));
        assert_result(&document, "UDP", end(0), 7, ("refused", "unreachable port"));
        // The rules of this node refuse, at once: the time limit is less than that of the kernel until it sends again.
        assert_result(&document, "TCP", family.cluster_ip(4), 80, ("refused", "refused"));
        assert_result(&document, "TCP", family.cluster_ip(3), 80, ("refused", "refused"));
    }
}

// A pod of several Services has one backlog: it is asked once at each address, port and protocol, and each Service shows the answer.
test_in_each_layout!(a_pod_of_several_services_is_asked_once);
fn a_pod_of_several_services_is_asked_once(layout: Layout) {
    const SERVICES: u8 = 6;
    let world = World::new();
    let mut objects = vec![node(), service_cidr()];
    for n in 1..=SERVICES {
        let name = format!("web-{n}");
        let one = service("shop", &name).cluster_ip(Family::V4.cluster_ip(n)).port("http", Proto::Tcp, 80);
        objects.push(one.json());
        objects.push(slice("shop", &name, &name, &[Family::V4.endpoint(0)], &[("http", Proto::Tcp, 8080)]));
    }
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    // The frontends lead to the pod too, but their connections are counted by the destination at the node.
    nft::load(
        &world.node,
        "table ip t { chain c { type filter hook output priority -300; ip daddr 10.244.1.10 tcp flags syn / syn,ack counter; }; }",
    );
    let (code, document) = probed(&world.node, &["shop"]);
    let probes = document["probes"].as_array().expect("a list");
    assert_eq!((code, probes.len()), (Some(0), 2 * usize::from(SERVICES)), "{document:#}");
    let at_pod = probes.iter().filter(|probe| probe["address"] == "10.244.1.10:8080");
    let shown: Vec<_> = at_pod.map(|probe| (probe["result"].clone(), probe["seconds"].clone())).collect();
    assert_eq!(shown.len(), usize::from(SERVICES), "{document:#}");
    assert!(shown.iter().all(|one| *one == shown[0] && one.0 == "answers"), "{shown:?}");
    let counted = nft::list_ruleset(&world.node);
    assert!(counted.contains("tcp flags syn / syn,ack counter packets 1 "), "{counted}");
}

// Silence of UDP is no proof of a fault.
#[test]
fn silent_udp_alone_is_neither_right_nor_wrong() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &cluster());
    nft::load(
        &world.pods[0],
        "table inet t { chain c { type filter hook input priority 0; meta l4proto udp drop; }; }",
    );
    let (code, stdout, stderr) = outcome(&mut command(&world.node, &["probe", "shop/dns", "--timeout", "300ms"]));
    assert_eq!(code, Some(2), "{stdout}{stderr}");
    assert!(stdout.contains("no answer (UDP may be silent)"), "{stdout}");
    assert!(stderr.contains("cannot tell of ") && !stdout.contains("refused"), "{stdout}{stderr}");
}

// With SCTP in the kernel an association is opened; without it that is said, and is no fault of the endpoint.
#[test]
fn sctp_is_asked_where_the_kernel_has_it() {
    let world = World::new();
    let sctp = service("shop", "sctp").cluster_ip(Family::V4.cluster_ip(6)).port("s", Proto::Sctp, 9);
    let port = [("s", Proto::Sctp, 3868)];
    let slices = slice("shop", "sctp", "sctp-v4", &[Family::V4.endpoint(0)], &port);
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &[node(), service_cidr(), sctp.json(), slices]);
    let listener = world.pods[0].enter(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::SCTP)).ok()?;
        socket.bind(&SocketAddr::new(Family::V4.endpoint(0), 3868).into()).expect("the address is the pod's");
        socket.listen(1).expect("a bound socket can listen");
        Some(socket)
    });
    let (code, document) = probed(&world.node, &["shop/sctp"]);
    let (wanted, kind, text) = match listener {
        Some(_) => (0, "answers", "answers in "),
        None => (2, "unknown", "this kernel has no SCTP"),
    };
    assert_result(&document, "SCTP", Family::V4.endpoint(0), 3868, (kind, text));
    assert_eq!(code, Some(wanted), "{document:#}");
}

// Names, limits and states are as those of `services`.
#[test]
fn unknown_names_are_errors_and_many_endpoints_are_asked_in_part() {
    let world = World::new();
    let mut objects = cluster();
    let many = service("shop", "many").cluster_ip(Family::V4.cluster_ip(9)).port("http", Proto::Tcp, 80);
    let addresses: Vec<IpAddr> = (0..300_u32).map(|n| IpAddr::from((0x0af4_0400_u32 + n).to_be_bytes())).collect();
    for (n, some) in addresses.chunks(100).enumerate() {
        objects.push(slice("shop", "many", &format!("many-{n}"), some, &[("http", Proto::Tcp, 80)]));
    }
    objects.push(many.json());
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &objects);
    world.node.ip(&["route add blackhole 10.244.4.0/23"]);

    let said = |args: &[&str]| outcome(&mut command(&world.node, &[&["probe"], args].concat()));
    let (code, _, stderr) = said(&["shop/wbe"]);
    assert!(code == Some(2) && stderr.contains("did you mean shop/web:http?"), "{code:?} {stderr}");
    let (code, _, stderr) = said(&["shop/web", "--timeout", "0s"]);
    assert!(code == Some(2) && stderr.contains("expected a time from 1ms to 1m"), "{code:?} {stderr}");
    assert_eq!(said(&[]).0, Some(2), "a cluster is not asked as a whole by mistake");

    let (code, stdout, _) = said(&["shop/many", "--timeout", "100ms"]);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(
        stdout.contains("and 0 of 255 endpoints answer\n45 more addresses were not asked: --all asks them\n"),
        "{stdout}"
    );
    let (_, document) = probed(&world.node, &["shop/many", "--timeout", "100ms", "--all"]);
    assert_eq!((document["probes"].as_array().map(Vec::len), &document["notAsked"]), (Some(301), &json!(0)));
}

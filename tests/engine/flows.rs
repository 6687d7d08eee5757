//! The kernel's table of flows, in a network namespace: what is listed, and what is deleted.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::support::netns::{Namespace, run, run_with_input};
use kube_proxy::conntrack::Flow;
use kube_proxy::kernel::{Kernel as _, Netfilter};
use kube_proxy::model::Family;

/// A line of `conntrack --load-file`: a flow from client port `port` to a service, answered by an endpoint.
fn line(protocol: &str, v6: bool, client: u32, port: u32) -> String {
    let (from, to, endpoint) = if v6 {
        (format!("2001:db8:113::{:x}:{:x}", client >> 8, client & 255), "fd00:10:96::a", "fd00:10:244:1::10")
    } else {
        (format!("203.0.{}.{}", client >> 8, client & 255), "10.96.0.10", "10.244.1.10")
    };
    let state = if protocol == "tcp" { "--state ESTABLISHED" } else { "" };
    format!(
        "-A -t 600 -u SEEN_REPLY -p {protocol} -s {from} -d {to} --sport {port} --dport 53 -r {endpoint} -q {from} \
         --reply-port-src 5353 --reply-port-dst {port} {state}\n"
    )
}

fn load(node: &Namespace, lines: &str) {
    run_with_input(node.command("conntrack").args(["--load-file", "-"]), lines);
}

fn list(kernel: &mut Netfilter, family: Family) -> Vec<Flow> {
    kernel.udp_flows(family).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn only_udp_flows_of_the_family_are_listed_and_those_named_deleted() {
    // Flows of UDP are listed once a family and deleted; those of TCP and SCTP are left alone (J1, J2, J9).
    let node = Namespace::new("flows");
    let mut lines = String::new();
    for protocol in ["udp", "tcp"] {
        for port in 1000..1100 {
            lines += &line(protocol, false, 7, port);
            lines += &line(protocol, true, 7, port);
        }
    }
    load(&node, &lines);
    node.enter(|| {
        let mut kernel = Netfilter::open().unwrap_or_else(|error| panic!("{error}"));
        for family in Family::BOTH {
            let flows = list(&mut kernel, family);
            let handles: BTreeSet<_> = flows.iter().map(|flow| &flow.handle).collect();
            assert_eq!((flows.len(), handles.len()), (100, 100), "{family}");
            for flow in &flows {
                assert_eq!(Family::of(flow.original_destination.ip()), family);
                assert_eq!((flow.original_destination.port(), flow.reply_source.port()), (53, 5353));
            }
            let deleted = kernel.delete_flows(&flows[..70]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(deleted, 70, "more than go into one send");
            let again = kernel.delete_flows(&flows[..71]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(again, 1, "those that are gone already are no error and do not count");
            assert_eq!(list(&mut kernel, family), flows[71..], "the others are left");
        }
    });
    for family in ["ipv4", "ipv6"] {
        let left = run(node.command("conntrack").args(["-L", "-f", family, "-p", "tcp"]));
        assert_eq!(left.lines().count(), 100, "TCP flows of {family}");
    }
}

#[test]
#[ignore = "measures: cargo test --release --test engine flows:: -- --ignored --nocapture"]
fn listing_few_udp_flows_among_many() {
    // The UDP flows of a family are listed once after a sync (J1).
    let node = Namespace::new("many");
    let tcp = (0..99_900).map(|n| line("tcp", false, n % 30_000, 1000 + n / 30_000));
    load(&node, &tcp.chain((0..100).map(|n| line("udp", false, n, 1000))).collect::<String>());
    node.enter(|| {
        let mut kernel = Netfilter::open().unwrap_or_else(|error| panic!("{error}"));
        for _ in 0..5 {
            let start = Instant::now();
            assert_eq!(list(&mut kernel, Family::V4).len(), 100);
            println!("listed in {:?}", start.elapsed());
        }
    });
}

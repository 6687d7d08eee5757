//! The kernel's table of flows, in a network namespace: what is listed, and what is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use crate::support::netns::{Namespace, run, run_with_input};
use node::kernel::connections::{Connection, Phase};
use node::kernel::{self, Kernel as _, Netfilter};
use rules::conntrack::{Flow, Listing};
use rules::model::{Family, Protocol};

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
    kernel.flows(family, Listing::Udp, &mut |_| true).unwrap_or_else(|error| panic!("{error}"))
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
            let deleted = kernel.delete_flows(&flows[..70], None).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(deleted, 70, "more than go into one send");
            let again = kernel.delete_flows(&flows[..71], None).unwrap_or_else(|error| panic!("{error}"));
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
fn whether_anything_is_tracked_is_known_without_a_list() {
    // A list walks over the whole table, also when it is empty (J1, J12).
    let node = Namespace::new("flows");
    let tracks = || {
        node.enter(|| {
            let mut kernel = Netfilter::open().unwrap_or_else(|error| panic!("{error}"));
            kernel.tracks_flows().unwrap_or_else(|error| panic!("{error}"))
        })
    };
    assert!(!tracks());
    load(&node, &line("tcp", true, 7, 1000));
    assert!(tracks(), "one of IPv6");
}

/// The same, as one that the kernel translated itself.
fn translated(protocol: &str, v6: bool, client: u32, port: u32) -> String {
    let line = line(protocol, v6, client, port);
    let (start, answers) = line.split_once(" -r ").unwrap_or_default();
    let endpoint = answers.split(' ').next().unwrap_or_default();
    let endpoint = if v6 { format!("[{endpoint}]:5353") } else { format!("{endpoint}:5353") };
    let state = if protocol == "tcp" { "--state ESTABLISHED" } else { "" };
    format!("{start} --dst-nat {endpoint} {state}\n")
}

fn walk(node: &Namespace) -> Vec<Connection> {
    node.enter(|| {
        let mut found = Vec::new();
        kernel::each_connection(|connection| found.push(connection.clone())).unwrap_or_else(|error| panic!("{error}"));
        found
    })
}

#[test]
fn a_walk_meets_each_translated_connection_of_all_protocols_and_families_once() {
    let node = Namespace::new("walk");
    let untranslated = "-A -t 600 -u SEEN_REPLY -p udp -s 203.0.113.7 -d 10.96.0.11 --sport 1 --dport 53\n";
    let unanswered = translated("udp", false, 8, 999).replace("-u SEEN_REPLY", "-u UNSET");
    let ended = translated("tcp", false, 8, 998).replace("ESTABLISHED", "TIME_WAIT");
    let mut lines = format!("{untranslated}{unanswered}{ended}");
    for (protocol, v6) in [("udp", false), ("udp", true), ("tcp", false), ("tcp", true)] {
        lines.extend((1000..1500).map(|port| translated(protocol, v6, 7, port)));
    }
    load(&node, &lines);
    let found = walk(&node);
    let ids: BTreeSet<u32> = found.iter().map(|connection| connection.id).collect();
    assert_eq!((found.len(), ids.len()), (2002, 2002), "without the one that is not translated");
    let mut kinds = BTreeMap::<_, usize>::new();
    for connection in &found {
        assert_eq!((connection.original.destination.port(), connection.reply.source.port()), (53, 5353));
        assert_eq!(connection.counters, None, "accounting is off");
        let phase = format!("{:?}", connection.phase);
        *kinds.entry((connection.protocol, connection.original.source.is_ipv6(), phase)).or_default() += 1;
    }
    let open = |protocol, v6| ((protocol, v6, format!("{:?}", Phase::Open)), 500);
    let one = |protocol, phase: Phase| ((protocol, false, format!("{phase:?}")), 1);
    let expected = [open(6, false), open(6, true), open(17, false), open(17, true)];
    assert_eq!(
        kinds,
        BTreeMap::from_iter(expected.into_iter().chain([one(17, Phase::Unanswered), one(6, Phase::Ended)]))
    );
}

#[test]
fn connections_are_listed_by_whether_they_were_answered_and_reset_at_this_node() {
    // One list has only connections whose first packet nobody answered. No list has connections that have ended or are not translated (J9,
    // J12, J13).
    let node = Namespace::new("open");
    let mut lines = line("tcp", false, 7, 1) + &translated("udp", false, 7, 2);
    let states =
        [("SYN_SENT", "UNSET"), ("ESTABLISHED", "UNSET"), ("ESTABLISHED", "SEEN_REPLY"), ("TIME_WAIT", "SEEN_REPLY")];
    for v6 in [false, true] {
        for ((state, status), port) in states.iter().zip(10..) {
            let line = translated("tcp", v6, 7, port).replace("ESTABLISHED", state);
            lines += &line.replace("-u SEEN_REPLY", &format!("-u {status}"));
        }
    }
    load(&node, &lines);
    node.enter(|| {
        let mut kernel = Netfilter::open().unwrap_or_else(|error| panic!("{error}"));
        for family in Family::BOTH {
            let mut listed = |listing| {
                let flows = kernel.flows(family, listing, &mut |flow| flow.protocol != Protocol::Udp);
                let mut flows = flows.unwrap_or_else(|error| panic!("{error}"));
                flows.sort_by_key(|flow| flow.client.port());
                flows
            };
            let ports = |flows: &[Flow]| flows.iter().map(|flow| flow.client.port()).collect::<Vec<_>>();
            assert_eq!(ports(&listed(Listing::Unanswered)), [10], "{family}");
            let all = listed(Listing::Translated);
            assert_eq!(ports(&all), [10, 11, 12], "{family}");
            assert_eq!(all.iter().map(Flow::needs_reset).collect::<Vec<_>>(), [false, true, true]);
            assert_eq!(listed(Listing::Udp), []);
            let at = if family == Family::V4 { "127.0.0.1" } else { "::1" };
            let at = at.parse().unwrap_or_else(|error| panic!("{error}"));
            kernel.delete_flows(&all[..2], None).unwrap_or_else(|error| panic!("{error}"));
            for _ in 0..2 {
                kernel.delete_flows(&all[2..], Some(at)).unwrap_or_else(|error| panic!("{error}"));
            }
            let left = kernel.flows(family, Listing::Translated, &mut |_| true);
            let left = left.unwrap_or_else(|error| panic!("{error}"));
            let found: Vec<_> = left.iter().map(|flow| (flow.client, flow.reply_source)).collect();
            assert_eq!(found, [(all[2].client, SocketAddr::new(at, 0))], "in the place of the one that it deleted");
            assert!(left[0].timeout.abs_diff(600) < 60, "{}", left[0].timeout);
        }
    });
}

#[test]
fn a_walk_gives_counters_once_accounting_is_on() {
    let node = Namespace::new("acct");
    node.set_sysctl("netfilter/nf_conntrack_acct", "1");
    load(&node, &translated("tcp", false, 7, 1000));
    let found = walk(&node);
    assert_eq!(found.len(), 1);
    let (sent, answered) = found[0].counters.unwrap_or_else(|| panic!("no counters: {found:?}"));
    assert_eq!((sent.packets, answered.bytes), (0, 0), "a connection that no packet belongs to");
}

#[test]
#[ignore = "measures: cargo test --release --test engine flows:: -- --ignored --nocapture"]
fn listing_few_udp_flows_among_many() {
    // The UDP flows of a family are listed once after a sync (J1).
    let node = Namespace::new("many");
    let tcp = (0..99_900).map(|n| translated("tcp", false, n % 30_000, 1000 + n / 30_000));
    load(&node, &tcp.chain((0..100).map(|n| line("udp", false, n, 1000))).collect::<String>());
    node.enter(|| {
        let mut kernel = Netfilter::open().unwrap_or_else(|error| panic!("{error}"));
        for _ in 0..5 {
            let start = Instant::now();
            assert_eq!(list(&mut kernel, Family::V4).len(), 100);
            println!("listed in {:?}", start.elapsed());
            for listing in [Listing::Unanswered, Listing::Translated] {
                let start = Instant::now();
                let flows = kernel.flows(Family::V4, listing, &mut |_| false).unwrap_or_else(|error| panic!("{error}"));
                println!("{listing:?}, of which {} are wanted: {:?}", flows.len(), start.elapsed());
            }
        }
    });
}

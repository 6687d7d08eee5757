//! `--cleanup` against the real kernel, in network namespaces, on trees that iptables-nft and iptables-legacy made, and on what mode ipvs has
//! beside them.

mod ipsets;
mod ipvs;

mod legacy;

use crate::support::netns::{Namespace, run, run_with_input};
use crate::support::nft;
use component::config::Conntrack;
use node::kernel::leftovers::{CleanUp, Report, remove_all};
use node::kernel::probe::{ProbeError, probe};
use node::kernel::sysctl;
use rules::model::Family;
use std::time::Duration;

/// The rules of kubelet and of the node's owner as input of `iptables-restore`; `PROXY` marks the place for kube-proxy's rules.
const OTHERS: &str = "*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:MINE - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -p tcp -m tcp --dport 22 -m comment --comment \"my own\" -j MINE
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A MINE -m limit --limit 5/sec -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER -p tcp -m tcp --dport 8080 -j RETURN
COMMIT
";

/// What kube-proxy in mode iptables adds.
const PROXY: &str = "*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS
-I INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-SERVICES -p tcp -m comment --comment \"shop/empty has no endpoints\" -m tcp --dport 81 -j REJECT
COMMIT
*nat
:KUBE-EXT-5CCXP4CXUKOBJLPF - [0:0]
:KUBE-FW-5CCXP4CXUKOBJLPF - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SEP-ZX7GRIZKSNUQ3LAJ - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-5CCXP4CXUKOBJLPF - [0:0]
:KUBE-SVL-5CCXP4CXUKOBJLPF - [0:0]
-I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -p tcp -m tcp --dport 80 -j KUBE-SVC-5CCXP4CXUKOBJLPF
-A KUBE-SERVICES -p tcp -m tcp --dport 82 -j KUBE-FW-5CCXP4CXUKOBJLPF
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-5CCXP4CXUKOBJLPF
-A KUBE-FW-5CCXP4CXUKOBJLPF -j KUBE-EXT-5CCXP4CXUKOBJLPF
-A KUBE-EXT-5CCXP4CXUKOBJLPF -j KUBE-MARK-MASQ
-A KUBE-EXT-5CCXP4CXUKOBJLPF -j KUBE-SVL-5CCXP4CXUKOBJLPF
-A KUBE-SVC-5CCXP4CXUKOBJLPF -m statistic --mode random --probability 0.5 -j KUBE-SEP-ZX7GRIZKSNUQ3LAJ
-A KUBE-SVL-5CCXP4CXUKOBJLPF -j KUBE-SEP-ZX7GRIZKSNUQ3LAJ
-A KUBE-SEP-ZX7GRIZKSNUQ3LAJ -p tcp -m tcp -j DNAT --to-destination DESTINATION
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
";

fn restore(namespace: &Namespace, text: &str) {
    for (program, destination) in [("iptables-nft-restore", "10.0.0.1:80"), ("ip6tables-nft-restore", "[fd00::1]:80")] {
        let mut command = namespace.command(program);
        run_with_input(command.arg("--noflush"), &text.replace("DESTINATION", destination));
    }
}

/// What both families' tables hold, as iptables and as nft see it, without counters.
fn listing(namespace: &Namespace) -> String {
    let saved: String =
        ["iptables-nft-save", "ip6tables-nft-save"].iter().map(|p| run(&mut namespace.command(p))).collect();
    let lines = saved.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap_or(line).to_owned() + "\n").collect()
}

/// A node with the rules of others, and their listing.
fn node_of_others() -> (Namespace, String) {
    let node = Namespace::new("clean");
    restore(&node, OTHERS);
    // The built-in chains that kube-proxy's rules would bring into being.
    restore(
        &node,
        "*filter\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n*nat\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n",
    );
    let before = listing(&node);
    assert!(before.contains("--comment \"my own\" -j MINE") && before.contains(":FORWARD DROP"), "{before}");
    (node, before)
}

fn assert_fine(report: &Report) {
    assert_eq!((&report.errors[..], &report.warnings[..]), (&[][..], &[][..]));
}

#[test]
fn everything_of_kube_proxy_goes_and_nothing_else() {
    // A clean-up removes the tables and the chains of kube-proxy (O1).
    let (node, before) = node_of_others();
    restore(&node, PROXY);
    assert!(listing(&node).contains("-A KUBE-SEP-"), "the tree is there");
    let tables = "add table ip kube-proxy\nadd chain ip kube-proxy c\nadd table ip6 kube-proxy\nadd table inet mine\n\
                  add table inet kube-proxy-flowtable\n";
    nft::load(&node, tables);
    let report = node.enter(remove_all);
    assert_fine(&report);
    assert_eq!(listing(&node), before);
    let tables = run(node.command("nft").args(["list", "tables"]));
    assert!(!tables.contains("kube-proxy") && tables.contains("table inet mine"), "{tables}");
    assert!(report.removed.contains(&"table ip6 kube-proxy".to_owned()), "{:?}", report.removed);
    assert_eq!(node.enter(remove_all), Report::default(), "a second time there is nothing to do");
}

#[test]
fn a_start_takes_away_the_other_modes_but_not_our_table() {
    // What mode iptables left goes after the first sync (O2).
    let (node, before) = node_of_others();
    restore(&node, PROXY);
    nft::load(&node, "add table ip kube-proxy\nadd table inet kube-proxy-flowtable\n");
    for fast_path in [false, true] {
        let mut clean_up = CleanUp::of_other_modes(fast_path);
        let reports: Vec<Report> = node.enter(|| std::iter::from_fn(|| clean_up.step()).collect());
        reports.iter().for_each(assert_fine);
        assert!(!clean_up.retry(), "nothing failed");
        assert_eq!(listing(&node), before);
        let tables = run(node.command("nft").args(["list", "tables"]));
        assert!(tables.contains("table ip kube-proxy"), "{tables}");
        assert_eq!(tables.contains("kube-proxy-flowtable"), !fast_path, "{tables}");
    }
}

/// Drops all capabilities of the calling thread. Call it in [`Namespace::enter`], whose thread ends with its closure.
fn drop_capabilities() {
    let empty = rustix::thread::CapabilitySet::empty();
    let none = rustix::thread::CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
    rustix::thread::set_capabilities(None, none).unwrap_or_else(|error| panic!("cannot drop capabilities: {error}"));
}

#[test]
fn what_failed_and_only_that_is_tried_again() {
    let (node, before) = node_of_others();
    restore(&node, PROXY);
    let mut clean_up = CleanUp::of_other_modes(false);
    // Without CAP_NET_ADMIN the clean-up of every table fails.
    let without = node.enter(|| {
        drop_capabilities();
        std::iter::from_fn(|| clean_up.step()).flat_map(|report| report.errors).collect::<Vec<_>>()
    });
    let tables = without.iter().filter(|error| error.contains("chains from table")).count();
    assert_eq!(tables, 6, "three tables of two families: {without:?}");
    assert!(clean_up.retry());
    let reports: Vec<Report> = node.enter(|| std::iter::from_fn(|| clean_up.step()).collect());
    assert_eq!(reports.len(), without.len(), "only what failed");
    reports.iter().for_each(assert_fine);
    assert_eq!(listing(&node), before);
    assert!(!clean_up.retry());
}

#[test]
fn what_another_program_uses_stays_and_is_reported() {
    // A clean-up leaves the chain that other rules use (O1).
    let (node, _) = node_of_others();
    restore(&node, PROXY);
    restore(&node, "*nat\n-A DOCKER -j KUBE-SVC-5CCXP4CXUKOBJLPF\n-A DOCKER -j KUBE-MARK-MASQ\nCOMMIT\n");
    let report = node.enter(remove_all);
    assert_eq!(report.errors, [""; 0]);
    assert_eq!(report.warnings.len(), 4, "two chains in two families: {:?}", report.warnings);
    let after = listing(&node);
    let kept: Vec<&str> =
        after.lines().filter(|l| l.contains("KUBE-") && !l.contains("KUBELET") && !l.contains("HINT")).collect();
    let expected = [
        ":KUBE-FIREWALL -",
        "-A INPUT -j KUBE-FIREWALL",
        ":KUBE-MARK-MASQ -",
        ":KUBE-SVC-5CCXP4CXUKOBJLPF -",
        "-A DOCKER -j KUBE-SVC-5CCXP4CXUKOBJLPF",
        "-A DOCKER -j KUBE-MARK-MASQ",
        "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
    ];
    let sorted = |mut lines: Vec<&str>| (lines.sort_unstable(), lines).1.join("\n");
    assert_eq!(sorted(kept), sorted([expected, expected].concat()));
}

#[test]
fn an_empty_node_is_clean() {
    // A clean-up of a node without rules succeeds (O1).
    let node = Namespace::new("bare");
    assert_eq!(node.enter(remove_all), Report::default());
    assert_eq!(nft::list_ruleset(&node), "");
}

#[test]
fn the_probe_leaves_nothing_behind() {
    // The check of the kernel changes nothing (O3).
    let node = Namespace::new("probe");
    for families in [&Family::BOTH[..], &[Family::V4], &[Family::V6]] {
        node.enter(|| probe(families, true)).unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(nft::list_ruleset(&node), "");
}

#[test]
fn the_probe_names_the_missing_capability() {
    // The check of the privilege names what is missing (O3).
    let node = Namespace::new("probe");
    let outcome = node.enter(|| {
        drop_capabilities();
        probe(&Family::BOTH, false)
    });
    assert!(matches!(outcome, Err(ProbeError::NotPermitted(_))), "{outcome:?}");
}

#[test]
fn time_outs_reach_the_kernel() {
    // Time-outs of flows are written in seconds, and only where they differ (N3, N4).
    let node = Namespace::new("sysctl");
    let settings = Conntrack {
        tcp_established: Some(Duration::from_secs(86_400)),
        tcp_close_wait: Some(Duration::from_secs(3_601)),
        udp: Some(Duration::from_secs(31)),
        udp_stream: Some(Duration::from_secs(181)),
        tcp_be_liberal: true,
        ..Conntrack::default()
    };
    let written = node.enter(|| sysctl::apply(&settings)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(written.len(), 5, "{written:?}");
    for (name, value) in [("tcp_timeout_established", "86400"), ("udp_timeout_stream", "181"), ("tcp_be_liberal", "1")]
    {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
        assert_eq!(run(node.command("cat").arg(path)).trim(), value, "{name}");
    }
    let again = node.enter(|| sysctl::apply(&settings)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again, [], "what is right is not written");
}

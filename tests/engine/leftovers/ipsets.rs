//! Sets of ipset, which mode ipvs fills and its rules use. Needs ipset (`make deps`).

use super::{PROXY, assert_fine, listing, node_of_others, restore};
use crate::support::netns::{Namespace, run, run_with_input};
use node::kernel::leftovers::{Report, remove_all};

/// What mode ipvs has for both families, and sets of others.
const SETS: &str = "create KUBE-CLUSTER-IP hash:ip,port
add KUBE-CLUSTER-IP 10.96.0.1,tcp:443
create KUBE-6-CLUSTER-IP hash:ip,port family inet6
create KUBE-NODE-PORT-SCTP-HASH hash:ip,port
create KUBE-LOOP-BACK hash:ip,port,ip
create KUBE-IPVS-IPS hash:ip
create KUBE-ROUTER-PODS hash:ip
create blocked hash:net
";

fn fill(node: &Namespace) {
    run_with_input(node.command("ipset").arg("restore"), SETS);
}

fn sets(node: &Namespace) -> Vec<String> {
    let mut names: Vec<String> = run(node.command("ipset").args(["list", "-n"])).lines().map(str::to_owned).collect();
    names.sort();
    names
}

/// A rule of mode ipvs with a set, for both variants of iptables.
const RULE: &str = "*nat
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
";

#[test]
fn sets_of_mode_ipvs_go_with_the_rules_that_use_them_and_those_of_others_stay() {
    // A clean-up removes the ipsets of mode ipvs (O1).
    let (node, before) = node_of_others();
    fill(&node);
    restore(&node, PROXY);
    run_with_input(node.command("iptables-nft-restore").arg("--noflush"), RULE);
    let legacy = "*nat\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n";
    run_with_input(&mut node.command("iptables-legacy-restore"), legacy);
    run_with_input(node.command("iptables-legacy-restore").arg("--noflush"), RULE);
    let report = node.enter(remove_all);
    assert_fine(&report);
    assert_eq!(listing(&node), before);
    assert_eq!(sets(&node), ["KUBE-ROUTER-PODS", "blocked"]);
    assert!(report.removed.contains(&"5 ipsets of mode ipvs".to_owned()), "{:?}", report.removed);
    assert_eq!(node.enter(remove_all), Report::default(), "a second time there is nothing to do");
}

#[test]
fn a_set_that_another_program_uses_stays_and_is_reported() {
    // A clean-up leaves the set that other rules use (O1).
    let (node, _) = node_of_others();
    fill(&node);
    let rule = "*nat\n-A DOCKER -m set --match-set KUBE-IPVS-IPS dst -j RETURN\nCOMMIT\n";
    run_with_input(node.command("iptables-nft-restore").arg("--noflush"), rule);
    let report = node.enter(remove_all);
    assert_eq!(report.errors, [""; 0]);
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
    assert!(report.warnings[0].contains("KUBE-IPVS-IPS"), "{:?}", report.warnings);
    assert_eq!(sets(&node), ["KUBE-IPVS-IPS", "KUBE-ROUTER-PODS", "blocked"]);
}

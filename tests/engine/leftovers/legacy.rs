//! Tables of iptables-legacy.

use super::{OTHERS, PROXY, assert_fine, drop_capabilities};
use crate::support::netns::{Namespace, run, run_with_input};
use node::kernel::leftovers::{CleanUp, Report, remove_all};
use std::sync::{Mutex, PoisonError};
use std::thread;

const PROGRAMS: [(&str, &str); 2] = [("iptables-legacy", "10.0.0.1:80"), ("ip6tables-legacy", "[fd00::1]:80")];

/// What a policy has counted. Each `iptables-restore` sets it to zero where it does not say otherwise.
const POLICY: &str = "*filter\n:FORWARD DROP [3:180]\nCOMMIT\n";

/// Rules that have counted something.
const COUNTED: &str = "*filter
[7:420] -A MINE -p udp -m udp --dport 53 -j ACCEPT
[1:60] -A MINE -g DONE
[2:120] -A MINE -p tcp -m tcp --dport 25
COMMIT
";

/// All namespaces share iptables-legacy's lock, `/run/xtables.lock`, and a start does not wait long for it: these tests run one by one.
static XTABLES: Mutex<()> = Mutex::new(());

fn restore(namespace: &Namespace, text: &str) {
    for (program, destination) in PROGRAMS {
        let mut command = namespace.command(format!("{program}-restore"));
        run_with_input(command.args(["--noflush", "--counters"]), &text.replace("DESTINATION", destination));
    }
}

/// What both families' tables hold, with counters.
fn listing(namespace: &Namespace) -> String {
    let saved: String =
        PROGRAMS.iter().map(|(program, _)| run(namespace.command(format!("{program}-save")).arg("-c"))).collect();
    saved.lines().filter(|line| !line.starts_with('#')).map(|line| line.to_owned() + "\n").collect()
}

/// A node with rules of others that have counted, and their listing.
fn node_of_others() -> (Namespace, String) {
    let node = Namespace::new("legacy");
    restore(&node, OTHERS);
    restore(&node, "*filter\n:DONE - [0:0]\nCOMMIT\n");
    restore(&node, COUNTED);
    restore(&node, POLICY);
    let before = listing(&node);
    assert!(before.contains("[7:420] -A MINE -p udp") && before.contains("[2:120] -A MINE"), "{before}");
    (node, before)
}

#[test]
fn everything_of_kube_proxy_goes_from_legacy_tables_and_nothing_else() {
    let _turn = XTABLES.lock().unwrap_or_else(PoisonError::into_inner);
    // A clean-up removes the chains of kube-proxy from tables of iptables-legacy, and keeps what other rules counted (O1).
    let (node, before) = node_of_others();
    restore(&node, PROXY);
    restore(&node, POLICY);
    assert!(listing(&node).contains("-A KUBE-SEP-"), "the tree is there");
    let report = node.enter(remove_all);
    assert_fine(&report);
    assert_eq!(listing(&node), before);
    assert!(
        report.removed.contains(&"10 chains of table ip nat of iptables-legacy".to_owned()),
        "{:?}",
        report.removed
    );
    assert_eq!(node.enter(remove_all), Report::default(), "a second time there is nothing to do");
}

#[test]
fn a_start_takes_legacy_rules_away_and_tries_again_what_failed() {
    let _turn = XTABLES.lock().unwrap_or_else(PoisonError::into_inner);
    // What mode iptables left in tables of iptables-legacy goes after the first sync (O2).
    let (node, before) = node_of_others();
    restore(&node, PROXY);
    restore(&node, POLICY);
    let mut clean_up = CleanUp::of_other_modes(false);
    let failed = node.enter(|| {
        drop_capabilities();
        std::iter::from_fn(|| clean_up.step()).flat_map(|report| report.errors).collect::<Vec<_>>()
    });
    let of_legacy = failed.iter().filter(|error| error.contains("iptables-legacy")).count();
    assert_eq!(of_legacy, 6, "three tables of two families: {failed:?}");
    assert!(clean_up.retry());
    let reports: Vec<Report> = node.enter(|| std::iter::from_fn(|| clean_up.step()).collect());
    reports.iter().for_each(assert_fine);
    assert_eq!(listing(&node), before);
    assert!(!clean_up.retry());
}

#[test]
fn what_another_legacy_rule_uses_stays_empty_and_is_reported() {
    let _turn = XTABLES.lock().unwrap_or_else(PoisonError::into_inner);
    // A clean-up leaves the chain that other rules use (O1).
    let (node, _) = node_of_others();
    restore(&node, PROXY);
    restore(&node, "*nat\n-A DOCKER -j KUBE-SVC-5CCXP4CXUKOBJLPF\n-A DOCKER -j KUBE-MARK-MASQ\nCOMMIT\n");
    let report = node.enter(remove_all);
    assert_eq!(report.errors, [""; 0]);
    assert_eq!(report.warnings.len(), 4, "two chains in two families: {:?}", report.warnings);
    let after = listing(&node);
    let kept = |line: &&str| line.contains("KUBE-S") || line.contains("KUBE-MARK-MASQ");
    let kept: Vec<&str> = after.lines().filter(kept).collect();
    let expected = [
        ":KUBE-MARK-MASQ - [0:0]",
        ":KUBE-SVC-5CCXP4CXUKOBJLPF - [0:0]",
        "[0:0] -A DOCKER -j KUBE-SVC-5CCXP4CXUKOBJLPF",
        "[0:0] -A DOCKER -j KUBE-MARK-MASQ",
        "[0:0] -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
    ];
    assert_eq!(kept, [expected, expected].concat());
}

#[test]
fn no_table_is_made_by_looking_for_one() {
    let _turn = XTABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let node = Namespace::new("legacy");
    assert_eq!(node.enter(remove_all), Report::default());
    for names in ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"] {
        assert_eq!(run(node.command("cat").arg(names)), "", "{names}");
    }
}

#[test]
fn no_rule_is_lost_that_another_program_adds_meanwhile() {
    let _turn = XTABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let (node, _) = node_of_others();
    const RULES: usize = 60;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for port in 1..=RULES {
                let mut command = node.command("iptables-legacy");
                let rule = [
                    "-w",
                    "60",
                    "-t",
                    "nat",
                    "-A",
                    "DOCKER",
                    "-p",
                    "tcp",
                    "--dport",
                    &port.to_string(),
                    "-j",
                    "RETURN",
                ];
                run(command.args(rule));
            }
        });
        let mut removed = 0;
        while !writer.is_finished() {
            let mut command = node.command("iptables-legacy-restore");
            run_with_input(
                command.args(["--noflush", "-w", "60"]),
                "*nat\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n",
            );
            let report = node.enter(remove_all);
            assert_fine(&report);
            removed += report.removed.len();
        }
        assert!(removed > 1, "the two wrote in turns");
    });
    let after = listing(&node);
    assert_eq!(after.matches("-A DOCKER -p tcp -m tcp --dport").count(), RULES + 1 + 1, "{after}");
    assert!(!after.contains("KUBE-SERVICES"), "{after}");
}

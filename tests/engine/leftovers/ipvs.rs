//! Virtual servers and the interface of mode ipvs. Needs ipvsadm.

use crate::support::netns::{Namespace, run, run_with_input};
use node::kernel::leftovers::{CleanUp, Report, remove_all};

/// Virtual servers of cluster IPs and of a node port, in both families.
const OURS: &str = "-A -t 10.96.0.1:443 -s rr
-a -t 10.96.0.1:443 -r 192.0.2.9:6443 -m -w 1
-A -u 10.96.0.10:53 -s rr
-A -t [fd00:10:96::1]:443 -s rr
-A -t 192.0.2.1:30080 -s rr
";

/// Virtual servers of others: keepalived's at an address of the node and elsewhere, and one of a firewall mark.
const OTHERS: [&str; 3] = ["-A -t 192.0.2.1:6443 -s rr", "-A -t 198.51.100.1:80 -s rr", "-A -f 7 -s rr"];

/// A node on which kube-proxy ran in mode ipvs.
fn node() -> Namespace {
    let node = Namespace::new("ipvs");
    node.ip(&[
        "link set lo up",
        "link add eth0 type dummy",
        "addr add 192.0.2.1/24 dev eth0",
        "link add kube-ipvs0 type dummy",
        "addr add 10.96.0.1/32 dev kube-ipvs0",
        "addr add 10.96.0.10/32 dev kube-ipvs0",
        "addr add fd00:10:96::1/128 dev kube-ipvs0",
    ]);
    run_with_input(node.command("ipvsadm").arg("--restore"), &format!("{OURS}{}\n", OTHERS.join("\n")));
    node
}

fn servers(node: &Namespace) -> Vec<String> {
    let saved = run(node.command("ipvsadm").args(["--save", "-n"]));
    let mut servers: Vec<String> =
        saved.lines().filter(|line| line.starts_with("-A")).map(|line| line.trim().to_owned()).collect();
    servers.sort();
    servers
}

fn others() -> Vec<String> {
    let mut others = OTHERS.map(str::to_owned);
    others.sort();
    others.to_vec()
}

fn interfaces(node: &Namespace) -> String {
    run(node.command("ip").args(["-br", "link"]))
}

fn assert_ours_are_gone(node: &Namespace, report: &Report) {
    assert_eq!(report.errors, [""; 0]);
    assert_eq!(servers(node), others());
    assert!(!interfaces(node).contains("kube-ipvs0"), "{}", interfaces(node));
    let removed = ["4 virtual servers of mode ipvs", "interface kube-ipvs0 of mode ipvs"];
    assert_eq!(report.removed, removed);
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
    let warning = &report.warnings[0];
    assert!(warning.contains("2 virtual servers") && warning.contains("ipvsadm -D -t 192.0.2.1:6443"), "{warning}");
}

#[test]
#[ignore = "needs the kernel's modules ip_vs and dummy; vm-tests/run has them"]
fn virtual_servers_of_kube_proxy_go_and_those_of_others_stay() {
    // A clean-up removes the virtual servers and the interface of mode ipvs (O1).
    let node = node();
    let report = node.enter(remove_all);
    assert_ours_are_gone(&node, &report);
    let again = node.enter(remove_all);
    assert_eq!((&again.errors[..], &again.removed[..]), (&[][..], &[][..]));
    let [warning] = &again.warnings[..] else { panic!("{:?}", again.warnings) };
    assert!(warning.contains("without interface kube-ipvs0 it cannot be told whose they are"), "{warning}");
    assert_eq!(servers(&node), others(), "without the interface nothing is kube-proxy's");
}

#[test]
#[ignore = "needs the kernel's modules ip_vs and dummy; vm-tests/run has them"]
fn a_start_takes_virtual_servers_away() {
    // What mode ipvs left goes after the first sync (O2).
    let node = node();
    let report = node.enter(|| {
        let mut clean_up = CleanUp::of_other_modes(false);
        let mut all = Report::default();
        while let Some(report) = clean_up.step() {
            all.removed.extend(report.removed);
            all.warnings.extend(report.warnings);
            all.errors.extend(report.errors);
        }
        all
    });
    assert_ours_are_gone(&node, &report);
}

#[test]
fn an_interface_of_that_name_that_is_no_dummy_stays_and_is_reported() {
    let node = Namespace::new("ipvs");
    node.ip(&["link add kube-ipvs0 type veth peer name other"]);
    let report = node.enter(remove_all);
    assert_eq!((&report.errors[..], &report.removed[..]), (&[][..], &[][..]));
    assert!(report.warnings.len() == 1 && report.warnings[0].contains("no dummy device"), "{:?}", report.warnings);
    assert!(interfaces(&node).contains("kube-ipvs0"));
}

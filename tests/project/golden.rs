//! The ruleset of small clusters, as text that stands in the repository.
//!
//! Takes `tests/data/golden/NAME/` (manifests, and `config.yaml` for the proxy), has the built binary render it in each layout and
//! compares that with `nft/rulesets/LAYOUT/NAME.nft`. `BLESS=1 cargo test --test project golden` writes these files instead; look at their
//! difference then. The host's nft must load each of them (root) and list what was loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::netns::{Namespace, run};
use crate::support::nft;

/// Every cluster has a folder and an expected ruleset in each layout, and nothing else lies there.
const CLUSTERS: [&str; 20] = [
    "affinity",
    "bridge-detector",
    "cluster-ip",
    "counters",
    "dual-stack-sctp",
    "empty",
    "endpoint-maps",
    "external-ip",
    "hairpin",
    "internal-local",
    "kube-dns",
    "load-balancer-sources",
    "localhost-node-ports",
    "maglev",
    "masquerade-all",
    "no-endpoints",
    "node-port-local",
    "service-addresses",
    "source-hash",
    "terminating",
];
const LAYOUTS: [&str; 3] = ["maps", "chains", "service-chains"];

/// A cluster in a layout.
#[derive(Clone, Copy, Debug)]
struct Case {
    layout: &'static str,
    cluster: &'static str,
}

fn cases() -> impl Iterator<Item = Case> {
    LAYOUTS.into_iter().flat_map(|layout| CLUSTERS.into_iter().map(move |cluster| Case { layout, cluster }))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn manifests(cluster: &str) -> PathBuf {
    root().join("tests/data/golden").join(cluster)
}

fn expected_path(case: Case) -> PathBuf {
    root().join("nft/rulesets").join(case.layout).join(format!("{}.nft", case.cluster))
}

fn expected(case: Case) -> String {
    let path = expected_path(case);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; try BLESS=1", path.display()))
}

/// What `kube-proxy render` prints; anything on standard error is a mistake in the manifests.
fn render(case: Case) -> String {
    let manifests = manifests(case.cluster);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
    command.arg("render").arg("--manifests").arg(&manifests).arg("--config").arg(manifests.join("config.yaml"));
    let (layout, endpoint_chains) =
        if case.layout == "service-chains" { ("chains", false) } else { (case.layout, true) };
    command.args([format!("--ruleset-layout={layout}"), format!("--endpoint-chains={endpoint_chains}")]);
    let output = command.output().expect("the built binary can be run");
    assert!(output.status.success() && output.stderr.is_empty(), "{case:?}: {output:?}");
    String::from_utf8(output.stdout).expect("nft text is UTF-8")
}

/// The lines that differ, with those around them left out; `None` when the texts are equal.
fn difference(expected: &str, found: &str) -> Option<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let same_start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - same_start;
    let same_end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let lines = |sign: char, list: &[&str]| -> String {
        list[same_start..list.len() - same_end].iter().map(|line| format!("{sign}{line}\n")).collect()
    };
    (expected != found).then(|| format!("line {}:\n{}{}", same_start + 1, lines('-', &old), lines('+', &new)))
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let stem = |path: PathBuf| path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = entries.filter_map(|entry| stem(entry.ok()?.path())).collect();
    names.sort();
    names
}

#[test]
fn each_cluster_renders_its_ruleset() {
    // Services are elements of the sets and maps, in the chains of the layout (F3, F4).
    let mut wrong = String::new();
    for case in cases() {
        let text = render(case);
        if std::env::var_os("BLESS").is_some() {
            fs::write(expected_path(case), &text).expect("the expected text can be written");
        } else if let Some(difference) = difference(&expected(case), &text) {
            wrong.push_str(&format!("{case:?}, {difference}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "not as in nft/rulesets; `BLESS=1 cargo test --test project golden` takes it over:\n{wrong}"
    );
}

/// The rules of a chain, without their comments.
fn rules<'a>(text: &'a str, chain: &str) -> Vec<&'a str> {
    let lines = text.lines().map(str::trim).skip_while(|line| *line != format!("chain {chain} {{"));
    let rules = lines.skip(1).take_while(|line| *line != "}").filter(|line| !line.starts_with("comment "));
    rules.map(|rule| rule.split_once(" comment ").map_or(rule, |(rule, _)| rule)).collect()
}

#[test]
fn the_chains_of_kube_dns_are_those_of_iptables_mode() {
    let text = expected(Case { layout: "chains", cluster: "kube-dns" });
    for (frontend, hash) in [
        ("10.96.0.10 . udp . 53 comment \"kube-system/kube-dns:dns\"", "TCOU7JCQXEZGVUNU"),
        ("10.96.0.10 . tcp . 53 comment \"kube-system/kube-dns:dns-tcp\"", "ERIFXISQEP7F7OF4"),
        ("10.96.0.10 . tcp . 9153 comment \"kube-system/kube-dns:metrics\"", "JD5MR3NA4I4DYORP"),
        ("10.96.0.1 . tcp . 443 comment \"default/kubernetes:https\"", "NPX46M4PTMTKRN6Y"),
    ] {
        assert!(text.contains(&format!("{frontend} : goto KUBE-SVC-{hash}")), "{frontend}");
    }
    // Masquerading, then one of the endpoints: in iptables mode a rule with a probability for each.
    let marks = "ip saddr != 10.200.0.0/16 ip daddr @cluster-ips jump KUBE-MARK-MASQ";
    let (first, second) = ("KUBE-SEP-X2ADUEUQITSVT76E", "KUBE-SEP-YKQ3S3HS332IQ2RP");
    let choice = "numgen random mod 2 vmap @KUBE-SVC-TCOU7JCQXEZGVUNU";
    assert_eq!(rules(&text, "KUBE-SVC-TCOU7JCQXEZGVUNU"), [marks, choice]);
    assert_eq!(rules(&text, "KUBE-SVC-NPX46M4PTMTKRN6Y"), [marks, "goto KUBE-SEP-HFMBYHW5FO36NATD"]);
    let elements = text.split("map KUBE-SVC-TCOU7JCQXEZGVUNU {").nth(1).and_then(|rest| rest.split('}').next());
    let elements: Vec<&str> = elements.unwrap_or_default().split(['{', ',']).map(str::trim).collect();
    assert_eq!(elements[1..], [format!("0 : goto {first}"), format!("1 : goto {second}")]);
    let itself = "ip saddr 10.200.192.74 jump KUBE-MARK-MASQ";
    assert_eq!(rules(&text, first), [itself, "meta l4proto udp counter dnat to 10.200.192.74:53"]);
    // The endpoint is on another node, so it has no rule for masquerading.
    assert_eq!(rules(&text, second), ["meta l4proto udp counter dnat to 10.200.192.75:53"]);
    assert_eq!(rules(&text, "KUBE-SEP-HFMBYHW5FO36NATD"), ["meta l4proto tcp counter dnat to 10.240.0.10:6443"]);
}

#[test]
fn without_chains_of_endpoints_kube_dns_has_those_of_its_service_ports() {
    let text = expected(Case { layout: "service-chains", cluster: "kube-dns" });
    // Masquerading, then one of the endpoints: in iptables mode a rule with a probability for each, and here an element.
    let marks = "ip saddr != 10.200.0.0/16 ip daddr @cluster-ips jump KUBE-MARK-MASQ";
    let choice = |count| {
        format!("dnat ip to ip daddr . meta l4proto . th dport . numgen random mod {count} map @counted-endpoints")
    };
    assert_eq!(rules(&text, "KUBE-SVC-TCOU7JCQXEZGVUNU"), [marks, "goto lb-2"]);
    assert_eq!(rules(&text, "KUBE-SVC-NPX46M4PTMTKRN6Y"), [marks, "goto lb-1"]);
    assert_eq!(rules(&text, "lb-2"), [choice(2), choice(1)]);
    // A lone endpoint needs no second try.
    assert_eq!(rules(&text, "lb-1"), [choice(1)]);
    for (slot, endpoint) in [(0, "10.200.192.74"), (1, "10.200.192.75")] {
        let element = format!("10.96.0.10 . udp . 53 . {slot} counter : {endpoint} . 53");
        assert!(text.contains(&element), "{element}");
    }
    // The endpoint on this node may reach itself; that on another one is not this node's matter.
    assert!(text.contains("10.200.192.74 . 10.200.192.74 . udp . 53"));
    assert!(!text.contains("10.200.192.75 . 10.200.192.75"));
}

#[test]
fn rendering_is_repeatable() {
    for case in cases() {
        assert_eq!(render(case), render(case), "{case:?}");
    }
}

#[test]
fn the_hosts_nft_loads_each_ruleset_and_lists_the_same() {
    // Each ruleset has the tables with their names, and can be loaded (F1).
    for case in cases() {
        let text = expected(case);
        let namespace = Namespace::new("golden");
        nft::load(&namespace, &text);
        assert_eq!(nft::normalised(&nft::list_ruleset(&namespace)), nft::normalised(&text), "{case:?}");
        // A table can be deleted, so nothing outside refers to it.
        run(namespace.command("nft").args(["delete", "table", "ip", "kube-proxy"]));
    }
}

#[test]
fn no_cluster_and_no_ruleset_is_forgotten() {
    assert_eq!(names_in(&root().join("tests/data/golden")), CLUSTERS);
    for layout in LAYOUTS {
        assert_eq!(names_in(&root().join("nft/rulesets").join(layout)), CLUSTERS);
    }
}

#[test]
fn a_difference_shows_the_lines_that_differ() {
    assert_eq!(difference("a\nb\nc\n", "a\nb\nc\n"), None);
    assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\n").as_deref(), Some("line 2:\n-b\n+x\n+y\n"));
    assert_eq!(difference("a\na\n", "a\n").as_deref(), Some("line 2:\n-a\n"));
}

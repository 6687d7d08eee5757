//! The commands of `nft/README.md`, typed beside a golden cluster in the layout that their section is about.
//!
//! The cluster is `kube-dns`, or what the line of text before the commands names: "the cluster `NAME`". Each line below a command must be part of a line that the command prints. Root, for a network namespace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::netns::{Namespace, run};
use crate::support::nft;

const CLUSTER: &str = "kube-dns";
/// The section whose commands are typed in both forms of layout `chains`.
const FROM_IPTABLES: &str = "From iptables mode";
/// Each layout with the heading of its own section.
const LAYOUTS: [(&str, &str); 3] = [
    ("maps", "Layout `maps`"),
    ("chains", "Layout `chains`"),
    ("service-chains", "Layout `chains` without chains of endpoints"),
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("nft")
}

/// A command of the page, the cluster that it is about, and the lines shown below it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    cluster: String,
    command: String,
    shown: Vec<String>,
}

/// The commands of a page by the heading that they stand under.
fn steps(page: &str) -> Vec<(String, Step)> {
    let (mut heading, mut cluster) = (String::new(), CLUSTER);
    let mut steps: Vec<(String, Step)> = Vec::new();
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("## ") {
            text.clone_into(&mut heading);
            cluster = CLUSTER;
        } else if let Some((_, named)) = line.split_once("the cluster `") {
            cluster = named.split('`').next().unwrap_or_default();
        } else if let Some(command) = line.strip_prefix("    $ ") {
            let step = Step { cluster: cluster.to_owned(), command: command.to_owned(), shown: Vec::new() };
            steps.push((heading.clone(), step));
        } else if let (Some(text), Some((_, step))) = (line.strip_prefix("    "), steps.last_mut()) {
            step.shown.push(text.trim().to_owned());
        }
    }
    steps
}

/// The commands of a page that are typed in a layout.
fn steps_in(layout: &str, page: &str) -> Vec<Step> {
    let own = LAYOUTS.iter().find(|(name, _)| *name == layout).expect("a layout").1;
    let is_typed = |heading: &str| match heading {
        FROM_IPTABLES => layout != "maps",
        heading => heading == own || !heading.starts_with("Layout"),
    };
    steps(page).into_iter().filter(|(heading, _)| is_typed(heading)).map(|(_, step)| step).collect()
}

fn page() -> String {
    fs::read_to_string(directory().join("README.md")).expect("the page can be read")
}

/// A namespace with the rules of a golden cluster.
fn loaded(layout: &str, cluster: &str) -> Namespace {
    let namespace = Namespace::new("walk");
    let rules = directory().join("rulesets").join(layout).join(format!("{cluster}.nft"));
    nft::load(&namespace, &fs::read_to_string(rules).expect("the ruleset can be read"));
    namespace
}

/// What the output of a step lacks.
fn missing<'a>(step: &'a Step, output: &str) -> Option<&'a str> {
    step.shown.iter().map(String::as_str).find(|shown| !output.lines().any(|line| line.contains(shown)))
}

#[test]
fn every_command_prints_what_the_page_shows() {
    // Elements of a frontend carry the name of its service port (F6).
    for (layout, _) in LAYOUTS {
        let mut clusters: BTreeMap<String, Namespace> = BTreeMap::new();
        let steps = steps_in(layout, &page());
        assert!(steps.len() > 8, "the page has few commands for {layout}");
        for step in steps {
            let namespace = clusters.entry(step.cluster.clone()).or_insert_with(|| loaded(layout, &step.cluster));
            let output = run(namespace.command("sh").args(["-c", &step.command]));
            assert_eq!(missing(&step, &output), None, "{layout}: {} printed\n{output}", step.command);
            assert!(!output.trim().is_empty(), "{layout}: {} printed nothing", step.command);
        }
    }
}

/// Each kind of chain, and the match that remembers clients, that `iptables-save` shows of mode iptables; and the object that a typed
/// command must name for it, with chains of endpoints and without. KUBE-PROXY-CANARY has none.
const KINDS: [(&str, [&str; 2]); 20] = [
    ("PREROUTING", ["nat-prerouting"; 2]),
    ("OUTPUT", ["nat-output"; 2]),
    ("KUBE-SERVICES", ["KUBE-SERVICES"; 2]),
    ("KUBE-NODEPORTS", ["KUBE-NODEPORTS"; 2]),
    ("KUBE-SVC-H", ["KUBE-SVC-"; 2]),
    ("KUBE-SVL-H", ["KUBE-SVL-"; 2]),
    ("-m statistic", ["map ip kube-proxy KUBE-SVC-", "lb-2"]),
    ("KUBE-SEP-H -j DNAT", ["chain ip kube-proxy KUBE-SEP-", "map ip kube-proxy counted-endpoints"]),
    ("KUBE-SEP-H -s IP", ["chain ip kube-proxy KUBE-SEP-", "hairpin"]),
    ("-m recent", ["set ip kube-proxy KUBE-SEP-", "map ip kube-proxy affinity-"]),
    ("KUBE-EXT-H", ["KUBE-EXT-"; 2]),
    ("KUBE-FW-H", ["KUBE-FW-"; 2]),
    ("KUBE-XLB-H", ["KUBE-SVL-"; 2]),
    ("KUBE-MARK-MASQ", ["KUBE-MARK-MASQ"; 2]),
    ("KUBE-POSTROUTING", ["KUBE-POSTROUTING"; 2]),
    ("KUBE-FORWARD", ["KUBE-FORWARD"; 2]),
    ("filter `KUBE-SERVICES", ["KUBE-SERVICES-FILTER"; 2]),
    ("filter `KUBE-EXTERNAL-SERVICES", ["KUBE-EXTERNAL-SERVICES"; 2]),
    ("filter `KUBE-NODEPORTS", ["KUBE-INPUT"; 2]),
    ("filter `KUBE-PROXY-FIREWALL", ["KUBE-PROXY-FIREWALL"; 2]),
];

#[test]
fn every_kind_of_chain_of_iptables_mode_has_a_row_and_a_command_in_both_forms() {
    // Who knows the chains of iptables mode finds what stands in their place (F5).
    let page = page();
    let (_, section) = page.split_once(&format!("\n## {FROM_IPTABLES}\n")).expect("the section is there");
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let typed = ["chains", "service-chains"].map(|layout| steps_in(layout, &page));
    let has_row = |kind: &str| rows.iter().any(|row| row[1].contains(kind) && !row[2].is_empty() && !row[3].is_empty());
    for (kind, objects) in KINDS {
        assert!(has_row(kind), "no row for {kind}");
        for (steps, object) in typed.iter().zip(objects) {
            assert!(steps.iter().any(|step| step.command.contains(object)), "{kind}: no command names {object}");
        }
    }
    for kind in ["KUBE-PROXY-CANARY", "KUBE-MARK-DROP"] {
        assert!(has_row(kind), "no row for {kind}");
    }
}

#[test]
fn what_a_page_shows_and_a_command_does_not_print_is_noticed() {
    let page = "## A\nIn the cluster `c`:\n    $ one\n    x\n    y\n\n## B\n    $ two\n";
    let found = steps(page);
    let step = |cluster: &str, command: &str, shown: &[&str]| Step {
        cluster: cluster.to_owned(),
        command: command.to_owned(),
        shown: shown.iter().map(ToString::to_string).collect(),
    };
    let (one, two) = (step("c", "one", &["x", "y"]), step(CLUSTER, "two", &[]));
    assert_eq!(missing(&one, "ax\nb"), Some("y"));
    assert_eq!(missing(&one, "ax\nby"), None);
    assert_eq!(found, [("A".to_owned(), one), ("B".to_owned(), two)]);
}

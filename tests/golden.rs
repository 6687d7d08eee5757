//! The ruleset of small clusters, as text that stands in the repository.
//!
//! Takes `tests/data/golden/NAME/` (manifests, and `config.yaml` for the proxy), has the built binary render it and compares that with
//! `nft/rulesets/maps/NAME.nft`. `BLESS=1 cargo test --test golden` writes these files instead; look at their difference then. The
//! host's nft must load each of them (root) and list what was loaded.

#![forbid(unsafe_code)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::netns::{Namespace, run};
use support::nft;

/// Every cluster has a folder and an expected ruleset, and nothing else lies there.
const CLUSTERS: [&str; 7] =
    ["cluster-ip", "dual-stack-sctp", "empty", "hairpin", "load-balancer-sources", "no-endpoints", "node-port-local"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn manifests(cluster: &str) -> PathBuf {
    root().join("tests/data/golden").join(cluster)
}

fn expected_path(cluster: &str) -> PathBuf {
    root().join("nft/rulesets/maps").join(format!("{cluster}.nft"))
}

fn expected(cluster: &str) -> String {
    let path = expected_path(cluster);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; try BLESS=1", path.display()))
}

/// What `kube-proxy render` prints; anything on standard error is a mistake in the manifests.
fn render(cluster: &str) -> String {
    let manifests = manifests(cluster);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-proxy"));
    command.arg("render").arg("--manifests").arg(&manifests).arg("--config").arg(manifests.join("config.yaml"));
    let output = command.output().expect("the built binary can be run");
    assert!(output.status.success() && output.stderr.is_empty(), "{cluster}: {output:?}");
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
    // F3 F4
    let mut wrong = String::new();
    for cluster in CLUSTERS {
        let text = render(cluster);
        if std::env::var_os("BLESS").is_some() {
            fs::write(expected_path(cluster), &text).expect("the expected text can be written");
        } else if let Some(difference) = difference(&expected(cluster), &text) {
            wrong.push_str(&format!("{cluster}, {difference}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "not as in nft/rulesets/maps; `BLESS=1 cargo test --test golden` takes it over:\n{wrong}"
    );
}

#[test]
fn rendering_is_repeatable() {
    for cluster in CLUSTERS {
        assert_eq!(render(cluster), render(cluster), "{cluster}");
    }
}

#[test]
fn the_hosts_nft_loads_each_ruleset_and_lists_the_same() {
    // F1
    for cluster in CLUSTERS {
        let text = expected(cluster);
        let namespace = Namespace::new("golden");
        nft::load(&namespace, &text);
        assert_eq!(nft::normalised(&nft::list_ruleset(&namespace)), nft::normalised(&text), "{cluster}");
        // What is unused can be deleted: nothing refers to a table from outside.
        run(namespace.command("nft").args(["delete", "table", "ip", "kube-proxy"]));
    }
}

#[test]
fn no_cluster_and_no_ruleset_is_forgotten() {
    assert_eq!(names_in(&root().join("tests/data/golden")), CLUSTERS);
    assert_eq!(names_in(&root().join("nft/rulesets/maps")), CLUSTERS);
}

#[test]
fn a_difference_shows_the_lines_that_differ() {
    assert_eq!(difference("a\nb\nc\n", "a\nb\nc\n"), None);
    assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\n").as_deref(), Some("line 2:\n-b\n+x\n+y\n"));
    assert_eq!(difference("a\na\n", "a\n").as_deref(), Some("line 2:\n-a\n"));
}

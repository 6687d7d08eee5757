//! The commands of `nft/README.md`, typed beside the golden cluster `kube-dns` in the layout that their section is about.
//!
//! Each line below a command must be part of a line that the command prints. Root, for a network namespace.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::netns::{Namespace, run};
use crate::support::nft;

const CLUSTER: &str = "kube-dns.nft";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("nft")
}

/// A command of the page and the lines shown below it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    command: String,
    shown: Vec<String>,
}

/// The commands of a page by the heading that they stand under.
fn steps(page: &str) -> Vec<(String, Step)> {
    let mut heading = String::new();
    let mut steps: Vec<(String, Step)> = Vec::new();
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("## ") {
            text.clone_into(&mut heading);
        } else if let Some(command) = line.strip_prefix("    $ ") {
            steps.push((heading.clone(), Step { command: command.to_owned(), shown: Vec::new() }));
        } else if let (Some(text), Some((_, step))) = (line.strip_prefix("    "), steps.last_mut()) {
            step.shown.push(text.trim().to_owned());
        }
    }
    steps
}

/// What the output of a step lacks.
fn missing<'a>(step: &'a Step, output: &str) -> Option<&'a str> {
    step.shown.iter().map(String::as_str).find(|shown| !output.lines().any(|line| line.contains(shown)))
}

#[test]
fn every_command_prints_what_the_page_shows() {
    // Elements of a front carry the name of its service port (F6).
    let page = fs::read_to_string(directory().join("README.md")).expect("the page can be read");
    for layout in ["maps", "chains"] {
        let namespace = Namespace::new("walk");
        let rules = directory().join("rulesets").join(layout).join(CLUSTER);
        nft::load(&namespace, &fs::read_to_string(rules).expect("the ruleset can be read"));
        let own = format!("Layout `{layout}`");
        let steps: Vec<Step> = steps(&page)
            .into_iter()
            .filter(|(heading, _)| *heading == own || !heading.starts_with("Layout"))
            .map(|(_, step)| step)
            .collect();
        assert!(steps.len() > 8, "the page has few commands for {layout}");
        for step in steps {
            let output = run(namespace.command("sh").args(["-c", &step.command]));
            assert_eq!(missing(&step, &output), None, "{layout}: {} printed\n{output}", step.command);
            assert!(!output.trim().is_empty(), "{layout}: {} printed nothing", step.command);
        }
    }
}

#[test]
fn what_a_page_shows_and_a_command_does_not_print_is_noticed() {
    let page = "## A\ntext\n    $ one\n    x\n    y\n\n## B\n    $ two\n";
    let found = steps(page);
    let one = Step { command: "one".to_owned(), shown: vec!["x".to_owned(), "y".to_owned()] };
    let two = Step { command: "two".to_owned(), shown: Vec::new() };
    assert_eq!(missing(&one, "ax\nb"), Some("y"));
    assert_eq!(missing(&one, "ax\nby"), None);
    assert_eq!(found, [("A".to_owned(), one), ("B".to_owned(), two)]);
}

//! The pages for contributors, `.github/*.md` and `src/decisions/`: each command names what there is, each path and link leads somewhere, and
//! each decision has the same parts.
//!
//! Reads files only; needs no root.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::pages::{page, project};
use super::workflows::targets;

const HEADINGS: [&str; 5] = ["Question", "Decision", "Reasons", "What was tried", "What would change it"];

/// The pages of a folder, by their paths in the repository.
fn pages_of(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(project().join(folder)).expect("a folder can be read");
    let names = entries.map(|entry| format!("{folder}/{}", entry.expect("an entry").file_name().to_string_lossy()));
    let mut pages: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
    pages.sort();
    pages
}

/// The code of a page: spans within sentences, and the lines of blocks without their remarks.
fn code(page: &str) -> Vec<&str> {
    let blocks = page.lines().filter_map(|line| line.strip_prefix("    "));
    let spans = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    blocks.filter_map(|line| line.split("  #").next()).chain(spans).map(str::trim).collect()
}

/// What a command names that there is not.
fn flaw(command: &str) -> Option<String> {
    let mut words = command.split_whitespace().skip_while(|word| *word == "sudo" || word.contains('='));
    match words.next()? {
        "make" => {
            words.find(|word| !word.contains('=') && !targets().contains(*word)).map(|word| format!("make {word}"))
        }
        "cargo" => {
            let words: Vec<&str> = words.collect();
            let of_flag = |flag| words.iter().skip_while(move |word| **word != flag).nth(1);
            let program = of_flag("--test").map(|name| format!("tests/{name}"));
            let package = of_flag("-p").map(|name| format!("src/{name}"));
            let path = program.or(package).unwrap_or_else(|| "Cargo.toml".to_owned());
            let filter =
                words.last().and_then(|word| word.strip_suffix("::").or_else(|| word.contains("::").then_some(word)));
            let module = filter.map(|filter| format!("{path}/{}", filter.replace("::", "/")));
            let is_there =
                |path: &String| ["", ".rs"].iter().any(|end| project().join(format!("{path}{end}")).exists());
            [Some(path), module].into_iter().flatten().find(|path| !is_there(path))
        }
        _ => None,
    }
}

/// Whether code is the path of a file or folder of the repository.
fn is_path(code: &str) -> bool {
    let folders = ["src/", "tests/", "nft/", "deploy/", "benches/", "vm-tests/", ".github/", ".ci/", "examples/"];
    folders.iter().any(|folder| code.starts_with(folder)) && !code.contains([' ', '*'])
}

#[test]
fn what_the_pages_for_contributors_name_is_there() {
    for name in pages_of(".github").into_iter().chain(pages_of("src/decisions")) {
        let page = page(&name);
        for code in code(&page) {
            assert_eq!(flaw(code), None, "{name}: {code}");
            assert!(!is_path(code) || project().join(code).exists(), "{name} names {code}");
        }
        let beside = project().join(Path::new(&name).parent().expect("a page is in a folder"));
        let links = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.contains("://")) {
            assert!(beside.join(link).exists(), "{name} links {link}");
        }
    }
}

#[test]
fn a_command_that_names_nothing_is_found() {
    for command in
        ["make quikc", "sudo make deps-bild", "cargo test -p rule", "cargo test --test packets services::upd"]
    {
        assert!(flaw(command).is_some(), "{command} is taken for good");
    }
    for command in ["make quick", "cargo test -p rules --lib endpoints::", "cargo test --test packets services::udp"] {
        assert_eq!(flaw(command), None, "{command}");
    }
    assert!(is_path("tests/engine/") && !is_path("tests"));
    assert_eq!(code("a `b c` d\n\n    make x   # y\n"), ["make x", "b c"]);
}

#[test]
fn the_first_change_of_the_page_is_still_as_it_says() {
    let page = page(".github/CONTRIBUTING.md");
    let source = fs::read_to_string(project().join("src/rules/endpoints/categories.rs")).expect("a file");
    assert!(page.contains("`src/rules/endpoints/categories.rs`"));
    let broken = "!later.endpoint.conditions.terminating";
    assert!(page.contains(&format!("`{broken}`")) && source.matches(broken).count() == 1);
    let tests = fs::read_to_string(project().join("src/rules/endpoints/tests/merging.rs")).expect("a file");
    let noticing = "of_duplicates_the_running_and_then_the_later_wins";
    assert!(page.contains(&format!("`{noticing}`")));
    let (_, test) = tests.split_once(&format!("fn {noticing}()")).expect("the test is there");
    assert!(test.lines().take(4).any(|line| line.contains("(B10)")), "the comment names the statement");
}

#[test]
fn each_decision_has_the_same_parts_and_is_in_the_list() {
    let pages = pages_of("src/decisions");
    let list = page("src/decisions/README.md");
    let linked: BTreeSet<String> = list
        .lines()
        .filter_map(|line| {
            Some(format!("src/decisions/{}", line.strip_prefix("| [")?.split("](").nth(1)?.split(')').next()?))
        })
        .collect();
    let decisions: BTreeSet<String> = pages.into_iter().filter(|name| !name.ends_with("README.md")).collect();
    assert_eq!(linked, decisions);
    for name in &decisions {
        let page = page(name);
        let lines = page.lines().count();
        assert!(lines <= 60, "{name} has {lines} lines");
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "{name}");
        assert!(page.lines().nth(2).is_some_and(|line| line.starts_with("Status: ")), "{name}");
    }
}

//! Which statement of the behavioural contract is covered by which test.
//!
//! Reads the tests' own comments (`// D6 D7` above a test, or as the first lines in it) and writes the table `tests/COVERAGE.md`
//! (`BLESS=1 cargo test --test coverage`). Fails when a statement about traffic has neither a test nor a reason here, when a
//! reason is left over, and when the table is not what the tests say.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The sections of the contract that concern traffic, with the number of statements in each.
const SECTIONS: [(char, u32); 7] = [('A', 15), ('B', 15), ('C', 10), ('D', 24), ('E', 8), ('H', 5), ('I', 3)];

/// Statements without a test, and why.
const REASONS: &[(&str, &str)] = &[
    ("C10", "a race of upstream's start-up; here nothing is written before the initial objects (G1), which is tested"),
    ("D21", "a statement of absence: the program has no accept verdict, as the rulesets in nft/rulesets show"),
];

/// A statement's number, such as `D6`.
type Statement = (char, u32);

fn statement(word: &str) -> Option<Statement> {
    let mut chars = word.chars();
    let section = chars.next().filter(char::is_ascii_uppercase)?;
    let digits = chars.as_str();
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then(|| Some((section, digits.parse().ok()?)))?
}

/// The statements that a comment begins with: the whole of it, or up to a colon or semicolon.
fn statements(line: &str) -> Option<Vec<Statement>> {
    let text = line.trim().strip_prefix("// ")?;
    let head = text.split([':', ';']).next()?;
    let words = head.split([' ', ',']).filter(|word| !word.is_empty());
    words.map(statement).collect::<Option<Vec<_>>>().filter(|list| !list.is_empty())
}

fn function_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ").unwrap_or(line.trim_start());
    let rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split('(').next()
}

/// The tests of a file with the statements they name.
fn tests_of(text: &str) -> Vec<(String, Vec<Statement>)> {
    let mut tests: Vec<(String, Vec<Statement>)> = Vec::new();
    let mut above = Vec::new();
    let mut is_test = false;
    for line in text.lines() {
        if let Some(found) = statements(line) {
            match tests.last_mut() {
                // Inside a test, a comment is indented deeper than the attribute of the next one.
                Some((_, list)) if is_test && above.is_empty() && !next_is_attribute(text, line) => list.extend(found),
                _ => above.extend(found),
            }
        } else if line.trim() == "#[test]" || line.trim().starts_with("#[tokio::test") {
            is_test = true;
            tests.push((String::new(), std::mem::take(&mut above)));
        } else if let Some(name) = function_name(line) {
            match tests.last_mut() {
                Some((test, _)) if is_test && test.is_empty() => name.clone_into(test),
                _ => is_test = false,
            }
        }
    }
    tests.retain(|(_, list)| !list.is_empty());
    tests
}

/// Whether a comment stands directly above an attribute, other comments aside.
fn next_is_attribute(text: &str, comment: &str) -> bool {
    let start = comment.as_ptr().addr() - text.as_ptr().addr();
    let mut rest = text[start..].lines().map(str::trim).skip_while(|line| line.starts_with("//"));
    rest.next().is_some_and(|line| line.starts_with("#["))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every statement that a test names, with the tests.
fn covered() -> BTreeMap<Statement, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut covered: BTreeMap<Statement, BTreeSet<String>> = BTreeMap::new();
    for file in files(&root.join("src")).into_iter().chain(files(&root.join("tests"))) {
        let place = file.strip_prefix(root).unwrap().display().to_string();
        for (test, list) in tests_of(&fs::read_to_string(&file).unwrap()) {
            for statement in list {
                covered.entry(statement).or_default().insert(format!("`{place}`: {test}"));
            }
        }
    }
    covered
}

fn all() -> impl Iterator<Item = Statement> {
    SECTIONS.into_iter().flat_map(|(section, count)| (1..=count).map(move |number| (section, number)))
}

fn reason(wanted: Statement) -> Option<&'static str> {
    REASONS.iter().find(|(name, _)| statement(name) == Some(wanted)).map(|(_, text)| *text)
}

fn table(covered: &BTreeMap<Statement, BTreeSet<String>>) -> String {
    let mut text = "# Which test covers which statement\n\nWritten by `BLESS=1 cargo test --test coverage` from the comments \
                    of the tests; not by hand.\nThe statements are those of the behavioural contract, sections A to E, H and I.\n\n\
                    | statement | tests |\n|---|---|\n"
        .to_owned();
    for (section, number) in all() {
        let tests = covered.get(&(section, number)).map(|tests| tests.iter().cloned().collect::<Vec<_>>().join("<br>"));
        let cell = tests.or_else(|| reason((section, number)).map(|text| format!("none: {text}")));
        writeln!(text, "| {section}{number} | {} |", cell.unwrap_or_else(|| "none".to_owned())).unwrap();
    }
    text
}

#[test]
fn every_statement_about_traffic_has_a_test_or_a_reason() {
    let covered = covered();
    let missing: Vec<String> = all()
        .filter(|statement| !covered.contains_key(statement) && reason(*statement).is_none())
        .map(|(section, number)| format!("{section}{number}"))
        .collect();
    assert!(missing.is_empty(), "no test names {}", missing.join(", "));
    let idle: Vec<&str> =
        REASONS.iter().map(|(name, _)| *name).filter(|n| covered.contains_key(&statement(n).unwrap())).collect();
    assert!(idle.is_empty(), "there are tests for {}: drop their reasons", idle.join(", "));
}

#[test]
fn the_table_says_what_the_tests_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/COVERAGE.md");
    let wanted = table(&covered());
    if env::var_os("BLESS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let present = fs::read_to_string(&path).unwrap_or_default();
    assert!(present == wanted, "tests/COVERAGE.md is out of date: run BLESS=1 cargo test --test coverage");
}

#[test]
fn comments_are_found_above_and_within_tests() {
    let text =
        "// D6 D7\n#[test]\nfn above() {}\n\n#[test]\nfn within() {\n    // C9, E1\n}\n\nfn helper() {\n    // A1\n}\n";
    let found = tests_of(text);
    assert_eq!(found[0], ("above".to_owned(), vec![('D', 6), ('D', 7)]));
    assert_eq!(found[1], ("within".to_owned(), vec![('C', 9), ('E', 1)]));
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(statements("// D6 is about this"), None);
    assert_eq!(statements("// D6, D7: both"), Some(vec![('D', 6), ('D', 7)]));
}

//! The table of kernels in `deploy/COMPATIBILITY.md` is what the matrix of virtual machines found: `vm-tests/run --record` writes both it and
//! `vm-tests/RESULTS.md`, and nothing else writes either.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- kernels: written by vm-tests/run --record -->";
const END: &str = "<!-- kernels: end -->";

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The results of the last run of the whole matrix, and those of the last run on arm64, if there are any.
fn results() -> (String, Option<String>) {
    let text = read("vm-tests/RESULTS.md");
    match text.split_once("\n## arm64\n") {
        Some((matrix, arm64)) => (matrix.to_owned(), Some(arm64.to_owned())),
        None => (text, None),
    }
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// The lines of the first table.
fn table(text: &str) -> Vec<&str> {
    text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).collect()
}

/// The lines that the page must have for these results.
fn summary(results: &str) -> Vec<String> {
    let lines = table(results);
    let columns = cells(lines[0]);
    let column = |name: &str| columns.iter().position(|column| *column == name).unwrap_or_else(|| panic!("no {name}"));
    let rows: Vec<Vec<&str>> = lines[2..].iter().map(|line| cells(line)).collect();
    let mut kernels: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    kernels.dedup();
    let line = |kernel: &&str| {
        let rows: Vec<_> = rows.iter().filter(|row| row[0] == *kernel).collect();
        let count = |verdict: &str| rows.iter().flat_map(|row| &row[2..]).filter(|cell| **cell == verdict).count();
        // The results of groups that run once a kernel are in the row of the kernel's own nft.
        let is = |group: &str, verdict: &str| rows.iter().any(|row| row[column(group)] == verdict);
        let tests = match count("fail") {
            _ if is("restart", "n/a") && is("old-kernel", "pass") => "refused, as it is too old".to_owned(),
            0 => format!("{} passed", count("pass")),
            failed => format!("{} passed, {failed} failed", count("pass")),
        };
        let listing = rows.iter().filter(|row| row[column("listing")] == "pass");
        let versions: Vec<&str> = listing.map(|row| row[1].split(' ').next().unwrap()).collect();
        let versions = if versions.is_empty() { "none".to_owned() } else { versions.join(", ") };
        format!("| {kernel} | {tests} | {versions} |")
    };
    kernels.iter().map(line).collect()
}

#[test]
fn the_table_of_kernels_is_what_the_matrix_found() {
    let page = read("deploy/COMPATIBILITY.md");
    let part = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).expect("the page has the markers").0;
    let found: Vec<String> = table(part).into_iter().skip(2).map(str::to_owned).collect();
    assert_eq!(found, summary(&results().0), "run vm-tests/run --record");
}

/// What is incomplete or bad about results.
fn flaws(results: &str) -> Vec<String> {
    let rows = &table(results)[2..];
    let bad = |line: &&&str| cells(line).into_iter().any(|cell| ["fail", "not run", ""].contains(&cell));
    let mut flaws: Vec<String> = rows.iter().filter(bad).map(ToString::to_string).collect();
    if rows.is_empty() {
        flaws.push("the table is empty".to_owned());
    }
    // Whatever does not apply says why, below the table.
    let reasons: Vec<&str> = results.lines().filter(|line| line.contains("**n/a**")).collect();
    let unexplained = reasons.iter().filter(|line| !line.split_once("**n/a**").unwrap().1.contains(": "));
    flaws.extend(unexplained.map(ToString::to_string));
    let inapplicable = rows.iter().flat_map(|line| cells(line)).filter(|cell| *cell == "n/a").count();
    if reasons.len() != inapplicable {
        flaws.push(format!("{inapplicable} groups do not apply, and {} reasons are given", reasons.len()));
    }
    flaws
}

#[test]
fn the_results_that_were_kept_are_complete_and_good() {
    let (matrix, arm64) = results();
    assert_eq!(flaws(&matrix), [""; 0]);
    assert_eq!(arm64.map_or(Vec::new(), |section| flaws(&section)), [""; 0]);
}

/// The groups in the matrix, from its shell arrays.
fn groups() -> Vec<String> {
    let matrix = read("vm-tests/matrix.sh");
    let array = |name: &str| {
        let start = format!("{name}=(");
        let line = matrix.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("no {name}"));
        line.trim_end_matches(')').split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    [array("GROUPS_PER_KERNEL"), array("GROUPS_PER_NFT")].concat()
}

#[test]
fn the_results_that_were_kept_have_every_group_of_the_matrix_and_the_commit() {
    let matrix = results().0;
    let (columns, wanted) = (table(&matrix)[0], groups());
    assert!(wanted.len() > 15, "{wanted:?}");
    let missing: Vec<&String> = wanted.iter().filter(|group| !cells(columns).contains(&group.as_str())).collect();
    assert_eq!(missing, [""; 0], "run vm-tests/run --record");
    let commits = matrix.split_once(", of commit ").expect("the commit stands in the first line").1;
    let commit: String = commits.chars().take_while(char::is_ascii_hexdigit).collect();
    assert_eq!(commit.len(), 12, "{commits:.60}");
}

#[test]
fn flaws_of_results_are_found() {
    let head = "| kernel | nft | restart |\n|---|---|---|\n";
    let good = "| 5.10.1 (a) | 0.9 (a) | n/a |\n| 6.1.2 (b) | 1.0.6 (b) | pass |\n\n- a, nft of a, restart: **n/a**: too old\n";
    assert_eq!(flaws(&format!("{head}{good}")), [""; 0]);
    for bad in [
        String::new(),
        good.replace("pass", "fail"),
        good.replace("pass", ""),
        good.replace("pass", "not run"),
        good.replace("pass", "n/a"),
        good.replace(": too old", ""),
    ] {
        assert_eq!(flaws(&format!("{head}{bad}")).len(), 1, "{bad}");
    }
}

#[test]
fn a_summary_names_each_kernel_and_its_failed_groups() {
    let results = "
| kernel | nft | old-kernel | restart | listing |
|---|---|---|---|---|
| 5.10.1 (a) | 0.9 (a) | pass | n/a | n/a |
| 5.10.1 (a) | 1.0.6 (b) | once a kernel | once a kernel | n/a |
| 6.1.2 (b) | 0.9 (a) | once a kernel | once a kernel | n/a |
| 6.1.2 (b) | 1.0.6 (b) | n/a | pass | pass |
| 6.12 (c) | 1.0.6 (b) | n/a | fail | pass |
| 6.12 (c) | 1.1.3 (c) | n/a | pass | pass |

- text";
    let expected = [
        "| 5.10.1 (a) | refused, as it is too old | none |",
        "| 6.1.2 (b) | 2 passed | 1.0.6 |",
        "| 6.12 (c) | 3 passed, 1 failed | 1.0.6, 1.1.3 |",
    ];
    assert_eq!(summary(results), expected);
}

//! The pages of `deploy/distributions`: one for each row of their index, with the same headings, and with what was read and what was tried.

use std::collections::BTreeMap;

use super::pages::{page, pages};

const FOLDER: &str = "deploy/distributions/";
const INDEX: &str = "README.md";
const HEADINGS: [&str; 4] = ["Where the proxy runs", "Swap", "Go back", "When the distribution upgrades"];

/// The pages by their names, without the index.
fn distributions() -> BTreeMap<String, String> {
    let all = pages().into_iter().filter_map(|path| path.strip_prefix(FOLDER).map(str::to_owned));
    all.filter(|name| name != INDEX).map(|name| (name.clone(), page(&format!("{FOLDER}{name}")))).collect()
}

/// The cell behind this first cell of a table.
fn cell<'a>(page: &'a str, first: &str) -> Option<&'a str> {
    page.lines().find_map(|line| line.strip_prefix(&format!("| {first} | "))?.strip_suffix(" |"))
}

#[test]
fn each_page_has_the_headings_of_all_and_says_what_was_read_and_tried() {
    let pages = distributions();
    assert!(pages.len() >= 12, "{:?}", pages.keys());
    for (name, page) in pages {
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "{name}");
        let read = cell(&page, "read").unwrap_or_else(|| panic!("{name} does not say what was read"));
        let is_dated = read.split(|c: char| !c.is_ascii_digit()).any(|word| word.starts_with("20") && word.len() == 4);
        assert!(read.contains('/') && (is_dated || read.contains("not of one release")), "{name}: {read}");
        assert!(cell(&page, "tried").is_some_and(|tried| tried.contains("ot tried")), "{name} says what was not tried");
    }
}

#[test]
fn the_index_has_a_row_for_each_page_and_says_the_same_of_what_was_tried() {
    let index = page(&format!("{FOLDER}{INDEX}"));
    let rows: BTreeMap<String, &str> = index
        .lines()
        .filter_map(|line| line.strip_prefix("| [")?.split_once(") | "))
        .map(|(link, rest)| (link.split_once("](").expect("a link").1.to_owned(), rest))
        .collect();
    let pages = distributions();
    assert_eq!(rows.keys().collect::<Vec<_>>(), pages.keys().collect::<Vec<_>>());
    for (name, row) in rows {
        let tried = row.trim_end_matches(" |").rsplit(" | ").next().expect("a row has cells");
        let of_page = cell(&pages[&name], "tried").unwrap_or_default();
        assert_eq!(tried == "not tried", of_page.starts_with("not tried"), "{name}: {tried}, and {of_page}");
    }
}

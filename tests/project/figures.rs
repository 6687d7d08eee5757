//! The figures in pages, and the plots, come from `benches/bench.json`, which the bench wrote.
//!
//! `BLESS=1` (`make plots`) first takes over the rows of `target/bench.json`, if it is there, and then writes pages and plots.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs};

use regex::Regex;
use serde_json::json;

use super::bench_figures::{Point, Row, Run, merge, pages, plots, read, time, written};
use super::pages::{page, project};

/// The pages that have figures.
const PAGES: [&str; 4] = ["README.md", "benches/README.md", "benches/FIGURES.md", "deploy/FLEET.md"];
/// Figures in the pages that the bench does not measure.
const OTHERS: [&str; 1] = ["serves nothing for some 2 s"];

/// Returns the rows of the committed run; with `BLESS`, first takes over the rows of the last run.
fn committed() -> Vec<Row> {
    let path = project().join("benches/bench.json");
    let rows = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        read(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| project().join("target"), PathBuf::from);
    let last = target.join("bench.json");
    if !blesses() || !last.exists() {
        return rows(&path);
    }
    let merged = merge(rows(&path), rows(&last));
    fs::write(&path, written(&merged)).expect("it can be written");
    merged
}

fn blesses() -> bool {
    env::var_os("BLESS").is_some()
}

/// Compares a file with what it should be; with `BLESS`, writes it.
fn compare(name: &str, expected: &str) {
    let path = project().join(name);
    if blesses() {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder can be made");
        fs::write(&path, expected).expect("it can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{name} does not have the figures of benches/bench.json: `make plots` writes them");
}

#[test]
fn the_figures_of_the_pages_and_the_plots_are_those_of_the_run() {
    let rows = committed();
    check(&rows);
    assert_eq!(written(&rows), page("benches/bench.json"), "one row a line");
    let plots = plots::files(&rows);
    let folder = project().join("benches/plots");
    for (name, _, content) in &plots {
        compare(&format!("benches/plots/{name}"), content);
    }
    let files =
        fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    for file in files.filter(|file| file.ends_with(".svg")) {
        assert!(plots.iter().any(|(name, _, _)| *name == file), "benches/plots/{file} is no plot of the run");
    }
    for name in PAGES {
        let expected = pages::fill(&page(name), &rows).unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(name, &expected);
    }
}

/// Checks that each row has a name of its own in its part, and says when and where it was measured.
fn check(rows: &[Row]) {
    let mut names = BTreeSet::new();
    for row in rows {
        let run = &row.run;
        assert!(
            run.date.len() == 10 && !run.kernel.is_empty() && !run.commit.is_empty() && run.processors > 0,
            "{row:?}"
        );
        assert!(names.insert((&row.part, &row.what)), "{} is twice in {}", row.what, row.part);
    }
}

/// Returns the figures of a page that stand neither between marks nor in a section about earlier runs.
fn loose(page: &str) -> Vec<String> {
    let marked = Regex::new(r"(?s)<!-- figures: .*?<!-- /figures -->|<!-- figure: .*?<!-- / -->").expect("a pattern");
    let figure = Regex::new(r"\d(\.\d+)? ((us|ms|s|MB|GB|x)\b|%)|\d /s\b").expect("a pattern");
    let page = marked.replace_all(page, "");
    let sections = page.split("\n## ").filter(|section| !section.starts_with("Earlier runs"));
    let lines = sections.flat_map(str::lines).filter(|line| !OTHERS.iter().any(|other| line.contains(other)));
    lines.filter(|line| figure.is_match(line)).map(str::to_owned).collect()
}

#[test]
fn no_figure_stands_in_the_pages_without_a_mark() {
    for name in PAGES {
        assert_eq!(loose(&page(name)), Vec::<String>::new(), "{name}");
    }
    assert_eq!(loose("a\n## Figures\ntakes 17 us\n<!-- figure: x -->2 s<!-- / -->\n"), ["takes 17 us"]);
    assert_eq!(loose("## A\n\n## Earlier runs\n\n3 MB"), Vec::<String>::new());
}

/// Returns a row of a part.
fn row(part: &str, what: &str, seconds: f64) -> Row {
    let run = Run { kernel: "6.18".into(), processors: 2, date: "2026-11-26".into(), commit: "abc".into() };
    let (measured, value) = (format!("{:.3} ms", seconds * 1e3), json!(seconds));
    Row { part: part.into(), what: what.into(), measured, goal: String::new(), value, point: None, run }
}

/// Returns a row with a place in a plot.
fn point(plot: &str, series: &str, services: u32, seconds: f64) -> Row {
    let point = Point { plot: plot.into(), series: series.into(), services };
    Row { point: Some(point), ..row("peer", &format!("{plot} {series} {services}"), seconds) }
}

#[test]
fn a_later_run_replaces_the_parts_that_it_has() {
    let earlier = vec![row("a", "1", 1.0), row("a", "2", 1.0), row("b", "1", 1.0)];
    let later = vec![row("c", "1", 2.0), row("a", "3", 2.0)];
    let merged = merge(earlier.clone(), later.clone());
    let names: Vec<String> = merged.iter().map(|row| format!("{}{} {}", row.part, row.what, row.value)).collect();
    assert_eq!(names, ["a3 2.0", "b1 1.0", "c1 2.0"]);
    assert_eq!(merge(Vec::new(), later.clone()), later);
    assert_eq!(merge(earlier.clone(), Vec::new()), earlier);
    assert_eq!(read(&written(&merged)), Ok(merged));
    assert!(read("[{}]").is_err() && read("").is_err());
}

#[test]
fn marks_get_the_figures_of_the_rows() {
    let rows =
        [row("peer", "start to the first answered connection, 1000 x 10, ours", 0.114_2), row("x", "one", 17.4e-6)];
    let filled = |page: &str| pages::fill(page, &rows);
    assert_eq!(filled("in <!-- figure: one -->9 s<!-- / -->."), Ok("in <!-- figure: one -->17 us<!-- / -->.".into()));
    assert_eq!(filled("<!-- figure: two -->9 s<!-- / -->"), Ok("<!-- figure: two -->-<!-- / -->".into()));
    let absent = Row { measured: "n/a: too slow".into(), ..row("c", "connect, upstream nftables, 5000 Services", 0.0) };
    let absent = Row { value: json!("n/a: too slow"), ..absent };
    let found = pages::fill("<!-- figures: connections -->\n<!-- /figures -->", &[absent]).expect("a table");
    assert!(found.contains("| upstream, mode nftables | - | - | n/a: too slow | - |"), "{found}");
    let table = filled("a\n<!-- figures: beside -->\nold\n<!-- /figures -->\nb").expect("a table");
    assert!(table.contains("| process start to the first answered connection | 0.11 s | - | - | - |"), "{table}");
    assert!(table.contains("Measured on 2026-11-26, Linux 6.18, 2 processors, commit abc.") && !table.contains("old"));
    assert_eq!(filled(&table), Ok(table.clone()), "a second time changes nothing");
    for (page, says) in [
        ("<!-- figures: none -->\n<!-- /figures -->", "no table none"),
        ("<!-- figures: beside -->\n", "has no <!-- /figures -->"),
        ("<!-- figure: one", "has no end"),
    ] {
        assert!(filled(page).is_err_and(|error| error.contains(says)), "{page}");
    }
}

#[test]
fn times_have_the_digits_that_count() {
    let cases =
        [(17.4e-6, "17 us"), (4.81e-3, "4.8 ms"), (0.091, "91 ms"), (0.114, "0.11 s"), (2.04, "2.0 s"), (91.2, "91 s")];
    for (seconds, expected) in cases {
        assert_eq!(time(seconds), expected);
    }
}

#[test]
fn a_plot_has_each_series_at_its_place_and_serves_light_and_dark_screens() {
    let rows = [
        point("start", "this program", 10_000, 0.1),
        point("start", "this program", 100, 0.01),
        point("start", "this program", 1_000, 0.1),
        point("start", "<upstream>", 100, 1.0),
        point("start", "always", Point::ALWAYS, 0.01),
        row("peer", "no point", 1.0),
    ];
    let files = plots::files(&rows);
    let [(name, _, svg)] = &files[..] else { panic!("{} files", files.len()) };
    assert_eq!(name, "start.svg");
    assert!(
        svg.contains("prefers-color-scheme:dark") && svg.contains("&lt;upstream&gt;") && !svg.contains("<upstream>")
    );
    // On axes from 100 to 10,000 and from 10 ms to 1 s, this line goes from one corner to the middle, and on at the same height.
    assert!(svg.contains("d=\"M76.0 368.0L313.0 206.0L550.0 206.0\""), "{svg}");
    for mark in [">10 ms<", ">100 ms<", ">1 s<", ">100<", ">1,000<", ">10,000<"] {
        assert!(svg.contains(mark), "{mark} is at no axis: {svg}");
    }
    let (opened, closed) = (svg.matches("<text").count(), svg.matches("</text>").count());
    assert_eq!(opened, closed);
    assert!(svg.contains("d=\"M76.0 368.0L550.0 368.0\""), "a line over all numbers of Services: {svg}");
    assert_eq!(plots::files(&rows[4..]), [], "nothing was measured");
}

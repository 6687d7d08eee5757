//! Writes figures into pages: tables and plots between two comments, and single figures within sentences.
//!
//! Takes a page and rows, and gives the page with what stands between its marks written again:
//!
//!     <!-- figures: NAME -->           a table of `grids`, the plots, or all rows
//!     <!-- /figures -->
//!     takes <!-- figure: ROW -->17 us<!-- / --> then
//!
//! A figure is rounded here, so a page cannot say something else than the file of figures. A row that was not measured is a dash.

use std::collections::BTreeSet;

use super::fleet;
use super::grids::{GRIDS, Grid};
use super::{Row, find, plots, significant, time};

const BLOCK: (&str, &str) = ("<!-- figures: ", "<!-- /figures -->");
const SINGLE: (&str, &str) = ("<!-- figure: ", "<!-- / -->");
const END: &str = " -->";
/// What stands for a row that was not measured.
const MISSING: &str = "-";

/// Returns a page with its tables and figures written from these rows.
///
/// # Errors
/// Returns in words which mark has no end or names no table.
pub(crate) fn fill(page: &str, rows: &[Row]) -> Result<String, String> {
    let blocks = replaced(page, BLOCK, &|name| block(name, rows))?;
    replaced(&blocks, SINGLE, &|name| Ok(cell(rows, name).0))
}

/// Replaces what stands between each begin and end by what `write` gives for the name in the begin.
fn replaced(
    page: &str,
    (begin, end): (&str, &str),
    write: &dyn Fn(&str) -> Result<String, String>,
) -> Result<String, String> {
    let mut parts = page.split(begin);
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(END).ok_or_else(|| format!("{begin}{part}: the comment has no end"))?;
        let (_, after) = rest.split_once(end).ok_or_else(|| format!("{begin}{name}{END} has no {end}"))?;
        written += &format!("{begin}{name}{END}{}{end}{after}", write(name)?);
    }
    Ok(written)
}

fn block(name: &str, rows: &[Row]) -> Result<String, String> {
    let text = match name {
        "all" => all(rows),
        "plots" => images(rows, "benches/plots/"),
        "plots here" => images(rows, "plots/"),
        "fleet" => fleet::page(rows),
        _ => {
            let grid = GRIDS.iter().find(|grid| grid.name == name);
            table(grid.ok_or_else(|| format!("there is no table {name}"))?, rows)
        }
    };
    Ok(format!("\n{text}"))
}

/// Returns a table in Markdown, and below it when and where its rows were measured.
fn table(grid: &Grid, rows: &[Row]) -> String {
    let head: Vec<String> = grid.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let mut used = BTreeSet::new();
    let mut lines = Vec::new();
    for (label, name) in grid.rows {
        let cells: Vec<String> = grid
            .columns
            .iter()
            .map(|(_, with)| {
                let (text, run) = cell(rows, &grid.row_of(name, with));
                used.extend(run);
                text
            })
            .collect();
        if cells.iter().any(|cell| cell != MISSING) {
            lines.push(((*label).to_owned(), cells));
        }
    }
    if lines.is_empty() {
        return "Not measured yet: `make bench` and `make plots` write this table.\n".to_owned();
    }
    format!("{}\n{}", markdown(&head, &lines), sources(&used))
}

/// Returns a table in Markdown.
pub(super) fn markdown(head: &[String], lines: &[(String, Vec<String>)]) -> String {
    let rule = "---|".repeat(head.len() + 1);
    let mut text = format!("| | {} |\n|{rule}\n", head.join(" | "));
    for (label, cells) in lines {
        text += &format!("| {label} | {} |\n", cells.join(" | "));
    }
    text
}

/// Returns when and where figures were measured, as a sentence.
pub(super) fn sources(runs: &BTreeSet<String>) -> String {
    let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
    format!("Measured {}.\n", runs.join("; "))
}

/// Returns the figure of a row for people, and its run in words. If the row is missing, and the row above it says why nothing
/// was measured, returns that reason.
fn cell(rows: &[Row], what: &str) -> (String, Option<String>) {
    let reason =
        || rows.iter().find(|row| row.measured.starts_with("n/a") && what.starts_with(&format!("{},", row.what)));
    find(rows, what).or_else(reason).map_or_else(|| (MISSING.to_owned(), None), |row| (figure(row), Some(source(row))))
}

/// Returns the run of a row in words.
pub(super) fn source(row: &Row) -> String {
    let run = &row.run;
    format!("on {}, Linux {}, {} processors, commit {}", run.date, run.kernel, run.processors, run.commit)
}

/// Returns a value for people: a time with two digits, a ratio or a text as the bench prints it.
fn figure(row: &Row) -> String {
    match row.value.as_f64() {
        Some(ratio) if row.measured.ends_with(" x") => format!("{} x", significant(ratio)),
        Some(seconds) if [" s", " ms"].iter().any(|unit| row.measured.ends_with(unit)) => time(seconds),
        _ => row.measured.clone(),
    }
}

/// Returns links to the plots, each with its title as text for those who do not see it.
fn images(rows: &[Row], folder: &str) -> String {
    let files = plots::files(rows);
    if files.is_empty() {
        return "Not drawn yet: `make bench` and `make plots` write the plots.\n".to_owned();
    }
    files.iter().map(|(name, title, _)| format!("![{title}]({folder}{name})\n")).collect()
}

/// Returns all rows, part by part, with their goals.
fn all(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut part = "";
    for row in rows {
        if row.part != part {
            part = &row.part;
            text +=
                &format!("\n## `{part}`\n\nMeasured {}.\n\n| what | measured | goal |\n|---|---|---|\n", source(row));
        }
        text += &format!("| {} | {} | {} |\n", row.what.replace('|', "/"), row.measured, row.goal);
    }
    text
}

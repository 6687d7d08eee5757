//! Writes figures into pages: tables and plots between two comments, and single figures within sentences.
//!
//! Takes a page and rows, and gives the page with what stands between its marks written again:
//!
//!     <!-- figures: NAME -->           a table of this module, the plots, or all rows
//!     <!-- /figures -->
//!     takes <!-- figure: ROW -->17 us<!-- / --> then
//!
//! A figure is rounded here, so a page cannot say something else than the file of figures. A row that was not measured is a dash.

use std::collections::BTreeSet;

use super::fleet;
use super::{Row, find, plots, significant, time};

const BLOCK: (&str, &str) = ("<!-- figures: ", "<!-- /figures -->");
const SINGLE: (&str, &str) = ("<!-- figure: ", "<!-- / -->");
const END: &str = " -->";
/// What stands for a row that was not measured.
const MISSING: &str = "-";

/// A table. A column has its heading, and the text that replaces `{}` in the names of rows; a row has its label and its name.
struct Grid {
    name: &'static str,
    columns: &'static [(&'static str, &'static str)],
    rows: &'static [(&'static str, &'static str)],
}

/// The rows of a comparison with upstream.
const BESIDE: &[(&str, &str)] = &[
    ("process start to the first answered connection", "start to the first answered connection, {}"),
    (
        "one endpoint, from the API server's answer to a packet, median of 6",
        "one endpoint, from the API server's answer to a packet, median, {}",
    ),
    ("peak resident memory", "peak resident memory, {}"),
    ("the same after the changes", "peak resident memory, {} > resident memory at the end"),
    (
        "processor time of the start, with the programs it ran",
        "peak resident memory, {} > processor time of the start, with children",
    ),
    ("processor time of the API server for it", "peak resident memory, {} > processor time of the API server for it"),
    ("bytes from the API server for it", "peak resident memory, {} > bytes from the API server for it"),
];

/// The rows of new connections; the columns are numbers of Services.
const CONNECT: &[(&str, &str)] = &[
    ("this program, layout `maps`", "connect, layout maps, {} Services, all > p99"),
    ("layout `chains`", "connect, layout chains, {} Services, all > p99"),
    (
        "layout `chains` without chains of endpoints",
        "connect, layout chains without chains of endpoints, {} Services, all > p99",
    ),
    ("upstream, mode nftables", "connect, upstream nftables, {} Services, all > p99"),
    ("upstream, mode iptables", "connect, upstream iptables, {} Services, all > p99"),
    ("upstream, mode ipvs", "connect, upstream ipvs, {} Services, all > p99"),
    ("one rule that translates", "connect, one rule that translates, all > p99"),
    ("no proxy", "connect, no proxy, all > p99"),
];

const GRIDS: &[Grid] = &[
    Grid {
        name: "beside",
        columns: &[
            ("this program, 1,000 Services", "1000 x 10, ours"),
            ("upstream", "1000 x 10, upstream"),
            ("this program, 5,000", "5000 x 10, ours"),
            ("upstream", "5000 x 10, upstream"),
        ],
        rows: BESIDE,
    },
    Grid {
        name: "layouts",
        columns: &[
            ("`chains`, 1,000 Services", "1000 x 10, ours, layout chains"),
            ("without chains of endpoints", "1000 x 10, ours, layout chains without chains of endpoints"),
            ("`chains`, 5,000", "5000 x 10, ours, layout chains"),
            ("without", "5000 x 10, ours, layout chains without chains of endpoints"),
        ],
        rows: BESIDE,
    },
    Grid {
        name: "sizes",
        columns: &[("1,000 Services", "1000"), ("5,000", "5000"), ("20,000", "20000"), ("100,000", "100000")],
        rows: &[
            ("first sync, from objects in memory", "first sync, {} x 10, from objects in memory"),
            ("`nft -f` of the same table", "nft -f of the same table, {} x 10"),
            ("one endpoint replaced, median", "one endpoint replaced, {} Services, median"),
            ("one endpoint replaced, p99", "one endpoint replaced, {} Services, p99"),
            ("10 to 11 endpoints, median", "10 to 11 endpoints, {} Services, median"),
            ("layout `chains`: first sync", "layout chains: first sync, {} x 10"),
            (
                "without chains of endpoints: first sync",
                "layout chains without chains of endpoints: first sync, {} x 10",
            ),
            (
                "process start to programmed, API server, protobuf",
                "process start to programmed, {} x 10, API server, Protobuf",
            ),
            ("`verify`, API server, protobuf", "kube-proxy verify, {} x 10, API server, Protobuf"),
        ],
    },
    Grid {
        name: "connections",
        columns: &[("100 Services", "100"), ("1,000", "1000"), ("5,000", "5000"), ("20,000", "20000")],
        rows: CONNECT,
    },
];

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
    for (label, template) in grid.rows {
        let cells: Vec<String> = grid
            .columns
            .iter()
            .map(|(_, with)| {
                let (text, run) = cell(rows, &template.replace("{}", with));
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

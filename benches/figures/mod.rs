//! The figures of runs of the bench, in one form for the bench, the pages and the plots.
//!
//! Takes and gives the text of a file such as `bench.json`: a list of rows, one in a line. [`merge`] puts a later run over an earlier one;
//! [`plots`] draws, with [`svg`], the rows that have a [`Point`]; [`pages`] writes the tables of [`grids`] and numbers into pages, and
//! [`fleet`] the sums for a cluster of many nodes. Pure: no I/O, no clock. The bench and the tests of the project both compile it.
//!
//! Invariants: a row has its part, and a name that no other row of the part has; its time, kernel and commit are those of its run.

#![allow(dead_code, reason = "the bench and the tests of the project each use a part")]

pub(crate) mod fleet;
mod grids;
pub(crate) mod pages;
pub(crate) mod plots;
pub(crate) mod svg;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Joins the name of a row with those of the rows to which it belongs.
pub(crate) const WITHIN: &str = " > ";

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The part of the bench.
    pub(crate) part: String,
    /// The name, after the names of the rows to which it belongs, joined by [`WITHIN`].
    pub(crate) what: String,
    /// The value as the bench prints it.
    pub(crate) measured: String,
    pub(crate) goal: String,
    /// Seconds, a ratio, or the printed text.
    pub(crate) value: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) point: Option<Point>,
    #[serde(flatten)]
    pub(crate) run: Run,
}

/// The place of a row in a plot: the value is its height.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) plot: String,
    pub(crate) series: String,
    pub(crate) services: u32,
}

impl Point {
    /// Stands for the number of Services where the value does not depend on it: the plot then has a level line over all numbers.
    pub(crate) const ALWAYS: u32 = 0;
}

/// Where and when a row was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) kernel: String,
    pub(crate) processors: usize,
    /// The day, as `2026-11-26`.
    pub(crate) date: String,
    /// The commit, with a `+` behind it if files differed from it.
    pub(crate) commit: String,
}

/// Reads rows.
///
/// # Errors
/// Returns in words what is wrong with the text.
pub(crate) fn read(text: &str) -> Result<Vec<Row>, String> {
    serde_json::from_str(text).map_err(|error| format!("the figures cannot be read: {error}"))
}

/// Returns rows as text, one in a line, so that a difference between two runs can be read.
pub(crate) fn written(rows: &[Row]) -> String {
    let lines: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).expect("a row is plain data")).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}

/// Returns the rows of two runs: a part that the later run measured replaces that part of the earlier one as a whole.
pub(crate) fn merge(earlier: Vec<Row>, later: Vec<Row>) -> Vec<Row> {
    let mut merged: Vec<Row> = Vec::new();
    let of_part =
        |rows: &[Row], part: &str| -> Vec<Row> { rows.iter().filter(|row| row.part == part).cloned().collect() };
    for row in earlier.iter().chain(&later) {
        if merged.iter().any(|there| there.part == row.part) {
            continue;
        }
        let new = of_part(&later, &row.part);
        merged.extend(if new.is_empty() { of_part(&earlier, &row.part) } else { new });
    }
    merged
}

/// Returns the row of this full name.
pub(crate) fn find<'a>(rows: &'a [Row], what: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.what == what)
}

/// Returns a time in the unit in which it has the fewest digits, with two significant digits or three from 100 on.
pub(crate) fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        seconds if seconds < 100e-6 => (seconds * 1e6, "us"),
        seconds if seconds < 100e-3 => (seconds * 1e3, "ms"),
        seconds => (seconds, "s"),
    };
    format!("{} {unit}", significant(value))
}

/// Returns a number with two significant digits, or as a whole number from 10 on.
pub(crate) fn significant(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 9.95 => format!("{value:.0}"),
        magnitude if magnitude >= 0.995 => format!("{value:.1}"),
        magnitude if magnitude >= 0.0995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns a time at an axis: a round number in its unit, without digits behind the point where there are none.
pub(crate) fn time_mark(seconds: f64) -> String {
    let (value, unit) = match seconds {
        seconds if seconds < 0.9995e-3 => (seconds * 1e6, "us"),
        seconds if seconds < 0.9995 => (seconds * 1e3, "ms"),
        seconds => (seconds, "s"),
    };
    let rounded = format!("{value:.1}");
    format!("{} {unit}", rounded.strip_suffix(".0").unwrap_or(&rounded))
}

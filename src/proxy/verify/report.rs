//! Prints the differences that `verify` and `render --diff` found: as text for people, or as JSON or YAML for programs.
//!
//! The differences are sorted by subject: the tables, the node, the Services. Pure except for the output.

use serde::Serialize;

use super::words::{self, Tense};
use crate::sync::{Subject, TableDifference};
use component::logging::escaped;
use inspect::output::{Format, Output, Tone};

/// A difference in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DescribedDifference {
    subject: Subject,
    /// The name of the table that has the difference, or the names of several.
    table: String,
    /// The sentence that describes the difference.
    text: String,
    /// The nft commands that repair the difference, one per line; empty if there are none.
    command: String,
}

impl DescribedDifference {
    /// A difference that concerns whole tables, so that a comparison of their content would say nothing more. `text` makes a sentence that
    /// contains their names.
    pub(super) fn of_tables(tables: &[&str], text: impl FnOnce(&str) -> String) -> Self {
        let names = tables.join(" and ");
        let text = text(&format!("the {} {names}", if tables.len() == 1 { "table" } else { "tables" }));
        Self { subject: Subject::Table, table: names, text, command: String::new() }
    }
}

impl std::fmt::Display for DescribedDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
impl DescribedDifference {
    pub(super) fn service(&self) -> Option<&str> {
        self.subject.service()
    }

    pub(super) fn table(&self) -> &str {
        &self.table
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }
}

/// The differences as JSON or YAML; the names of the fields are fixed.
#[derive(Serialize)]
struct Report<'a> {
    equal: bool,
    differences: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    service: Option<&'a str>,
    table: &'a str,
    text: &'a str,
    command: &'a str,
}

/// Describes the differences in words, sorted.
pub(crate) fn told(differences: &[TableDifference], tense: Tense) -> Vec<DescribedDifference> {
    let tell = |difference: &TableDifference| DescribedDifference {
        subject: difference.subject.clone(),
        table: difference.table.to_string(),
        text: words::text(difference, tense),
        command: words::command(difference),
    };
    let mut told: Vec<DescribedDifference> = differences.iter().map(tell).collect();
    told.sort();
    told
}

/// Prints the differences as text, JSON or YAML. In the text, `equal` is the only line if there are no differences; else `differs` is the
/// last line, unless it is empty.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn print(
    out: &mut Output<'_>,
    format: Format,
    told: &[DescribedDifference],
    equal: &str,
    differs: &str,
) -> anyhow::Result<()> {
    if matches!(format, Format::Json | Format::Yaml) {
        fn entry(told: &DescribedDifference) -> Entry<'_> {
            let DescribedDifference { subject, table, text, command } = told;
            Entry { service: subject.service(), table, text, command }
        }
        return out.value(format, &Report { equal: told.is_empty(), differences: told.iter().map(entry).collect() });
    }
    if told.is_empty() {
        return out.line(equal, 0);
    }
    for DescribedDifference { text, command, .. } in told {
        out.line(escaped(text), 2)?;
        for line in command.lines() {
            let line = out.styled(Tone::Faint, escaped(line));
            out.text(format_args!("    {line}\n"))?;
        }
    }
    if differs.is_empty() { Ok(()) } else { out.line(differs, 0) }
}

/// Prints to standard output what a change of manifests changes on a node. Returns whether it changes anything.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn print_changes(differences: &[TableDifference], is_json: bool) -> anyhow::Result<bool> {
    let told = told(differences, Tense::Change);
    let format = if is_json { Format::Json } else { Format::Table };
    let mut out = Output::to_stdout();
    let counted = if told.len() == 1 { "1 change".to_owned() } else { format!("{} changes", told.len()) };
    print(&mut out, format, &told, "no change", &counted)?;
    out.flush()?;
    Ok(!told.is_empty())
}

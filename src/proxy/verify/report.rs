//! Prints the differences that `verify` and `render --diff` found: as text for people, or as JSON or YAML for programs.
//!
//! The differences are sorted by subject: the tables, the node, the Services. Pure except for the output.

use std::collections::HashSet;

use serde::Serialize;

use super::words::{self, Tense};
use crate::sync::{Subject, TableDifference, TableDifferences};
use component::logging::escaped;
use inspect::output::{Format, Output, Tone};

/// The differences of the tables in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Sorted.
    pub(super) listed: Vec<DescribedDifference>,
    /// For each table the number of its other differences.
    pub(super) unlisted: Vec<usize>,
}

impl Told {
    /// The number of all differences.
    pub(super) fn count(&self) -> usize {
        self.listed.len() + self.more()
    }

    /// The number of those that are not listed.
    fn more(&self) -> usize {
        self.unlisted.iter().sum()
    }

    /// Keeps the differences that `before`, an earlier look, has too. If both looks have differences of a table that are only counted, keeps
    /// the smaller count. If only one of them has some, the looks cannot be compared, because a difference that one lists may be among
    /// those that the other counts: then keeps all and returns false.
    pub(super) fn retain_in(&mut self, before: &Self) -> bool {
        let mut unlisted = self.unlisted.iter().zip(&before.unlisted);
        if unlisted.any(|(now, before)| (*now == 0) != (*before == 0)) {
            return false;
        }
        let listed: HashSet<&DescribedDifference> = before.listed.iter().collect();
        self.listed.retain(|told| listed.contains(told));
        for (now, before) in self.unlisted.iter_mut().zip(&before.unlisted) {
            *now = (*now).min(*before);
        }
        true
    }
}

impl From<DescribedDifference> for Told {
    fn from(only: DescribedDifference) -> Self {
        Self { listed: vec![only], unlisted: Vec::new() }
    }
}

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
    /// The number of differences that are not listed.
    more: usize,
}

#[derive(Serialize)]
struct Entry<'a> {
    service: Option<&'a str>,
    table: &'a str,
    text: &'a str,
    command: &'a str,
}

/// Describes the differences in words, sorted.
pub(crate) fn told(differences: &TableDifferences, tense: Tense) -> Told {
    let tell = |difference: &TableDifference| DescribedDifference {
        subject: difference.subject.clone(),
        table: difference.table.to_string(),
        text: words::text(difference, tense),
        command: words::command(difference),
    };
    let mut listed: Vec<DescribedDifference> = differences.listed.iter().map(tell).collect();
    listed.sort();
    Told { listed, unlisted: differences.unlisted.clone() }
}

/// Prints the differences as text, JSON or YAML. In the text, `equal` is the only line if there are no differences; else `differs` is the
/// last line, unless it is empty.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn print(
    out: &mut Output<'_>,
    format: Format,
    told: &Told,
    equal: &str,
    differs: &str,
) -> anyhow::Result<()> {
    if matches!(format, Format::Json | Format::Yaml) {
        fn entry(told: &DescribedDifference) -> Entry<'_> {
            let DescribedDifference { subject, table, text, command } = told;
            Entry { service: subject.service(), table, text, command }
        }
        let differences = told.listed.iter().map(entry).collect();
        return out.value(format, &Report { equal: told.count() == 0, differences, more: told.more() });
    }
    if told.count() == 0 {
        return out.line(equal, 0);
    }
    for DescribedDifference { text, command, .. } in &told.listed {
        out.line(escaped(text), 2)?;
        for line in command.lines() {
            let line = out.styled(Tone::Faint, escaped(line));
            out.text(format_args!("    {line}\n"))?;
        }
    }
    if told.more() > 0 {
        out.line(format_args!("and {} more, which are not listed", told.more()), 0)?;
    }
    if differs.is_empty() { Ok(()) } else { out.line(differs, 0) }
}

/// Prints to standard output what a change of manifests changes on a node. Returns whether it changes anything.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn print_changes(differences: &TableDifferences, is_json: bool) -> anyhow::Result<bool> {
    let told = told(differences, Tense::Change);
    let format = if is_json { Format::Json } else { Format::Table };
    let mut out = Output::to_stdout();
    let counted = if told.count() == 1 { "1 change".to_owned() } else { format!("{} changes", told.count()) };
    print(&mut out, format, &told, "no change", &counted)?;
    out.flush()?;
    Ok(told.count() > 0)
}

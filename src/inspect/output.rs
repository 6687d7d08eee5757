//! What commands print: aligned tables for people, JSON and YAML for programs.
//!
//! Takes `Table`s, sentences and serializable values, writes text. Standard output gets colour only if it is a terminal, and not when
//! `NO_COLOR` is set (no-color.org) or the terminal is `dumb`. Nothing is truncated. On a terminal, sentences are broken at its width; JSON
//! and YAML are not, because users copy them. Control characters in cells and in sentences about problems are escaped, so that no name from
//! the kernel or the API can move the cursor of a terminal; callers escape what they give to [`Output::text`] and [`Output::line`].

use std::fmt::{self, Display};
use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Write};

use anstyle::{AnsiColor, Effects, Style};
use anyhow::{Context as _, Result};
use serde::Serialize;

use component::{logging, terminal};

/// The reader of the output closed the pipe before the output was complete.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has closed it")]
pub struct ReaderGone;

impl ReaderGone {
    /// The exit code that a shell shows for a program that SIGPIPE killed. Rust programs ignore SIGPIPE, so they must exit with this code
    /// themselves.
    pub const EXIT_CODE: u8 = 128 + 13;
}

/// Turns the error of a closed pipe into [`ReaderGone`].
///
/// # Errors
/// [`ReaderGone`] for a closed pipe, else the error of the write.
pub fn check_reader(outcome: io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => other.context("cannot write to standard output"),
    }
}

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For people, with more columns.
    Wide,
    /// For programs; the fields are described in deploy/REFERENCE.md.
    Json,
    /// As json, in YAML.
    Yaml,
}

/// The option `-o`; flattened into the arguments of a command.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct FormatArgs {
    /// The form of the output
    #[arg(short = 'o', long = "output", value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// The output of a command, with or without colour.
pub struct Output<'a> {
    writer: Box<dyn Write + 'a>,
    colour: bool,
    /// The columns of the terminal; `None` without a terminal, or when it is too narrow for broken lines ([`terminal::width`]).
    width: Option<usize>,
}

impl Output<'static> {
    /// Standard output.
    pub fn to_stdout() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_terminal = io::stdout().is_terminal();
        let colour = is_terminal && !set("NO_COLOR") && !is_dumb;
        Self { writer: Box::new(BufWriter::new(io::stdout())), colour, width: terminal::width(io::stdout()) }
    }
}

impl<'a> Output<'a> {
    /// Prints to any writer, with or without colour.
    pub fn to(writer: impl Write + 'a, colour: bool) -> Self {
        Self { writer: Box::new(writer), colour, width: None }
    }

    /// Prints a text as it is. Text from the kernel or the API must be escaped before; see [`logging::escaped`].
    ///
    /// # Errors
    /// [`ReaderGone`], or another error of the write.
    pub fn text(&mut self, text: impl Display) -> Result<()> {
        check_reader(write!(self.writer, "{text}"))
    }

    /// Styles a text if colour is on.
    pub fn styled<T: Display>(&self, tone: Tone, text: T) -> Styled<T> {
        Styled { style: if self.colour { tone.style() } else { Style::new() }, text }
    }

    /// Prints words as one line. On a terminal that is narrower, they become several lines, of which all but the first are indented by `hang`.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn line(&mut self, words: impl Display, hang: usize) -> Result<()> {
        let words = self.broken(&words.to_string(), 0, hang);
        self.text(words + "\n")
    }

    /// Prints the sentence about a problem. Control characters in it are escaped, because it may have words from the kernel or the API.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn problem(&mut self, text: &str) -> Result<()> {
        self.line(self.styled(Tone::Bad, logging::escaped(text)), 2)
    }

    /// Breaks words into lines as [`terminal::broken`] does. Without a terminal, the words stay on one line.
    fn broken(&self, words: &str, at: usize, hang: usize) -> String {
        self.width.map_or_else(|| words.to_owned(), |width| terminal::broken(words, width, at, hang))
    }

    /// Prints a table with aligned columns: the headings, then the rows.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        let widths = table.widths();
        self.headings(table, &widths)?;
        self.rows(table, &widths)
    }

    /// Prints the headings of a table in columns of these widths.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn headings(&mut self, table: &Table, widths: &[usize]) -> Result<()> {
        let headings: Vec<Cell> = table.columns.iter().map(|column| Cell::new(Tone::Strong, column.heading)).collect();
        self.row(&table.columns, widths, &headings)
    }

    /// Prints the rows of a table in columns of these widths, without headings.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn rows(&mut self, table: &Table, widths: &[usize]) -> Result<()> {
        table.rows.iter().try_for_each(|row| self.row(&table.columns, widths, row))
    }

    /// Prints a row. On a terminal, cells that do not fit go into an indented line below, the headings too. A text in the last column, in many
    /// tables a sentence, is broken into lines instead. If it would begin in the right half of the terminal and does not fit there, it gets
    /// lines of its own below the row.
    fn row(&mut self, columns: &[Column], widths: &[usize], row: &[Cell]) -> Result<()> {
        let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
        let end = columns.len() - 1;
        let (mut line, mut at) = (String::new(), 0);
        for (index, cell) in row.iter().enumerate().take(last + 1) {
            let is_number = columns[index].is_number;
            let is_sentence = (index == end || row.len() == 1) && !is_number;
            if !is_sentence && at > BELOW && self.width.is_some_and(|width| at + widths[index] > width) {
                line.truncate(line.trim_end().len());
                line += &format!("\n{:BELOW$}", "");
                at = BELOW;
            }
            let missing = widths[index].saturating_sub(cell.width());
            let (before, after) = if is_number { (missing, 0) } else { (0, missing) };
            let text = self.styled(cell.tone, &cell.text).to_string();
            // Only cells before the last one are padded, so that no line ends with spaces.
            if index < last {
                line += &format!("{:before$}{text}{:after$}", "", "", after = after + GAP);
                at += before + cell.width() + after + GAP;
            } else if !is_sentence {
                line += &format!("{:before$}{text}", "");
            } else if self.width.is_some_and(|width| at > width / 2 && at + cell.width() > width) {
                line.truncate(line.trim_end().len());
                line += &format!("\n{:BELOW$}{}", "", self.broken(&text, BELOW, BELOW));
            } else {
                line += &self.broken(&text, at, if at == 0 { BELOW } else { at });
            }
        }
        self.text(line + "\n")
    }

    /// Prints a value as YAML, or as JSON for every other format. Callers print the table formats themselves.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn value<T: Serialize>(&mut self, format: Format, value: &T) -> Result<()> {
        if format == Format::Yaml {
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            return self.text(serde_saphyr::to_string_with_options(value, options)?);
        }
        check_reader(serde_json::to_writer_pretty(&mut self.writer, value).map_err(io::Error::from))?;
        self.text("\n")
    }

    /// Flushes the output, for example before a wait.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn flush(&mut self) -> Result<()> {
        check_reader(self.writer.flush())
    }
}

/// Implements `Display` for enums: each value is written as the word of its JSON form.
macro_rules! written_as_json {
    ($($kind:ty),*) => {
        $(impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        })*
    };
}
pub(crate) use written_as_json;

/// The number of spaces between two columns.
const GAP: usize = 2;
/// The indentation of cells that are printed below their row.
const BELOW: usize = 4;

/// The meaning of a text, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Plain,
    /// A heading.
    Strong,
    /// Less important than the rest.
    Faint,
    /// A good state.
    Good,
    /// A possible problem.
    Warning,
    /// A problem.
    Bad,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Strong => Style::new().effects(Effects::BOLD),
            Self::Faint => Style::new().effects(Effects::DIMMED),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default().effects(Effects::BOLD),
        }
    }
}

/// A text that is printed with the escape sequences of its style around it; without them if the style is empty.
#[derive(Clone, Copy, Debug)]
pub struct Styled<T> {
    style: Style,
    text: T,
}

impl<T: Display> Display for Styled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{:#}", self.style, self.text, self.style)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    pub(crate) is_number: bool,
}

impl Column {
    /// A column that is aligned to the left.
    pub(crate) const fn text(heading: &'static str) -> Self {
        Self { heading, is_number: false }
    }

    /// A column that is aligned to the right.
    pub(crate) const fn number(heading: &'static str) -> Self {
        Self { heading, is_number: true }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Cell {
    /// A text in a tone; control characters in it are escaped.
    pub(crate) fn new(tone: Tone, text: impl Display) -> Self {
        let mut text = text.to_string();
        if text.contains(char::is_control) {
            text = logging::escaped(&text);
        }
        Self { text, tone }
    }

    /// The number of characters, taken for the columns on a terminal: Kubernetes names, addresses and numbers have no double-width characters.
    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Tone::Plain, text)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row of at least two cells, in the order of the columns. Columns without a cell stay empty.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// Adds a line of text across the columns.
    pub(crate) fn line(&mut self, tone: Tone, text: impl Display) {
        self.rows.push(vec![Cell::new(tone, text)]);
    }

    /// The width of the widest cell of each column, without the lines across the columns.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.heading.chars().count()).collect();
        for row in self.rows.iter().filter(|row| row.len() > 1) {
            widths.iter_mut().zip(row).for_each(|(width, cell)| *width = (*width).max(cell.width()));
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(colour: bool, print: impl FnOnce(&mut Output<'_>)) -> String {
        let mut bytes = Vec::new();
        print(&mut Output::to(&mut bytes, colour));
        String::from_utf8(bytes).unwrap()
    }

    fn table() -> Table {
        let mut table = Table::new([Column::text("NAME"), Column::number("PORT"), Column::text("NOTE")]);
        table.row([Cell::from("shop/web"), Cell::from(80), Cell::from("")]);
        table.row([Cell::from("a"), Cell::from(8080), Cell::new(Tone::Bad, "dropped")]);
        table
    }

    #[test]
    fn columns_are_aligned_and_no_line_ends_with_spaces() {
        let text = printed(false, |out| out.table(&table()).unwrap());
        assert_eq!(text, "NAME      PORT  NOTE\nshop/web    80\na         8080  dropped\n");
    }

    #[test]
    fn on_a_terminal_a_wide_last_cell_is_broken_and_nothing_is_lost() {
        let words = "word ".repeat(20);
        let on_terminal = |before: &str, colour| {
            let mut bytes = Vec::new();
            let mut table = Table::new([Column::text("A"), Column::text("B")]);
            table.row([Cell::from(before), Cell::new(Tone::Bad, words.trim_end())]);
            Output { width: Some(40), ..Output::to(&mut bytes, colour) }.table(&table).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        for (before, indent) in [("short", 7), ("in-the-right-half-of-it", 4)] {
            let text = on_terminal(before, false);
            assert_eq!(text.split_whitespace().filter(|word| *word == "word").count(), 20, "{text}");
            let lines: Vec<&str> = text.lines().skip(2).collect();
            assert!(lines.iter().all(|line| line.len() <= 40 && line.find("word") == Some(indent)), "{text}");
            assert_eq!(on_terminal(before, true).lines().count(), text.lines().count());
        }
    }

    #[test]
    fn on_a_terminal_columns_that_do_not_fit_stand_below_as_their_headings_do() {
        let mut table =
            Table::new([Column::text("NAME"), Column::number("A"), Column::number("B"), Column::number("C")]);
        table.row([Cell::from("n".repeat(20)), Cell::from("1".repeat(16)), Cell::from(2), Cell::from(3)]);
        table.row([Cell::from("m"), Cell::from(4)]);
        let mut bytes = Vec::new();
        Output { width: Some(40), ..Output::to(&mut bytes, false) }.table(&table).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let expected =
            format!("NAME{:33}A\n    B  C\n{} {:>17}\n    2  3\nm{:36}4\n", "", "n".repeat(20), "1".repeat(16), "");
        assert_eq!(text, expected);
    }

    #[test]
    fn colour_changes_no_column() {
        let text = printed(true, |out| out.table(&table()).unwrap());
        assert!(text.contains("\u{1b}[1m\u{1b}[31mdropped\u{1b}[0m"), "{text:?}");
        let mut plain = String::new();
        let mut parts = text.split("\u{1b}[");
        plain += parts.next().unwrap();
        parts.for_each(|part| plain += part.split_once('m').unwrap().1);
        assert_eq!(plain, printed(false, |out| out.table(&table()).unwrap()));
    }

    #[test]
    fn control_characters_in_a_cell_do_not_reach_the_terminal() {
        let mut table = Table::new([Column::text("NAME")]);
        table.row([Cell::from("\u{1b}[2Jgone\n")]);
        let text = printed(false, |out| out.table(&table).unwrap());
        assert!(text.lines().count() == 2 && !text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_value_is_printed_as_json_or_yaml() {
        let value = serde_json::json!({"port": 53, "address": null});
        let json = printed(false, |out| out.value(Format::Json, &value).unwrap());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        assert!(json.ends_with("}\n"), "{json:?}");
        let yaml = printed(false, |out| out.value(Format::Yaml, &value).unwrap());
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(), value);
    }

    #[test]
    fn a_closed_pipe_is_told_from_other_errors() {
        let closed = check_reader(Err(ErrorKind::BrokenPipe.into())).unwrap_err();
        assert!(closed.is::<ReaderGone>());
        let full = check_reader(Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert!(!full.is::<ReaderGone>());
    }
}

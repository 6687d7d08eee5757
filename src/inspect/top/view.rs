//! The state of the screen: the selected row, the order and the filter. Keys change it, and [`View::frame`] returns the lines to draw.
//!
//! Pure: takes [`Key`]s, [`Sample`]s and a size; returns [`Line`]s that fit the size.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::sample::{EndpointRow, Row, Sample};
use crate::output::Tone;
use crate::screen::{Key, Line};

/// What the service ports are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    /// New connections a second
    #[default]
    New,
    /// Open connections
    Open,
    /// Connections without an answer
    Unanswered,
    /// Packets a second
    Packets,
    /// Bytes a second
    Bytes,
    /// The name of the Service
    Name,
}

/// The state of the screen, which keys change.
#[derive(Debug, Default)]
pub(super) struct View {
    order: Order,
    /// Whether the order is reversed: the smallest number, or the last name, comes first.
    reversed: bool,
    filter: String,
    /// Whether the user is typing the filter.
    typing: bool,
    /// The service port whose endpoints are shown, by name, so that it stays selected when the order changes. `None` stands for the first
    /// one.
    selected: Option<Arc<str>>,
    /// The number of rows that the last frame had room for.
    page: usize,
    /// The help is shown instead of the numbers.
    help: bool,
}

/// The help that the key `?` shows.
const HELP: &str = "\
q, Esc        quit
/             filter by a part of the name; Enter keeps it, Esc clears it
arrows, j, k  select the Service whose endpoints are shown
n o u p b s   sort by NEW/S, OPEN, UNANSW, packets, bytes, name of the Service
r             reverse the order

NEW/S    new connections a second   OPEN     both sides have sent packets
UNANSW   nothing has answered yet   COUNTED  since the rule's counter was made
packets and bytes need sysctl -w net.netfilter.nf_conntrack_acct=1

any key       back";

/// A column of numbers: its heading, and a function that reads the number from a row.
#[derive(Clone, Copy)]
pub(super) struct NumberColumn {
    pub(super) heading: &'static str,
    number: fn(&Row) -> Option<u64>,
    /// Whether the number counts tenths.
    is_tenths: bool,
}

impl NumberColumn {
    const fn new(heading: &'static str, number: fn(&Row) -> Option<u64>) -> Self {
        Self { heading, number, is_tenths: false }
    }

    /// The number as text, `-` when it is not known.
    pub(super) fn text(self, row: &Row) -> String {
        let form = if self.is_tenths { tenths } else { short };
        (self.number)(row).map_or_else(|| "-".to_owned(), form)
    }
}

const CONNECTIONS: [NumberColumn; 3] = [
    NumberColumn { heading: "NEW/S", number: |row| row.new, is_tenths: true },
    NumberColumn::new("OPEN", |row| Some(row.open)),
    NumberColumn::new("UNANSW", |row| Some(row.unanswered)),
];
const RATES: [NumberColumn; 2] =
    [NumberColumn::new("PKT/S", |row| row.packet_rate), NumberColumn::new("BYTES/S", |row| row.byte_rate)];
const TOTALS: [NumberColumn; 2] =
    [NumberColumn::new("PACKETS", |row| row.packets), NumberColumn::new("BYTES", |row| row.bytes)];
const COUNTED: NumberColumn = NumberColumn::new("COUNTED", |row| row.counted);

/// The columns that have numbers: packets and bytes only while the kernel accounts them, COUNTED only while the rules count. A screen
/// that is too narrow for all has no totals.
pub(super) fn columns(sample: &Sample, width: usize) -> Vec<NumberColumn> {
    let mut columns = CONNECTIONS.to_vec();
    let others = RATES.len() + usize::from(sample.has_counters());
    if sample.accounting && NAME + NUMBER * (CONNECTIONS.len() + TOTALS.len() + others) <= width {
        columns.extend(TOTALS);
    }
    if sample.accounting {
        columns.extend(RATES);
    }
    columns.extend(sample.has_counters().then_some(COUNTED));
    columns
}

/// The width of a column of numbers, the gap before it included.
const NUMBER: usize = 9;
/// The smallest width of the column of names.
const NAME: usize = 16;

impl View {
    pub(super) fn new(order: Order, filter: &str) -> Self {
        Self { order, filter: filter.to_lowercase(), ..Self::default() }
    }

    /// The rows of service ports that pass the filter, in order.
    pub(super) fn rows(&self, sample: &Sample) -> Vec<Row> {
        let mut rows: Vec<Row> =
            sample.services().filter(|row| row.name.to_lowercase().contains(&self.filter)).collect();
        // The rows are sorted by name, and the sort is stable: rows with equal numbers stay sorted by name.
        match self.order {
            Order::New => rows.sort_by_key(|row| Reverse(row.new)),
            Order::Open => rows.sort_by_key(|row| Reverse(row.open)),
            Order::Unanswered => rows.sort_by_key(|row| Reverse(row.unanswered)),
            Order::Packets => rows.sort_by_key(|row| Reverse((row.packet_rate, row.packets))),
            Order::Bytes => rows.sort_by_key(|row| Reverse((row.byte_rate, row.bytes))),
            Order::Name => {}
        }
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Handles a key. Returns whether the screen stays open.
    pub(super) fn key(&mut self, key: Key, sample: &Sample) -> bool {
        match key {
            Key::Interrupt => return false,
            _ if self.help => self.help = false,
            Key::Char('?' | 'h') if !self.typing => self.help = true,
            key if self.typing => self.typed(key),
            Key::Char('q') | Key::Escape => return false,
            Key::Char('/') => self.typing = true,
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char('n') => self.order = Order::New,
            Key::Char('o') => self.order = Order::Open,
            Key::Char('u') => self.order = Order::Unanswered,
            Key::Char('p') => self.order = Order::Packets,
            Key::Char('b') => self.order = Order::Bytes,
            Key::Char('s') => self.order = Order::Name,
            Key::Up | Key::Char('k') => self.step(sample, |at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.step(sample, |at, _| at + 1),
            Key::PageUp => self.step(sample, usize::saturating_sub),
            Key::PageDown => self.step(sample, |at, page| at + page),
            Key::Home => self.step(sample, |_, _| 0),
            Key::End => self.step(sample, |_, _| usize::MAX),
            Key::Char(_) | Key::Backspace | Key::Enter => {}
        }
        true
    }

    fn typed(&mut self, key: Key) {
        match key {
            Key::Char(c) => self.filter.extend(c.to_lowercase()),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.filter.clear();
                self.typing = false;
            }
            _ => {}
        }
    }

    /// Selects another row: `to` computes its position from the current position and the number of rows of a page.
    fn step(&mut self, sample: &Sample, to: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows(sample);
        let target = to(self.position(&rows), self.page.max(1)).min(rows.len().saturating_sub(1));
        self.selected = rows.get(target).map(|row| Arc::clone(&row.name));
    }

    /// The position of the selected row; the first position when that row is gone.
    fn position(&self, rows: &[Row]) -> usize {
        rows.iter().position(|row| Some(&row.name) == self.selected.as_ref()).unwrap_or(0)
    }

    /// The lines of the screen: at most `height` of at most `width` characters.
    pub(super) fn frame(&mut self, sample: &Sample, interval: Duration, width: usize, height: usize) -> Vec<Line> {
        let lines = if self.help {
            HELP.lines().map(|line| Line::new(Tone::Plain, line)).collect()
        } else {
            self.numbers(sample, interval, width, height)
        };
        let mut lines: Vec<Line> = lines.into_iter().take(height.saturating_sub(1)).collect();
        lines.resize(height.saturating_sub(1), Line::default());
        lines.push(self.footer());
        lines.into_iter().take(height).map(|line| line.cut(width)).collect()
    }

    fn numbers(&mut self, sample: &Sample, interval: Duration, width: usize, height: usize) -> Vec<Line> {
        let rows = self.rows(sample);
        let position = self.position(&rows);
        let endpoints = rows.get(position).map_or_else(Vec::new, |row| sample.endpoints(&row.name));
        let mut lines = vec![Line::new(Tone::Plain, title(sample, &rows, interval))];
        lines.extend(notes(sample).into_iter().map(|note| Line::new(Tone::Warning, note)));
        let columns = columns(sample, width);
        lines.push(Line::new(Tone::Strong, heading("SERVICE", width, &columns)));
        // The endpoints get the lines that they need, up to half of the lines that are left, and none if only a few are left. One line is
        // for the footer.
        let left = height.saturating_sub(lines.len() + 1);
        let below = if left < 6 || rows.is_empty() { 0 } else { (endpoints.len() + 2).min(left / 2) };
        self.page = (left - below).max(1);
        let first = (position + 1).saturating_sub(self.page).max(position / self.page * self.page).min(position);
        for (at, row) in rows.iter().enumerate().skip(first).take(self.page) {
            let tone = if row.unanswered > row.open { Tone::Warning } else { Tone::Plain };
            lines.push(Line::new(tone, numbers(&row.name, row, width, &columns)).selected(at == position));
        }
        if rows.is_empty() {
            lines.push(Line::new(Tone::Faint, "no Service matches the filter"));
        }
        if below > 0 {
            lines.resize(height - below - 1, Line::default());
            lines.extend(endpoint_lines(&rows[position].name, &endpoints, (width, &columns), below));
        }
        lines
    }

    fn footer(&self) -> Line {
        if self.typing {
            return Line::new(Tone::Strong, format!("Filter: {}_   (Enter keeps it, Esc clears it)", self.filter));
        }
        let filter = if self.filter.is_empty() { String::new() } else { format!("   filter: {}", self.filter) };
        let keys = "q quit  ? help  / filter  sort: n new o open u unansw p packets b bytes s name";
        Line::new(Tone::Faint, format!("{keys}{filter}"))
    }
}

fn title(sample: &Sample, rows: &[Row], interval: Duration) -> String {
    format!(
        "kube-proxy top: {} connections to {} service ports, every {:.1} s ({} ms)",
        sample.connections(),
        rows.len(),
        interval.as_secs_f32(),
        sample.took.as_millis()
    )
}

/// Notes on how to read the numbers, and the problems of the node.
pub(super) fn notes(sample: &Sample) -> Vec<String> {
    let mut notes = Vec::new();
    if !sample.accounting {
        let remedy = "sysctl -w net.netfilter.nf_conntrack_acct=1";
        notes.push(format!("Packets and bytes are not counted: {remedy}"));
    }
    notes.extend(sample.problems.iter().cloned());
    if sample.one_in() > 1 {
        notes.push(format!("Too many connections to compare each: rates come from one in {}", sample.one_in()));
    }
    notes
}

fn name_width(width: usize, columns: usize) -> usize {
    width.saturating_sub(NUMBER * columns).max(NAME)
}

fn heading(name: &str, width: usize, columns: &[NumberColumn]) -> String {
    let mut line = format!("{name:<0$}", name_width(width, columns.len()));
    columns.iter().for_each(|column| line += &format!("{:>NUMBER$}", column.heading));
    line
}

fn numbers(name: &str, row: &Row, width: usize, columns: &[NumberColumn]) -> String {
    let room = name_width(width, columns.len());
    let name =
        if name.chars().count() > room { name.chars().take(room - 1).chain(['~']).collect() } else { name.to_owned() };
    let mut line = format!("{name:<room$}");
    columns.iter().for_each(|column| line += &format!("{:>NUMBER$}", column.text(row)));
    line
}

fn endpoint_lines(
    service: &str,
    endpoints: &[EndpointRow],
    (width, columns): (usize, &[NumberColumn]),
    room: usize,
) -> Vec<Line> {
    let title = heading(&format!("ENDPOINT of {service}"), width, columns);
    let mut lines = vec![Line::default(), Line::new(Tone::Strong, title)];
    let shown = if endpoints.len() + 2 > room { room - 3 } else { endpoints.len() };
    for endpoint in &endpoints[..shown] {
        let remark = endpoint.remark(endpoints);
        let tone = if remark.is_some() { Tone::Warning } else { Tone::Plain };
        let text = numbers(&endpoint.address.to_string(), &endpoint.row, width, columns);
        let remark = remark.map_or_else(String::new, |remark| format!("  {remark}"));
        lines.push(Line::new(tone, mark(&text, &remark, name_width(width, columns.len()))));
    }
    if shown < endpoints.len() {
        lines.push(Line::new(Tone::Faint, format!("and {} more", endpoints.len() - shown)));
    }
    lines
}

/// Puts a remark after the name if there is room, else at the end of the line.
fn mark(line: &str, remark: &str, name_width: usize) -> String {
    let name = line.split(' ').next().unwrap_or_default().len();
    let room = name_width.saturating_sub(name);
    if remark.len() <= room && line.is_ascii() {
        format!("{}{remark}{}", &line[..name], &line[name + remark.len()..])
    } else {
        format!("{line}{remark}")
    }
}

/// Formats a number of tenths: `12.3`, and from 100 on without tenths, as [`short`] does.
fn tenths(number: u64) -> String {
    if number < 1_000 { format!("{}.{}", number / 10, number % 10) } else { short(number / 10) }
}

/// Formats a number in at most six characters: `9999`, `12.3k`, `4.5M`.
pub(crate) fn short(number: u64) -> String {
    let mut units = ["k", "M", "G", "T", "P", "E"].into_iter();
    let (mut whole, mut rest, mut unit) = (number, 0, "");
    if number < 10_000 {
        return number.to_string();
    }
    while whole >= 1_000 {
        rest = whole % 1_000 / 100;
        whole /= 1_000;
        unit = units.next().unwrap_or("?");
    }
    format!("{whole}.{rest}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::sample::testing::shop;
    use super::*;

    const EVERY: Duration = Duration::from_secs(2);

    fn text(lines: &[Line]) -> String {
        lines.iter().map(|line| format!("{}{}\n", if line.is_selected() { ">" } else { "" }, line.text())).collect()
    }

    fn names(view: &View) -> Vec<String> {
        view.rows(&shop(true)).iter().map(|row| row.name.to_string()).collect()
    }

    #[test]
    fn the_screen_has_services_and_the_endpoints_of_the_selected_one() {
        let mut view = View::new(Order::New, "");
        let frame = text(&view.frame(&shop(false), EVERY, 80, 24));
        let expected = "\
kube-proxy top: 44 connections to 2 service ports, every 2.0 s (12 ms)
Packets and bytes are not counted: sysctl -w net.netfilter.nf_conntrack_acct=1
SERVICE                                                  NEW/S     OPEN   UNANSW
>shop/web:http                                             12.0       41        3
shop/api                                                   0.0        0        0

ENDPOINT of shop/web:http                                NEW/S     OPEN   UNANSW
10.244.0.1:8080                                           10.5       40        0
10.244.0.2:8080  does not answer                           1.5        0        3
10.244.0.3:8080  no traffic                                0.0        0        0
10.244.0.7:8080  no longer in the table                    0.0        1        0
";
        let shown: String =
            frame.lines().filter(|line| !line.is_empty()).take(9).map(|line| format!("{line}\n")).collect();
        let wanted: String =
            expected.lines().filter(|line| !line.is_empty()).take(9).map(|line| format!("{line}\n")).collect();
        assert_eq!(shown, wanted, "{frame}");
        assert_eq!(frame.lines().count(), 24);
        assert!(
            frame.ends_with("q quit  ? help  / filter  sort: n new o open u unansw p packets b bytes s name\n"),
            "{frame}"
        );
    }

    #[test]
    fn columns_that_have_no_numbers_are_left_out_and_totals_where_there_is_no_room() {
        let headings = |accounting, width| -> Vec<&str> {
            columns(&shop(accounting), width).iter().map(|column| column.heading).collect()
        };
        assert_eq!(headings(false, 80), ["NEW/S", "OPEN", "UNANSW"]);
        assert_eq!(headings(true, 80), ["NEW/S", "OPEN", "UNANSW", "PACKETS", "BYTES", "PKT/S", "BYTES/S"]);
        assert_eq!(headings(true, 70), ["NEW/S", "OPEN", "UNANSW", "PKT/S", "BYTES/S"]);
    }

    #[test]
    fn a_key_shows_the_help_and_any_key_takes_it_away() {
        let (mut view, sample) = (View::new(Order::New, ""), shop(false));
        view.key(Key::Char('?'), &sample);
        let help = text(&view.frame(&sample, EVERY, 80, 24));
        assert!(help.starts_with("q, Esc") && help.contains("UNANSW   nothing has answered yet"), "{help}");
        assert!(HELP.lines().all(|line| line.len() <= 80));
        assert!(view.key(Key::Char('q'), &sample));
        assert!(text(&view.frame(&sample, EVERY, 80, 24)).starts_with("kube-proxy top"));
    }

    #[test]
    fn no_line_is_longer_and_no_frame_higher_than_the_screen() {
        for (width, height) in [(1, 1), (20, 3), (40, 5), (80, 24), (79, 9), (300, 100), (0, 0)] {
            let lines = View::new(Order::New, "").frame(&shop(true), EVERY, width, height);
            assert_eq!(lines.len(), height);
            assert!(lines.iter().all(|line| line.text().chars().count() <= width), "{width} x {height}");
        }
    }

    #[test]
    fn keys_sort_and_reverse() {
        let mut view = View::new(Order::Name, "");
        assert_eq!(names(&view), ["shop/api", "shop/web:http"]);
        assert!(view.key(Key::Char('r'), &shop(true)));
        assert_eq!(names(&view), ["shop/web:http", "shop/api"]);
        view.key(Key::Char('r'), &shop(true));
        for key in ['n', 'o', 'u', 'p', 'b'] {
            view.key(Key::Char('s'), &shop(true));
            view.key(Key::Char(key), &shop(true));
            assert_eq!(names(&view)[0], "shop/web:http", "{key}");
        }
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let (mut view, sample) = (View::new(Order::New, ""), shop(true));
        for key in [Key::Char('/'), Key::Char('A'), Key::Char('p'), Key::Char('q'), Key::Backspace] {
            assert!(view.key(key, &sample), "q is a letter of the filter");
        }
        assert!(view.footer().text().starts_with("Filter: ap_"));
        view.key(Key::Enter, &sample);
        assert_eq!(names(&view), ["shop/api"]);
        view.key(Key::Char('/'), &sample);
        view.key(Key::Escape, &sample);
        assert_eq!(names(&view).len(), 2);
        assert!(!view.key(Key::Escape, &sample));
        assert!(!View::new(Order::New, "").key(Key::Interrupt, &sample));
    }

    #[test]
    fn the_selected_service_stays_selected_when_the_order_changes() {
        let (mut view, sample) = (View::new(Order::New, ""), shop(true));
        view.key(Key::Down, &sample);
        view.key(Key::Char('s'), &sample);
        let frame = text(&view.frame(&sample, EVERY, 100, 20));
        assert!(frame.contains(">shop/api") && frame.contains("ENDPOINT of shop/api"), "{frame}");
        for key in [Key::PageDown, Key::End, Key::Down, Key::Down] {
            view.key(key, &sample);
            assert_eq!(view.selected.as_deref(), Some("shop/web:http"), "the last row");
        }
        view.key(Key::Home, &sample);
        assert_eq!(view.selected.as_deref(), Some("shop/api"));
    }

    #[test]
    fn numbers_are_short() {
        for (number, expected) in
            [(0, "0"), (9_999, "9999"), (12_345, "12.3k"), (4_567_890, "4.5M"), (u64::MAX, "18.4E")]
        {
            assert_eq!(short(number), expected);
        }
        assert_eq!((tenths(5), tenths(123), tenths(123_456)), ("0.5".into(), "12.3".into(), "12.3k".into()));
    }
}

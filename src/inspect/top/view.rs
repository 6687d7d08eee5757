//! The state of the screen: the selected row, the order and the filter. Keys change it, and [`View::frame`] returns the lines to draw.
//!
//! Pure: takes [`Key`]s, [`Sample`]s and a size; returns [`Line`]s that fit the size.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::sample::{EndpointRow, Row, Sample};
use crate::output::Tone;
use crate::screen::{Key, Line};

/// By which number the service ports are ordered.
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
    /// The service port whose endpoints are shown, by name, so that it stays selected when the order changes.
    selected: Option<Arc<str>>,
    /// The number of rows that the last frame had room for.
    page: usize,
}

/// What the caller has to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Draw again.
    Draw,
    /// Quit.
    Quit,
}

/// The headings of the columns. The last column is shown only if the rules have counters.
const SERVICE_HEADINGS: [&str; 8] = ["NEW/S", "OPEN", "UNANSW", "PACKETS", "BYTES", "PKT/S", "BYTES/S", "COUNTED"];
/// The width of a column of numbers, the gap before it included.
const NUMBER: usize = 9;
/// The smallest width of the column of names.
const NAME: usize = 16;

impl View {
    /// A view with an order and a filter.
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

    /// Handles a key.
    pub(super) fn key(&mut self, key: Key, sample: &Sample) -> Answer {
        match key {
            Key::Interrupt => return Answer::Quit,
            key if self.typing => self.typed(key),
            Key::Char('q') | Key::Escape => return Answer::Quit,
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
        Answer::Draw
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
        let rows = self.rows(sample);
        let position = self.position(&rows);
        let endpoints = rows.get(position).map_or_else(Vec::new, |row| sample.endpoints(&row.name));
        let mut lines = vec![Line::new(Tone::Plain, title(sample, &rows, interval))];
        lines.extend(notes(sample).into_iter().map(|note| Line::new(Tone::Warning, note)));
        let columns = headings(sample.has_counters()).len();
        lines.push(Line::new(Tone::Strong, heading("SERVICE", width, columns)));
        // The endpoints get the lines that they need, up to half of the lines left; one line is for the footer.
        let left = height.saturating_sub(lines.len() + 1);
        let below = if left < 6 || rows.is_empty() { 0 } else { (endpoints.len() + 2).min(left / 2) };
        self.page = (left - below).max(1);
        let first = (position + 1).saturating_sub(self.page).max(position / self.page * self.page).min(position);
        for (at, row) in rows.iter().enumerate().skip(first).take(self.page) {
            let tone = if row.unanswered > row.open { Tone::Warning } else { Tone::Plain };
            lines.push(Line::new(tone, numbers(&row.name, row, width, columns)).selected(at == position));
        }
        if rows.is_empty() {
            lines.push(Line::new(Tone::Faint, "no Service matches the filter"));
        }
        if below > 0 {
            lines.resize(height - below - 1, Line::default());
            lines.extend(endpoint_lines(&rows[position].name, &endpoints, (width, columns), below));
        }
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::default());
        lines.push(self.footer());
        lines.into_iter().take(height).map(|line| line.cut(width)).collect()
    }

    fn footer(&self) -> Line {
        if self.typing {
            return Line::new(Tone::Strong, format!("Filter: {}_   (Enter keeps it, Esc clears it)", self.filter));
        }
        let filter = if self.filter.is_empty() { String::new() } else { format!("   filter: {}", self.filter) };
        let keys = "q quit  / filter  r reverse  sort by: n new  o open  u unanswered  p packets  b bytes  s Service";
        Line::new(Tone::Faint, format!("{keys}{filter}"))
    }
}

fn title(sample: &Sample, rows: &[Row], interval: Duration) -> String {
    format!(
        "kube-proxy top: {} connections to {} service ports; a look every {:.1} s, the last took {} ms",
        sample.connections(),
        rows.len(),
        interval.as_secs_f32(),
        sample.took.as_millis()
    )
}

/// Notes on how to read the numbers.
pub(super) fn notes(sample: &Sample) -> Vec<String> {
    let mut notes = Vec::new();
    if !sample.accounting {
        let remedy = "sysctl -w net.netfilter.nf_conntrack_acct=1";
        notes.push(format!("Packets and bytes are not counted; for connections from then on: {remedy}"));
    }
    if sample.one_in() > 1 {
        notes.push(format!("Too many connections to compare each: rates come from one in {}", sample.one_in()));
    }
    notes
}

/// The width of the column of names.
fn name_width(width: usize, columns: usize) -> usize {
    width.saturating_sub(NUMBER * columns).max(NAME)
}

fn heading(name: &str, width: usize, columns: usize) -> String {
    let mut line = format!("{name:<0$}", name_width(width, columns));
    SERVICE_HEADINGS[..columns].iter().for_each(|heading| line += &format!("{heading:>NUMBER$}"));
    line
}

fn numbers(name: &str, row: &Row, width: usize, columns: usize) -> String {
    let room = name_width(width, columns);
    let name =
        if name.chars().count() > room { name.chars().take(room - 1).chain(['~']).collect() } else { name.to_owned() };
    let mut line = format!("{name:<room$}");
    cells(row, columns == SERVICE_HEADINGS.len()).iter().for_each(|cell| line += &format!("{cell:>NUMBER$}"));
    line
}

/// The numbers of a row, in the order of the headings.
pub(super) fn cells(row: &Row, counters: bool) -> Vec<String> {
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), short);
    let mut cells = vec![
        row.new.map_or_else(|| "-".to_owned(), tenths),
        short(row.open),
        short(row.unanswered),
        or_dash(row.packets),
        or_dash(row.bytes),
        or_dash(row.packet_rate),
        or_dash(row.byte_rate),
    ];
    cells.extend(counters.then(|| or_dash(row.counted)));
    cells
}

/// The headings of [`cells`].
pub(super) fn headings(counters: bool) -> &'static [&'static str] {
    &SERVICE_HEADINGS[..if counters { SERVICE_HEADINGS.len() } else { SERVICE_HEADINGS.len() - 1 }]
}

fn endpoint_lines(
    service: &str,
    endpoints: &[EndpointRow],
    (width, columns): (usize, usize),
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
        lines.push(Line::new(tone, mark(&text, &remark, name_width(width, columns))));
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

/// Formats a number of tenths: `12.3`, and without a decimal from 100 on.
fn tenths(number: u64) -> String {
    if number < 1_000 { format!("{}.{}", number / 10, number % 10) } else { short(number / 10) }
}

/// Formats a number in at most six characters: `9999`, `12.3k`, `4.5M`.
fn short(number: u64) -> String {
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
        let frame = text(&view.frame(&shop(false), EVERY, 100, 14));
        let expected = "\
kube-proxy top: 44 connections to 2 service ports; a look every 2.0 s, the last took 12 ms
Packets and bytes are not counted; for connections from then on: sysctl -w net.netfilter.nf_conntrack_acct=1
SERVICE                                  NEW/S     OPEN   UNANSW  PACKETS    BYTES    PKT/S  BYTES/S
>shop/web:http                             12.0       41        3        -        -        -        -
shop/api                                   0.0        0        0        -        -        -        -


ENDPOINT of shop/web:http                NEW/S     OPEN   UNANSW  PACKETS    BYTES    PKT/S  BYTES/S
10.244.0.1:8080                           10.5       40        0        -        -        -        -
10.244.0.2:8080  does not answer           1.5        0        3        -        -        -        -
and 2 more
";
        // The note is longer than the screen is wide, and is cut.
        let cut: String =
            expected.lines().map(|line| format!("{}\n", line.chars().take(101).collect::<String>())).collect();
        assert!(frame.starts_with(&cut[..cut.find("Packets").unwrap()]), "{frame}");
        for line in expected.lines().filter(|line| !line.starts_with("Packets") && !line.is_empty()) {
            assert!(frame.contains(line), "{line}\nis not in\n{frame}");
        }
        assert_eq!(frame.lines().count(), 14);
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
        assert_eq!(view.key(Key::Char('r'), &shop(true)), Answer::Draw);
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
            assert_eq!(view.key(key, &sample), Answer::Draw, "q is a letter of the filter");
        }
        assert!(view.footer().text().starts_with("Filter: ap_"));
        view.key(Key::Enter, &sample);
        assert_eq!(names(&view), ["shop/api"]);
        view.key(Key::Char('/'), &sample);
        view.key(Key::Escape, &sample);
        assert_eq!(names(&view).len(), 2);
        assert_eq!(view.key(Key::Escape, &sample), Answer::Quit);
        assert_eq!(View::new(Order::New, "").key(Key::Interrupt, &sample), Answer::Quit);
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

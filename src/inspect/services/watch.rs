//! `services --watch` on a terminal: a screen with the listing. Keys change its order and scroll it.
//!
//! [`Pages`] is pure: takes [`Key`]s, the printed listing and a size, returns [`Line`]s that fit the size. Without a terminal, and as JSON or
//! YAML, [`super::run`] prints one listing after the other instead.

use std::cmp::Reverse;
use std::time::Duration;

use anyhow::Result;

use super::stats::Stats;
use super::{Args, Listing, print};
use crate::CommandOutcome;
use crate::output::{Output, Tone};
use crate::screen::{self, Key, Line, OnScreen};

/// The order of the frontends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of the view: by Service, then by kind and frontend.
    #[default]
    Name,
    /// New connections per second, the most first.
    New,
    /// Open connections, the most first.
    Open,
}

impl Order {
    /// The positions of the listing's frontends, in this order.
    fn positions(self, listing: &Listing, stats: &Stats) -> Vec<usize> {
        let (frontends, mut positions) = (&listing.view.frontends, listing.positions());
        let numbers = |position: &usize| stats.of_frontend(*position, &frontends[*position]);
        let new = |position: &usize| numbers(position).rates.map_or(0.0, |rates| rates.connections_per_second);
        match self {
            Self::Name => {}
            Self::New => positions.sort_by(|a, b| new(b).total_cmp(&new(a))),
            Self::Open => positions.sort_by_cached_key(|position| Reverse(numbers(position).open)),
        }
        positions
    }
}

/// The order and the scroll position, which the user can change.
#[derive(Debug, Default)]
struct Pages {
    order: Order,
    /// The first row that is shown below the headings.
    first: usize,
    /// The number of rows that the last frame had room for.
    page: usize,
}

impl Pages {
    /// Handles a key. Returns whether the screen stays open.
    fn key(&mut self, key: Key) -> bool {
        match key {
            Key::Interrupt | Key::Escape | Key::Char('q') => return false,
            Key::Char('s') => self.order = Order::Name,
            Key::Char('n') => self.order = Order::New,
            Key::Char('o') => self.order = Order::Open,
            Key::Up | Key::Char('k') => self.first = self.first.saturating_sub(1),
            Key::Down | Key::Char('j') => self.first += 1,
            Key::PageUp => self.first = self.first.saturating_sub(self.page),
            Key::PageDown => self.first += self.page,
            Key::Home => self.first = 0,
            Key::End => self.first = usize::MAX,
            Key::Char(_) | Key::Enter | Key::Backspace => {}
        }
        true
    }

    /// The lines of the screen: the headings, the rows from `first` on, and a line about the keys.
    fn frame(&mut self, text: &str, width: usize, height: usize) -> Vec<Line> {
        let (headings, rows) = text.split_once('\n').unwrap_or((text, ""));
        self.page = height.saturating_sub(2);
        let count = rows.lines().count();
        self.first = self.first.min(count.saturating_sub(self.page));
        let mut lines = vec![Line::new(Tone::Strong, headings)];
        lines.extend(rows.lines().skip(self.first).take(self.page).map(|row| Line::new(Tone::Plain, row)));
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::default());
        let last = (self.first + self.page).min(count);
        let keys = "q quit  arrows scroll  sort by: s Service  n new  o open";
        lines
            .push(Line::new(Tone::Faint, format!("{keys}  rows {} to {last} of {count}", (self.first + 1).min(count))));
        lines.into_iter().take(height).map(|line| line.cut(width)).collect()
    }
}

/// The listing on the screen.
struct Watched<'a> {
    args: &'a Args,
    listing: Listing,
    stats: Stats,
    pages: Pages,
}

impl OnScreen for Watched<'_> {
    fn frame(&mut self, width: usize, height: usize) -> Result<Vec<Line>> {
        let positions = self.pages.order.positions(&self.listing, &self.stats);
        let mut text = Vec::new();
        print::print(self.args, &self.listing, Some(&self.stats), &positions, &mut Output::to(&mut text, false))?;
        Ok(self.pages.frame(&String::from_utf8_lossy(&text), width, height))
    }

    fn key(&mut self, key: Key) -> bool {
        self.pages.key(key)
    }

    fn look(&mut self) -> Result<()> {
        self.listing = Listing::read(self.args)?;
        self.stats.count(&self.listing.view)
    }
}

/// Shows the listing until a key or a signal ends it.
///
/// # Errors
/// As [`super::run`], and when the terminal cannot be used.
pub(super) fn watch(args: &Args) -> Result<CommandOutcome> {
    let (listing, mut stats) = (Listing::read(args)?, Stats::default());
    stats.count(&listing.view)?;
    let mut watched = Watched { args, listing, stats, pages: Pages::default() };
    screen::show(&mut watched, Duration::from_secs(args.interval))?;
    Ok(watched.listing.outcome())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "SERVICE  FRONTEND\na\nb\nc\nd\ne\n";

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn a_frame_has_the_headings_the_rows_that_fit_and_the_keys() {
        let mut pages = Pages::default();
        let lines = pages.frame(TEXT, 80, 5);
        assert_eq!(texts(&lines)[..4], ["SERVICE  FRONTEND", "a", "b", "c"]);
        assert!(texts(&lines)[4].starts_with("q quit") && texts(&lines)[4].ends_with("rows 1 to 3 of 5"));
        assert!(pages.key(Key::PageDown));
        assert_eq!(texts(&pages.frame(TEXT, 80, 5))[1..4], ["c", "d", "e"], "the last page is full");
        assert!(pages.key(Key::Up) && pages.key(Key::Up) && pages.key(Key::Up));
        assert_eq!(texts(&pages.frame(TEXT, 80, 5))[1..4], ["a", "b", "c"]);
        assert!(pages.key(Key::End));
        assert_eq!(texts(&pages.frame(TEXT, 80, 5))[1..4], ["c", "d", "e"]);
    }

    #[test]
    fn every_size_of_a_terminal_has_a_frame_that_fits() {
        for (width, height) in [(0, 0), (1, 1), (4, 2), (20, 3), (200, 50)] {
            let lines = Pages::default().frame(TEXT, width, height);
            assert_eq!(lines.len(), height);
            assert!(lines.iter().all(|line| line.text().chars().count() <= width));
        }
    }

    #[test]
    fn three_keys_quit() {
        for key in [Key::Interrupt, Key::Escape, Key::Char('q')] {
            assert!(!Pages::default().key(key));
        }
    }
}

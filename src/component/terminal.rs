//! Breaks sentences into lines that fit a terminal. Only [`width`] and [`for_stderr`] ask the system for something.

use std::os::fd::AsFd;

use rustix::termios::{isatty, tcgetwinsize};

/// Lines are not broken for a terminal with fewer columns.
const LEAST: usize = 40;

/// The number of columns of the terminal behind a stream; `None` if the stream is no terminal, or the terminal is very narrow.
pub fn width(stream: impl AsFd) -> Option<usize> {
    let size = isatty(&stream).then(|| tcgetwinsize(&stream).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|width| *width >= LEAST)
}

/// Breaks words that begin at the column `at` into lines of at most `width` columns, unless a single word is wider; all lines but the first
/// are indented by `hang`.
#[must_use]
pub fn broken(words: &str, width: usize, mut at: usize, hang: usize) -> String {
    let mut lines = String::new();
    for word in words.split_inclusive(' ') {
        if at > hang && at + visible(word.trim_end_matches(' ')) > width {
            lines.truncate(lines.trim_end_matches(' ').len());
            lines += &format!("\n{:hang$}", "");
            at = hang;
        }
        lines += word;
        at += visible(word);
    }
    lines
}

/// The text of an error for standard error. If standard error is a terminal of at least `LEAST` columns, lines that are wider are broken.
#[must_use]
pub fn for_stderr(text: &str) -> String {
    let Some(width) = width(std::io::stderr()) else { return text.to_owned() };
    let lines: Vec<String> = text.lines().map(|line| broken(line, width, 0, 2)).collect();
    lines.join("\n")
}

/// The number of columns of a text, without the escape sequences of styles, which end with an `m`.
fn visible(text: &str) -> usize {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().map_or(0, |plain| plain.chars().count());
    first + parts.map(|part| part.split_once('m').map_or(0, |(_, plain)| plain.chars().count())).sum::<usize>()
}

//! Cuts text from outside of the program, before it becomes part of a message.
//!
//! Annotations, names and error messages come from objects, files, the API server and other programs, and may have any length. The module
//! does not escape: the log and the commands escape what they print, and text that was escaped before would be escaped twice. Pure.

use std::borrow::Cow;
use std::fmt;

/// The most characters of a value that a message quotes.
const VALUE: usize = 100;

/// The most characters of another program's message, for example of the API server, that is part of a message.
pub const MESSAGE: usize = 500;

/// Returns a text, or its first `most` characters and the size of the whole text if it is longer.
#[must_use]
pub fn excerpt(text: &str, most: usize) -> Cow<'_, str> {
    match cut(text, most) {
        None => text.into(),
        Some(start) => format!("{start}... ({} bytes)", text.len()).into(),
    }
}

/// Returns the first `most` characters of a text that is longer; `None` if it is not.
fn cut(text: &str, most: usize) -> Option<&str> {
    text.char_indices().nth(most).map(|(end, _)| &text[..end])
}

/// Returns a value in quotation marks for a message: the whole value, or its first 100 characters and its size if it is longer.
#[must_use]
pub const fn quoted(value: &str) -> Quoted<'_> {
    Quoted(value)
}

/// A value in quotation marks, see [`quoted`].
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value) = self;
        match cut(value, VALUE) {
            None => write!(f, "\"{value}\""),
            Some(start) => write!(f, "\"{start}...\" ({} bytes)", value.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_whole_and_a_long_one_is_cut_between_two_characters() {
        assert_eq!(excerpt("", 0), "");
        assert_eq!(excerpt("äöü", 3), "äöü");
        assert_eq!(excerpt("äöü", 2), "äö... (6 bytes)");
        assert_eq!(quoted("local=4\n").to_string(), "\"local=4\n\"");
        assert_eq!(quoted(&"ä".repeat(VALUE)).to_string(), format!("\"{}\"", "ä".repeat(VALUE)));
        assert_eq!(quoted(&"ä".repeat(120_000)).to_string(), format!("\"{}...\" (240000 bytes)", "ä".repeat(VALUE)));
    }
}

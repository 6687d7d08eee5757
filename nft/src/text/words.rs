//! Text that several kinds of objects have: comments, names of interfaces, and times.

use std::time::Duration;

use crate::userdata;

/// A comment in nft syntax, ` comment "..."`, or nothing if there is no comment.
pub(super) fn comment(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" comment {}", quoted(text)))
}

/// A comment between quotation marks, shortened as [`userdata::cut`] does.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", harmless(userdata::cut(text)))
}

/// Text without the characters that cannot stand between quotation marks. nft has no escapes for them, so this replaces the characters that
/// would end the string or the line, and those that change the direction of writing on a terminal.
fn harmless(text: &str) -> String {
    let turns =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let replace = |c: char| match c {
        '"' => '\'',
        c if c.is_control() || turns(c) => ' ',
        c => c,
    };
    text.chars().map(replace).collect()
}

/// The name of an interface between quotation marks. The kernel allows nearly all characters in it; nft would take a `*` at its end
/// as a wildcard.
pub(super) fn interface(name: &str) -> String {
    let name = harmless(name);
    match name.strip_suffix('*') {
        Some(start) => format!("\"{start}\\*\""),
        None => format!("\"{name}\""),
    }
}

/// A pattern for names of interfaces that start with this text.
pub(super) fn interface_start(start: &str) -> String {
    format!("\"{}*\"", harmless(start))
}

/// A duration as nft writes it: `3h`, `1m30s`, `1d2h`.
pub(super) fn duration(time: Duration) -> String {
    const UNITS: [(u128, &str); 5] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let mut rest = time.as_millis();
    let mut text = String::new();
    for (unit, name) in UNITS {
        if rest >= unit {
            text += &format!("{}{name}", rest / unit);
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_nft_writes_them() {
        assert_eq!(duration(Duration::from_secs(10_800)), "3h");
        assert_eq!(duration(Duration::from_secs(90)), "1m30s");
        assert_eq!(duration(Duration::from_millis(93_600_001)), "1d2h1ms");
        assert_eq!(duration(Duration::ZERO), "0s");
    }

    #[test]
    fn the_name_of_an_interface_does_not_end_its_string() {
        assert_eq!(interface("a\";\u{1b}b"), "\"a'; b\"");
        assert_eq!([interface("br*"), interface("b*r")], ["\"br\\*\"", "\"b*r\""]);
        assert_eq!(interface_start("a\"}"), "\"a'}*\"");
    }

    #[test]
    fn a_comment_does_not_end_its_string() {
        assert_eq!(quoted("a\"b\nc"), "\"a'b c\"");
        assert_eq!(quoted("\u{2028}\u{202e}\u{1b}"), "\"   \"");
        assert_eq!(quoted(&"é".repeat(100)).len(), 126 + 2, "cut at a character's end");
    }
}

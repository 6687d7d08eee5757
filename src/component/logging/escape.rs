//! Escapes control characters in lines for a terminal and in JSON records. (Module `text` escapes the records in text format itself.)
//!
//! Names, values and error texts come from objects, files, the API server and the kernel, and may contain any characters. The module takes
//! a formatted record and returns one line, in which it has escaped characters that end a line, move a terminal's cursor or change the
//! direction of writing. It works on whole records, so that no field can be forgotten. It does no I/O.

use std::fmt::Write as _;

use crate::config::LogFormat;

/// Returns whether a character is a control character (C0, DEL or C1), a Unicode line or paragraph separator, or a Unicode mark that
/// changes the direction of writing.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a record as one line that ends with a newline and has no other control character. Escaped JSON still decodes to the same values.
pub(super) fn line(record: &str, format: LogFormat) -> String {
    let record = record.trim_end_matches('\n');
    let mut line = String::with_capacity(record.len() + 1);
    let mut rest = record;
    while let Some(at) = rest.find(is_control) {
        let (before, behind) = rest.split_at(at);
        line.push_str(before);
        let mut behind = behind.chars();
        let control = behind.next().into_iter();
        match format {
            LogFormat::Text => line.extend(control.flat_map(char::escape_default)),
            // In JSON, control characters occur only in strings, and each fits into `\uXXXX`. The result is ignored, because writing to a
            // String cannot fail.
            LogFormat::Json => control.for_each(|c| _ = write!(line, "\\u{:04x}", u32::from(c))),
        }
        rest = behind.as_str();
    }
    line.push_str(rest);
    line.push('\n');
    line
}

/// Escapes text of several lines for a terminal: does the same as [`line`] for each line, so newlines stay.
pub(super) fn lines(text: &str) -> String {
    text.lines().map(|one| line(one, LogFormat::Text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLS: &str =
        "a\nb\r\t\0\u{1b}[2J\u{7f}\u{85}\u{9b}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}c";

    #[test]
    fn a_record_is_one_line_whatever_it_contains() {
        let escaped = line(&format!("{CONTROLS}\n"), LogFormat::Text);
        let expected = "a\\nb\\r\\t\\u{0}\\u{1b}[2J\\u{7f}\\u{85}\\u{9b}\\u{61c}\\u{200e}\\u{200f}\\u{2028}\\u{2029}\\u{202a}\
                        \\u{202e}\\u{2066}\\u{2069}c\n";
        assert_eq!(escaped, expected);
        assert!(!expected.trim_end_matches('\n').contains(is_control));
    }

    #[test]
    fn escaped_json_is_read_back() {
        let escaped = line(&serde_json::json!({ "k": CONTROLS }).to_string(), LogFormat::Json);
        assert!(!escaped.trim_end_matches('\n').contains(is_control), "{escaped:?}");
        let value: serde_json::Value = serde_json::from_str(&escaped).unwrap();
        assert_eq!(value["k"], CONTROLS);
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in ["", "plain", "नमस्ते \u{200d} ação \\n \"quoted\""] {
            assert_eq!(line(text, LogFormat::Text), format!("{text}\n"));
        }
        assert_eq!(lines("one\ntw\u{1b}o\n"), "one\ntw\\u{1b}o\n");
    }
}

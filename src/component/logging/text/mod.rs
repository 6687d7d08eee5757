//! Formats a record as klog v2 does:
//!
//! ```text
//! I1122 11:42:34.588089   30022 sync.rs:228] "Synced" numServices=4 elapsed="1.2ms"
//! ```
//!
//! The text consists of severity, month and day, local time with microseconds, process id in seven columns, file without folders and line
//! (the name of the folder replaces `mod` and `lib` in `mod.rs` and `lib.rs`), then the message and the fields. The module takes a record,
//! the time zone and the process id, and returns text that ends with a newline. It does no I/O.
//!
//! The values follow klog's rules (`internal/serialize`): text is quoted as with Go's `strconv.Quote`, but text of several lines is written
//! between `<` and ` >`, with a tab before each line; all other values are written as JSON. An error's text (`err`) is the first field.
//!
//! Invariant: only the first line of a record begins with a letter, and no character of a value reaches a terminal as a control character,
//! except for the newlines and tabs of text of several lines. This differs from klog, which does not escape control characters in text of
//! several lines.

use std::fmt::{self, Write as _};

use jiff::tz::TimeZone;
use serde_json::Value;

use super::record::{Record, Severity};

/// Returns a record as text. `zone` is the time zone for the record's time, and `pid` is the process id.
pub(super) fn record(record: &Record<'_>, zone: &TimeZone, pid: u32) -> String {
    let mut text = String::new();
    // The result is ignored, because writing to a string cannot fail.
    _ = header(&mut text, record, zone, pid);
    quote(&mut text, &record.message);
    let is_error = |(name, _): &&(&'static str, Value)| *name == "err" && record.severity == Severity::Error;
    let (errors, others): (Vec<_>, Vec<_>) = record.fields.iter().partition(is_error);
    for (name, value) in errors.into_iter().chain(others) {
        _ = write!(text, " {name}=");
        field(&mut text, value);
    }
    text.push('\n');
    text
}

/// Writes everything before the message. Must not allocate memory, because `out_of_memory` calls it.
pub(super) fn header(out: &mut impl fmt::Write, record: &Record<'_>, zone: &TimeZone, pid: u32) -> fmt::Result {
    let severity = match record.severity {
        Severity::Info => 'I',
        Severity::Warning => 'W',
        Severity::Error => 'E',
    };
    let time = zone.to_datetime(record.time);
    let (month, day, hour, minute, second) = (time.month(), time.day(), time.hour(), time.minute(), time.second());
    let micros = time.subsec_nanosecond() / 1_000;
    let module = record.place.module();
    let line = record.place.line;
    write!(
        out,
        "{severity}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {pid:>7} {module}.rs:{line}] "
    )
}

fn field(text: &mut String, value: &Value) {
    match value {
        Value::String(value) if value.contains('\n') => several_lines(text, value),
        Value::String(value) => quote(text, value),
        // Escape characters with a meaning in HTML or JavaScript, as Go's JSON does. In JSON they occur only in strings.
        other => other.to_string().chars().for_each(|c| match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => _ = write!(text, "\\u{:04x}", u32::from(c)),
            c if is_printed(c) => text.push(c),
            c => escape_json(text, c),
        }),
    }
}

/// Escapes a character that is valid in JSON, but that a terminal may take for a control character.
fn escape_json(text: &mut String, c: char) {
    c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(text, "\\u{unit:04x}"));
}

/// Writes text of several lines. Ignores a newline at the end of the text.
fn several_lines(text: &mut String, value: &str) {
    text.push_str("<\n");
    for line in value.split_terminator('\n') {
        text.push('\t');
        for c in line.chars() {
            if is_printed(c) || c == '\t' { text.push(c) } else { escape(text, c) }
        }
        text.push('\n');
    }
    text.push_str(" >");
}

/// Writes text as Go's `strconv.Quote` does.
pub(super) fn quote(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if is_printed(c) => text.push(c),
            c => escape(text, c),
        }
    }
    text.push('"');
}

/// Writes a character that is not printable as an escape, as Go does.
fn escape(text: &mut String, c: char) {
    let code = u32::from(c);
    match c {
        '\x07' => text.push_str("\\a"),
        '\x08' => text.push_str("\\b"),
        '\x0c' => text.push_str("\\f"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        '\x0b' => text.push_str("\\v"),
        '\0'..=' ' | '\x7f' => _ = write!(text, "\\x{code:02x}"),
        '\u{80}'..='\u{ffff}' => _ = write!(text, "\\u{code:04x}"),
        _ => _ = write!(text, "\\U{code:08x}"),
    }
}

/// Returns whether a character is printable, as Go's `strconv.IsPrint` decides it: letters, marks, numbers, punctuation, symbols and the
/// ASCII space. Rust's `Debug` for text escapes by the same Unicode categories, except that it also escapes a combining mark at the
/// beginning of a text; therefore this function tests the character after a letter.
fn is_printed(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    let mut behind_a_letter = [b'a'; 5];
    let length = c.encode_utf8(&mut behind_a_letter[1..]).len();
    str::from_utf8(&behind_a_letter[..=length]).is_ok_and(|text| text.escape_debug().count() == 2)
}

#[cfg(test)]
mod tests;

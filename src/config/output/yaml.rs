//! YAML in the form that sigs.k8s.io/yaml gives, so that files can be compared with upstream's line by line.
//!
//! Takes a JSON value whose keys are plain words, gives text. The library that reads YAML quotes by other rules and cannot be
//! told to. Invariant: every text is read back as the same text, never as a number, a boolean or null.

use std::fmt::Write as _;

use serde_json::Value;

/// The document, two blanks a level, lists at the level of their key.
pub(super) fn write(document: &Value) -> String {
    let mut out = String::new();
    block(document, 0, &mut out);
    out
}

fn block(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(fields) => fields.iter().enumerate().for_each(|(index, (name, value))| {
            indent(if index == 0 && out.ends_with("- ") { 0 } else { depth }, out);
            out.push_str(&scalar(name));
            out.push(':');
            child(value, depth, out);
        }),
        Value::Array(items) => items.iter().for_each(|item| {
            indent(depth, out);
            out.push_str("- ");
            entry(item, depth, out);
        }),
        other => out.push_str(&other.to_string()),
    }
}

/// What stands behind a key.
fn child(value: &Value, depth: usize, out: &mut String) {
    if is_leaf(value) {
        out.push(' ');
        leaf(value, out);
        return;
    }
    out.push('\n');
    block(value, if value.is_array() { depth } else { depth + 1 }, out);
}

/// What stands behind the dash of a list.
fn entry(item: &Value, depth: usize, out: &mut String) {
    if is_leaf(item) { leaf(item, out) } else { block(item, depth + 1, out) }
}

fn is_leaf(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

fn leaf(value: &Value, out: &mut String) {
    let text = value.as_str().map_or_else(|| value.to_string(), scalar);
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

fn indent(depth: usize, out: &mut String) {
    out.push_str(&"  ".repeat(depth));
}

/// Double quotes where the bare text would be another type, single quotes where it would not be a scalar.
fn scalar(text: &str) -> String {
    if text.is_empty() || is_other_type(text) || text.chars().any(char::is_control) {
        return Value::from(text).to_string();
    }
    if is_syntax(text) { format!("'{}'", text.replace('\'', "''")) } else { text.to_owned() }
}

fn is_other_type(text: &str) -> bool {
    const WORDS: [&str; 11] = ["~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "<<"];
    let digits = text.replace('_', "");
    let radix = digits.trim_start_matches(['+', '-']).to_ascii_lowercase();
    WORDS.contains(&text.to_ascii_lowercase().as_str())
        || digits.parse::<f64>().is_ok()
        || [".inf", ".nan"].contains(&radix.as_str())
        || ["0x", "0o", "0b"].iter().any(|prefix| radix.starts_with(prefix))
        || is_base_60(&digits)
        || is_date(text)
}

/// `1:20` is 80 in YAML 1.1.
fn is_base_60(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.contains(':') && text.trim_start_matches(['+', '-']).split(':').all(number)
}

fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    parts.len() == 3 && parts[0].len() == 4 && parts.iter().all(|part| part.parse::<u32>().is_ok())
}

fn is_syntax(text: &str) -> bool {
    let opens = |c: char| "#,[]{}&*!|>'\"%@`".contains(c);
    let dash = |c: char| "-?".contains(c);
    text.starts_with(opens)
        || (text.starts_with(dash) && text[1..].starts_with([' ']))
        || matches!(text, "-" | "?" | "---" | "...")
        || text.contains(": ")
        || text.contains(" #")
        || text.ends_with(':')
        || text.starts_with(' ')
        || text.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        for (text, written) in [
            ("0.0.0.0:10256", "0.0.0.0:10256"),
            ("0.0.0.0", "0.0.0.0"),
            ("[::]:10256", "'[::]:10256'"),
            ("::", "'::'"),
            ("::1", "::1"),
            ("10.0.0.0/8,fd00::/8", "10.0.0.0/8,fd00::/8"),
            ("30s", "30s"),
            ("", "\"\""),
            ("0", "\"0\""),
            ("1.35", "\"1.35\""),
            ("1e3", "\"1e3\""),
            ("0x10", "\"0x10\""),
            ("no", "\"no\""),
            ("1:20", "\"1:20\""),
            ("2026-01-01", "\"2026-01-01\""),
            ("a: b", "'a: b'"),
            ("it's", "it's"),
            ("a\nb", "\"a\\nb\""),
        ] {
            assert_eq!(scalar(text), written, "{text}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let texts = [
            "",
            "0",
            "::",
            "[::]:1",
            "~",
            "No",
            "1_000",
            ".inf",
            "a #b",
            "- a",
            "#",
            "it's: 'x'",
            "a\tb",
            "-1",
            "1:20",
        ];
        let document = json!({"a": texts, "b": {"c": [{"d": 1, "e": null}, {"d": true}], "f": [], "g": {}}, "h": 0.1});
        let read: Value = serde_saphyr::from_str(&write(&document)).unwrap();
        assert_eq!(read, document, "{}", write(&document));
    }
}

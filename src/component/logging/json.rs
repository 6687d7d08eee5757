//! Formats a record as component-base does for `--logging-format=json`:
//!
//! ```text
//! {"ts":1762860000123.456,"caller":"sync/mod.rs:228","msg":"Synced","v":4,"numServices":4,"elapsed":"1.2ms"}
//! ```
//!
//! The keys are: milliseconds since 1970 with a fraction, the file with its folder and the line, the message, the verbosity, and then the
//! record's fields. An error has no verbosity, and its text (`err`) is last. A warning has verbosity 0, because the format has no
//! severities. As in upstream, the name of a Kubernetes object is a JSON object with `name` and `namespace`. The module takes a record and
//! returns one line. It does no I/O.

use std::fmt::Write as _;

use serde_json::Value;

use super::escape;
use super::record::{Record, Severity};
use crate::config::LogFormat;

/// The fields whose value is the name of a Kubernetes object. Upstream writes such a name as a JSON object.
const OBJECTS: [&str; 4] = ["endpointSlice", "node", "pod", "service"];

/// Returns a record as a line of JSON.
pub(super) fn record(record: &Record<'_>) -> String {
    let place = format!("{}:{}", short(record.place.file), record.place.line);
    let time = milliseconds(record.time.as_nanosecond());
    let (place, message) = (Value::from(place), Value::from(&*record.message));
    let mut line = format!("{{\"ts\":{time},\"caller\":{place},\"msg\":{message}");
    if record.severity != Severity::Error {
        _ = write!(line, ",\"v\":{}", record.verbosity);
    }
    let is_error = |(name, _): &&(&'static str, Value)| *name == "err" && record.severity == Severity::Error;
    let (errors, others): (Vec<_>, Vec<_>) = record.fields.iter().partition(is_error);
    for (name, value) in others.into_iter().chain(errors) {
        _ = write!(line, ",{}:", Value::from(*name));
        field(&mut line, name, value);
    }
    line.push('}');
    escape::line(&line, LogFormat::Json)
}

/// Returns the last folder and the name of a file, such as `sync/mod.rs`.
pub(super) fn short(file: &str) -> &str {
    file.rmatch_indices('/').nth(1).map_or(file, |(at, _)| &file[at + 1..])
}

/// Converts nanoseconds since 1970 to milliseconds. The result is exact to about a quarter of a microsecond.
#[allow(clippy::cast_precision_loss, reason = "upstream divides 64-bit floats, too")]
pub(super) fn milliseconds(nanoseconds: i128) -> f64 {
    nanoseconds as f64 / 1e6
}

fn field(line: &mut String, name: &str, value: &Value) {
    match value {
        Value::String(text) if OBJECTS.contains(&name) => match text.split_once('/') {
            Some((namespace, name)) => {
                _ = write!(line, "{{\"name\":{},\"namespace\":{}}}", Value::from(name), Value::from(namespace));
            }
            None => _ = write!(line, "{{\"name\":{value}}}"),
        },
        value => _ = write!(line, "{value}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::logging::testing;

    fn line(severity: Severity, verbosity: u32, fields: &[(&'static str, Value)]) -> String {
        super::record(&testing::record(severity, verbosity, "a \"message\"", fields))
    }

    #[test]
    fn a_record_has_time_place_message_verbosity_and_its_fields() {
        let fields = [("numServices", json!(4)), ("elapsed", json!("1.2ms")), ("addresses", json!(["a", "b"]))];
        assert_eq!(
            line(Severity::Info, 2, &fields),
            "{\"ts\":1763811754588.089,\"caller\":\"sync/mod.rs:228\",\"msg\":\"a \\\"message\\\"\",\"v\":2,\
             \"numServices\":4,\"elapsed\":\"1.2ms\",\"addresses\":[\"a\",\"b\"]}\n"
        );
    }

    #[test]
    fn an_error_has_no_verbosity_and_its_text_is_last() {
        let line = line(Severity::Error, 0, &[("err", json!("line one\nline two")), ("port", json!(80))]);
        let rest = line.split_once("\"msg\":").unwrap().1;
        assert_eq!(rest, "\"a \\\"message\\\"\",\"port\":80,\"err\":\"line one\\nline two\"}\n");
    }

    #[test]
    fn a_warning_is_a_record_of_verbosity_0() {
        let line = line(Severity::Warning, 0, &[("err", json!("no")), ("port", json!(80))]);
        assert!(line.ends_with(",\"v\":0,\"err\":\"no\",\"port\":80}\n"), "{line}");
    }

    #[test]
    fn names_of_objects_are_objects() {
        let line =
            line(Severity::Info, 0, &[("service", json!("shop/web")), ("pod", json!("web")), ("name", json!("a/b"))]);
        assert!(
            line.ends_with(
                "\"service\":{\"name\":\"web\",\"namespace\":\"shop\"},\"pod\":{\"name\":\"web\"},\"name\":\"a/b\"}\n"
            ),
            "{line}"
        );
    }

    #[test]
    fn a_time_of_whole_milliseconds_has_no_fraction() {
        assert_eq!(milliseconds(1_763_811_754_588_000_000).to_string(), "1763811754588");
        assert_eq!(milliseconds(1_763_811_754_000_456_000).to_string(), "1763811754000.456");
    }

    #[test]
    fn the_place_has_one_folder() {
        assert_eq!(
            [short("src/main.rs"), short("src/sync/mod.rs"), short("/a/b/c/d.rs"), short("d.rs")],
            ["src/main.rs", "sync/mod.rs", "c/d.rs", "d.rs"]
        );
    }
}

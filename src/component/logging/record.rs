//! A record of the log before it is formatted as text or JSON.
//!
//! A record is made from an event of `tracing`, from a panic, or from the error that ends the process. It has a severity, a verbosity, a
//! place in the source code, a message and fields. Fields keep their types: `%value` and text become strings, numbers and booleans keep
//! their type, and [`list`] makes a list. Text that is longer than [`LONGEST`] is cut, because it may come from outside. The level of an informational record sets its verbosity: 0 for `info!`, 4 for `debug!`, 6 for
//! `trace!`; a target such as [`V2`] sets another verbosity for `info!`.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

use crate::config::GoDuration;
use crate::excerpt::{MESSAGE, excerpt};
use crate::redact::redact;

/// The most characters of the message, and of each field. Code that logs a value from outside quotes only its beginning
/// ([`crate::excerpt`]); this limit holds for all code.
pub(super) const LONGEST: usize = 2_000;

/// The target of an `info!` that is logged from verbosity 1 on.
pub const V1: &str = "v1";
/// The target of an `info!` that is logged from verbosity 2 on.
pub const V2: &str = "v2";

/// The severities of klog except F (fatal), because Kubernetes components log the error that ends them with severity E.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Info,
    Warning,
    Error,
}

/// The file and line of the source code that logs the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The path of the file, as macro `file!` returns it.
    pub(super) file: &'a str,
    pub(super) line: u32,
}

impl<'a> Place<'a> {
    /// Returns the name of the module: the file's name without `.rs`. For `mod.rs` and `lib.rs` it is the name of the nearest folder that
    /// is not `src`.
    pub(super) fn module(self) -> &'a str {
        let mut parts = self.file.strip_suffix(".rs").unwrap_or(self.file).rsplit('/');
        let name = parts.next().unwrap_or_default();
        let folder = if name == "mod" || name == "lib" { parts.find(|folder| *folder != "src") } else { None };
        folder.unwrap_or(name)
    }
}

#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) severity: Severity,
    /// The lowest `-v` with which the record is logged; 0 for warnings and errors.
    pub(super) verbosity: u32,
    pub(super) time: Timestamp,
    pub(super) place: Place<'a>,
    pub(super) message: String,
    /// The keys and values, in the order in which the logging code lists them.
    pub(super) fields: Vec<(&'static str, Value)>,
}

/// Returns the severity of a record, and the lowest `-v` with which the record is logged.
pub(super) fn rank(metadata: &Metadata<'_>) -> (Severity, u32) {
    match *metadata.level() {
        Level::ERROR => (Severity::Error, 0),
        Level::WARN => (Severity::Warning, 0),
        Level::INFO => match metadata.target() {
            V1 => (Severity::Info, 1),
            V2 => (Severity::Info, 2),
            _ => (Severity::Info, 0),
        },
        Level::DEBUG => (Severity::Info, 4),
        _ => (Severity::Info, 6),
    }
}

impl<'a> Record<'a> {
    /// Returns a record of severity error that is not made from an event of `tracing`.
    pub(super) fn error(time: Timestamp, place: Place<'a>, message: &str) -> Self {
        let message = message.to_owned();
        Self { severity: Severity::Error, verbosity: 0, time, place, message, fields: Vec::new() }
    }

    /// Does the same as [`Self::error`] with severity warning.
    pub(super) fn warning(time: Timestamp, place: Place<'a>, message: &str) -> Self {
        Self { severity: Severity::Warning, ..Self::error(time, place, message) }
    }

    /// Adds a field, without the secrets that its texts may have: libraries log what they are given, and errors quote it. Cuts text that is
    /// longer than [`LONGEST`], and leaves out members of a list that are too many for it.
    pub(super) fn add(&mut self, name: &'static str, value: impl Into<Value>) {
        let value = match without_secrets(value.into()) {
            Value::String(text) => excerpt(&text, LONGEST).into(),
            Value::Array(members) => shortened(members),
            other => other,
        };
        self.fields.push((name, value));
    }

    pub(super) fn of(event: &Event<'_>, time: Timestamp) -> Record<'static> {
        let metadata = event.metadata();
        let (severity, verbosity) = rank(metadata);
        // Use `???` and line 1 for an unknown place, as klog does.
        let place = Place { file: metadata.file().unwrap_or("???"), line: metadata.line().unwrap_or(1) };
        let mut record = Record { severity, verbosity, time, place, message: String::new(), fields: Vec::new() };
        event.record(&mut Fields(&mut record));
        record
    }
}

fn without_secrets(value: Value) -> Value {
    match value {
        Value::String(text) => redact(&text).into(),
        Value::Array(members) => members.into_iter().map(without_secrets).collect(),
        other => other,
    }
}

/// Returns a list of at most [`LONGEST`] characters. If it is shorter than `members`, its last member says how many are left out.
fn shortened(members: Vec<Value>) -> Value {
    let cut = |member: Value| member.as_str().map_or(member.clone(), |text| excerpt(text, MESSAGE).into());
    let mut members: Vec<Value> = members.into_iter().map(cut).collect();
    let ends = members.iter().scan(0, |end, member| {
        *end += member.as_str().map_or(0, |text| text.chars().count());
        Some(*end)
    });
    let fitting = ends.take_while(|end| *end <= LONGEST).count();
    let more = members.len() - fitting;
    if more > 0 {
        members.truncate(fitting);
        members.push(format!("and {more} more").into());
    }
    members.into()
}

/// Copies the fields of an event into a record.
struct Fields<'a>(&'a mut Record<'static>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        match (field.name(), value.into()) {
            ("message", Value::String(text)) => self.0.message = excerpt(&redact(&text), LONGEST).into_owned(),
            (name, value) => self.0.add(name, value),
        }
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        match value.downcast_ref::<List>() {
            Some(List(texts)) => self.put(field, texts.clone()),
            None => self.put(field, value.to_string()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

/// A list as the value of a field. It implements `Error`, because `tracing` passes only errors in a type that can be downcast.
#[derive(Debug)]
struct List(Vec<String>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Error for List {}

/// Returns a duration as the value of a field, as Go writes it: `1.5ms`, `1m0s`.
#[must_use]
pub fn duration(duration: Duration) -> GoDuration {
    GoDuration::from_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Returns a list of texts as the value of a field: `["a","b"]` in both formats.
#[must_use]
pub fn list<T: fmt::Display>(members: impl IntoIterator<Item = T>) -> Box<dyn Error> {
    Box::new(List(members.into_iter().map(|member| member.to_string()).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::logging::testing;

    /// Text from outside that is as long as an annotation may be.
    fn long() -> String {
        "\u{1}\n\u{202e}".repeat(60_000)
    }

    #[test]
    fn a_record_has_a_bounded_length_whatever_the_type_of_a_field() {
        let mut record = testing::record(Severity::Warning, 0, "Object is invalid", &[]);
        record.add("err", long());
        record.add("members", vec![long(), "b".to_owned()]);
        record.add("names", (0..100_000).map(|n| n.to_string()).collect::<Vec<_>>());
        record.add("number", 7);
        let [(_, Value::String(text)), (_, members), (_, Value::Array(names)), (_, number)] = &record.fields[..] else {
            panic!("{:?}", record.fields)
        };
        assert!(text.starts_with("\u{1}\n\u{202e}\u{1}") && text.ends_with("... (300000 bytes)"), "{text:?}");
        assert_eq!(text.chars().count(), LONGEST + "... (300000 bytes)".len());
        assert_eq!((members, number), (&json!([excerpt(&long(), MESSAGE), "b"]), &json!(7)));
        assert_eq!((names.len(), names.last().unwrap()), (704, &json!("and 99297 more")));
    }
}

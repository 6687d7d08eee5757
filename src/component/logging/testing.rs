//! Records for the tests of the formats.

use serde_json::Value;

use super::record::{Place, Record, Severity};

/// Returns a record with time 2025-11-22 11:42:34.588089 UTC.
pub(super) fn record(
    severity: Severity,
    verbosity: u32,
    message: &str,
    fields: &[(&'static str, Value)],
) -> Record<'static> {
    Record {
        severity,
        verbosity,
        time: "2025-11-22T11:42:34.588089Z".parse().unwrap(),
        place: Place { file: "src/sync/mod.rs", line: 228 },
        message: message.to_owned(),
        fields: fields.to_vec(),
    }
}

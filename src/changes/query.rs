//! What a reader of the ring asks for, and the answer: the parameters and the body of `/debug/changes`.
//!
//! Takes the query of a URL, gives [`Query`]; takes that and a [`Snapshot`], gives [`Page`]. Invariant: the body of a page has at most
//! [`PAGE`] bytes and one entry; the reader goes on behind its last entry.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::ring::Snapshot;

/// Bytes of entries on a page, after which no further entry is added.
const PAGE: usize = 128 << 10;

/// What a reader wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// No entry that is older.
    pub since: Option<Duration>,
    /// Entries about this Service only: see [`Entry::is_about`].
    pub service: Option<String>,
    /// Entries with greater numbers only.
    pub after: u64,
}

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// When the process began. Another value than before: the numbers of entries begin with 1 again.
    pub started: String,
    /// The number of the oldest entry that is kept.
    pub first: u64,
    /// The number of the last entry that was looked at: the next `after`.
    pub last: u64,
    /// Whether there are entries behind it.
    pub more: bool,
    /// The entries, the oldest first.
    pub changes: Vec<Entry>,
}

impl Query {
    /// The parameters `since` (seconds), `service` (`namespace/name`, or the name alone) and `after` (the number of an entry).
    ///
    /// # Errors
    /// Which parameter is wrong.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = |wanted: &str| format!("parameter {name}: {value:?} is not {wanted}\n");
            match name {
                "since" => {
                    let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                    parsed.since = Some(seconds.ok_or_else(|| wrong("a number of seconds"))?);
                }
                "after" => parsed.after = value.parse().map_err(|_| wrong("the number of an entry"))?,
                "service" if !value.is_empty() => {
                    // The one character of such a name that a program may write as its code.
                    parsed.service = Some(value.replace("%2F", "/").replace("%2f", "/"));
                }
                "service" => return Err(wrong("namespace/name")),
                _ => return Err(format!("parameter {name:?} is not known; there are since, service and after\n")),
            }
        }
        Ok(parsed)
    }

    /// The query of a URL.
    #[must_use]
    pub fn to_text(&self) -> String {
        let since = self.since.map(|since| format!("&since={}", since.as_secs_f64()));
        let service = self.service.as_ref().map(|service| format!("&service={service}"));
        format!("after={}{}{}", self.after, since.unwrap_or_default(), service.unwrap_or_default())
    }

    /// The page of what the ring holds behind the entry `after`, as JSON.
    #[must_use]
    pub fn answer(&self, snapshot: &Snapshot, now: SystemTime) -> String {
        let oldest = self.since.and_then(|since| now.checked_sub(since));
        let oldest = oldest.and_then(|oldest| Timestamp::try_from(oldest).ok());
        let (mut changes, mut last, mut more) = (String::new(), snapshot.last, false);
        for entry in &snapshot.entries {
            if changes.len() >= PAGE {
                more = true;
                last = entry.number - 1;
                break;
            }
            let is_wanted = oldest.is_none_or(|oldest| entry.time >= oldest)
                && self.service.as_ref().is_none_or(|service| entry.is_about(service));
            if is_wanted && let Ok(json) = serde_json::to_string(&**entry) {
                changes += if changes.is_empty() { "" } else { "," };
                changes += &json;
            }
        }
        let Snapshot { started, first, .. } = snapshot;
        format!(r#"{{"started":"{started}","first":{first},"last":{last},"more":{more},"changes":[{changes}]}}"#)
    }
}

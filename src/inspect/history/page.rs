//! The query parameters and the response body of `/debug/changes`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entry::Entry;

/// The query parameters: which entries to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only entries that are not older than this.
    pub since: Option<Duration>,
    /// Only entries about this Service: see [`Entry::is_about`].
    pub service: Option<String>,
    /// Only entries with a greater number than this.
    pub after: u64,
}

/// The response body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// When the process started. Another value than in an earlier response means that the numbers of entries begin with 1 again.
    pub started: String,
    /// The number of the oldest entry that is kept; when none is, the number that the next entry gets.
    pub first: u64,
    /// The number of the last entry that was examined, which is the `after` of the next query.
    pub last: u64,
    /// Whether there are entries after `last`.
    pub more: bool,
    /// The entries, the oldest first.
    pub changes: Vec<Entry>,
}

impl Query {
    /// Parses the parameters `since` (seconds), `service` (`namespace/name`, or the name alone) and `after` (the number of an entry).
    ///
    /// # Errors
    /// A message that names the wrong parameter.
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
                    // The slash is the only character of a `namespace/name` that clients usually percent-encode.
                    parsed.service = Some(value.replace("%2F", "/").replace("%2f", "/"));
                }
                "service" => return Err(wrong("namespace/name")),
                _ => return Err(format!("parameter {name:?} is not known; there are since, service and after\n")),
            }
        }
        Ok(parsed)
    }

    /// The query string for the URL.
    #[must_use]
    pub fn to_text(&self) -> String {
        let since = self.since.map(|since| format!("&since={}", since.as_secs_f64()));
        let service = self.service.as_ref().map(|service| format!("&service={service}"));
        format!("after={}{}{}", self.after, since.unwrap_or_default(), service.unwrap_or_default())
    }
}

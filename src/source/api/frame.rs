//! What an API server sends: events of a watch, pages of a list, words about a failure.
//!
//! Takes bytes, gives their parts, with objects still as JSON. Pure. Objects are decoded one by one elsewhere, so that one
//! that is broken loses only itself.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Annotation of the bookmark that ends the initial objects of a streaming list.
const INITIAL_END: &str = "k8s.io/initial-events-end";
/// What is kept of a text that is no Status, in characters.
const MAX_TEXT: usize = 200;

/// One event of a watch.
#[derive(Debug)]
pub(super) enum Frame<'a> {
    /// An object exists.
    Applied(&'a RawValue),
    /// An object is gone, or does not match the selectors any more.
    Deleted(&'a RawValue),
    /// Everything up to this version was sent.
    Bookmark {
        /// Where to resume.
        version: String,
        /// All objects that existed at the start of a streaming list were sent.
        initial_end: bool,
    },
    /// The watch failed.
    Error(Status),
}

/// A Kubernetes Status.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Status {
    /// HTTP status; 0 if it is not said.
    pub(super) code: u16,
    /// A word such as `Expired`.
    pub(super) reason: Option<String>,
    /// A sentence.
    pub(super) message: Option<String>,
}

impl Status {
    /// Whether the version to resume from is too old.
    pub(super) fn is_gone(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_deref(), Some("Expired" | "Gone"))
    }
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page<'a> {
    /// Its objects.
    pub(super) items: Vec<&'a RawValue>,
    /// The version of the whole list.
    pub(super) version: String,
    /// Asks for the next page; `None` on the last.
    pub(super) next: Option<String>,
}

/// Reads a line of a watch.
///
/// # Errors
/// What is wrong with the line.
pub(super) fn watch_line(line: &[u8]) -> Result<Frame<'_>, String> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let text = std::str::from_utf8(line).map_err(|error| error.to_string())?;
    let line: Line<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match &*line.kind {
        "ADDED" | "MODIFIED" => Ok(Frame::Applied(line.object)),
        "DELETED" => Ok(Frame::Deleted(line.object)),
        "BOOKMARK" => bookmark(line.object).map_err(|error| format!("bookmark: {error}")),
        "ERROR" => Ok(Frame::Error(status(line.object.get().as_bytes()))),
        other => Err(format!("unknown event type {other:?}")),
    }
}

fn bookmark(object: &RawValue) -> serde_json::Result<Frame<'_>> {
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: BookmarkMetadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct BookmarkMetadata {
        resource_version: String,
        #[serde(default)]
        annotations: Option<HashMap<String, String>>,
    }
    let metadata = serde_json::from_str::<Bookmark>(object.get())?.metadata;
    let end = metadata.annotations.is_some_and(|all| all.get(INITIAL_END).is_some_and(|value| value == "true"));
    Ok(Frame::Bookmark { version: metadata.resource_version, initial_end: end })
}

/// Reads the body of a failure, which may be anything.
pub(super) fn status(body: &[u8]) -> Status {
    serde_json::from_slice(body).unwrap_or_default()
}

/// Reads the body of a failure like [`status`]; of a text, such as that of a load balancer, its first line is the message.
pub(super) fn status_or_text(body: &[u8]) -> Status {
    serde_json::from_slice(body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(body);
        let line: String = text.lines().next().unwrap_or_default().trim().chars().take(MAX_TEXT).collect();
        Status { message: Some(line).filter(|line| !line.starts_with('<')), ..Status::default() }
    })
}

/// Reads a page of a list of objects of a kind.
///
/// # Errors
/// What is wrong with it. An answer that is no such list is an error, not a list of nothing.
pub(super) fn page<'a>(body: &'a [u8], kind: &str) -> Result<Page<'a>, String> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
        metadata: ListMetadata,
        #[serde(borrow)]
        items: Option<Vec<&'a RawValue>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ListMetadata {
        resource_version: String,
        #[serde(default, rename = "continue")]
        next: Option<String>,
    }
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let list: List<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if list.kind.strip_suffix("List") != Some(kind) || list.metadata.resource_version.is_empty() {
        return Err(format!("a {:?} of version {:?} is no list of {kind}s", list.kind, list.metadata.resource_version));
    }
    Ok(Page {
        items: list.items.unwrap_or_default(),
        version: list.metadata.resource_version,
        next: list.metadata.next.filter(|token| !token.is_empty()),
    })
}

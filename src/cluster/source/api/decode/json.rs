//! Decodes JSON of the API server: lines of a watch, and pages of a list.
//!
//! The module takes text and returns watch events and pages. If an object does not decode, the module reads its text again, to find the
//! name of the object and the wrong field.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{
    Decoder, Identity, ObjectKind, Page, ReadObject, Status, UNUSABLE_DELETION, Undecodable, WatchEvent, bookmark,
};
use crate::source::objects::{self, Metadata};
use component::excerpt::quoted;

impl Decoder {
    /// Reads a line of a watch.
    pub(super) fn json_event<T: ObjectKind>(&mut self, line: &str) -> Result<WatchEvent, String> {
        // Decoding as the wrong type of event fails early, because the server writes the type first.
        if let Ok(line) = serde_json::from_str::<Line<Applied, T::Object<'_>>>(line) {
            return Ok(WatchEvent::Applied(self.read_json::<T>(&line.object)));
        }
        if let Ok(line) = serde_json::from_str::<Line<Deleted, Identified<'_>>>(line) {
            let Identified { kind, metadata } = line.object;
            let deleted = self.deleted(kind.as_deref().unwrap_or_default(), &metadata);
            return deleted.ok_or_else(|| UNUSABLE_DELETION.to_owned());
        }
        let line: Line<Cow<'_, str>, &RawValue> = serde_json::from_str(line).map_err(|error| error.to_string())?;
        match &*line.kind {
            "ADDED" | "MODIFIED" => Ok(WatchEvent::Applied(self.read_raw::<T>(line.object))),
            "DELETED" => Err(UNUSABLE_DELETION.to_owned()),
            "BOOKMARK" => {
                let object: Bookmark<'_> =
                    serde_json::from_str(line.object.get()).map_err(|error| format!("bookmark: {error}"))?;
                bookmark(&object.metadata)
            }
            "ERROR" => Ok(WatchEvent::Error(Status::of_body(line.object.get().as_bytes()))),
            other => Err(format!("unknown event type {}", quoted(other))),
        }
    }

    /// Reads a page of a list. Returns the kind of the list and the page.
    pub(super) fn json_page<T: ObjectKind>(&mut self, body: &str) -> Result<(String, Page), String> {
        let (kind, metadata, objects) = if let Ok(list) = serde_json::from_str::<List<T::Object<'_>>>(body) {
            let objects = list.items.unwrap_or_default();
            (list.kind, list.metadata, objects.into_iter().map(|object| self.read_json::<T>(&object)).collect())
        } else {
            let list: List<&RawValue> = serde_json::from_str(body).map_err(|error| error.to_string())?;
            let objects = list.items.unwrap_or_default();
            (list.kind, list.metadata, objects.into_iter().map(|object| self.read_raw::<T>(object)).collect())
        };
        let ListMetadata { resource_version: version, next } = metadata;
        Ok((kind, Page { objects, version, next: next.filter(|token| !token.is_empty()) }))
    }

    fn read_json<T: ObjectKind>(&mut self, object: &T::Object<'_>) -> ReadObject {
        self.read::<T>(T::head(object).0, object)
    }

    fn read_raw<T: ObjectKind>(&mut self, object: &RawValue) -> ReadObject {
        match serde_json::from_str::<T::Object<'_>>(object.get()) {
            Ok(object) => self.read_json::<T>(&object),
            Err(_) => Err(Box::new(self.broken_json::<T>(object))),
        }
    }

    /// Finds the name of an object that does not decode, and the reason.
    fn broken_json<T: ObjectKind>(&self, object: &RawValue) -> Undecodable {
        let identified = serde_json::from_str::<Identified<'_>>(object.get()).ok();
        let identity = identified.map(|identified| identified.metadata).unwrap_or_default();
        let wrong = |value: Value| objects::decode::<T::Object<'_>>(&value).err();
        let (field, reason) = match serde_json::from_str(object.get()).map(wrong) {
            Ok(Some(error)) => (error.field, error.reason),
            // The object decodes from a `Value` but not from its text, so the text has a field twice: a `Value` keeps only one of the two.
            Ok(None) => (".".into(), "a field is there twice".into()),
            Err(error) => (".".into(), error.to_string()),
        };
        self.undecodable(&identity, &field, &reason)
    }
}

/// A line of a watch: `K` is its type, `O` its object.
#[derive(Deserialize)]
struct Line<K, O> {
    #[serde(rename = "type")]
    kind: K,
    object: O,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Applied {
    Added,
    Modified,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Deleted {
    Deleted,
}

/// A page of a list: `O` is an item.
#[derive(Deserialize)]
struct List<O> {
    kind: String,
    metadata: ListMetadata,
    items: Option<Vec<O>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// The kind and the identity of an object.
#[derive(Deserialize)]
struct Identified<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    metadata: Identity<'a>,
}

#[derive(Deserialize)]
struct Bookmark<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

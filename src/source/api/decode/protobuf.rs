//! The protobuf of the API server: messages of a watch, pages of a list, and the Status of a failure.
//!
//! Takes bytes, gives what `decode` gives. An object or a list comes in an envelope: four bytes, and a message with its kind and its
//! bytes (`runtime.Unknown` of k8s.io/apimachinery). A message of a watch has no envelope, but the object in it has one. Each object is
//! decoded by itself, so that one that is broken loses only itself; no field that is not used is copied.

use bytes::Bytes;
use prost::Message as _;

use super::{Decoder, Identity, Kind, Page, ReadObject, Status, UNUSABLE_DELETION, WatchEvent, bookmark};
use crate::source::objects::Metadata;

/// What an envelope begins with.
const MAGIC: &[u8] = b"k8s\0";

impl Decoder {
    /// Reads a message of a watch.
    pub(super) fn protobuf_event<T: Kind>(&mut self, message: Bytes) -> Result<WatchEvent, String> {
        let message = Event::decode(message).map_err(|error| error.to_string())?;
        let object = open(message.object.raw)?;
        match &*message.kind {
            "ADDED" | "MODIFIED" => Ok(WatchEvent::Applied(self.read_message::<T>(&object.type_meta.kind, object.raw))),
            "DELETED" => {
                let identity = identity(object.raw);
                self.deleted(&object.type_meta.kind, &identity).ok_or_else(|| UNUSABLE_DELETION.to_owned())
            }
            "BOOKMARK" => bookmark(Object::decode(object.raw).map_err(|error| format!("bookmark: {error}"))?.metadata),
            "ERROR" => Ok(WatchEvent::Error(StatusMessage::decode(object.raw).map(Into::into).unwrap_or_default())),
            other => Err(format!("unknown event type {other:?}")),
        }
    }

    /// Reads a page, and gives the kind of the list with it.
    pub(super) fn protobuf_page<T: Kind>(&mut self, body: Bytes) -> Result<(String, Page), String> {
        let Envelope { type_meta, raw, .. } = open(body)?;
        let List { metadata, items } = List::decode(raw).map_err(|error| error.to_string())?;
        let objects = items.into_iter().map(|object| self.read_message::<T>("", object)).collect();
        let next = Some(metadata.next).filter(|token| !token.is_empty());
        Ok((type_meta.kind, Page { objects, version: metadata.resource_version, next }))
    }

    fn read_message<T: Kind>(&mut self, kind: &str, object: Bytes) -> ReadObject {
        match T::decode(object.clone()) {
            Ok(object) => self.read(kind, &object),
            Err(error) => Err(Box::new(self.undecodable(&identity(object), ".".into(), &error.to_string()))),
        }
    }
}

/// Opens an envelope.
fn open(bytes: Bytes) -> Result<Envelope, String> {
    let Some(message) = bytes.strip_prefix(MAGIC).map(|message| bytes.slice_ref(message)) else {
        return Err("no envelope of Kubernetes' protobuf".into());
    };
    let envelope = Envelope::decode(message).map_err(|error| error.to_string())?;
    match (&*envelope.content_encoding, &*envelope.content_type) {
        ("", "" | super::PROTOBUF) => Ok(envelope),
        (encoding, content) => {
            Err(format!("an object in protobuf with content type {content:?} and encoding {encoding:?}"))
        }
    }
}

/// The Status in an envelope.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    let message = Envelope::decode(body.strip_prefix(MAGIC)?).ok()?;
    StatusMessage::decode(message.raw).ok().map(Into::into)
}

/// The identity of an object, as far as it can be read.
fn identity(object: Bytes) -> Identity {
    let mut found = IdentifiedObject::default();
    // What was read before an error stays.
    let _ = found.merge(object);
    found.metadata
}

/// `runtime.Unknown`.
#[derive(Clone, prost::Message)]
struct Envelope {
    #[prost(message, required, tag = "1")]
    type_meta: TypeMeta,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
    #[prost(string, tag = "3")]
    content_encoding: String,
    #[prost(string, tag = "4")]
    content_type: String,
}

/// `runtime.TypeMeta`.
#[derive(Clone, prost::Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

/// `meta.v1.WatchEvent`.
#[derive(Clone, prost::Message)]
struct Event {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, required, tag = "2")]
    object: RawExtension,
}

/// `runtime.RawExtension`.
#[derive(Clone, prost::Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// A list of any kind, with its objects not decoded yet.
#[derive(Clone, prost::Message)]
struct List {
    #[prost(message, required, tag = "1")]
    metadata: ListMetadata,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

/// `meta.v1.ListMeta`.
#[derive(Clone, prost::Message)]
struct ListMetadata {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    next: String,
}

/// An object of any kind, of which only the metadata are read.
#[derive(Clone, prost::Message)]
struct Object {
    #[prost(message, required, tag = "1")]
    metadata: Metadata,
}

/// An object of any kind, of which only the identity is read.
#[derive(Clone, prost::Message)]
struct IdentifiedObject {
    #[prost(message, required, tag = "1")]
    metadata: Identity,
}

/// `meta.v1.Status`.
#[derive(Clone, prost::Message)]
struct StatusMessage {
    #[prost(string, optional, tag = "3")]
    message: Option<String>,
    #[prost(string, optional, tag = "4")]
    reason: Option<String>,
    #[prost(int32, tag = "6")]
    code: i32,
}

impl From<StatusMessage> for Status {
    fn from(status: StatusMessage) -> Self {
        Self { code: u16::try_from(status.code).unwrap_or_default(), reason: status.reason, message: status.message }
    }
}

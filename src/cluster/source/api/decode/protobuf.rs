//! Decodes protobuf of the API server: messages of a watch, pages of a list, and the Status in an error response.
//!
//! The module takes bytes and returns watch events, pages and Statuses. An object or a list comes in an envelope: four bytes, and a message
//! with the kind and the bytes of the object (`runtime.Unknown` of k8s.io/apimachinery). A message of a watch has no envelope, but the
//! object in the message has one. Each object is decoded separately and in place, so that a broken object does not affect other objects.

use super::{Decoder, Identity, ObjectKind, Page, ReadObject, Status, UNUSABLE_DELETION, WatchEvent, bookmark};
use crate::source::objects::{Malformed, Message, Metadata, Text, Value, message};
use component::excerpt::quoted;

/// The first bytes of an envelope.
const MAGIC: &[u8] = b"k8s\0";

impl Decoder {
    /// Reads a message of a watch.
    pub(super) fn protobuf_event<T: ObjectKind>(&mut self, message: &[u8]) -> Result<WatchEvent, String> {
        let message: Event<'_> = read(message)?;
        let object = open(message.object.raw.0)?;
        let (kind, raw) = (&*object.type_meta.kind, object.raw.0);
        match &*message.kind {
            "ADDED" | "MODIFIED" => Ok(WatchEvent::Applied(self.read_message::<T>(kind, raw))),
            "DELETED" => self.deleted(kind, &identity(raw)).ok_or_else(|| UNUSABLE_DELETION.to_owned()),
            "BOOKMARK" => {
                let object: AnyObject<'_> = read(raw).map_err(|error| format!("bookmark: {error}"))?;
                bookmark(&object.metadata)
            }
            "ERROR" => Ok(WatchEvent::Error(StatusMessage::read(raw).map(Into::into).unwrap_or_default())),
            other => Err(format!("unknown event type {}", quoted(other))),
        }
    }

    /// Reads a page of a list. Returns the kind of the list and the page.
    pub(super) fn protobuf_page<T: ObjectKind>(&mut self, body: &[u8]) -> Result<(String, Page), String> {
        let Envelope { type_meta, raw, .. } = open(body)?;
        let List { metadata, items } = read(raw.0)?;
        let objects = items.into_iter().map(|object| self.read_message::<T>("", object.0)).collect();
        let next = Some(metadata.next.to_string()).filter(|token| !token.is_empty());
        Ok((type_meta.kind.to_string(), Page { objects, version: metadata.resource_version.to_string(), next }))
    }

    fn read_message<T: ObjectKind>(&mut self, kind: &str, object: &[u8]) -> ReadObject {
        match T::Object::read(object) {
            Ok(object) => self.read::<T>(kind, &object),
            Err(error) => {
                let Malformed { field, reason } = *error;
                let field = if field.is_empty() { "." } else { &field };
                Err(Box::new(self.undecodable(&identity(object), field, &reason)))
            }
        }
    }
}

/// Reads a message. The error is a text with the wrong field and the reason.
fn read<'a, T: Message<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    T::read(bytes).map_err(|error| format!("{}: {}", error.field, error.reason))
}

/// Reads an envelope, and checks that its content is protobuf without a further encoding.
fn open(bytes: &[u8]) -> Result<Envelope<'_>, String> {
    let Some(message) = bytes.strip_prefix(MAGIC) else { return Err("no envelope of Kubernetes' protobuf".into()) };
    let envelope: Envelope<'_> = read(message)?;
    match (&*envelope.content_encoding, &*envelope.content_type) {
        ("", "" | super::super::format::PROTOBUF) => Ok(envelope),
        (encoding, content) => {
            let (content, encoding) = (quoted(content), quoted(encoding));
            Err(format!("an object in protobuf with content type {content} and encoding {encoding}"))
        }
    }
}

/// Returns the Status in an envelope; `None` if the body is no envelope, or the message in it cannot be read as a Status.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    let envelope = Envelope::read(body.strip_prefix(MAGIC)?).ok()?;
    StatusMessage::read(envelope.raw.0).ok().map(Into::into)
}

/// Returns the identity of an object, as far as it can be read.
fn identity(object: &[u8]) -> Identity<'_> {
    let mut found = IdentifiedObject::default();
    // Ignore the error: the fields that were read before it are in `found`.
    let _ = found.merge(Value::Bytes(object));
    found.metadata
}

/// The bytes of a nested message, which are decoded later.
#[derive(Default)]
struct Raw<'a>(&'a [u8]);

impl<'a> Message<'a> for Raw<'a> {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        self.0 = value.bytes()?;
        Ok(())
    }
}

/// The message `runtime.Unknown`.
#[derive(Default)]
struct Envelope<'a> {
    type_meta: TypeMeta<'a>,
    raw: Raw<'a>,
    content_encoding: Text<'a>,
    content_type: Text<'a>,
}

message!(Envelope<'a> { 1 => type_meta, 2 => raw, 3 => content_encoding, 4 => content_type });

/// The message `runtime.TypeMeta`, of which only the kind is read.
#[derive(Default)]
struct TypeMeta<'a> {
    kind: Text<'a>,
}

message!(TypeMeta<'a> { 2 => kind });

/// The message `meta.v1.WatchEvent`.
#[derive(Default)]
struct Event<'a> {
    kind: Text<'a>,
    object: RawExtension<'a>,
}

message!(Event<'a> { 1 => kind, 2 => object });

/// The message `runtime.RawExtension`.
#[derive(Default)]
struct RawExtension<'a> {
    raw: Raw<'a>,
}

message!(RawExtension<'a> { 1 => raw });

/// A list of any kind, with its objects not decoded yet.
#[derive(Default)]
struct List<'a> {
    metadata: ListMetadata<'a>,
    items: Vec<Raw<'a>>,
}

message!(List<'a> { 1 => metadata, 2 => items });

/// The fields of the message `meta.v1.ListMeta` that are read.
#[derive(Default)]
struct ListMetadata<'a> {
    resource_version: Text<'a>,
    next: Text<'a>,
}

message!(ListMetadata<'a> { 2 => resource_version, 3 => next });

/// An object of any kind, of which only the metadata are read.
#[derive(Default)]
struct AnyObject<'a> {
    metadata: Metadata<'a>,
}

message!(AnyObject<'a> { 1 => metadata });

/// An object of any kind, of which only the identity is read.
#[derive(Default)]
struct IdentifiedObject<'a> {
    metadata: Identity<'a>,
}

message!(IdentifiedObject<'a> { 1 => metadata });

/// The fields of the message `meta.v1.Status` that are read.
#[derive(Default)]
struct StatusMessage<'a> {
    message: Option<Text<'a>>,
    reason: Option<Text<'a>>,
    code: i32,
}

message!(StatusMessage<'a> { 3 => message, 4 => reason, 6 => code });

impl From<StatusMessage<'_>> for Status {
    fn from(status: StatusMessage<'_>) -> Self {
        let text = |text: Option<Text<'_>>| text.map(|text| text.to_string());
        Self {
            code: u16::try_from(status.code).unwrap_or_default(),
            reason: text(status.reason),
            message: text(status.message),
        }
    }
}

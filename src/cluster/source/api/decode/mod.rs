//! Decodes answers of the API server: events of a watch, pages of a list, and the bodies of error responses.
//!
//! The module takes JSON (`json.rs`) or protobuf (`protobuf.rs`), and returns events with converted objects. It does no I/O. If an object
//! does not decode, its name is read separately, so that a broken object does not affect other objects.
//!
//! Invariants: an answer that is not a list is an error, not an empty list; an object decodes to the same event from JSON and from
//! protobuf.

mod json;
mod protobuf;

use serde::Deserialize;

use super::format::Format;
use super::frames::FrameBuffer;
use super::resource::Resource;
use crate::source::convert::{ConvertOptions, Converted, Converter, ObjectKind};
use crate::source::objects::{self, EndpointSlice, Metadata, Node, Service, ServiceCidr, Text, message};
use crate::source::{Key, Problem};
use component::excerpt::{MESSAGE, excerpt, quoted};
use rules::model::Event;

/// How many characters are kept of the body of an error response that is not a Status.
const MAX_TEXT: usize = 200;
const UNUSABLE_DELETION: &str = "a deletion of an object without a name, or of another kind";

#[derive(Debug)]
pub(super) struct Object {
    pub(super) converted: Converted,
    /// The object's resource version; empty if the object has none.
    pub(super) version: Box<str>,
}

/// An object that did not decode.
#[derive(Debug)]
pub(super) struct Undecodable {
    /// The identity of the object; `None` if its name cannot be read either, or if the object is of another kind.
    pub(super) key: Option<Key>,
    /// The object's resource version, if it can be read.
    pub(super) version: Option<Box<str>>,
    pub(super) problem: Problem,
}

pub(super) type ReadObject = Result<Object, Box<Undecodable>>;

#[derive(Debug)]
pub(super) enum WatchEvent {
    /// An object was added or modified.
    Applied(ReadObject),
    /// An object was deleted or no longer matches the selectors. Contains the object's identity and the resource version of the change.
    Deleted(Key, Option<Box<str>>),
    /// The server has sent all changes up to a version.
    Bookmark {
        /// The version from which a watch can be resumed.
        version: String,
        /// Whether the server has now sent all objects that existed at the start of a streaming list.
        ends_list: bool,
    },
    /// The server ends the watch with an error.
    Error(Status),
}

#[derive(Debug)]
pub(super) struct Page {
    pub(super) objects: Vec<ReadObject>,
    /// The resource version of the whole list.
    pub(super) version: String,
    /// The continue token of the next page; `None` on the last page.
    pub(super) next: Option<String>,
}

/// The object `Status`, with which the API server answers when it refuses a request or ends a watch.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Status {
    /// HTTP status; 0 if it is absent.
    pub(super) code: u16,
    /// The reason, a word such as `Expired`.
    pub(super) reason: Option<String>,
    /// The explanation, a sentence.
    pub(super) message: Option<String>,
}

impl Status {
    /// Returns whether the status means that the version from which the watch should resume is too old.
    pub(super) fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_deref(), Some("Expired" | "Gone"))
    }

    /// Reads the body of an error response in any format. If it cannot be read as a Status, such as in an answer of a load balancer, the
    /// start of its first line becomes the message, unless it begins with `<`, as HTML does.
    pub(super) fn of_body(body: &[u8]) -> Self {
        if let Some(status) = protobuf::status(body) {
            return status;
        }
        serde_json::from_slice(body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(body);
            let line: String = text.lines().next().unwrap_or_default().trim().chars().take(MAX_TEXT).collect();
            Self { message: Some(line).filter(|line| !line.starts_with('<')), ..Self::default() }
        })
    }
}

/// Reads the objects of one kind.
#[derive(Debug)]
pub(super) struct Decoder {
    resource: Resource,
    converter: Converter,
}

impl Decoder {
    pub(super) fn new(resource: Resource, options: ConvertOptions) -> Self {
        Self { resource, converter: Converter::new(options) }
    }

    /// Reads an event of a watch: a line of JSON, or a message of protobuf.
    ///
    /// # Errors
    /// Fails if the event cannot be read. If only the added or modified object in it does not decode, returns the event with an
    /// [`Undecodable`].
    pub(super) fn watch_event(&mut self, format: Format, event: &[u8]) -> Result<WatchEvent, String> {
        match self.resource {
            Resource::Node => self.watch_event_of::<Node>(format, event),
            Resource::Service => self.watch_event_of::<Service>(format, event),
            Resource::EndpointSlice => self.watch_event_of::<EndpointSlice>(format, event),
            Resource::ServiceCidr => self.watch_event_of::<ServiceCidr>(format, event),
        }
    }

    fn watch_event_of<T: ObjectKind>(&mut self, format: Format, event: &[u8]) -> Result<WatchEvent, String> {
        match format {
            Format::Json => self.json_event::<T>(text(event)?),
            Format::Protobuf => self.protobuf_event::<T>(event),
        }
    }

    /// Reads a page of a list.
    ///
    /// # Errors
    /// Fails if the page cannot be read. If only an object on the page does not decode, returns the page with an [`Undecodable`].
    pub(super) fn page(&mut self, format: Format, body: &[u8]) -> Result<Page, String> {
        match self.resource {
            Resource::Node => self.page_of::<Node>(format, body),
            Resource::Service => self.page_of::<Service>(format, body),
            Resource::EndpointSlice => self.page_of::<EndpointSlice>(format, body),
            Resource::ServiceCidr => self.page_of::<ServiceCidr>(format, body),
        }
    }

    fn page_of<T: ObjectKind>(&mut self, format: Format, body: &[u8]) -> Result<Page, String> {
        let (kind, page) = match format {
            Format::Json => self.json_page::<T>(text(body)?)?,
            Format::Protobuf => self.protobuf_page::<T>(body)?,
        };
        if kind.strip_suffix("List") != Some(self.resource.name()) || page.version.is_empty() {
            let (wanted, version) = (self.resource.name(), page.version);
            return Err(format!("a {} of version {} is no list of {wanted}s", quoted(&kind), quoted(&version)));
        }
        Ok(page)
    }

    /// Converts an object, unless it is of another kind; `kind` is empty for the items of a list.
    fn read<T: ObjectKind>(&mut self, kind: &str, object: &T::Object<'_>) -> ReadObject {
        let (_, metadata) = T::head(object);
        if !self.is_of_kind(kind) {
            return Err(Box::new(self.of_other_kind(kind, metadata)));
        }
        let version = (*metadata.resource_version).into();
        Ok(Object { version, converted: T::convert(object, &mut self.converter) })
    }

    /// Returns the event for a deleted object; `None` if the object has no name or is of another kind.
    fn deleted(&self, kind: &str, identity: &Identity<'_>) -> Option<WatchEvent> {
        let key = self.key(identity).filter(|_| self.is_of_kind(kind))?;
        Some(WatchEvent::Deleted(key, identity.version()))
    }

    fn key(&self, identity: &Identity<'_>) -> Option<Key> {
        Some(&identity.name).filter(|name| !name.is_empty()).map(|name| self.resource.key(&identity.namespace, name))
    }

    /// Returns whether an object with this `kind` is of this decoder's kind. The items of a list have an empty `kind`.
    fn is_of_kind(&self, kind: &str) -> bool {
        kind.is_empty() || kind == self.resource.name()
    }

    /// Returns the result for an object of another kind. The result has no key, so that it does not affect an object of the decoder's kind
    /// with the same name.
    fn of_other_kind(&self, kind: &str, metadata: &Metadata<'_>) -> Undecodable {
        let text = format!("the server sent a {}; it is not used", quoted(kind));
        Undecodable {
            key: None,
            version: version(&metadata.resource_version),
            problem: Problem::new(self.resource.name(), &metadata.full_name(), "kind", &text),
        }
    }

    /// Returns the result for an object that does not decode, with the field and the reason.
    fn undecodable(&self, identity: &Identity<'_>, field: &str, reason: &str) -> Undecodable {
        let object = match (&*identity.namespace, &*identity.name) {
            (_, "") => "without a name".into(),
            ("", name) => name.into(),
            (namespace, name) => format!("{namespace}/{name}"),
        };
        let text = format!("{}; the object stays as it was", excerpt(reason, MESSAGE));
        Undecodable {
            key: self.key(identity),
            version: identity.version(),
            problem: Problem::new(self.resource.name(), &object, field, &text),
        }
    }
}

/// The part of `metadata` that identifies an object. Only this part is read if the object was deleted or does not decode.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Identity<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    namespace: Text<'a>,
    resource_version: Text<'a>,
}

message!(Identity<'a> { 1 => name, 3 => namespace, 6 => resource_version });

impl Identity<'_> {
    fn version(&self) -> Option<Box<str>> {
        version(&self.resource_version)
    }
}

/// Returns the resource version, unless it is empty.
fn version(text: &str) -> Option<Box<str>> {
    Some(text).filter(|text| !text.is_empty()).map(Into::into)
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Returns the event for a bookmark with this metadata.
fn bookmark(metadata: &Metadata<'_>) -> Result<WatchEvent, String> {
    if metadata.resource_version.is_empty() {
        return Err("bookmark: no resourceVersion".into());
    }
    let ends_list = metadata.annotation(objects::INITIAL_END) == Some("true");
    Ok(WatchEvent::Bookmark { version: metadata.resource_version.to_string(), ends_list })
}

/// Reads the answer to a watch in chunks of `chunk` bytes, with events of at most `limit` bytes; for fuzzing. `kind` is an index: 0 to 3
/// are Node, Service, EndpointSlice and ServiceCIDR in JSON, 4 to 7 the same in protobuf. Returns the events, and as text the problems, the
/// versions and the error that ends the answer.
#[doc(hidden)]
#[must_use]
pub fn watch_bytes(kind: usize, bytes: &[u8], chunk: usize, limit: usize) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut words) = (Vec::new(), Vec::new());
    let (mut decoder, format) = of_index(kind);
    let mut frames = FrameBuffer::new(format, limit);
    for chunk in bytes.chunks(chunk.max(1)) {
        frames.push(chunk);
        loop {
            let event = match frames.next() {
                Ok(None) => break,
                Ok(Some(event)) => decoder.watch_event(format, event),
                Err(too_long) => Err(format!("{too_long:?}")),
            };
            match event {
                Ok(WatchEvent::Applied(object)) => collect(object, &mut events, &mut words),
                Ok(WatchEvent::Deleted(key, version)) => {
                    events.push(key.deletion());
                    words.push(format!("version {version:?}"));
                }
                Ok(other) => words.push(format!("{other:?}")),
                Err(problem) => {
                    words.push(problem);
                    return (events, words);
                }
            }
        }
    }
    words.push(format!("{} bytes of an event", frames.pending()));
    (events, words)
}

/// Reads a page of a list as [`watch_bytes`] reads a watch; for fuzzing.
#[doc(hidden)]
#[must_use]
pub fn list_bytes(kind: usize, bytes: &[u8]) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut words) = (Vec::new(), Vec::new());
    let (mut decoder, format) = of_index(kind);
    match decoder.page(format, bytes) {
        Ok(page) => {
            page.objects.into_iter().for_each(|object| collect(object, &mut events, &mut words));
            words.push(format!("page of version {:?}, next {:?}", page.version, page.next));
        }
        Err(problem) => words.push(format!("{problem}, {:?}", Status::of_body(bytes))),
    }
    (events, words)
}

/// Returns the decoder and the format for an index, as in [`watch_bytes`].
fn of_index(index: usize) -> (Decoder, Format) {
    let format = if (index / Resource::ALL.len()).is_multiple_of(2) { Format::Json } else { Format::Protobuf };
    (Decoder::new(Resource::ALL[index % Resource::ALL.len()], ConvertOptions::default()), format)
}

fn collect(object: ReadObject, events: &mut Vec<Event>, words: &mut Vec<String>) {
    match object {
        Ok(object) => {
            events.extend(object.converted.event);
            words.extend(object.converted.problems.iter().map(ToString::to_string));
            words.push(format!("version {:?}", object.version));
        }
        Err(broken) => words.push(format!("{:?} of version {:?}: {}", broken.key, broken.version, broken.problem)),
    }
}

#[cfg(test)]
mod tests;

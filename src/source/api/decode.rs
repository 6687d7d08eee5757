//! Reads what the API server sends: lines of a watch, pages of a list, and the body of a failure.
//!
//! Takes bytes as JSON, gives events with their objects converted. Pure. An object is decoded in one pass over its text; only when that
//! fails, a second pass finds out which object it is and which field is wrong, so that a broken object loses only itself.
//!
//! Invariant: an answer that is no list is an error and no empty list.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::connection::LineBuffer;
use super::resource::Resource;
use crate::model::Event;
use crate::source::convert::{ConvertOptions, Converted, Converter};
use crate::source::objects::{self, EndpointSlice, Metadata, Node, Service, ServiceCidr};
use crate::source::{Key, Problem};

/// Annotation of the bookmark that ends the initial objects of a streaming list.
const INITIAL_END: &str = "k8s.io/initial-events-end";
/// How much is kept of the body of a failure that is no Status, in characters.
const MAX_TEXT: usize = 200;
const UNUSABLE_DELETION: &str = "a deletion of an object without a name, or of another kind";

/// An object that decoded.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) converted: Converted,
    /// Its resource version; empty if it has none.
    pub(super) version: Box<str>,
}

/// An object that did not decode.
#[derive(Debug)]
pub(super) struct Undecodable {
    /// Which object; `None` if its name cannot be read either.
    pub(super) key: Option<Key>,
    /// Its resource version, if that can be read.
    pub(super) version: Option<Box<str>>,
    pub(super) problem: Problem,
}

pub(super) type ReadObject = Result<Object, Box<Undecodable>>;

/// One event of a watch.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// An object was added or modified.
    Applied(ReadObject),
    /// An object was deleted, or no longer matches the selectors; with the resource version of that.
    Deleted(Key, Option<Box<str>>),
    /// Everything up to this version was sent.
    Bookmark {
        /// The version from which a watch can be resumed.
        version: String,
        /// All objects that existed at the start of a streaming list were sent.
        ends_list: bool,
    },
    /// The watch failed.
    Error(Status),
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) objects: Vec<ReadObject>,
    /// The resource version of the whole list.
    pub(super) version: String,
    /// The token of the next page; `None` on the last.
    pub(super) next: Option<String>,
}

/// A Kubernetes Status.
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
    /// Whether the version to resume from is too old.
    pub(super) fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_deref(), Some("Expired" | "Gone"))
    }

    /// Reads the body of a failure. Of a text that is no Status, such as that of a load balancer, the first line is the message.
    pub(super) fn of_body(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(body);
            let line: String = text.lines().next().unwrap_or_default().trim().chars().take(MAX_TEXT).collect();
            Self { message: Some(line).filter(|line| !line.starts_with('<')), ..Self::default() }
        })
    }
}

/// What the decoder needs to know of the type of a kind.
trait Kind: DeserializeOwned {
    /// Its `kind`, which is empty in a list, and its `metadata`.
    fn head(&self) -> (&str, &Metadata);
    fn convert(&self, converter: &mut Converter) -> Converted;
}

macro_rules! kind {
    ($type:ty, $convert:ident) => {
        impl Kind for $type {
            fn head(&self) -> (&str, &Metadata) {
                (&self.kind, &self.metadata)
            }
            fn convert(&self, converter: &mut Converter) -> Converted {
                converter.$convert(self)
            }
        }
    };
}

kind!(Node, node);
kind!(Service, service);
kind!(EndpointSlice, endpoint_slice);
kind!(ServiceCidr, service_cidr);

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

    /// Reads a line of a watch.
    ///
    /// # Errors
    /// What is wrong with the line, other than with an object that was added or modified.
    pub(super) fn watch_event(&mut self, line: &[u8]) -> Result<WatchEvent, String> {
        let line = text(line)?;
        match self.resource {
            Resource::Node => self.watch_event_of::<Node>(line),
            Resource::Service => self.watch_event_of::<Service>(line),
            Resource::EndpointSlice => self.watch_event_of::<EndpointSlice>(line),
            Resource::ServiceCidr => self.watch_event_of::<ServiceCidr>(line),
        }
    }

    /// Reads a page of a list.
    ///
    /// # Errors
    /// What is wrong with it, other than with an object on it.
    pub(super) fn page(&mut self, body: &[u8]) -> Result<Page, String> {
        let body = text(body)?;
        match self.resource {
            Resource::Node => self.page_of::<Node>(body),
            Resource::Service => self.page_of::<Service>(body),
            Resource::EndpointSlice => self.page_of::<EndpointSlice>(body),
            Resource::ServiceCidr => self.page_of::<ServiceCidr>(body),
        }
    }

    fn watch_event_of<T: Kind>(&mut self, line: &str) -> Result<WatchEvent, String> {
        // An attempt for another type of event ends early: the server writes the type first.
        if let Ok(line) = serde_json::from_str::<Line<Applied, T>>(line) {
            return Ok(WatchEvent::Applied(self.read(&line.object)));
        }
        if let Ok(line) = serde_json::from_str::<Line<Deleted, Identity<'_>>>(line) {
            return self.deleted(line.object).ok_or_else(|| UNUSABLE_DELETION.to_owned());
        }
        let line: Line<Cow<'_, str>, &RawValue> = serde_json::from_str(line).map_err(|error| error.to_string())?;
        match &*line.kind {
            "ADDED" | "MODIFIED" => Ok(WatchEvent::Applied(self.read_raw::<T>(line.object))),
            "DELETED" => Err(UNUSABLE_DELETION.to_owned()),
            "BOOKMARK" => bookmark(line.object).map_err(|error| format!("bookmark: {error}")),
            "ERROR" => Ok(WatchEvent::Error(Status::of_body(line.object.get().as_bytes()))),
            other => Err(format!("unknown event type {other:?}")),
        }
    }

    fn page_of<T: Kind>(&mut self, body: &str) -> Result<Page, String> {
        let (head, objects) = if let Ok(list) = serde_json::from_str::<List<T>>(body) {
            let objects = list.items.unwrap_or_default();
            ((list.kind, list.metadata), objects.into_iter().map(|object| self.read(&object)).collect())
        } else {
            let list: List<&RawValue> = serde_json::from_str(body).map_err(|error| error.to_string())?;
            let objects = list.items.unwrap_or_default();
            ((list.kind, list.metadata), objects.into_iter().map(|object| self.read_raw::<T>(object)).collect())
        };
        let (kind, ListMetadata { resource_version: version, next }) = head;
        if kind.strip_suffix("List") != Some(self.resource.name()) || version.is_empty() {
            let wanted = self.resource.name();
            return Err(format!("a {kind:?} of version {version:?} is no list of {wanted}s"));
        }
        Ok(Page { objects, version, next: next.filter(|token| !token.is_empty()) })
    }

    fn read<T: Kind>(&mut self, object: &T) -> ReadObject {
        let (kind, metadata) = object.head();
        if !self.is_of_kind(kind) {
            return Err(Box::new(self.of_other_kind(kind, metadata)));
        }
        Ok(Object { version: metadata.resource_version.clone(), converted: object.convert(&mut self.converter) })
    }

    fn read_raw<T: Kind>(&mut self, object: &RawValue) -> ReadObject {
        match serde_json::from_str::<T>(object.get()) {
            Ok(object) => self.read(&object),
            Err(_) => Err(Box::new(self.undecodable::<T>(object))),
        }
    }

    fn deleted(&self, object: Identity<'_>) -> Option<WatchEvent> {
        let Identity { kind, metadata } = object;
        if !kind.is_none_or(|kind| self.is_of_kind(&kind)) {
            return None;
        }
        let key = self.resource.key(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref()?);
        Some(WatchEvent::Deleted(key, metadata.resource_version.map(Into::into)))
    }

    /// Whether an object with this `kind` is of our kind. The items of a list have none.
    fn is_of_kind(&self, kind: &str) -> bool {
        kind.is_empty() || kind == self.resource.name()
    }

    /// An object of another kind. It does not touch an object of our kind that has the same name.
    fn of_other_kind(&self, kind: &str, metadata: &Metadata) -> Undecodable {
        let text = format!("the server sent a {kind:?}; it is not used");
        Undecodable {
            key: None,
            version: Some(metadata.resource_version.clone()).filter(|version| !version.is_empty()),
            problem: Problem { kind: self.resource.name(), object: metadata.full_name(), field: "kind".into(), text },
        }
    }

    /// Finds out which object does not decode, and why.
    fn undecodable<T: Kind>(&self, object: &RawValue) -> Undecodable {
        let identity = serde_json::from_str::<Identity<'_>>(object.get()).ok();
        let metadata = identity.map(|identity| identity.metadata).unwrap_or_default();
        let name = metadata.name.filter(|name| !name.is_empty());
        let (field, reason) = match serde_json::from_str(object.get()).map(|value| objects::decode::<T>(&value)) {
            Ok(Err(error)) => (error.field, error.reason),
            // The text fails, but not its tree, which has each field once.
            Ok(Ok(_)) => (".".into(), "a field is there twice".into()),
            Err(error) => (".".into(), error.to_string()),
        };
        let object = match (&metadata.namespace, &name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            (None, Some(name)) => name.clone().into_owned(),
            (_, None) => "without a name".into(),
        };
        let text = format!("{reason}; the object stays as it was");
        Undecodable {
            key: name.map(|name| self.resource.key(metadata.namespace.as_deref().unwrap_or_default(), &name)),
            version: metadata.resource_version.map(Into::into),
            problem: Problem { kind: self.resource.name(), object, field, text },
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
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

/// The identity of an object, read by itself when the whole object does not decode.
#[derive(Deserialize)]
struct Identity<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: IdentityMetadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMetadata<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resource_version: Option<Cow<'a, str>>,
}

fn bookmark(object: &RawValue) -> serde_json::Result<WatchEvent> {
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
    let ends_list = metadata.annotations.is_some_and(|all| all.get(INITIAL_END).is_some_and(|value| value == "true"));
    Ok(WatchEvent::Bookmark { version: metadata.resource_version, ends_list })
}

/// Reads the answer to a watch that arrives in chunks of a size, with lines of at most `limit` bytes; for fuzzing. `kind` is an index,
/// 0 to 3: Node, Service, EndpointSlice, ServiceCIDR. Gives the events, and as text what would be logged and where the answer fails.
#[doc(hidden)]
#[must_use]
pub fn watch_bytes(kind: usize, bytes: &[u8], chunk: usize, limit: usize) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut words) = (Vec::new(), Vec::new());
    let mut decoder = Decoder::new(Resource::ALL[kind % Resource::ALL.len()], ConvertOptions::default());
    let mut lines = LineBuffer::new(limit);
    for chunk in bytes.chunks(chunk.max(1)) {
        lines.push(chunk);
        loop {
            let event = match lines.next() {
                Ok(None) => break,
                Ok(Some(line)) if line.trim_ascii().is_empty() => continue,
                Ok(Some(line)) => decoder.watch_event(line),
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
    words.push(format!("{} bytes of a line", lines.pending()));
    (events, words)
}

/// Reads a page of a list as [`watch_bytes`] reads a watch; for fuzzing.
#[doc(hidden)]
#[must_use]
pub fn list_bytes(kind: usize, bytes: &[u8]) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut words) = (Vec::new(), Vec::new());
    let mut decoder = Decoder::new(Resource::ALL[kind % Resource::ALL.len()], ConvertOptions::default());
    match decoder.page(bytes) {
        Ok(page) => {
            page.objects.into_iter().for_each(|object| collect(object, &mut events, &mut words));
            words.push(format!("page of version {:?}, next {:?}", page.version, page.next));
        }
        Err(problem) => words.push(format!("{problem}, {:?}", Status::of_body(bytes))),
    }
    (events, words)
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
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{added, bookmark, end, event, gone, service, web};
    use super::*;
    use crate::model::ObjectName;

    fn decoder(resource: Resource) -> Decoder {
        Decoder::new(resource, ConvertOptions::default())
    }

    fn watch_event(resource: Resource, line: &str) -> Result<WatchEvent, String> {
        decoder(resource).watch_event(line.as_bytes())
    }

    fn read(resource: Resource, object: &Value) -> ReadObject {
        match watch_event(resource, &added(object)) {
            Ok(WatchEvent::Applied(object)) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_event_of_a_watch_is_recognised() {
        for word in ["ADDED", "MODIFIED"] {
            let found = watch_event(Resource::Service, &event(word, &web("7")));
            assert!(matches!(found, Ok(WatchEvent::Applied(Ok(object))) if &*object.version == "7"));
        }
        let key = Key::Service(ObjectName::new("demo", "web"));
        let found = watch_event(Resource::Service, &event("DELETED", &web("7")));
        assert!(matches!(found, Ok(WatchEvent::Deleted(found, Some(version))) if found == key && &*version == "7"));
        let ends = [bookmark("8"), end("9")].map(|line| match watch_event(Resource::Service, &line) {
            Ok(WatchEvent::Bookmark { version, ends_list }) => (version, ends_list),
            other => panic!("{other:?}"),
        });
        assert_eq!(ends, [("8".into(), false), ("9".into(), true)]);
        let expired = watch_event(Resource::Service, &gone());
        assert!(matches!(expired, Ok(WatchEvent::Error(status)) if status.is_expired()));
    }

    #[test]
    fn the_parts_of_an_event_may_come_in_any_order() {
        for word in ["ADDED", "DELETED"] {
            let line = format!("{{\"object\": {}, \"type\": \"{word}\"}}", web("7"));
            let found = watch_event(Resource::Service, &line).unwrap();
            assert!(matches!(found, WatchEvent::Applied(Ok(_)) | WatchEvent::Deleted(..)), "{found:?}");
        }
    }

    #[test]
    fn a_line_that_is_no_event_is_an_error() {
        let lines =
            [&b"{"[..], b"[]", b"\xff\xfe", br#"{"type":"ODD","object":{}}"#, br#"{"type":"BOOKMARK","object":{}}"#];
        for line in lines {
            assert!(decoder(Resource::Service).watch_event(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_page_has_its_objects_and_the_token_of_the_next() {
        let list =
            json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9", "continue": "t"}, "items": [web("1")]});
        let page = |list: &Value| decoder(Resource::Service).page(list.to_string().as_bytes()).unwrap();
        let found = page(&list);
        assert_eq!((found.objects.len(), &*found.version, found.next.as_deref()), (1, "9", Some("t")));
        let empty = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9", "continue": ""}, "items": null});
        assert!(page(&empty).objects.is_empty() && page(&empty).next.is_none());
    }

    #[test]
    fn a_broken_object_on_a_page_loses_only_itself() {
        let items = [web("1"), service("bad", &json!("x"), "5"), service("api", &json!(81), "3")];
        let list = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9"}, "items": items});
        let found = decoder(Resource::Service).page(list.to_string().as_bytes()).unwrap();
        assert_eq!(found.objects.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn an_answer_that_is_no_list_is_an_error() {
        let unversioned = json!({"kind": "ServiceList", "metadata": {"resourceVersion": ""}, "items": []});
        let status = json!({"kind": "Status", "metadata": {"resourceVersion": "1"}});
        let pods = json!({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []});
        for value in [json!({}), unversioned, status, pods, json!("html")] {
            assert!(decoder(Resource::Service).page(value.to_string().as_bytes()).is_err(), "{value}");
        }
    }

    #[test]
    fn the_body_of_a_failure_may_be_anything() {
        assert_eq!(Status::of_body(b"<html>Bad Gateway</html>"), Status::default());
        assert_eq!(Status::of_body(b"no server\nx").message.as_deref(), Some("no server"));
        assert_eq!(Status::of_body(br#"{"code": 429, "reason": null}"#).code, 429);
    }

    #[test]
    fn a_broken_object_is_named_with_its_field() {
        let broken = read(Resource::Service, &service("bad", &json!("x"), "5")).unwrap_err();
        assert_eq!(broken.key, Some(Key::Service(ObjectName::new("demo", "bad"))));
        assert_eq!(broken.version.as_deref(), Some("5"));
        let expected = "Service demo/bad: spec.ports[0].port: invalid type: string \"x\", expected i32; the object stays as it was";
        assert_eq!(broken.problem.to_string(), expected);
    }

    #[test]
    fn an_object_without_a_readable_name_has_no_key() {
        for value in [json!({"metadata": 7}), json!({"metadata": {"name": ["x"]}}), json!("text")] {
            let broken = read(Resource::EndpointSlice, &value).unwrap_err();
            assert_eq!(broken.key, None, "{value}");
            assert!(broken.problem.to_string().starts_with("EndpointSlice without a name: "), "{}", broken.problem);
        }
    }

    #[test]
    fn an_object_of_another_kind_is_named_and_does_not_touch_ours() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "web", "namespace": "demo", "resourceVersion": "6"}});
        for resource in Resource::ALL {
            let broken = read(resource, &pod).unwrap_err();
            assert_eq!((broken.key, broken.version.as_deref()), (None, Some("6")));
            let expected = format!("{} demo/web: kind: the server sent a \"Pod\"; it is not used", resource.name());
            assert_eq!(broken.problem.to_string(), expected);
            assert!(watch_event(resource, &event("DELETED", &pod)).is_err(), "its deletion deletes none of ours");
        }
    }

    #[test]
    fn the_metrics_have_a_series_for_each_kind_from_the_start() {
        let metrics = crate::metrics::Metrics::new().text();
        for kind in Resource::ALL.map(Resource::name) {
            for series in ["source_reconnects_total{resource", "rejected_objects_total{kind"] {
                let line = format!("kubeproxy_nft_{series}=\"{kind}\"}} 0\n");
                assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
            }
        }
    }

    #[test]
    fn an_added_and_a_deleted_object_of_each_kind_have_the_same_key() {
        let named = json!({"metadata": {"name": "a", "namespace": "b", "resourceVersion": "3"}});
        for resource in Resource::ALL {
            let object = read(resource, &named).unwrap();
            assert_eq!(&*object.version, "3");
            let Ok(WatchEvent::Deleted(key, version)) = watch_event(resource, &event("DELETED", &named)) else {
                panic!("{resource:?} is not deleted")
            };
            assert_eq!(Key::of(&object.converted.event.unwrap()), Some(key));
            assert_eq!(version.as_deref(), Some("3"));
        }
    }
}

//! Reads the objects of a manifest file.
//!
//! The module takes the bytes of a file. It passes on a [`ManifestObject`] for each object of a kind that the proxy reads, in the order of
//! the file, and then returns [`FileProblems`]. It does no I/O. A YAML document that does not parse marks the file as broken, but the other
//! documents of the file are used. Two threads decode a long JSON list with which the file ends, with the same result in the same order as
//! one thread.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_ignored::Path as Ignored;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::chunk::{self, Chunk};
use super::document::{Document, documents};
use super::shape::{Head, Shapes};
use super::{ManifestProblem, Severity};
use crate::source::Key;
use crate::source::convert::{ConvertOptions, Converter, ObjectKind};
use crate::source::objects::{self, DecodeError, SlicePods};
use component::excerpt::excerpt;
use component::supervise;
use rules::model::Event;

/// The number of decoded chunks of the second thread that may wait for the first thread.
const CHUNKS_WAITING: usize = 4;

/// What some editors write at the start of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The namespace of a Service or EndpointSlice without a namespace, as in kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// The largest number of nodes and parser events of a YAML document: one for each byte of the largest file that is read, so that in effect
/// only the file's size is limited.
const MAX_YAML_EVENTS: usize = 1 << 26;

/// How many parser events aliases may add to a YAML document, for each byte of the document. The limit is needed because a few hundred
/// bytes of nested aliases can expand to millions of nodes.
const ALIASED_EVENTS_A_BYTE: usize = 16;

#[derive(Debug, Default)]
pub(super) struct FileProblems {
    /// Whether a part of the file could not be read, so that an object that was not found may be in that part.
    pub(super) broken: bool,
    pub(super) problems: Vec<ManifestProblem>,
}

impl FileProblems {
    /// Adds the problems of a later part of the file.
    fn add(&mut self, mut next: Self) {
        self.broken |= next.broken;
        self.problems.append(&mut next.problems);
    }
}

/// An object that was found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestObject {
    pub(super) key: Key,
    /// The number of the document that contains the object, from 1.
    pub(super) document: usize,
    /// The event for `rules::model`.
    pub(super) event: Event,
}

/// The state that a thread keeps from one object to the next.
#[derive(Debug, Default)]
pub(super) struct Reader {
    converter: Converter,
    shapes: Shapes,
    /// The pods that slices name; `None` if nobody asks for them.
    pods: Option<Vec<(String, IpAddr)>>,
}

impl Reader {
    /// Makes a reader that has not read any object.
    pub(super) fn new(options: ConvertOptions) -> Self {
        let pods = options.keeps_pods.then(Vec::new);
        Self { converter: Converter::new(options), shapes: Shapes::default(), pods }
    }

    /// Keeps the pods of a slice, if they are asked for.
    fn keep_pods<'de>(&mut self, slice: impl Deserializer<'de>) {
        if let (Some(pods), Ok(slice)) = (&mut self.pods, SlicePods::deserialize(slice)) {
            pods.extend(slice.addresses());
        }
    }

    /// Returns the addresses of the pods that were kept, each after its `namespace/name`.
    pub(super) fn take_pods(&mut self) -> Vec<(String, IpAddr)> {
        self.pods.take().unwrap_or_default()
    }
}

/// Decodes a file's bytes: JSON if the file's name ends in `.json`, YAML if it ends in `.yaml` or `.yml`, and otherwise JSON if the text
/// begins with `{`. Calls `take` with each object, in the order of the file. The second reader is for a second thread. The text of a long
/// list is freed while it is read.
pub(super) fn decode(
    file: &Arc<Path>,
    bytes: Vec<u8>,
    [reader, second]: &mut [Reader; 2],
    take: &mut dyn FnMut(ManifestObject),
) -> FileProblems {
    let mut decoder = Decoder::new(file, reader, take);
    match String::from_utf8(bytes) {
        Ok(mut text) => {
            if text.starts_with(BYTE_ORDER_MARK) {
                text.remove(0);
            }
            if is_json(file, &text) {
                decoder.json(text, second);
            } else {
                decoder.yaml(&text);
            }
        }
        Err(error) => decoder.error(format!("not UTF-8 text: {error}")),
    }
    decoder.outcome
}

fn is_json(file: &Path, text: &str) -> bool {
    match file.extension().and_then(OsStr::to_str) {
        Some("json") => true,
        Some("yaml" | "yml") => false,
        _ => text.trim_start().starts_with('{'),
    }
}

struct Decoder<'a> {
    file: &'a Arc<Path>,
    reader: &'a mut Reader,
    take: &'a mut dyn FnMut(ManifestObject),
    document: Option<usize>,
    /// The kind of the object that is being read.
    kind: &'static str,
    outcome: FileProblems,
}

impl<'a> Decoder<'a> {
    fn new(file: &'a Arc<Path>, reader: &'a mut Reader, take: &'a mut dyn FnMut(ManifestObject)) -> Self {
        Self { file, reader, take, document: None, kind: ManifestProblem::NO_KIND, outcome: FileProblems::default() }
    }

    fn problem(&mut self, severity: Severity, text: String) {
        let (file, kind) = (Arc::clone(self.file), Some(self.kind));
        let text = excerpt(&text, ManifestProblem::TEXT).into_owned();
        let problem = ManifestProblem { severity, file, document: self.document, text, kind };
        self.outcome.problems.push(problem);
    }

    fn error(&mut self, text: String) {
        self.outcome.broken = true;
        self.problem(Severity::Error, text);
    }

    fn yaml(&mut self, text: &str) {
        for document in documents(text) {
            self.document = Some(document.number);
            match parse_yaml(document) {
                Ok(value) => self.value(value, "", None),
                Err(error) => self.error(error),
            }
        }
    }

    /// Reads JSON values one after the other. Stops at a value that does not parse, because its end is unknown.
    fn json(&mut self, text: String, second: &mut Reader) {
        let mut start = 0;
        for number in 1.. {
            self.document = Some(number);
            let rest = &text[start..];
            // Of a list, find only the texts of its items here; they are decoded later.
            let mut lists = serde_json::Deserializer::from_str(rest).into_iter::<RawList<'_>>();
            let (list, end) = (lists.next(), start + lists.byte_offset());
            if let Some(Ok(list)) = &list
                && let Ok(Kind::List(kind)) = kind_of(named(&list.api_version, &list.kind), None)
            {
                let kind = kind.map(ItemKind::kind);
                if list.items.len() > chunk::ITEMS && text[end..].trim_ascii().is_empty() {
                    let places: Vec<_> = list.items.iter().map(|item| chunk::place_in(&text, item.get())).collect();
                    return self.long_list(chunk::cut(text, &places), kind, second);
                }
                self.some_items(list.items.iter().map(|item| item.get()), 0, kind);
                start = end;
                continue;
            }
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
            match values.next() {
                None => return,
                Some(Ok(value)) => self.json_value(value.get(), "", None),
                Some(Err(_)) => return self.broken_json(&text, number),
            }
            start += values.byte_offset();
        }
    }

    /// Reports that the value with this number does not parse, with line and column counted from the start of the file.
    fn broken_json(&mut self, text: &str, number: usize) {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>().skip(number - 1);
        if let Some(Err(error)) = values.next() {
            self.error(error.to_string());
        }
    }

    /// Reads a long list with two threads: each thread takes the next chunk when it has finished its last chunk, and this thread passes on
    /// all objects in the order of the list.
    fn long_list(&mut self, chunks: Vec<Chunk>, kind: Option<Kind>, second: &mut Reader) {
        let (file, document) = (self.file, self.document);
        let chunks = Mutex::new(chunks.into_iter().enumerate());
        let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
        let read = |reader: &mut Reader, number: usize, chunk: Chunk| {
            let mut objects = Vec::with_capacity(chunk::ITEMS);
            let mut take = |object| objects.push(object);
            let mut decoder = Decoder { document, ..Decoder::new(file, reader, &mut take) };
            decoder.some_items(chunk.items(), number * chunk::ITEMS, kind);
            let outcome = decoder.outcome;
            (objects, outcome)
        };
        let (sender, of_second) = sync_channel(CHUNKS_WAITING);
        let work_of_second = move || {
            while let Some((number, chunk)) = next() {
                if sender.send(read(second, number, chunk)).is_err() {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            // Move the receiver into this closure, so that a panic of this thread drops it. Otherwise the second thread could wait for ever
            // for room in the channel, and the scope would wait for the second thread.
            let of_second = of_second;
            // If the system cannot start a second thread, this thread reads everything.
            let other = supervise::scoped(scope, "manifests-2", work_of_second);
            let mut due = 0;
            while let Some((number, chunk)) = next() {
                let found = read(self.reader, number, chunk);
                // The second thread took the chunks from `due` up to `number`, and sends them in order.
                let before = of_second.iter().take(number - due);
                before.chain([found]).for_each(|found| self.give(found));
                due = number + 1;
            }
            of_second.iter().for_each(|found| self.give(found));
            if let Ok(Err(panic)) = other.map(thread::ScopedJoinHandle::join) {
                resume_unwind(panic);
            }
        });
    }

    /// Passes on the objects of a chunk, and adds its problems to the result.
    fn give(&mut self, (objects, outcome): (Vec<ManifestObject>, FileProblems)) {
        objects.into_iter().for_each(&mut *self.take);
        self.outcome.add(outcome);
    }

    /// Reads some items of a list, one by one, because a `Value` of the complete list would take many times the memory of the text. `first`
    /// is the index of the first item of `items`.
    fn some_items<'t>(&mut self, items: impl Iterator<Item = &'t str>, first: usize, kind: Option<Kind>) {
        for (number, item) in items.enumerate() {
            if !self.plain_item(item, kind) {
                self.json_value(item, &format!("items[{}]", first + number), kind);
            }
        }
    }

    /// Reads a Service or EndpointSlice directly from its JSON text. Returns false for an item of another kind, without a namespace, with
    /// an unknown field or with an error; the caller then parses it into a `Value`, which takes longer and finds each problem.
    fn plain_item(&mut self, text: &str, list: Option<Kind>) -> bool {
        let Some(head) = self.reader.shapes.head(text) else { return false };
        let Ok(Kind::Item(kind)) = kind_of(named(&head.api_version, &head.kind), list) else { return false };
        self.kind = kind.name();
        let is_plain = match kind {
            ItemKind::Service => self.plain::<core::Service, objects::Service>(text, &head),
            ItemKind::Slice => {
                let is_plain = self.plain::<discovery::EndpointSlice, objects::EndpointSlice>(text, &head);
                if is_plain {
                    self.reader.keep_pods(&mut serde_json::Deserializer::from_str(text));
                }
                is_plain
            }
            // A cluster has fewer objects of these kinds, so they can be decoded through a `Value`, which is slower.
            ItemKind::Node | ItemKind::ServiceCidr => false,
        };
        self.kind = ManifestProblem::NO_KIND;
        is_plain
    }

    fn plain<Full: DeserializeOwned, T: ObjectKind>(&mut self, text: &str, head: &Head<'_>) -> bool {
        if !self.reader.shapes.is_known(self.kind, head) {
            let mut has_unknown = false;
            let mut json = serde_json::Deserializer::from_str(text);
            let full = serde_ignored::deserialize::<_, _, Full>(&mut json, |_| has_unknown = true);
            if full.is_err() || has_unknown {
                return false;
            }
            self.reader.shapes.note(self.kind, head);
        }
        match serde_json::from_str::<T::Object<'_>>(text) {
            Ok(object) if !T::head(&object).1.namespace.is_empty() => {
                self.convert::<T>(&object);
                true
            }
            _ => false,
        }
    }

    fn json_value(&mut self, text: &str, path: &str, list: Option<Kind>) {
        match serde_json::from_str(text) {
            Ok(value) => self.value(value, path, list),
            Err(error) => self.error(format!("{}{error}", prefix(path))),
        }
    }

    /// Reads an object or a list of objects at `path` of the document. If the value is an item of a typed list, which may lack its `kind`,
    /// `list` is the kind of the items.
    fn value(&mut self, value: Value, path: &str, list: Option<Kind>) {
        let object = match value {
            Value::Object(object) => object,
            Value::Null => return,
            _ => return self.error(format!("{}not an object", prefix(path))),
        };
        match kind_of(|field| object.get(field)?.as_str(), list) {
            Ok(Kind::List(item)) => self.items(object, path, item.map(ItemKind::kind)),
            Ok(Kind::Item(kind)) => self.item(kind, object, path),
            Ok(Kind::Other) => {}
            Err(field) => self.error(format!("{}{field}: missing", dotted(path))),
        }
    }

    fn items(&mut self, mut list: Map<String, Value>, path: &str, kind: Option<Kind>) {
        match list.remove("items") {
            Some(Value::Array(items)) => {
                for (index, item) in items.into_iter().enumerate() {
                    self.value(item, &format!("{}items[{index}]", dotted(path)), kind);
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => self.error(format!("{}items: not a list", dotted(path))),
        }
    }

    fn item(&mut self, kind: ItemKind, object: Map<String, Value>, path: &str) {
        self.kind = kind.name();
        match kind {
            ItemKind::Service => self.typed::<core::Service, objects::Service>(with_namespace(object), path),
            ItemKind::Slice => {
                let object = Value::Object(with_namespace(object));
                self.reader.keep_pods(&object);
                if let Value::Object(object) = object {
                    self.typed::<discovery::EndpointSlice, objects::EndpointSlice>(object, path);
                }
            }
            ItemKind::Node => self.typed::<core::Node, objects::Node>(object, path),
            ItemKind::ServiceCidr => self.typed::<networking::ServiceCIDR, objects::ServiceCidr>(object, path),
        }
        self.kind = ManifestProblem::NO_KIND;
    }

    /// Reads an object of a known kind and passes on its event.
    ///
    /// `Full` is the complete type, which shows a user's mistakes; `T` has the fields that the proxy reads.
    fn typed<Full: DeserializeOwned, T: ObjectKind>(&mut self, object: Map<String, Value>, path: &str) {
        let object = Value::Object(object);
        let object: Result<T::Object<'_>, _> =
            self.check::<Full>(&object, path).and_then(|()| objects::decode(&object));
        let object = match object {
            Ok(object) => object,
            Err(error) => return self.error(format!("{}{}: {}", dotted(path), error.field, error.reason)),
        };
        self.convert::<T>(&object);
    }

    /// Converts an object and passes on its event.
    fn convert<T: ObjectKind>(&mut self, object: &T::Object<'_>) {
        let converted = T::convert(object, &mut self.reader.converter);
        for problem in converted.problems {
            self.problem(Severity::Warning, problem.to_string());
        }
        let Some(event) = converted.event else { return };
        if let (Some(key), Some(document)) = (Key::of(&event), self.document) {
            (self.take)(ManifestObject { key, document, event });
        }
    }

    /// Warns about fields that the complete type does not have.
    ///
    /// # Errors
    /// Returns the first field that does not fit the complete type.
    fn check<Full: DeserializeOwned>(&mut self, object: &Value, path: &str) -> Result<(), DecodeError> {
        let mut unknown = Vec::new();
        let fits = serde_ignored::deserialize::<_, _, Full>(object, |field| unknown.push(field_path(&field)));
        if fits.is_err() {
            // Decode the object again to find the field's name. Tracking the names takes time for each field, which objects that fit save.
            objects::decode::<Full>(object)?;
        }
        for field in unknown {
            self.problem(Severity::Warning, format!("{}{field}: unknown field; ignored", dotted(path)));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Item(ItemKind),
    /// A list. A typed list, such as ServiceList, has the kind of its items.
    List(Option<ItemKind>),
    /// A kind that the proxy does not read.
    Other,
}

#[derive(Clone, Copy)]
enum ItemKind {
    Service,
    Slice,
    Node,
    ServiceCidr,
}

impl ItemKind {
    fn kind(self) -> Kind {
        Kind::Item(self)
    }

    /// Returns the name of the kind, as in the field `kind` of objects.
    const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Slice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    fn of(api_version: &str, kind: &str) -> Option<Self> {
        match (api_version, kind) {
            ("v1", "Service") => Some(Self::Service),
            ("v1", "Node") => Some(Self::Node),
            ("discovery.k8s.io/v1", "EndpointSlice") => Some(Self::Slice),
            ("networking.k8s.io/v1", "ServiceCIDR") => Some(Self::ServiceCidr),
            _ => None,
        }
    }
}

/// A list whose items have not been read yet.
#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(borrow, rename = "apiVersion")]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// Returns a function that maps the field names `apiVersion` and `kind` to these values.
fn named<'a>(api_version: &'a str, kind: &'a str) -> impl Fn(&str) -> Option<&'a str> {
    move |field| match field {
        "apiVersion" => Some(api_version),
        "kind" => Some(kind),
        _ => None,
    }
}

/// Returns the kind of an object. Items of typed lists may lack `apiVersion` and `kind`; for other objects the error is the name of the
/// missing field.
fn kind_of<'a>(field: impl Fn(&str) -> Option<&'a str>, list: Option<Kind>) -> Result<Kind, &'static str> {
    let text = |name| field(name).filter(|text| !text.is_empty());
    let (api_version, kind) = match (text("apiVersion"), text("kind"), list) {
        (Some(api_version), Some(kind), _) => (api_version, kind),
        (_, _, Some(list)) => return Ok(list),
        (None, _, None) => return Err("apiVersion"),
        (_, None, None) => return Err("kind"),
    };
    if let Some(item) = ItemKind::of(api_version, kind) {
        return Ok(Kind::Item(item));
    }
    let listed = kind.strip_suffix("List").and_then(|kind| ItemKind::of(api_version, kind));
    Ok(if listed.is_some() || (api_version, kind) == ("v1", "List") { Kind::List(listed) } else { Kind::Other })
}

/// Returns the object, with the default namespace if it has no namespace.
fn with_namespace(mut object: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let namespace = metadata.entry("namespace").or_insert(Value::Null);
        if namespace.is_null() || namespace == "" {
            *namespace = DEFAULT_NAMESPACE.into();
        }
    }
    object
}

fn parse_yaml(document: Document<'_>) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // Accept only true and false as booleans, because a port may have the name "y" or "on".
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_events: MAX_YAML_EVENTS,
            max_nodes: MAX_YAML_EVENTS,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: document.text.len().saturating_mul(ALIASED_EVENTS_A_BYTE),
        },
    };
    serde_saphyr::from_str_with_options(document.text, options).map_err(|error| {
        error.render_with_options(serde_saphyr::render_options! {
            formatter: &serde_saphyr::UserMessageFormatter,
            line_offset: document.lines_before,
        })
    })
}

/// Returns a path as the start of a message about the object at this path.
fn prefix(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}: ") }
}

/// Returns a path as the start of a longer path.
fn dotted(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}.") }
}

/// Returns a path of `serde_ignored` as users write it: `spec.ports[0].foo`.
fn field_path(path: &Ignored<'_>) -> String {
    match path {
        Ignored::Root => String::new(),
        Ignored::Seq { parent, index } => format!("{}[{index}]", field_path(parent)),
        Ignored::Map { parent, key } => format!("{}{key}", dotted(&field_path(parent))),
        Ignored::Some { parent } | Ignored::NewtypeStruct { parent } | Ignored::NewtypeVariant { parent } => {
            field_path(parent)
        }
    }
}

//! Computes the shape of a JSON object, which consists of the names of its fields and the types of their values.
//!
//! The shape alone decides whether an object fits the complete type of its kind, and has no unknown field. Most objects of a long list have
//! one of a few shapes, so only the first object of each shape is decoded as the complete type. Decoding all objects as the complete type
//! took a third of the processor time of a start (`src/decisions/0003-own-watch.md`).
//!
//! The module takes the text of an object, and returns a hash of its shape, its `apiVersion` and its `kind`. It does no I/O. Invariants:
//! objects that differ in their fields, or in the type of a field's value, differ in their shapes; in a field for times, a string that is
//! not a time counts as another type. The hash has a random seed, so that nobody can create two shapes with equal hashes on purpose.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::HashSet;
use foldhash::quality::RandomState;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Fields of `ObjectMeta`, `ManagedFieldsEntry` and `Condition` whose text has to be a time.
const TIMES: [&str; 4] = ["creationTimestamp", "deletionTimestamp", "time", "lastTransitionTime"];

/// The largest number of remembered shapes, to bound the memory. When it is reached, all are forgotten.
const MAX_SHAPES: usize = 4_096;

/// Shapes of objects that were read as their complete types, without a problem.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    known: HashSet<(&'static str, u64)>,
    hasher: RandomState,
}

/// `apiVersion` and `kind` of an object, and the hash of its shape.
#[derive(Debug)]
pub(super) struct Head<'a> {
    pub(super) api_version: Cow<'a, str>,
    pub(super) kind: Cow<'a, str>,
    shape: u64,
}

impl Shapes {
    /// Reads the JSON text of an object; `None` if the text is not an object, or its `apiVersion` or `kind` is no text or is there twice.
    pub(super) fn head<'a>(&self, text: &'a str) -> Option<Head<'a>> {
        let mut json = serde_json::Deserializer::from_str(text);
        json.deserialize_map(WholeObject(&self.hasher)).ok().filter(|_| json.end().is_ok())
    }

    /// Returns whether an object of this kind and shape was noted as free of problems.
    pub(super) fn is_known(&self, kind: &'static str, head: &Head<'_>) -> bool {
        self.known.contains(&(kind, head.shape))
    }

    /// Notes that an object of this shape has no problem.
    pub(super) fn note(&mut self, kind: &'static str, head: &Head<'_>) {
        if self.known.len() >= MAX_SHAPES {
            self.known.clear();
        }
        self.known.insert((kind, head.shape));
    }
}

/// A JSON string, which is not copied if it has no escapes.
#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The visitor of a whole object; it also finds `apiVersion` and `kind`.
struct WholeObject<'s>(&'s RandomState);

impl<'a> Visitor<'a> for WholeObject<'_> {
    type Value = Head<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Head<'a>, A::Error> {
        let (mut api_version, mut kind) = (None, None);
        let mut hasher = self.0.build_hasher();
        while let Some(Text(key)) = map.next_key()? {
            key.hash(&mut hasher);
            let known = match &*key {
                "apiVersion" => &mut api_version,
                "kind" => &mut kind,
                _ => {
                    map.next_value_seed(Walk { hasher: &mut hasher, seeds: self.0, is_time: false })?;
                    continue;
                }
            };
            if known.replace(map.next_value::<Text<'a>>()?.0).is_some() {
                return Err(A::Error::custom("a field is there twice"));
            }
        }
        let [api_version, kind] = [api_version, kind].map(Option::unwrap_or_default);
        Ok(Head { api_version, kind, shape: hasher.finish() })
    }
}

/// Adds the shape of a value to a hash.
struct Walk<'h, 's, H> {
    hasher: &'h mut H,
    seeds: &'s RandomState,
    /// Whether the value is in a field for times, so that a string has to be a time.
    is_time: bool,
}

impl<H: Hasher> Walk<'_, '_, H> {
    fn tag(self, tag: u8) {
        self.hasher.write_u8(tag);
    }
}

impl<'a, H: Hasher> DeserializeSeed<'a> for Walk<'_, '_, H> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'a, H: Hasher> Visitor<'a> for Walk<'_, '_, H> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.tag(0);
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.tag(1);
        Ok(())
    }

    /// Adds the smallest integer type that holds the number: i32, i64 or u64. The complete type of a kind has fields of these types, and does
    /// not decode if a number is too large for its field.
    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.tag(if i32::try_from(number).is_ok() { 2 } else { 3 });
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        match i64::try_from(number) {
            Ok(number) => self.visit_i64(number),
            Err(_) => {
                self.tag(4);
                Ok(())
            }
        }
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.tag(5);
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let is_no_time = self.is_time && text.parse::<Timestamp>().is_err();
        self.tag(if is_no_time { 7 } else { 6 });
        Ok(())
    }

    /// Adds the shapes of a list's items. Consecutive items with equal shapes count once.
    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<(), A::Error> {
        let mut last = None;
        loop {
            let mut hasher = self.seeds.build_hasher();
            let item = Walk { hasher: &mut hasher, seeds: self.seeds, is_time: self.is_time };
            if items.next_element_seed(item)?.is_none() {
                break;
            }
            let shape = Some(hasher.finish());
            if shape != last {
                shape.hash(self.hasher);
                last = shape;
            }
        }
        self.tag(8);
        Ok(())
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { hasher, seeds, .. } = self;
        hasher.write_u8(9);
        while let Some(Text(key)) = map.next_key()? {
            key.hash(hasher);
            map.next_value_seed(Walk { hasher, seeds, is_time: TIMES.contains(&&*key) })?;
        }
        hasher.write_u8(10);
        Ok(())
    }
}

//! How the objects are read from JSON, or from any other format of serde.
//!
//! Takes values, gives objects, or the first field that does not fit and why. Pure.
//!
//! Invariants: null is the same as absent; of lists and maps only what is used is kept.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{AnyTime, Pair, Time, USED};

/// Why an object does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::source) struct DecodeError {
    /// Path of the field, such as `spec.ports[0].port`; `.` for the object itself.
    pub(in crate::source) field: String,
    /// What is wrong with it.
    pub(in crate::source) reason: String,
}

/// Decodes an object.
///
/// # Errors
/// The first field that does not fit the type.
pub(in crate::source) fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, DecodeError> {
    // Tracking the field costs more than the decoding, so only an object that fails is decoded again with it.
    T::deserialize(object).map_err(|error| {
        let mut track = serde_path_to_error::Track::new();
        let _ = T::deserialize(serde_path_to_error::Deserializer::new(object, &mut track));
        DecodeError { field: track.path().to_string(), reason: error.to_string() }
    })
}

/// A value whose null means the same as its absence.
pub(in crate::source) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The first text of a list; null is an empty list.
pub(super) fn first<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct First;

    impl<'de> Visitor<'de> for First {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let first: Option<String> = list.next_element()?;
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(first.into_iter().collect())
        }
    }

    deserializer.deserialize_any(First)
}

/// The labels or annotations that are read; null is the same as none.
pub(super) fn used_pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pair>, D::Error> {
    struct Used;

    impl<'de> Visitor<'de> for Used {
        type Value = Vec<Pair>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
                match USED.into_iter().find(|used| **used == *key) {
                    Some(key) => pairs.extend(
                        map.next_value::<Option<String>>()?
                            .map(|value| Pair { key: Bytes::from_static(key.as_bytes()), value: value.into() }),
                    ),
                    None => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(pairs)
        }
    }

    deserializer.deserialize_any(Used)
}

/// Text that is borrowed where the format allows it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Time {
    /// From RFC 3339.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time = Text::deserialize(deserializer)?.0.parse().map_err(D::Error::custom)?;
        Ok(Self { seconds: Some(jiff::Timestamp::as_second(time)) })
    }
}

impl<'de> Deserialize<'de> for AnyTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

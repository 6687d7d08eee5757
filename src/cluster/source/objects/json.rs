//! Decodes objects from JSON.
//!
//! The module takes a parsed JSON value, and returns an object, or the first field that does not fit its type and the reason. It does no
//! I/O.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny};
use serde_json::Value;

use super::{AnyTime, Text, Time};

/// Why an object does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::source) struct DecodeError {
    /// Path of the field, such as `spec.ports[0].port`; `.` for the object itself.
    pub(in crate::source) field: String,
    /// What is wrong with the field.
    pub(in crate::source) reason: String,
}

/// Decodes an object.
///
/// # Errors
/// Returns the first field that does not fit the type.
pub(in crate::source) fn decode<'de, T: Deserialize<'de>>(object: &'de Value) -> Result<T, DecodeError> {
    // Tracking the path of the fields takes time for each field, so only an object that does not decode is decoded again with tracking.
    T::deserialize(object).map_err(|error| {
        let mut track = serde_path_to_error::Track::new();
        let _ = T::deserialize(serde_path_to_error::Deserializer::new(object, &mut track));
        DecodeError { field: track.path().to_string(), reason: error.to_string() }
    })
}

/// Decodes a value. For null, returns the default of the type.
pub(in crate::source) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl<'de> Deserialize<'de> for Time {
    /// Decodes a time in RFC 3339 format.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time = Text::deserialize(deserializer)?.parse().map_err(D::Error::custom)?;
        Ok(Self { seconds: Some(jiff::Timestamp::as_second(time)) })
    }
}

impl<'de> Deserialize<'de> for AnyTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

//! The JSON form of entry values for which serde's default does not fit: times, durations and names of objects.
//!
//! Each module has the functions that serde's `with` attribute needs. Invariant: a value that is written is read back as the same value;
//! only durations are rounded to microseconds.

use rules::model::ObjectName;

/// A time in the form of RFC 3339.
pub(super) mod time {
    use jiff::Timestamp;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(in crate::history) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(in crate::history) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A duration as a number of seconds, rounded to microseconds.
pub(super) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(in crate::history) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        time.map(|time| (time.as_secs_f64() * 1e6).round() / 1e6).serialize(to)
    }

    pub(in crate::history) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(from)?;
        Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    }
}

/// The name of an object as `namespace/name`.
pub(super) mod name {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use rules::model::ObjectName;

    pub(in crate::history) fn serialize<S: Serializer>(name: &ObjectName, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(name)
    }

    pub(in crate::history) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectName, D::Error> {
        super::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// The name of an object as `namespace/name`, or null.
pub(super) mod optional_name {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use rules::model::ObjectName;

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(in crate::history) fn serialize<S: Serializer>(name: &Option<ObjectName>, to: S) -> Result<S::Ok, S::Error> {
        name.as_ref().map(ToString::to_string).serialize(to)
    }

    pub(in crate::history) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ObjectName>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.as_deref().map(super::parse).transpose().map_err(D::Error::custom)
    }
}

/// The names of objects as a list of `namespace/name`.
pub(super) mod names {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use rules::model::ObjectName;

    pub(in crate::history) fn serialize<S: Serializer>(names: &[ObjectName], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(names.iter().map(ToString::to_string))
    }

    pub(in crate::history) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ObjectName>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| super::parse(name)).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

fn parse(text: &str) -> Result<ObjectName, String> {
    let (namespace, name) = text.split_once('/').ok_or_else(|| format!("{text:?} is not namespace/name"))?;
    Ok(ObjectName::new(namespace, name))
}

//! How the values of an entry are written in JSON where that is not serde's own way: times, names of objects, fronts.
//!
//! Takes and gives what serde's `with`, `into` and `try_from` ask for. Invariant: what is written here is read back as the same value.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::entry::{self, Fate};
use crate::model::{Destination, Family, Front, ObjectName, Protocol};

/// RFC 3339.
pub(super) mod time {
    use jiff::Timestamp;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(in crate::changes) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(in crate::changes) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Seconds with microseconds.
pub(super) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(in crate::changes) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        time.map(|time| (time.as_secs_f64() * 1e6).round() / 1e6).serialize(to)
    }

    pub(in crate::changes) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(from)?;
        Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    }
}

/// `namespace/name`.
pub(super) mod name {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::model::ObjectName;

    pub(in crate::changes) fn serialize<S: Serializer>(name: &ObjectName, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(name)
    }

    pub(in crate::changes) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectName, D::Error> {
        super::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// `namespace/name` or null.
pub(super) mod optional_name {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::model::ObjectName;

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(in crate::changes) fn serialize<S: Serializer>(name: &Option<ObjectName>, to: S) -> Result<S::Ok, S::Error> {
        name.as_ref().map(ToString::to_string).serialize(to)
    }

    pub(in crate::changes) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ObjectName>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.as_deref().map(super::parse).transpose().map_err(D::Error::custom)
    }
}

/// A list of `namespace/name`.
pub(super) mod names {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::model::ObjectName;

    pub(in crate::changes) fn serialize<S: Serializer>(names: &[ObjectName], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(names.iter().map(ToString::to_string))
    }

    pub(in crate::changes) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ObjectName>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| super::parse(name)).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

fn parse(text: &str) -> Result<ObjectName, String> {
    let (namespace, name) = text.split_once('/').ok_or_else(|| format!("{text:?} is not namespace/name"))?;
    Ok(ObjectName::new(namespace, name))
}

/// A front as `services -o json` has it, with what became of it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FrontChange {
    /// Null for a node port.
    address: Option<IpAddr>,
    family: String,
    port: u16,
    protocol: String,
    before: Option<Fate>,
    after: Option<Fate>,
}

impl From<entry::FrontChange> for FrontChange {
    fn from(change: entry::FrontChange) -> Self {
        let entry::FrontChange { front, before, after } = change;
        let address = match front.destination {
            Destination::Address(address) => Some(address),
            Destination::NodePort(_) => None,
        };
        let protocol = front.protocol.to_string().to_uppercase();
        Self { address, family: front.family().to_string(), port: front.port, protocol, before, after }
    }
}

impl TryFrom<FrontChange> for entry::FrontChange {
    type Error = String;

    fn try_from(form: FrontChange) -> Result<Self, String> {
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter();
        let protocol = protocols.into_iter().find(|known| known.to_string().eq_ignore_ascii_case(&form.protocol));
        let family = Family::BOTH.into_iter().find(|known| known.to_string() == form.family);
        let front = Front {
            destination: match form.address {
                Some(address) => Destination::Address(address),
                None => Destination::NodePort(family.ok_or_else(|| format!("unknown family {}", form.family))?),
            },
            protocol: protocol.ok_or_else(|| format!("unknown protocol {}", form.protocol))?,
            port: form.port,
        };
        Ok(Self { front, before: form.before, after: form.after })
    }
}

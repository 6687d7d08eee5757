//! discovery.k8s.io/v1 EndpointSlice: the kind there is most of.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::{Metadata, nullable};

/// An EndpointSlice.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// What the object says that it is; empty in a list, whose kind says it for all.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) kind: Box<str>,
    /// Name, version, labels.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) metadata: Metadata,
    /// IPv4, IPv6 or FQDN.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) address_type: Box<str>,
    /// The ports of all its endpoints.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) ports: Box<[EndpointPort]>,
    /// Its endpoints.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) endpoints: Box<[Endpoint]>,
}

/// One port of a slice.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct EndpointPort {
    pub(in crate::source) name: Option<Box<str>>,
    pub(in crate::source) protocol: Option<Box<str>>,
    /// 0 for all ports.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) port: i32,
}

/// One endpoint of a slice.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::source) struct Endpoint {
    /// The first of `addresses`: no other counts (B6).
    #[serde(rename = "addresses", deserialize_with = "first")]
    pub(in crate::source) address: Option<Box<str>>,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) conditions: EndpointConditions,
    pub(in crate::source) node_name: Option<Box<str>>,
    pub(in crate::source) hints: Option<Box<Hints>>,
}

/// Conditions as they are given (B7).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct EndpointConditions {
    pub(in crate::source) ready: Option<bool>,
    pub(in crate::source) serving: Option<bool>,
    pub(in crate::source) terminating: Option<bool>,
}

/// Topology hints (B9).
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::source) struct Hints {
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) for_zones: Box<[Hint]>,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) for_nodes: Box<[Hint]>,
}

/// A zone or node of a hint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct Hint {
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) name: Box<str>,
}

/// The first text of a list; null is an empty list.
fn first<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<str>>, D::Error> {
    struct First;

    impl<'de> Visitor<'de> for First {
        type Value = Option<Box<str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let first = list.next_element()?;
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(first)
        }
    }

    deserializer.deserialize_any(First)
}

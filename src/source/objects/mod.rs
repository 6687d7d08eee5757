//! Kubernetes objects, reduced to the fields that the proxy reads.
//!
//! Takes the API's JSON (any serde format will do), gives plain values for [`super::convert`]. One file a kind.
//!
//! Invariants: an unknown field costs no allocation; what may be absent in the API may be absent or null here; whatever
//! decodes as the full k8s-openapi type decodes here too.

mod cidr;
mod node;
mod service;
mod slice;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::de::{Deserializer, Error as _, IgnoredAny};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

pub use cidr::ServiceCidr;
pub use node::Node;
pub(super) use service::ServicePort;
pub use service::{Service, ServiceSpec};
pub use slice::EndpointSlice;
pub(super) use slice::{Endpoint, EndpointConditions, EndpointPort, Hints};

/// What is kept of `metadata`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// The object's name.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) name: Box<str>,
    /// `None` for kinds without namespaces.
    pub(in crate::source) namespace: Option<Box<str>>,
    /// Where to resume a watch after this object.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) resource_version: Box<str>,
    /// Seconds since 1970.
    #[serde(deserialize_with = "seconds")]
    pub(in crate::source) creation_timestamp: Option<i64>,
    /// Whether the object is on its way out.
    #[serde(rename = "deletionTimestamp", deserialize_with = "presence")]
    pub(in crate::source) is_being_deleted: bool,
    /// The labels that mean something.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) labels: Labels,
    /// The annotations that mean something.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) annotations: Annotations,
}

/// The annotations that mean something to the proxy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct Annotations {
    /// When a slice had to change.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub(in crate::source) trigger_time: Option<Box<str>>,
}

/// The labels that mean something to the proxy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct Labels {
    /// On Services that another proxy handles (A1).
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(in crate::source) proxy_name: Option<Box<str>>,
    /// On slices that are not for proxies (B1).
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(in crate::source) headless: Option<Box<str>>,
    /// The Service of a slice (B2).
    #[serde(rename = "kubernetes.io/service-name")]
    pub(in crate::source) service_name: Option<Box<str>>,
    /// The zone of a Node (C2, C9).
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(in crate::source) zone: Option<Box<str>>,
}

/// A field that does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldError {
    /// Path of the field, such as `spec.ports[0].port`; `.` for the object itself.
    pub(super) field: String,
    /// What is wrong with it.
    pub(super) problem: String,
}

/// Decodes an object, naming the field that stands against it.
pub(super) fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, FieldError> {
    // Keeping track of the field is what costs most, so that is done only when it is needed.
    T::deserialize(object).map_err(|error| {
        let mut track = serde_path_to_error::Track::new();
        let _ = T::deserialize(serde_path_to_error::Deserializer::new(object, &mut track));
        FieldError { field: track.path().to_string(), problem: error.to_string() }
    })
}

/// A value whose null means the same as its absence.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether there is a value.
fn presence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

/// A time (RFC 3339), cut to seconds.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    /// Text that is borrowed where the format allows it.
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let text = Option::<Text<'de>>::deserialize(deserializer)?;
    text.map(|text| text.0.parse().map(jiff::Timestamp::as_second).map_err(D::Error::custom)).transpose()
}

//! networking.k8s.io/v1 ServiceCIDR.

use serde::Deserialize;

use super::{Metadata, nullable};

/// A ServiceCIDR.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// What the object says that it is; empty in a list, whose kind says it for all.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) kind: Box<str>,
    /// Name and version.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) metadata: Metadata,
    /// What is asked for.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct ServiceCidrSpec {
    /// The ranges.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) cidrs: Box<[Box<str>]>,
}

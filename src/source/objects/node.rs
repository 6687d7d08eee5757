//! v1 Node.

use serde::Deserialize;

use super::{Metadata, nullable};

/// A Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// What the object says that it is; empty in a list, whose kind says it for all.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) kind: Box<str>,
    /// Name, version, zone.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) metadata: Metadata,
    /// What is asked for.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) spec: NodeSpec,
    /// What is.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct NodeSpec {
    /// Ranges of the pods on the node.
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    pub(in crate::source) pod_cidrs: Box<[Box<str>]>,
    /// What keeps pods away.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) taints: Box<[Taint]>,
}

/// One taint of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct Taint {
    /// Its key.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) key: Box<str>,
}

/// `status` of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct NodeStatus {
    /// Addresses and names.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) addresses: Box<[NodeAddress]>,
}

/// One address of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct NodeAddress {
    /// InternalIP, ExternalIP, Hostname and others.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub(in crate::source) type_: Box<str>,
    /// The address or name.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) address: Box<str>,
}

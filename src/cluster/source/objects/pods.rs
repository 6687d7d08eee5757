//! The pods that an EndpointSlice names.
//!
//! Reads the JSON of a slice once more, and only for a command that asks for pods: the rules do not need their names, and a proxy keeps
//! hundreds of thousands of decoded endpoints in memory.

use std::net::IpAddr;

use serde::Deserialize;

/// The fields of an EndpointSlice that name pods.
#[derive(Debug, Deserialize)]
pub(in crate::source) struct SlicePods {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    namespace: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    target_ref: Option<TargetRef>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
}

impl SlicePods {
    /// The first address of each pod, after its `namespace/name`. A proxy uses only the first address of an endpoint (B6).
    pub(in crate::source) fn addresses(&self) -> impl Iterator<Item = (String, IpAddr)> {
        self.endpoints.iter().flatten().filter_map(|endpoint| {
            let pod = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod")?;
            Some((format!("{}/{}", self.metadata.namespace, pod.name), endpoint.addresses.first()?.parse().ok()?))
        })
    }
}

//! The pods that an EndpointSlice names.
//!
//! The module decodes only the fields about pods. Only commands need these, and the decoded endpoints of [`super::EndpointSlice`], hundreds
//! of thousands in a large cluster, are smaller without them.

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
    /// Returns `namespace/name` and the first address of each pod, because a proxy uses only the first address of an endpoint (B6). Leaves
    /// out pods whose first address is missing or invalid.
    pub(in crate::source) fn addresses(&self) -> impl Iterator<Item = (String, IpAddr)> {
        self.endpoints.iter().flatten().filter_map(|endpoint| {
            let pod = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod")?;
            Some((format!("{}/{}", self.metadata.namespace, pod.name), endpoint.addresses.first()?.parse().ok()?))
        })
    }
}

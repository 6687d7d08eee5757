//! The pods that an EndpointSlice names.
//!
//! The module decodes only the fields about pods. Only commands need these, and the decoded endpoints of [`super::EndpointSlice`], hundreds
//! of thousands in a large cluster, are smaller without them.

use std::net::IpAddr;

use serde::Deserialize;

use super::nullable;

/// The fields of an EndpointSlice that name pods.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct SlicePods {
    #[serde(deserialize_with = "nullable")]
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(deserialize_with = "nullable")]
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoint {
    #[serde(deserialize_with = "nullable")]
    addresses: Vec<String>,
    target_ref: Option<TargetRef>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TargetRef {
    #[serde(deserialize_with = "nullable")]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    name: String,
}

impl SlicePods {
    /// Returns `namespace/name` and the first address of each pod, because a proxy uses only the first address of an endpoint (B6). Leaves
    /// out pods whose first address is missing or invalid.
    pub(in crate::source) fn addresses(&self) -> impl Iterator<Item = (String, IpAddr)> {
        self.endpoints.iter().filter_map(|endpoint| {
            let pod = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod")?;
            Some((format!("{}/{}", self.metadata.namespace, pod.name), endpoint.addresses.first()?.parse().ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pods(slice: Value) -> Vec<(String, IpAddr)> {
        serde_json::from_value::<SlicePods>(slice).unwrap().addresses().collect()
    }

    // Null is the same as a field that is not there, as in the other types.
    #[test]
    fn null_costs_no_pod() {
        let web = json!({"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "web"}});
        let address = |name: &str| (name.to_owned(), "10.0.0.1".parse().unwrap());
        for nothing in [
            json!({"addresses": null, "targetRef": {"kind": "Pod", "name": "new"}}),
            json!({"addresses": ["10.0.0.2"], "targetRef": null}),
            json!({"addresses": ["10.0.0.2"], "targetRef": {"kind": null, "name": null}}),
        ] {
            let slice = json!({"metadata": {"namespace": "shop"}, "endpoints": [nothing, web]});
            assert_eq!(pods(slice), [address("shop/web")], "{nothing}");
        }
        for metadata in [json!(null), json!({"namespace": null})] {
            assert_eq!(pods(json!({"metadata": metadata, "endpoints": [web]})), [address("/web")]);
        }
        assert_eq!(pods(json!({"endpoints": null})), []);
    }
}

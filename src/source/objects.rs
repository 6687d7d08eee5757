//! Kubernetes objects, reduced to the fields that the proxy reads.
//!
//! Takes the API's JSON (any serde format will do) or its protobuf, gives plain values for [`super::convert`]. Words such as policies
//! stay text: the conversion reports those that it does not know. The numbers of the fields are those of `generated.proto` in
//! k8s.io/api and k8s.io/apimachinery.
//!
//! Invariants: an unknown field costs no allocation; what may be absent in the API may be absent, null or empty here; whatever
//! decodes as the full k8s-openapi type decodes here too.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// What is kept of `metadata`.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// Empty for kinds without namespaces.
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    /// Where to resume a watch after this object.
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "6")]
    pub(super) resource_version: String,
    #[prost(message, optional, tag = "8")]
    pub(super) creation_timestamp: Option<Time>,
    /// There when the object waits for its finalizers to be deleted.
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<AnyTime>,
    #[serde(deserialize_with = "used_pairs")]
    #[prost(message, repeated, tag = "11")]
    pub(super) labels: Vec<Pair>,
    #[serde(deserialize_with = "used_pairs")]
    #[prost(message, repeated, tag = "12")]
    pub(super) annotations: Vec<Pair>,
}

/// On Services that another proxy handles (A1).
pub(super) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// On slices of headless Services, which are not for proxies (B1).
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";
/// The Service of a slice (B2).
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The zone of a Node (C2, C9).
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation: when the change happened that the endpoints controller wrote into the slice.
pub(super) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Annotation: how endpoints of the Service are chosen.
pub(super) const SCHEDULER: &str = "kube-proxy-nft/scheduler";
/// Annotation of the bookmark that ends the initial objects of a streaming list.
pub(super) const INITIAL_END: &str = "k8s.io/initial-events-end";
/// The labels and annotations that are read; of JSON no other is kept.
const USED: [&str; 7] = [PROXY_NAME, HEADLESS, SERVICE_NAME, ZONE, TRIGGER_TIME, SCHEDULER, INITIAL_END];

impl Metadata {
    /// `namespace/name`, or the name alone where there is no namespace.
    pub(super) fn full_name(&self) -> String {
        if self.namespace.is_empty() { self.name.clone() } else { format!("{}/{}", self.namespace, self.name) }
    }

    /// The value of a label; must be one of those that are read.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        value(&self.labels, key)
    }

    /// The value of an annotation; must be one of those that are read.
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        value(&self.annotations, key)
    }
}

/// A label or an annotation. Its texts stay in the buffer of a protobuf message that they came with, so those that are not used are
/// not copied.
#[derive(Clone, prost::Message)]
pub(super) struct Pair {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

fn value<'a>(pairs: &'a [Pair], key: &str) -> Option<&'a str> {
    // A key that is there twice has its last value, in protobuf as in JSON.
    let pair = pairs.iter().rfind(|pair| *pair.key == *key.as_bytes())?;
    std::str::from_utf8(&pair.value).ok()
}

/// A time, cut to seconds.
#[derive(Clone, Copy, prost::Message)]
pub(super) struct Time {
    /// Since 1970.
    #[prost(int64, optional, tag = "1")]
    pub(super) seconds: Option<i64>,
}

/// A time of which only the presence counts.
#[derive(Clone, Copy, prost::Message)]
pub(super) struct AnyTime {}

/// A Service.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub struct Service {
    /// Empty for the items of a list, where the list's own kind counts, and in protobuf, where the envelope has it: no object of
    /// Kubernetes has a field of this number.
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1000")]
    pub(super) kind: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "1")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "2")]
    pub(super) spec: ServiceSpec,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "3")]
    pub(super) status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceSpec {
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "1")]
    pub(super) ports: Vec<ServicePort>,
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    #[prost(string, tag = "3")]
    pub(super) cluster_ip: String,
    #[serde(rename = "type", deserialize_with = "nullable")]
    #[prost(string, tag = "4")]
    pub(super) type_: String,
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    #[prost(string, repeated, tag = "5")]
    pub(super) external_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "7")]
    pub(super) session_affinity: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, repeated, tag = "9")]
    pub(super) load_balancer_source_ranges: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "11")]
    pub(super) external_traffic_policy: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(int32, tag = "12")]
    pub(super) health_check_node_port: i32,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "14")]
    pub(super) session_affinity_config: SessionAffinityConfig,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    #[prost(string, repeated, tag = "18")]
    pub(super) cluster_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, repeated, tag = "19")]
    pub(super) ip_families: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "22")]
    pub(super) internal_traffic_policy: String,
}

/// One port of a Service.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServicePort {
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "2")]
    pub(super) protocol: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(int32, tag = "3")]
    pub(super) port: i32,
    /// 0 for none.
    #[serde(deserialize_with = "nullable")]
    #[prost(int32, tag = "5")]
    pub(super) node_port: i32,
}

/// `spec.sessionAffinityConfig`.
#[derive(Clone, Copy, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct SessionAffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "nullable")]
    #[prost(message, required, tag = "1")]
    pub(super) client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Clone, Copy, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    pub(super) timeout_seconds: Option<i32>,
}

/// `status` of a Service.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceStatus {
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "1")]
    pub(super) load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct LoadBalancerStatus {
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "1")]
    pub(super) ingress: Vec<Ingress>,
}

/// One ingress point of the load balancer.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Ingress {
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1")]
    pub(super) ip: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "3")]
    pub(super) ip_mode: String,
}

/// An EndpointSlice.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Empty for the items of a list, where the list's own kind counts, and in protobuf, where the envelope has it: no object of
    /// Kubernetes has a field of this number.
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1000")]
    pub(super) kind: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "1")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "2")]
    pub(super) endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "3")]
    pub(super) ports: Vec<EndpointPort>,
    /// IPv4, IPv6 or FQDN.
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "4")]
    pub(super) address_type: String,
}

/// One port of a slice.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct EndpointPort {
    /// Empty for an unnamed port.
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "2")]
    pub(super) protocol: String,
    /// 0 for all ports.
    #[serde(deserialize_with = "nullable")]
    #[prost(int32, tag = "3")]
    pub(super) port: i32,
}

/// One endpoint of a slice.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Endpoint {
    /// The proxy uses the first (B6); of JSON no other is kept.
    #[serde(deserialize_with = "first")]
    #[prost(string, repeated, tag = "1")]
    pub(super) addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "2")]
    pub(super) conditions: EndpointConditions,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "6")]
    pub(super) node_name: String,
    #[prost(message, optional, boxed, tag = "8")]
    pub(super) hints: Option<Box<Hints>>,
}

/// Conditions as the object has them; the conversion adds the defaults (B7).
#[derive(Clone, Copy, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    pub(super) ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    pub(super) serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    pub(super) terminating: Option<bool>,
}

/// Topology hints (B9).
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Hints {
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "1")]
    pub(super) for_zones: Vec<Hint>,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "2")]
    pub(super) for_nodes: Vec<Hint>,
}

/// A zone or node of a hint.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct Hint {
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

/// A Node.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct Node {
    /// Empty for the items of a list, where the list's own kind counts, and in protobuf, where the envelope has it: no object of
    /// Kubernetes has a field of this number.
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1000")]
    pub(super) kind: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "1")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "2")]
    pub(super) spec: NodeSpec,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "3")]
    pub(super) status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct NodeSpec {
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "5")]
    pub(super) taints: Vec<Taint>,
    /// Ranges of the pods on the node.
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    #[prost(string, repeated, tag = "7")]
    pub(super) pod_cidrs: Vec<String>,
}

/// One taint of a Node.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct Taint {
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1")]
    pub(super) key: String,
}

/// `status` of a Node.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    #[prost(message, repeated, tag = "5")]
    pub(super) addresses: Vec<NodeAddress>,
}

/// One address of a Node.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct NodeAddress {
    /// InternalIP, ExternalIP, Hostname and others.
    #[serde(rename = "type", deserialize_with = "nullable")]
    #[prost(string, tag = "1")]
    pub(super) type_: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "2")]
    pub(super) address: String,
}

/// A ServiceCIDR.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct ServiceCidr {
    /// Empty for the items of a list, where the list's own kind counts, and in protobuf, where the envelope has it: no object of
    /// Kubernetes has a field of this number.
    #[serde(deserialize_with = "nullable")]
    #[prost(string, tag = "1000")]
    pub(super) kind: String,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "1")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    #[prost(message, required, tag = "2")]
    pub(super) spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Clone, Deserialize, prost::Message)]
#[serde(default)]
pub(super) struct ServiceCidrSpec {
    #[serde(deserialize_with = "nullable")]
    #[prost(string, repeated, tag = "1")]
    pub(super) cidrs: Vec<String>,
}

/// The first text of a list; null is an empty list.
fn first<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct First;

    impl<'de> Visitor<'de> for First {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let first: Option<String> = list.next_element()?;
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(first.into_iter().collect())
        }
    }

    deserializer.deserialize_any(First)
}

/// Why an object does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DecodeError {
    /// Path of the field, such as `spec.ports[0].port`; `.` for the object itself.
    pub(super) field: String,
    /// What is wrong with it.
    pub(super) reason: String,
}

/// Decodes an object.
///
/// # Errors
/// The first field that does not fit the type.
pub(super) fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, DecodeError> {
    // Tracking the field costs more than the decoding, so only an object that fails is decoded again with it.
    T::deserialize(object).map_err(|error| {
        let mut track = serde_path_to_error::Track::new();
        let _ = T::deserialize(serde_path_to_error::Deserializer::new(object, &mut track));
        DecodeError { field: track.path().to_string(), reason: error.to_string() }
    })
}

/// A value whose null means the same as its absence.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl<'de> Deserialize<'de> for AnyTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

/// Text that is borrowed where the format allows it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Time {
    /// From RFC 3339.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time = Text::deserialize(deserializer)?.0.parse().map_err(D::Error::custom)?;
        Ok(Self { seconds: Some(jiff::Timestamp::as_second(time)) })
    }
}

/// The labels or annotations that are read; null is the same as none.
fn used_pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pair>, D::Error> {
    struct Used;

    impl<'de> Visitor<'de> for Used {
        type Value = Vec<Pair>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
                match USED.into_iter().find(|used| **used == *key) {
                    Some(key) => pairs.extend(
                        map.next_value::<Option<String>>()?
                            .map(|value| Pair { key: Bytes::from_static(key.as_bytes()), value: value.into() }),
                    ),
                    None => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(pairs)
        }
    }

    deserializer.deserialize_any(Used)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A value with every field of the type that the proxy reads, each null.
    fn nulls(fields: &[&str]) -> Value {
        fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into()
    }

    #[test]
    fn null_is_as_good_as_absent() {
        let metadata = ["name", "namespace", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels"];
        let service: Service = decode(&json!({"metadata": nulls(&metadata), "spec": null, "status": null})).unwrap();
        assert!(service.metadata.deletion_timestamp.is_none() && service.metadata.namespace.is_empty());
        let spec =
            ["type", "clusterIP", "clusterIPs", "ports", "externalIPs", "sessionAffinityConfig", "healthCheckNodePort"];
        let service: Service = decode(&json!({"spec": nulls(&spec)})).unwrap();
        assert!(service.spec.ports.is_empty() && service.spec.cluster_ip.is_empty());
        let endpoint = nulls(&["addresses", "conditions", "nodeName", "hints"]);
        let slice: EndpointSlice =
            decode(&json!({"endpoints": [endpoint], "ports": null, "addressType": null})).unwrap();
        assert!(slice.endpoints[0].addresses.is_empty() && slice.endpoints[0].hints.is_none());
        let node: Node =
            decode(&json!({"spec": nulls(&["podCIDRs", "taints"]), "status": {"addresses": null}})).unwrap();
        assert!(node.spec.taints.is_empty());
        assert!(decode::<ServiceCidr>(&json!({"spec": {"cidrs": null}})).is_ok());
    }

    #[test]
    fn only_the_first_address_is_kept() {
        // Only the first address of an endpoint is used (B6).
        let endpoints = json!([{"addresses": ["10.0.0.1", "10.0.0.2"]}, {"addresses": []}]);
        let slice: EndpointSlice = decode(&json!({"endpoints": endpoints})).unwrap();
        let kept: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.addresses.as_slice()).collect();
        assert_eq!(kept, [&["10.0.0.1"][..], &[]]);
    }

    #[test]
    fn an_error_names_its_field() {
        let wrong = json!({"spec": {"ports": [{"port": 80}, {"port": "x"}]}});
        let error = decode::<Service>(&wrong).unwrap_err();
        assert_eq!(error.field, "spec.ports[1].port");
        assert_eq!(error.reason, "invalid type: string \"x\", expected i32");
        let error = decode::<Service>(&json!({"metadata": {"creationTimestamp": "yesterday"}})).unwrap_err();
        assert_eq!(error.field, "metadata.creationTimestamp");
        let error = decode::<EndpointSlice>(&json!({"endpoints": [{"addresses": "10.0.0.1"}]})).unwrap_err();
        assert_eq!((&*error.field, error.reason.contains("a list of strings")), ("endpoints[0].addresses", true));
    }

    #[test]
    fn times_are_cut_to_seconds_in_any_format() {
        // The age of a Service decides between two that claim the same front.
        let text = r#"{"metadata": {"creationTimestamp": "2026-01-01T00:00:01.5Z", "deletionTimestamp": "x"}}"#;
        let service: Service = serde_json::from_str(text).unwrap();
        assert_eq!(service.metadata.creation_timestamp.and_then(|time| time.seconds), Some(1_767_225_601));
        assert!(service.metadata.deletion_timestamp.is_some());
    }
}

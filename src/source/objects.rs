//! Kubernetes objects, reduced to the fields that the proxy reads.
//!
//! Takes the API's JSON (any serde format will do), gives plain values for [`super::convert`]. Words such as policies stay text: the
//! conversion reports those that it does not know.
//!
//! Invariants: an unknown field costs no allocation; what may be absent in the API may be absent or null here; whatever
//! decodes as the full k8s-openapi type decodes here too.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;

/// What is kept of `metadata`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: Box<str>,
    /// `None` for kinds without namespaces.
    pub(super) namespace: Option<Box<str>>,
    /// Where to resume a watch after this object.
    #[serde(deserialize_with = "nullable")]
    pub(super) resource_version: Box<str>,
    /// Seconds since 1970.
    #[serde(deserialize_with = "seconds")]
    pub(super) creation_timestamp: Option<i64>,
    /// Whether the object waits for its finalizers to be deleted.
    #[serde(rename = "deletionTimestamp", deserialize_with = "presence")]
    pub(super) is_being_deleted: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) labels: Labels,
    #[serde(deserialize_with = "nullable")]
    pub(super) annotations: Annotations,
}

impl Metadata {
    /// `namespace/name`, or the name alone where there is no namespace.
    pub(super) fn full_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.to_string(),
        }
    }
}

/// The annotations that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Annotations {
    /// When the change happened that the endpoints controller wrote into the slice.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub(super) trigger_time: Option<Box<str>>,
    /// How endpoints of the Service are chosen.
    #[serde(rename = "kube-proxy-nft/scheduler")]
    pub(super) scheduler: Option<Box<str>>,
}

/// The labels that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Labels {
    /// On Services that another proxy handles (A1).
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(super) proxy_name: Option<Box<str>>,
    /// On slices of headless Services, which are not for proxies (B1).
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(super) headless: Option<Box<str>>,
    /// The Service of a slice (B2).
    #[serde(rename = "kubernetes.io/service-name")]
    pub(super) service_name: Option<Box<str>>,
    /// The zone of a Node (C2, C9).
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(super) zone: Option<Box<str>>,
}

/// A Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Empty for the items of a list, where the list's own kind counts.
    #[serde(deserialize_with = "nullable")]
    pub(super) kind: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(super) spec: ServiceSpec,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceSpec {
    #[serde(rename = "type")]
    pub(super) type_: Option<Box<str>>,
    #[serde(rename = "clusterIP")]
    pub(super) cluster_ip: Option<Box<str>>,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub(super) cluster_ips: Box<[Box<str>]>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ip_families: Box<[Box<str>]>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ports: Box<[ServicePort]>,
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub(super) external_ips: Box<[Box<str>]>,
    #[serde(deserialize_with = "nullable")]
    pub(super) load_balancer_source_ranges: Box<[Box<str>]>,
    pub(super) external_traffic_policy: Option<Box<str>>,
    pub(super) internal_traffic_policy: Option<Box<str>>,
    pub(super) session_affinity: Option<Box<str>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) session_affinity_config: SessionAffinityConfig,
    #[serde(deserialize_with = "nullable")]
    pub(super) health_check_node_port: i32,
}

/// One port of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServicePort {
    pub(super) name: Option<Box<str>>,
    pub(super) protocol: Option<Box<str>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) port: i32,
    /// 0 for none.
    #[serde(deserialize_with = "nullable")]
    pub(super) node_port: i32,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SessionAffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "nullable")]
    pub(super) client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientIpConfig {
    pub(super) timeout_seconds: Option<i32>,
}

/// `status` of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceStatus {
    #[serde(deserialize_with = "nullable")]
    pub(super) load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LoadBalancerStatus {
    #[serde(deserialize_with = "nullable")]
    pub(super) ingress: Box<[Ingress]>,
}

/// One ingress point of the load balancer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Ingress {
    pub(super) ip: Option<Box<str>>,
    pub(super) ip_mode: Option<Box<str>>,
}

/// An EndpointSlice.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Empty for the items of a list, where the list's own kind counts.
    #[serde(deserialize_with = "nullable")]
    pub(super) kind: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata,
    /// IPv4, IPv6 or FQDN.
    #[serde(deserialize_with = "nullable")]
    pub(super) address_type: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ports: Box<[EndpointPort]>,
    #[serde(deserialize_with = "nullable")]
    pub(super) endpoints: Box<[Endpoint]>,
}

/// One port of a slice.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EndpointPort {
    pub(super) name: Option<Box<str>>,
    pub(super) protocol: Option<Box<str>>,
    /// 0 for all ports.
    #[serde(deserialize_with = "nullable")]
    pub(super) port: i32,
}

/// One endpoint of a slice.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Endpoint {
    /// The first of `addresses`; the proxy uses no other (B6).
    #[serde(rename = "addresses", deserialize_with = "first")]
    pub(super) address: Option<Box<str>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) conditions: EndpointConditions,
    pub(super) node_name: Option<Box<str>>,
    pub(super) hints: Option<Box<Hints>>,
}

/// Conditions as the object has them; the conversion adds the defaults (B7).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EndpointConditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

/// Topology hints (B9).
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Hints {
    #[serde(deserialize_with = "nullable")]
    pub(super) for_zones: Box<[Hint]>,
    #[serde(deserialize_with = "nullable")]
    pub(super) for_nodes: Box<[Hint]>,
}

/// A zone or node of a hint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Hint {
    #[serde(deserialize_with = "nullable")]
    pub(super) name: Box<str>,
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

/// A Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    /// Empty for the items of a list, where the list's own kind counts.
    #[serde(deserialize_with = "nullable")]
    pub(super) kind: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(super) spec: NodeSpec,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    /// Ranges of the pods on the node.
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    pub(super) pod_cidrs: Box<[Box<str>]>,
    #[serde(deserialize_with = "nullable")]
    pub(super) taints: Box<[Taint]>,
}

/// One taint of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Taint {
    #[serde(deserialize_with = "nullable")]
    pub(super) key: Box<str>,
}

/// `status` of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub(super) addresses: Box<[NodeAddress]>,
}

/// One address of a Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress {
    /// InternalIP, ExternalIP, Hostname and others.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub(super) type_: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub(super) address: Box<str>,
}

/// A ServiceCIDR.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidr {
    /// Empty for the items of a list, where the list's own kind counts.
    #[serde(deserialize_with = "nullable")]
    pub(super) kind: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(super) spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidrSpec {
    #[serde(deserialize_with = "nullable")]
    pub(super) cidrs: Box<[Box<str>]>,
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
        assert!(!service.metadata.is_being_deleted && service.metadata.namespace.is_none());
        let spec =
            ["type", "clusterIP", "clusterIPs", "ports", "externalIPs", "sessionAffinityConfig", "healthCheckNodePort"];
        let service: Service = decode(&json!({"spec": nulls(&spec)})).unwrap();
        assert!(service.spec.ports.is_empty() && service.spec.cluster_ip.is_none());
        let endpoint = nulls(&["addresses", "conditions", "nodeName", "hints"]);
        let slice: EndpointSlice =
            decode(&json!({"endpoints": [endpoint], "ports": null, "addressType": null})).unwrap();
        assert!(slice.endpoints[0].address.is_none() && slice.endpoints[0].hints.is_none());
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
        let kept: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.address.as_deref()).collect();
        assert_eq!(kept, [Some("10.0.0.1"), None]);
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
        assert_eq!(service.metadata.creation_timestamp, Some(1_767_225_601));
        assert!(service.metadata.is_being_deleted);
    }
}

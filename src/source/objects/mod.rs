//! Kubernetes objects, reduced to the fields that the proxy reads.
//!
//! Takes the API's JSON (any serde format will do) or its protobuf, gives plain values for [`super::convert`]. Words such as policies
//! stay text: the conversion reports those that it does not know. The numbers of the fields are those of `generated.proto` in
//! k8s.io/api and k8s.io/apimachinery.
//!
//! `kind` is empty for the items of a list, where the list's own kind counts, and in protobuf, where the envelope has it: its field has
//! the number 1000, which no object of Kubernetes has.
//!
//! Invariants: an unknown field costs no allocation; what may be absent in the API may be absent, null or empty here; whatever
//! decodes as the full k8s-openapi type decodes here too.

mod json;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use serde::Deserialize;

pub(super) use json::{DecodeError, decode, nullable};
use json::{first, used_pairs};

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
    /// Empty in a list and in protobuf.
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
    /// Empty in a list and in protobuf.
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
    /// Empty in a list and in protobuf.
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
    /// Empty in a list and in protobuf.
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

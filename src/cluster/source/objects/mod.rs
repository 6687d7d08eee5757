//! Types of Kubernetes objects with only the fields that the proxy reads.
//!
//! The objects are decoded from the API's JSON or protobuf, for [`super::convert`]. Enumerated values such as traffic policies stay
//! strings, because the conversion reports unknown values. The numbers in each `message!` are the numbers of the fields in protobuf, from
//! `generated.proto` of k8s.io/api and k8s.io/apimachinery.
//!
//! An object borrows its strings from its input and does not outlive it; only the result of the conversion is kept. In the lists of an API
//! server `kind` is empty for the items, because only the list has a kind; in protobuf it is empty, because the envelope has the kind.
//! `SlicePods` is an exception: it owns its strings.
//!
//! Invariants: strings and unknown fields are not copied, except JSON strings with escapes; a field that is optional in the API may be
//! absent, null or empty.

mod json;
mod pods;
mod protobuf;
#[cfg(test)]
mod tests;
mod text;

use rules::model::Zone;
use serde::{Deserialize, Deserializer};

pub(super) use json::{DecodeError, decode, nullable};
pub(super) use pods::SlicePods;
pub(super) use protobuf::{Malformed, Message, Value, message};
pub(super) use text::Text;
use text::{First, Pairs, all_pairs};

/// The fields of `metadata` that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    /// Empty for kinds without namespaces.
    pub(super) namespace: Text<'a>,
    /// The version from which a watch can be resumed after this object.
    pub(super) resource_version: Text<'a>,
    pub(super) creation_timestamp: Option<Time>,
    /// Present while the object is being deleted.
    pub(super) deletion_timestamp: Option<AnyTime>,
    pub(super) labels: Pairs<'a>,
    pub(super) annotations: Pairs<'a>,
}

message!(Metadata<'a> { 1 => name, 3 => namespace, 6 => resource_version, 8 => creation_timestamp, 9 => deletion_timestamp, 11 => labels, 12 => annotations });

/// Label of Services that another proxy handles (A1).
pub(super) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of the EndpointSlices of headless Services, which proxies ignore (B1).
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of an EndpointSlice with the name of its Service (B2).
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label with the zone of a Node (C2, C9).
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation of an EndpointSlice: the time of the change of a pod or Service that made the EndpointSlice controller write the slice.
pub(super) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Annotation of a Service with the scheduler, which chooses an endpoint for each connection.
pub(super) const SCHEDULER: &str = "kube-proxy-nft/scheduler";
/// Annotation of a Service that says which open connections are closed.
pub(super) const CLOSE_CONNECTIONS: &str = "kube-proxy-nft/close-connections";
/// Annotation of a Service that says which UDP flows are kept although their endpoint is not serving.
pub(super) const KEEP_UDP_FLOWS: &str = "kube-proxy-nft/keep-udp-flows";
/// Annotation of a Service with the weights of endpoints by where they run.
pub(super) const WEIGHTS: &str = "kube-proxy-nft/weights";
/// Annotation of an EndpointSlice with the weight of its endpoints.
pub(super) const WEIGHT: &str = "kube-proxy-nft/weight";
/// Annotation with which a Service asks for topology hints: the value is `Auto` or `auto`.
pub(super) const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// Annotation of the bookmark that ends the initial objects of a streaming list.
pub(super) const INITIAL_END: &str = "k8s.io/initial-events-end";
/// The labels and annotations that are kept of each object. Of a Node all are kept, because an operator may name any of them (L10).
const USED: [&str; 12] = [
    PROXY_NAME,
    HEADLESS,
    SERVICE_NAME,
    ZONE,
    TRIGGER_TIME,
    SCHEDULER,
    CLOSE_CONNECTIONS,
    KEEP_UDP_FLOWS,
    WEIGHTS,
    WEIGHT,
    TOPOLOGY_MODE,
    INITIAL_END,
];

impl Metadata<'_> {
    /// Returns `namespace/name`, or only the name if there is no namespace.
    pub(super) fn full_name(&self) -> String {
        if self.namespace.is_empty() { self.name.to_string() } else { format!("{}/{}", self.namespace, self.name) }
    }

    /// Returns the value of a label. The key must be one of `USED`, because other labels are kept only of a Node.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.labels.value(key)
    }

    /// Returns the value of an annotation. The key must be one of `USED`, because other annotations are kept only of a Node.
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.value(key)
    }
}

/// A time, cut to seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    /// Seconds since 1970; `None` if a protobuf message lacks them.
    pub(super) seconds: Option<i64>,
}

message!(Time { 1 => seconds });

/// A time whose value is ignored; the proxy reads only whether it is present.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnyTime {}

message!(AnyTime {});

/// The fields of a Service that the proxy reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service<'a> {
    /// `kind`; empty in protobuf, and for the items of a list of an API server.
    #[serde(borrow)]
    pub(super) kind: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) spec: ServiceSpec<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: ServiceStatus<'a>,
}

message!(Service<'a> { 1 => metadata, 2 => spec, 3 => status });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceSpec<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) ports: Vec<ServicePort<'a>>,
    #[serde(rename = "clusterIP")]
    pub(super) cluster_ip: Text<'a>,
    #[serde(rename = "type")]
    pub(super) type_: Text<'a>,
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub(super) external_ips: Vec<Text<'a>>,
    pub(super) session_affinity: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) load_balancer_source_ranges: Vec<Text<'a>>,
    pub(super) external_traffic_policy: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) health_check_node_port: i32,
    #[serde(deserialize_with = "nullable")]
    pub(super) session_affinity_config: SessionAffinityConfig,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub(super) cluster_ips: Vec<Text<'a>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ip_families: Vec<Text<'a>>,
    pub(super) internal_traffic_policy: Text<'a>,
    pub(super) ip_family_policy: Text<'a>,
    pub(super) allocate_load_balancer_node_ports: Option<bool>,
    pub(super) traffic_distribution: Text<'a>,
}

message!(ServiceSpec<'a> { 1 => ports, 3 => cluster_ip, 4 => type_, 5 => external_ips, 7 => session_affinity, 9 => load_balancer_source_ranges, 11 => external_traffic_policy, 12 => health_check_node_port, 14 => session_affinity_config, 17 => ip_family_policy, 18 => cluster_ips, 19 => ip_families, 20 => allocate_load_balancer_node_ports, 22 => internal_traffic_policy, 23 => traffic_distribution });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServicePort<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    pub(super) protocol: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) port: i32,
    /// The node port; 0 if the port has none.
    #[serde(deserialize_with = "nullable")]
    pub(super) node_port: i32,
}

message!(ServicePort<'a> { 1 => name, 2 => protocol, 3 => port, 5 => node_port });

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SessionAffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "nullable")]
    pub(super) client_ip: ClientIpConfig,
}

message!(SessionAffinityConfig { 1 => client_ip });

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientIpConfig {
    pub(super) timeout_seconds: Option<i32>,
}

message!(ClientIpConfig { 1 => timeout_seconds });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceStatus<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) load_balancer: LoadBalancerStatus<'a>,
}

message!(ServiceStatus<'a> { 1 => load_balancer });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LoadBalancerStatus<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) ingress: Vec<Ingress<'a>>,
}

message!(LoadBalancerStatus<'a> { 1 => ingress });

/// One ingress point of the load balancer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Ingress<'a> {
    #[serde(borrow)]
    pub(super) ip: Text<'a>,
    pub(super) ip_mode: Text<'a>,
}

message!(Ingress<'a> { 1 => ip, 3 => ip_mode });

/// The fields of an EndpointSlice that the proxy reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice<'a> {
    /// `kind`; empty in protobuf, and for the items of a list of an API server.
    #[serde(borrow)]
    pub(super) kind: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) endpoints: Vec<Endpoint<'a>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ports: Vec<EndpointPort<'a>>,
    /// IPv4, IPv6 or FQDN.
    pub(super) address_type: Text<'a>,
}

impl<'a> EndpointSlice<'a> {
    /// Decodes a slice from the protobuf message inside an envelope (`runtime.Unknown`).
    ///
    /// # Errors
    /// Returns the field that is wrong, and why.
    pub fn from_protobuf(bytes: &'a [u8]) -> Result<Self, String> {
        Self::read(bytes).map_err(|error| format!("{}: {}", error.field, error.reason))
    }
}

message!(EndpointSlice<'a> { 1 => metadata, 2 => endpoints, 3 => ports, 4 => address_type });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EndpointPort<'a> {
    /// The port's name, which is empty for an unnamed port. A port without this field is ignored (B5).
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    pub(super) protocol: Text<'a>,
    /// The port's number; 0 if it is absent. In the API an absent number restricts no port; the proxy ignores such a port (B5).
    #[serde(deserialize_with = "nullable")]
    pub(super) port: i32,
}

message!(EndpointPort<'a> { 1 => name, 2 => protocol, 3 => port });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Endpoint<'a> {
    /// The first address, which is the only one that the proxy uses (B6).
    #[serde(borrow)]
    pub(super) addresses: First<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) conditions: EndpointConditions,
    pub(super) node_name: Text<'a>,
    pub(super) zone: ZoneName,
    pub(super) hints: Option<Box<Hints<'a>>>,
}

message!(Endpoint<'a> { 1 => addresses, 2 => conditions, 6 => node_name, 7 => zone, 8 => hints });

/// The zone as a hash of its name; `None` without a zone. The name is not kept, because a large cluster has hundreds of thousands of
/// endpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ZoneName(pub(super) Option<Zone>);

impl<'de> Deserialize<'de> for ZoneName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(|name| Self(Zone::of(&name)))
    }
}

impl<'a> Message<'a> for ZoneName {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        let mut name = Text::default();
        name.merge(value)?;
        self.0 = Zone::of(&name);
        Ok(())
    }
}

/// The conditions of an endpoint; the conversion adds the defaults for absent conditions (B7).
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EndpointConditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

message!(EndpointConditions { 1 => ready, 2 => serving, 3 => terminating });

/// Topology hints (B9).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Hints<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) for_zones: Vec<Hint<'a>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) for_nodes: Vec<Hint<'a>>,
}

message!(Hints<'a> { 1 => for_zones, 2 => for_nodes });

/// A zone or node that a hint names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Hint<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
}

message!(Hint<'a> { 1 => name });

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct Node<'a> {
    /// `kind`; empty in protobuf, and for the items of a list of an API server.
    #[serde(borrow)]
    pub(super) kind: Text<'a>,
    /// With all labels and annotations.
    #[serde(deserialize_with = "whole_metadata")]
    pub(super) metadata: Metadata<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) spec: NodeSpec<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: NodeStatus<'a>,
}

message!(Node<'a> { 1 => metadata, 2 => spec, 3 => status });

impl Default for Node<'_> {
    fn default() -> Self {
        let metadata =
            Metadata { labels: Pairs::keeping_all(), annotations: Pairs::keeping_all(), ..Metadata::default() };
        Self { kind: Text::default(), metadata, spec: NodeSpec::default(), status: NodeStatus::default() }
    }
}

/// Deserializes `metadata` of a Node, with all of its labels and annotations.
fn whole_metadata<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Metadata<'a>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Whole<'a> {
        #[serde(borrow)]
        name: Text<'a>,
        namespace: Text<'a>,
        resource_version: Text<'a>,
        deletion_timestamp: Option<AnyTime>,
        #[serde(deserialize_with = "all_pairs")]
        labels: Pairs<'a>,
        #[serde(deserialize_with = "all_pairs")]
        annotations: Pairs<'a>,
    }
    let Whole { name, namespace, resource_version, deletion_timestamp, labels, annotations } = nullable(deserializer)?;
    Ok(Metadata {
        name,
        namespace,
        resource_version,
        creation_timestamp: None,
        deletion_timestamp,
        labels,
        annotations,
    })
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) taints: Vec<Taint<'a>>,
    /// Address ranges of the pods on the node.
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    pub(super) pod_cidrs: Vec<Text<'a>>,
}

message!(NodeSpec<'a> { 5 => taints, 7 => pod_cidrs });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Taint<'a> {
    #[serde(borrow)]
    pub(super) key: Text<'a>,
    pub(super) value: Text<'a>,
}

message!(Taint<'a> { 1 => key, 2 => value });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) addresses: Vec<NodeAddress<'a>>,
}

message!(NodeStatus<'a> { 5 => addresses });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress<'a> {
    /// InternalIP, ExternalIP, Hostname and others.
    #[serde(borrow, rename = "type")]
    pub(super) type_: Text<'a>,
    pub(super) address: Text<'a>,
}

message!(NodeAddress<'a> { 1 => type_, 2 => address });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidr<'a> {
    /// `kind`; empty in protobuf, and for the items of a list of an API server.
    #[serde(borrow)]
    pub(super) kind: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) metadata: Metadata<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) spec: ServiceCidrSpec<'a>,
}

message!(ServiceCidr<'a> { 1 => metadata, 2 => spec });

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidrSpec<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) cidrs: Vec<Text<'a>>,
}

message!(ServiceCidrSpec<'a> { 1 => cidrs });

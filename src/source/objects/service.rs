//! v1 Service.

use serde::Deserialize;

use super::{Metadata, nullable};

/// A Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// What the object says that it is; empty in a list, whose kind says it for all.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) kind: Box<str>,
    /// Name, version, age.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) metadata: Metadata,
    /// What is asked for.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) spec: ServiceSpec,
    /// What is.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) status: ServiceStatus,
}

/// `spec` of a Service. Words stay text: the conversion tells of those that it does not know.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub(in crate::source) type_: Option<Box<str>>,
    #[serde(rename = "clusterIP")]
    pub(in crate::source) cluster_ip: Option<Box<str>>,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub(in crate::source) cluster_ips: Box<[Box<str>]>,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) ip_families: Box<[Box<str>]>,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) ports: Box<[ServicePort]>,
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub(in crate::source) external_ips: Box<[Box<str>]>,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) load_balancer_source_ranges: Box<[Box<str>]>,
    pub(in crate::source) external_traffic_policy: Option<Box<str>>,
    pub(in crate::source) internal_traffic_policy: Option<Box<str>>,
    pub(in crate::source) session_affinity: Option<Box<str>>,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) session_affinity_config: SessionAffinityConfig,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) health_check_node_port: i32,
}

/// One port of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::source) struct ServicePort {
    pub(in crate::source) name: Option<Box<str>>,
    pub(in crate::source) protocol: Option<Box<str>>,
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) port: i32,
    /// 0 for none.
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) node_port: i32,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct SessionAffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "nullable")]
    pub(in crate::source) client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::source) struct ClientIpConfig {
    pub(in crate::source) timeout_seconds: Option<i32>,
}

/// `status` of a Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::source) struct ServiceStatus {
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::source) struct LoadBalancerStatus {
    #[serde(deserialize_with = "nullable")]
    pub(in crate::source) ingress: Box<[Ingress]>,
}

/// One way in through the load balancer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::source) struct Ingress {
    pub(in crate::source) ip: Option<Box<str>>,
    pub(in crate::source) ip_mode: Option<Box<str>>,
}

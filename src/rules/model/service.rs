//! Services, with the fields that the proxy uses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

use super::names::{Family, ObjectName, Protocol};

/// A Service that this proxy handles.
///
/// Services that are headless, of type `ExternalName` or assigned to another proxy are treated as deleted and do not exist here
/// (A1 to A3).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp` in seconds since 1970; `i64::MAX` when absent. If two Services claim a frontend as the same kind,
    /// the older Service wins.
    pub created: i64,
    /// The cluster IP of each family (A4). The Service does not exist for a family without one.
    pub cluster_ips: ClusterIps,
    /// `spec.externalIPs`, parsed (A7).
    pub external_ips: Vec<IpAddr>,
    /// Whether the Service has external IPs that are ignored because feature gate AllowServiceExternalIPs is off.
    pub ignores_external_ips: bool,
    /// Whether the Service asks the control plane for topology hints (`spec.trafficDistribution`, or the annotation
    /// `service.kubernetes.io/topology-mode`). Hints on the endpoints are used whether it does or not (C2), so this only explains why there
    /// are none.
    pub asks_for_hints: bool,
    /// Load balancer IPs with `ipMode` VIP (A8).
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, parsed (A9).
    pub source_ranges: Vec<IpNet>,
    /// The external traffic policy that applies: `Cluster` unless the object asks for `Local` and the Service can be reached from outside
    /// the cluster (A12).
    pub external_policy: TrafficPolicy,
    /// Internal traffic policy; `Cluster` when unset (A12).
    pub internal_policy: TrafficPolicy,
    /// Session affinity time-out in seconds, when `sessionAffinity` is `ClientIP` (A11).
    pub affinity_seconds: Option<u32>,
    /// The scheduler that an annotation of the Service asks for, if any.
    pub scheduler: Option<Scheduler>,
    /// Which open connections an annotation of the Service asks to close, if any (J13).
    pub close_connections: Option<CloseConnections>,
    /// Whether an annotation of the Service asks to keep UDP flows to endpoints that do not serve, as long as they are in a slice (J3).
    pub keeps_unready_udp_flows: bool,
    /// The weights that an annotation of the Service gives to endpoints by where they run (E15).
    pub weights: Weights,
    /// `spec.healthCheckNodePort`; `None` unless the type is LoadBalancer and `external_policy` is `Local` (A13).
    pub health_check_node_port: Option<u16>,
    /// The ports, in the order of the Service object.
    pub ports: Vec<ServicePort>,
}

/// The cluster IP of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterIps {
    /// The IPv4 cluster IP; `None` if the Service has none.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 cluster IP; `None` if the Service has none.
    pub v6: Option<Ipv6Addr>,
}

impl ClusterIps {
    /// The cluster IP of a family; `None` if the Service has none.
    #[must_use]
    pub fn get(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        }
    }
}

/// Whether traffic may leave the node for its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TrafficPolicy {
    /// Any endpoint of the cluster.
    #[default]
    Cluster,
    /// Endpoints on this node only.
    Local,
}

/// How one of several endpoints is chosen for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheduler {
    /// At random, each endpoint with the same probability, or with weights with a probability in proportion to its weight.
    #[default]
    Random,
    /// By a hash of the client's address (if so configured, also of its port): a client gets the same endpoint as long as the list of
    /// endpoints does not change.
    SourceHash,
    /// By a Maglev table and hashes of the client's address (if so configured, also of its port): few clients get another endpoint when
    /// endpoints are added or removed.
    Maglev,
}

/// Which open TCP connections and SCTP associations are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseConnections {
    /// Connections to an endpoint whose address is in no slice of the Service.
    EndpointGone,
    /// The connections of `EndpointGone`, and connections to an address or port that the Service no longer has or that was deleted with the
    /// Service.
    EndpointOrServiceGone,
}

/// The weights of endpoints by where they run, from 1 to [`MOST_WEIGHT`]. An endpoint that runs elsewhere has weight 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Weights {
    /// The weight of an endpoint on this node; if it is not set, such an endpoint counts as one in this node's zone.
    pub local: Option<u8>,
    /// The weight of an endpoint in this node's zone; 1 if it is not set.
    pub zone: Option<u8>,
}

/// The largest weight that an annotation can give.
pub const MOST_WEIGHT: u8 = 100;

impl fmt::Display for Weights {
    /// Formats the weights as the annotation has them; without weights, as `None`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.local, self.zone) {
            (Some(local), Some(zone)) => write!(f, "local={local},zone={zone}"),
            (Some(local), None) => write!(f, "local={local}"),
            (None, Some(zone)) => write!(f, "zone={zone}"),
            (None, None) => f.write_str("None"),
        }
    }
}

/// One port of a Service. (namespace, name, port name, protocol) identifies it (A5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// The port's name; empty when it has none.
    pub name: Arc<str>,
    /// Transport protocol; TCP if the Service names none.
    pub protocol: Protocol,
    /// Port on the Service's addresses.
    pub port: u16,
    /// Port on the node's addresses.
    pub node_port: Option<u16>,
}

//! Objects of the proxy's own model, for tests that drive the engine without manifests.
//!
//! Service number `n` has every kind of frontend in both families and, by default, three endpoints a family on another node. No two
//! Services share an address or a node port.

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use component::config::{self, Config, Invocation};
use rules::model::{
    ClusterIps, Conditions, Endpoint, EndpointSlice, Event, Family, Node, ObjectName, Protocol, Service, ServicePort,
    SlicePort, TrafficPolicy, TriggerTime, Weights,
};
use serde_json::Value;
use tempfile::TempDir;

use super::plan::{NODE, OTHER_NODE};
use super::proxy;

/// Returns the configuration of [`proxy::config`].
pub(crate) fn config() -> Config {
    config_from(&proxy::config())
}

/// Reads a KubeProxyConfiguration from a file, as the binary does.
pub(crate) fn config_from(configuration: &Value) -> Config {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let file = directory.path().join("config.yaml");
    fs::write(&file, configuration.to_string()).expect("the configuration can be written");
    let path = |path: &std::path::Path| path.as_os_str().to_owned();
    let arguments: [OsString; 5] =
        ["kube-proxy".into(), "--config".into(), path(&file), "--manifests".into(), path(directory.path())];
    match config::load(arguments) {
        Ok(Invocation::Run(config)) => config,
        other => panic!("{other:?}"),
    }
}

/// The node under test, in a zone or in none.
pub(crate) fn node(zone: Option<&str>) -> Event {
    let ips = vec!["192.0.2.2".parse().expect("an address"), "2001:db8::2".parse().expect("an address")];
    let node = Node {
        name: NODE.into(),
        zone: zone.map(Into::into),
        ips,
        pod_cidrs: Vec::new(),
        eligible: true,
        drained: false,
    };
    Event::NodeApplied(node)
}

/// The ServiceCIDR `name` with these ranges.
pub(crate) fn service_cidr(name: &str, ranges: &[&str]) -> Event {
    let ranges = ranges.iter().map(|range| range.parse().expect("a range")).collect();
    Event::ServiceCidrApplied(name.into(), ranges)
}

/// Address number `n` of a family in the block number `block`.
pub(crate) fn address(family: Family, block: u8, n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    match family {
        Family::V4 => Ipv4Addr::new(10, block, high, low).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 10, u16::from(block), 0, 0, 0, 0, n).into(),
    }
}

/// The name of service `n`.
pub(crate) fn name(n: u16) -> ObjectName {
    ObjectName::new("shop", format!("web-{n}"))
}

/// Service `n`: one TCP port with cluster IPs, external IPs, load balancer IPs and a node port.
pub(crate) fn service(n: u16) -> Service {
    let v4 = Ipv4Addr::from(0x0a60_0000 + u32::from(n));
    let IpAddr::V6(v6) = address(Family::V6, 96, n) else { unreachable!("an IPv6 address was asked for") };
    let both = |block| Family::BOTH.map(|family| address(family, block, n)).to_vec();
    Service {
        name: name(n),
        created: i64::from(n),
        cluster_ips: ClusterIps { v4: Some(v4), v6: Some(v6) },
        ignores_external_ips: false,
        asks_for_hints: false,
        external_ips: both(97),
        load_balancer_ips: both(98),
        source_ranges: Vec::new(),
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        scheduler: None,
        close_connections: None,
        keeps_unready_udp_flows: false,
        weights: Weights::default(),
        health_check_node_port: None,
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30_000 + n),
        }],
    }
}

/// A ready endpoint on another node.
pub(crate) fn endpoint(address: IpAddr) -> Endpoint {
    Endpoint { address, conditions: Conditions::READY, node: Some(OTHER_NODE.into()), zone: None, hints: None }
}

/// The slice of service `n` in a family.
pub(crate) fn slice(n: u16, family: Family, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let service = name(n);
    let name = ObjectName::new("shop", format!("{}-{family}", service.name));
    let ports = vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }];
    EndpointSlice { name, service, family, ports, endpoints, weight: 1, trigger: TriggerTime::default() }
}

/// The first `count` endpoints of service `n`, at most 16.
pub(crate) fn endpoints(n: u16, family: Family, count: u16) -> Vec<Endpoint> {
    (0..count).map(|i| endpoint(address(family, 244, n * 16 + i))).collect()
}

/// Service `n` and its slices with `count` endpoints each.
pub(crate) fn served(n: u16, count: u16) -> Vec<Event> {
    let slices = Family::BOTH.map(|family| Event::SliceApplied(slice(n, family, endpoints(n, family, count))));
    [vec![Event::ServiceApplied(service(n))], slices.to_vec()].concat()
}

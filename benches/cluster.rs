//! The clusters on which the benchmark measures: IPv4 only, Services with one TCP port, endpoints on other nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use component::config::Config;
use rules::model::{
    ClusterIps, Endpoint, EndpointSlice, Event, Family, ObjectName, Protocol, Service, ServicePort, SlicePort,
    TrafficPolicy, TriggerTime, Weights,
};
use serde_json::{Value, json};

use crate::support::cluster;
use crate::support::plan::OTHER_NODE;
use crate::support::proxy;

/// Returns the test configuration with this value of `nftables.counters`.
pub(crate) fn counting(counters: &str) -> Config {
    let mut config = proxy::config();
    config["nftables"]["counters"] = json!(counters);
    cluster::config_from(&config)
}

/// Returns the test configuration with this value of `nftables.scheduler`, hashing address and port, because the benchmark has a single
/// client.
pub(crate) fn scheduled(scheduler: &str) -> Config {
    let mut config = proxy::config();
    config["nftables"]["scheduler"] = json!(scheduler);
    config["nftables"]["schedulerHash"] = json!("source-and-port");
    cluster::config_from(&config)
}

/// The size of a cluster, and the features that its Services have in addition to a cluster IP.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) node_port: bool,
    pub(crate) restricted: bool,
    pub(crate) affinity: bool,
}

impl Shape {
    /// Returns a cluster of Services that only have a cluster IP.
    pub(crate) fn plain(services: u32, endpoints: u32) -> Self {
        Self { services, endpoints, ..Self::default() }
    }

    /// Returns the events that add every object of the cluster.
    pub(crate) fn events(self) -> Vec<Event> {
        let mut events = vec![cluster::node(None), cluster::service_cidr("kubernetes", &["10.96.0.0/12"])];
        for n in 0..self.services {
            events.push(Event::ServiceApplied(self.service(n)));
            events.push(Event::SliceApplied(slice(n, (0..self.endpoints).map(|i| address(n, i)))));
        }
        events.push(Event::InitialListDone);
        events
    }

    fn service(self, n: u32) -> Service {
        let balancer = self.restricted.then(|| IpAddr::from(Ipv4Addr::from(0xcb00_0000 + n)));
        Service {
            ignores_external_ips: false,
            asks_for_hints: false,
            name: name(n),
            created: i64::from(n),
            cluster_ips: ClusterIps { v4: Some(cluster_ip(n)), v6: None },
            external_ips: Vec::new(),
            load_balancer_ips: balancer.into_iter().collect(),
            source_ranges: balancer.map(|_| "192.0.2.0/24".parse().expect("a range")).into_iter().collect(),
            external_policy: TrafficPolicy::Cluster,
            internal_policy: TrafficPolicy::Cluster,
            affinity_seconds: self.affinity.then_some(10_800),
            scheduler: None,
            close_connections: None,
            keeps_unready_udp_flows: false,
            weights: Weights::default(),
            health_check_node_port: None,
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: self.node_port.then(|| 30_000 + u16::try_from(n).expect("few node ports")),
            }],
        }
    }
}

fn name(n: u32) -> ObjectName {
    ObjectName::new("bench", format!("web-{n}"))
}

/// Returns the address of endpoint `i` of Service `n`; a Service may have 64.
pub(crate) fn address(n: u32, i: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0b00_0000 + n * 64 + i)
}

/// Returns the cluster IP of Service `n`.
pub(crate) fn cluster_ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0001 + n)
}

/// Returns the slice of Service `n` with these endpoints.
pub(crate) fn slice(n: u32, addresses: impl Iterator<Item = Ipv4Addr>) -> EndpointSlice {
    let endpoints: Vec<Endpoint> = addresses.map(|address| cluster::endpoint(address.into())).collect();
    let ports = vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }];
    let name = ObjectName::new("bench", format!("web-{n}-x"));
    let service = self::name(n);
    EndpointSlice { name, service, family: Family::V4, ports, endpoints, weight: 1, trigger: TriggerTime::default() }
}

/// Returns a cluster of Services that only have a cluster IP, as manifests in the format of the API, for the binary.
pub(crate) fn manifests(services: u32, endpoints: u32) -> Value {
    manifests_of(0..services, endpoints)
}

/// Returns the manifests of the Services with these numbers: for each, the Service and its slice.
pub(crate) fn manifests_of(services: Range<u32>, endpoints: u32) -> Value {
    let mut items = Vec::new();
    for n in services {
        let ip = cluster_ip(n).to_string();
        let meta = |name: String| json!({ "name": name, "namespace": "bench" });
        items.push(json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta(format!("web-{n}")), "spec": {
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
            "ports": [{ "name": "http", "protocol": "TCP", "port": 80 }] } }));
        let list: Vec<Value> = (0..endpoints)
            .map(|i| {
                json!({ "addresses": [address(n, i).to_string()], "nodeName": OTHER_NODE,
                             "conditions": { "ready": true, "serving": true, "terminating": false } })
            })
            .collect();
        let mut slice_meta = meta(format!("web-{n}-x"));
        slice_meta["labels"] = json!({ "kubernetes.io/service-name": format!("web-{n}") });
        items.push(json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice_meta,
            "addressType": "IPv4", "endpoints": list,
            "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }] }));
    }
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

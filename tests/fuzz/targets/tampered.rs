//! Dumps of tables that another program may have written: the proxy brings them to what they should be, with commands that can be
//! written down and carried out, and then finds nothing more to do.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use kube_proxy::sync::Engine;
use nft::decode::{self, Decoded, Messages, RawElement};
use nft::{Element, Elements, Set, Table, TableDump, TableName};
use rules::model::{
    ClusterIps, Conditions, Endpoint, EndpointSlice, Event, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort, TrafficPolicy, TriggerTime, Weights,
};
use rules::ruleset::Layout;

use super::cluster::config;
use super::kernel::Recorder;

/// Restarts after which there must be nothing to do: chains are deleted one transaction after they were emptied.
const RESTARTS: usize = 3;

pub(super) fn run(bytes: &[u8]) {
    let recorder = Recorder::default();
    recorder.log.borrow_mut().put(dump(bytes));
    for _ in 0..RESTARTS {
        if restart(&recorder) == 0 {
            return;
        }
    }
    assert_eq!(restart(&recorder), 0, "the table is still not as it should be");
}

/// Starts a proxy on the table; gives the number of its transactions.
fn restart(recorder: &Recorder) -> usize {
    let before = recorder.log.borrow().sent.len();
    let mut engine = Engine::new(config(), Layout::Maps, &[Family::V4], recorder.clone());
    for event in events() {
        engine.apply(event);
    }
    engine.sync(false).expect("this kernel takes what can be taken");
    recorder.log.borrow().sent.len() - before
}

/// The table that the messages of a dump make up, as `Connection::read_table` puts it together.
fn dump(bytes: &[u8]) -> TableDump {
    let name = TableName::new(nft::Family::Ip, "kube-proxy");
    let mut dump = TableDump::empty(Table { name, comment: None });
    let mut raw: BTreeMap<Arc<str>, Vec<RawElement>> = BTreeMap::new();
    for message in Messages::new(bytes) {
        dump.objects.extend(decode::named_object(message).map(|(_, object)| object));
        match decode::message(message) {
            Ok(Decoded::Table { table, state, .. }) => {
                dump.table.comment = table.comment;
                dump.ownership = state.ownership;
                dump.dormant = state.dormant;
                dump.unknown_flags = state.unknown_flags;
            }
            Ok(Decoded::Chain { chain, .. }) => {
                dump.chains.insert(Arc::clone(&chain.name), (chain, Vec::new()));
            }
            Ok(Decoded::Rule { chain, rule, .. }) => {
                if let Some((_, rules)) = dump.chains.get_mut(&chain) {
                    rules.push(rule);
                }
            }
            Ok(Decoded::Set { set, .. }) => {
                dump.sets.insert(Arc::clone(&set.name), (set, Elements::default()));
            }
            Ok(Decoded::Elements { set, elements, .. }) => raw.entry(set).or_default().extend(elements),
            Ok(Decoded::Flowtable { .. } | Decoded::Generation(_) | Decoded::Other(_)) => {}
            Err(error) => dump.unreadable.push(error),
        }
    }
    for (name, (set, elements)) in &mut dump.sets {
        *elements = paired(set, raw.remove(name).unwrap_or_default()).into();
    }
    dump
}

/// The elements of a set. No kernel lists a key twice.
fn paired(set: &Set, raw: Vec<RawElement>) -> Vec<Element> {
    let mut elements = decode::pair(set, raw);
    elements.sort_by_key(|element| element.key);
    elements.dedup_by_key(|element| element.key);
    elements
}

/// A Service with affinity and two endpoints.
fn events() -> [Event; 3] {
    let name = ObjectName::new("shop", "web");
    let port = |port| ServicePort { name: "http".into(), protocol: Protocol::Tcp, port, node_port: Some(30_080) };
    let service = Service {
        ignores_external_ips: false,
        asks_for_hints: false,
        name: name.clone(),
        created: 0,
        cluster_ips: ClusterIps { v4: Some(Ipv4Addr::new(10, 96, 0, 1)), v6: None },
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity_seconds: Some(300),
        scheduler: None,
        close_connections: None,
        keeps_unready_udp_flows: false,
        weights: Weights::default(),
        health_check_node_port: None,
        ports: vec![port(80)],
    };
    let endpoint = |last| Endpoint {
        address: IpAddr::from([10, 244, 1, last]),
        conditions: Conditions::READY,
        node: Some("node".into()),
        zone: None,
        hints: None,
    };
    let slice = EndpointSlice {
        name: ObjectName::new("shop", "web-1"),
        service: name,
        family: Family::V4,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: vec![endpoint(1), endpoint(2)],
        weight: 1,
        trigger: TriggerTime::default(),
    };
    [Event::ServiceApplied(service), Event::SliceApplied(slice), Event::InitialListDone]
}

//! Tests of the conversion of Nodes and ServiceCIDRs.

use serde_json::{Value, json};

use super::*;
use rules::model::Node;

fn node(value: Value) -> (Node, Vec<String>) {
    let converted = converted::<objects::Node>(&value);
    match converted.event {
        Some(Event::NodeApplied(node)) => (node, texts(&converted.problems)),
        other => panic!("{other:?}"),
    }
}

fn named() -> Value {
    json!({"metadata": {"name": "node-1"}})
}

fn ips(addresses: &[(&str, &str)]) -> (Vec<String>, usize) {
    let list: Vec<_> = addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
    let (node, problems) = node(with(named(), "/status/addresses", json!(list)));
    (node.ips.iter().map(ToString::to_string).collect(), problems.len())
}

#[test]
fn raw_ips_are_internal_first_then_the_other_family() {
    // The first InternalIP comes first, and then the first address of the other family (M4).
    let found = ips(&[
        ("Hostname", "node-1"),
        ("ExternalIP", "203.0.113.1"),
        ("InternalIP", "fd00::1"),
        ("InternalIP", "fd00::2"),
        ("InternalIP", "10.0.0.1"),
    ]);
    assert_eq!(found, (vec!["fd00::1".into(), "10.0.0.1".into()], 0));
    let external = ips(&[("ExternalIP", "203.0.113.001"), ("InternalDNS", "x"), ("ExternalIP", "203.0.113.2")]);
    assert_eq!(external, (vec!["203.0.113.1".into()], 0));
    let mixed = ips(&[("ExternalIP", "fd00::9"), ("InternalIP", "10.0.0.1")]);
    assert_eq!(mixed, (vec!["10.0.0.1".into(), "fd00::9".into()], 0));
    assert_eq!(ips(&[("InternalIP", "nonsense")]), (vec![], 1));
}

#[test]
fn an_empty_zone_is_none() {
    // An empty zone counts as none (C9).
    let label = |zone: &str| with(named(), "/metadata/labels", json!({"topology.kubernetes.io/zone": zone}));
    assert_eq!(node(label("a")).0.zone.as_deref(), Some("a"));
    assert_eq!(node(label("")).0.zone, None);
    assert_eq!(node(named()).0.zone, None);
}

#[test]
fn a_node_on_its_way_out_is_not_eligible() {
    // A Node that is being deleted, or soon will be, is not eligible for traffic from load balancers (L5).
    assert!(node(named()).0.eligible);
    assert!(!node(with(named(), "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))).0.eligible);
    let taint = |key: &str| with(named(), "/spec/taints", json!([{"key": key, "effect": "NoSchedule"}]));
    assert!(!node(taint("ToBeDeletedByClusterAutoscaler")).0.eligible);
    // Other taints do not change whether a Node is eligible (L6).
    assert!(node(taint("node.kubernetes.io/not-ready")).0.eligible);
}

// A Node with the mark that the configuration names is drained; without a mark in the configuration none is (L10).
#[test]
fn a_node_with_the_mark_of_the_configuration_is_drained() {
    let marked =
        with(named(), "/spec/taints", json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]));
    let marked = with(marked, "/metadata/labels", json!({"drain": "yes", "other": null}));
    let marked = with(marked, "/metadata/annotations", json!({"example.com/drain": "say \"when\""}));
    let is_drained = |mark: &str| {
        let drain_on = Some(mark).filter(|mark| !mark.is_empty()).map(|mark| mark.parse().unwrap());
        let mut converter = Converter::new(ConvertOptions { drain_on, ..ConvertOptions::default() });
        let node = objects::Node::convert(&decode(&marked).unwrap(), &mut converter);
        matches!(node.event, Some(Event::NodeApplied(node)) if node.drained && node.eligible)
    };
    let marks = [
        ("taint:node.kubernetes.io/unschedulable", true),
        ("taint:drain", false),
        ("label:drain", true),
        ("label:drain=yes", true),
        ("label:drain=no", false),
        ("label:other", false),
        ("label:example.com/drain", false),
        ("annotation:example.com/drain=say \"when\"", true),
        ("annotation:drain", false),
        ("", false),
    ];
    for (mark, expected) in marks {
        assert_eq!(is_drained(mark), expected, "{mark}");
    }
}

#[test]
fn pod_cidrs_are_normalised() {
    // Pod CIDRs may have leading zeros and host bits, which are removed (I2, A10).
    let (node, problems) = node(with(named(), "/spec/podCIDRs", json!(["10.244.001.7/24", "bad", "fd00::/64"])));
    assert_eq!(node.pod_cidrs.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.244.1.0/24", "fd00::/64"]);
    assert_eq!(problems, ["Node node-1: spec.podCIDRs[1]: \"bad\" is not a CIDR; ignored"]);
}

#[test]
fn a_node_without_a_valid_name_gives_no_event() {
    let converted = converted::<objects::Node>(&json!({"metadata": {"name": "Node"}}));
    assert_eq!((converted.event, converted.problems.len()), (None, 1));
}

#[test]
fn service_cidrs_are_normalised() {
    // ServiceCIDRs may have leading zeros and host bits, which are removed (A10, D15).
    let value = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.1/012", "x", "fd00::/108"]}});
    let converted = converted::<objects::ServiceCidr>(&value);
    let expected = vec!["10.96.0.0/12".parse().unwrap(), "fd00::/108".parse().unwrap()];
    assert_eq!(converted.event, Some(Event::ServiceCidrApplied("kubernetes".into(), expected)));
    assert_eq!(texts(&converted.problems), ["ServiceCIDR kubernetes: spec.cidrs[1]: \"x\" is not a CIDR; ignored"]);
}

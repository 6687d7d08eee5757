//! Tests of the conversion of EndpointSlices (B1 to B9).

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use rules::model::{Conditions, Family, ObjectName, Protocol, Zone};

fn deleted(value: Value) -> Vec<String> {
    let converted = convert_slice(value);
    assert_eq!(converted.event, Some(Event::SliceDeleted(ObjectName::new("demo", "web-1"))));
    texts(&converted.problems)
}

#[test]
fn a_slice_belongs_to_the_service_of_its_label() {
    // The label `kubernetes.io/service-name` names the Service of a slice (B2).
    let (slice, problems) = slice(web_slice());
    assert_eq!(problems, [""; 0]);
    assert_eq!(slice.service, ObjectName::new("demo", "web"));
    assert_eq!(slice.family, Family::V4);
    let problem = "EndpointSlice demo/web-1: metadata.labels[kubernetes.io/service-name]: \"\" is not the name of a Service; slice ignored";
    assert_eq!(deleted(with(web_slice(), "/metadata/labels", json!({}))), [problem]);
    assert_eq!(deleted(with(web_slice(), "/metadata/labels", json!({"kubernetes.io/service-name": ""}))), [problem]);
}

#[test]
fn headless_slices_look_deleted() {
    // A slice with the label `service.kubernetes.io/headless` is not used (B1).
    let labels = json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""});
    assert_eq!(deleted(with(web_slice(), "/metadata/labels", labels)), [""; 0]);
}

#[test]
fn only_ip_slices_count() {
    // A slice of another address type is ignored, and so is an address of another family (B3).
    assert_eq!(
        deleted(with(web_slice(), "/addressType", json!("FQDN"))),
        ["EndpointSlice demo/web-1: addressType: \"FQDN\" is not IPv4 or IPv6; slice ignored"]
    );
    let (wrong, problems) = slice(with(web_slice(), "/addressType", json!("IPv6")));
    assert_eq!((wrong.family, wrong.endpoints.len()), (Family::V6, 0));
    assert_eq!(
        problems,
        ["EndpointSlice demo/web-1: endpoints[0].addresses[0]: \"10.244.1.2\" is not an IPv6 address; ignored"]
    );
}

#[test]
fn slice_ports_need_a_name_and_a_number() {
    // Ports without a name or number are left out (B5).
    let ports = json!([
        {"port": 1}, {"name": "nil"}, {"name": "zero", "port": 0}, {"name": "p", "port": 7, "protocol": "UDP"},
        {"name": "odd", "port": 8, "protocol": "GRE"}, {"name": "", "port": 9}
    ]);
    let (slice, problems) = slice(with(web_slice(), "/ports", ports));
    let found: Vec<_> = slice.ports.iter().map(|port| (&*port.name, port.protocol, port.port)).collect();
    assert_eq!(found, [("p", Protocol::Udp, 7), ("", Protocol::Tcp, 9)]);
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert_eq!(
        problems[0],
        "EndpointSlice demo/web-1: ports[0].name: not set (\"\" for an unnamed port); port ignored"
    );
    assert_eq!(problems[1], "EndpointSlice demo/web-1: ports[1].port: 0 is not a port (1 to 65535); port ignored");
}

#[test]
fn the_first_address_counts_normalised() {
    // Only the first address of an endpoint is used, and leading zeros are allowed (B6, A10).
    let endpoints = json!([
        {"addresses": ["010.244.001.002", "10.9.9.9"]}, {"addresses": []}, {"addresses": ["10.244.1.999"]},
        {"addresses": ["10.244.1.3"]}
    ]);
    let (slice, problems) = slice(with(web_slice(), "/endpoints", endpoints));
    let found: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
    assert_eq!(found, ["10.244.1.2", "10.244.1.3"]);
    assert_eq!(
        problems,
        [
            "EndpointSlice demo/web-1: endpoints[1].addresses: empty; endpoint ignored",
            "EndpointSlice demo/web-1: endpoints[2].addresses[0]: \"10.244.1.999\" is not an IP address; ignored"
        ]
    );
}

#[test]
fn ipv6_endpoints_take_any_spelling() {
    // IPv6 addresses are normalised (B6, A10).
    let value = with(web_slice(), "/addressType", json!("IPv6"));
    let (slice, _) = slice(with(value, "/endpoints", json!([{"addresses": ["2001:0DB8:0:0:0:0:0:0001"]}])));
    assert_eq!(slice.endpoints[0].address.to_string(), "2001:db8::1");
}

#[test]
fn absent_conditions_have_their_defaults() {
    // An absent `serving` is true, and is not derived from `ready` (B7).
    let conditions = [
        (Value::Null, Conditions::READY),
        (json!({}), Conditions::READY),
        (json!({"ready": false}), Conditions { ready: false, serving: true, terminating: false }),
        (
            json!({"ready": false, "serving": false, "terminating": true}),
            Conditions { ready: false, serving: false, terminating: true },
        ),
    ];
    for (given, expected) in conditions {
        let endpoints = json!([{"addresses": ["10.0.0.1"], "conditions": given}]);
        assert_eq!(slice(with(web_slice(), "/endpoints", endpoints)).0.endpoints[0].conditions, expected);
    }
}

#[test]
fn node_names_and_hints_are_shared() {
    // Node names, zone hints and node hints are kept (B8, B9).
    let one = json!({
        "addresses": ["10.0.0.1"], "nodeName": "node-1",
        "hints": {"forZones": [{"name": "a"}, {"name": "b"}], "forNodes": [{"name": "node-1"}]}
    });
    let none = json!({"addresses": ["10.0.0.2"], "nodeName": "", "hints": {"forZones": [], "forNodes": []}});
    let value = with(web_slice(), "/endpoints", json!([one, none]));
    let mut converter = Converter::new(ConvertOptions::default());
    let (Some(Event::SliceApplied(a)), Some(Event::SliceApplied(b))) = (
        converter.endpoint_slice(&decode(&value).unwrap()).event,
        converter.endpoint_slice(&decode(&value).unwrap()).event,
    ) else {
        panic!("not applied")
    };
    let hints = a.endpoints[0].hints.as_ref().unwrap();
    assert_eq!(hints.zones.iter().map(|zone| &**zone).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(hints.nodes.iter().map(|node| &**node).collect::<Vec<_>>(), ["node-1"]);
    assert_eq!((&a.endpoints[1].node, &a.endpoints[1].hints), (&None, &None));
    let (node_a, node_b) = (a.endpoints[0].node.as_ref().unwrap(), b.endpoints[0].node.as_ref().unwrap());
    assert!(Arc::ptr_eq(node_a, node_b) && Arc::ptr_eq(node_a, &hints.nodes[0]));
    assert!(Arc::ptr_eq(&a.name.namespace, &b.name.namespace) && Arc::ptr_eq(&a.name.namespace, &a.service.namespace));
}

#[test]
fn a_bad_name_gives_no_event() {
    // A slice without a valid namespace gives no event.
    let converted = convert_slice(with(web_slice(), "/metadata/namespace", Value::Null));
    assert_eq!((converted.event, converted.problems.len()), (None, 1));
}

#[test]
fn the_time_of_the_trigger_comes_along_and_makes_no_difference() {
    // The annotation holds the time from which the latency of network programming is counted (P7).
    let annotated = |text: &str| {
        let annotations = json!({"endpoints.kubernetes.io/last-change-trigger-time": text});
        let (slice, problems) = slice(with(web_slice(), "/metadata/annotations", annotations));
        assert_eq!(problems, [""; 0], "{text}");
        slice
    };
    assert_eq!(annotated("2026-01-01T00:00:00.5Z").trigger.0, Some(1_767_225_600_500_000_000));
    assert_eq!(annotated("2026-01-01T01:00:00+01:00").trigger.0, Some(1_767_225_600_000_000_000));
    for text in ["", "yesterday", "1767225600", "9999-12-31T23:59:59Z"] {
        assert_eq!(annotated(text).trigger.0, None, "{text}");
    }
    assert_eq!(slice(web_slice()).0.trigger.0, None);
    assert_eq!(annotated("2026-01-01T00:00:00Z"), annotated("2026-01-02T00:00:00Z"));
}

// The annotation `kube-proxy-nft/weight` of a slice is a weight from 1 to 100 for each of its endpoints (E16), which have a zone (E15).
#[test]
fn an_annotation_has_the_weight_and_each_endpoint_its_zone() {
    let annotated =
        |text: &str| slice(with(web_slice(), "/metadata/annotations", json!({"kube-proxy-nft/weight": text})));
    for (text, weight) in [("3", 3), ("100", 100), (" 1 ", 1)] {
        let (slice, problems) = annotated(text);
        assert_eq!((slice.weight, problems), (weight, vec![]), "{text}");
    }
    for text in ["", "0", "101", "-1", "2.5", "heavy"] {
        let problem =
            format!("metadata.annotations[kube-proxy-nft/weight]: {text:?} is not a weight (1 to 100); 1 is used");
        let (slice, problems) = annotated(text);
        assert_eq!((slice.weight, problems), (1, vec![format!("EndpointSlice demo/web-1: {problem}")]));
    }
    assert_eq!((slice(web_slice()).0.weight, slice(web_slice()).0.endpoints[0].zone), (1, None));
    let (zoned, _) = slice(with(web_slice(), "/endpoints", json!([{"addresses": ["10.244.1.2"], "zone": "a"}])));
    assert_eq!(zoned.endpoints[0].zone, Zone::of("a"));
}

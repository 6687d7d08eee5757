//! What is read of objects, and what is said of those that do not fit.

use serde_json::{Value, json};

use super::*;

/// A value with every field of the type that the proxy reads, each null.
fn nulls(fields: &[&str]) -> Value {
    fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn null_is_as_good_as_absent() {
    let metadata = ["name", "namespace", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels"];
    let service: Service = decode(&json!({"metadata": nulls(&metadata), "spec": null, "status": null})).unwrap();
    assert!(service.metadata.deletion_timestamp.is_none() && service.metadata.namespace.is_empty());
    let spec =
        ["type", "clusterIP", "clusterIPs", "ports", "externalIPs", "sessionAffinityConfig", "healthCheckNodePort"];
    let service: Service = decode(&json!({"spec": nulls(&spec)})).unwrap();
    assert!(service.spec.ports.is_empty() && service.spec.cluster_ip.is_empty());
    let endpoint = nulls(&["addresses", "conditions", "nodeName", "hints"]);
    let slice: EndpointSlice = decode(&json!({"endpoints": [endpoint], "ports": null, "addressType": null})).unwrap();
    assert!(slice.endpoints[0].addresses.is_empty() && slice.endpoints[0].hints.is_none());
    let node: Node = decode(&json!({"spec": nulls(&["podCIDRs", "taints"]), "status": {"addresses": null}})).unwrap();
    assert!(node.spec.taints.is_empty());
    assert!(decode::<ServiceCidr>(&json!({"spec": {"cidrs": null}})).is_ok());
}

#[test]
fn only_the_first_address_is_kept() {
    // Only the first address of an endpoint is used (B6).
    let endpoints = json!([{"addresses": ["10.0.0.1", "10.0.0.2"]}, {"addresses": []}]);
    let slice: EndpointSlice = decode(&json!({"endpoints": endpoints})).unwrap();
    let kept: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.addresses.as_slice()).collect();
    assert_eq!(kept, [&["10.0.0.1"][..], &[]]);
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
    assert_eq!(service.metadata.creation_timestamp.and_then(|time| time.seconds), Some(1_767_225_601));
    assert!(service.metadata.deletion_timestamp.is_some());
}

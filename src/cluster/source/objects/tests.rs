//! Tests of decoding: which fields are read, and the errors for objects that do not fit their type.

use serde_json::{Value, json};

use super::*;

/// Returns a JSON object with these fields, each null.
fn nulls(fields: &[&str]) -> Value {
    fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn null_is_as_good_as_absent() {
    let metadata = ["name", "namespace", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels"];
    let value = json!({"metadata": nulls(&metadata), "spec": null, "status": null});
    let service: Service<'_> = decode(&value).unwrap();
    assert!(service.metadata.deletion_timestamp.is_none() && service.metadata.namespace.is_empty());
    let spec =
        ["type", "clusterIP", "clusterIPs", "ports", "externalIPs", "sessionAffinityConfig", "healthCheckNodePort"];
    let value = json!({"spec": nulls(&spec)});
    let service: Service<'_> = decode(&value).unwrap();
    assert!(service.spec.ports.is_empty() && service.spec.cluster_ip.is_empty());
    let endpoint = nulls(&["addresses", "conditions", "nodeName", "zone", "hints"]);
    let value = json!({"endpoints": [endpoint], "ports": null, "addressType": null});
    let slice: EndpointSlice<'_> = decode(&value).unwrap();
    assert!(slice.endpoints[0].addresses.get().is_none() && slice.endpoints[0].hints.is_none());
    let value = json!({"spec": nulls(&["podCIDRs", "taints"]), "status": {"addresses": null}});
    let node: Node<'_> = decode(&value).unwrap();
    assert!(node.spec.taints.is_empty());
    assert!(decode::<ServiceCidr<'_>>(&json!({"spec": {"cidrs": null}})).is_ok());
}

#[test]
fn only_the_first_address_is_kept() {
    // Only the first address of an endpoint is used (B6).
    let endpoints = json!([{"addresses": ["10.0.0.1", "10.0.0.2"]}, {"addresses": []}]);
    let value = json!({"endpoints": endpoints});
    let slice: EndpointSlice<'_> = decode(&value).unwrap();
    let kept: Vec<_> =
        slice.endpoints.iter().map(|endpoint| endpoint.addresses.get().map(|address| &**address)).collect();
    assert_eq!(kept, [Some("10.0.0.1"), None]);
}

#[test]
fn an_error_names_its_field() {
    let wrong = json!({"spec": {"ports": [{"port": 80}, {"port": "x"}]}});
    let error = decode::<Service<'_>>(&wrong).unwrap_err();
    assert_eq!(error.field, "spec.ports[1].port");
    assert_eq!(error.reason, "invalid type: string \"x\", expected i32");
    let error = decode::<Service<'_>>(&json!({"metadata": {"creationTimestamp": "yesterday"}})).unwrap_err();
    assert_eq!(error.field, "metadata.creationTimestamp");
    let error = decode::<EndpointSlice<'_>>(&json!({"endpoints": [{"addresses": "10.0.0.1"}]})).unwrap_err();
    assert_eq!((&*error.field, error.reason.contains("a list of strings")), ("endpoints[0].addresses", true));
}

#[test]
fn times_are_cut_to_seconds_in_any_format() {
    // Of two equal claims to a frontend the one of the older Service wins, so `creationTimestamp` is read.
    let text = r#"{"metadata": {"creationTimestamp": "2026-01-01T00:00:01.5Z", "deletionTimestamp": "x"}}"#;
    let service: Service<'_> = serde_json::from_str(text).unwrap();
    assert_eq!(service.metadata.creation_timestamp.and_then(|time| time.seconds), Some(1_767_225_601));
    assert!(service.metadata.deletion_timestamp.is_some());
}

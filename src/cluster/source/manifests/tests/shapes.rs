//! Only the first object of a shape (fields and types) is decoded as the complete type of its kind. These tests check that this gives the
//! same result as decoding every object as the complete type.

use serde_json::{Value, json};

use super::*;

fn metadata() -> Value {
    json!({
        "name": "web", "namespace": "demo", "generateName": "w", "uid": "u", "resourceVersion": "5", "generation": 4, "selfLink": "s",
        "creationTimestamp": "2026-11-23T10:00:00Z", "deletionTimestamp": "2026-11-23T10:00:00Z", "deletionGracePeriodSeconds": 30,
        "labels": {"kubernetes.io/service-name": "web"}, "annotations": {"a": "b"}, "finalizers": ["f"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u", "controller": true, "blockOwnerDeletion": true},
        ],
        "managedFields": [{
            "manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "2026-11-23T10:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:ports": {}}}, "subresource": "status",
        }],
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(),
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "selector": {"app": "web"},
            "ports": [
                {"name": "a", "port": 80, "targetPort": "http", "nodePort": 30_000, "protocol": "TCP", "appProtocol": "h2c"},
                {"name": "b", "port": 81, "targetPort": 8_080},
            ],
            "allocateLoadBalancerNodePorts": true, "externalIPs": ["192.0.2.1"], "externalName": "x",
            "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster", "healthCheckNodePort": 30_001,
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "loadBalancerClass": "c", "loadBalancerIP": "192.0.2.2",
            "loadBalancerSourceRanges": ["0.0.0.0/0"], "publishNotReadyAddresses": false, "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}, "trafficDistribution": "PreferClose",
        },
        "status": {
            "conditions": [{
                "type": "t", "status": "True", "reason": "r", "message": "m", "observedGeneration": 3,
                "lastTransitionTime": "2026-11-23T10:00:00Z",
            }],
            "loadBalancer": {"ingress": [
                {"ip": "192.0.2.2", "ipMode": "VIP", "hostname": "h", "ports": [{"port": 80, "protocol": "TCP", "error": "e"}]},
            ]},
        },
    })
}

fn slice() -> Value {
    let target = json!({
        "kind": "Pod", "namespace": "demo", "name": "p", "uid": "u", "apiVersion": "v1", "resourceVersion": "1", "fieldPath": "f",
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata(), "addressType": "IPv4",
        "ports": [{"name": "a", "port": 8_080, "protocol": "TCP", "appProtocol": "h2c"}],
        "endpoints": [
            {
                "addresses": ["10.244.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false}, "hostname": "h",
                "nodeName": "n", "zone": "z", "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]},
                "deprecatedTopology": {"a": "b"}, "targetRef": target,
            },
            {"addresses": ["10.244.0.2"]},
        ],
    })
}

/// Returns the JSON pointers of all values inside a value, which is itself at the pointer `at`.
fn places(value: &Value, at: &str) -> Vec<String> {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), value))
            .collect(),
        Value::Array(items) => items.iter().enumerate().map(|(n, value)| (format!("{at}/{n}"), value)).collect(),
        _ => Vec::new(),
    };
    below.iter().flat_map(|(place, value)| [vec![place.clone()], places(value, place)].concat()).collect()
}

/// Reads these objects as one list. Returns the objects and problems that are found.
fn found(items: &[&Value], nested: bool) -> (Vec<ManifestObject>, Vec<String>) {
    let mut list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    if nested {
        // The items of a list within a list are always decoded one by one, through a `Value`.
        list = json!({"apiVersion": "v1", "kind": "List", "items": [list]});
    }
    let found = content("a.json", &list.to_string());
    (found.objects, found.problems.iter().map(|problem| problem.text.replace("items[0].items", "items")).collect())
}

#[test]
fn whatever_differs_from_an_object_of_a_known_shape_is_found() {
    let others = [
        json!(null),
        json!(true),
        json!(7),
        json!(-1),
        json!(3_000_000_000_u64),
        json!(u64::MAX),
        json!(1.5),
        json!("text"),
        json!([]),
        json!(["a", 5]),
        json!({}),
        json!({"nonsense": 1}),
    ];
    let mut problems = 0;
    for object in [service(), slice()] {
        let (plain, none) = found(&[&object, &object], false);
        assert_eq!((plain.len(), none), (2, Vec::new()));
        for place in places(&object, "") {
            for other in &others {
                let mut changed = object.clone();
                *changed.pointer_mut(&place).unwrap() = other.clone();
                let items = [&object, &changed, &object];
                let (now, expected) = (found(&items, false), found(&items, true));
                assert_eq!(now, expected, "{place} is {other}");
                problems += now.1.len();
            }
        }
    }
    assert!(problems > 1_000, "{problems}");
}

//! Tests of decoding the JSON and protobuf of the API server.

use serde_json::{Value, json};

use super::super::tests::{event, service, web};
use super::*;
use rules::model::ObjectName;

/// The encoder of the test API server.
#[path = "../../../../../tests/support/apiserver/protobuf.rs"]
mod encoder;

const FORMATS: [Format; 2] = [Format::Json, Format::Protobuf];

fn decoder(resource: Resource) -> Decoder {
    Decoder::new(resource, ConvertOptions::default())
}

/// Returns an event of a watch, decoded.
fn watch_event(format: Format, resource: Resource, word: &str, object: &Value) -> Result<WatchEvent, String> {
    decoder(resource).watch_event(format, &event_bytes(format, resource, word, object))
}

/// Returns an event of a watch as the server sends it, in protobuf without the length that comes before it.
fn event_bytes(format: Format, resource: Resource, word: &str, object: &Value) -> Vec<u8> {
    match format {
        Format::Json => event(word, object).into_bytes(),
        Format::Protobuf => encoder::event(word, &typed(resource, object))[4..].to_vec(),
    }
}

/// Returns the object with its kind, which the envelope of protobuf needs.
fn typed(resource: Resource, object: &Value) -> Value {
    let mut object = object.clone();
    if object.is_object() && object["kind"].is_null() {
        object["kind"] = json!(resource.name());
    }
    object
}

fn page(format: Format, list: &Value) -> Result<Page, String> {
    let bytes = match format {
        Format::Json => list.to_string().into_bytes(),
        Format::Protobuf => encoder::enveloped(list),
    };
    decoder(Resource::Service).page(format, &bytes)
}

fn read(format: Format, resource: Resource, object: &Value) -> ReadObject {
    match watch_event(format, resource, "ADDED", object) {
        Ok(WatchEvent::Applied(object)) => object,
        other => panic!("{other:?}"),
    }
}

fn json_event(line: &str) -> Result<WatchEvent, String> {
    decoder(Resource::Service).watch_event(Format::Json, line.as_bytes())
}

#[test]
fn each_event_of_a_watch_is_recognised() {
    for format in FORMATS {
        let event = |word, object: &Value| watch_event(format, Resource::Service, word, object);
        for word in ["ADDED", "MODIFIED"] {
            assert!(matches!(event(word, &web("7")), Ok(WatchEvent::Applied(Ok(object))) if &*object.version == "7"));
        }
        let key = Key::Service(ObjectName::new("demo", "web"));
        let found = event("DELETED", &web("7"));
        assert!(matches!(found, Ok(WatchEvent::Deleted(found, Some(version))) if found == key && &*version == "7"));
        let bookmark = |annotations: &Value| {
            let metadata = json!({"resourceVersion": "8", "creationTimestamp": null, "annotations": annotations});
            match event("BOOKMARK", &json!({ "metadata": metadata })) {
                Ok(WatchEvent::Bookmark { version, ends_list }) => (version, ends_list),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(bookmark(&Value::Null), ("8".into(), false));
        assert_eq!(bookmark(&json!({"k8s.io/initial-events-end": "true", "other": "x"})), ("8".into(), true));
        let expired = event("ERROR", &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}));
        assert!(matches!(expired, Ok(WatchEvent::Error(status)) if status.is_expired() && status.message.is_some()));
        assert!(event("ODD", &json!({})).is_err() && event("BOOKMARK", &json!({})).is_err());
    }
}

#[test]
fn the_parts_of_an_event_may_come_in_any_order() {
    for word in ["ADDED", "DELETED"] {
        let line = format!("{{\"object\": {}, \"type\": \"{word}\"}}", web("7"));
        let found = json_event(&line).unwrap();
        assert!(matches!(found, WatchEvent::Applied(Ok(_)) | WatchEvent::Deleted(..)), "{found:?}");
    }
}

#[test]
fn bytes_that_are_no_event_are_an_error() {
    for bytes in [&b"{"[..], b"[]", b"\xff\xfe", b"k8s\0", b"", b"\x0a\x05ADD", b"\x12\x04\x0a\x02ab"] {
        for format in FORMATS {
            assert!(decoder(Resource::Service).watch_event(format, bytes).is_err(), "{bytes:?}");
        }
    }
}

#[test]
fn a_page_has_its_objects_and_the_token_of_the_next() {
    for format in FORMATS {
        let list =
            json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9", "continue": "t"}, "items": [web("1")]});
        let found = page(format, &list).unwrap();
        assert_eq!((found.objects.len(), &*found.version, found.next.as_deref()), (1, "9", Some("t")));
        assert!(found.objects.iter().all(Result::is_ok));
        let empty = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9", "continue": ""}, "items": null});
        let found = page(format, &empty).unwrap();
        assert!(found.objects.is_empty() && found.next.is_none());
    }
}

#[test]
fn a_broken_object_on_a_page_loses_only_itself() {
    for format in FORMATS {
        let items = [web("1"), service("bad", &json!("x"), "5"), service("api", &json!(81), "3")];
        let list = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9"}, "items": items});
        let found = page(format, &list).unwrap();
        assert_eq!(found.objects.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }
}

#[test]
fn an_answer_that_is_no_list_is_an_error() {
    let unversioned = json!({"kind": "ServiceList", "metadata": {"resourceVersion": ""}, "items": []});
    let status = json!({"kind": "Status", "metadata": {"resourceVersion": "1"}});
    let pods = json!({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []});
    for value in [json!({}), unversioned, status, pods, json!("html")] {
        for format in FORMATS {
            assert!(page(format, &value).is_err(), "{value}");
        }
    }
}

#[test]
fn both_formats_of_an_object_give_the_same_event() {
    let labels = json!({"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "x"});
    let annotations = json!({"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-22T10:00:00Z", "kube-proxy-nft/weight": "3", "a": "b"});
    let slice = json!({
        "metadata": {
            "name": "web-1", "namespace": "demo", "resourceVersion": "5", "uid": "u", "generation": 3,
            "creationTimestamp": "2026-11-22T10:00:00Z", "labels": labels, "annotations": annotations,
            "ownerReferences": [{"kind": "Service", "name": "web", "controller": true}],
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "protocol": "TCP", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 53, "appProtocol": "x"}],
        "endpoints": [
            {"addresses": ["10.0.0.1", "10.0.0.9"], "conditions": {"ready": true}, "nodeName": "node-1", "zone": "a"},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true},
             "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "node-1"}]}},
            {"addresses": []},
        ],
    });
    let service = json!({
        "metadata": {"name": "web", "namespace": "demo", "resourceVersion": "6", "creationTimestamp": "2026-01-01T00:00:01.5Z"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00::a"],
            "ipFamilies": ["IPv4", "IPv6"], "selector": {"app": "web"}, "externalIPs": ["192.0.2.1"],
            "loadBalancerSourceRanges": ["10.0.0.0/8", "fd00::/8"], "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Local", "sessionAffinity": "ClientIP", "healthCheckNodePort": 32000,
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "ports": [{"name": "a", "protocol": "SCTP", "port": 80, "nodePort": 30080, "targetPort": "http"}, {"name": "b", "port": 81}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}, {"hostname": "h"}, {"ip": "192.0.2.8"}]}},
    });
    let plain = json!({"metadata": {"name": "old", "namespace": "demo"}, "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 1}]}});
    let node = json!({
        "metadata": {"name": "node-1", "resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": "a"},
                     "deletionTimestamp": "2026-11-22T10:00:00Z"},
        "spec": {"podCIDRs": ["10.244.0.0/24"], "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n"}]},
    });
    let cidr = json!({"metadata": {"name": "kubernetes", "resourceVersion": "2"}, "spec": {"cidrs": ["10.96.0.0/12"]}});
    let headless =
        json!({"metadata": {"name": "h", "namespace": "demo", "labels": {"service.kubernetes.io/headless": ""}}});
    let objects = [
        (Resource::EndpointSlice, slice),
        (Resource::EndpointSlice, headless),
        (Resource::Service, service),
        (Resource::Service, plain),
        (Resource::Node, node),
        (Resource::ServiceCidr, cidr),
    ];
    for (resource, object) in objects {
        let [json, protobuf] = FORMATS.map(|format| {
            let Object { converted, version } = read(format, resource, &object).unwrap();
            (converted, version)
        });
        assert_eq!(json, protobuf, "{object}");
        assert!(json.0.event.is_some());
    }
}

// The mark that drains a node is found in both formats (L10).
#[test]
fn marks_of_a_node_are_read_in_both_formats() {
    let node = json!({
        "metadata": {"name": "node-1", "resourceVersion": "1", "labels": {"drain": "yes"}, "annotations": {"a/drain": "x"}},
        "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        "status": {},
    });
    let marks = [
        ("taint:k=v", true),
        ("taint:k=w", false),
        ("label:drain=yes", true),
        ("annotation:a/drain", true),
        ("label:b", false),
    ];
    for (mark, expected) in marks {
        let options = ConvertOptions { drain_on: mark.parse().ok(), ..ConvertOptions::default() };
        for format in FORMATS {
            let bytes = event_bytes(format, Resource::Node, "ADDED", &node);
            let Ok(WatchEvent::Applied(Ok(object))) =
                Decoder::new(Resource::Node, options.clone()).watch_event(format, &bytes)
            else {
                panic!("{mark}: {format:?}");
            };
            let is_drained = matches!(object.converted.event, Some(Event::NodeApplied(node)) if node.drained);
            assert_eq!(is_drained, expected, "{mark}: {format:?}");
        }
    }
}

#[test]
fn fields_that_are_not_known_change_nothing() {
    let mut bytes = encoder::enveloped(&typed(Resource::Service, &web("7")));
    // The unknown fields are a varint, 8 bytes, a string, an empty group, and 4 bytes. The test adds them to the envelope and to the event.
    let unknown: &[&[u8]] =
        &[b"\xa0\x38\x05", b"\xa1\x38abcdefgh", b"\xa2\x38\x01x", b"\xa3\x38\xa4\x38", b"\xa5\x38abcd"];
    bytes.extend(unknown.concat());
    let length = u8::try_from(bytes.len()).unwrap();
    let raw = [&[0x0a, length | 0x80, length >> 7][..], &bytes].concat();
    let object = u8::try_from(raw.len()).unwrap();
    let event = [&b"\x0a\x05ADDED\x12"[..], &[object | 0x80, object >> 7], &raw, &unknown.concat()].concat();
    let found = decoder(Resource::Service).watch_event(Format::Protobuf, &event);
    assert!(matches!(found, Ok(WatchEvent::Applied(Ok(object))) if &*object.version == "7"));
}

#[test]
fn the_body_of_a_failure_may_be_anything() {
    assert_eq!(Status::of_body(b"<html>Bad Gateway</html>"), Status::default());
    assert_eq!(Status::of_body(b"no server\nx").message.as_deref(), Some("no server"));
    let status = json!({"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "later"});
    let expected = Status { code: 429, reason: Some("TooManyRequests".into()), message: Some("later".into()) };
    assert_eq!(Status::of_body(status.to_string().as_bytes()), expected);
    assert_eq!(Status::of_body(&encoder::enveloped(&status)), expected);
    assert_eq!(Status::of_body(br#"{"code": 429, "reason": null}"#).code, 429);
}

#[test]
fn a_broken_object_is_named_with_its_field() {
    for (format, reason) in [
        (Format::Json, "spec.ports[0].port: invalid type: string \"x\", expected i32"),
        (Format::Protobuf, "spec.ports[0].port: a number was expected"),
    ] {
        let broken = read(format, Resource::Service, &service("bad", &json!("x"), "5")).unwrap_err();
        assert_eq!(broken.key, Some(Key::Service(ObjectName::new("demo", "bad"))));
        assert_eq!(broken.version.as_deref(), Some("5"));
        let problem = broken.problem.to_string();
        assert!(problem.starts_with(&format!("Service demo/bad: {reason}")), "{problem}");
        assert!(problem.ends_with("; the object stays as it was"), "{problem}");
    }
}

#[test]
fn an_object_without_a_readable_name_has_no_key() {
    for value in [json!({"metadata": 7}), json!({"metadata": {"name": ["x"]}}), json!("text")] {
        let broken = read(Format::Json, Resource::EndpointSlice, &value).unwrap_err();
        assert_eq!(broken.key, None, "{value}");
        assert!(broken.problem.to_string().starts_with("EndpointSlice without a name: "), "{}", broken.problem);
    }
    let value = json!({"metadata": {"name": {"no": "text"}, "namespace": "x"}});
    let broken = read(Format::Protobuf, Resource::EndpointSlice, &value).unwrap_err();
    assert_eq!(broken.key, None);
}

#[test]
fn an_object_of_another_kind_is_named_and_does_not_touch_ours() {
    let pod = json!({"kind": "Pod", "metadata": {"name": "web", "namespace": "demo", "resourceVersion": "6"}});
    for (format, resource) in FORMATS.iter().flat_map(|format| Resource::ALL.map(|resource| (*format, resource))) {
        let broken = read(format, resource, &pod).unwrap_err();
        assert_eq!((broken.key, broken.version.as_deref()), (None, Some("6")));
        let expected = format!("{} demo/web: kind: the server sent a \"Pod\"; it is not used", resource.name());
        assert_eq!(broken.problem.to_string(), expected);
        let deleted = watch_event(format, resource, "DELETED", &pod);
        assert!(deleted.is_err(), "its deletion deletes none of ours");
    }
}

#[test]
fn each_kind_is_read() {
    let mut names = Resource::ALL.map(Resource::name);
    names.sort_unstable();
    assert_eq!(names, crate::source::KINDS);
}

#[test]
fn an_added_and_a_deleted_object_of_each_kind_have_the_same_key() {
    let named = json!({"metadata": {"name": "a", "namespace": "b", "resourceVersion": "3"}});
    for (format, resource) in FORMATS.iter().flat_map(|format| Resource::ALL.map(|resource| (*format, resource))) {
        let object = read(format, resource, &named).unwrap();
        assert_eq!(&*object.version, "3");
        let deleted = watch_event(format, resource, "DELETED", &named);
        let Ok(WatchEvent::Deleted(key, version)) = deleted else { panic!("{resource:?} is not deleted") };
        assert_eq!(Key::of(&object.converted.event.unwrap()), Some(key));
        assert_eq!(version.as_deref(), Some("3"));
    }
}

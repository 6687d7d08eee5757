//! Kubernetes' protobuf: objects and lists in their envelope, and messages of a watch with their length before them.
//!
//! Takes objects as JSON, and returns bytes as a real server writes them: fields in the order of their numbers; fields that are no pointers
//! in Go are written even if they are empty. The tables have every field that objects of these tests have; the numbers are those of
//! `generated.proto` in k8s.io/api and k8s.io/apimachinery. A value of a wrong type is written with its own type, which breaks the object,
//! as wrong JSON does. Pure.

use serde_json::{Map, Value};

/// A message: the field's number, its name in JSON, and what it holds.
type Message = &'static [(u32, &'static str, Type)];

/// What a field holds; an array in JSON is a repeated field.
#[derive(Clone, Copy)]
enum Type {
    /// A text, a number or a truth value that Go holds behind a pointer, or in a list: not written where JSON has none.
    Scalar,
    /// A text that Go holds without a pointer: written even if it is empty.
    Text,
    /// A number that Go holds without a pointer: written even if it is 0.
    Number,
    /// RFC 3339 in JSON, seconds and nanoseconds in protobuf.
    Time,
    /// A number or a text: `IntOrString`.
    Either,
    /// A map from text to text.
    Map,
    /// A message behind a pointer, or in a list.
    Message(Message),
    /// A message that Go holds without a pointer: written even if it is empty.
    Held(Message),
}

use Type::{Either, Held, Map as Texts, Message as Of, Number, Scalar, Text, Time};

const METADATA: Message = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Number),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (11, "labels", Texts),
    (12, "annotations", Texts),
    (13, "ownerReferences", Of(OWNER)),
    (14, "finalizers", Scalar),
    (17, "managedFields", Of(&[])),
];
const OWNER: Message = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Scalar),
    (7, "blockOwnerDeletion", Scalar),
];
const SERVICE: Message =
    &[(1, "metadata", Held(METADATA)), (2, "spec", Held(SERVICE_SPEC)), (3, "status", Held(SERVICE_STATUS))];
const SERVICE_SPEC: Message = &[
    (1, "ports", Of(SERVICE_PORT)),
    (2, "selector", Texts),
    (3, "clusterIP", Text),
    (4, "type", Text),
    (5, "externalIPs", Scalar),
    (7, "sessionAffinity", Text),
    (8, "loadBalancerIP", Text),
    (9, "loadBalancerSourceRanges", Scalar),
    (10, "externalName", Text),
    (11, "externalTrafficPolicy", Text),
    (12, "healthCheckNodePort", Number),
    (13, "publishNotReadyAddresses", Scalar),
    (14, "sessionAffinityConfig", Of(&[(1, "clientIP", Of(&[(1, "timeoutSeconds", Scalar)]))])),
    (17, "ipFamilyPolicy", Scalar),
    (18, "clusterIPs", Scalar),
    (19, "ipFamilies", Scalar),
    (20, "allocateLoadBalancerNodePorts", Scalar),
    (21, "loadBalancerClass", Scalar),
    (22, "internalTrafficPolicy", Scalar),
    (23, "trafficDistribution", Scalar),
];
const SERVICE_PORT: Message = &[
    (1, "name", Text),
    (2, "protocol", Text),
    (3, "port", Number),
    (4, "targetPort", Either),
    (5, "nodePort", Number),
    (6, "appProtocol", Scalar),
];
const SERVICE_STATUS: Message = &[(1, "loadBalancer", Held(&[(1, "ingress", Of(INGRESS))]))];
const INGRESS: Message = &[(1, "ip", Text), (2, "hostname", Text), (3, "ipMode", Scalar)];
const SLICE: Message = &[
    (1, "metadata", Held(METADATA)),
    (2, "endpoints", Of(ENDPOINT)),
    (3, "ports", Of(PORT)),
    (4, "addressType", Text),
];
const ENDPOINT: Message = &[
    (1, "addresses", Scalar),
    (2, "conditions", Held(&[(1, "ready", Scalar), (2, "serving", Scalar), (3, "terminating", Scalar)])),
    (3, "hostname", Scalar),
    (4, "targetRef", Of(&[(1, "kind", Text), (2, "namespace", Text), (3, "name", Text), (4, "uid", Text)])),
    (6, "nodeName", Scalar),
    (7, "zone", Scalar),
    (8, "hints", Of(&[(1, "forZones", Of(&[(1, "name", Text)])), (2, "forNodes", Of(&[(1, "name", Text)]))])),
];
const PORT: Message = &[(1, "name", Scalar), (2, "protocol", Scalar), (3, "port", Scalar), (4, "appProtocol", Scalar)];
const NODE: Message =
    &[(1, "metadata", Held(METADATA)), (2, "spec", Held(NODE_SPEC)), (3, "status", Held(NODE_STATUS))];
const NODE_SPEC: Message = &[
    (1, "podCIDR", Text),
    (3, "providerID", Text),
    (4, "unschedulable", Scalar),
    (5, "taints", Of(&[(1, "key", Text), (2, "value", Text), (3, "effect", Text), (4, "timeAdded", Time)])),
    (7, "podCIDRs", Scalar),
];
const NODE_STATUS: Message = &[(3, "phase", Text), (5, "addresses", Of(&[(1, "type", Text), (2, "address", Text)]))];
const CIDR: Message = &[(1, "metadata", Held(METADATA)), (2, "spec", Held(&[(1, "cidrs", Scalar)]))];
const STATUS: Message = &[
    (2, "status", Text),
    (3, "message", Text),
    (4, "reason", Text),
    (5, "details", Of(&[(5, "retryAfterSeconds", Number)])),
    (6, "code", Number),
];
const LIST_METADATA: Message =
    &[(1, "selfLink", Text), (2, "resourceVersion", Text), (3, "continue", Text), (4, "remainingItemCount", Scalar)];

/// Returns the fields of a kind; a list has the name of its items' kind and `List`.
fn message(kind: &str) -> Message {
    match kind {
        "Service" => SERVICE,
        "EndpointSlice" => SLICE,
        "Node" => NODE,
        "ServiceCIDR" => CIDR,
        "Status" => STATUS,
        "ServiceList" => &[(1, "metadata", Held(LIST_METADATA)), (2, "items", Of(SERVICE))],
        "EndpointSliceList" => &[(1, "metadata", Held(LIST_METADATA)), (2, "items", Of(SLICE))],
        "NodeList" => &[(1, "metadata", Held(LIST_METADATA)), (2, "items", Of(NODE))],
        "ServiceCIDRList" => &[(1, "metadata", Held(LIST_METADATA)), (2, "items", Of(CIDR))],
        // A test that sends another kind checks that the proxy refuses it.
        _ => &[(1, "metadata", Held(METADATA))],
    }
}

/// Encodes an object or a list in its envelope.
pub(crate) fn enveloped(object: &Value) -> Vec<u8> {
    let word = |name: &str| object[name].as_str().unwrap_or_default();
    let (mut type_meta, mut envelope) = (Vec::new(), b"k8s\0".to_vec());
    text(&mut type_meta, 1, word("apiVersion"));
    text(&mut type_meta, 2, word("kind"));
    bytes(&mut envelope, 1, &type_meta);
    bytes(&mut envelope, 2, &self::object(object));
    text(&mut envelope, 3, "");
    text(&mut envelope, 4, "");
    envelope
}

/// Encodes an object or a list without an envelope.
pub(crate) fn object(object: &Value) -> Vec<u8> {
    encoded(message(object["kind"].as_str().unwrap_or_default()), object)
}

/// Encodes a message of a watch, with its length before it.
pub(crate) fn event(kind: &str, object: &Value) -> Vec<u8> {
    let (mut raw, mut event) = (Vec::new(), Vec::new());
    bytes(&mut raw, 1, &enveloped(object));
    text(&mut event, 1, kind);
    bytes(&mut event, 2, &raw);
    let length = u32::try_from(event.len()).expect("a message has less than 4 GiB");
    [&length.to_be_bytes()[..], &event].concat()
}

fn encoded(message: Message, object: &Value) -> Vec<u8> {
    let (none, mut out) = (Map::new(), Vec::new());
    let fields = object.as_object().unwrap_or(&none);
    for (number, name, content) in message {
        match fields.get(*name) {
            Some(Value::Array(list)) => list.iter().for_each(|value| field(&mut out, *number, *content, value)),
            Some(value) => field(&mut out, *number, *content, value),
            None => field(&mut out, *number, *content, &Value::Null),
        }
    }
    out
}

fn field(out: &mut Vec<u8>, number: u32, content: Type, value: &Value) {
    match (content, value) {
        (Text, Value::Null) => text(out, number, ""),
        (Number, Value::Null) => varint_field(out, number, 0),
        (Time, Value::String(time)) if time.parse::<jiff::Timestamp>().is_ok() => {
            let time: jiff::Timestamp = time.parse().expect("it was parsed");
            let mut message = Vec::new();
            varint_field(&mut message, 1, time.as_second());
            varint_field(&mut message, 2, 0);
            bytes(out, number, &message);
        }
        (Texts, Value::Object(pairs)) => {
            for (key, value) in pairs {
                let mut pair = Vec::new();
                text(&mut pair, 1, key);
                field(&mut pair, 2, Text, value);
                bytes(out, number, &pair);
            }
        }
        (Either, Value::String(value)) => {
            let mut message = Vec::new();
            varint_field(&mut message, 1, 1);
            text(&mut message, 3, value);
            bytes(out, number, &message);
        }
        (Either, Value::Number(value)) => {
            let mut message = Vec::new();
            varint_field(&mut message, 2, value.as_i64().unwrap_or_default());
            bytes(out, number, &message);
        }
        (Of(message), Value::Object(_)) | (Held(message), Value::Object(_) | Value::Null) => {
            bytes(out, number, &encoded(message, value));
        }
        (_, Value::Null) => {}
        (_, Value::String(value)) => text(out, number, value),
        (_, Value::Bool(value)) => varint_field(out, number, i64::from(*value)),
        (_, Value::Number(value)) => varint_field(out, number, value.as_i64().unwrap_or_default()),
        // For a list in a list, or an object in place of a text, writes bytes that are no valid UTF-8.
        (_, Value::Array(_) | Value::Object(_)) => bytes(out, number, b"\xff"),
    }
}

fn text(out: &mut Vec<u8>, number: u32, value: &str) {
    bytes(out, number, value.as_bytes());
}

fn bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint_field(out: &mut Vec<u8>, number: u32, value: i64) {
    varint(out, u64::from(number << 3));
    varint(out, value.cast_unsigned());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

//! Tests of the conversion, from JSON objects as a user writes them.

mod cluster_scoped;
mod services;
mod slices;

use serde_json::{Value, json};

use super::{ConvertOptions, Converted, Converter, ObjectKind};
use crate::source::objects::{self, decode};
use rules::model::{EndpointSlice, Event, Service};

/// Converts an object of this kind from its JSON form.
fn converted<T: ObjectKind>(value: &Value) -> Converted {
    T::convert(&decode(value).unwrap(), &mut Converter::default())
}

/// Overwrites the value at a JSON pointer, creating objects on the way.
fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    let mut at = &mut value;
    for key in pointer.split('/').skip(1) {
        at = &mut at[key];
    }
    *at = new;
    value
}

/// Returns a minimal Service demo/web with one port.
fn web() -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": "web"},
        "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}
    })
}

/// Returns a minimal EndpointSlice demo/web-1 of the Service demo/web.
fn web_slice() -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.244.1.2"]}],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]
    })
}

fn convert_service(value: Value) -> Converted {
    converted::<objects::Service>(&value)
}

fn convert_slice(value: Value) -> Converted {
    converted::<objects::EndpointSlice>(&value)
}

/// Converts a Service that is usable. Also returns its problems as text.
fn service(value: Value) -> (Service, Vec<String>) {
    let converted = convert_service(value);
    match converted.event {
        Some(Event::ServiceApplied(service)) => (service, texts(&converted.problems)),
        other => panic!("{other:?}, {:?}", converted.problems),
    }
}

/// Converts a slice that is usable. Also returns its problems as text.
fn slice(value: Value) -> (EndpointSlice, Vec<String>) {
    let converted = convert_slice(value);
    match converted.event {
        Some(Event::SliceApplied(slice)) => (slice, texts(&converted.problems)),
        other => panic!("{other:?}, {:?}", converted.problems),
    }
}

fn texts(problems: &[crate::source::Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

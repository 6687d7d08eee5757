//! How much memory an endpoint costs: as decoded from the API, and in the model; and how many allocations decoding takes.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::fmt::Write as _;

use cluster::source::ConvertOptions;
use cluster::source::convert::Converter;
use cluster::source::objects::EndpointSlice;
use rules::model::{Event, State};
use serde_json::Value;

use crate::support::apiserver::protobuf::object;
use crate::{Count, count, turn};

/// The number of slices, each with ten endpoints, so that the memory of the slice itself counts as in a cluster of small Services.
const SLICES: usize = 1000;
const ENDPOINTS: usize = 10;

/// A slice as an API server sends it, with fields that the proxy does not read.
fn slice(index: usize) -> String {
    let mut endpoints = String::new();
    for endpoint in 0..ENDPOINTS {
        let (high, low, node) = (index / 25, index % 25 * 10 + endpoint, (index + endpoint) % 100);
        let separator = if endpoint == 0 { "" } else { "," };
        write!(
            endpoints,
            r#"{separator}{{"addresses":["10.244.{high}.{low}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},
            "nodeName":"node-{node}.example.internal","zone":"zone-a","targetRef":{{"kind":"Pod","namespace":"demo",
            "name":"web-{index}-{endpoint}","uid":"6b9a1c8e-0000-0000-0000-000000000000"}}}}"#
        )
        .unwrap();
    }
    format!(
        r#"{{"metadata":{{"name":"web-{index}-abcde","generateName":"web-{index}-","namespace":"demo","resourceVersion":"{index}",
        "uid":"6b9a1c8e-0000-0000-0000-000000000001","creationTimestamp":"2026-01-01T00:00:00Z",
        "labels":{{"kubernetes.io/service-name":"web-{index}","endpointslice.kubernetes.io/managed-by":"x"}},
        "managedFields":[{{"manager":"kube-controller-manager","fieldsV1":{{"f:endpoints":{{}}}}}}]}},
        "addressType":"IPv4","ports":[{{"name":"http","protocol":"TCP","port":8080}}],"endpoints":[{endpoints}]}}"#
    )
}

/// The bytes for each endpoint that were allocated since a count and are not freed.
fn per_endpoint(since: usize) -> usize {
    (count().live - since) / (SLICES * ENDPOINTS)
}

#[test]
fn an_endpoint_costs_few_bytes_in_json() {
    let _turn = turn();
    let texts: Vec<String> = (0..SLICES).map(slice).collect();
    assert_few_bytes(&texts, |text| serde_json::from_str(text).unwrap());
}

#[test]
fn an_endpoint_costs_few_bytes_in_protobuf() {
    let _turn = turn();
    let encoded = |index| {
        let mut slice: Value = serde_json::from_str(&slice(index)).unwrap();
        slice["kind"] = "EndpointSlice".into();
        object(&slice)
    };
    let messages: Vec<Vec<u8>> = (0..SLICES).map(encoded).collect();
    assert_few_bytes(&messages, |message| EndpointSlice::from_protobuf(message).unwrap());
}

/// Watches and pages in protobuf decode their objects one by one, as `decode` does; of a page in JSON all are there at once.
fn assert_few_bytes<'a, T>(encoded: &'a [T], decode: impl Fn(&'a T) -> EndpointSlice<'a>) {
    let Count { live: before, calls, .. } = count();
    let slices: Vec<EndpointSlice<'a>> = encoded.iter().map(decode).collect();
    let decoded = per_endpoint(before);
    let calls = (count().calls - calls) / SLICES;
    // Texts stay where they are. The list of endpoints grows by doubling; ports and labels are a list each.
    assert!((3..=8).contains(&calls), "{calls} allocations to decode a slice of {ENDPOINTS} endpoints");
    // The complete types of k8s-openapi take about 1,160 (measured, without managed fields).
    assert!((60..=200).contains(&decoded), "{decoded} bytes an endpoint as decoded");

    let mut converter = Converter::new(ConvertOptions::default());
    let before_converting = count().calls;
    let convert = |slice| {
        let converted = converter.endpoint_slice(&slice);
        assert!(converted.problems.is_empty(), "{:?}", converted.problems);
        converted.event.unwrap()
    };
    let events: Vec<Event> = slices.into_iter().map(convert).collect();
    let converting = (count().calls - before_converting) / SLICES;
    // Two names, a list of ports and one of endpoints; the names of nodes and ports are shared.
    assert!((4..=10).contains(&converting), "{converting} allocations to convert a slice of {ENDPOINTS} endpoints");
    let mut state = State::new("node-0.example.internal");
    events.into_iter().for_each(|event| {
        state.apply(event);
    });
    state.apply(Event::InitialListDone);
    drop(state.take_dirty());
    // The decoded objects are dropped by now; what is left is the converter's names and the model.
    let kept = per_endpoint(before);
    assert!((40..=160).contains(&kept), "{kept} bytes an endpoint in the model");
    println!(
        "bytes an endpoint: {decoded} as decoded, {kept} in the model; {calls} allocations to decode a slice, {converting} to convert it"
    );
}

//! Measures decoding of the API server's objects, and of EndpointSlices from text into the model.
//!
//! The test `memory` counts and bounds the allocations of this decoding, because that needs a counting allocator.

use std::time::{Duration, Instant};

use cluster::source::ConvertOptions;
use cluster::source::convert::Converter;
use cluster::source::objects::{EndpointSlice, Service};
use rules::model::State;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::manifests;
use crate::table::Table;

/// Adds rows for the objects of a cluster whose Services only have a cluster IP.
pub(crate) fn rows(table: &mut Table, services: u32, endpoints: u32) {
    let list = manifests(services, endpoints);
    let of_kind = |kind: &str| -> Vec<String> {
        let items = list["items"].as_array().into_iter().flatten();
        items.filter(|item| item["kind"] == kind).map(Value::to_string).collect()
    };
    let (slices, plain) = (of_kind("EndpointSlice"), of_kind("Service"));
    let count = u32::try_from(slices.len().max(1)).unwrap_or(u32::MAX);
    table.time(&format!("decode a slice of {endpoints} endpoints"), decoding::<EndpointSlice<'_>>(&slices) / count, "");
    table.time("decode a Service", decoding::<Service<'_>>(&plain) / count, "");
    let mut converter = Converter::new(ConvertOptions::default());
    let mut state = State::new("node");
    let start = Instant::now();
    for text in &slices {
        let slice: EndpointSlice<'_> = serde_json::from_str(text).expect("a slice");
        if let Some(event) = converter.endpoint_slice(&slice).event {
            state.apply(event);
        }
    }
    table.time("  a slice from text into the model", start.elapsed() / count, "");
}

fn decoding<'a, T: Deserialize<'a>>(texts: &'a [String]) -> Duration {
    let start = Instant::now();
    for text in texts {
        std::hint::black_box(serde_json::from_str::<T>(text).expect("an object"));
    }
    start.elapsed()
}

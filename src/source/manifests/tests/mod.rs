//! Tests of manifests, from text to events: without a disk, from a directory, and while the directory changes.

mod decoding;
mod live;
mod scanning;
mod storing;

use std::path::Path;
use std::sync::Arc;

use super::decode::{Content, decode};
use crate::model::Event;
use crate::source::convert::{ConvertOptions, Converter};

/// A Service in namespace demo.
fn service(name: &str, cluster_ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: demo}}\n\
         spec: {{clusterIP: {cluster_ip}, ports: [{{port: 80}}]}}\n"
    )
}

/// What a file of this name and text holds.
fn content(file: &str, text: &str) -> Content {
    let file: Arc<Path> = Path::new(file).into();
    decode(&file, text.as_bytes(), &mut Converter::new(ConvertOptions::default()))
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

/// An event in a word: `+demo/web 10.96.0.1` or `-demo/web`; other kinds likewise.
fn word(event: &Event) -> String {
    match event {
        Event::ServiceApplied(service) => {
            let ip = service.cluster_ips.v4.map_or_else(String::new, |ip| format!(" {ip}"));
            format!("+{}{ip}", service.name)
        }
        Event::ServiceDeleted(name) => format!("-{name}"),
        Event::SliceApplied(slice) => format!("+slice {}", slice.name),
        Event::SliceDeleted(name) => format!("-slice {name}"),
        Event::NodeApplied(node) => format!("+node {}", node.name),
        Event::NodeDeleted(name) => format!("-node {name}"),
        Event::ServiceCidrApplied(name, _) => format!("+cidr {name}"),
        Event::ServiceCidrDeleted(name) => format!("-cidr {name}"),
        Event::ApiServerAt(addresses) => format!("API server at {addresses:?}"),
        Event::InitialListDone => "done".into(),
        Event::Wake => "wake".into(),
    }
}

fn words(events: &[Event]) -> Vec<String> {
    events.iter().map(word).collect()
}

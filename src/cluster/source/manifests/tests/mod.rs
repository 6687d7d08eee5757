//! Tests of manifests, from text to events: without a disk, from a directory, and while the directory changes.

mod assigning;
mod decoding;
mod live;
mod scanning;
mod shapes;
mod storing;

use std::path::Path;
use std::sync::Arc;

use super::ManifestProblem;
use super::decode::{ManifestObject, decode};
use super::directory::ScanItem;
use crate::source::convert::ConvertOptions;
use rules::model::Event;

/// Returns a Service in namespace demo.
fn service(name: &str, cluster_ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: demo}}\n\
         spec: {{clusterIP: {cluster_ip}, ports: [{{port: 80}}]}}\n"
    )
}

/// The objects and problems of a file.
struct Content {
    objects: Vec<ManifestObject>,
    broken: bool,
    problems: Vec<ManifestProblem>,
}

/// Reads a file of this name and text.
fn content(file: &str, text: &str) -> Content {
    content_of_bytes(file, text.as_bytes())
}

fn content_of_bytes(file: &str, bytes: &[u8]) -> Content {
    let (file, mut objects) = (Path::new(file).into(), Vec::new());
    let outcome = decode(&file, bytes.to_vec(), &mut Default::default(), &mut |object| objects.push(object));
    Content { objects, broken: outcome.broken, problems: outcome.problems }
}

/// Returns the events and the problems of a scan, as text.
fn sorted_out(news: Vec<ScanItem>) -> (Vec<String>, Vec<String>) {
    let (mut events, mut problems) = (Vec::new(), Vec::new());
    for news in news {
        match news {
            ScanItem::Event(event) => events.push(word(&event)),
            ScanItem::Problem(problem) => problems.push(problem.to_string()),
        }
    }
    (events, problems)
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

/// Returns a short form of an event, such as `+demo/web 10.96.0.1` or `-demo/web`.
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

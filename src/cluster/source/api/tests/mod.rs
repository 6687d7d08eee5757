//! Tests of the complete API source, with a server whose answers each test defines.

mod access;
mod client_certificates;
mod faults;
mod following;
mod kubeconfigs;
mod relists;
mod server;
mod tls;

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use component::supervise::{self, Failures};
use server::{Act, Request, Server, serve};

/// The time limit of every wait: longer than any step of these tests takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// An observer that adds each call to a list, which the test reads.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<Vec<String>>>);

impl Observer for Counts {
    fn connected(&self, kind: &'static str, is: bool) {
        self.0.lock().unwrap().push(format!("{} {kind}", if is { "connected" } else { "away from" }));
    }
    fn answered(&self, request: Answered<'_>) {
        let Answered { url, code, took, bytes } = request;
        assert!(url.starts_with("http") && took < PATIENCE);
        let size = if bytes.is_some_and(|bytes| bytes > 0) { "with" } else { "without" };
        self.0.lock().unwrap().push(format!("{code:?} {size} a body"));
    }
    fn received(&self, kind: &'static str, _: SystemTime) {
        self.0.lock().unwrap().push(format!("received {kind}"));
    }
    fn lost(&self, kind: &'static str, why: &str) {
        self.0.lock().unwrap().push(format!("lost {kind}: {why}"));
    }
    fn reconnected(&self, kind: &'static str, _: Duration) {
        self.0.lock().unwrap().push(format!("reconnected {kind}"));
    }
    fn rejected(&self, kind: &'static str) {
        self.0.lock().unwrap().push(format!("rejected {kind}"));
    }
    fn waiting_for(&self, missing: &[&str]) {
        self.0.lock().unwrap().push(format!("waiting for {missing:?}"));
    }
    fn server_version(&self, version: &str) {
        self.0.lock().unwrap().push(format!("version {version}"));
    }
}

impl Counts {
    fn of(&self, what: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|entry| *entry == what).count()
    }

    /// Waits until the source's thread, which owns a clone of the list, has ended.
    fn wait_until_unused(&self) {
        let end = std::time::Instant::now() + PATIENCE;
        while Arc::strong_count(&self.0) > 1 {
            assert!(std::time::Instant::now() < end, "the thread goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A source that watches the server of a test.
struct Followed {
    _handle: Handle,
    failures: Failures,
    events: Receiver<Event>,
    counts: Counts,
    server: Server,
}

impl Followed {
    /// Receives events until the event `last`, and returns them in the short form of [`short`].
    fn until(&self, last: &str) -> Vec<String> {
        let mut found = Vec::new();
        while found.last().is_none_or(|found| found != last) {
            let event = self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {last} after {found:?}"));
            found.push(short(&event));
        }
        found
    }

    /// Waits until `what` is true.
    fn wait(&self, what: impl Fn(&Self) -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !what(self) {
            assert!(std::time::Instant::now() < end, "it did not become true");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn short(event: &Event) -> String {
    match event {
        Event::ServiceApplied(service) => {
            format!("+{} {}", service.name, service.ports.iter().map(|port| port.port).sum::<u16>())
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

/// Returns time limits that are short enough for a test.
fn timing() -> Timing {
    let (initial, idle) = (Duration::from_millis(500), Duration::from_millis(700));
    Timing { initial, idle, watch_response: idle, stall: idle, ..Timing::default() }
}

/// Returns time limits with which the first of the waits that double is 20 to 30 s, as long as by default only the sixth is. For Nodes it
/// is 3 to 4.5 s if the server cannot be reached.
fn longest_waits() -> Timing {
    Timing { first_wait: PATIENCE, ..Timing::default() }
}

fn options(url: &str) -> ApiOptions {
    ApiOptions {
        client: ClientOptions { master: Some(url.to_owned()), ..ClientOptions::default() },
        node_name: "node-1".into(),
        convert: ConvertOptions::default(),
        needs_pod_cidrs: false,
        removal_limit: 90,
    }
}

/// Starts a source for this server.
fn start(server: Server, options: ApiOptions, timing: Timing) -> Followed {
    let (sink, events) = sync_channel(1024);
    let counts = Counts::default();
    let (supervisor, failures) = supervise::new();
    let handle = spawn_with(options, sink, counts.clone(), &supervisor, timing).unwrap();
    Followed { _handle: handle, failures, events, counts, server }
}

/// Starts a source for a server that answers requests for `resource` with `answer`. The server also has one Node, and no objects of other
/// kinds.
fn follow(
    resource: &'static str,
    answer: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static,
    timing: Timing,
) -> Followed {
    let server = serve(move |request| match &*request.resource {
        asked if asked == resource => answer(request),
        "nodes" => stream(vec![added(&node()), end("1")]),
        _ => stream(vec![end("1")]),
    });
    let options = options(&server.url);
    start(server, options, timing)
}

/// Returns an answer with these lines, which the server then keeps open.
fn stream(lines: Vec<String>) -> Vec<Act> {
    let lines = lines.into_iter().map(|line| Act::Chunk((line + "\n").into_bytes()));
    [Act::Head(200, "")].into_iter().chain(lines).chain([Act::Hold]).collect()
}

/// Returns an answer with a body.
fn reply(status: u16, headers: &'static str, body: &Value) -> Vec<Act> {
    vec![Act::Head(status, headers), Act::Chunk(body.to_string().into_bytes()), Act::End]
}

fn refusal(status: u16, headers: &'static str) -> Vec<Act> {
    reply(status, headers, &json!({"kind": "Status", "code": status, "message": "because"}))
}

pub(super) fn event(kind: &str, object: &Value) -> String {
    json!({"type": kind, "object": object}).to_string()
}

pub(super) fn added(object: &Value) -> String {
    event("ADDED", object)
}

pub(super) fn bookmark(version: &str) -> String {
    event("BOOKMARK", &json!({"kind": "X", "metadata": {"resourceVersion": version, "creationTimestamp": null}}))
}

/// Returns the bookmark that ends a streaming list.
pub(super) fn end(version: &str) -> String {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    event("BOOKMARK", &json!({"metadata": {"resourceVersion": version, "annotations": annotations}}))
}

pub(super) fn gone() -> String {
    event("ERROR", &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}))
}

fn node() -> Value {
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.1"}]);
    json!({"metadata": {"name": "node-1", "resourceVersion": "1"}, "status": {"addresses": addresses}})
}

/// Returns a Service demo/NAME with a port.
pub(super) fn service(name: &str, port: &Value, version: &str) -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": name, "resourceVersion": version},
        "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": port}]}
    })
}

pub(super) fn web(version: &str) -> Value {
    service("web", &json!(80), version)
}

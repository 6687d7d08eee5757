//! Events about this node and its Services, as `kubectl get events` shows them.
//!
//! Takes [`Happening`]s from any thread, gives events.k8s.io/v1 objects to the API server (surface.md section 7). Events are a
//! courtesy: who reports one never waits, an API server that does not take it loses nothing but the event, and what happens again
//! and again is said once in ten minutes.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::model::ObjectName;

/// Who reports, as upstream calls itself: dashboards select by it.
const CONTROLLER: &str = "kube-proxy";
/// Events that wait for the API server; further ones are dropped.
const WAITING: usize = 64;
/// How long the same is not said again.
const SILENCE: Duration = Duration::from_secs(600);
/// What is remembered of it at most.
const MEMORY: usize = 1024;
/// How often the API server is asked, and how long it may take.
const TRIES: u32 = 5;
const ANSWER: Duration = Duration::from_secs(10);
/// Longest note and longest name of the reporter that the API takes, in bytes.
const MAX_NOTE: usize = 1024;
const MAX_INSTANCE: usize = 128;

/// Something to tell the cluster's operators.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Happening {
    /// The proxy starts (O11).
    Starting,
    /// The healthz server cannot listen, and the process ends for it (O8).
    HealthzFailed(String),
    /// The metrics server cannot listen, and the process ends for it (O8).
    MetricsFailed(String),
    /// Another kube-proxy writes to the same tables.
    AnotherProxy,
    /// The health check of a Service cannot listen on its port (K4).
    ServiceHealthCheckFailed {
        /// The Service.
        service: ObjectName,
        /// Its health-check node port.
        port: u16,
        /// What the kernel says.
        error: String,
    },
    /// A Service is left out, because the kernel refuses its rules or because it is too large.
    ServiceNotProgrammed {
        /// The Service.
        service: ObjectName,
        /// Why.
        error: String,
    },
    /// A Service does not get an address with a port, or a node port, that it claims.
    FrontNotProgrammed {
        /// The Service.
        service: ObjectName,
        /// What it does not get, and why.
        reason: String,
    },
}

/// Takes what happened. Clones report to the same [`Publisher`].
#[derive(Clone, Debug)]
pub struct Recorder {
    sender: mpsc::Sender<Message>,
}

#[derive(Debug)]
enum Message {
    Happened(Happening),
    /// Everything before this was published, or given up.
    Flush(oneshot::Sender<()>),
}

impl Recorder {
    /// Reports something; dropped when too much waits already, or when there is no API server to tell.
    pub fn record(&self, happening: Happening) {
        if let Err(error) = self.sender.try_send(Message::Happened(happening)) {
            debug!("no event is sent: {error}");
        }
    }

    /// Waits until what was recorded so far is published, or for so long.
    pub async fn flush(&self, at_most: Duration) {
        let (done, published) = oneshot::channel();
        if self.sender.try_send(Message::Flush(done)).is_ok() && timeout(at_most, published).await.is_err() {
            debug!("the API server did not take the last events in time");
        }
    }
}

/// A recorder for the node of this name, and what publishes for it.
#[must_use]
pub fn new(node: &str) -> (Recorder, Publisher) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Recorder { sender }, Publisher { node: node.to_owned(), receiver, said: Said::default(), client: None })
}

/// Sends events to the API server, one after the other.
pub struct Publisher {
    node: String,
    receiver: mpsc::Receiver<Message>,
    said: Said,
    /// Made when it is first needed, and anew when the server does not know who we are any more.
    client: Option<(kube::Client, String)>,
}

impl Publisher {
    /// Publishes until every recorder is gone. `connect` makes a client, and says for which URL.
    pub async fn run(mut self, connect: impl AsyncFn() -> anyhow::Result<(kube::Client, String)>) {
        while let Some(message) = self.receiver.recv().await {
            match message {
                Message::Happened(happening) if self.said.is_news(&happening, Instant::now()) => {
                    let event = describe(&self.node, &happening, SystemTime::now());
                    self.publish(&connect, &event).await;
                }
                Message::Happened(_) => {}
                Message::Flush(done) => {
                    // Whoever waited may have given up.
                    let _ = done.send(());
                }
            }
        }
    }

    async fn publish(&mut self, connect: &impl AsyncFn() -> anyhow::Result<(kube::Client, String)>, event: &Event) {
        for attempt in 0..TRIES {
            match timeout(ANSWER, self.try_to_publish(connect, event)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) if is_final(&error) => return warn!("the API server does not take an event: {error:#}"),
                Ok(Err(error)) => debug!("an event was not taken: {error:#}"),
                Err(_) => debug!("no answer to an event"),
            }
            self.client = None;
            sleep(Duration::from_secs(1 << attempt)).await;
        }
        debug!("gave up on an event");
    }

    async fn try_to_publish(
        &mut self,
        connect: &impl AsyncFn() -> anyhow::Result<(kube::Client, String)>,
        event: &Event,
    ) -> anyhow::Result<()> {
        let (client, url) = match self.client.take() {
            Some(client) => client,
            None => connect().await?,
        };
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let created = Api::<Event>::namespaced(client.clone(), namespace).create(&PostParams::default(), event).await;
        created.with_context(|| url.clone())?;
        self.client = Some((client, url));
        Ok(())
    }
}

/// Whether the same request would be refused again.
fn is_final(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => !matches!(status.code, 401 | 429 | 500..),
        _ => false,
    }
}

/// Remembers what was said lately.
#[derive(Debug, Default)]
struct Said {
    last: HashMap<Happening, Instant>,
}

impl Said {
    /// Whether this was not said lately; then it now was.
    fn is_news(&mut self, happening: &Happening, now: Instant) -> bool {
        self.last.retain(|_, said| now.saturating_duration_since(*said) < SILENCE);
        if self.last.contains_key(happening) || self.last.len() >= MEMORY {
            return false;
        }
        self.last.insert(happening.clone(), now);
        true
    }
}

/// The event that tells of something.
fn describe(node: &str, happening: &Happening, now: SystemTime) -> Event {
    let about = about(node, happening);
    // A clock that Kubernetes' times cannot express is a clock that is not set.
    let now = Timestamp::try_from(now).unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}", about.name.as_deref().unwrap_or_default(), now.as_nanosecond())),
            namespace: Some(about.namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(if matches!(happening, Happening::Starting) { "Normal" } else { "Warning" }.to_owned()),
        reason: Some(reason(happening).to_owned()),
        action: Some(action(happening).to_owned()),
        note: Some(cut(note(node, happening), MAX_NOTE)).filter(|note| !note.is_empty()),
        regarding: Some(about),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(cut(format!("{CONTROLLER}-{node}"), MAX_INSTANCE)),
        ..Event::default()
    }
}

/// The object it is about. Upstream knows no UIDs and gives names in their place.
fn about(node: &str, happening: &Happening) -> ObjectReference {
    match happening {
        Happening::Starting | Happening::AnotherProxy | Happening::HealthzFailed(_) | Happening::MetricsFailed(_) => {
            ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                uid: Some(node.to_owned()),
                ..ObjectReference::default()
            }
        }
        Happening::ServiceHealthCheckFailed { service, .. }
        | Happening::ServiceNotProgrammed { service, .. }
        | Happening::FrontNotProgrammed { service, .. } => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(service.namespace.to_string()),
            name: Some(service.name.to_string()),
            uid: Some(service.to_string()),
            ..ObjectReference::default()
        },
    }
}

fn reason(happening: &Happening) -> &'static str {
    match happening {
        Happening::Starting => "Starting",
        Happening::HealthzFailed(_) => "FailedToStartProxierHealthcheck",
        Happening::MetricsFailed(_) => "FailedToStartMetricServer",
        Happening::AnotherProxy => "AnotherKubeProxy",
        Happening::ServiceHealthCheckFailed { .. } => "FailedToStartServiceHealthcheck",
        Happening::ServiceNotProgrammed { .. } => "ServiceNotProgrammed",
        Happening::FrontNotProgrammed { .. } => "FrontNotProgrammed",
    }
}

fn action(happening: &Happening) -> &'static str {
    match happening {
        Happening::ServiceHealthCheckFailed { .. } => "Listen",
        Happening::AnotherProxy | Happening::ServiceNotProgrammed { .. } | Happening::FrontNotProgrammed { .. } => {
            "Program"
        }
        _ => "StartKubeProxy",
    }
}

fn note(node: &str, happening: &Happening) -> String {
    match happening {
        Happening::Starting => String::new(),
        Happening::AnotherProxy => {
            format!(
                "another kube-proxy, in mode nftables, writes to the same tables of node {node}: end one of the two"
            )
        }
        Happening::HealthzFailed(error) | Happening::MetricsFailed(error) => error.clone(),
        Happening::ServiceHealthCheckFailed { service, port, error } => {
            format!("node {node} failed to start healthcheck {:?} on port {port}: {error}", service.to_string())
        }
        Happening::ServiceNotProgrammed { error, .. } => {
            format!("node {node} goes on without the changes of this Service: {error}")
        }
        Happening::FrontNotProgrammed { reason, .. } => format!("node {node}: {reason}"),
    }
}

/// The text without what is beyond so many bytes.
fn cut(mut text: String, max: usize) -> String {
    while text.len() > max {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failed(error: &str) -> Happening {
        let service = ObjectName { namespace: "demo".into(), name: "web".into() };
        Happening::ServiceHealthCheckFailed { service, port: 30_500, error: error.to_owned() }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    // O11
    #[test]
    fn the_start_is_an_event_of_the_node() {
        let event = serde_json::to_value(describe("node-1", &Happening::Starting, at(1))).unwrap();
        let expected = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "node-1.3b9aca00", "namespace": "default"},
            "eventTime": "1970-01-01T00:00:01.000000Z",
            "type": "Normal",
            "reason": "Starting",
            "action": "StartKubeProxy",
            "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"},
            "reportingController": "kube-proxy",
            "reportingInstance": "kube-proxy-node-1",
        });
        assert_eq!(event, expected);
    }

    // K4
    #[test]
    fn a_health_check_that_cannot_listen_is_an_event_of_its_service() {
        let event = describe("node-1", &failed("address in use"), at(1));
        assert_eq!(event.metadata.namespace.as_deref(), Some("demo"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("FailedToStartServiceHealthcheck"));
        assert_eq!(event.action.as_deref(), Some("Listen"));
        let note = "node node-1 failed to start healthcheck \"demo/web\" on port 30500: address in use";
        assert_eq!(event.note.as_deref(), Some(note));
        let about = event.regarding.unwrap();
        assert_eq!((about.kind.as_deref(), about.name.as_deref()), (Some("Service"), Some("web")));
    }

    #[test]
    fn a_service_that_the_kernel_refuses_has_an_event() {
        let service = ObjectName { namespace: "demo".into(), name: "web".into() };
        let happening = Happening::ServiceNotProgrammed { service, error: "set full".to_owned() };
        let event = describe("node-1", &happening, at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("ServiceNotProgrammed")));
        assert_eq!((event.metadata.namespace.as_deref(), event.action.as_deref()), (Some("demo"), Some("Program")));
        assert!(event.note.is_some_and(|note| note.contains("node-1") && note.ends_with("set full")));
        assert_eq!(event.regarding.and_then(|about| about.name).as_deref(), Some("web"));
    }

    #[test]
    fn a_claim_that_loses_is_an_event_of_its_service() {
        let service = ObjectName { namespace: "demo".into(), name: "web".into() };
        let happening = Happening::FrontNotProgrammed { service, reason: "a/b gets it".to_owned() };
        let event = describe("node-1", &happening, at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("FrontNotProgrammed")));
        assert_eq!(event.action.as_deref(), Some("Program"));
        assert_eq!(event.note.as_deref(), Some("node node-1: a/b gets it"));
        assert_eq!(event.regarding.and_then(|about| about.name).as_deref(), Some("web"));
    }

    // O8
    #[test]
    fn servers_that_end_the_process_are_events_of_the_node() {
        for (happening, reason) in [
            (Happening::HealthzFailed("in use".to_owned()), "FailedToStartProxierHealthcheck"),
            (Happening::MetricsFailed("in use".to_owned()), "FailedToStartMetricServer"),
        ] {
            let event = describe("node-1", &happening, at(1));
            assert_eq!(event.reason.as_deref(), Some(reason));
            assert_eq!((event.type_.as_deref(), event.note.as_deref()), (Some("Warning"), Some("in use")));
            assert_eq!(event.action.as_deref(), Some("StartKubeProxy"));
        }
    }

    #[test]
    fn another_kube_proxy_is_an_event_of_the_node() {
        let event = describe("node-1", &Happening::AnotherProxy, at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("AnotherKubeProxy")));
        assert_eq!(event.regarding.and_then(|about| about.kind).as_deref(), Some("Node"));
        assert!(event.note.is_some_and(|note| note.contains("another kube-proxy") && note.contains("node-1")));
    }

    #[test]
    fn long_texts_are_cut_to_what_the_api_takes() {
        let event = describe(&"n".repeat(253), &failed(&"ä".repeat(2_000)), at(1));
        assert!(event.note.is_some_and(|note| note.len() <= MAX_NOTE && note.ends_with('ä')));
        assert_eq!(event.reporting_instance.map(|instance| instance.len()), Some(MAX_INSTANCE));
    }

    #[test]
    fn the_same_is_said_once_in_ten_minutes() {
        let (mut said, now) = (Said::default(), Instant::now());
        assert!(said.is_news(&failed("in use"), now));
        assert!(!said.is_news(&failed("in use"), now + SILENCE / 2));
        assert!(said.is_news(&failed("no such address"), now));
        assert!(said.is_news(&failed("in use"), now + SILENCE));
    }

    #[test]
    fn memory_is_bounded() {
        let (mut said, now) = (Said::default(), Instant::now());
        let news = (0..2 * MEMORY).filter(|n| said.is_news(&failed(&n.to_string()), now)).count();
        assert_eq!(news, MEMORY);
        assert!(said.is_news(&failed("later"), now + SILENCE));
    }

    #[tokio::test]
    async fn reporting_never_waits() {
        let (recorder, publisher) = new("node-1");
        (0..2 * WAITING).for_each(|n| recorder.record(failed(&n.to_string())));
        assert_eq!(publisher.receiver.len(), WAITING);
        drop(publisher);
        recorder.record(Happening::Starting);
    }
}

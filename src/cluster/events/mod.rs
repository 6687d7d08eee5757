//! Sends Kubernetes Events about this node and its Services, which `kubectl get events` shows.
//!
//! The module takes [`ReportedEvent`]s from any thread and sends events.k8s.io/v1 objects to the API server. Events are not essential: a
//! thread that records an event never waits for the API server, an error of the API server loses only the event, and an event that occurs
//! again is recorded at most once in ten minutes.
//!
//! Any number of Services may be broken at once, and any user who can create Services can break them on purpose. So the number of events of
//! each kind in ten minutes is limited, and so is the number of those about Services of one namespace. A part of the queue is reserved for
//! events about the node. When the rest of the queue is full, a new event about a Service may replace an event of the namespace that has
//! the most events in the queue.

mod content;

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, PostParams};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use content::object;
use rules::model::ObjectName;

/// The largest number of messages in the queue; while it is full, new events are dropped.
const QUEUE: usize = 64;
/// The number of places in the queue that are reserved for events about the node.
const QUEUE_OF_NODE: usize = 16;
/// The time for which an equal event is not recorded again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);
/// The largest number of events of one kind that are recorded within [`REPEAT_INTERVAL`].
const MAX_OF_KIND: usize = 256;
/// The largest number of events of one kind about Services of one namespace that are recorded within [`REPEAT_INTERVAL`].
const MAX_OF_NAMESPACE: usize = 32;
/// The number of attempts to send an event, and the time-out of each attempt.
const TRIES: u32 = 5;
const TIMEOUT: Duration = Duration::from_secs(10);

/// An event for the cluster's operators.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReportedEvent {
    /// The proxy starts (O11).
    Starting,
    /// The healthz server cannot listen, which ends the process (O8). Contains the error.
    HealthzFailed(String),
    /// The metrics server cannot listen, which ends the process (O8). Contains the error.
    MetricsFailed(String),
    /// The configured proxy mode is `ipvs` (P12). Contains the text of the warning.
    Mode(String),
    /// Other programs may get node ports, which are in the node's range of ephemeral ports (N6). Contains the text of the warning.
    EphemeralNodePorts(String),
    /// Another kube-proxy writes to the tables that this process programs.
    AnotherProxy,
    /// The health check of a Service cannot listen on its port (K4).
    ServiceHealthCheckFailed {
        /// The Service that has the health check.
        service: ObjectName,
        /// The health-check node port of the Service.
        port: u16,
        /// The error, and the address at which the proxy tried to listen.
        error: String,
    },
    /// The rules do not have the current state of a Service, because the kernel refuses it (G15) or because it has too many elements (A18).
    ServiceNotProgrammed {
        /// The Service that is left out.
        service: ObjectName,
        /// The kernel's error, or the limit that the Service exceeds.
        error: String,
    },
    /// The proxy does not serve a Service at an address and port, or at a node port, that the Service specifies (A16, A17).
    FrontNotProgrammed {
        /// The Service that specifies the address or port.
        service: ObjectName,
        /// The address or port, and why the proxy does not serve the Service there.
        reason: String,
    },
}

impl ReportedEvent {
    /// Returns the Service that the event is about; `None` if it is about the node.
    const fn service(&self) -> Option<&ObjectName> {
        match self {
            Self::Starting
            | Self::HealthzFailed(_)
            | Self::MetricsFailed(_)
            | Self::Mode(_)
            | Self::EphemeralNodePorts(_)
            | Self::AnotherProxy => None,
            Self::ServiceHealthCheckFailed { service, .. }
            | Self::ServiceNotProgrammed { service, .. }
            | Self::FrontNotProgrammed { service, .. } => Some(service),
        }
    }
}

/// Records events. Clones record for the same [`Publisher`].
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Wakes the publisher when messages wait. The channel is closed once the publisher is dropped.
    bell: mpsc::Sender<()>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug)]
enum Message {
    Event(ReportedEvent),
    /// Asks the publisher for an answer as soon as it has sent or dropped all earlier events.
    Flush(oneshot::Sender<()>),
}

impl Message {
    /// Returns the namespace of the Service that the message is about; `None` if it is not about a Service.
    fn namespace(&self) -> Option<&Arc<str>> {
        match self {
            Self::Event(event) => event.service().map(|service| &service.namespace),
            Self::Flush(_) => None,
        }
    }
}

/// The queue of the publisher, and the events that were recorded recently.
#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Message>,
    recent: RecentEvents,
}

impl Waiting {
    /// Adds an event to the queue. Returns `false` if an equal event was recorded recently, or if a limit is reached.
    fn add(&mut self, event: ReportedEvent, now: Instant) -> bool {
        if !self.recent.is_new(&event, now) {
            return false;
        }
        let place = match event.service() {
            _ if self.messages.len() >= QUEUE => Place::None,
            Some(service) if self.messages.len() >= QUEUE - QUEUE_OF_NODE => self.place_for(&service.namespace),
            _ => Place::Free,
        };
        match place {
            Place::None => return false,
            Place::Of(index) => {
                // The event that is dropped was not sent, so it may be recorded again.
                if let Some(Message::Event(dropped)) = self.messages.remove(index) {
                    self.recent.recorded.remove(&dropped);
                }
            }
            Place::Free => {}
        }
        self.messages.push_back(Message::Event(event.clone()));
        self.recent.add(event, now);
        true
    }

    /// Returns the place of an event that an event of `namespace` may replace: the last one of the namespace with the most events, if that
    /// namespace has more events than `namespace` would have with the new one. Otherwise returns [`Place::None`].
    fn place_for(&self, namespace: &Arc<str>) -> Place {
        let mut counts: HashMap<&Arc<str>, usize> = HashMap::new();
        self.messages.iter().filter_map(Message::namespace).for_each(|of| *counts.entry(of).or_default() += 1);
        let own = counts.get(namespace).copied().unwrap_or_default();
        let most = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > own + 1);
        let last = most.and_then(|(of, _)| self.messages.iter().rposition(|message| message.namespace() == Some(of)));
        last.map_or(Place::None, Place::Of)
    }
}

/// Where a new event fits into the queue.
enum Place {
    Free,
    /// It fits if the message with this index is dropped.
    Of(usize),
    None,
}

impl Recorder {
    /// Records an event. Drops it if an equal event or too many events of its kind or namespace were recorded recently, if the queue has no
    /// room for it, or if the [`Publisher`] is dropped (as the proxy does without an API server).
    pub fn record(&self, event: ReportedEvent) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bell.is_closed() || !waiting.add(event, Instant::now()) {
            return debug!("No event is sent, because it or too many like it were sent lately, or too many wait");
        }
        // Ignore the error: if the channel is full, the publisher wakes up anyway.
        let _ = self.bell.try_send(());
    }

    /// Waits until the events recorded so far are sent or dropped, but not longer than `at_most`. Returns at once if the publisher is
    /// dropped.
    pub async fn flush(&self, at_most: Duration) {
        let (done, published) = oneshot::channel();
        if self.bell.is_closed() {
            return;
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).messages.push_back(Message::Flush(done));
        let _ = self.bell.try_send(());
        if timeout(at_most, published).await.is_err() {
            debug!("The API server did not accept the last events in time");
        }
    }
}

/// Returns a recorder of events for node `node`, and the publisher that sends them.
#[must_use]
pub fn new(node: &str) -> (Recorder, Publisher) {
    let (bell, rung) = mpsc::channel(1);
    let waiting = Arc::<Mutex<Waiting>>::default();
    let publisher = Publisher { node: node.to_owned(), rung, waiting: Arc::clone(&waiting), client: None };
    (Recorder { bell, waiting }, publisher)
}

/// Sends events to the API server, one after the other.
pub struct Publisher {
    node: String,
    rung: mpsc::Receiver<()>,
    waiting: Arc<Mutex<Waiting>>,
    /// The client and the URL of its server; `None` before the first event, and after a failure, because the credentials may have changed.
    client: Option<(kube::Client, String)>,
}

impl Publisher {
    /// Sends events until the queue is empty and every recorder is dropped. `connect` makes a client and returns it with the URL of its
    /// server. Calls `answered` for each request that ends within its time-out: with the URL, the HTTP status if it is known, and the time
    /// that the request took.
    pub async fn run(
        mut self,
        connect: impl AsyncFn() -> anyhow::Result<(kube::Client, String)>,
        answered: impl Fn(&str, Option<u16>, Duration),
    ) {
        while let Some(message) = self.next().await {
            match message {
                Message::Event(event) => {
                    let event = object(&self.node, &event, SystemTime::now());
                    self.publish(&connect, &answered, &event).await;
                }
                Message::Flush(done) => {
                    // Ignore the error: the receiver was dropped if the flush timed out.
                    let _ = done.send(());
                }
            }
        }
    }

    /// Waits for the next message and returns it; returns `None` if no message is left and every recorder was dropped.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).messages.pop_front() {
                return Some(message);
            }
            self.rung.recv().await?;
        }
    }

    async fn publish(
        &mut self,
        connect: &impl AsyncFn() -> anyhow::Result<(kube::Client, String)>,
        answered: &impl Fn(&str, Option<u16>, Duration),
        event: &Event,
    ) {
        for attempt in 0..TRIES {
            match timeout(TIMEOUT, self.try_to_publish(connect, answered, event)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) if is_final(&error) => {
                    return warn!(err = format!("{error:#}"), "The API server refuses an event");
                }
                Ok(Err(error)) => debug!(err = format!("{error:#}"), "Failed to publish a Kubernetes event, retrying"),
                Err(_) => debug!("The API server did not respond to an event in time"),
            }
            self.client = None;
            sleep(Duration::from_secs(1 << attempt)).await;
        }
        debug!(tries = TRIES, "An event is dropped");
    }

    async fn try_to_publish(
        &mut self,
        connect: &impl AsyncFn() -> anyhow::Result<(kube::Client, String)>,
        answered: &impl Fn(&str, Option<u16>, Duration),
        event: &Event,
    ) -> anyhow::Result<()> {
        let (client, url) = match self.client.take() {
            Some(client) => client,
            None => connect().await?,
        };
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let start = Instant::now();
        let created = Api::<Event>::namespaced(client.clone(), namespace).create(&PostParams::default(), event).await;
        let code = match &created {
            Ok(_) => Some(201),
            Err(kube::Error::Api(status)) => Some(status.code),
            Err(_) => None,
        };
        answered(&url, code, start.elapsed());
        created.with_context(|| url.clone())?;
        self.client = Some((client, url));
        Ok(())
    }
}

/// Returns whether to drop an event, because the server refused it and would refuse it again. After a 401, a 429 and an error of the server
/// another attempt may succeed.
fn is_final(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => !matches!(status.code, 401 | 429 | 500..),
        _ => false,
    }
}

/// The events that were recorded within [`REPEAT_INTERVAL`].
#[derive(Debug, Default)]
struct RecentEvents {
    recorded: HashMap<ReportedEvent, Instant>,
}

impl RecentEvents {
    /// Returns whether an event may be recorded: it was not recorded recently, and its kind and its namespace are below their limits.
    fn is_new(&mut self, event: &ReportedEvent, now: Instant) -> bool {
        self.recorded.retain(|_, at| now.saturating_duration_since(*at) < REPEAT_INTERVAL);
        if self.recorded.contains_key(event) {
            return false;
        }
        let of_kind = || self.recorded.keys().filter(|other| discriminant(*other) == discriminant(event));
        let namespace = |event: &ReportedEvent| event.service().map(|service| Arc::clone(&service.namespace));
        let wanted = namespace(event);
        let of_namespace = of_kind().filter(|other| wanted.is_some() && namespace(other) == wanted).count();
        of_kind().count() < MAX_OF_KIND && of_namespace < MAX_OF_NAMESPACE
    }

    /// Notes that an event was recorded.
    fn add(&mut self, event: ReportedEvent, now: Instant) {
        self.recorded.insert(event, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(error: &str) -> ReportedEvent {
        let service = ObjectName::new("demo", "web");
        ReportedEvent::ServiceHealthCheckFailed { service, port: 30_500, error: error.to_owned() }
    }

    impl RecentEvents {
        /// Records an event if no limit forbids that. Returns whether the event was recorded.
        fn takes(&mut self, event: ReportedEvent, now: Instant) -> bool {
            let is_new = self.is_new(&event, now);
            if is_new {
                self.add(event, now);
            }
            is_new
        }
    }

    fn refused(namespace: usize, n: usize) -> ReportedEvent {
        let service = ObjectName::new(format!("tenant-{namespace}"), format!("web-{n}"));
        ReportedEvent::ServiceNotProgrammed { service, error: "set full".to_owned() }
    }

    fn lost(namespace: usize, n: usize) -> ReportedEvent {
        let service = ObjectName::new(format!("tenant-{namespace}"), format!("web-{n}"));
        ReportedEvent::FrontNotProgrammed { service, reason: "a/b gets it".to_owned() }
    }

    // Within ten minutes an event is not sent again (P9), but an event with another text is sent.
    #[test]
    fn an_equal_event_is_sent_once_in_ten_minutes() {
        let (mut recent, now) = (RecentEvents::default(), Instant::now());
        assert!(recent.takes(failed("in use"), now));
        assert!(!recent.takes(failed("in use"), now + REPEAT_INTERVAL / 2));
        assert!(recent.takes(failed("no such address"), now));
        assert!(recent.takes(failed("in use"), now + REPEAT_INTERVAL));
    }

    #[test]
    fn broken_services_of_one_namespace_leave_events_to_others_and_to_other_kinds() {
        let (mut recent, now) = (RecentEvents::default(), Instant::now());
        assert_eq!((0..10_000).filter(|n| recent.takes(lost(0, *n), now)).count(), MAX_OF_NAMESPACE);
        assert!(recent.takes(lost(1, 0), now), "another namespace");
        assert!(recent.takes(refused(0, 0), now), "another kind");
        assert!(recent.takes(ReportedEvent::AnotherProxy, now), "the node");
        assert!(recent.takes(lost(0, 10_000), now + REPEAT_INTERVAL));
    }

    #[test]
    fn the_number_of_remembered_events_is_bounded_in_any_number_of_namespaces() {
        let (mut recent, now) = (RecentEvents::default(), Instant::now());
        let all = (0..100).flat_map(|namespace| (0..100).map(move |n| lost(namespace, n)));
        assert_eq!(all.filter(|event| recent.takes(event.clone(), now)).count(), MAX_OF_KIND);
        assert!(recent.takes(refused(200, 0), now), "another kind");
        assert!(recent.takes(ReportedEvent::AnotherProxy, now), "the node");
    }

    impl Recorder {
        fn waiting(&self) -> usize {
            self.waiting.lock().unwrap().messages.len()
        }
    }

    #[tokio::test]
    async fn services_leave_places_in_the_queue_to_the_node() {
        let (recorder, mut publisher) = new("node-1");
        (0..2 * QUEUE).for_each(|namespace| recorder.record(lost(namespace, 0)));
        assert_eq!(recorder.waiting(), QUEUE - QUEUE_OF_NODE);
        recorder.record(ReportedEvent::AnotherProxy);
        assert_eq!(recorder.waiting(), QUEUE - QUEUE_OF_NODE + 1);
        // An event that was dropped because the queue had no room may be recorded again.
        assert!(publisher.next().await.is_some() && publisher.next().await.is_some());
        recorder.record(lost(2 * QUEUE - 1, 0));
        assert_eq!(recorder.waiting(), QUEUE - QUEUE_OF_NODE);
    }

    #[tokio::test]
    async fn one_namespace_does_not_keep_the_queue_from_another() {
        let (recorder, mut publisher) = new("node-1");
        let failed = |n: usize| ReportedEvent::ServiceHealthCheckFailed {
            service: ObjectName::new("tenant-0", format!("web-{n}")),
            port: 30_500,
            error: "in use".to_owned(),
        };
        let of_tenant = (0..MAX_OF_NAMESPACE).flat_map(|n| [lost(0, n), refused(0, n), failed(n)]);
        of_tenant.for_each(|event| recorder.record(event));
        assert_eq!(recorder.waiting(), QUEUE - QUEUE_OF_NODE);
        (0..QUEUE).for_each(|n| recorder.record(refused(1, n)));
        recorder.record(refused(2, 0));
        assert_eq!(recorder.waiting(), QUEUE - QUEUE_OF_NODE);
        let mut sent = HashMap::new();
        for _ in 0..QUEUE - QUEUE_OF_NODE {
            let Some(Message::Event(event)) = publisher.next().await else { panic!("an event") };
            *sent.entry(event.service().unwrap().namespace.to_string()).or_default() += 1;
        }
        let expected = [("tenant-0", 24), ("tenant-1", 23), ("tenant-2", 1)];
        let all = expected.map(|(namespace, count)| (namespace.to_owned(), count));
        let even = [("tenant-0", 23), ("tenant-1", 24), ("tenant-2", 1)].map(|(of, count)| (of.to_owned(), count));
        assert!(sent == HashMap::from(all) || sent == HashMap::from(even), "{sent:?}");
        // The event that was dropped in favour of another namespace was not sent, so it may be recorded again.
        recorder.record(lost(0, MAX_OF_NAMESPACE / 2 - 1));
        assert_eq!(recorder.waiting(), 1);
    }

    #[tokio::test]
    async fn the_last_events_are_sent_when_every_recorder_is_gone() {
        let (recorder, mut publisher) = new("node-1");
        recorder.record(ReportedEvent::Starting);
        recorder.record(ReportedEvent::AnotherProxy);
        drop(recorder);
        assert!(publisher.next().await.is_some() && publisher.next().await.is_some());
        assert!(publisher.next().await.is_none());
    }

    #[tokio::test]
    async fn recording_never_waits() {
        let (recorder, publisher) = new("node-1");
        (0..2 * QUEUE).for_each(|n| recorder.record(ReportedEvent::Mode(n.to_string())));
        assert_eq!(recorder.waiting(), QUEUE);
        drop(publisher);
        recorder.record(ReportedEvent::Starting);
        assert_eq!(recorder.waiting(), QUEUE);
    }
}

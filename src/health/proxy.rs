//! The health of the proxy: does it keep up with what it is asked for?
//!
//! [`ProxyHealth`] is pure, the clocks are handed in: ages are measured with [`Instant`], which no clock change disturbs, and
//! what is told to the outside is [`SystemTime`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde::Serialize;
use tokio::net::TcpListener;

use super::{Observer, Page, Shared};
use crate::http::{self, Answer, Limits, Server};
use crate::model::{Family, ObjectName};

/// What Go prints for a time that was never set.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Why nothing is ready at first.
const BEGINNING: &str = "the first sync has not been done";

/// What is known about the sync loop and the node.
#[derive(Clone, Debug)]
pub struct ProxyHealth {
    timeout: Duration,
    families: BTreeMap<Family, FamilyHealth>,
    eligible: bool,
    /// Why the rules are not those that the cluster asks for.
    not_ready: Option<String>,
    quarantined: Vec<String>,
    oversized: Vec<String>,
    /// Since when the sync thread works without having waited for events.
    busy_since: Option<Instant>,
    /// Why no sync may happen, through no fault of this process.
    held_back: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct FamilyHealth {
    /// The last success; at first the start of the sync loop (L1).
    updated: SystemTime,
    /// The oldest request that no sync has served (L2).
    waiting_since: Option<Instant>,
}

impl ProxyHealth {
    /// No family is registered yet, the node is unknown, nothing is ready.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let not_ready = Some(BEGINNING.to_owned());
        Self {
            timeout,
            families: BTreeMap::new(),
            eligible: false,
            not_ready,
            quarantined: Vec::new(),
            oversized: Vec::new(),
            busy_since: None,
            held_back: None,
        }
    }

    /// A sync of a registered family was asked for; only the oldest unserved request counts (L2).
    pub fn queued(&mut self, family: Family, now: Instant) {
        if let Some(health) = self.families.get_mut(&family) {
            health.waiting_since.get_or_insert(now);
        }
    }

    /// The family's loop begins, which registers it (L1), or a sync succeeded, which serves all its requests (L2).
    pub fn synced(&mut self, family: Family, now: SystemTime) {
        self.families.insert(family, FamilyHealth { updated: now, waiting_since: None });
    }

    /// The sync thread begins to work. It should wait for events again within the time-out of L3: a thread that is stuck cannot tell
    /// of requests that nobody serves.
    pub fn working(&mut self, now: Instant) {
        self.busy_since = Some(now);
    }

    /// The sync thread waits for events; it may do so for ever.
    pub fn waiting(&mut self) {
        self.busy_since = None;
    }

    /// No sync may happen for this reason, or syncs may happen again. What waited meanwhile has waited since now.
    pub fn held_back(&mut self, reason: Option<String>, now: Instant) {
        self.held_back = reason;
        self.families.values_mut().filter_map(|family| family.waiting_since.as_mut()).for_each(|since| *since = now);
    }

    /// Whether the node is eligible for traffic; an unknown one is not (L5).
    pub fn node(&mut self, eligible: Option<bool>) {
        self.eligible = eligible.unwrap_or(false);
    }

    /// Why the rules are not those that the cluster asks for; `None` when they are.
    pub fn ready(&mut self, not_ready: Option<String>) {
        self.not_ready = not_ready;
    }

    /// These Services are left out of the rules. That is told, and makes nobody unhealthy: all others are served.
    pub fn quarantined<'a>(&mut self, services: impl Iterator<Item = &'a ObjectName>) {
        self.quarantined = services.map(ToString::to_string).collect();
    }

    /// The same for Services that are too large.
    pub fn oversized<'a>(&mut self, services: impl Iterator<Item = &'a ObjectName>) {
        self.oversized = services.map(ToString::to_string).collect();
    }

    /// Whether every family keeps up (L3), and the thread that serves them is not stuck.
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.stuck_for(now).is_none() && self.families.values().all(|family| self.keeps_up(family, now))
    }

    fn keeps_up(&self, family: &FamilyHealth, now: Instant) -> bool {
        let is_served = |since| now.saturating_duration_since(since) < self.timeout;
        self.stuck_for(now).is_none() && (self.held_back.is_some() || family.waiting_since.is_none_or(is_served))
    }

    /// How long the sync thread has been busy, if that is too long.
    fn stuck_for(&self, now: Instant) -> Option<Duration> {
        let busy = now.saturating_duration_since(self.busy_since?);
        (busy >= self.timeout).then_some(busy)
    }

    /// The answer to `/livez`, and whether it is a good one (L4).
    #[must_use]
    pub fn livez(&self, now: Instant, clock: SystemTime) -> (bool, String) {
        let healthy = self.is_healthy(now);
        let body = Body { reason: self.hindrance(now), ..self.body(healthy, now, clock) };
        (healthy, body.text())
    }

    /// The answer to `/readyz`, and whether it is a good one: the last sync succeeded, and the proxy keeps up.
    #[must_use]
    pub fn readyz(&self, now: Instant, clock: SystemTime) -> (bool, String) {
        let good = self.is_healthy(now) && self.held_back.is_none() && self.not_ready.is_none();
        let late = || "a sync that was asked for has not been done in time".to_owned();
        let reason = self.hindrance(now).or_else(|| self.not_ready.clone()).or_else(|| (!good).then(late));
        (good, Body { ready: Some(good), reason, ..self.body(good, now, clock) }.text())
    }

    /// The answer to `/healthz`, and whether it is a good one (L4).
    #[must_use]
    pub fn healthz(&self, now: Instant, clock: SystemTime) -> (bool, String) {
        let good = self.is_healthy(now) && self.eligible;
        let body =
            Body { node_eligible: Some(self.eligible), reason: self.hindrance(now), ..self.body(good, now, clock) };
        (good, body.text())
    }

    /// What keeps syncs from happening.
    fn hindrance(&self, now: Instant) -> Option<String> {
        let stuck = self.stuck_for(now).map(|busy| format!("the sync thread has been busy for {} s", busy.as_secs()));
        stuck.or_else(|| self.held_back.clone())
    }

    /// A good answer says that all is up to date now; a bad one, when it last was.
    fn body(&self, good: bool, now: Instant, clock: SystemTime) -> Body<'_> {
        let newest = self.families.values().map(|family| family.updated).max();
        let status = self.families.iter().map(|(name, family)| {
            let status = FamilyBody { last_updated: rfc3339(family.updated), healthy: self.keeps_up(family, now) };
            (name.to_string(), status)
        });
        Body {
            last_updated: if good { rfc3339(clock) } else { newest.map_or_else(|| NEVER.to_owned(), rfc3339) },
            current_time: rfc3339(clock),
            node_eligible: None,
            ready: None,
            healthy: self.is_healthy(now),
            status: status.collect(),
            reason: None,
            quarantined_services: &self.quarantined,
            oversized_services: &self.oversized,
        }
    }
}

/// The order of the fields is that of the answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    /// Of `/readyz`, which is our own.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyBody>,
    /// This field and the two next are our own, there only when there is something to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    quarantined_services: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    oversized_services: &'a [String],
}

impl Body<'_> {
    fn text(&self) -> String {
        // Text, truth values and maps of them always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

/// As Go prints it: in UTC, with as many digits of the second as it takes.
fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| NEVER.to_owned(), |time| time.to_string())
}

/// Serves `/healthz`, `/livez` and `/readyz`; any method will do, other paths are not found.
pub(super) fn start(listener: TcpListener, limits: Limits, health: Shared, observer: Arc<dyn Observer>) -> Server {
    Server::start(listener, limits, move |request| {
        let answer = answer(&health, &*observer, request.uri().path());
        async { answer }
    })
}

fn answer(health: &Shared, observer: &dyn Observer, path: &str) -> Answer {
    let (now, clock) = (Instant::now(), SystemTime::now());
    let (page, (good, body)) = match path {
        "/healthz" => (Page::Healthz, health.lock().healthz(now, clock)),
        "/livez" => (Page::Livez, health.lock().livez(now, clock)),
        "/readyz" => (Page::Readyz, health.lock().readyz(now, clock)),
        _ => return http::not_found(),
    };
    let status = http::status(good);
    observer.answered(page, status.as_u16());
    http::answer(status, http::JSON, body)
}

#[cfg(test)]
mod tests;

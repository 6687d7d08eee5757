//! The health of the proxy itself: whether the sync loop keeps up with the requested syncs.
//!
//! [`ProxyHealth`] is pure: the caller passes in both clocks. Ages are measured with [`Instant`], which does not jump when the clock is
//! set, and responses show [`SystemTime`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde::Serialize;
use tokio::net::TcpListener;

use super::{Observer, Page, Shared};
use component::http::{self, Limits, Response, Server};
use inspect::running::Problem;
use rules::model::{Family, ObjectName};

/// How Go prints a time that was never set.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The reason that `/readyz` gives until another reason is set or a sync succeeds.
const NO_SYNC_YET: &str = "the first sync has not been done";

/// The reason that `/healthz` gives while an operator drains the node.
const DRAINED: &str = "the node is drained: its Node has the mark that nftables.drainOn (--drain-on) names";

/// The state of the sync loop and of the node.
#[derive(Clone, Debug)]
pub(super) struct ProxyHealth {
    timeout: Duration,
    families: BTreeMap<Family, FamilyHealth>,
    eligible: bool,
    /// Whether an operator drains the node (L10).
    drained: bool,
    /// Why the rules are not those that the cluster asks for; `None` when they are.
    not_ready: Option<String>,
    quarantined: Vec<String>,
    oversized: Vec<String>,
    /// The number of claims on frontends that Services do not get.
    lost_claims: usize,
    /// The problems that the sync loop found.
    problems: Vec<Problem>,
    /// The problem that the proxy waits for its first objects; `None` when it has them.
    waiting: Option<Problem>,
    /// The problem that the API server does not answer; `None` when it does.
    api_server: Option<Problem>,
    /// The state of the watch of each kind of objects from which anything was received.
    followed: BTreeMap<&'static str, Followed>,
    /// Since when the sync thread works without having waited for events; `None` while it waits.
    busy_since: Option<Instant>,
    /// Why this process does not have the writer lock and must not sync; `None` when it may.
    held_back: Option<String>,
    /// The families that are not programmed, because another program owns their tables.
    blocked: Vec<Family>,
}

/// The state of the watch of a kind of objects.
#[derive(Clone, Copy, Debug)]
struct Followed {
    /// Whether the API server lets this process follow the kind now.
    connected: bool,
    /// When the API server last sent anything about the kind, bookmarks included, on both clocks.
    received: (Instant, SystemTime),
}

#[derive(Clone, Copy, Debug)]
struct FamilyHealth {
    /// When the last sync succeeded; at first, when the sync loop started (L1).
    updated: SystemTime,
    /// The time of the oldest request that no successful sync has served (L2).
    waiting_since: Option<Instant>,
}

impl ProxyHealth {
    /// Makes the initial state: no family is registered, the node is unknown, nothing is ready.
    #[must_use]
    pub(super) fn new(timeout: Duration) -> Self {
        let not_ready = Some(NO_SYNC_YET.to_owned());
        Self {
            timeout,
            families: BTreeMap::new(),
            eligible: false,
            drained: false,
            not_ready,
            quarantined: Vec::new(),
            oversized: Vec::new(),
            lost_claims: 0,
            problems: Vec::new(),
            waiting: None,
            api_server: None,
            followed: BTreeMap::new(),
            busy_since: None,
            held_back: None,
            blocked: Vec::new(),
        }
    }

    /// Notes that a sync of a registered family was requested; only the oldest unserved request counts (L2).
    pub(super) fn queued(&mut self, family: Family, now: Instant) {
        if let Some(health) = self.families.get_mut(&family) {
            health.waiting_since.get_or_insert(now);
        }
    }

    /// Notes for a family that the sync loop starts, which registers the family (L1), or that a sync succeeded, which serves all requests of
    /// the family (L2).
    pub(super) fn synced(&mut self, family: Family, now: SystemTime) {
        self.families.insert(family, FamilyHealth { updated: now, waiting_since: None });
    }

    /// Notes that the sync thread starts to work. It should wait for events again within the time-out (L3): a stuck thread cannot report
    /// the requests that wait for it.
    pub(super) fn working(&mut self, now: Instant) {
        self.busy_since = Some(now);
    }

    /// Notes that the sync thread waits for events; it may do so for ever.
    pub(super) fn waiting(&mut self) {
        self.busy_since = None;
    }

    /// Sets why this process does not have the writer lock and must not sync; `None` when it may. The age of pending requests counts from
    /// `now` on.
    pub(super) fn held_back(&mut self, reason: Option<String>, now: Instant) {
        self.held_back = reason;
        self.families.values_mut().filter_map(|family| family.waiting_since.as_mut()).for_each(|since| *since = now);
    }

    /// Sets the families that are not programmed, because another program owns their tables (L12).
    pub(super) fn blocked(&mut self, families: Vec<Family>) {
        self.blocked = families;
    }

    /// Sets whether the node is eligible for traffic; an unknown node is not (L5).
    pub(super) fn node(&mut self, eligible: Option<bool>) {
        self.eligible = eligible.unwrap_or(false);
    }

    /// Sets whether an operator drains the node (L10).
    pub(super) fn drained(&mut self, drained: bool) {
        self.drained = drained;
    }

    /// Returns whether an operator drains the node (L10).
    pub(super) const fn is_drained(&self) -> bool {
        self.drained
    }

    /// Sets why the rules are not those that the cluster asks for; `None` when they are.
    pub(super) fn ready(&mut self, not_ready: Option<String>) {
        self.not_ready = not_ready;
    }

    /// Sets the Services that the kernel refuses. The responses name them; the proxy stays healthy, because all other Services are served.
    pub(super) fn quarantined<'a>(&mut self, services: impl Iterator<Item = &'a ObjectName>) {
        self.quarantined = services.map(ToString::to_string).collect();
    }

    /// Sets the Services that are left out because they are too large; the responses name them.
    pub(super) fn oversized<'a>(&mut self, services: impl Iterator<Item = &'a ObjectName>) {
        self.oversized = services.map(ToString::to_string).collect();
    }

    /// Sets the problems that the sync loop found. The responses show them; the proxy stays healthy.
    pub(super) fn problems(&mut self, problems: Vec<Problem>) {
        self.problems = problems;
    }

    /// Sets the problem to show while the proxy waits for its first objects; `None` when it has them.
    pub(super) fn waits(&mut self, problem: Option<Problem>) {
        self.waiting = problem;
    }

    /// Sets the problem to show while the API server does not answer; `None` when it answers again.
    pub(super) fn api_server(&mut self, problem: Option<Problem>) {
        self.api_server = problem;
    }

    /// Sets the number of claims on frontends that Services do not get.
    pub(super) fn lost_claims(&mut self, claims: usize) {
        self.lost_claims = claims;
    }

    /// Notes that the API server sent something about a kind of objects.
    pub(super) fn received(&mut self, kind: &'static str, now: Instant, clock: SystemTime) {
        self.followed.insert(kind, Followed { connected: true, received: (now, clock) });
    }

    /// Notes that the API server does not let this process follow a kind of objects any more.
    pub(super) fn disconnected(&mut self, kind: &'static str) {
        self.followed.entry(kind).and_modify(|followed| followed.connected = false);
    }

    /// Returns whether every family keeps up, and the sync thread is not stuck (L3).
    #[must_use]
    pub(super) fn is_healthy(&self, now: Instant) -> bool {
        self.stuck_for(now).is_none() && self.families.values().all(|family| self.keeps_up(family, now))
    }

    /// Returns whether every family that can be programmed keeps up, and the sync thread is not stuck (L3, L12).
    fn is_alive(&self, now: Instant) -> bool {
        let mut families = self.families.iter().filter(|(name, _)| !self.blocked.contains(name));
        self.stuck_for(now).is_none() && families.all(|(_, family)| self.keeps_up(family, now))
    }

    fn keeps_up(&self, family: &FamilyHealth, now: Instant) -> bool {
        let is_served = |since| now.saturating_duration_since(since) < self.timeout;
        self.stuck_for(now).is_none() && (self.held_back.is_some() || family.waiting_since.is_none_or(is_served))
    }

    /// Returns how long the sync thread has been busy if that is `timeout` or longer; else `None`.
    fn stuck_for(&self, now: Instant) -> Option<Duration> {
        let busy = now.saturating_duration_since(self.busy_since?);
        (busy >= self.timeout).then_some(busy)
    }

    /// Returns whether the status of `/livez` is 200, and the body of the response (L4).
    #[must_use]
    pub(super) fn livez(&self, now: Instant, clock: SystemTime) -> (bool, String) {
        let healthy = self.is_alive(now);
        let body = Body { healthy, reason: self.blocked_by(now), ..self.body(healthy, now, clock) };
        (healthy, body.text())
    }

    /// Returns whether the status of `/readyz` is 200, and the body of the response: the status is 200 if the proxy is healthy, may sync, and
    /// has no reason not to be ready (L8).
    #[must_use]
    pub(super) fn readyz(&self, now: Instant, clock: SystemTime) -> (bool, String) {
        let good = self.is_healthy(now) && self.held_back.is_none() && self.not_ready.is_none();
        let late = || "a sync that was requested has not been done in time".to_owned();
        let reason = self.blocked_by(now).or_else(|| self.not_ready.clone()).or_else(|| (!good).then(late));
        let body = Body { ready: Some(good), reason, ..self.detailed_body(good, now, clock) };
        (good, body.text())
    }

    /// Returns whether the status of `/healthz` is 200, and the body of the response (L4, L10).
    #[must_use]
    pub(super) fn healthz(&self, now: Instant, clock: SystemTime) -> (bool, String) {
        let eligible = self.eligible && !self.drained;
        let good = self.is_healthy(now) && eligible;
        let reason = self.blocked_by(now).or_else(|| self.drained.then(|| DRAINED.to_owned()));
        let body = Body { node_eligible: Some(eligible), reason, ..self.detailed_body(good, now, clock) };
        (good, body.text())
    }

    /// Returns that the sync thread is stuck, or why it must not sync; `None` if neither is the case.
    fn blocked_by(&self, now: Instant) -> Option<String> {
        let stuck = self.stuck_for(now).map(|busy| format!("the sync thread has been busy for {} s", busy.as_secs()));
        stuck.or_else(|| self.held_back.clone())
    }

    /// Returns the fields of `/healthz` and `/readyz`: those of all responses, when the API server last sent anything, and how much
    /// is left out of the rules (L11).
    fn detailed_body(&self, good: bool, now: Instant, clock: SystemTime) -> Body<'_> {
        let oldest = self.followed.values().map(|followed| followed.received).min_by_key(|(at, _)| *at);
        let word = oldest.map(|(at, shown)| ApiServerBody {
            connected: self.followed.values().all(|followed| followed.connected),
            last_received: rfc3339(shown),
            age_seconds: now.saturating_duration_since(at).as_secs(),
        });
        let left_out =
            LeftOutBody { services: self.quarantined.len() + self.oversized.len(), frontends: self.lost_claims };
        let left_out = Some(left_out).filter(|left_out| left_out.services + left_out.frontends > 0);
        Body { api_server: word, left_out, ..self.body(good, now, clock) }
    }

    /// Returns the fields that all responses have. `lastUpdated` is the present time with status 200, else the time of the last successful
    /// sync (L1, L2).
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
            problems: self.waiting.iter().chain(&self.api_server).chain(&self.problems).collect(),
            api_server: None,
            left_out: None,
        }
    }
}

/// The body of a response; the fields are in the order of the JSON text.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    /// Only in `/readyz`, which upstream does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyBody>,
    /// Upstream does not have this field and those after it; each is left out when it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    quarantined_services: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    oversized_services: &'a [String],
    /// The problems, whose sentences commands such as `kube-proxy services` print.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<&'a Problem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_server: Option<ApiServerBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutBody>,
}

/// When the API server last sent anything, for the kind of objects that has been silent for the longest time.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiServerBody {
    /// Whether the API server lets this process follow all kinds.
    connected: bool,
    last_received: String,
    age_seconds: u64,
}

/// How much is left out of the rules.
#[derive(Serialize)]
struct LeftOutBody {
    /// Services that the kernel refuses, or that are too large.
    services: usize,
    /// Addresses with a port, and node ports, that a Service claims and does not get.
    frontends: usize,
}

impl Body<'_> {
    fn text(&self) -> String {
        // Serializing strings, booleans and maps cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

/// Formats a time as Go does: in UTC, with only as many decimals of the second as needed.
fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| NEVER.to_owned(), |time| time.to_string())
}

/// Serves `/healthz`, `/livez` and `/readyz` for every method; other paths give 404.
pub(super) fn start(listener: TcpListener, limits: Limits, health: Shared, observer: Arc<dyn Observer>) -> Server {
    Server::start(listener, limits, move |request| {
        let response = response(&health, &*observer, request.uri().path());
        async { response }
    })
}

fn response(health: &Shared, observer: &dyn Observer, path: &str) -> Response {
    let (now, clock) = (Instant::now(), SystemTime::now());
    let (page, (good, body)) = match path {
        "/healthz" => (Page::Healthz, health.lock().healthz(now, clock)),
        "/livez" => (Page::Livez, health.lock().livez(now, clock)),
        "/readyz" => (Page::Readyz, health.lock().readyz(now, clock)),
        _ => return http::not_found(),
    };
    let status = http::status(good);
    observer.answered(page, status.as_u16());
    http::response(status, http::JSON, body)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;

    use super::*;
    use crate::health::testing::Notes;
    use crate::health::{Listen, Servers};
    use component::http::testing::{exchange, free_port, get, without_date};

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Returns the time `millis` milliseconds after 2026-01-01T00:00:00Z.
    fn clock(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600) + Duration::from_millis(millis)
    }

    fn registered(families: &[Family]) -> (ProxyHealth, Instant) {
        let mut health = ProxyHealth::new(TIMEOUT);
        health.node(Some(true));
        families.iter().for_each(|family| health.synced(*family, clock(0)));
        (health, Instant::now())
    }

    // Before any family is registered, the status is empty and healthy (L1).
    #[test]
    fn before_any_family_is_registered_the_status_is_empty_and_healthy() {
        let health = ProxyHealth::new(TIMEOUT);
        let (good, body) = health.livez(Instant::now(), clock(500));
        assert!(good);
        let time = "2026-01-01T00:00:00.5Z";
        assert_eq!(body, format!(r#"{{"lastUpdated":"{time}","currentTime":"{time}","healthy":true}}"#));
        let (good, body) = health.healthz(Instant::now(), clock(500));
        assert!(!good, "the node is unknown");
        let expected = r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-01T00:00:00.5Z","nodeEligible":false,"healthy":true}"#;
        assert_eq!(body, expected);
    }

    // A family that has just been registered counts as updated now (L1).
    #[test]
    fn registration_counts_as_updated_now() {
        let (health, now) = registered(&Family::BOTH);
        let (good, body) = health.healthz(now, clock(1234));
        assert!(good);
        let time = "2026-01-01T00:00:01.234Z";
        let expected = format!(
            r#"{{"lastUpdated":"{time}","currentTime":"{time}","nodeEligible":true,"healthy":true,"status":{{"IPv4":{{"lastUpdated":"2026-01-01T00:00:00Z","healthy":true}},"IPv6":{{"lastUpdated":"2026-01-01T00:00:00Z","healthy":true}}}}}}"#
        );
        assert_eq!(body, expected);
    }

    // Only the oldest unserved request counts, and a success serves all (L2).
    #[test]
    fn only_the_oldest_unserved_request_counts_and_a_success_serves_all() {
        let (mut health, start) = registered(&[Family::V4]);
        health.queued(Family::V4, start);
        health.queued(Family::V4, start + TIMEOUT / 2);
        assert!(!health.is_healthy(start + TIMEOUT));
        health.synced(Family::V4, clock(60_000));
        assert!(health.is_healthy(start + 10 * TIMEOUT), "nothing is waiting");
        health.queued(Family::V4, start + 10 * TIMEOUT);
        assert!(health.is_healthy(start + 10 * TIMEOUT + TIMEOUT / 2));
    }

    // A request may stay unserved until the timeout and not longer (L3, L7).
    #[test]
    fn a_request_may_stay_unserved_until_the_timeout_and_not_longer() {
        let (mut health, start) = registered(&[Family::V4]);
        health.queued(Family::V4, start);
        assert!(health.is_healthy(start + TIMEOUT - Duration::from_nanos(1)));
        assert!(!health.is_healthy(start + TIMEOUT));
    }

    // One family that falls behind makes the proxy unhealthy (L3).
    #[test]
    fn one_family_that_falls_behind_makes_the_proxy_unhealthy() {
        let (mut health, start) = registered(&Family::BOTH);
        health.queued(Family::V4, start);
        health.queued(Family::V6, start);
        health.synced(Family::V4, clock(1000));
        let (good, body) = health.livez(start + TIMEOUT, clock(60_000));
        assert!(!good);
        let expected = r#"{"lastUpdated":"2026-01-01T00:00:01Z","currentTime":"2026-01-01T00:01:00Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:01Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-01T00:00:00Z","healthy":false}}}"#;
        assert_eq!(body, expected);
    }

    // A family whose table another program owns does not make kubelet restart the proxy (L12).
    #[test]
    fn a_family_whose_table_another_program_owns_is_unhealthy_and_livez_is_not() {
        let (mut health, start) = registered(&Family::BOTH);
        Family::BOTH.iter().for_each(|family| health.queued(*family, start));
        health.synced(Family::V4, clock(1000));
        health.blocked(vec![Family::V6]);
        let (now, shown) = (start + TIMEOUT, clock(60_000));
        let (good, body) = health.livez(now, shown);
        assert!(
            good && body.contains(r#""healthy":true,"status":{"IPv4""#) && body.contains(r#""healthy":false}}"#),
            "{body}"
        );
        assert!(!health.healthz(now, shown).0);
        health.queued(Family::V4, start);
        assert!(!health.livez(now, shown).0, "the other family counts");
        health.synced(Family::V4, clock(1000));
        health.blocked(Vec::new());
        assert!(!health.livez(now, shown).0, "it could be programmed by now");
    }

    // A drained node is not eligible: `/healthz` answers 503 with the reason, and the other pages answer as before (L10).
    #[test]
    fn only_healthz_asks_whether_the_node_is_drained() {
        let (mut health, now) = registered(&[Family::V4]);
        health.ready(None);
        health.drained(true);
        let (good, body) = health.healthz(now, clock(0));
        assert!(!good && body.contains(r#""nodeEligible":false"#) && body.contains(DRAINED), "{body}");
        assert!(health.livez(now, clock(0)).0 && health.readyz(now, clock(0)).0);
        health.drained(false);
        assert!(health.healthz(now, clock(0)).0);
    }

    // `/healthz` and `/readyz` say how long ago the API server last sent anything, for the kind that has been silent for the longest time,
    // and how much is left out (L11).
    #[test]
    fn the_age_of_the_api_servers_word_and_what_is_left_out_are_fields() {
        let (mut health, start) = registered(&[Family::V4]);
        let after = |seconds| start + Duration::from_secs(seconds);
        let fields = |health: &ProxyHealth, now| {
            let pages =
                [health.healthz(now, clock(0)).1, health.readyz(now, clock(0)).1, health.livez(now, clock(0)).1];
            let [healthz, readyz, livez] = pages.map(|body| serde_json::from_str::<serde_json::Value>(&body).unwrap());
            assert_eq!((&healthz["apiServer"], &healthz["leftOut"]), (&readyz["apiServer"], &readyz["leftOut"]));
            assert!(livez["apiServer"].is_null() && livez["leftOut"].is_null(), "{livez}");
            (healthz["apiServer"].clone(), healthz["leftOut"].clone())
        };
        let nothing = serde_json::Value::Null;
        assert_eq!(fields(&health, start), (nothing.clone(), nothing.clone()));
        health.disconnected("Node");
        health.received("Node", after(0), clock(0));
        health.received("Service", after(5), clock(5000));
        let word = |connected, at: &str, age| serde_json::json!({"connected": connected, "lastReceived": at, "ageSeconds": age});
        assert_eq!(fields(&health, after(30)), (word(true, "2026-01-01T00:00:00Z", 30), nothing));
        health.received("Node", after(40), clock(40_000));
        health.disconnected("Service");
        health.lost_claims(3);
        health.quarantined([ObjectName::new("a", "b")].iter());
        health.oversized([ObjectName::new("a", "c")].iter());
        let left_out = serde_json::json!({"services": 2, "frontends": 3});
        assert_eq!(fields(&health, after(605)), (word(false, "2026-01-01T00:00:05Z", 600), left_out));
    }

    // Only `/healthz` asks whether the node is eligible (L4, L5).
    #[test]
    fn only_healthz_asks_whether_the_node_is_eligible() {
        let (mut health, now) = registered(&[Family::V4]);
        for (eligible, good) in [(Some(true), true), (Some(false), false), (None, false)] {
            health.node(eligible);
            assert_eq!(health.healthz(now, clock(0)).0, good);
            assert!(health.livez(now, clock(0)).0);
        }
        let (_, body) = health.healthz(now, clock(9));
        assert!(body.starts_with(r#"{"lastUpdated":"2026-01-01T00:00:00Z","currentTime":"2026-01-01T00:00:00.009Z","nodeEligible":false,"healthy":true,"#));
    }

    // Services that are left out are named and the proxy stays healthy (L4).
    #[test]
    fn services_that_are_left_out_are_named_and_the_proxy_stays_healthy() {
        let (mut health, now) = registered(&[Family::V4]);
        let names = [ObjectName::new("shop", "a"), ObjectName::new("shop", "b")];
        let before = [health.livez(now, clock(0)), health.healthz(now, clock(0))];
        health.quarantined(names.iter());
        let counts = ["", r#","leftOut":{"services":2,"frontends":0}"#];
        for (((_, without), (good, body)), count) in
            before.iter().zip([health.livez(now, clock(0)), health.healthz(now, clock(0))]).zip(counts)
        {
            let open = without.strip_suffix('}').unwrap();
            let named = format!(r#"{open},"quarantinedServices":["shop/a","shop/b"]{count}}}"#);
            assert!(good);
            assert_eq!(body, named);
        }
        health.quarantined([].into_iter());
        health.oversized(names[..1].iter());
        let (good, body) = health.livez(now, clock(0));
        assert!(good && body.ends_with(r#","oversizedServices":["shop/a"]}"#), "{body}");
        health.oversized([].into_iter());
        assert_eq!([health.livez(now, clock(0)), health.healthz(now, clock(0))], before);
    }

    // A sync thread that works for too long makes the proxy unhealthy and says why (L3).
    #[test]
    fn a_sync_thread_that_works_for_too_long_makes_the_proxy_unhealthy_and_says_why() {
        let (mut health, start) = registered(&Family::BOTH);
        health.working(start);
        assert!(health.is_healthy(start + TIMEOUT - Duration::from_nanos(1)));
        assert_eq!(health.livez(start, clock(0)).1.matches("reason").count(), 0);
        let (good, body) = health.healthz(start + TIMEOUT + Duration::from_secs(1), clock(61_000));
        assert!(!good);
        let expected = r#"{"lastUpdated":"2026-01-01T00:00:00Z","currentTime":"2026-01-01T00:01:01Z","nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:00Z","healthy":false},"IPv6":{"lastUpdated":"2026-01-01T00:00:00Z","healthy":false}},"reason":"the sync thread has been busy for 61 s"}"#;
        assert_eq!(body, expected);
        health.waiting();
        assert!(health.is_healthy(start + 100 * TIMEOUT), "it may wait for as long as nothing happens");
    }

    // `/readyz` answers 200 while syncs succeed; otherwise it says why they do not (L8).
    #[test]
    fn readyz_is_200_while_syncs_succeed_and_says_why_it_is_not() {
        let (mut health, start) = registered(&[Family::V4]);
        let answer = |health: &ProxyHealth, at| {
            let (good, body) = health.readyz(at, clock(0));
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["ready"], good);
            (good, body["reason"].as_str().map(str::to_owned))
        };
        let not = |reason: &str| (false, Some(reason.to_owned()));
        assert_eq!(answer(&health, start), not("the first sync has not been done"));
        health.ready(Some("waiting for the API server".to_owned()));
        assert_eq!(answer(&health, start), not("waiting for the API server"));
        assert!(health.livez(start, clock(0)).0, "a restart would not help");
        health.ready(None);
        assert_eq!(answer(&health, start), (true, None));
        health.node(Some(false));
        assert!(answer(&health, start).0, "the node's eligibility is another question");
        health.ready(Some("the last sync failed: refused".to_owned()));
        assert_eq!(answer(&health, start), not("the last sync failed: refused"));
        health.ready(None);
        health.queued(Family::V4, start);
        assert_eq!(answer(&health, start + TIMEOUT), not("a sync that was requested has not been done in time"));
        health.working(start);
        assert_eq!(answer(&health, start + TIMEOUT), not("the sync thread has been busy for 60 s"));
        let (_, body) = health.readyz(start + TIMEOUT, clock(0));
        let now = "2026-01-01T00:00:00Z";
        let expected = format!(
            r#"{{"lastUpdated":"{now}","currentTime":"{now}","ready":false,"healthy":false,"status":{{"IPv4":{{"lastUpdated":"{now}","healthy":false}}}},"reason":"the sync thread has been busy for 60 s"}}"#
        );
        assert_eq!(body, expected);
    }

    #[test]
    fn times_are_printed_as_go_does() {
        let at = |nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos);
        assert_eq!(rfc3339(at(0)), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(at(120_000_000)), "1970-01-01T00:00:00.12Z");
        assert_eq!(rfc3339(at(123_456_789)), "1970-01-01T00:00:00.123456789Z");
    }

    /// Replaces every time of the years 2000 to 2099 in a response by `NOW`.
    fn without_times(answer: &str) -> String {
        answer
            .split('"')
            .map(|part| if part.starts_with("20") && part.ends_with('Z') { "NOW" } else { part })
            .collect::<Vec<_>>()
            .join("\"")
    }

    /// Starts the servers with `health` as the proxy's health, and without health-check node ports.
    fn run(health: ProxyHealth, listen: Listen, notes: &Arc<Notes>) -> tokio::task::JoinHandle<std::io::Result<()>> {
        let (reporter, servers) = crate::health::new(TIMEOUT);
        let servers = Servers { proxy: Shared(Arc::new(Mutex::new(health))), ..servers };
        let notes = Arc::clone(notes);
        tokio::spawn(async move {
            // Without a reporter, the health-check servers of Services would end.
            let _reporter = reporter;
            servers.run(listen, notes).await
        })
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    // The responses of a server on a socket, byte for byte, without the date and the times (L4).
    #[tokio::test]
    async fn responses_over_a_socket() {
        let (mut health, _) = registered(&[Family::V4]);
        health.node(Some(false));
        let (address, notes) = (at(free_port()), Notes::new());
        let server = run(health, Listen { healthz: Some(address), hard_fail: true, ..Listen::default() }, &notes);
        let headers = "Content-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n";
        let rest = r#""healthy":true,"status":{"IPv4":{"lastUpdated":"NOW","healthy":true}}}"#;
        for (path, status, fields) in
            [("livez", "200 OK", ""), ("healthz", "503 Service Unavailable", r#""nodeEligible":false,"#)]
        {
            let answer = get(address, &format!("/{path}")).await;
            let body = answer.split_once("\r\n\r\n").unwrap().1;
            let expected = format!(
                "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{{\"lastUpdated\":\"NOW\",\"currentTime\":\"NOW\",{fields}{rest}",
                body.len()
            );
            assert_eq!(without_times(&without_date(&answer)), expected);
        }
        let expected = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nContent-Length: 19\r\n\r\n404 page not found\n";
        assert_eq!(without_date(&get(address, "/metrics").await), expected);
        let posted = exchange(address, "POST /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        assert!(posted.starts_with("HTTP/1.1 200 OK\r\n"), "{posted}");
        let head = exchange(address, "HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert_eq!(notes.take(), ["Livez 200", "Healthz 503", "Livez 200", "Livez 200"]);
        server.abort();
    }

    // An address in use is fatal only with `hard_fail` (O8).
    #[tokio::test]
    async fn an_address_in_use_is_fatal_only_with_hard_fail() {
        let address = at(free_port());
        let taken = std::net::TcpListener::bind(address).unwrap();
        let start = |hard_fail| {
            run(
                ProxyHealth::new(TIMEOUT),
                Listen { healthz: Some(address), hard_fail, ..Listen::default() },
                &Notes::new(),
            )
        };
        let error = start(true).await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot listen for healthz on {address}: ")), "{error}");
        let server = start(false);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!server.is_finished());
        drop(taken);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(get(address, "/livez").await.starts_with("HTTP/1.1 200 OK"));
        server.abort();
    }

    // While another kube-proxy writes, requests may wait, and the responses say why (L8, L9).
    #[test]
    fn while_another_kube_proxy_writes_requests_may_wait_and_the_responses_say_why() {
        let (mut health, start) = registered(&Family::BOTH);
        health.queued(Family::V4, start);
        health.held_back(Some("pid 7 writes".to_owned()), start);
        let later = start + 10 * TIMEOUT;
        for (good, body) in [health.livez(later, clock(0)), health.healthz(later, clock(0))] {
            assert!(good && body.contains(r#""reason":"pid 7 writes""#), "{body}");
        }
        health.held_back(None, later);
        assert!(health.is_healthy(later + TIMEOUT / 2), "the request counts from here on");
        assert!(!health.is_healthy(later + TIMEOUT));
        assert!(!health.livez(later, clock(0)).1.contains("reason"));
    }
}

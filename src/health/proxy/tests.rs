use std::net::SocketAddr;
use std::sync::Mutex;

use super::*;
use crate::health::testing::Notes;
use crate::health::{Listen, Servers};
use crate::http::testing::{exchange, free_port, get, without_date};

const TIMEOUT: Duration = Duration::from_secs(60);

/// 2026-01-01T00:00:00Z, and so many milliseconds.
fn clock(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600) + Duration::from_millis(millis)
}

fn registered(families: &[Family]) -> (ProxyHealth, Instant) {
    let mut health = ProxyHealth::new(TIMEOUT);
    health.node(Some(true));
    families.iter().for_each(|family| health.synced(*family, clock(0)));
    (health, Instant::now())
}

// L1
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

// L1
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

// L2
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

// L3, L7
#[test]
fn a_request_may_stay_unserved_until_the_timeout_and_not_longer() {
    let (mut health, start) = registered(&[Family::V4]);
    health.queued(Family::V4, start);
    assert!(health.is_healthy(start + TIMEOUT - Duration::from_nanos(1)));
    assert!(!health.is_healthy(start + TIMEOUT));
}

// L3
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

// L4, L5
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

// L4
#[test]
fn services_that_are_left_out_are_named_and_make_nobody_unhealthy() {
    let (mut health, now) = registered(&[Family::V4]);
    let names = [ObjectName::new("shop", "a"), ObjectName::new("shop", "b")];
    let before = [health.livez(now, clock(0)), health.healthz(now, clock(0))];
    health.quarantined(names.iter());
    for ((_, without), (good, body)) in before.iter().zip([health.livez(now, clock(0)), health.healthz(now, clock(0))])
    {
        let open = without.strip_suffix('}').unwrap();
        let named = format!(r#"{open},"quarantinedServices":["shop/a","shop/b"]}}"#);
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

// L3
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

#[test]
fn it_is_ready_while_syncs_succeed_and_says_why_it_is_not() {
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
    assert_eq!(answer(&health, start + TIMEOUT), not("a sync that was asked for has not been done in time"));
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

/// The body with every time that a server took itself replaced.
fn without_times(answer: &str) -> String {
    answer
        .split('"')
        .map(|part| if part.starts_with("20") && part.ends_with('Z') { "NOW" } else { part })
        .collect::<Vec<_>>()
        .join("\"")
}

/// Runs the servers with this health; nothing but healthz is served.
fn run(health: ProxyHealth, listen: Listen, notes: &Arc<Notes>) -> tokio::task::JoinHandle<std::io::Result<()>> {
    let (reporter, servers) = crate::health::new(TIMEOUT);
    let servers = Servers { proxy: Shared(Arc::new(Mutex::new(health))), ..servers };
    let notes = Arc::clone(notes);
    tokio::spawn(async move {
        // Without a reporter, the servers of Services would end.
        let _reporter = reporter;
        servers.run(listen, notes).await
    })
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

// L4
#[tokio::test]
async fn answers_over_a_socket() {
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

// O8
#[tokio::test]
async fn an_address_in_use_is_fatal_only_with_hard_fail() {
    let address = at(free_port());
    let taken = std::net::TcpListener::bind(address).unwrap();
    let start = |hard_fail| {
        run(ProxyHealth::new(TIMEOUT), Listen { healthz: Some(address), hard_fail, ..Listen::default() }, &Notes::new())
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

#[test]
fn requests_that_wait_for_another_kube_proxy_make_nobody_unhealthy_and_the_answers_say_why() {
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

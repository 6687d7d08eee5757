use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::health::Listen;
use crate::health::proxy::ProxyHealth;
use crate::health::testing::Notes;
use crate::http::testing::{exchange, free_port, get, is_open, without_date};

fn health() -> Shared {
    Shared(Arc::new(Mutex::new(ProxyHealth::new(Duration::from_secs(60)))))
}

fn unhealthy() -> Shared {
    let mut health = ProxyHealth::new(Duration::ZERO);
    health.synced(Family::V4, SystemTime::now());
    health.queued(Family::V4, Instant::now());
    Shared(Arc::new(Mutex::new(health)))
}

fn check_name(name: &str, family: Family) -> CheckName {
    CheckName { service: ObjectName::new("ns", name), family }
}

/// IPv4 servers on these addresses; each is a Service's name, its port and its number of local endpoints.
fn snapshot(listen: &[&str], checks: &[(&str, u16, usize)]) -> Snapshot {
    let check = |(name, port, local_endpoints): &(&str, u16, usize)| {
        (check_name(name, Family::V4), Check { port: *port, local_endpoints: *local_endpoints })
    };
    Snapshot {
        listen: listen.iter().map(|ip| ip.parse().unwrap()).collect(),
        checks: checks.iter().map(check).collect(),
    }
}

const LOOPBACK: &[&str] = &["127.0.0.1"];

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

fn expected(status: &str, count: usize, healthy: bool) -> String {
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\nX-Load-Balancing-Endpoint-Weight: {count}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

// K3
#[tokio::test]
async fn answers_say_whether_there_are_endpoints_and_whether_the_proxy_is_healthy() {
    let [port] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    for (count, status) in [(2, "200 OK"), (0, "503 Service Unavailable")] {
        servers.follow(&snapshot(LOOPBACK, &[("web", port, count)]), false).await;
        assert_eq!(without_date(&get(at(port), "/").await), expected(status, count, true));
    }
    let [port] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), unhealthy(), Notes::new());
    servers.follow(&snapshot(LOOPBACK, &[("web", port, 2)]), false).await;
    assert_eq!(without_date(&get(at(port), "/").await), expected("503 Service Unavailable", 2, false));
}

// K3
#[tokio::test]
async fn every_path_and_method_gets_the_same_answer() {
    let [port] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    servers.follow(&snapshot(LOOPBACK, &[("web", port, 1)]), false).await;
    for request in ["GET /any?x=y", "POST /", "DELETE /healthz", "OPTIONS *"] {
        let answer =
            exchange(at(port), &format!("{request} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")).await;
        assert_eq!(without_date(&answer), expected("200 OK", 1, true), "{request}");
    }
}

// K1
#[tokio::test]
async fn servers_follow_the_snapshot() {
    let [a, b] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    servers.follow(&snapshot(LOOPBACK, &[("web", a, 1)]), false).await;
    assert!(is_open(at(a)).await);
    servers.follow(&snapshot(LOOPBACK, &[("web", b, 1)]), false).await;
    assert!(!is_open(at(a)).await && is_open(at(b)).await, "the port changed");
    servers.follow(&snapshot(LOOPBACK, &[]), false).await;
    assert!(!is_open(at(b)).await);
}

// K1
#[tokio::test]
async fn connections_to_an_unchanged_server_go_on() {
    let [a, b] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    servers.follow(&snapshot(LOOPBACK, &[("web", a, 1)]), false).await;
    let waiting = tokio::net::TcpStream::connect(at(a)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    servers.follow(&snapshot(LOOPBACK, &[("web", a, 2), ("other", b, 0)]), false).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut byte = [0];
    let error = waiting.try_read(&mut byte).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "the connection is open");
}

// K1
#[tokio::test]
async fn two_services_can_swap_their_ports_in_one_update() {
    let [a, b] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    servers.follow(&snapshot(LOOPBACK, &[("web", a, 1), ("other", b, 0)]), false).await;
    servers.follow(&snapshot(LOOPBACK, &[("web", b, 1), ("other", a, 0)]), false).await;
    assert_eq!(without_date(&get(at(b), "/").await), expected("200 OK", 1, true));
    assert!(is_open(at(a)).await);
}

// K4
#[tokio::test]
async fn a_port_in_use_closes_all_of_that_service_only_and_is_tried_again() {
    let [a, b] = free_ports();
    let taken = std::net::TcpListener::bind(("127.0.0.2", a)).unwrap();
    let both = snapshot(&["127.0.0.1", "127.0.0.2"], &[("other", b, 1), ("web", a, 1)]);
    let notes = Notes::new();
    let mut servers = ServiceServers::new(Limits::default(), health(), notes.clone());
    servers.follow(&both, false).await;
    assert!(!is_open(at(a)).await, "the address that is free was closed again");
    assert!(is_open(at(b)).await);
    assert_eq!(notes.take(), [format!("ns/web IPv4 {a} AddrInUse")]);
    servers.follow(&both, false).await;
    assert_eq!(notes.take().len(), 1, "it was tried again, and failed again");
    drop(taken);
    servers.follow(&both, false).await;
    assert!(notes.take().is_empty());
    assert!(is_open(at(a)).await);
    assert!(is_open(SocketAddr::from(([127, 0, 0, 2], a))).await);
}

// K5
#[tokio::test]
async fn each_family_has_its_own_listeners() {
    let [port] = free_ports();
    let mut all = snapshot(&["0.0.0.0", "::"], &[("web", port, 3)]);
    all.checks.insert(check_name("web", Family::V6), Check { port, local_endpoints: 1 });
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    servers.follow(&all, false).await;
    assert_eq!(without_date(&get(at(port), "/").await), expected("200 OK", 3, true));
    let v6 = SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), port);
    assert_eq!(without_date(&get(v6, "/").await), expected("200 OK", 1, true));
}

// K5
#[tokio::test]
async fn listeners_are_only_on_the_addresses_given() {
    let [port] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    servers.follow(&snapshot(&["127.0.0.2"], &[("web", port, 3)]), false).await;
    assert!(!is_open(at(port)).await);
    assert!(is_open(SocketAddr::from(([127, 0, 0, 2], port))).await);
    servers.follow(&snapshot(&[], &[("web", port, 3)]), false).await;
    assert!(servers.open.is_empty(), "no address, no listener, no error");
}

// surface.md section 5
#[tokio::test]
async fn a_request_that_reaches_a_server_whose_service_is_gone_gets_an_empty_200() {
    let [port] = free_ports();
    let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
    servers.follow(&snapshot(LOOPBACK, &[("web", port, 1)]), false).await;
    let mut stream = tokio::net::TcpStream::connect(at(port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    servers.follow(&snapshot(LOOPBACK, &[]), false).await;
    assert!(!is_open(at(port)).await);
    stream.write_all(b"\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(without_date(&answer), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

// K1, K4
#[tokio::test]
async fn an_equal_snapshot_that_is_reported_again_makes_another_try() {
    let (reporter, all) = crate::health::new(Duration::from_secs(60));
    let running = tokio::spawn(all.run(Listen::default(), Notes::new()));
    let [port] = free_ports();
    let taken = std::net::TcpListener::bind(at(port)).unwrap();
    let checks = Arc::new(snapshot(LOOPBACK, &[("web", port, 1)]));
    reporter.services(checks.clone());
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(taken);
    assert!(!is_open(at(port)).await);
    reporter.services(checks);
    assert_eq!(without_date(&get(at(port), "/").await), expected("200 OK", 1, true));
    drop(reporter);
    running.await.unwrap().unwrap();
    assert!(!is_open(at(port)).await);
}

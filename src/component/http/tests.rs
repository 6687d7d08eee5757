use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::listen::bind_like_go;
use super::testing::{exchange, free_port, get, is_open};
use super::*;

/// Returns limits with short times, so that the tests run quickly.
fn quick() -> Limits {
    let millis = Duration::from_millis;
    Limits {
        connections: ConnectionLimit::new(4, usize::MAX),
        header_time: millis(300),
        lifetime: millis(900),
        grace: millis(300),
        ..Limits::default()
    }
}

/// Returns a server whose every response is `body`.
fn start(limits: Limits, body: &'static str) -> (SocketAddr, Server) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (address, Server::start(listener, limits, move |_| async move { response(status(true), PLAIN, body) }))
}

/// Returns how long the server keeps a connection after the client sent `request`.
async fn lifetime(address: SocketAddr, request: &str) -> Duration {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let start = Instant::now();
    let mut answer = Vec::new();
    let _ended_or_reset = stream.read_to_end(&mut answer).await;
    start.elapsed()
}

const GET: &str = "GET / HTTP/1.1\r\nHost: node\r\n\r\n";

#[tokio::test]
async fn a_client_that_sends_no_whole_header_loses_its_connection() {
    let (address, _server) = start(quick(), "ok");
    let (silent, begun, idle) =
        tokio::join!(lifetime(address, ""), lifetime(address, "GET / HTTP/1.1\r\n"), lifetime(address, GET));
    for time in [silent, begun, idle] {
        assert!((200..=800).contains(&time.as_millis()), "{silent:?} {begun:?} {idle:?}");
    }
}

#[tokio::test]
async fn a_client_that_sends_its_header_byte_by_byte_loses_its_connection() {
    let (address, _server) = start(quick(), "ok");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let start = Instant::now();
    while stream.write_all(b"x").await.is_ok() && start.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
}

/// Returns a connection on which the client has sent `request`.
async fn connected(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Returns whether the server has closed the connection.
async fn is_closed(stream: &mut TcpStream) -> bool {
    match timeout(Duration::from_millis(100), stream.read(&mut [0; 1024])).await {
        Ok(Ok(count)) => count == 0,
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}

/// A response of 32 MiB does not fit into the buffers of the kernel, so the server cannot write all of it.
#[tokio::test]
async fn a_client_that_never_reads_its_response_loses_its_connection_in_time() {
    let (address, _server) = start(quick(), String::leak("x".repeat(32 << 20)));
    let mut stuck = connected(address, GET).await;
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut text = Vec::new();
    let _ended_or_reset = stuck.read_to_end(&mut text).await;
    assert!(text.len() < 32 << 20, "the whole answer came after {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_client_that_never_reads_its_response_loses_its_connection_to_others() {
    let (address, _server) = start(Limits { connections: ConnectionLimit::new(4, usize::MAX), ..Limits::default() }, {
        String::leak("x".repeat(32 << 20))
    });
    let mut stuck = Vec::new();
    for _ in 0..4 {
        stuck.push(connected(address, GET).await);
    }
    let answer = timeout(Duration::from_secs(4), get(address, "/")).await.unwrap();
    assert!(answer.ends_with("xxx"));
}

#[tokio::test]
async fn a_busy_connection_ends_between_two_answers_when_it_is_old() {
    let (address, _server) = start(quick(), "ok");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (mut text, begin) = (String::new(), Instant::now());
    let mut buffer = [0; 4096];
    while begin.elapsed() < Duration::from_secs(3) {
        if stream.write_all(GET.as_bytes()).await.is_err() {
            break;
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => text += std::str::from_utf8(&buffer[..count]).unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!((700..2000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    assert!(text.ends_with("\r\n\r\nok"), "the last answer is whole");
    assert!(text.matches("HTTP/1.1 200 OK").count() > 10);
}

#[tokio::test]
async fn a_body_is_not_waited_for() {
    let (address, _server) = start(Limits::default(), "ok");
    let request = "POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000\r\n\r\n";
    let answer = timeout(Duration::from_secs(2), exchange(address, request)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn an_endless_header_is_refused() {
    let (address, _server) = start(Limits::default(), "ok");
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(32 * 1024));
    let answer = exchange(address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_small_body_is_read_and_a_large_one_refused() {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let echo = |request| async { response(StatusCode::OK, PLAIN, small_body(request).await.unwrap_or("none".into())) };
    let _server = Server::start(listener, Limits::default(), echo);
    let put = |body: String| {
        let header =
            format!("PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        async move { exchange(address, &(header + &body)).await }
    };
    assert!(put("4".to_owned()).await.ends_with("\r\n\r\n4"));
    assert!(put("4".repeat(MAX_BODY)).await.ends_with(&format!("\r\n\r\n{}", "4".repeat(MAX_BODY))));
    assert!(put("4".repeat(MAX_BODY + 1)).await.ends_with("\r\n\r\nnone"));
}

#[tokio::test]
async fn one_connection_beyond_the_limit_closes_the_one_that_waited_longest() {
    let limits = Limits { connections: ConnectionLimit::new(3, usize::MAX), ..Limits::default() };
    let (address, _server) = start(limits, "ok");
    let mut first = connected(address, "").await;
    // Wait longer than `PROTECTED`, so that the server may close the connections, and `first` is the connection that has waited longest.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut second = connected(address, "GET / HTTP/1.1\r\n").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut third = connected(address, GET).await;
    for _ in 0..2 {
        assert!(timeout(Duration::from_secs(4), get(address, "/")).await.unwrap().ends_with("ok"));
    }
    assert!(is_closed(&mut first).await, "it waited longest");
    assert!(!is_closed(&mut second).await && !is_closed(&mut third).await, "there was room for them");
}

#[tokio::test]
async fn servers_that_share_a_limit_are_bounded_together() {
    let limits = Limits { connections: ConnectionLimit::new(2, usize::MAX), ..Limits::default() };
    let ((one, _first_server), (other, _second_server)) = (start(limits.clone(), "one"), start(limits, "other"));
    let mut idle = [connected(one, "").await, connected(one, "").await];
    assert!(timeout(Duration::from_secs(4), get(other, "/")).await.unwrap().ends_with("other"));
    assert!(is_closed(&mut idle[0]).await && !is_closed(&mut idle[1]).await);
}

#[tokio::test]
async fn requests_on_one_connection_are_answered_in_order() {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let path = |request: Request| async move { response(StatusCode::OK, PLAIN, request.uri().path().to_owned()) };
    let _server = Server::start(listener, Limits::default(), path);
    let pipeline = "GET /a HTTP/1.1\r\nHost: x\r\n\r\nHEAD /bb HTTP/1.1\r\nHost: x\r\n\r\nGET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let text = exchange(address, pipeline).await;
    let heads_and_bodies: Vec<_> = text.split("HTTP/1.1 200 OK\r\n").skip(1).collect();
    assert_eq!(heads_and_bodies.len(), 3, "{text}");
    assert!(heads_and_bodies[0].ends_with("\r\n\r\n/a"));
    assert!(heads_and_bodies[1].contains("Content-Length: 3\r\n"), "{text}");
    assert!(heads_and_bodies[1].ends_with("\r\n\r\n"), "HEAD has no body: {text}");
    assert!(heads_and_bodies[2].ends_with("\r\n\r\n/c"));
}

#[tokio::test]
async fn closing_frees_the_port_at_once_and_requests_that_arrived_are_answered() {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let slow = |_| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        response(StatusCode::OK, PLAIN, "late")
    };
    let server = Server::start(listener, Limits::default(), slow);
    let asked = tokio::spawn(async move { get(address, "/").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.close().await;
    assert!(!is_open(address).await);
    bind(address).unwrap();
    assert!(asked.await.unwrap().ends_with("\r\n\r\nlate"));
}

#[tokio::test]
async fn dropping_a_server_ends_it() {
    let (address, server) = start(Limits::default(), "ok");
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!is_open(address).await);
}

// An unspecified IPv6 address does not include IPv4 (K5).
#[tokio::test]
async fn an_unspecified_ipv6_address_leaves_ipv4_alone() {
    let v6 = bind("[::]:0".parse().unwrap()).unwrap();
    let port = v6.local_addr().unwrap().port();
    bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).unwrap();
}

#[tokio::test]
async fn unspecified_addresses_take_both_families_as_in_go() {
    for text in ["0.0.0.0:0", "[::]:0"] {
        let listener = bind_like_go(text.parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for loopback in ["127.0.0.1", "::1"] {
            TcpStream::connect((loopback, port)).await.unwrap();
        }
    }
}

// If listening fails, the server tries again until it succeeds (O8).
#[tokio::test]
async fn a_listener_that_fails_is_tried_again_until_it_works() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let taken = std::net::TcpListener::bind(address).unwrap();
    let bound = tokio::spawn(bind_with_retry("tests", address, false));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!bound.is_finished());
    drop(taken);
    let listener = timeout(Duration::from_secs(7), bound).await.unwrap().unwrap().unwrap();
    assert_eq!(listener.local_addr().unwrap(), address);
}

// With `hard_fail`, the server tries to listen only once (O8).
#[tokio::test]
async fn with_hard_fail_the_first_failure_is_the_last() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = bind_with_retry("tests", address, true).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().starts_with(&format!("cannot listen for tests on {address}: ")), "{error}");
}

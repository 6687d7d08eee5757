use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::testing::{exchange, get};
use super::*;

fn start() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(serve(listener, |_| answer(status(true), "text/plain", "ok".to_owned()))))
}

/// Seconds until the server ends the connection.
async fn lifetime(address: SocketAddr, request: &str) -> u64 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let start = tokio::time::Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    start.elapsed().as_secs()
}

#[tokio::test]
async fn a_client_that_sends_no_whole_header_loses_its_connection() {
    let (address, _server) = start();
    let whole = "GET / HTTP/1.1\r\nHost: node\r\n\r\n";
    let (silent, begun, idle) =
        tokio::join!(lifetime(address, ""), lifetime(address, "GET / HTTP/1.1\r\n"), lifetime(address, whole));
    for seconds in [silent, begun, idle] {
        assert!((5..=6).contains(&seconds), "{silent} {begun} {idle}");
    }
}

#[tokio::test]
async fn a_body_is_not_waited_for() {
    let (address, _server) = start();
    let request = "POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000\r\n\r\n";
    let answer = timeout(HEADER_TIMEOUT, exchange(address, request)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn more_connections_than_the_limit_wait_for_a_place() {
    let (address, _server) = start();
    let mut idle = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(timeout(Duration::from_millis(200), get(address, "/")).await.is_err());
    idle.pop();
    let answer = timeout(Duration::from_secs(2), get(address, "/")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

// K5
#[tokio::test]
async fn an_unspecified_ipv6_address_leaves_ipv4_alone() {
    let v6 = bind("[::]:0".parse().unwrap()).unwrap();
    let port = v6.local_addr().unwrap().port();
    bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).unwrap();
}

#[tokio::test]
async fn unspecified_addresses_take_both_families_where_go_does() {
    for text in ["0.0.0.0:0", "[::]:0"] {
        let listener = bind_like_go(text.parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for loopback in ["127.0.0.1", "::1"] {
            TcpStream::connect((loopback, port)).await.unwrap();
        }
    }
}

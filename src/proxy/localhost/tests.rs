use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::proxy::most_connections;
use super::relay::{Pipes, relay};
use super::target::{Choice, Target};
use super::*;
use rules::model::testing::{self, service, slice, slice_port};
use rules::model::{Event, State};

const PATIENCE: Duration = Duration::from_secs(20);

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 244, 0, last], 8080))
}

fn port(endpoints: &[u8], affinity: Option<u64>) -> NodePort {
    NodePort {
        family: Family::V4,
        port: 30_080,
        label: "shop/web:http".into(),
        endpoints: endpoints.iter().copied().map(address).collect(),
        affinity: affinity.map(Duration::from_secs),
    }
}

// The limit of open files decides how many connections there may be, up to 10,000; even a low limit leaves room for some (R9).
#[test]
fn the_limit_of_open_files_decides_how_many_connections_there_are_and_half_of_a_low_one_is_theirs() {
    let limits =
        [(0, 1), (1_024, 85), (4_096, 341), (8_192, 682), (10_096, 1_000), (64_096, 10_000), (u64::MAX, 10_000)];
    for (open_files, connections) in limits {
        assert_eq!(most_connections(open_files), connections, "{open_files}");
    }
}

/// Returns the endpoint chosen after `tried` were tried; `random` picks it from the remaining endpoints.
fn chosen(target: &Target, tried: &[u8], now: Instant, random: usize) -> Option<Choice> {
    let tried: Vec<SocketAddr> = tried.iter().copied().map(address).collect();
    target.choose(&tried, now, |count| random % count)
}

// Each endpoint is tried once, in random order (R4).
#[test]
fn every_endpoint_is_tried_once() {
    let (target, now) = (Target::new(&port(&[1, 2, 3], None)), Instant::now());
    let choice = |endpoint, has_others| Some(Choice { endpoint: address(endpoint), has_others });
    assert_eq!([0, 1, 2].map(|n| chosen(&target, &[], now, n)), [1, 2, 3].map(|n| choice(n, true)));
    assert_eq!(chosen(&target, &[2], now, 1), choice(3, true));
    assert_eq!(chosen(&target, &[2, 3], now, 5), choice(1, false));
    assert_eq!(chosen(&target, &[2, 3, 1], now, 0), None);
    // An endpoint that is added while a connection is made is tried as well; a removed endpoint is not.
    target.update(&port(&[4], None));
    assert_eq!(chosen(&target, &[2, 3, 1], now, 0), choice(4, false));
}

// Session affinity pins one endpoint for all clients, until the time-out after its last use; the pin moves when the endpoint refuses or is
// removed (R4).
#[test]
fn affinity_pins_an_endpoint_until_its_last_use_is_too_long_ago() {
    let (target, start) = (Target::new(&port(&[1, 2, 3], Some(60))), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let endpoint = |tried: &[u8], seconds, random| chosen(&target, tried, at(seconds), random).unwrap().endpoint;
    assert_eq!(endpoint(&[], 0, 1), address(2));
    assert_eq!(endpoint(&[], 59, 0), address(2), "pinned");
    assert_eq!(endpoint(&[], 118, 0), address(2), "the last use was 59 s ago");
    assert_eq!(endpoint(&[], 178, 0), address(1), "the last use was 60 s ago");
    assert_eq!(endpoint(&[1], 179, 1), address(3), "it refuses");
    assert_eq!(endpoint(&[], 180, 0), address(3), "the pin has moved");
    target.update(&port(&[1, 2], Some(60)));
    assert_eq!(endpoint(&[], 181, 1), address(2), "the pinned endpoint is gone");
}

// TCP node ports with endpoints are served; UDP ports and ports without an endpoint are not (R3).
#[test]
fn tcp_node_ports_with_endpoints_are_served() {
    let mut state = State::new("here");
    let mut web = service("shop/web", &["10.96.0.1"]);
    web.ports.push(testing::port("http", 80));
    web.ports[0].node_port = Some(30_080);
    let name = web.name.clone();
    state.apply(Event::ServiceApplied(web.clone()));
    let served = |state: &State| {
        let selection = rules::endpoints::select(state, &name).expect("it is there");
        node_ports(&selection, Family::V4).into_iter().map(|port| (port.port, port.endpoints)).collect::<Vec<_>>()
    };
    assert_eq!(served(&state), [], "no endpoint");
    state.apply(Event::SliceApplied(slice("shop/web-1", "shop/web", &[slice_port("http", 8080)], &["10.244.0.1"])));
    assert_eq!(served(&state), [(30_080, vec![SocketAddr::from(([10, 244, 0, 1], 8080))])]);
    web.ports[0].protocol = Protocol::Udp;
    state.apply(Event::ServiceApplied(web));
    assert_eq!(served(&state), [], "not TCP");
}

/// A client and a server that a relay connects.
struct Through {
    client: TcpStream,
    server: TcpStream,
    relay: JoinHandle<io::Result<()>>,
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let connect = TcpStream::connect(listener.local_addr().unwrap());
    let (here, there) = tokio::join!(connect, listener.accept());
    (here.unwrap(), there.unwrap().0)
}

async fn through() -> Through {
    let ((client, from_client), (to_server, server)) = (pair().await, pair().await);
    let pipes = Arc::new(Pipes::default());
    let relay = tokio::spawn(async move { relay(&from_client, &to_server, &pipes, &|| {}).await });
    Through { client, server, relay }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.expect("it takes too long")
}

fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

// Half-closed connections work: the other direction stays open (R7).
#[tokio::test]
async fn the_end_of_a_direction_is_passed_on_and_the_other_goes_on() {
    let Through { mut client, mut server, relay } = through().await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut question = Vec::new();
    within(server.read_to_end(&mut question)).await.unwrap();
    assert_eq!(question, b"question");
    let answer: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    let sent = answer.clone();
    let sending = tokio::spawn(async move { server.write_all(&sent).await.map(|()| server) });
    let mut received = Vec::new();
    let mut part = vec![0; 70_000];
    while received.len() < answer.len() {
        let bytes = within(client.read(&mut part)).await.unwrap();
        assert!(bytes > 0, "it ended after {} bytes", received.len());
        received.extend_from_slice(&part[..bytes]);
    }
    assert!(received == answer, "other bytes arrive");
    drop(sending.await.unwrap().unwrap());
    assert_eq!(within(client.read(&mut part)).await.unwrap(), 0);
    within(relay).await.unwrap().unwrap();
}

// A reset of either side arrives as a reset at the other, whatever state the connection is in (R7).
#[tokio::test]
async fn a_reset_is_passed_on() {
    for side in ["client", "server"] {
        for half_closed in [false, true] {
            let Through { client, server, relay } = through().await;
            let (going, mut staying) = if side == "client" { (client, server) } else { (server, client) };
            let mut going = going;
            going.write_all(b"x").await.unwrap();
            let mut byte = [0; 1];
            within(staying.read_exact(&mut byte)).await.unwrap();
            if half_closed {
                going.shutdown().await.unwrap();
                assert_eq!(within(staying.read(&mut byte)).await.unwrap(), 0);
            }
            reset(going);
            let error = within(async {
                loop {
                    // After the end of the other direction, only a write shows the reset.
                    if half_closed && let Err(error) = staying.write_all(b"y").await {
                        return error;
                    }
                    match staying.read(&mut byte).await {
                        Err(error) => return error,
                        Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            });
            let kind = error.await.kind();
            let expected = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
            assert!(expected.contains(&kind), "{side} {half_closed}: {kind:?}");
            assert!(within(relay).await.unwrap().is_err());
        }
    }
}

// A receiver that does not read makes the sender wait, nothing is lost, and a reset is passed on even then (R7).
#[tokio::test]
async fn a_receiver_that_does_not_read_makes_the_sender_wait() {
    for ends_well in [true, false] {
        let Through { client, mut server, relay } = through().await;
        let mut sent = 0;
        let block = vec![7; 64 * 1024];
        // Fills the buffers of the four sockets.
        while let Ok(Ok(())) = timeout(Duration::from_millis(500), client.writable()).await {
            match client.try_write(&block) {
                Ok(bytes) => sent += bytes,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(sent < 256 << 20, "the sender never has to wait");
        }
        assert!(!relay.is_finished());
        let mut received = 0;
        let mut part = vec![0; 1 << 20];
        if ends_well {
            drop(client);
        } else {
            reset(client);
        }
        let end = within(async {
            loop {
                match server.read(&mut part).await {
                    Ok(0) => return Ok(()),
                    Ok(bytes) => received += bytes,
                    Err(error) => return Err(error.kind()),
                }
            }
        });
        match (end.await, ends_well) {
            (Ok(()), true) => assert_eq!(received, sent),
            (Err(io::ErrorKind::ConnectionReset), false) => assert!(received < sent),
            (other, _) => panic!("{ends_well}: {other:?} after {received} of {sent}"),
        }
        drop(server);
        assert_eq!(within(relay).await.unwrap().is_ok(), ends_well);
    }
}

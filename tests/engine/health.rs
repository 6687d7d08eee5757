//! What health-check node ports say while the kernel refuses a Service.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::cluster::{address, config, endpoint, service, slice};
use crate::support::faulty::Faulty;
use crate::support::kernel::Recorder;
use crate::support::plan::NODE;
use kube_proxy::health;
use kube_proxy::metrics::Metrics;
use kube_proxy::sync::{Engine, Schedule, Sync};
use nft::{Element, Value};
use rules::model::{Endpoint, Event, Family, Node, TrafficPolicy};
use rules::ruleset::Layout;

struct Nobody;

impl health::Observer for Nobody {
    fn answered(&self, _: health::Page, _: u16) {}
    fn listen_failed(&self, failure: &health::ListenFailure) {
        panic!("{failure:?}");
    }
}

/// A value that is an endpoint in 10.66.0.0/16, which the kernel refuses here.
fn is_bad(element: &Element) -> bool {
    matches!(&element.value, Value::Data(value) if value.as_slice().starts_with(&[10, 66]))
}

/// Service `n` with so many endpoints on this node, in 10.`block`.0.0/16.
fn endpoints(n: u16, block: u8, count: u16) -> Event {
    let here = |i| Endpoint { node: Some(NODE.into()), ..endpoint(address(Family::V4, block, n * 16 + i)) };
    Event::SliceApplied(slice(n, Family::V4, (0..count).map(here).collect()))
}

/// Service `n` with a health-check node port.
fn checked(n: u16, port: u16) -> Event {
    let mut service = service(n);
    service.external_policy = TrafficPolicy::Local;
    service.health_check_node_port = Some(port);
    Event::ServiceApplied(service)
}

/// The status and the number of local endpoints that a health-check node port answers; `None` when it does not.
fn answer(port: u16) -> Option<(u16, usize)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    write!(stream, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let (_, rest) = text.split_once("\"localEndpoints\": ")?;
    Some((status, rest.split(',').next()?.parse().ok()?))
}

fn wait_for(port: u16, wanted: (u16, usize)) {
    let end = Instant::now() + Duration::from_secs(20);
    while answer(port) != Some(wanted) {
        assert!(Instant::now() < end, "{port}: {:?} instead of {wanted:?}", answer(port));
        thread::sleep(Duration::from_millis(10));
    }
}

/// What is asked and changed while the loop runs; it ends when the sender is gone.
fn follow(events: &Sender<Event>, [refused, other, new]: [u16; 3]) {
    let send = |event| events.send(event).expect("the loop runs");
    let node = Node { name: NODE.into(), ips: vec![Ipv4Addr::LOCALHOST.into()], eligible: true, ..Node::default() };
    let start =
        [Event::NodeApplied(node), checked(0, refused), endpoints(0, 1, 1), checked(1, other), endpoints(1, 1, 1)];
    start.into_iter().chain([Event::InitialListDone]).for_each(send);
    wait_for(refused, (200, 1));
    wait_for(other, (200, 1));

    [endpoints(0, 66, 3), endpoints(1, 1, 2), checked(2, new), endpoints(2, 66, 4)].into_iter().for_each(send);
    wait_for(other, (200, 2));
    assert_eq!(answer(refused), Some((200, 1)), "the number of the rules that are in force");
    assert_eq!(answer(new), Some((503, 0)), "it has no rules");

    // The other one changes again while the first stays out.
    send(endpoints(1, 1, 3));
    wait_for(other, (200, 3));
    assert_eq!(answer(refused), Some((200, 1)));
    [endpoints(0, 1, 4), endpoints(2, 1, 5)].into_iter().for_each(send);
    wait_for(refused, (200, 4));
    wait_for(new, (200, 5));
    send(Event::ServiceDeleted(rules::model::ObjectName::new("shop", "web-0")));
    let end = Instant::now() + Duration::from_secs(20);
    while answer(refused).is_some() {
        assert!(Instant::now() < end, "the Service is gone");
    }
}

#[test]
fn a_refused_service_answers_with_the_number_of_the_rules_in_force() {
    // Health-check node ports tell what was committed, also for a Service in quarantine (G9, G15, K2).
    let kernel = Faulty::new(Recorder::default());
    kernel.orders.borrow_mut().poison = Some(is_bad);
    let engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel);
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free");
    let [a, b, c] = [free(), free(), free()].map(|address: SocketAddr| address.port());
    let (reporter, servers) = health::new(Duration::from_secs(60));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(servers.run(health::Listen::default(), Arc::new(Nobody))).expect("it runs");
    });
    let schedule = Schedule::new(Some(Duration::from_millis(10)), Duration::from_secs(1));
    let sync = Sync::new(engine, schedule, Metrics::new(), reporter, Box::new(|_| Ok(())));
    let (sender, source) = channel();
    let test = thread::spawn(move || follow(&sender, [a, b, c]));
    sync.run(&source).expect("the loop ends with its source");
    test.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

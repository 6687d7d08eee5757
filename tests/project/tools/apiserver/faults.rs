//! Faults happen as they are ordered, and only then.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use super::client::{Answer, get, plain, send};
use crate::support::apiserver::fault::{Command, Ending, Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Scheme};

const SERVICES: &str = "/api/v1/services";
const WATCH: &str = "/api/v1/services?watch=1";

fn server() -> ApiServer {
    let server = ApiServer::start(Scheme::Http);
    server.apply(&["a", "b"].map(plain));
    server
}

/// What comes of a body before it breaks off, and how it does.
fn broken(mut answer: Answer) -> (usize, ErrorKind) {
    let mut bytes = 0;
    loop {
        match answer.chunk() {
            Ok(Some(chunk)) => bytes += chunk.len(),
            Ok(None) => panic!("the body is whole"),
            Err(error) => return (bytes, error.kind()),
        }
    }
}

#[test]
fn an_answer_breaks_off_where_it_should() {
    let server = server();
    for target in [SERVICES, WATCH] {
        for (ending, kind) in [(Ending::Reset, ErrorKind::ConnectionReset), (Ending::Close, ErrorKind::UnexpectedEof)] {
            server.fault(On::Both(Resource::Service), 1, Fault::After(50, ending));
            assert_eq!(broken(get(&server, target)), (50, kind), "{target} {ending:?}");
        }
    }
    // Each happened once, and none is left.
    assert_eq!((get(&server, SERVICES).status, server.clear_faults()), (200, 0));
}

#[test]
fn a_request_may_get_no_answer() {
    let server = server();
    server.fault(On::All, 1, Fault::Unanswered(Ending::Reset));
    let error = send(&server, &format!("GET {SERVICES}"), "").err().expect("there is no answer");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.requests()[0].answered, 0);
}

#[test]
fn chunks_are_as_small_and_slow_as_ordered() {
    let server = server();
    server.fault(On::List(Resource::Service), 1, Fault::Drip(1, Duration::ZERO));
    let mut answer = get(&server, SERVICES);
    let mut all = Vec::new();
    while let Some(chunk) = answer.chunk().expect("the body is whole") {
        assert_eq!(chunk.len(), 1);
        all.extend(chunk);
    }
    assert_eq!(all, get(&server, SERVICES).body());
    server.fault(On::List(Resource::Service), 1, Fault::Drip(200, Duration::from_millis(100)));
    let start = Instant::now();
    let chunks = get(&server, SERVICES).body().len().div_ceil(200);
    let least = Duration::from_millis(100) * u32::try_from(chunks - 1).expect("a few chunks");
    assert!(chunks > 1 && start.elapsed() >= least, "{chunks} chunks in {:?}", start.elapsed());
}

#[test]
fn refusals_name_their_reason_and_when_to_come_again() {
    let server = server();
    server.fault(On::Watch(Resource::Service), 2, Fault::Refuse(429, Some(7)));
    server.fault(On::List(Resource::Service), 1, Fault::Refuse(500, None));
    for _ in 0..2 {
        let answer = get(&server, WATCH);
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("7")));
        assert_eq!(answer.json()["reason"], "TooManyRequests");
    }
    assert_eq!(get(&server, SERVICES).status, 500);
    assert_eq!((get(&server, SERVICES).status, get(&server, WATCH).status), (200, 200));
    server.lasting_fault(On::All, Fault::Garbage(b"\xff{".to_vec()));
    assert_eq!(get(&server, SERVICES).body(), b"\xff{");
    assert_eq!((get(&server, "/api/v1/nodes").body(), server.clear_faults()), (b"\xff{".to_vec(), 1));
}

#[test]
fn open_watches_carry_out_orders() {
    let server = server();
    let open = || {
        let mut watch = get(&server, WATCH);
        assert_eq!([watch.short(), watch.short()], ["ADDED a 101", "ADDED b 102"]);
        watch
    };
    for (ending, kind) in [(Ending::Reset, ErrorKind::ConnectionReset), (Ending::Close, ErrorKind::UnexpectedEof)] {
        let watch = open();
        // An order to watches of another kind has no effect on this one.
        server.order(Resource::Node, Command::Finish);
        server.order(Resource::Service, Command::End(ending));
        assert_eq!(broken(watch), (0, kind));
    }
    let mut watch = open();
    server.order(None, Command::Bytes(b"\xffx".to_vec()));
    assert_eq!(watch.chunk().expect("a chunk"), Some(b"\xffx".to_vec()));
    server.order(None, Command::Flood(100_000));
    server.order(None, Command::Finish);
    let flood = watch.body();
    assert!(flood.len() == 100_000 && flood.iter().all(|byte| *byte == b'x'), "{}", flood.len());
}

#[test]
fn a_silent_watch_stays_open_and_says_nothing() {
    let server = server();
    let mut silent = get(&server, "/api/v1/services?watch=1&resourceVersion=102");
    server.order(None, Command::Bookmark);
    assert_eq!(silent.short(), "BOOKMARK 102");
    server.order(None, Command::End(Ending::Silence));
    let mut heard = get(&server, "/api/v1/services?watch=1&resourceVersion=102");
    server.apply(&[plain("c")]);
    assert_eq!(heard.short(), "ADDED c 103");
    assert!(silent.is_silent_for(Duration::from_millis(300)));
    assert_eq!(server.open_watches(Resource::Service), 2);
}

#[test]
fn a_closed_server_refuses_connections_and_comes_back_on_its_port() {
    let server = server();
    let watch = get(&server, "/api/v1/services?watch=1&resourceVersion=102");
    server.close();
    assert!(matches!(broken(watch), (0, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)));
    let refused = send(&server, &format!("GET {SERVICES}"), "").err().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
    server.compact();
    server.open();
    assert_eq!(get(&server, SERVICES).status, 200);
}

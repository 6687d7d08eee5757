//! Tests of the lists that follow a watch that failed although the server answers: client-go lists after each such watch.

use std::time::Instant;

use super::*;

/// Returns an event that says that the server cannot go on with a watch.
fn failure(code: u16) -> String {
    event("ERROR", &json!({"kind": "Status", "code": code, "message": "etcdserver: no leader"}))
}

/// Returns a page of Services that is a complete list.
fn services(items: &[Value]) -> Vec<Act> {
    reply(200, "", &json!({"kind": "ServiceList", "metadata": {"resourceVersion": "7"}, "items": items}))
}

/// Returns whether a request is for a list, streamed or page by page.
fn is_list(request: &Request) -> bool {
    request.query("sendInitialEvents") == "true" || request.query("watch").is_empty()
}

#[test]
fn a_watch_that_ends_with_an_error_is_followed_by_a_list() {
    // Each watch ends with the error, and only lists show that an object has gone (O16).
    for code in [500, 503, 403, 401] {
        for streams in [true, false] {
            let answer = move |request: &Request| {
                let items = if request.nth < 3 { vec![web("2")] } else { vec![service("last", &json!(1), "3")] };
                match (is_list(request), request.query("watch")) {
                    (true, "true") if streams => {
                        stream(items.iter().map(added).chain([end("7"), failure(code)]).collect())
                    }
                    (true, "") => services(&items),
                    // A server that cannot watch streams no list either.
                    _ => stream(vec![failure(code)]),
                }
            };
            let (followed, start) = (follow("services", answer, Timing::default()), Instant::now());
            let events = followed.until("-demo/web");
            println!("{code}, streamed: {streams}: {:?} {events:?}", start.elapsed());
            assert!(events.contains(&"+demo/last 1".to_owned()), "{events:?}");
            assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        }
    }
}

#[test]
fn a_server_that_is_too_busy_for_a_watch_is_asked_for_no_list() {
    // client-go resumes the watch after status 429, too.
    let answer = |request: &Request| match request.nth {
        0 => stream(vec![added(&web("2")), end("7"), failure(429)]),
        _ => stream(vec![added(&service("last", &json!(1), "8"))]),
    };
    let followed = follow("services", answer, Timing::default());
    followed.until("+demo/last 1");
    assert_eq!(followed.server.requests("services")[1].query("resourceVersion"), "7");
}

#[test]
fn a_watch_that_is_refused_for_some_seconds_is_followed_by_a_list() {
    // A role that allows lists, but no watch; and a server that fails only watches.
    for status in [403, 500] {
        let answer = move |request: &Request| match (is_list(request), request.query("watch")) {
            (true, "") if request.nth < 3 => services(&[web("2")]),
            (true, "") => services(&[service("last", &json!(1), "8")]),
            _ => refusal(status, ""),
        };
        let (followed, start) = (follow("services", answer, Timing::default()), Instant::now());
        followed.until("-demo/web");
        println!("{status}: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    }
}

#[test]
fn a_very_short_watch_that_brings_nothing_is_followed_by_a_list() {
    // Two API servers of different state are behind one address, and the second accepts the version of the first. The connection to the
    // second one ends in order, or is reset, before anything has come (O16).
    for is_in_order in [true, false] {
        let answer = move |request: &Request| match request.nth {
            0 => stream(vec![added(&web("2")), end("7")]).into_iter().take(3).chain([Act::End]).collect(),
            1 => [Act::Head(200, "")].into_iter().chain(is_in_order.then_some(Act::End)).collect(),
            _ => stream(vec![added(&service("last", &json!(1), "8")), end("9")]),
        };
        let followed = follow("services", answer, Timing::default());
        followed.until("-demo/web");
        let asked = followed.server.requests("services");
        assert_eq!((asked[1].query("resourceVersion"), asked[1].query("sendInitialEvents")), ("7", ""));
        assert!(is_list(&asked[2]) && asked.len() == 3, "{asked:?}");
    }
}

#[test]
fn lists_after_failed_watches_get_rare_and_so_does_what_is_logged() {
    let answer = |request: &Request| match is_list(request) {
        true => stream(vec![added(&web("2")), end("7"), failure(500)]),
        false => stream(vec![failure(500)]),
    };
    let followed = follow("services", answer, Timing::default());
    std::thread::sleep(Duration::from_secs(8));
    let asked = followed.server.requests("services").len();
    assert!((3..=6).contains(&asked), "{asked} requests in 8 s");
    let told = followed.counts.0.lock().unwrap().clone();
    assert_eq!(told.iter().filter(|told| told.starts_with("lost Service")).count(), 1, "{told:?}");
    assert!(!told.iter().any(|told| told == "reconnected Service"), "{told:?}");
}

#[test]
fn a_streaming_list_that_brings_nothing_is_followed_by_pages() {
    // Something on the way ends each watch at once.
    let answer = |request: &Request| match request.query("watch") {
        "" => services(&[web("2")]),
        _ => vec![Act::Head(200, ""), Act::End],
    };
    follow("services", answer, Timing::default()).until("done");
}

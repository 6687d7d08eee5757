//! Tests with servers and networks that misbehave.

use std::time::Instant;

use super::*;

#[test]
fn a_broken_object_loses_only_itself() {
    let bad = |version| service("web", &json!("x"), version);
    let answer = move |request: &Request| match request.nth {
        0 => stream(vec![added(&web("2")), end("3"), event("MODIFIED", &bad("4")), gone()]),
        _ => stream(vec![
            added(&bad("4")),
            added(&service("api", &json!(81), "5")),
            end("6"),
            added(&service("last", &json!(1), "7")),
        ]),
    };
    let followed = follow("services", answer, Timing::default());
    let all = followed.until("+demo/last 1");
    let services: Vec<_> = all.iter().filter(|event| event.contains("demo/")).map(String::as_str).collect();
    // The object that became broken keeps its former state, even after a list in which it is still broken, and the problem is logged once.
    assert_eq!(services, ["+demo/web 80", "+demo/api 81", "+demo/last 1"]);
    assert_eq!(followed.counts.of("rejected Service"), 1);
}

#[test]
fn an_object_that_is_used_in_part_is_counted_once_for_each_part_that_is_not() {
    let odd = |version| {
        let mut text = service("web", &json!(80), version);
        text["spec"]["externalIPs"] = json!(["300.1.1.1", "300.1.1.2"]);
        text
    };
    let answer = move |_: &Request| {
        stream(vec![added(&odd("2")), end("3"), event("MODIFIED", &odd("4")), added(&service("last", &json!(1), "5"))])
    };
    let followed = follow("services", answer, Timing::default());
    followed.until("+demo/last 1");
    assert_eq!(followed.counts.of("rejected Service"), 2);
}

#[test]
fn a_broken_watch_goes_on_where_it_was() {
    let answer = |request: &Request| match request.nth {
        // The answer breaks off in the middle of an object.
        0 => {
            let mut acts = stream(vec![end("2"), added(&web("3")), bookmark("8")]);
            acts.pop();
            acts.push(Act::Chunk(b"{\"type\":\"ADDED\",\"obj".to_vec()));
            acts
        }
        _ => stream(vec![event("MODIFIED", &service("web", &json!(81), "9"))]),
    };
    let followed = follow("services", answer, Timing::default());
    followed.until("+demo/web 81");
    let asked = followed.server.requests("services");
    assert_eq!((asked[1].query("resourceVersion"), asked[1].query("sendInitialEvents")), ("8", ""));
    followed.wait(|followed| followed.counts.of("reconnected Service") == 1);
    let wait = asked[1].at - asked[0].at;
    assert!(wait >= Duration::from_millis(300), "{wait:?}");
}

#[test]
fn a_connection_on_which_nothing_comes_is_given_up() {
    // In the first run the peer is dead; in the second run it sends single bytes of a line that never ends.
    for drip in [false, true] {
        let answer = move |request: &Request| match request.nth {
            0 if drip => {
                let drops = (0..100).flat_map(|_| [Act::Chunk(b"{".to_vec()), Act::Wait(Duration::from_millis(100))]);
                let mut acts = stream(vec![end("2"), bookmark("5")]);
                acts.pop();
                acts.into_iter().chain(drops).collect()
            }
            0 => stream(vec![end("2"), bookmark("5")]),
            _ => stream(vec![added(&web("6"))]),
        };
        let followed = follow("services", answer, timing());
        followed.until("+demo/web 80");
        assert_eq!(followed.server.requests("services")[1].query("resourceVersion"), "5");
    }
}

#[test]
fn a_server_that_accepts_and_never_answers_is_asked_again() {
    // The server sends no answer at the start, and none when a watch is resumed.
    let answer = |request: &Request| match request.nth {
        0 | 2 => vec![Act::Hold],
        1 => stream(vec![end("2")]).into_iter().take(2).chain([Act::End]).collect(),
        _ => stream(vec![added(&web("3"))]),
    };
    let (followed, start) = (follow("services", answer, timing()), Instant::now());
    followed.until("+demo/web 80");
    let asked = followed.server.requests("services");
    assert_eq!(asked[3].query("resourceVersion"), "2", "it goes on where it was");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn a_page_that_does_not_come_is_given_up() {
    let answer = |request: &Request| match (request.query("sendInitialEvents"), request.nth) {
        ("true", _) => refusal(422, ""),
        (_, 1) => vec![Act::Head(200, ""), Act::Hold],
        _ => reply(200, "", &json!({"kind": "ServiceList", "metadata": {"resourceVersion": "7"}, "items": [web("2")]})),
    };
    let (followed, start) = (follow("services", answer, timing()), Instant::now());
    followed.until("+demo/web 80");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn a_server_that_has_forgotten_the_past_meanwhile_is_listed_at_once() {
    // The API server restarts: at first it refuses all requests, and then its versions have another history.
    let phase = Mutex::new(0);
    let answer = move |request: &Request| {
        let phase = &mut *phase.lock().unwrap();
        match (*phase, request.query("resourceVersion")) {
            (0, "") => stream(vec![end("2")]).into_iter().take(2).collect(),
            (0, _) => {
                // The reflector waits 3.2 s to 4.8 s after this failure. After the next one it would wait 6.4 s to 9.6 s, if an answer did not
                // reset its waits.
                *phase = u8::from(request.nth == 3);
                vec![]
            }
            (1, _) => {
                *phase = 2;
                refusal(403, "")
            }
            _ if request.query("watch").is_empty() => {
                let metadata = json!({"resourceVersion": "9"});
                reply(200, "", &json!({"kind": "ServiceList", "metadata": metadata, "items": [web("8")]}))
            }
            (_, "") => stream(vec![added(&web("8")), end("9")]),
            _ => stream(vec![gone()]),
        }
    };
    let followed = follow("services", answer, Timing::default());
    followed.until("+demo/web 80");
    let asked = followed.server.requests("services");
    let first_answer = &asked[4];
    let took = asked.last().unwrap().at - first_answer.at;
    assert!(took < Duration::from_secs(5), "{took:?} from the first answer to the list");
}

#[test]
fn a_server_that_is_back_for_one_kind_is_asked_for_all() {
    let back = Arc::new(Mutex::new(None));
    let since = Arc::clone(&back);
    let server = serve(move |request| match &*request.resource {
        _ if since.lock().unwrap().is_none() => vec![],
        "nodes" => stream(vec![added(&node()), end("1")]),
        _ => stream(vec![end("1")]),
    });
    let options = options(&server.url);
    let followed = start(server, options, longest_waits());
    let all = ["nodes", "services", "endpointslices", "servicecidrs"];
    // The second request of each kind follows soon after the first.
    followed.wait(|followed| all.iter().all(|kind| followed.server.requests(kind).len() >= 2));
    std::thread::sleep(Duration::from_millis(200));
    let since = *back.lock().unwrap().insert(Instant::now());
    followed.until("done");
    let at =
        all.map(|kind| followed.server.requests(kind).iter().map(|request| request.at).find(|at| *at > since).unwrap());
    let apart = *at.iter().max().unwrap() - *at.iter().min().unwrap();
    assert!(apart < Duration::from_secs(10), "{apart:?} between the first and the last");
}

#[test]
fn lists_again_wait_for_a_random_time_that_grows_with_what_is_known() {
    // Without a random wait the lists of all nodes would reach the server at once (O20).
    let answer = |_: &Request| stream(vec![added(&web("8")), end("9"), gone()]);
    let followed = follow("services", answer, Timing { per_object: Duration::from_secs(2), ..timing() });
    followed.wait(|followed| followed.server.requests("services").len() > 6);
    let asked = followed.server.requests("services");
    let took = asked[6].at - asked[0].at;
    // Six random waits of up to 2.2 s each; waits of a small cluster would be 1.2 s in total at most.
    assert!(took > Duration::from_millis(1_700), "{took:?}");
}

#[test]
fn a_server_that_asks_for_time_gets_it() {
    let answer = |request: &Request| match request.nth {
        0 => refusal(429, "Retry-After: 3\r\n"),
        _ => stream(vec![end("2")]),
    };
    let followed = follow("services", answer, Timing::default());
    followed.until("done");
    let asked = followed.server.requests("services");
    assert!(asked[1].at - asked[0].at >= Duration::from_secs(3));
    // The server refused the list for a reason other than streaming, so the next request is a streaming list again.
    assert_eq!(asked[1].query("sendInitialEvents"), "true");
}

#[test]
fn garbage_and_endless_lines_lead_to_another_listing() {
    let endless: fn() -> Vec<Act> = || (0..17).map(|_| Act::Chunk(vec![b'x'; 1 << 20])).collect();
    let binary: fn() -> Vec<Act> = || vec![Act::Chunk(b"\xff\x00\xfe\n".to_vec()), Act::Hold];
    for garbage in [endless, binary] {
        let answer = move |request: &Request| match request.nth {
            0 => {
                let mut acts = stream(vec![end("2")]);
                acts.pop();
                acts.into_iter().chain(garbage()).collect()
            }
            _ => stream(vec![added(&web("3")), end("4")]),
        };
        let followed = follow("services", answer, Timing::default());
        followed.until("+demo/web 80");
        assert_eq!(followed.server.requests("services")[1].query("sendInitialEvents"), "true");
    }
}

#[test]
fn a_cluster_without_service_cidrs_counts_as_having_none() {
    for status in [403, 404] {
        let quick = Timing { absent: Duration::from_millis(300), ..Timing::default() };
        // A role without the verb watch may allow lists, so a list follows the refusal of a streaming list.
        let refusals = if status == 403 { 2 } else { 1 };
        let answer = move |request: &Request| match request.nth {
            nth if nth < refusals => refusal(status, ""),
            _ => {
                let cidr = json!({"metadata": {"name": "kubernetes", "resourceVersion": "2"}, "spec": {"cidrs": ["10.96.0.0/12"]}});
                stream(vec![added(&cidr), end("3")])
            }
        };
        let followed = follow("servicecidrs", answer, quick);
        followed.until("done");
        // The kind that the server lacked is listed again.
        followed.until("+cidr kubernetes");
    }
}

#[test]
fn other_kinds_are_waited_for() {
    let answer = |request: &Request| match request.nth {
        0 => refusal(503, ""),
        1 | 2 => refusal(403, ""),
        _ if request.query("watch") == "true" => stream(vec![]),
        _ => reply(200, "", &json!({"kind": "EndpointSliceList", "metadata": {"resourceVersion": "3"}, "items": []})),
    };
    let followed = follow("endpointslices", answer, Timing::default());
    followed.until("done");
    assert_eq!(followed.server.requests("endpointslices").len(), 4);
    followed.wait(|followed| followed.counts.of("reconnected EndpointSlice") == 1);
}

#[test]
fn a_watch_that_ends_at_once_is_not_asked_for_in_a_loop() {
    let answer = |request: &Request| match request.nth {
        0 => stream(vec![end("2")]).into_iter().take(2).chain([Act::End]).collect(),
        _ => vec![Act::Head(200, ""), Act::End],
    };
    let followed = follow("services", answer, Timing::default());
    followed.until("done");
    std::thread::sleep(Duration::from_secs(4));
    let asked = followed.server.requests("services").len();
    assert!(asked <= 10, "{asked} requests");
}

#[test]
fn a_list_that_lacks_nearly_everything_is_confirmed_by_a_second_one() {
    // The list after the incomplete list has the objects again (false), or also lacks them, which confirms their removal (true).
    for confirmed in [false, true] {
        let all: fn(&str) -> Vec<String> = |version| {
            let names = (0..12).map(|n| format!("s{n}"));
            names.map(|name| added(&service(&name, &json!(80), version))).collect()
        };
        let answer = move |request: &Request| match request.nth {
            0 => stream([all("2"), vec![end("3"), gone()]].concat()),
            2 if !confirmed => stream([all("5"), vec![end("6"), added(&web("7"))]].concat()),
            _ => stream(vec![end("5"), added(&web("7"))]),
        };
        let followed = follow("services", answer, Timing::default());
        let events = followed.until("+demo/web 80");
        let deleted = events.iter().filter(|event| event.starts_with("-demo/s")).count();
        assert_eq!(deleted, if confirmed { 12 } else { 0 });
        let asked = followed.server.requests("services");
        assert_eq!(asked.len(), 3);
        assert!(asked[2].at - asked[1].at >= Duration::from_millis(800), "the server has time to find its mistake");
        assert_eq!(asked[2].query("sendInitialEvents"), "true");
    }
}

/// Returns the requests that ask whether the server still has a version, which are lists of one object.
fn questions(followed: &Followed) -> Vec<Request> {
    let asked = followed.server.requests("services");
    asked.into_iter().filter(|request| request.query("limit") == "1").collect()
}

fn too_large() -> Vec<Act> {
    let text = "Timeout: Too large resource version: 5, current: 3";
    let body = json!({"kind": "Status", "code": 504, "reason": "Timeout", "message": text});
    reply(504, "Retry-After: 1\r\n", &body)
}

#[test]
fn a_server_whose_versions_went_back_is_noticed_by_its_silence() {
    // When nothing comes on a watch for longer than the time between two bookmarks, the server is asked whether it has the version.
    let answer = |request: &Request| match (request.query("limit"), request.nth) {
        ("1", _) => too_large(),
        (_, 0) => stream(vec![added(&web("4")), end("5")]),
        _ => stream(vec![end("3"), added(&service("last", &json!(1), "4"))]),
    };
    let timing = Timing { silence: Duration::from_millis(400), ..Timing::default() };
    let followed = follow("services", answer, timing);
    let events = followed.until("+demo/last 1");
    assert!(events.contains(&"-demo/web".to_owned()), "{events:?}");
    let asked = questions(&followed);
    assert_eq!(asked.len(), 1);
    let query = ["resourceVersion", "resourceVersionMatch", "labelSelector"].map(|key| asked[0].query(key));
    assert_eq!(query, ["5", "NotOlderThan", "!service.kubernetes.io/service-proxy-name"]);
    let list = &followed.server.requests("services")[2];
    assert_eq!((list.query("sendInitialEvents"), list.query("resourceVersion")), ("true", ""));
}

#[test]
fn a_silent_watch_of_a_server_that_has_the_version_is_replaced_without_a_list() {
    // A load balancer has lost the state of the watch's connection: changes do not arrive on the watch, but lists work.
    let answer = |request: &Request| match (request.query("limit"), request.nth) {
        ("1", _) => reply(200, "", &json!({"kind": "ServiceList", "metadata": {"resourceVersion": "5"}, "items": []})),
        (_, 0) => stream(vec![end("5")]),
        (_, 2) => stream(vec![]),
        _ => stream(vec![added(&web("6"))]),
    };
    let timing = Timing { silence: Duration::from_millis(400), ..Timing::default() };
    let followed = follow("services", answer, timing);
    followed.until("+demo/web 80");
    let asked = followed.server.requests("services");
    let watches: Vec<_> = asked.iter().skip(1).filter(|request| request.query("watch") == "true").collect();
    assert_eq!((asked.len(), watches.len()), (5, 2), "a question before each further watch");
    assert!(watches.iter().all(|watch| watch.query("resourceVersion") == "5"));
    assert_eq!(followed.counts.of("lost Service"), 0);
}

#[test]
fn versions_that_went_back_are_noticed_behind_watches_that_end_before_the_server_answers() {
    // A load balancer ends the watches in order, at once or after 1.1 s. The server takes 1.5 s to answer that it does not have the
    // version.
    for life in [0, 1100] {
        let answer = move |request: &Request| match (request.query("limit"), request.query("sendInitialEvents")) {
            ("1", _) => [vec![Act::Wait(Duration::from_millis(1500))], too_large()].into_iter().flatten().collect(),
            (_, "") => vec![Act::Head(200, ""), Act::Wait(Duration::from_millis(life)), Act::End],
            _ if request.nth == 0 => {
                stream(vec![added(&web("4")), end("5")]).into_iter().take(3).chain([Act::End]).collect()
            }
            _ => stream(vec![end("3"), added(&service("last", &json!(1), "4"))]),
        };
        let (followed, start) = (follow("services", answer, Timing::default()), Instant::now());
        followed.until("+demo/last 1");
        println!("watches of {life} ms: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        // After a watch that ended at once a list comes first.
        assert_eq!(questions(&followed).len(), usize::from(life > 0));
    }
}

#[test]
fn a_question_that_is_not_answered_changes_nothing_and_delays_no_event() {
    let answer = |request: &Request| match request.query("limit") {
        "1" if request.nth == 1 => refusal(503, ""),
        "1" => vec![Act::Hold],
        _ => {
            let later = [Act::Wait(Duration::from_millis(1500)), Act::Chunk((added(&web("6")) + "\n").into_bytes())];
            let mut acts = stream(vec![end("5")]);
            acts.pop();
            acts.into_iter().chain(later).chain([Act::Hold]).collect()
        }
    };
    let timing = Timing { silence: Duration::from_millis(400), ..Timing::default() };
    let followed = follow("services", answer, timing);
    let start = Instant::now();
    followed.until("+demo/web 80");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(questions(&followed).len(), 2);
    assert_eq!(followed.counts.of("lost Service"), 0);
}

#[test]
fn a_list_from_long_ago_confirms_nothing() {
    // The second list that lacks the objects comes too late to confirm the first one, and the list after it has the objects again.
    let all =
        |version: &str| (0..12).map(|n| added(&service(&format!("s{n}"), &json!(80), version))).collect::<Vec<_>>();
    let answer = move |request: &Request| match request.nth {
        0 => stream([all("2"), vec![end("3"), gone()]].concat()),
        2 => refusal(503, "Retry-After: 2\r\n"),
        4 => stream([all("5"), vec![end("6"), added(&web("7"))]].concat()),
        _ => stream(vec![end("5")]),
    };
    let timing = Timing { confirmation: Duration::from_secs(1), ..Timing::default() };
    let followed = follow("services", answer, timing);
    let events = followed.until("+demo/web 80");
    assert!(!events.iter().any(|event| event.starts_with("-demo/s")), "{events:?}");
    assert_eq!(followed.server.requests("services").len(), 5);
}

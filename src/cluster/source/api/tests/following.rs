//! Tests of the requests that the source sends, and of the events and their order.

use super::*;

/// Returns a page of Services.
fn services(version: &str, next: &str, items: &[Value]) -> Value {
    json!({"kind": "ServiceList", "metadata": {"resourceVersion": version, "continue": next}, "items": items})
}

#[test]
fn everything_is_listed_before_the_list_is_done() {
    // `InitialListDone` comes after the lists of all kinds (G1, M2).
    let answer = |_: &Request| stream(vec![added(&web("2")), end("3"), event("DELETED", &web("4"))]);
    let followed = follow("services", answer, Timing::default());
    let mut initial = followed.until("done");
    initial.sort();
    // A change after the list of its own kind may come before the lists of other kinds are complete.
    initial.retain(|event| event != "-demo/web");
    assert_eq!(initial, ["+demo/web 80", "+node node-1", "done"]);
}

#[test]
fn requests_carry_the_selectors() {
    // Requests have upstream's selectors (P10) and the parameters of a streaming list.
    let followed = follow("services", |_| stream(vec![end("3")]), Timing::default());
    followed.until("done");
    for (resource, key, value) in [
        ("services", "labelSelector", "!service.kubernetes.io/service-proxy-name"),
        ("services", "fieldSelector", "spec.clusterIP!=None"),
        ("endpointslices", "labelSelector", "!service.kubernetes.io/headless"),
        ("endpointslices", "fieldSelector", ""),
        ("servicecidrs", "labelSelector", ""),
        ("nodes", "fieldSelector", "metadata.name=node-1"),
        ("nodes", "sendInitialEvents", "true"),
        ("nodes", "resourceVersionMatch", "NotOlderThan"),
        ("nodes", "allowWatchBookmarks", "true"),
        ("nodes", "resourceVersion", ""),
    ] {
        let request = &followed.server.requests(resource)[0];
        assert_eq!(request.query(key), value, "{resource} {key}");
    }
    let request = &followed.server.requests("nodes")[0];
    let seconds: u32 = request.query("timeoutSeconds").parse().unwrap();
    assert!((260..=286).contains(&seconds), "{seconds}");
    let agent = concat!("kube-proxy-nft/", env!("CARGO_PKG_VERSION"));
    assert_eq!(request.headers["user-agent"], agent);
}

#[test]
fn a_server_that_refuses_streaming_lists_is_asked_for_pages_each_time() {
    let answer = |request: &Request| match (request.query("sendInitialEvents"), request.query("continue")) {
        ("true", _) => refusal(422, ""),
        _ if request.query("watch") == "true" => stream(vec![gone()]),
        (_, "") => reply(200, "", &services("7", "more", &[web("2")])),
        (_, _) => reply(200, "", &services("7", "", &[service("api", &json!(81), "3")])),
    };
    let followed = follow("services", answer, Timing::default());
    for _ in 0..2 {
        followed.until("+demo/web 80");
        assert_eq!(followed.until("+demo/api 81").last().unwrap(), "+demo/api 81");
    }
    let asked = followed.server.requests("services");
    assert_eq!((asked[1].query("limit"), asked[1].query("watch"), asked[2].query("continue")), ("500", "", "more"));
    assert_eq!((asked[3].query("watch"), asked[3].query("resourceVersion")), ("true", "7"));
    assert_eq!(asked[4].query("sendInitialEvents"), "true");
    assert_eq!(followed.counts.of("rejected Service"), 0);
    // Each request is counted once it is answered, even if it is refused.
    assert!(followed.counts.of("Some(422) without a body") >= 2 && followed.counts.of("Some(200) with a body") >= 4);
}

#[test]
fn a_list_after_a_refused_watch_comes_from_the_cache_and_after_a_refused_list_from_etcd() {
    let answer = |request: &Request| match (request.query("sendInitialEvents"), request.query("watch")) {
        ("true", _) => refusal(422, ""),
        (_, "true") if request.nth < 4 => refusal(404, ""),
        (_, "true") => stream(vec![added(&service("last", &json!(1), "8"))]),
        _ if request.query("resourceVersionMatch") == "NotOlderThan" => refusal(400, ""),
        _ => reply(200, "", &services("7", "", &[web("2")])),
    };
    let followed = follow("services", answer, Timing::default());
    followed.until("+demo/last 1");
    let asked = followed.server.requests("services");
    let lists: Vec<_> = asked.iter().filter(|request| request.query("watch").is_empty()).collect();
    let versions = |key| lists.iter().map(|list| list.query(key)).collect::<Vec<_>>();
    assert_eq!(versions("resourceVersion"), ["0", "7", ""]);
    assert_eq!(versions("resourceVersionMatch"), ["", "NotOlderThan", ""]);
}

#[test]
fn a_server_that_ignores_streaming_lists_is_asked_for_pages() {
    // A server that ignores streaming sends no bookmark, or one that does not end the list.
    for lines in [vec![added(&web("2"))], vec![added(&web("2")), bookmark("3")]] {
        let answer = move |request: &Request| match request.query("watch") {
            "" => reply(200, "", &services("7", "", &[web("2")])),
            _ => stream(lines.clone()),
        };
        let followed = follow("services", answer, timing());
        followed.until("done");
        followed.wait(|followed| followed.server.requests("services").len() >= 3);
        let asked = followed.server.requests("services");
        assert_eq!((asked[1].query("limit"), asked[2].query("resourceVersion")), ("500", "7"));
    }
}

#[test]
fn a_relist_deletes_only_what_it_lacks_and_only_at_its_end() {
    let api = || service("api", &json!(81), "3");
    let answer = move |request: &Request| match request.nth {
        0 => stream(vec![added(&web("2")), added(&api()), end("4"), gone()]),
        // The list breaks off, so it deletes nothing.
        1 => vec![Act::Head(200, ""), Act::Chunk((added(&web("2")) + "\n").into_bytes())],
        _ => stream(vec![added(&web("2")), end("9")]),
    };
    let followed = follow("services", answer, Timing::default());
    let all = followed.until("-demo/api");
    let services: Vec<_> = all.iter().filter(|event| event.contains("demo/")).map(String::as_str).collect();
    assert_eq!(services, ["+demo/web 80", "+demo/api 81", "+demo/web 80", "+demo/web 80", "-demo/api"]);
}

#[test]
fn changes_are_sent_as_they_come() {
    let other_proxy = |version| {
        let mut object = web(version);
        object["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "x"});
        object
    };
    let changed = event("MODIFIED", &service("web", &json!(90), "5"));
    let answer = move |_: &Request| {
        let deleted = event("DELETED", &service("api", &json!(81), "8"));
        let last = added(&service("last", &json!(99), "9"));
        stream(vec![end("2"), added(&web("3")), changed.clone(), event("MODIFIED", &other_proxy("6")), deleted, last])
    };
    let followed = follow("services", answer, Timing::default());
    let all = followed.until("+demo/last 99");
    let services: Vec<_> = all.iter().filter(|event| event.contains("demo/")).map(String::as_str).collect();
    // An object that was never sent is not deleted (A1).
    assert_eq!(services, ["+demo/web 80", "+demo/web 90", "-demo/web", "+demo/last 99"]);
}

#[test]
fn a_deleted_node_stays_as_it_was() {
    // The last state of a deleted Node is kept (L6).
    let answer = |_: &Request| stream(vec![added(&node()), end("2"), event("DELETED", &node()), added(&node())]);
    let followed = follow("nodes", answer, Timing::default());
    let all: Vec<_> = (0..3).map(|_| short(&followed.events.recv_timeout(PATIENCE).unwrap())).collect();
    assert!(!all.iter().any(|event| event.starts_with('-')), "{all:?}");
}

#[test]
fn a_stop_is_prompt_even_while_the_queue_is_full() {
    let server = serve(|request| match &*request.resource {
        "services" => stream(vec![added(&web("1")); 100]),
        _ => vec![Act::Hold],
    });
    let (sink, events) = sync_channel(1);
    let (counts, (supervisor, _failures)) = (Counts::default(), supervise::new());
    let handle = spawn(options(&server.url), sink, counts.clone(), &supervisor).unwrap();
    assert!(events.recv_timeout(PATIENCE).is_ok());
    drop(handle);
    counts.wait_until_unused();
}

#[test]
fn the_source_ends_when_the_receiver_is_gone() {
    let more = || [Act::Wait(Duration::from_millis(100)), Act::Chunk((added(&web("3")) + "\n").into_bytes())];
    let answer = move |_: &Request| {
        let initial = stream(vec![end("2")]).into_iter().take(2);
        initial.chain((0..100).flat_map(|_| more())).collect()
    };
    let followed = follow("services", answer, Timing::default());
    drop(followed.events);
    followed.counts.wait_until_unused();
}

#[test]
fn the_version_of_the_server_is_asked_for_once_all_objects_are_known() {
    let server = serve(|request| match &*request.resource {
        "version" => reply(200, "", &json!({"major": "1", "gitVersion": "v1.36.2"})),
        "nodes" => stream(vec![added(&node()), end("1")]),
        _ => stream(vec![end("1")]),
    });
    let options = options(&server.url);
    let followed = start(server, options, timing());
    followed.until("done");
    assert!(followed.server.requests("version").is_empty(), "a start waits for nothing else");
    followed.wait(|followed| followed.counts.of("version v1.36.2") == 1);
    assert_eq!(followed.server.requests("version").len(), 1);
}

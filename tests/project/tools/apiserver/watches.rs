//! Watches: where they start, which events they send, how they end.

use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{Answer, get, plain, service};
use crate::support::apiserver::fault::Command;
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::state::Streaming;
use crate::support::apiserver::{ApiServer, Scheme};

const STREAMING: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn server() -> ApiServer {
    let server = ApiServer::start(Scheme::Http);
    server.apply(&["a", "b"].map(plain));
    server
}

fn watch(server: &ApiServer, query: &str) -> Answer {
    let answer = get(server, &format!("/api/v1/services?watch=true&{query}"));
    assert_eq!(answer.status, 200, "{query}");
    answer
}

#[test]
fn changes_come_as_they_happen() {
    let server = server();
    let mut watch = watch(&server, "resourceVersion=101");
    assert_eq!(watch.short(), "ADDED b 102");
    server.apply(&[plain("c"), service("a", "10.96.0.7", &json!({}))]);
    assert_eq!(watch.short(), "ADDED c 103");
    let event = watch.event().expect("the watch goes on");
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("MODIFIED"), &json!("Service")));
    assert_eq!(event["object"]["spec"]["clusterIP"], "10.96.0.7");
    // A change of another kind is none here.
    server.apply(&[json!({ "kind": "Node", "metadata": { "name": "n" } })]);
    server.delete(Resource::Service, "shop", "c");
    let event = watch.event().expect("the watch goes on");
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("c")));
    // A deletion has the last content of the object, with the version of the deletion.
    assert_eq!(event["object"]["metadata"]["resourceVersion"], "106");
    assert_eq!(event["object"]["spec"]["clusterIP"], "10.96.0.1");
}

#[test]
fn an_object_that_stops_matching_is_deleted_for_the_watcher() {
    // A Service that gets the label of another proxy is deleted for the watcher (A1).
    let server = server();
    let selectors = "labelSelector=!proxy-name&fieldSelector=spec.clusterIP!=None";
    let mut watch = watch(&server, &format!("resourceVersion=102&{selectors}"));
    server.apply(&[service("a", "10.96.0.1", &json!({ "proxy-name": "x" }))]);
    server.apply(&[service("a", "10.96.0.2", &json!({ "proxy-name": "x" }))]);
    server.apply(&[plain("a")]);
    server.apply(&[service("a", "None", &json!({}))]);
    server.delete(Resource::Service, "shop", "a");
    server.apply(&[plain("z")]);
    let events: Vec<String> = (0..4).map(|_| watch.short()).collect();
    assert_eq!(events, ["DELETED a 103", "ADDED a 105", "DELETED a 106", "ADDED z 108"]);
}

#[test]
fn a_watch_without_a_version_starts_with_what_there_is() {
    let server = server();
    for query in ["", "resourceVersion=0"] {
        let mut watch = watch(&server, query);
        assert_eq!([watch.short(), watch.short()], ["ADDED a 101", "ADDED b 102"]);
    }
}

#[test]
fn a_streaming_list_tells_where_the_objects_end() {
    let server = server();
    let mut watch = watch(&server, STREAMING);
    assert_eq!([watch.short(), watch.short()], ["ADDED a 101", "ADDED b 102"]);
    let end = watch.event().expect("the watch goes on");
    assert_eq!((&end["type"], &end["object"]["kind"]), (&json!("BOOKMARK"), &json!("Service")));
    let metadata = &end["object"]["metadata"];
    assert_eq!(metadata["annotations"], json!({ "k8s.io/initial-events-end": "true" }));
    assert_eq!(metadata["resourceVersion"], "102");
    server.apply(&[plain("c")]);
    assert_eq!(watch.short(), "ADDED c 103");
    // A streaming list also works from a version that is not empty.
    let mut later = self::watch(&server, &format!("{STREAMING}&resourceVersion=102&fieldSelector=metadata.name=b"));
    assert_eq!([later.short(), later.short()], ["ADDED b 102", "BOOKMARK 103"]);
}

#[test]
fn servers_without_streaming_lists_refuse_or_ignore_the_wish() {
    let server = server();
    server.settings().streaming = Streaming::Refused;
    assert_eq!(get(&server, &format!("/api/v1/services?watch=1&{STREAMING}")).status, 422);
    server.settings().streaming = Streaming::Ignored;
    let mut old = watch(&server, STREAMING);
    assert_eq!([old.short(), old.short()], ["ADDED a 101", "ADDED b 102"]);
    server.order(Resource::Service, Command::Bookmark);
    let bookmark = old.event().expect("the watch goes on");
    assert_eq!(bookmark["object"]["metadata"].get("annotations"), None);
    server.settings().streaming = Streaming::On;
    for half in ["sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"] {
        assert_eq!(get(&server, &format!("/api/v1/services?watch=1&{half}")).status, 422, "{half}");
    }
}

#[test]
fn a_version_that_was_compacted_is_an_error_in_the_watch() {
    let server = server();
    server.compact();
    server.apply(&[plain("c")]);
    let mut late = watch(&server, "resourceVersion=101");
    let event = late.event().expect("an error is sent");
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ERROR"), &json!("Status")));
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert_eq!(late.short(), "end");
    let mut good = watch(&server, "resourceVersion=102");
    assert_eq!(good.short(), "ADDED c 103");
    server.order(None, Command::Expire);
    assert_eq!([good.short(), good.short()], ["ERROR 410", "end"]);
}

#[test]
fn bookmarks_are_sent_to_clients_that_ask_for_them() {
    let server = server();
    server.settings().bookmark_every = Duration::from_millis(100);
    let mut wanted = watch(&server, "resourceVersion=102&allowWatchBookmarks=true");
    let mut unwanted = watch(&server, "resourceVersion=102&timeoutSeconds=1");
    assert_eq!([wanted.short(), wanted.short()], ["BOOKMARK 102", "BOOKMARK 102"]);
    server.apply(&[json!({ "kind": "Node", "metadata": { "name": "n" } })]);
    while wanted.short() != "BOOKMARK 103" {}
    assert_eq!(unwanted.short(), "end");
}

#[test]
fn a_watch_ends_when_its_time_is_over_and_is_counted_until_then() {
    let server = server();
    let start = Instant::now();
    let mut watch = watch(&server, "resourceVersion=102&timeoutSeconds=1");
    assert_eq!(server.wait_for_watch(Resource::Service), 1);
    assert_eq!(watch.short(), "end");
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    let gone = || (server.open_watches(Resource::Service) == 0).then_some(());
    crate::support::apiserver::wait_for("the end of the count", gone);
    // A client that goes away ends its watch too.
    let watch = self::watch(&server, "resourceVersion=102");
    assert_eq!(server.wait_for_watch(Resource::Service), 1);
    watch.close();
    crate::support::apiserver::wait_for("the end of the count", gone);
}

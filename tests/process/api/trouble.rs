//! One failure at a time, of a list at the start and of a watch later. Each delays the proxy for a moment and changes no rule.

use std::thread;
use std::time::Duration;

use serde_json::json;

use super::cluster::{Cluster, sent, served};
use crate::support::apiserver::fault::{Command, Ending, Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::state::Streaming;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};

/// As many proxies as a small machine runs at the same time.
const AT_ONCE: usize = 4;

/// Runs a check on each case, some at the same time.
fn for_each_case<T: Sync + std::fmt::Debug>(cases: &[T], check: impl Fn(&T) + Sync) {
    for wave in cases.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let threads: Vec<_> = wave.iter().map(|case| (case, scope.spawn(|| check(case)))).collect();
            for (case, thread) in threads {
                assert!(thread.join().is_ok(), "{case:?}");
            }
        });
    }
}

/// Starts a proxy that meets the fault once with a list or watch of each kind, and waits until it serves all the same.
fn starts_in_spite_of(format: Format, fault: &Fault, streaming: Streaming) {
    let cluster = Cluster::new(format);
    cluster.server.settings().streaming = streaming;
    for kind in Resource::ALL {
        let on = if streaming == Streaming::On { On::Watch(kind) } else { On::List(kind) };
        cluster.server.fault(on, 1, fault.clone());
    }
    let mut proxy = cluster.proxy();
    assert_eq!(cluster.server.clear_faults(), 0, "all of them were met");
    assert!(cluster.serves("web"));
    assert!(sent(&proxy)[2] < 0.5, "elements were removed");
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    assert_eq!(proxy.stop().code(), Some(0));
}

fn faults() -> Vec<Fault> {
    vec![
        Fault::Unanswered(Ending::Reset),
        Fault::After(0, Ending::Close),
        // The answer ends inside an object.
        Fault::After(150, Ending::Reset),
        Fault::After(150, Ending::Close),
        Fault::Drip(1, Duration::ZERO),
        Fault::Drip(100, Duration::from_millis(20)),
        Fault::Refuse(500, None),
        Fault::Refuse(429, Some(1)),
        Fault::Refuse(401, None),
        Fault::Garbage(b"\xff\xfe<html>not JSON\n".to_vec()),
        Fault::Garbage(Vec::new()),
        // An HTTP proxy between the two answers in place of the server.
        Fault::Garbage(b"{\"kind\":\"Status\",\"metadata\":{},\"code\":200}\n".to_vec()),
        // An HTTP proxy between the two mixes answers up.
        Fault::Garbage(b"{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[]}\n".to_vec()),
    ]
}

test_in_each_format!(a_streaming_list_that_fails_is_tried_again);
fn a_streaming_list_that_fails_is_tried_again(format: Format) {
    for_each_case(&faults(), |fault| starts_in_spite_of(format, fault, Streaming::On));
}

test_in_each_format!(a_paged_list_that_fails_is_tried_again);
fn a_paged_list_that_fails_is_tried_again(format: Format) {
    for_each_case(&faults(), |fault| starts_in_spite_of(format, fault, Streaming::Refused));
}

test_in_each_format!(a_list_that_falls_silent_is_given_up);
fn a_list_that_falls_silent_is_given_up(format: Format) {
    // The client waits 15 s for the end of a streaming list.
    starts_in_spite_of(format, &Fault::After(150, Ending::Silence), Streaming::On);
}

test_in_each_format!(a_watch_that_fails_is_taken_up_again);
fn a_watch_that_fails_is_taken_up_again(format: Format) {
    let orders = [
        Command::End(Ending::Reset),
        Command::End(Ending::Close),
        Command::Finish,
        Command::Expire,
        Command::Bytes(b"\xff\xfe\n".to_vec()),
        Command::Bytes(b"{\"type\":\"ADDED\",\"object\":\n".to_vec()),
        // A message that ends in its text.
        Command::Bytes(b"\0\0\0\x03\x0a\x05A\n".to_vec()),
        Command::Bytes(format.event("SURPRISE", &json!({}))),
        Command::Bytes(format.event("ERROR", &json!({ "kind": "Status", "code": 500 }))),
        // The event is longer than any object can be.
        Command::Flood(17 << 20),
    ];
    for_each_case(&orders, |order| {
        let cluster = Cluster::new(format);
        let mut proxy = cluster.proxy();
        cluster.server.wait_for_watches();
        let asked = cluster.server.requests().len();
        cluster.server.order(None, order.clone());
        cluster.server.apply(&served("api", 2));
        cluster.wait_until_serves("api", true);
        cluster.server.delete(Resource::Service, "shop", "api");
        cluster.wait_until_serves("api", false);
        assert!(cluster.server.requests().len() > asked, "nothing was asked again");
        if matches!(order, Command::End(_) | Command::Finish) {
            let services = cluster.server.requests_for(Resource::Service);
            let listings = services.iter().filter(|request| request.query.is_true("sendInitialEvents")).count();
            assert_eq!(listings, 1, "a watch that ends is gone on with where it was");
        }
        assert!(cluster.serves("web"));
        assert_eq!(proxy.stop().code(), Some(0));
    });
}

test_in_each_format!(an_object_of_another_kind_is_named_and_not_used);
fn an_object_of_another_kind_is_named_and_not_used(format: Format) {
    for (word, is_followed_on) in [("ADDED", true), ("MODIFIED", true), ("DELETED", false)] {
        let cluster = Cluster::new(format);
        let mut proxy = cluster.proxy();
        cluster.server.wait_for_watches();
        let asked = cluster.server.requests_for(Resource::Service).len();
        let metadata = json!({ "namespace": "shop", "name": "web", "resourceVersion": "1" });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        cluster.server.order(Some(Resource::Service), Command::Bytes(format.event(word, &pod)));
        let named = if is_followed_on { r#"field="kind" err="the server sent a \"Pod\""# } else { "of another kind" };
        wait_for("a word about it", || proxy.log().contains(named).then_some(()));
        cluster.server.apply(&served("api", 2));
        cluster.wait_until_serves("api", true);
        assert!(cluster.serves("web"), "{word}: the Service of the same name is not touched");
        assert_eq!(cluster.server.requests_for(Resource::Service).len() == asked, is_followed_on, "{word}");
        assert_eq!(proxy.stop().code(), Some(0));
    }
}

test_in_each_format!(an_object_that_is_sent_byte_by_byte_is_an_object);
fn an_object_that_is_sent_byte_by_byte_is_an_object(format: Format) {
    let cluster = Cluster::new(format);
    cluster.server.lasting_fault(On::All, Fault::Drip(1, Duration::ZERO));
    let _proxy = cluster.proxy();
    for n in 2..5 {
        cluster.server.apply(&served("api", n));
        cluster.wait_until_serves("api", true);
        cluster.server.delete(Resource::Service, "shop", "api");
        cluster.wait_until_serves("api", false);
    }
    assert_eq!(cluster.server.requests_for(Resource::Service).len(), 1);
}

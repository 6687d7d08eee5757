//! Frames, pages and objects.

use serde_json::json;
use serde_json::value::RawValue;

use super::super::frame::{Frame, Status, page, status, watch_line};
use super::super::resource::Resource;
use super::*;
use crate::model::ObjectName;
use crate::source::convert::Converter;
use crate::source::key::Key;

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

#[test]
fn the_events_of_a_watch_are_told_apart() {
    for (word, expected) in [("ADDED", "applied"), ("MODIFIED", "applied"), ("DELETED", "deleted")] {
        let line = event(word, &web("7"));
        let found = match watch_line(line.as_bytes()).unwrap() {
            Frame::Applied(object) => ("applied", object.get().len()),
            Frame::Deleted(object) => ("deleted", object.get().len()),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, (expected, web("7").to_string().len()));
    }
    let ends = [bookmark("8"), end("9")].map(|line| match watch_line(line.as_bytes()) {
        Ok(Frame::Bookmark { version, initial_end }) => (version, initial_end),
        other => panic!("{other:?}"),
    });
    assert_eq!(ends, [("8".into(), false), ("9".into(), true)]);
    assert!(matches!(watch_line(gone().as_bytes()), Ok(Frame::Error(status)) if status.is_gone()));
}

#[test]
fn what_is_no_event_is_an_error() {
    for line in [&b"{"[..], b"[]", b"\xff\xfe", br#"{"type":"ODD","object":{}}"#, br#"{"type":"BOOKMARK","object":{}}"#]
    {
        assert!(watch_line(line).is_err(), "{line:?}");
    }
}

#[test]
fn a_page_has_its_items_and_a_token() {
    let list =
        json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9", "continue": "t"}, "items": [web("1")]});
    let text = list.to_string();
    let found = page(text.as_bytes(), "Service").unwrap();
    assert_eq!((found.items.len(), &*found.version, found.next.as_deref()), (1, "9", Some("t")));
    let empty = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9", "continue": ""}, "items": null});
    assert!(
        page(empty.to_string().as_bytes(), "Service").is_ok_and(|page| page.items.is_empty() && page.next.is_none())
    );
}

#[test]
fn what_is_no_list_is_not_a_list_of_nothing() {
    let unversioned = json!({"kind": "ServiceList", "metadata": {"resourceVersion": ""}, "items": []});
    let status = json!({"kind": "Status", "metadata": {"resourceVersion": "1"}});
    let pods = json!({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []});
    for value in [json!({}), unversioned, status, pods, json!("html")] {
        assert!(page(value.to_string().as_bytes(), "Service").is_err(), "{value}");
    }
}

#[test]
fn words_about_a_failure_may_be_anything() {
    assert_eq!(status(b"<html>Bad Gateway</html>"), Status::default());
    assert_eq!(status(br#"{"code": 429, "reason": null}"#).code, 429);
}

#[test]
fn a_broken_object_is_named_with_its_field() {
    let object = raw(&service("bad", &json!("x"), "5"));
    let broken = Resource::Service.decode(&mut Converter::default(), &object).unwrap_err();
    assert_eq!(broken.key, Some(Key::Service(ObjectName::new("demo", "bad"))));
    assert_eq!(broken.version.as_deref(), Some("5"));
    assert_eq!(
        broken.notice.to_string(),
        "Service demo/bad: spec.ports[0].port: invalid type: string \"x\", expected i32; the object stays as it was"
    );
}

#[test]
fn an_object_without_a_readable_name_is_nameless() {
    for value in [json!({"metadata": 7}), json!({"metadata": {"name": ["x"]}}), json!("text")] {
        let broken = Resource::EndpointSlice.decode(&mut Converter::default(), &raw(&value)).unwrap_err();
        assert_eq!(broken.key, None, "{value}");
        assert!(broken.notice.to_string().starts_with("EndpointSlice without a name: "), "{}", broken.notice);
    }
}

#[test]
fn an_object_of_another_kind_is_named_and_says_nothing_about_ours() {
    let pod = raw(&json!({"kind": "Pod", "metadata": {"name": "web", "namespace": "demo", "resourceVersion": "6"}}));
    for resource in Resource::ALL {
        let broken = resource.decode(&mut Converter::default(), &pod).unwrap_err();
        assert_eq!((broken.key, broken.version.as_deref()), (None, Some("6")));
        let expected = format!("{} demo/web: kind: the server sent a \"Pod\"; it is not used", resource.kind());
        assert_eq!(broken.notice.to_string(), expected);
        assert!(resource.identify(&pod).is_none(), "its deletion is none of ours");
    }
}

#[test]
fn each_kind_is_counted_from_the_start() {
    let metrics = crate::metrics::Metrics::new().text();
    for kind in Resource::ALL.map(Resource::kind) {
        for series in ["source_reconnects_total{resource", "rejected_objects_total{kind"] {
            let line = format!("kubeproxy_nft_{series}=\"{kind}\"}} 0\n");
            assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
        }
    }
}

#[test]
fn each_kind_is_read_and_identified() {
    let named = raw(&json!({"metadata": {"name": "a", "namespace": "b", "resourceVersion": "3"}}));
    for resource in Resource::ALL {
        let decoded = resource.decode(&mut Converter::default(), &named).unwrap();
        assert_eq!(&*decoded.version, "3");
        let (key, version) = resource.identify(&named).unwrap();
        assert_eq!(Key::of(&decoded.converted.event.unwrap()), Some(key));
        assert_eq!(version.as_deref(), Some("3"));
    }
}

//! Lists: selectors, versions, pages.

use serde_json::{Value, json};

use super::client::{get, plain, service};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Scheme};

const SERVICES: &str = "/api/v1/services";

fn server() -> ApiServer {
    let server = ApiServer::start(Scheme::Http);
    server.apply(&["a", "b", "c"].map(plain));
    server
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("a list has items");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("an item has a name")).collect()
}

/// The names and the version of a list.
fn listed(server: &ApiServer, query: &str) -> (Vec<String>, String) {
    let list = get(server, &format!("{SERVICES}?{query}")).json();
    let version = list["metadata"]["resourceVersion"].as_str().expect("a list has a version").to_owned();
    (names(&list).into_iter().map(str::to_owned).collect(), version)
}

fn refused(server: &ApiServer, query: &str) -> u16 {
    let answer = get(server, &format!("{SERVICES}?{query}"));
    let status = answer.status;
    let object = answer.json();
    assert_eq!((&object["kind"], &object["code"]), (&json!("Status"), &json!(status)), "{query}");
    status
}

#[test]
fn a_list_names_its_kind_once_and_has_the_latest_version() {
    let server = server();
    let answer = get(&server, SERVICES);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let list = answer.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ServiceList"), &json!("v1")));
    assert_eq!(names(&list), ["a", "b", "c"]);
    assert_eq!(list["items"][0].get("kind"), None);
    assert_eq!(list["items"][0]["metadata"]["resourceVersion"], "101");
    assert_eq!(list["metadata"], json!({ "resourceVersion": "103" }));
    // All kinds share one version.
    server.apply(&[json!({ "kind": "Node", "metadata": { "name": "n" } })]);
    assert_eq!(listed(&server, "").1, "104");
    // Applying an equal object is no change, applying another one is.
    server.apply(&[plain("a")]);
    assert_eq!(server.version(), 104);
    server.delete(Resource::Service, "shop", "b");
    assert_eq!(listed(&server, ""), (vec!["a".into(), "c".into()], "105".into()));
}

#[test]
fn lists_and_watches_with_a_selector_get_the_objects_that_match() {
    let server = server();
    server.apply(&[
        service("headless", "None", &json!({})),
        service("labelled", "10.96.0.9", &json!({ "service.kubernetes.io/service-proxy-name": "" })),
        service("blue", "10.96.0.8", &json!({ "team": "blue" })),
    ]);
    let found = |query: &str| listed(&server, query).0.join(" ");
    assert_eq!(found("labelSelector=%21service.kubernetes.io%2Fservice-proxy-name"), "a b blue c headless");
    assert_eq!(found("fieldSelector=spec.clusterIP%21%3DNone"), "a b blue c labelled");
    let both = "labelSelector=!service.kubernetes.io/service-proxy-name&fieldSelector=spec.clusterIP!=None";
    assert_eq!(found(both), "a b blue c");
    assert_eq!(found("labelSelector=team"), "blue");
    assert_eq!(found("labelSelector=team%3Dred"), "");
    assert_eq!(found("labelSelector=team!=blue"), "a b c headless labelled");
    assert_eq!(found("fieldSelector=metadata.name=b,metadata.namespace=shop"), "b");
    for bad in ["fieldSelector=spec.selector=x", "fieldSelector=!metadata.name", "labelSelector=team+in+(a)"] {
        assert_eq!(refused(&server, bad), 400, "{bad}");
    }
}

#[test]
fn pages_are_of_one_version() {
    let server = server();
    let first = get(&server, &format!("{SERVICES}?limit=2")).json();
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    let token = first["metadata"]["continue"].as_str().expect("there is more").replace('/', "%2F");
    // Changes between two pages are not seen.
    server.delete(Resource::Service, "shop", "c");
    server.apply(&[plain("d")]);
    let last = get(&server, &format!("{SERVICES}?limit=2&continue={token}")).json();
    assert_eq!(names(&last), ["c"]);
    assert_eq!(last["metadata"], json!({ "resourceVersion": "103" }));
    server.compact();
    assert_eq!(refused(&server, &format!("limit=2&continue={token}")), 410);
    assert_eq!(refused(&server, "continue=nonsense"), 400);
    assert_eq!(refused(&server, &format!("continue={token}&resourceVersion=103")), 400);
}

#[test]
fn versions_of_lists_are_those_that_were_asked_for() {
    let server = server();
    server.delete(Resource::Service, "shop", "a");
    let now = (vec!["b".to_owned(), "c".into()], "104".to_owned());
    for query in
        ["", "resourceVersion=0", "resourceVersion=102", "resourceVersion=102&resourceVersionMatch=NotOlderThan"]
    {
        assert_eq!(listed(&server, query), now, "{query}");
    }
    // The watch cache knows no pages.
    assert_eq!(listed(&server, "resourceVersion=0&limit=1"), now);
    let exact = "resourceVersion=102&resourceVersionMatch=Exact";
    assert_eq!(listed(&server, exact), (vec!["a".into(), "b".into()], "102".into()));
    assert_eq!(listed(&server, "resourceVersion=102&limit=5"), (vec!["a".into(), "b".into()], "102".into()));
    server.compact();
    assert_eq!(refused(&server, exact), 410);
    let future = get(&server, &format!("{SERVICES}?resourceVersion=105"));
    assert_eq!((future.status, future.header("retry-after")), (504, Some("1")));
    for bad in ["resourceVersionMatch=Exact", "resourceVersionMatch=Exact&resourceVersion=0"] {
        assert_eq!(refused(&server, bad), 422, "{bad}");
    }
    assert_eq!(refused(&server, "resourceVersion=x"), 400);
    assert_eq!(refused(&server, "limit=x"), 400);
}

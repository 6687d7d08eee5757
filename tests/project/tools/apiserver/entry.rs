//! Authentication and authorization: which clients may make which requests.

use std::fs;

use serde_json::{Value, json};

use super::client::{get, plain, send};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Scheme};

fn status(server: &ApiServer, head: &str, body: &str) -> u16 {
    send(server, head, body).unwrap_or_else(|error| panic!("{head}: {error}")).status
}

#[test]
fn the_role_allows_what_it_allows() {
    let server = ApiServer::start(Scheme::Http);
    server.apply(&[json!({ "kind": "Node", "metadata": { "name": "n" } })]);
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let allowed = ["GET /version", "GET /api/v1/nodes/n", "GET /apis/networking.k8s.io/v1/servicecidrs"];
    allowed.into_iter().for_each(|head| assert_eq!(status(&server, head, ""), 200, "{head}"));
    assert_eq!(status(&server, "GET /api/v1/nodes/m", ""), 404);
    assert_eq!(status(&server, &format!("POST {events}"), r#"{"reason":"Starting"}"#), 201);
    assert_eq!(status(&server, &format!("PATCH {events}/x"), "{}"), 201);
    assert_eq!(server.events(), [json!({ "reason": "Starting" }), json!({})]);
    let forbidden = [
        "GET /api/v1/secrets",
        "GET /api/v1/pods?watch=1",
        "GET /api/v1/namespaces/shop/services",
        "GET /api/v1/nodes/n/status",
        "PATCH /api/v1/nodes/n",
        "DELETE /api/v1/services",
        &format!("GET {events}"),
        &format!("DELETE {events}/x"),
    ];
    forbidden.into_iter().for_each(|head| assert_eq!(status(&server, head, ""), 403, "{head}"));
    let refused = server.requests().iter().filter(|request| request.answered == 403).count();
    assert_eq!(refused, forbidden.len());
}

#[test]
fn kinds_may_be_missing_or_out_of_the_roles_reach() {
    let server = ApiServer::start(Scheme::Http);
    let target = "GET /apis/networking.k8s.io/v1/servicecidrs?watch=1";
    server.settings().missing.insert(Resource::ServiceCidr);
    assert_eq!(status(&server, target, ""), 404);
    server.settings().forbidden.insert(Resource::ServiceCidr);
    assert_eq!(status(&server, target, ""), 403);
    assert_eq!(status(&server, "GET /api/v1/services", ""), 200);
}

#[test]
fn only_good_tokens_are_let_in() {
    let server = ApiServer::start(Scheme::Http);
    server.settings().tokens = Some(["good".to_owned()].into());
    let head = |token: &str| format!("GET /api/v1/services HTTP/1.1\r\nAuthorization: Bearer {token}\r\nX-Rest:");
    assert_eq!(status(&server, &head("good"), ""), 200);
    assert_eq!(status(&server, &head("bad"), ""), 401);
    let answer = get(&server, "/api/v1/services");
    assert_eq!((answer.status, answer.json()["reason"].clone()), (401, json!("Unauthorized")));
    assert_eq!(server.requests()[0].headers["authorization"], "Bearer good");
}

#[test]
fn requests_are_kept_as_they_came() {
    let server = ApiServer::start(Scheme::Http);
    get(&server, "/api/v1/services?limit=5&fieldSelector=spec.clusterIP%21%3DNone&x=a+b");
    let request = &server.requests_for(Resource::Service)[0];
    assert_eq!((&*request.method, &*request.path, request.answered), ("GET", "/api/v1/services", 200));
    assert_eq!(request.query.get("fieldSelector"), "spec.clusterIP!=None");
    assert_eq!((request.query.get("x"), request.query.get("y")), ("a b", ""));
    assert_eq!(request.query.keys().collect::<Vec<_>>(), ["limit", "fieldSelector", "x"]);
}

/// Asks with curl, which knows TLS; gives the HTTP status, or 0 without one.
fn curl(server: &ApiServer, arguments: &[&str]) -> String {
    let url = format!("{}/api/v1/services", server.url());
    let output = std::process::Command::new("curl")
        .args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"])
        .args(arguments)
        .arg(url)
        .output()
        .expect("curl can be run (`make deps`)");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn certificates_identify_client_and_server() {
    let server = ApiServer::start(Scheme::Https);
    server.apply(&[plain("a")]);
    server.settings().tokens = Some(["good".to_owned()].into());
    let kubeconfig = server.kubeconfig(&server.certified_user("system:kube-proxy"));
    let config: Value = serde_json::from_slice(&fs::read(kubeconfig).expect("a file")).expect("JSON");
    let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
    let text = |value: &Value| value.as_str().expect("a path").to_owned();
    let ca = text(&cluster["certificate-authority"]);
    let (certificate, key) = (text(&user["client-certificate"]), text(&user["client-key"]));
    let known = ["--cacert", &ca, "--cert", &certificate, "--key", &key];
    assert_eq!(curl(&server, &known), "200");
    assert_eq!(curl(&server, &["--cacert", &ca, "--header", "Authorization: Bearer good"]), "200");
    assert_eq!(curl(&server, &["--cacert", &ca]), "401");
    // Client and server refuse each other when one of them has a certificate of another authority.
    assert_eq!(curl(&server, &[]), "000");
    let other = ApiServer::start(Scheme::Https);
    assert_eq!(curl(&other, &["--insecure", "--cert", &certificate, "--key", &key]), "000");
}

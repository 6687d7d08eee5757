//! The health-check node ports.

use serde_json::{Value, json};

use super::client::{ask, cluster, config, get, get_until, node_namespace, try_ask};
use crate::support::objects::{service, slices};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::Proxy;

const PORT: u16 = 31_999;

fn web(port: u16) -> Value {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30_080);
    let web = web.load_balancer_ip(Family::V4.node_second());
    web.spec("externalTrafficPolicy", json!("Local")).spec("healthCheckNodePort", json!(port)).json()
}

fn objects() -> Vec<Value> {
    let mut objects = cluster();
    objects.push(web(PORT));
    objects.extend(slices("shop", "web", &[0, 1, 2], &[("http", Proto::Tcp, 8080)]));
    objects
}

// A health-check node port gives the number of local endpoints, and 200 or 503, on every address for node ports (K1 to K3, K5).
#[test]
fn the_node_port_tells_load_balancers_what_is_here() {
    let node = node_namespace();
    let mut proxy = Proxy::start(&node, &config(), &objects());
    let body = |count: u8| {
        format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": true\n}}"
        )
    };
    let headers = |count: &'static str| {
        let weight = ("X-Load-Balancing-Endpoint-Weight", count);
        [("Content-Type", "application/json"), ("X-Content-Type-Options", "nosniff"), weight]
    };
    for address in ["192.0.2.2:31999", "[2001:db8::2]:31999"] {
        get_until(&node, address, "/", |_| true).assert("200 OK", &headers("2"), &body(2));
        ask(&node, address, &["POST /any/path?x=y"], "body").assert("200 OK", &headers("2"), &body(2));
    }
    assert!(try_ask(&node, "127.0.0.1:31999", &["GET /"], "").is_err(), "primary means the node's IP only");
    proxy.apply(&slices("shop", "web", &[2], &[("http", Proto::Tcp, 8080)]));
    let empty = get_until(&node, "192.0.2.2:31999", "/", |answer| answer.status.contains("503"));
    empty.assert("503 Service Unavailable", &headers("0"), &body(0));
    proxy.delete(&[web(PORT)]);
    assert!(try_ask(&node, "192.0.2.2:31999", &["GET /"], "").is_err(), "the Service is gone");
}

// A health-check node port that cannot be listened on is tried again (K4).
#[test]
fn a_port_in_use_is_tried_again_with_each_sync() {
    let node = node_namespace();
    let taken = node.enter(|| std::net::TcpListener::bind("192.0.2.2:31999").expect("the port is free"));
    let mut proxy = Proxy::start(&node, &config(), &objects());
    get_until(&node, "[2001:db8::2]:31999", "/", |answer| answer.status == "HTTP/1.1 200 OK");
    drop(taken);
    assert!(try_ask(&node, "192.0.2.2:31999", &["GET /"], "").is_err());
    proxy.apply(&[service("shop", "other").cluster_ips(2).port("http", Proto::Tcp, 80).json()]);
    get_until(&node, "192.0.2.2:31999", "/", |answer| answer.status == "HTTP/1.1 200 OK");
    assert_eq!(get(&node, "127.0.0.1:10256", "/livez").status, "HTTP/1.1 200 OK");
}

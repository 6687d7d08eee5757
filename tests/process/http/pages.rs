//! The pages of the metrics server and of the healthz server.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Answer, PATIENCE, ask, cluster, config, get, get_until, node_namespace};
use crate::support::objects::service;
use crate::support::probe::Proto;
use crate::support::proxy::Proxy;

const METRICS: &str = "127.0.0.1:10249";
const HEALTHZ: &str = "127.0.0.1:10256";
const NOSNIFF: (&str, &str) = ("X-Content-Type-Options", "nosniff");
const PLAIN: [(&str, &str); 2] = [("Content-Type", "text/plain; charset=utf-8"), NOSNIFF];
const JSON: [(&str, &str); 2] = [("Content-Type", "application/json"), NOSNIFF];

/// The keys of an object in the order of its text. Only for objects whose nested values have no key of the same text.
fn keys(body: &str, names: &[&str]) -> bool {
    let places: Vec<_> = names.iter().map(|name| body.find(&format!("\"{name}\":"))).collect();
    places.iter().all(Option::is_some) && places.is_sorted()
}

fn is_utc_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok())
}

#[test]
fn the_metrics_server_has_upstreams_pages() {
    // The metrics server has upstream's pages (P5).
    let node = node_namespace();
    let _proxy = Proxy::start(&node, &config(), &cluster());
    for address in [METRICS, "[::1]:10249", "192.0.2.2:10249", "[2001:db8::2]:10249"] {
        get(&node, address, "/proxyMode").assert("200 OK", &PLAIN, "nftables");
    }
    get(&node, METRICS, "/healthz").assert("200 OK", &PLAIN, "ok");
    get(&node, METRICS, "/healthz/ping").assert("200 OK", &PLAIN, "ok");
    get(&node, METRICS, "/healthz?verbose").assert("200 OK", &PLAIN, "[+]ping ok\nhealthz check passed\n");
    for path in ["/", "/livez", "/debug/pprof/", "/debug/flags/v"] {
        get(&node, METRICS, path).assert("404 Not Found", &PLAIN, "404 page not found\n");
    }
    let configz = get(&node, METRICS, "/configz");
    configz.assert("200 OK", &JSON, &configz.body);
    let object = &configz.json()["kubeproxy.config.k8s.io"];
    assert_eq!(object["kind"], "KubeProxyConfiguration");
    assert_eq!(object["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
    assert_eq!(object["metricsBindAddress"], "0.0.0.0:10249");
}

#[test]
fn flags_and_status_come_as_text_and_as_objects() {
    let node = node_namespace();
    let _proxy = Proxy::start(&node, &config(), &cluster());
    for (path, kind) in [("/flagz", "Flagz"), ("/statusz", "Statusz")] {
        let text = get(&node, METRICS, path);
        text.assert("200 OK", &PLAIN, &text.body);
        let mut lines = text.body.lines();
        assert_eq!((lines.next(), lines.next()), (Some(""), Some(&*format!("kube-proxy {}", &path[1..]))));
        assert!(lines.next().is_some_and(|line| line.starts_with("Warning: ")), "{}", text.body);
        let accept = format!("Accept: application/json;v=v1beta1;g=config.k8s.io;as={kind}");
        let object = ask(&node, METRICS, &[&format!("GET {path}"), &accept], "");
        object.assert("200 OK", &JSON, &object.body);
        let object = object.json();
        assert_eq!(object["kind"], kind);
        assert_eq!(object["apiVersion"], "config.k8s.io/v1beta1");
        assert_eq!(object["metadata"]["name"], "kube-proxy");
        let refused = ask(&node, METRICS, &[&format!("GET {path}"), "Accept: application/json"], "");
        assert_eq!(refused.status, "HTTP/1.1 406 Not Acceptable");
    }
    let accept = "Accept: application/json;v=v1alpha1;g=config.k8s.io;as=Statusz";
    let status = ask(&node, METRICS, &["GET /statusz", accept], "");
    assert!(status.headers.iter().any(|(name, value)| name == "Warning" && value.starts_with("299 ")), "{status:?}");
    let status = status.json();
    assert!(is_utc_time(&status["startTime"]) && status["uptimeSeconds"].is_u64(), "{status}");
    assert_eq!(status["paths"], json!(["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"]));
    assert_eq!(status["emulationVersion"], "1.37");
}

#[test]
fn gates_switch_pages_off_and_profiling_switches_pages_on() {
    // Feature gates and profiling decide which pages there are (P5).
    let node = node_namespace();
    let mut config = config();
    config["featureGates"] = json!({"ComponentFlagz": false, "ComponentStatusz": false});
    config["enableProfiling"] = json!(true);
    let proxy = Proxy::start(&node, &config, &cluster());
    for path in ["/flagz", "/statusz"] {
        get(&node, METRICS, path).assert("404 Not Found", &PLAIN, "404 page not found\n");
    }
    assert_eq!(get(&node, METRICS, "/debug/pprof").status, "HTTP/1.1 302 Found");
    assert_eq!(get(&node, METRICS, "/debug/pprof/").status, "HTTP/1.1 200 OK");
    let log = || fs::read_to_string(proxy.directory().join("proxy.log")).expect("the log can be read");
    assert!(!log().contains("SyncProxyRules complete"), "{}", log());
    let set = ask(&node, METRICS, &["PUT /debug/flags/v"], "6");
    let plain = [("Content-Type", "text/plain"), NOSNIFF];
    set.assert("200 OK", &plain, "successfully set klog.logging.verbosity to 6");
    proxy.manifests().apply(&service("ns", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json());
    let end = Instant::now() + PATIENCE;
    while !log().contains("SyncProxyRules complete") {
        assert!(Instant::now() < end, "nothing more is logged:\n{}", log());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask(&node, METRICS, &["POST /debug/flags/v"], "6").status, "HTTP/1.1 406 Not Acceptable");
}

// The status and body of both pages are upstream's (L4, L5).
#[test]
fn healthz_and_livez_are_exact() {
    // The health pages have upstream's fields and headers (P4).
    let node = node_namespace();
    let mut proxy = Proxy::start(&node, &config(), &cluster());
    for address in [HEALTHZ, "[::1]:10256", "192.0.2.2:10256"] {
        let good = |answer: &Answer| answer.status == "HTTP/1.1 200 OK";
        let healthz = get_until(&node, address, "/healthz", good);
        healthz.assert("200 OK", &JSON, &healthz.body);
        let names = ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status", "IPv4", "IPv6"];
        assert!(keys(&healthz.body, &names), "{}", healthz.body);
        let object = healthz.json();
        assert_eq!((&object["nodeEligible"], &object["healthy"]), (&json!(true), &json!(true)));
        assert_eq!(object["lastUpdated"], object["currentTime"]);
        for family in ["IPv4", "IPv6"] {
            let status = &object["status"][family];
            assert!(is_utc_time(&status["lastUpdated"]) && status["healthy"] == true, "{status}");
        }
        let livez = get(&node, address, "/livez");
        livez.assert("200 OK", &JSON, &livez.body);
        assert!(!livez.body.contains("nodeEligible") && !livez.body.ends_with('\n'), "{}", livez.body);
    }
    let readyz = get(&node, HEALTHZ, "/readyz");
    readyz.assert("200 OK", &JSON, &readyz.body);
    assert_eq!((&readyz.json()["ready"], &readyz.json()["reason"]), (&json!(true), &json!(null)));
    get(&node, HEALTHZ, "/").assert("404 Not Found", &PLAIN, "404 page not found\n");
    let mut leaving = cluster().remove(0);
    leaving["spec"]["taints"] = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    proxy.manifests().apply(&leaving);
    let bad = get_until(&node, HEALTHZ, "/healthz", |answer| answer.status == "HTTP/1.1 503 Service Unavailable");
    let object = bad.json();
    assert_eq!((&object["nodeEligible"], &object["healthy"]), (&json!(false), &json!(true)));
    assert_ne!(object["lastUpdated"], object["currentTime"], "the last real one");
    assert_eq!(get(&node, HEALTHZ, "/livez").status, "HTTP/1.1 200 OK");
    let _ended = proxy.stop();
}

// `/healthz` needs a known Node, `/livez` does not (L5).
#[test]
fn an_unknown_node_is_not_eligible_but_alive() {
    let node = node_namespace();
    let _proxy = Proxy::start(&node, &config(), &cluster()[1..]);
    let healthz = get(&node, HEALTHZ, "/healthz");
    assert_eq!(healthz.status, "HTTP/1.1 503 Service Unavailable");
    assert_eq!(healthz.json()["nodeEligible"], false);
    assert_eq!(get(&node, HEALTHZ, "/livez").status, "HTTP/1.1 200 OK");
}

//! Clients that behave badly, and addresses that are taken.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{PATIENCE, ask, cluster, config, get, get_until, node_namespace};
use crate::support::nft::list_ruleset;
use crate::support::objects::{service, slices};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, binary};

const METRICS: &str = "127.0.0.1:10249";
const HEALTHZ: &str = "127.0.0.1:10256";

/// The address of a health-check node port.
const CHECK: &str = "192.0.2.2:31999";

/// A Service with that health-check node port, and endpoints.
fn checked() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30_080);
    let web = web.load_balancer_ip(Family::V4.node_second()).spec("externalTrafficPolicy", json!("Local"));
    let web = web.spec("healthCheckNodePort", json!(31_999)).json();
    [vec![web], slices("shop", "web", &[0, 1], &[("http", Proto::Tcp, 8080)])].concat()
}

#[test]
fn no_server_takes_a_long_header_or_a_body() {
    let node = node_namespace();
    let _proxy = Proxy::start(&node, &config(), &[cluster(), checked()].concat());
    get_until(&node, CHECK, "/", |answer| answer.status == "HTTP/1.1 200 OK");
    for address in [METRICS, HEALTHZ, CHECK] {
        let exchange = |request: String| {
            node.enter(|| {
                let mut stream = TcpStream::connect(address).expect("the server listens");
                stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
                // The server may answer, and close, before it has read all.
                let _cut_off = stream.write_all(request.as_bytes());
                let mut answer = [0; 64];
                let length = stream.read(&mut answer).expect("an answer");
                String::from_utf8_lossy(&answer[..length]).into_owned()
            })
        };
        let long = exchange(format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(32 << 10)));
        assert!(long.starts_with("HTTP/1.1 431"), "{address}: {long}");
        // The body never comes, and the answer does.
        let start = Instant::now();
        let body = exchange("GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n".to_owned());
        assert!(body.starts_with("HTTP/1.1 200"), "{address}: {body}");
        assert!(start.elapsed() < Duration::from_secs(4), "{address}: {:?}", start.elapsed());
    }
}

#[test]
fn without_profiling_no_request_changes_anything() {
    let node = node_namespace();
    let proxy = Proxy::start(&node, &config(), &[cluster(), checked()].concat());
    get_until(&node, CHECK, "/", |answer| answer.status == "HTTP/1.1 200 OK");
    let paths = [
        "/",
        "/metrics",
        "/metrics/slis",
        "/healthz",
        "/livez",
        "/readyz",
        "/proxyMode",
        "/configz",
        "/flagz",
        "/statusz",
        "/debug/flags/v",
        "/debug/pprof",
        "/debug/pprof/profile",
    ];
    let pages = || ["/configz", "/flagz", "/proxyMode"].map(|path| get(&node, METRICS, path).body);
    let (before, rules) = (pages(), list_ruleset(&node));
    for address in [METRICS, HEALTHZ, CHECK] {
        for method in ["PUT", "POST", "PATCH", "DELETE"] {
            for path in paths {
                let answer = ask(&node, address, &[&format!("{method} {path}")], "9");
                let is_flag = address == METRICS && path.starts_with("/debug");
                assert!(!is_flag || answer.status == "HTTP/1.1 404 Not Found", "{method} {path}: {answer:?}");
            }
        }
    }
    // Something to log, if the verbosity were another.
    proxy.manifests().apply(&service("shop", "other").cluster_ips(2).port("http", Proto::Tcp, 80).json());
    let end = Instant::now() + PATIENCE;
    while !list_ruleset(&node).contains("shop/other") {
        assert!(Instant::now() < end, "not synced: {}", proxy.log());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(!proxy.log().contains("SyncProxyRules complete"), "{}", proxy.log());
    proxy.manifests().delete(&service("shop", "other").json());
    while list_ruleset(&node) != rules {
        assert!(Instant::now() < end, "the rules are others: {}", list_ruleset(&node));
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(pages(), before);
}

#[test]
fn slow_clients_delay_no_other_client_for_long() {
    let node = node_namespace();
    let mut proxy = Proxy::start(&node, &config(), &[cluster(), checked()].concat());
    get_until(&node, CHECK, "/", |answer| answer.status == "HTTP/1.1 200 OK");
    for address in [METRICS, HEALTHZ, CHECK] {
        // More than there are places, each with a header that never ends.
        let slow: Vec<TcpStream> = node.enter(|| {
            let one = |_| {
                let mut stream = TcpStream::connect(address).expect("there is a place in the kernel's queue");
                stream.write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ").expect("a few bytes fit");
                stream
            };
            (0..80).map(one).collect()
        });
        let start = Instant::now();
        assert_eq!(get(&node, address, "/healthz").status, "HTTP/1.1 200 OK");
        assert!(start.elapsed() < Duration::from_secs(14), "{:?}", start.elapsed());
        for mut stream in slow {
            stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
            let mut rest = Vec::new();
            // The server closes or resets the connection; either ends the read.
            let ended = stream.read_to_end(&mut rest);
            assert!(!matches!(ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
        }
    }
    proxy.apply(&[service("shop", "other").cluster_ips(2).port("http", Proto::Tcp, 80).json()]);
}

// Without `bindAddressHardFail` an address in use is tried again (O8).
#[test]
fn an_address_that_becomes_free_is_served_later() {
    let node = node_namespace();
    let taken = node.enter(|| TcpListener::bind("0.0.0.0:10256").expect("the port is free"));
    let _proxy = Proxy::start(&node, &config(), &cluster());
    drop(taken);
    assert!(get(&node, METRICS, "/metrics").body.contains("kubeproxy_"));
    get_until(&node, HEALTHZ, "/livez", |answer| answer.status == "HTTP/1.1 200 OK");
    get_until(&node, "[::1]:10256", "/livez", |answer| answer.status == "HTTP/1.1 200 OK");
}

// The default address `0.0.0.0` of the pages needs no IPv6.
#[test]
fn a_node_without_ipv6_serves_ipv4() {
    let node = node_namespace();
    node.set_sysctl("ipv6/conf/all/disable_ipv6", "1");
    let _proxy = Proxy::start(&node, &config(), &cluster());
    for address in [METRICS, HEALTHZ, "192.0.2.2:10249"] {
        assert_eq!(get(&node, address, "/healthz").status, "HTTP/1.1 200 OK");
    }
}

// With `bindAddressHardFail` an address in use ends the process (O8).
#[test]
fn with_hard_fail_an_address_in_use_ends_the_process() {
    for taken in [METRICS, HEALTHZ] {
        let node = node_namespace();
        let _listener = node.enter(|| TcpListener::bind(taken).expect("the port is free"));
        let directory = tempfile::tempdir().expect("a directory can be made");
        let mut config = config();
        config["bindAddressHardFail"] = json!(true);
        let file = directory.path().join("config.json");
        std::fs::write(&file, config.to_string()).expect("a file can be written");
        let mut command = node.command(binary());
        command.arg("--config").arg(&file).arg("--manifests").arg(directory.path());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the proxy can be started");
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be asked") {
                break status;
            }
            if Instant::now() > end {
                child.kill().and_then(|()| child.wait()).expect("a child can be killed");
                panic!("the proxy goes on without {taken}");
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.code(), Some(1));
        let mut log = String::new();
        child.stderr.take().expect("it was piped").read_to_string(&mut log).expect("the log is text");
        let port = &taken["127.0.0.1".len()..];
        assert!(log.contains("cannot listen for ") && log.contains(port), "{log}");
    }
}

//! Clients that behave badly, and addresses that are taken.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{PATIENCE, ask, cluster, config, get, get_until, node_namespace};
use crate::support::netns::Namespace;
use crate::support::nft::list_ruleset;
use crate::support::objects::{service, slice, slices};
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

/// How long clients ask without a pause for a Service with many endpoints.
const FLOOD: Duration = Duration::from_secs(4);

// Questions about one Service cost a tenth of the sync thread's time at most, and are answered or refused at once (Q12).
#[test]
fn a_flood_of_questions_about_a_large_service_delays_no_sync() {
    let node = node_namespace();
    let big = service("shop", "big").cluster_ip(Family::V4.cluster_ip(3)).port("http", Proto::Tcp, 80).json();
    let addresses = |third: u8| (1..=250).map(move |last| std::net::Ipv4Addr::new(10, 245, third, last).into());
    let big_slices = (0..80).map(|n| {
        slice("shop", "big", &format!("big-{n}"), &addresses(n).collect::<Vec<_>>(), &[("http", Proto::Tcp, 8080)])
    });
    let proxy = Proxy::start(&node, &config(), &[cluster(), checked(), vec![big], big_slices.collect()].concat());
    let page = get(&node, METRICS, "/debug/endpoints/shop/big");
    assert_eq!(page.json()["ports"][0]["internal"]["withPort"]["all"], 20_000, "{}", page.body);
    let end = Instant::now() + FLOOD;
    let answers: Vec<String> = thread::scope(|scope| {
        let client = || {
            let mut statuses = Vec::new();
            while Instant::now() < end {
                statuses.push(get(&node, METRICS, "/debug/endpoints/shop/big").status);
            }
            statuses
        };
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(client)).collect();
        thread::sleep(FLOOD / 4);
        let start = Instant::now();
        proxy.manifests().apply(&service("shop", "other").cluster_ips(2).port("http", Proto::Tcp, 80).json());
        while !list_ruleset(&node).contains("shop/other") {
            assert!(start.elapsed() < FLOOD / 2, "not synced: {}", proxy.log());
            thread::sleep(Duration::from_millis(20));
        }
        clients.into_iter().flat_map(|client| client.join().expect("it ends")).collect()
    });
    let count = |status: &str| answers.iter().filter(|answer| *answer == status).count();
    let (answered, refused) = (count("HTTP/1.1 200 OK"), count("HTTP/1.1 503 Service Unavailable"));
    assert!(answered > 0 && refused > 0 && answered + refused == answers.len(), "{answered}, {refused}: {answers:?}");
}

#[test]
fn the_page_about_endpoints_answers_this_host_only_and_names_what_is_wrong() {
    let node = node_namespace();
    let other = Namespace::new("other");
    node.ip(&["link add to-other type veth peer name to-node netns ".to_owned() + other.name()]);
    node.ip(&["address add 198.18.7.1/24 dev to-other".to_owned(), "link set to-other up".to_owned()]);
    other.ip(&["address add 198.18.7.2/24 dev to-node".to_owned(), "link set to-node up".to_owned()]);
    let _proxy = Proxy::start(&node, &config(), &[cluster(), checked()].concat());
    let status = |from: &Namespace, address: &str, path: &str| get(from, address, path).status;
    let page = "/debug/endpoints/shop/web";
    assert_eq!(status(&node, METRICS, page), "HTTP/1.1 200 OK");
    assert_eq!(status(&node, "198.18.7.1:10249", page), "HTTP/1.1 200 OK", "from the same host");
    assert_eq!(status(&other, "198.18.7.1:10249", "/proxyMode"), "HTTP/1.1 200 OK");
    assert_eq!(status(&other, "198.18.7.1:10249", page), "HTTP/1.1 404 Not Found");
    assert_eq!(status(&node, HEALTHZ, page), "HTTP/1.1 404 Not Found", "the health server names no endpoints");
    let unknown = get(&node, METRICS, "/debug/endpoints/shop/none");
    assert_eq!(unknown.status, "HTTP/1.1 404 Not Found");
    assert!(unknown.body.starts_with("the proxy serves no Service shop/none: "), "{}", unknown.body);
    assert_eq!(status(&node, METRICS, "/debug/endpoints/shop"), "HTTP/1.1 400 Bad Request");
}

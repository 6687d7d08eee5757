//! Clients that behave badly, and addresses that are taken.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{PATIENCE, cluster, config, get, get_until, node_namespace};
use crate::support::objects::service;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, binary};

const METRICS: &str = "127.0.0.1:10249";
const HEALTHZ: &str = "127.0.0.1:10256";

#[test]
fn slow_clients_keep_nobody_from_an_answer_for_long() {
    let node = node_namespace();
    let mut proxy = Proxy::start(&node, &config(), &cluster());
    for address in [METRICS, HEALTHZ] {
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
            // Closed or reset, but at an end.
            let ended = stream.read_to_end(&mut rest);
            assert!(!matches!(ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
        }
    }
    proxy.apply(&[service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json()]);
}

// O8
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

// surface.md section 4.1
#[test]
fn a_node_without_ipv6_serves_ipv4() {
    let node = node_namespace();
    node.set_sysctl("ipv6/conf/all/disable_ipv6", "1");
    let _proxy = Proxy::start(&node, &config(), &cluster());
    for address in [METRICS, HEALTHZ, "192.0.2.2:10249"] {
        assert_eq!(get(&node, address, "/healthz").status, "HTTP/1.1 200 OK");
    }
}

// O8
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

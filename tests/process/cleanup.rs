//! `--cleanup` beside a kube-proxy that runs and holds no lock, as upstream's does: nothing is removed unless that is forced.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::thread;

use crate::support::netns::{Namespace, run, run_with_input};
use crate::support::proxy::binary;

const RULES: &str = "*nat\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n";

/// A node in mode iptables.
fn node() -> Namespace {
    let node = Namespace::new("force");
    node.ip(&["link set lo up"]);
    run_with_input(&mut node.command("iptables-nft-restore"), RULES);
    node
}

fn has_rules(node: &Namespace) -> bool {
    run(&mut node.command("iptables-nft-save")).contains("KUBE-SERVICES")
}

fn clean_up(node: &Namespace, flags: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        node.command(binary()).arg("--cleanup").args(flags).output().expect("it can be run");
    (status.code(), [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
}

/// Beside what runs now nothing is removed, and the reason has this text.
fn assert_refused(node: &Namespace, says: &str) {
    let (code, text) = clean_up(node, &[]);
    assert_eq!(code, Some(1), "{text}");
    for part in ["nothing was removed: a kube-proxy runs on this node", says, "--cleanup-force"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(has_rules(node), "{text}");
}

/// Answers every request with this body, in the namespace.
fn serve(node: &Namespace, address: &str, body: &'static str) {
    let listener = node.enter(|| TcpListener::bind(address).expect("the port is free"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            // One read has a request as short as these.
            let _request = stream.read(&mut [0; 1024]);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _sent = stream.write_all(answer.as_bytes());
        }
    });
}

#[test]
fn a_process_of_that_name_keeps_its_rules_unless_it_is_forced() {
    // Beside upstream's kube-proxy a clean-up removes nothing (O1, O12).
    let node = node();
    let mut command = node.command("bash");
    let mut upstream =
        command.args(["-c", "exec -a /usr/local/bin/kube-proxy cat"]).stdin(Stdio::piped()).spawn().expect("bash runs");
    let line = format!("process {}: /usr/local/bin/kube-proxy", upstream.id());
    crate::support::apiserver::wait_for("its name", || {
        std::fs::read_to_string(format!("/proc/{}/cmdline", upstream.id()))
            .ok()?
            .starts_with("/usr/local")
            .then_some(())
    });
    assert_refused(&node, &line);
    let (code, text) = clean_up(&node, &["--cleanup-force"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&line) && !has_rules(&node), "{text}");
    drop(upstream.stdin.take());
    upstream.wait().expect("cat ends with its input");
}

#[test]
fn a_server_that_answers_as_kube_proxy_keeps_its_rules() {
    // Also where its process is not seen, as in a container (O1, O12).
    let node = node();
    serve(&node, "127.0.0.1:10249", "iptables");
    assert_refused(&node, "http://127.0.0.1:10249/proxyMode answers iptables");
    let other = self::node();
    serve(&other, "0.0.0.0:10256", r#"{"lastUpdated":"2026-11-24","currentTime":"2026-11-24","nodeEligible":true}"#);
    assert_refused(&other, ":10256/healthz answers as kube-proxy does");
}

#[test]
fn what_took_the_place_of_kube_proxy_keeps_no_rules_of_it() {
    // A network plugin that serves kube-proxy's health port is no kube-proxy (O1).
    let node = node();
    serve(&node, "0.0.0.0:10256", r#"{"lastUpdated":"2026-11-24","currentTime":"2026-11-24"}"#);
    let (code, text) = clean_up(&node, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!has_rules(&node), "{text}");
}

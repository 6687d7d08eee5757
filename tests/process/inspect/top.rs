//! `kube-proxy top` on a real terminal and for programs: keys, sizes, and a terminal that is as before whatever ends it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run, run_with_input};
use crate::support::nft;
use crate::support::proxy::binary;
use crate::support::terminal::{Terminal, signal, wait_until_gone};

/// A node with the rules of the cluster `kube-dns`: three service ports of `kube-system/kube-dns` and node port 30080 of `ym/echo-app`.
pub(super) fn node(layout: Layout) -> Namespace {
    let node = Namespace::new("top");
    let path = format!("{}/nft/rulesets/{}/kube-dns.nft", env!("CARGO_MANIFEST_DIR"), layout.name());
    nft::load(&node, &fs::read_to_string(Path::new(&path)).expect("the ruleset can be read"));
    node
}

/// Has the node track so many connections from the client port on to `10.96.0.10:53/udp`, given to an endpoint.
pub(super) fn connections(node: &Namespace, first: u16, count: u16, endpoint: &str, is_answered: bool) {
    let answered = if is_answered { "SEEN_REPLY" } else { "UNSET" };
    let line = |port: u16| {
        format!(
            "-A -t 600 -u {answered} -p udp -s 203.0.113.7 -d 10.96.0.10 --sport {port} --dport 53 --dst-nat {endpoint}:53\n"
        )
    };
    let lines: String = (first..first + count).map(line).collect();
    run_with_input(node.command("conntrack").args(["--load-file", "-"]), &lines);
}

/// Types the command, and waits until it has drawn.
fn start(terminal: &Terminal) {
    type_and_wait(terminal, "top --interval 300ms", "kube-proxy top:");
}

/// Types a command of the proxy, and waits until it has drawn this and its keys.
pub(super) fn type_and_wait(terminal: &Terminal, command: &str, drawn: &str) {
    terminal.line(&format!("{} {command}; echo ended $?", binary().display()));
    terminal.wait_for("the first look", |screen| screen.contains(drawn) && screen.contains("q quit"));
    assert!(terminal.is_screen_of_program() && !terminal.has_cursor());
}

/// That the terminal is as it was before.
pub(super) fn assert_restored(terminal: &Terminal, modes: &str, why: &str) {
    terminal.wait_for("the shell", |_| !terminal.is_screen_of_program());
    // What the shell wrote before the guard gave the terminal back went to the screen that is gone.
    terminal.line("echo over");
    let screen =
        terminal.wait_for("the end", |screen| screen.lines().any(|line| line.trim_start_matches("ready> ") == "over"));
    assert!(!terminal.is_screen_of_program() && terminal.has_cursor(), "{why}:\n{screen}");
    assert!(!screen.contains("q quit"), "{why}:\n{screen}");
    assert_eq!(terminal.modes(), modes, "{why}");
    terminal.line("clear");
}

/// The first row of Services.
fn first_row(screen: &str) -> &str {
    screen.lines().skip_while(|line| !line.starts_with("SERVICE")).nth(1).unwrap_or_default()
}

test_in_each_layout!(keys_and_sizes_on_a_terminal);
fn keys_and_sizes_on_a_terminal(layout: Layout) {
    let node = node(layout);
    connections(&node, 1_000, 40, "10.200.192.74", true);
    connections(&node, 2_000, 3, "10.200.192.75", false);
    let terminal = Terminal::start(&node, 120, 30);
    let modes = terminal.modes();
    start(&terminal);
    let dns = "kube-system/kube-dns:dns ";
    terminal.key("o");
    let screen = terminal.wait_for("the busiest Service", |screen| first_row(screen).starts_with(dns));
    assert!(first_row(&screen).split_whitespace().nth(2) == Some("40"), "{screen}");
    let is_dead = |line: &&str| line.starts_with("10.200.192.75:53") && line.contains("does not answer");
    assert!(screen.lines().any(|line| is_dead(&line)), "the endpoints of the selected Service:\n{screen}");
    assert!(screen.contains("nf_conntrack_acct=1"), "how accounting is switched on:\n{screen}");
    connections(&node, 3_000, 20, "10.200.192.74", true);
    terminal.wait_for("new connections", |screen| first_row(screen).split_whitespace().nth(2) == Some("60"));

    terminal.key("s");
    terminal.key("r");
    terminal.wait_for("the last name first", |screen| first_row(screen).starts_with("ym/echo-app"));
    terminal.key("/");
    for letter in ["M", "e", "t"] {
        terminal.key(letter);
    }
    terminal.key("Enter");
    let metrics = "kube-system/kube-dns:metrics";
    let screen = terminal.wait_for("the filter", |screen| first_row(screen).starts_with(metrics));
    assert!(!screen.contains("ym/echo-app"), "{screen}");
    for (columns, rows) in [(60, 12), (140, 40), (20, 4)] {
        terminal.resize(columns, rows);
        let last = usize::from(rows) - 1;
        terminal.wait_for("the keys in the last row", |screen| {
            screen.lines().nth(last).is_some_and(|line| line.starts_with("q quit"))
        });
    }
    terminal.resize(120, 30);
    terminal.key("q");
    assert_restored(&terminal, &modes, "q");
}

#[test]
fn the_terminal_is_as_before_whatever_ends_it() {
    let node = node(Layout::Maps);
    let terminal = Terminal::start(&node, 100, 24);
    let modes = terminal.modes();
    start(&terminal);
    terminal.key("C-c");
    assert_restored(&terminal, &modes, "the key Control and C");
    for by in [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL] {
        start(&terminal);
        let processes = terminal.processes();
        let [(top, guards)] = processes.as_slice() else { panic!("not one process of the shell: {processes:?}") };
        signal(*top, by);
        for guard in guards {
            wait_until_gone(*guard);
        }
        assert_restored(&terminal, &modes, &format!("{by:?}"));
    }
    // Without its guard it restores the terminal by itself.
    start(&terminal);
    let (_, guards) = terminal.processes().swap_remove(0);
    assert_eq!(guards.len(), 1, "the guard");
    signal(guards[0], Signal::KILL);
    terminal.key("q");
    assert_restored(&terminal, &modes, "q, after the guard was killed");
}

/// That an object has these fields and no other.
fn assert_fields(object: &Value, fields: &[&[&str]]) {
    let names: BTreeSet<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(names, fields.concat().into_iter().collect(), "{object:#}");
}

test_in_each_layout!(once_for_programs_and_for_people);
fn once_for_programs_and_for_people(layout: Layout) {
    let node = node(layout);
    node.set_sysctl("netfilter/nf_conntrack_acct", "1");
    connections(&node, 1_000, 40, "10.200.192.74", true);
    let top = |args: &[&str]| run(node.command(binary()).arg("top").args(["--interval", "100ms"]).args(args));
    let document: Value = serde_json::from_str(&top(&["-o", "json"])).expect("a document");
    assert_eq!(document["accounting"], true);
    let services = document["services"].as_array().expect("a list");
    let dns = services.iter().find(|one| one["service"] == "kube-system/kube-dns:dns").expect("the Service");
    assert_eq!((&dns["open"], &dns["newPerSecond"], &dns["packets"]), (&40.into(), &0.0.into(), &0.into()));
    let open: Vec<&Value> = dns["endpoints"].as_array().expect("a list").iter().map(|one| &one["open"]).collect();
    assert_eq!(open, [40, 0], "an endpoint without traffic is listed: {dns}");
    let numbers =
        ["newPerSecond", "open", "unanswered", "packets", "bytes", "packetsPerSecond", "bytesPerSecond", "counted"];
    assert_fields(&document, &[&["seconds", "accounting", "oneIn", "services", "problems"]]);
    for service in services {
        assert_fields(service, &[&["service", "endpoints"], &numbers]);
        for endpoint in service["endpoints"].as_array().expect("a list") {
            assert_fields(endpoint, &[&["address", "port", "inTable"], &numbers]);
        }
    }
    let idle = services.iter().find(|one| one["service"] == "ym/echo-app").expect("a Service without connections");
    assert_eq!((&idle["open"], &idle["bytes"]), (&0.into(), &0.into()));

    let text = top(&["--once", "--sort", "open"]);
    assert!(
        text.starts_with("SERVICE")
            && text.lines().nth(1).is_some_and(|row| row.starts_with("kube-system/kube-dns:dns ")),
        "{text}"
    );
    let wide = top(&["--once", "--filter", "kube-dns:dns", "-o", "wide"]);
    assert_eq!(wide, include_str!("../../data/inspect/top.txt"), "{wide}");

    node.set_sysctl("netfilter/nf_conntrack_acct", "0");
    let document: Value = serde_json::from_str(&top(&["-o", "json"])).expect("a document");
    assert_eq!(document["accounting"], false);
    assert!(document["services"][0]["bytes"].is_null() && document["services"][0]["packetsPerSecond"].is_null());
}

#[test]
fn without_a_terminal_it_names_the_other_forms() {
    let node = node(Layout::Maps);
    let output = node.command(binary()).arg("top").output().expect("the binary can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &[][..]), "{errors}");
    assert!(errors.contains("--once") && errors.contains("-o json"), "{errors}");
}

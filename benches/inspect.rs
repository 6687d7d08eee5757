//! The commands that look at a node, on a large table that no process holds.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kube_proxy::ruleset::Layout;

use crate::cluster::{Shape, address};
use crate::process::memory;
use crate::support::netns::{Namespace, run_with_input};
use crate::support::proxy::binary;
use crate::table::Table;

/// Measures each command in layout `maps` on the large cluster, and in layout `chains` on a small one.
pub(crate) fn rows(table: &mut Table, services: u32, endpoints: u32) {
    for (layout, services, goals) in [(Layout::Maps, services, ["1.5 s", "100 MB"]), (Layout::Chains, 1_000, [""; 2])] {
        let shape = Shape::plain(services, endpoints);
        let node = Namespace::new("bench");
        node.enter(|| drop(crate::plain(layout, shape)));
        let what = format!("layout {layout:?}, {services} x {endpoints}");
        table.time(&format!("kube-proxy services, {what}"), best(&node, &["services"]), goals[0]);
        table.time(&format!("kube-proxy services -o json, {what}"), best(&node, &["services", "-o", "json"]), goals[0]);
        table.text("  peak resident memory, with --stats", &peak(&node, &["services", "--watch"]), goals[1]);
    }
}

/// The connections that are tracked, if the machine's limit (`nf_conntrack_max`) allows as many; else a part of what it allows.
const CONNECTIONS: u32 = 500_000;

/// Measures the walk over many connections.
pub(crate) fn connections(table: &mut Table, services: u32, endpoints: u32) {
    let node = Namespace::new("bench");
    node.enter(|| drop(crate::plain(Layout::Maps, Shape::plain(services, endpoints))));
    let most = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap_or_default();
    let count = CONNECTIONS.min(most.trim().parse::<u32>().map_or(CONNECTIONS, |most| most / 10 * 9));
    let lines: String = (0..count).map(|n| connection(n, services, endpoints)).collect();
    run_with_input(node.command("conntrack").args(["--load-file", "-"]), &lines);
    let what = format!("{count} connections, {services} x {endpoints}");
    let (once, pause) = (["top", "--once", "--interval", "100ms"], Duration::from_millis(100));
    table.time(&format!("kube-proxy top --once, two looks at {what}"), best(&node, &once).saturating_sub(pause), "");
    table.text("  peak resident memory", &peak(&node, &["top", "--once", "--interval", "20s"]), "");
    table.time(&format!("kube-proxy services --stats, {what}"), best(&node, &["services", "--stats"]), "");
}

/// A line of `conntrack --load-file`: a connection to a Service, given to one of its endpoints.
fn connection(n: u32, services: u32, endpoints: u32) -> String {
    let (service, endpoint) = (n % services, n / services % endpoints);
    let (client, port) = (Ipv4Addr::from(0xc612_0000 + n / 60_000), 1_024 + n % 60_000);
    let (front, endpoint) = (Ipv4Addr::from(0x0a60_0001 + service), address(service, endpoint));
    format!(
        "-A -t 3600 -u SEEN_REPLY -p tcp --state ESTABLISHED -s {client} -d {front} --sport {port} --dport 80 --dst-nat {endpoint}:8080\n"
    )
}

fn command(node: &Namespace, args: &[&str]) -> Command {
    let mut command = node.command(binary());
    command.args(args).stdout(Stdio::null());
    command
}

/// The shortest of some runs.
fn best(node: &Namespace, args: &[&str]) -> Duration {
    let one = || {
        let start = Instant::now();
        let status = command(node, args).status().expect("the binary can be run");
        assert!(status.success(), "{args:?}: {status}");
        start.elapsed()
    };
    (0..3).map(|_| one()).min().unwrap_or_default()
}

/// The peak memory of a command that goes on until it is ended, some looks after its start.
fn peak(node: &Namespace, args: &[&str]) -> String {
    let mut child = command(node, args).spawn().expect("the binary can be run");
    thread::sleep(Duration::from_secs(10));
    let peak = memory(child.id(), "VmHWM:");
    child.kill().and_then(|()| child.wait()).expect("a child can be ended");
    peak
}

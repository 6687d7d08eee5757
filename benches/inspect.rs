//! The commands that look at a node, on a large table that no process holds.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kube_proxy::ruleset::Layout;

use crate::cluster::Shape;
use crate::process::memory;
use crate::support::netns::Namespace;
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

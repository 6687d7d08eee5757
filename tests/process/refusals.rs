//! Transactions that the kernel refuses, as `kube-proxy changes` shows them.
//!
//! Not a part of `inspect`, whose tests also run in guests, which have no strace.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::inspect::changes::{changes, cluster, slice_of, wait_for};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::plan::Family::V4;
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PATIENCE: Duration = Duration::from_secs(30);

/// Has the kernel refuse each transaction of a proxy while `during` runs.
fn with_refusals<T>(proxy: &Proxy, during: impl FnOnce() -> T) -> T {
    let pid = proxy.pid();
    let mut strace = Command::new("strace");
    // Of the calls of the proxy, only a batch is sent with `sendmsg`.
    strace.args(["-f", "-q", "-e", "trace=sendmsg", "-e", "inject=sendmsg:error=ENOMEM", "-o", "/dev/null", "-p"]);
    let mut strace = strace.arg(pid.to_string()).stderr(Stdio::null()).spawn().expect("strace can be run");
    let is_traced = || {
        let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
        tasks.all(|task| {
            fs::read_to_string(task.path().join("status")).is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
        })
    };
    let end = Instant::now() + PATIENCE;
    while !is_traced() {
        assert!(Instant::now() < end, "strace is not attached");
        thread::sleep(Duration::from_millis(10));
    }
    let outcome = during();
    kill_process(Pid::from_child(&strace), Signal::TERM).expect("strace runs");
    strace.wait().expect("a child ends");
    outcome
}

// After a refusal the rules from before stay, and it is tried again (G5).
test_in_each_layout!(a_transaction_that_the_kernel_refuses_is_told_and_so_is_its_later_success);

fn a_transaction_that_the_kernel_refuses_is_told_and_so_is_its_later_success(layout: Layout) {
    let world = World::new();
    let node = &world.node;
    let proxy = Proxy::start(node, &config_in(layout), &cluster());
    let is_web = |entry: &Value, result: &str| entry["service"] == "shop/web" && entry["result"] == result;
    with_refusals(&proxy, || {
        proxy.manifests().apply(&slice_of("web", &[0, 3]));
        let refused = wait_for(node, "a refused change", |entry| is_web(entry, "refused"));
        assert_eq!((&refused["action"], &refused["trigger"]["object"]), (&json!("kept"), &json!("shop/web-1")));
        assert_eq!(refused["endpoints"]["added"], json!([format!("{}:8080", V4.endpoint(3))]));
        assert!(refused["error"].as_str().is_some_and(|error| error.contains("cannot commit")), "{refused}");
        wait_for(node, "a failed sync", |entry| entry["kind"] == "sync" && entry["result"] == "refused");
        assert_eq!(changes(node, &[]).status.code(), Some(1), "something was refused");
    });
    let committed = wait_for(node, "the later success", |entry| is_web(entry, "committed"));
    assert_eq!(committed["trigger"]["object"], "shop/web-1");
}

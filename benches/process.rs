//! Measures the binary as a whole: the time from process start until all rules are written, and its memory.

use std::fs;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{manifests, manifests_of};
use crate::dump;
use crate::measure::cpu_time;
use crate::support::apiserver::{ApiServer, Format, Scheme};
use crate::support::netns::Namespace;
use crate::support::objects;
use crate::support::proxy::{Proxy, binary, config};
use crate::table::Table;
use crate::wait_for_idle;

/// The number of starts with a listener, and of starts without one.
const TURNS: usize = 3;

/// Services in each manifest file.
const PER_FILE: u32 = 20_000;

/// The number of times that a start over existing rules, `verify` and the kernel's dump are measured; the best counts.
const TRIES: usize = 3;

/// The goals for a cluster; empty where there is no goal.
#[derive(Clone, Copy)]
pub(crate) struct Goals {
    /// From process start to programmed, objects on an API server.
    pub(crate) api: &'static str,
    /// The same with objects in manifest files.
    pub(crate) files: &'static str,
    /// A start that finds the rules of the process before.
    pub(crate) over_rules: &'static str,
    pub(crate) cpu: &'static str,
    pub(crate) peak: &'static str,
    pub(crate) later: &'static str,
    pub(crate) verify: &'static str,
    pub(crate) verify_peak: &'static str,
}

/// A cluster without goals, to begin with.
pub(crate) const NONE: Goals =
    Goals { api: "", files: "", over_rules: "", cpu: "", peak: "", later: "", verify: "", verify_peak: "" };
/// The goals for 20,000 Services.
pub(crate) const LARGE: Goals =
    Goals { api: "0.7 s", files: "0.7 s", cpu: "0.67 x JSON", peak: "100 MB", later: "70 MB", ..NONE };
/// The goals for 100,000 Services.
pub(crate) const HUGE: Goals = Goals {
    api: "1.5 s",
    files: "1.8 s",
    over_rules: "1.8 s",
    peak: "400 MB",
    later: "280 MB",
    verify: "2 s",
    verify_peak: "250 MB",
    ..NONE
};

/// Measures the binary on a cluster whose Services only have a cluster IP, with objects from an API server in both of its formats and from
/// files. The binary is `$KUBE_PROXY_BINARY`, or else the one that Cargo built.
pub(crate) fn rows(table: &mut Table, services: u32, endpoints: u32, goals: &Goals) {
    for format in [Format::Json, Format::Protobuf] {
        from_api(table, services, endpoints, format, goals);
    }
    from_manifests(table, services, endpoints, goals);
}

fn from_api(table: &mut Table, services: u32, endpoints: u32, format: Format, goals: &Goals) {
    let node = Namespace::new("bench");
    let server = node.enter(|| ApiServer::start_with(Scheme::Http, format));
    server.apply(&[objects::node(), objects::service_cidr()]);
    if let Value::Array(items) = manifests(services, endpoints)["items"].take() {
        server.apply(&items);
    }
    let mut proxy = Proxy::with_api(&node, &config(), &server.kubeconfig(&json!({})));
    // A first start that is not measured: it makes the server build its lists, which it then keeps.
    server.keep_lists();
    proxy.launch();
    proxy.stop();
    delete_rules(&node);
    let what = format!("{services} x {endpoints}, API server, {format:?}");
    let before = node.enter(loopback_bytes);
    measure(table, &mut proxy, &what, goals.api, goals);
    let bytes = node.enter(loopback_bytes) - before;
    table.text("  bytes that went through the loopback interface", &format!("{} MB", bytes / 1_000_000), "");
    command(table, &node, &proxy, &["services"], &what, ["2 s", ""]);
    command(table, &node, &proxy, &["verify"], &what, [goals.verify, goals.verify_peak]);
    over_rules(table, &mut proxy, &what, goals);
}

/// Measures starts that find the rules of the process before, which has ended.
fn over_rules(table: &mut Table, proxy: &mut Proxy<'_>, what: &str, goals: &Goals) {
    let one = |_| {
        wait_for_idle();
        let start = Instant::now();
        proxy.launch();
        let took = start.elapsed();
        proxy.stop();
        took
    };
    let best = (0..TRIES).map(one).min().unwrap_or_default();
    table.time(&format!("a start that finds its rules, {what}"), best, goals.over_rules);
}

/// Measures the binary with default settings and objects in manifest files: a start, one that finds its rules, and `verify`; and the time that
/// the kernel takes to list the elements.
pub(crate) fn from_manifests(table: &mut Table, services: u32, endpoints: u32, goals: &Goals) {
    let node = Namespace::new("bench");
    // Very many Services need several files, because a file that is too large is refused.
    let lists =
        (0..services).step_by(PER_FILE as usize).map(|n| manifests_of(n..services.min(n + PER_FILE), endpoints));
    let objects: Vec<Value> = [objects::node(), objects::service_cidr()].into_iter().chain(lists).collect();
    let mut proxy = Proxy::prepare(&node, &config(), &[]);
    for (n, object) in objects.iter().enumerate() {
        let file = proxy.directory().join("manifests").join(format!("{n}.json"));
        fs::write(file, object.to_string()).expect("a file can be written");
    }
    let what = format!("{services} x {endpoints}, manifest files of {PER_FILE}");
    measure(table, &mut proxy, &what, goals.files, goals);
    let dump = (0..TRIES).map(|_| node.enter(dump::alone)).min().unwrap_or_default();
    table.time("  the kernel's dump of all elements alone, nothing decoded", dump.0, "");
    table.text("    bytes of it", &format!("{} MB", dump.1 / 1_000_000), "");
    let directory = proxy.manifests().path().to_str().expect("a temporary path is text");
    command(table, &node, &proxy, &["verify", "--manifests", directory], &what, [goals.verify, goals.verify_peak]);
    over_rules(table, &mut proxy, &what, goals);
}

fn measure(table: &mut Table, proxy: &mut Proxy<'_>, what: &str, goal: &str, goals: &Goals) {
    wait_for_idle();
    let start = Instant::now();
    proxy.launch();
    table.time(&format!("process start to programmed, {what}"), start.elapsed(), goal);
    table.time("  processor time of the start", cpu_time(&proxy.pid().to_string()), goals.cpu);
    table.text("  peak resident memory", &memory(proxy.pid(), "VmHWM:"), goals.peak);
    std::thread::sleep(Duration::from_secs(2));
    table.text("  resident memory afterwards", &memory(proxy.pid(), "VmRSS:"), goals.later);
    proxy.stop();
}

/// Starts the proxy from manifests with and without a program in another namespace that listens to nf_tables notifications, in turns.
/// Reports the best time and the most kernel memory of each. Other listeners on the machine spoil the comparison.
pub(crate) fn beside_a_listener(table: &mut Table, services: u32, endpoints: u32) {
    let elsewhere = Namespace::new("elsewhere");
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        alone.push(start_once(services, endpoints));
        let mut listener =
            elsewhere.command("nft").arg("monitor").stdout(Stdio::null()).spawn().expect("nft is installed");
        std::thread::sleep(Duration::from_millis(300));
        beside.push(start_once(services, endpoints));
        listener.kill().and_then(|()| listener.wait()).expect("it runs until it is killed");
    }
    let best = |starts: &[(Duration, u64)]| starts.iter().map(|start| start.0).min().unwrap_or_default();
    let most = |starts: &[(Duration, u64)]| starts.iter().map(|start| start.1).max().unwrap_or_default();
    let what = format!("{services} x {endpoints}, a listener in another namespace");
    table.time(&format!("process start to programmed, {what}"), best(&beside), "");
    table.ratio("  against a start without one", best(&beside), best(&alone), "1.5");
    let more = most(&beside).saturating_sub(most(&alone)) / 1_000_000;
    table.text("  kernel memory more than without one", &format!("{more} MB"), "300 MB");
}

/// Returns the time of a start, and by how many bytes the kernel's memory grew at most during it.
fn start_once(services: u32, endpoints: u32) -> (Duration, u64) {
    let node = Namespace::new("bench");
    let mut proxy = Proxy::prepare(&node, &config(), &[objects::node(), objects::service_cidr()]);
    let file = proxy.directory().join("manifests").join("all.json");
    fs::write(file, manifests(services, endpoints).to_string()).expect("a file can be written");
    wait_for_idle();
    let (before, ended) = (kernel_memory(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let most = scope.spawn(|| {
            let mut most = before;
            while !ended.load(Ordering::Relaxed) {
                most = most.max(kernel_memory());
                std::thread::sleep(Duration::from_millis(5));
            }
            most - before
        });
        let start = Instant::now();
        proxy.launch();
        let took = start.elapsed();
        ended.store(true, Ordering::Relaxed);
        (took, most.join().expect("it only reads"))
    })
}

/// Returns the kernel's slab memory that cannot be reclaimed, in bytes.
fn kernel_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("/proc is there");
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() * 1024
}

/// Returns how many bytes this namespace's loopback interface has received.
fn loopback_bytes() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").expect("/proc is there");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or_default()
}

/// Measures a command that looks at the node, with goals for its time and its memory; its output is discarded.
pub(crate) fn command(
    table: &mut Table,
    node: &Namespace,
    proxy: &Proxy<'_>,
    arguments: &[&str],
    what: &str,
    [time, memory]: [&str; 2],
) {
    let one = |_| {
        wait_for_idle();
        let mut command = node.command(binary());
        command.args(arguments).stdout(Stdio::null());
        if arguments[0] == "verify" {
            command.arg("--config").arg(proxy.config_path());
        }
        let start = Instant::now();
        let (status, peak) = until_end(command.spawn().expect("it can be run"));
        assert!(status.success(), "{status}");
        (start.elapsed(), peak)
    };
    let (best, peak) = (0..TRIES).map(one).min().unwrap_or_default();
    table.time(&format!("kube-proxy {}, {what}", arguments[0]), best, time);
    table.text("  peak resident memory", &peak, memory);
}

/// Deletes the rules that a proxy has left.
pub(crate) fn delete_rules(node: &Namespace) {
    for family in ["ip", "ip6"] {
        // The table of a family may not exist.
        let _there = node.command("nft").args(["delete", "table", family, "kube-proxy"]).output();
    }
}

/// Waits until a child process ends. Returns its status and its peak memory.
pub(crate) fn until_end(mut child: Child) -> (ExitStatus, String) {
    let mut peak = "unknown".to_owned();
    loop {
        let now = memory(child.id(), "VmHWM:");
        peak = if now == "unknown" { peak } else { now };
        if let Some(status) = child.try_wait().expect("a child can be asked") {
            return (status, peak);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the size in a line of `/proc/PID/status`, as text.
pub(crate) fn memory(pid: u32, key: &str) -> String {
    resident(pid, key).map_or_else(|| "unknown".to_owned(), |bytes| format!("{} MB", bytes / 1_000_000))
}

/// Returns the size in a line of `/proc/PID/status`, in bytes; `None` if the process has ended.
pub(crate) fn resident(pid: u32, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB"));
    line?.parse::<u64>().ok().map(|kib| kib * 1024)
}

//! A panic in any thread or task ends the process, and one in the work for a client ends that work only.
//!
//! Debug builds let a thread panic when it starts (`component::supervise`); the names of the threads come from the kernel, so a thread that
//! is added without that fails the test.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::cluster::Cluster;
use crate::support::apiserver::Format;
use crate::support::netns::Namespace;
use crate::support::objects::{node, service_cidr};
use crate::support::proxy::{Proxy, config};
use component::config::LoggingConfig;
use component::supervise::contained;

/// The exit code after a panic.
const PANICKED: Option<i32> = Some(2);
/// How long the threads of a proxy are watched: one that reads the tables ahead ends soon.
const WATCHED: Duration = Duration::from_secs(3);

/// The settings with which a proxy has the most threads.
fn with_all_threads() -> Value {
    let mut config = config();
    config["featureGates"] = json!({ "KubeProxyNFTablesLocalhostNodePorts": true, "LoggingAlphaOptions": true });
    config["nodePortAddresses"] = json!(["primary", "localhost"]);
    config["logging"] = json!({ "format": "json", "options": { "json": { "splitStream": true } } });
    config["nftables"]["counters"] = json!("services");
    config["nftables"]["flowtable"] = json!("auto");
    config["nftables"]["dropInvalidFromEndpoints"] = json!(true);
    config
}

/// The names of the threads that a proxy has or had, but for the main thread.
fn threads(proxy: &Proxy<'_>) -> BTreeSet<String> {
    let (end, mut names) = (Instant::now() + WATCHED, BTreeSet::new());
    while Instant::now() < end {
        let tasks = fs::read_dir(format!("/proc/{}/task", proxy.pid())).expect("the proxy runs").flatten();
        let mut found = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        // Before that, the process has not become the proxy yet.
        if found.next().is_some_and(|main| main == "kube-proxy\n") {
            // A thread has the name of the main thread until it gives itself its own.
            names.extend(found.map(|name| name.trim_end().to_owned()).filter(|name| name != "kube-proxy"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    names
}

/// Lets each thread of a proxy panic, in a process of its own. Returns what did not end as it should.
fn let_each_panic(prepared: impl Fn() -> Proxy<'static>, known: &[&str]) -> Vec<String> {
    let names = {
        let mut proxy = prepared();
        proxy.spawn();
        threads(&proxy)
    };
    assert_eq!(names, known.iter().map(ToString::to_string).collect(), "the threads of a proxy, and those known here");
    let outcome = |name: &String| {
        let mut proxy = prepared();
        // A backtrace of a debug build takes long.
        proxy.set_wrapper(&["env", "-u", "RUST_BACKTRACE", &format!("KUBE_PROXY_NFT_PANIC={name}")]);
        proxy.spawn();
        let start = Instant::now();
        while proxy.is_running() {
            if start.elapsed() > Duration::from_secs(20) {
                return Some(format!("{name}: runs"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let (code, log) = (proxy.wait_for_end().code(), proxy.log());
        let record = format!("\"thread\":\"{name}\"");
        let is_logged = log.lines().any(|line| line.contains("Observed a panic") && line.contains(&record));
        (code != PANICKED || !is_logged).then(|| format!("{name}: {code:?}, in the log: {is_logged}"))
    };
    names.iter().filter_map(outcome).collect()
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only debug builds let a thread panic")]
fn a_panic_in_any_thread_ends_the_process() {
    // A panic ends the process (O23).
    let world: &'static Namespace = Box::leak(Box::new(Namespace::new("panics")));
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::new(Format::Protobuf)));
    let known = ["address-watch", "config-watch", "counters", "fast-path", "invalid-count", "localhost"];
    let known = [&known[..], &["localhost-count", "log", "log-info", "read-ahead", "signals", "sync"]].concat();
    let manifests = || Proxy::prepare(world, &with_all_threads(), &[node(), service_cidr()]);
    let mut wrong = let_each_panic(manifests, &[&known[..], &["manifests"]].concat());
    let kubeconfig = cluster.server.kubeconfig(&json!({}));
    let of_api = || Proxy::with_api(&cluster.node, &with_all_threads(), &kubeconfig);
    wrong.extend(let_each_panic(of_api, &[&known[..], &["api", "events"]].concat()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs one of the ignored tests as a process of its own.
fn child(name: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--ignored", "--exact", &format!("panics::{name}"), "--nocapture"]);
    command.output().expect("a test can be run")
}

#[test]
fn a_panic_in_a_task_of_a_library_ends_the_process_and_one_of_a_client_does_not() {
    // A panic ends the process (O23); no thread of ours waits for a task of a library.
    for name in ["child_with_a_task", "child_with_a_thread"] {
        let Output { status, stdout, stderr } = child(name);
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.code() == PANICKED && !stdout.contains("goes on"), "{name}: {status}, {stdout}{stderr}");
        assert!(stderr.contains("\"Observed a panic\" panic=\"of the library\""), "{stderr}");
    }
    let Output { status, stdout, stderr } = child("child_with_a_client");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stdout.contains("goes on"), "{status}, {stdout}{stderr}");
    assert!(stderr.contains("\"Observed a panic\" panic=\"of the client\""), "{stderr}");
}

/// Runs a task in a process with a log, and goes on after its end.
fn run_task(task: impl Future<Output = ()> + Send + 'static) {
    let _ending = component::logging::FlushOnDrop;
    component::logging::init(&LoggingConfig::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    let ended = runtime.block_on(async { tokio::spawn(task).await });
    println!("goes on: {}", ended.is_err());
}

#[test]
#[ignore = "run as a process of its own"]
fn child_with_a_task() {
    run_task(async { panic!("of the library") });
}

#[test]
#[ignore = "run as a process of its own"]
fn child_with_a_client() {
    run_task(contained(async { panic!("of the client") }));
}

#[test]
#[ignore = "run as a process of its own"]
fn child_with_a_thread() {
    component::logging::init(&LoggingConfig::default());
    let ended = thread::spawn(|| panic!("of the library")).join();
    println!("goes on: {}", ended.is_err());
}

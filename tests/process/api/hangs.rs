//! What the proxy waits for may never come: it serves all the same, and ends on a signal.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::support::apiserver::fault::{Fault, On};
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::netns::Namespace;
use crate::support::proxy::{Proxy, config};

/// How long the process may take to end after SIGTERM.
const END: Duration = Duration::from_secs(5);
/// Version of what plugins print.
const CREDENTIAL: &str = "client.authentication.k8s.io/v1";

/// The servers answer, and SIGTERM ends the process in time. Gives its exit code.
fn serves_and_ends(proxy: &mut Proxy<'_>) -> Option<i32> {
    let start = Instant::now();
    let answers = |address: &str, path: &str, status: &[&str]| {
        let answer = wait_for(path, || proxy.try_get(address, path));
        assert!(status.iter().any(|status| answer.starts_with(&format!("HTTP/1.1 {status}"))), "{path}: {answer}");
    };
    for _ in 0..3 {
        answers("127.0.0.1:10249", "/metrics", &["200"]);
        answers("127.0.0.1:10256", "/healthz", &["200", "503"]);
        answers("127.0.0.1:10256", "/livez", &["200"]);
    }
    println!("served after {:?}", start.elapsed());
    let start = Instant::now();
    let status = proxy.stop();
    println!("ended {:?} after SIGTERM: {status}", start.elapsed());
    assert!(start.elapsed() < END, "ended after {:?}: {}", start.elapsed(), proxy.log());
    status.code()
}

/// A user whose plugin is this shell script.
fn plugin(directory: &Path, script: &str) -> Value {
    let plugin = directory.join("plugin");
    fs::write(&plugin, format!("#!/bin/sh\n{script}\n")).expect("a script can be written");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("a script can be made executable");
    json!({ "exec": { "apiVersion": CREDENTIAL, "command": plugin, "interactiveMode": "Never" } })
}

/// The process whose id a script wrote to a file, while it runs.
fn running(file: &Path) -> Option<PathBuf> {
    let pid: u32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    let process = PathBuf::from(format!("/proc/{pid}"));
    let command = fs::read(process.join("cmdline")).ok()?;
    // A zombie has no command line.
    (!command.is_empty()).then_some(process)
}

test_in_each_format!(a_plugin_that_hangs_at_the_start_delays_neither_start_nor_end);
fn a_plugin_that_hangs_at_the_start_delays_neither_start_nor_end(format: Format) {
    let cluster = Cluster::new(format);
    let file = cluster.server.directory().join("pid");
    // The processes that the plugin starts are ended with it.
    let user = plugin(cluster.server.directory(), &format!("sleep 1000 & echo $! > {}; wait", file.display()));
    let mut proxy = Proxy::with_api(&cluster.node, &config(), &cluster.server.kubeconfig(&user));
    proxy.spawn();
    wait_for("the plugin", || running(&file));
    assert_eq!(serves_and_ends(&mut proxy), Some(0));
    wait_for("the end of the plugin", || running(&file).is_none().then_some(()));
    assert!(cluster.server.requests().is_empty(), "no request went out without credentials");
}

test_in_each_format!(a_plugin_that_hangs_later_delays_neither_start_nor_end);
fn a_plugin_that_hangs_later_delays_neither_start_nor_end(format: Format) {
    let cluster = Cluster::new(format);
    let (file, marker) = (cluster.server.directory().join("pid"), cluster.server.directory().join("hang"));
    // Credentials that end at once: each connection needs new ones.
    let status = json!({ "token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z" });
    let credential = json!({ "apiVersion": CREDENTIAL, "kind": "ExecCredential", "status": status });
    let (pid, hang) = (file.display(), marker.display());
    let script = format!("if [ -e {hang} ]; then echo $$ > {pid}; exec sleep 1000; fi\necho '{credential}'");
    let user = plugin(cluster.server.directory(), &script);
    let mut proxy = Proxy::with_api(&cluster.node, &config(), &cluster.server.kubeconfig(&user));
    proxy.launch();
    cluster.server.wait_for_watches();
    fs::write(&marker, "").expect("a file can be written");
    cluster.server.close();
    cluster.server.open();
    wait_for("the plugin", || running(&file));
    assert!(cluster.serves("web"), "the rules stay");
    assert_eq!(serves_and_ends(&mut proxy), Some(0));
    wait_for("the end of the plugin", || running(&file).is_none().then_some(()));
}

test_in_each_format!(a_plugin_that_fails_is_tried_again_and_its_words_are_in_the_log);
fn a_plugin_that_fails_is_tried_again_and_its_words_are_in_the_log(format: Format) {
    let cluster = Cluster::new(format);
    let marker = cluster.server.directory().join("good");
    let credential = json!({ "apiVersion": CREDENTIAL, "kind": "ExecCredential", "status": { "token": "t" } });
    let script =
        format!("[ -e {} ] && exec echo '{credential}'\necho no ticket >&2; echo secret; exit 3", marker.display());
    let user = plugin(cluster.server.directory(), &script);
    let mut proxy = Proxy::with_api(&cluster.node, &config(), &cluster.server.kubeconfig(&user));
    proxy.spawn();
    wait_for("a word about it", || proxy.log().contains("no ticket").then_some(()));
    assert!(proxy.log().contains("plugin: it failed (exit status: 3): no ticket"), "{}", proxy.log());
    assert!(!proxy.log().contains("secret"), "{}", proxy.log());
    fs::write(&marker, "").expect("a file can be written");
    proxy.wait_until_synced();
    assert!(cluster.serves("web"));
}

test_in_each_format!(a_server_that_accepts_and_never_answers_delays_neither_start_nor_end);
fn a_server_that_accepts_and_never_answers_delays_neither_start_nor_end(format: Format) {
    let cluster = Cluster::new(format);
    let silent = cluster.node.enter(|| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let url = format!("http://{}", silent.local_addr().expect("it is bound"));
    let mut proxy = cluster.prepared();
    let argument = format!("--master={url}");
    proxy.set_arguments(&[&argument]);
    proxy.spawn();
    assert_eq!(serves_and_ends(&mut proxy), Some(0));
}

/// A name server's address in the configuration of a namespace, as long as the value lives.
struct Resolver(PathBuf);

impl Resolver {
    fn new(node: &Namespace, content: &str) -> Self {
        let directory = Path::new("/etc/netns").join(node.name());
        fs::create_dir_all(&directory).expect("root makes directories");
        fs::write(directory.join("resolv.conf"), content).expect("root writes files");
        Self(directory)
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

test_in_each_format!(a_name_server_that_never_answers_delays_neither_start_nor_end);
fn a_name_server_that_never_answers_delays_neither_start_nor_end(format: Format) {
    // SIGTERM ends the process within 5 s while names are looked up (O15).
    let cluster = Cluster::new(format);
    let _resolver = Resolver::new(&cluster.node, "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n");
    let silent = cluster.node.enter(|| UdpSocket::bind("127.0.0.1:53").expect("the port is free"));
    let mut proxy = cluster.prepared();
    proxy.set_arguments(&["--master=http://api.example.test:6443"]);
    proxy.spawn();
    silent.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out can be set");
    silent.recv(&mut [0; 512]).expect("a question");
    assert_eq!(serves_and_ends(&mut proxy), Some(0));
}

test_in_each_format!(a_sync_that_hangs_in_the_kernel_does_not_keep_the_process_from_ending);
fn a_sync_that_hangs_in_the_kernel_does_not_keep_the_process_from_ending(format: Format) {
    // SIGTERM ends the process within 5 s whatever hangs (O15).
    let cluster = Cluster::new(format);
    let trace = cluster.server.directory().join("trace");
    cluster.server.lasting_fault(On::All, Fault::Refuse(503, None));
    let mut proxy = cluster.prepared();
    proxy.spawn();
    wait_for("the servers", || proxy.log().contains("Serving healthz").then_some(()));
    // The kernel was probed; the first batch and whatever comes after it take ten minutes.
    let mut strace = cluster.node.command("strace");
    strace.args(["-f", "-q", "-e", "trace=sendmsg", "-e", "inject=sendmsg:delay_enter=600000000", "-o"]).arg(&trace);
    let mut strace = strace.arg("-p").arg(proxy.pid().to_string()).spawn().expect("strace can be run");
    let tasks = || fs::read_dir(format!("/proc/{}/task", proxy.pid())).expect("it runs").flatten();
    let is_traced = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("status")).is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
    };
    wait_for("strace", || tasks().all(is_traced).then_some(()));
    cluster.server.clear_faults();
    wait_for("the batch", || fs::read_to_string(&trace).ok().filter(|text| text.contains("sendmsg(")));
    let status =
        || fs::read_to_string(format!("/proc/{}/status", proxy.pid())).expect("the process was not waited for yet");
    let field = |name: &str| status().lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let tracer = field("TracerPid:").expect("strace is there");
    kill_process(pid(&proxy.pid().to_string()), Signal::TERM).expect("the proxy runs");
    let start = Instant::now();
    // A process under strace is a zombie until strace has collected its end.
    while field("State:").is_some_and(|state| !state.starts_with('Z')) && start.elapsed() < END {
        thread::sleep(Duration::from_millis(10));
    }
    let (ended, took) = (field("State:"), start.elapsed());
    kill_process(pid(&tracer), Signal::KILL).expect("strace runs");
    strace.wait().expect("a child ends");
    println!("{ended:?} {took:?} after SIGTERM");
    assert!(took < END, "{ended:?} {took:?} after SIGTERM: {}", proxy.log());
    assert_eq!(proxy.wait_for_end().code(), Some(1));
    assert!(proxy.log().contains("the sync loop has not ended within 3s"), "{}", proxy.log());
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().expect("a number")).expect("a process id is not 0")
}

//! The binary as a whole: from process start to programmed, and the memory it takes.

use std::fs;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::manifests;
use crate::support::apiserver::{ApiServer, Scheme};
use crate::support::netns::Namespace;
use crate::support::objects;
use crate::support::proxy::{Proxy, binary, config};
use crate::table::Table;

/// Measures the binary on a plain cluster. The binary is that of `$KUBE_PROXY_BINARY`, else the one Cargo built.
pub(crate) fn rows(table: &mut Table, services: u32, endpoints: u32) {
    from_api(table, services, endpoints);
    from_manifests(table, services, endpoints);
}

fn from_api(table: &mut Table, services: u32, endpoints: u32) {
    let node = Namespace::new("bench");
    let server = node.enter(|| ApiServer::start(Scheme::Http));
    server.apply(&[objects::node(), objects::service_cidr()]);
    if let Value::Array(items) = manifests(services, endpoints)["items"].take() {
        server.apply(&items);
    }
    let mut proxy = Proxy::with_api(&node, &config(), &server.kubeconfig(&json!({})));
    let what = format!("{services} x {endpoints}, API server");
    measure(table, &mut proxy, &what);
    verify(table, &node, &proxy, &[], &what);
}

fn from_manifests(table: &mut Table, services: u32, endpoints: u32) {
    let node = Namespace::new("bench");
    let objects = [objects::node(), objects::service_cidr(), manifests(services, endpoints)];
    let mut proxy = Proxy::prepare(&node, &config(), &[]);
    for (n, object) in objects.iter().enumerate() {
        let file = proxy.directory().join("manifests").join(format!("{n}.json"));
        fs::write(file, object.to_string()).expect("a file can be written");
    }
    let what = format!("{services} x {endpoints}, one manifest file");
    measure(table, &mut proxy, &what);
    let directory = proxy.manifests().path().to_str().expect("a temporary path is text");
    verify(table, &node, &proxy, &["--manifests", directory], &what);
}

fn measure(table: &mut Table, proxy: &mut Proxy<'_>, what: &str) {
    let start = Instant::now();
    proxy.launch();
    table.time(&format!("process start to programmed, {what}"), start.elapsed(), "3 s");
    table.text("  peak resident memory", &memory(proxy.pid(), "VmHWM:"), "150 MB");
    std::thread::sleep(Duration::from_secs(2));
    table.text("  resident memory afterwards", &memory(proxy.pid(), "VmRSS:"), "100 MB");
    proxy.stop();
}

/// Compares the rules that a proxy has left with what they should be.
fn verify(table: &mut Table, node: &Namespace, proxy: &Proxy<'_>, source: &[&str], what: &str) {
    let start = Instant::now();
    let mut command = node.command(binary());
    let child =
        command.arg("verify").arg("--config").arg(proxy.config_path()).args(source).spawn().expect("it can be run");
    let (status, peak) = until_end(child);
    assert!(status.success(), "{status}");
    table.time(&format!("kube-proxy verify, {what}"), start.elapsed(), "2 s");
    table.text("  peak resident memory", &peak, "");
}

/// Waits for the end of a child. Gives its status and its peak memory.
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

/// A line of a process's status that is a size.
pub(crate) fn memory(pid: u32, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib: Option<u64> =
        status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map_or_else(|| "unknown".to_owned(), |kib| format!("{} MB", kib * 1024 / 1_000_000))
}

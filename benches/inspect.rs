//! Measures the commands that look at a node: on a large table without a running proxy, and beside a running proxy and many connections.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rules::ruleset::Layout;
use serde_json::{Value, json};

use crate::cluster::{Shape, address, cluster_ip, manifests, manifests_of};
use crate::process::{memory, until_end};
use crate::support::apiserver::{ApiServer, Scheme};
use crate::support::netns::{Namespace, run_with_input};
use crate::support::objects;
use crate::support::proxy::{Proxy, binary, config};
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

/// The number of tracked connections, if the machine's limit (`nf_conntrack_max`) allows it; otherwise nine tenths of the limit are used.
const CONNECTIONS: u32 = 500_000;

/// Measures each command beside a running proxy and many connections, and the proxy's syncs while the command runs.
pub(crate) fn beside(table: &mut Table, services: u32, endpoints: u32) {
    let node = Namespace::new("bench");
    let server = node.enter(|| ApiServer::start(Scheme::Http));
    let objects = Value::Array(vec![objects::node(), objects::service_cidr()]);
    let mut cluster = manifests(services, endpoints);
    for items in [objects, cluster["items"].take()] {
        server.apply(items.as_array().map_or(&[], Vec::as_slice));
    }
    let mut proxy = Proxy::with_api(&node, &config(), &server.kubeconfig(&json!({})));
    proxy.launch();
    let count = load_connections(&node, 0, services, endpoints);
    table.text(
        &format!("commands beside a proxy, {services} x {endpoints}: connections"),
        &count.to_string(),
        "500000",
    );
    let configuration = proxy.config_path();
    let configuration = configuration.to_str().expect("a temporary path is text");
    let last = Ipv4Addr::from(0x0a60_0000 + services).to_string();
    let to = format!("{last}:80");
    let commands: [&[&str]; 8] = [
        &["services"],
        &["services", "--stats"],
        &["explain", "--from", "10.0.0.1", "--to", &to],
        &["verify", "--config", configuration],
        &["top", "--once", "--interval", "100ms"],
        &["trace", "--from", "10.0.0.1", "--to", &to, "--for", "100ms"],
        &["changes", "--config", configuration],
        &["check", "--config", configuration],
    ];
    let alone =
        syncs(&server, &proxy, changed_slices(services, endpoints, 10), || thread::sleep(Duration::from_secs(3)));
    table.time("  a sync of one endpoint, mean, without a command", alone, "");
    for (command, last) in commands.into_iter().zip((11..16).cycle()) {
        let (time, peak) = measured(&node, command);
        table.time(
            &format!("  kube-proxy {}", command[..command.len().min(2)].join(" ")),
            time,
            goal(command, "1.5 s"),
        );
        table.text("    peak resident memory", &peak, goal(command, "100 MB"));
        let meanwhile = syncs(&server, &proxy, changed_slices(services, endpoints, last), || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(2) {
                measured(&node, command);
            }
        });
        table.ratio("    a sync of one endpoint meanwhile, mean, against none", meanwhile, alone, "");
    }
    proxy.stop();
}

/// Returns the goal of a command: only the list of all Services has one.
fn goal<'a>(command: &[&str], goal: &'a str) -> &'a str {
    if command == ["services"] { goal } else { "" }
}

/// Fills the connection-tracking table of a node with connections to Services, of which `first` is the number of the first one. Returns the
/// number of connections.
pub(crate) fn load_connections(node: &Namespace, first: u32, services: u32, endpoints: u32) -> u32 {
    let most = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap_or_default();
    let count = CONNECTIONS.min(most.trim().parse::<u32>().map_or(CONNECTIONS, |most| most / 10 * 9));
    let lines: String = (0..count).map(|n| connection(n, first, services, endpoints)).collect();
    run_with_input(node.command("conntrack").args(["--load-file", "-"]), &lines);
    count
}

/// Returns the mean time of the proxy's syncs while `work` runs. Each sync has one changed endpoint.
fn syncs(
    server: &ApiServer,
    proxy: &Proxy<'_>,
    changes: impl Iterator<Item = Value> + Send,
    work: impl FnOnce(),
) -> Duration {
    const NAME: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
    let total = |suffix: &str| proxy.series(&format!("{NAME}_{suffix}")).iter().sum::<f64>();
    let (sum, count) = (total("sum"), total("count"));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for slice in changes {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                server.apply(&[slice]);
                thread::sleep(Duration::from_millis(20));
            }
        });
        work();
        ended.store(true, Ordering::Relaxed);
    });
    let (sum, count) = (total("sum") - sum, total("count") - count);
    assert!(count > 20.0, "{count} syncs");
    Duration::from_secs_f64(sum / count)
}

/// Returns a line for `conntrack --load-file`: a connection to a Service, translated to one of its endpoints.
fn connection(n: u32, first: u32, services: u32, endpoints: u32) -> String {
    let (service, endpoint) = (first + n % services, n / services % endpoints);
    let (client, port) = (Ipv4Addr::from(0xc612_0000 + n / 60_000), 1_024 + n % 60_000);
    let (frontend, endpoint) = (cluster_ip(service), address(service, endpoint));
    format!(
        "-A -t 3600 -u SEEN_REPLY -p tcp --state ESTABLISHED -s {client} -d {frontend} --sport {port} --dport 80 --dst-nat {endpoint}:8080\n"
    )
}

/// Returns the slices of all Services, one after the other, each with its first endpoint replaced.
fn changed_slices(services: u32, endpoints: u32, first: u32) -> impl Iterator<Item = Value> {
    (0..services).map(move |n| {
        let mut slice = manifests_of(n..n + 1, endpoints)["items"][1].take();
        slice["endpoints"][0]["addresses"] = json!([address(n, first).to_string()]);
        slice
    })
}

/// Runs a command to its end. Returns its time and its peak memory.
fn measured(node: &Namespace, args: &[&str]) -> (Duration, String) {
    let start = Instant::now();
    let child = command(node, args).spawn().expect("the binary can be run");
    let (status, peak) = until_end(child);
    // Exit code 1 means that the command found something to report, such as a family without a table.
    assert!(matches!(status.code(), Some(0 | 1)), "{args:?}: {status}");
    (start.elapsed(), peak)
}

fn command(node: &Namespace, args: &[&str]) -> Command {
    let mut command = node.command(binary());
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the shortest time of three runs of a command.
fn best(node: &Namespace, args: &[&str]) -> Duration {
    (0..3).map(|_| measured(node, args).0).min().unwrap_or_default()
}

/// Starts a command that runs until it is killed, kills it after ten seconds, and returns its peak memory.
fn peak(node: &Namespace, args: &[&str]) -> String {
    let mut child = command(node, args).spawn().expect("the binary can be run");
    thread::sleep(Duration::from_secs(10));
    let peak = memory(child.id(), "VmHWM:");
    child.kill().and_then(|()| child.wait()).expect("a child can be ended");
    peak
}

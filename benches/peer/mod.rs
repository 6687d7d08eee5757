//! Compares this program with upstream's kube-proxy: one after the other, with one real API server, in one network namespace.
//!
//! `BENCH_PEER` names a directory with `kube-proxy`, `kube-apiserver` and `etcd` of Kubernetes. Everything is measured from outside, and in
//! the same way for both: connections to a Service, `/proc`, and the bytes that leave the API server's port. Both proxies have the same
//! configuration, with upstream's defaults for the times between syncs.

pub(crate) mod changes;
pub(crate) mod control_plane;
pub(crate) mod idle;
pub(crate) mod large;

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, io};

use serde_json::{Value, json};
use socket2::SockRef;

use crate::cluster::manifests_of;
use crate::figures::Point;
use crate::measure::{cpu_time_with_children, permille};
use crate::process::{delete_rules, memory};
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::plan::NODE as NODE_NAME;
use crate::support::proxy::{Proxy, binary};
use crate::support::server::{Answer, Server};
use crate::table::Table;
use crate::wait_for_idle;
use control_plane::{ControlPlane, Garbage, NODE};

/// The number of the first Service: the cluster IPs before it are left to the API server.
pub(crate) const FIRST: u32 = 1_000;
pub(crate) const ENDPOINTS: u32 = 10;
/// The probed Service, and its two endpoints, of which it has one at a time.
const FRONTEND: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 100), 80);
const PODS: [Ipv4Addr; 2] = [Ipv4Addr::new(172, 30, 0, 1), Ipv4Addr::new(172, 30, 0, 2)];
const PORT: u16 = 8080;
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/bench/endpointslices/probe-x";
/// While waiting for rules, a connection without an answer is tried again after this time.
const TRY: Duration = Duration::from_millis(5);
/// How long a connection that the rules serve may take, because another thread may have the processor.
const PATIENCE: Duration = Duration::from_secs(1);
const BETWEEN: Duration = Duration::from_micros(200);
const ANSWERED_WITHIN: Duration = Duration::from_secs(600);
/// The number of changes of the probed Service's endpoint, and the pause before each: longer than the minimum sync period of 1 s.
const CHANGES: usize = 6;
const PAUSE: Duration = Duration::from_millis(1_500);
/// The number of connections in a measurement, which are made one after the other.
const CONNECTIONS: u32 = 2_000;
/// An nftables counter of the bytes that the API server sends.
const ACCOUNT: &str = "table ip account { counter sent { }
    chain output { type filter hook output priority 300; tcp sport 6443 counter name sent; }; }";

/// The proxy that runs, and its ruleset layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Ours,
    Chains,
    ServiceChains,
    Upstream,
}

impl Who {
    const ALL: [Self; 4] = [Self::Ours, Self::Chains, Self::ServiceChains, Self::Upstream];

    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Chains => "ours, layout chains",
            Self::ServiceChains => "ours, layout chains without chains of endpoints",
            Self::Upstream => "upstream",
        }
    }

    /// The name in plots.
    const fn series(self) -> &'static str {
        match self {
            Self::Ours => "this program",
            Self::Chains => "layout chains",
            Self::ServiceChains => "chains of Services only",
            Self::Upstream => "upstream nftables",
        }
    }
}

/// The measurements of a proxy.
struct Figures {
    start: Duration,
    change: Duration,
    connections: Duration,
    cpu: Duration,
    server_cpu: Duration,
    sent: u64,
    peak: String,
    later: String,
}

/// Measures each proxy at each number of Services.
pub(crate) fn rows(table: &mut Table, sizes: &[u32]) {
    let programs = programs(&["kube-proxy", "kube-apiserver", "etcd"]);
    let version = run(Command::new(programs.join("kube-proxy")).arg("--version"));
    table.text("upstream", version.trim(), "");
    let node = host();
    node.ip(&PODS.map(|pod| format!("addr add {pod}/32 dev lo")));
    nft::load(&node, ACCOUNT);
    let _pods = Server::start(&node, &PODS.map(Into::into), &[PORT]);
    node.enter(|| {
        let plane = ControlPlane::start(&node, &programs, Garbage::Collected);
        plane.create(probe());
        let mut loaded = 0;
        for &services in sizes {
            plane.create(objects(loaded..services, ENDPOINTS));
            loaded = services;
            let bench = Peers { node: &node, plane: &plane, programs: &programs };
            let all = Who::ALL.map(|who| (who, bench.measure(who)));
            print(table, services, &all);
        }
    });
}

/// Returns the directory that `BENCH_PEER` names; panics if it lacks one of these programs.
pub(crate) fn programs(names: &[&str]) -> PathBuf {
    let programs = env::var_os("BENCH_PEER").expect("BENCH_PEER names a directory with the programs of Kubernetes");
    let programs = Path::new(&programs).canonicalize().expect("the directory of BENCH_PEER");
    for name in names {
        assert!(programs.join(name).is_file(), "BENCH_PEER: there is no {name} in {}", programs.display());
    }
    programs
}

/// Makes a namespace with the node's address on `lo`, and a route for cluster IPs.
pub(crate) fn host() -> Namespace {
    let node = Namespace::new("bench");
    node.ip(&[format!("addr add {NODE}/32 dev lo"), "route add default dev lo".to_owned()]);
    // A SYN that met no rules is tracked without NAT, and so is a later one from the same port until this time-out has passed.
    node.set_sysctl("netfilter/nf_conntrack_tcp_timeout_syn_sent", "1");
    node
}

fn print(table: &mut Table, services: u32, all: &[(Who, Figures)]) {
    let (_, upstream) = all.last().expect("upstream is the last");
    let megabytes = |bytes: u64| format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10);
    for (who, figures) in all {
        let what = |what: &str| format!("{what}, {services} x {ENDPOINTS}, {}", who.name());
        // The goals of ruleset layout `maps` are in other parts of the bench.
        let [start, change, peak] = match (who, services) {
            (Who::Chains, 5_000) => ["2.0 s", "50 ms", "120 MB"],
            (Who::ServiceChains, 5_000) => ["1.5 s", "5 ms", "100 MB"],
            _ => [""; 3],
        };
        let is_ours = *who != Who::Upstream;
        let point = |plot: &str| Some(Point { plot: plot.to_owned(), series: who.series().to_owned(), services });
        table.time_at(point("start"), &what("start to the first answered connection"), figures.start, start);
        if is_ours {
            table.ratio("  upstream against that", upstream.start, figures.start, "");
        }
        let named = what("one endpoint, from the API server's answer to a packet, median");
        table.time_at(point("change"), &named, figures.change, change);
        if is_ours {
            table.ratio("  upstream against that", upstream.change, figures.change, "");
        }
        table.text(&what("peak resident memory"), &figures.peak, peak);
        table.text("  resident memory at the end", &figures.later, "");
        table.time("  processor time of the start, with children", figures.cpu, "");
        table.time("  processor time of the API server for it", figures.server_cpu, "");
        let sent = if is_ours { megabytes(upstream.sent) } else { String::new() };
        table.text("  bytes from the API server for it", &megabytes(figures.sent), &sent);
        table.time("  a connection to a Service on this host, mean", figures.connections / CONNECTIONS, "");
    }
}

/// The environment of a measurement.
struct Peers<'a> {
    node: &'a Namespace,
    plane: &'a ControlPlane<'a>,
    programs: &'a Path,
}

impl Peers<'_> {
    fn measure(&self, who: Who) -> Figures {
        self.lead_to(PODS[0]);
        let mut proxy = Proxy::with_api(self.node, &config(who), &self.plane.kubeconfig());
        proxy.set_binary(&if who == Who::Upstream { self.programs.join("kube-proxy") } else { binary() });
        let server = || cpu_time_with_children(&self.plane.server().to_string());
        wait_for_idle();
        let (server_before, sent_before, begin) = (server(), self.sent(), Instant::now());
        proxy.spawn();
        let start = wait_for(PODS[0], begin);
        // The work that the proxy does after the first answered connection is part of the start's cost.
        sleep(Duration::from_secs(3));
        let cpu = cpu_time_with_children(&proxy.pid().to_string());
        let (server_cpu, sent) = (server() - server_before, self.sent() - sent_before);
        let changes: Vec<Duration> = PODS.iter().rev().cycle().take(CHANGES).map(|pod| self.change(*pod)).collect();
        let connections = connections();
        let [peak, later] = ["VmHWM:", "VmRSS:"].map(|key| memory(proxy.pid(), key));
        proxy.stop();
        delete_rules(self.node);
        Figures { start, change: permille(&changes, 500), connections, cpu, server_cpu, sent, peak, later }
    }

    /// Returns the time from the API server's answer to the change until the first connection that the new endpoint answers.
    fn change(&self, pod: Ipv4Addr) -> Duration {
        sleep(PAUSE);
        self.lead_to(pod);
        wait_for(pod, Instant::now())
    }

    /// Gives the probed Service this endpoint only.
    fn lead_to(&self, pod: Ipv4Addr) {
        self.plane.patch(SLICE, &json!({ "endpoints": endpoints(&[pod]) }));
    }

    fn sent(&self) -> u64 {
        let text = run(self.node.command("nft").args(["list", "counter", "ip", "account", "sent"]));
        let bytes = text.split_once("bytes ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        bytes.unwrap_or_else(|| panic!("no counter: {text}"))
    }
}

/// Returns a minimal configuration as a cluster would have it, the same for both proxies except for the ruleset layout.
fn config(who: Who) -> Value {
    let mut config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "hostnameOverride": NODE_NAME, "clusterCIDR": "11.0.0.0/8", "clientConnection": {},
        "conntrack": { "maxPerCore": 0, "min": 0 },
    });
    if matches!(who, Who::Chains | Who::ServiceChains) {
        config["nftables"] = json!({ "rulesetLayout": "chains", "endpointChains": who == Who::Chains });
    }
    config
}

/// Returns the probed Service and its slice.
fn probe() -> Vec<Value> {
    let ip = FRONTEND.0.to_string();
    let labels = json!({ "kubernetes.io/service-name": "probe" });
    vec![
        json!({ "kind": "Service", "apiVersion": "v1", "metadata": { "name": "probe", "namespace": "bench" },
            "spec": { "clusterIP": ip, "clusterIPs": [ip], "ports": [{ "name": "http", "port": FRONTEND.1, "protocol": "TCP" }] } }),
        json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": { "name": "probe-x", "namespace": "bench", "labels": labels },
            "endpoints": endpoints(&PODS[..1]), "ports": [{ "name": "http", "port": PORT, "protocol": "TCP" }] }),
    ]
}

fn endpoints(pods: &[Ipv4Addr]) -> Vec<Value> {
    let conditions = json!({ "ready": true, "serving": true, "terminating": false });
    pods.iter().map(|pod| json!({ "addresses": [pod.to_string()], "conditions": conditions })).collect()
}

/// Returns the Services with these numbers and their slices, with the fields that a controller writes and a proxy ignores.
pub(crate) fn objects(numbers: Range<u32>, endpoints: u32) -> Vec<Value> {
    let mut list = manifests_of(FIRST + numbers.start..FIRST + numbers.end, endpoints);
    let mut objects: Vec<Value> = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    for object in &mut objects {
        let slice = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        for (n, endpoint) in object["endpoints"].as_array_mut().into_iter().flatten().enumerate() {
            describe_pod(endpoint, &slice, n);
        }
    }
    objects
}

/// Adds the fields to an endpoint that a controller writes and a proxy ignores; `number` is its index in the slice.
fn describe_pod(endpoint: &mut Value, slice: &str, number: usize) {
    endpoint["zone"] = json!("zone-a");
    endpoint["targetRef"] = json!({ "kind": "Pod", "namespace": "bench", "name": format!("{slice}-{number:05}"),
        "uid": format!("00000000-0000-0000-0000-{number:012}") });
}

/// Connects to a Service's frontend; returns which endpoint answers.
fn ask(frontend: (Ipv4Addr, u16), patience: Duration) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(frontend), patience)?;
    let socket = SockRef::from(&stream);
    // The connection is reset when it is closed, and so leaves nothing in TIME_WAIT.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut text = [0; 128];
    let length = stream.read(&mut text)?;
    String::from_utf8_lossy(&text[..length]).parse().map_err(io::Error::other)
}

/// Waits until a pod answers. Returns the time since `begin`.
fn wait_for(pod: Ipv4Addr, begin: Instant) -> Duration {
    let answered = answered(pod, begin, ANSWERED_WITHIN);
    answered.unwrap_or_else(|| panic!("{pod} does not answer within {ANSWERED_WITHIN:?}"))
}

/// Waits until a pod answers. Returns the time since `begin`; `None` if that is longer than `limit`.
fn answered(pod: Ipv4Addr, begin: Instant, limit: Duration) -> Option<Duration> {
    while !ask(FRONTEND, TRY).is_ok_and(|answer| answer.endpoint == pod) {
        // The pause leaves the processors to the proxy and the API server.
        sleep(BETWEEN);
        if begin.elapsed() > limit {
            return None;
        }
    }
    Some(begin.elapsed())
}

/// Returns the time of [`CONNECTIONS`] connections, one after the other.
fn connections() -> Duration {
    let start = Instant::now();
    for _ in 0..CONNECTIONS {
        ask(FRONTEND, PATIENCE).expect("the Service answers");
    }
    start.elapsed()
}

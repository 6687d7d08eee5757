//! Measures what many nodes cost one API server: when all start, when endpoints change, and when the server comes back.
//!
//! Each process runs in a network namespace of its own, and reaches the server through a bridge, whose counters have the bytes. With
//! `BENCH_PEER` the server is Kubernetes' own, its metrics have the requests, and upstream's proxy is measured beside; without it, the
//! server is that of the tests, whose processor time is not known. The figures are for one node: `deploy/FLEET.md` has the sums.
//!
//! The costs that the server has without nodes are subtracted: while it is idle, for the writing of the changes, and for its own start.
//! Nodes can connect only after that start.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::address;
use crate::measure::cpu_time;
use crate::peer::control_plane::{ControlPlane, Garbage, SERVER_ON_SWITCH, Switch};
use crate::peer::{ENDPOINTS, FIRST, host, objects, programs};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Format, Scheme};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects as own;
use crate::support::plan::NODE;
use crate::support::proxy::{Proxy, binary};
use crate::table::Table;
use crate::wait_for_idle;

/// The kinds that a proxy asks for, as the metrics of an API server name them.
const KINDS: [&str; 4] = ["services", "endpointslices", "nodes", "servicecidrs"];
const STARTED_WITHIN: Duration = Duration::from_secs(300);
/// How long the server of the tests is away: longer than a node goes on with its old watch.
const AWAY: Duration = Duration::from_secs(6);
/// How long a server is busy with its own start.
const AFTER_START: Duration = Duration::from_secs(15);
/// For how long an idle server is measured.
const IDLE: Duration = Duration::from_secs(10);
/// How long nodes have for what they do after a change, and after the server is back: upstream waits for up to a minute.
const AFTER_CHANGES: Duration = Duration::from_secs(3);
const AFTER_RETURN: Duration = Duration::from_secs(75);
/// The changes of endpoints, and the pause after each.
const CHANGES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);
/// Refuses connections of nodes, as if there were no server.
const DOOR: &str = "table ip door { chain input { type filter hook input priority 0;
    iifname nodes tcp dport 6443 reject with tcp reset; }; }";
const LOOK: Duration = Duration::from_millis(20);

/// The size of the measurement.
struct Size {
    services: u32,
    ours: usize,
    upstreams: usize,
}

/// What something cost the server, in total.
#[derive(Clone, Copy)]
struct Cost {
    requests: f64,
    bytes: f64,
    /// `None` if the server is a thread of this process.
    cpu: Option<Duration>,
    /// The time over which nine tenths of the bytes were sent.
    spread: Duration,
}

/// Adds the rows; `quick` has fewer processes and Services.
pub(crate) fn rows(table: &mut Table, quick: bool) {
    let size = if quick {
        Size { services: 100, ours: 8, upstreams: 2 }
    } else {
        Size { services: 1_000, ours: 50, upstreams: 5 }
    };
    let control = host();
    let switch = Switch::new(&control);
    let nodes: Vec<Namespace> = (0..size.ours).map(|_| Namespace::new("fleet")).collect();
    nodes.iter().for_each(|node| switch.connect(node));
    let peer = env::var_os("BENCH_PEER").is_some();
    control.enter(|| {
        if peer {
            let programs = programs(&["kube-proxy", "kube-apiserver", "etcd"]);
            let plane = ControlPlane::start(&control, &programs, Garbage::Collected);
            plane.create(objects(0..size.services, ENDPOINTS));
            let mut server = Server::Real(Box::new(plane));
            measure(table, &mut server, &nodes, &size, "ours", &binary());
            measure(table, &mut server, &nodes[..size.upstreams], &size, "upstream", &programs.join("kube-proxy"));
        } else {
            let server = ApiServer::start_at(Ipv4Addr::new(10, 255, 0, 1), Scheme::Http, Format::Protobuf);
            server.apply(&[own::node(), own::service_cidr()]);
            server.apply(&objects(0..size.services, ENDPOINTS));
            server.keep_lists();
            measure(table, &mut Server::Tests(Box::new(server)), &nodes, &size, "ours", &binary());
        }
    });
}

/// Measures a fleet of one program, a process on each node, and adds its rows.
fn measure(table: &mut Table, server: &mut Server<'_>, nodes: &[Namespace], size: &Size, who: &str, binary: &Path) {
    let kubeconfig = server.kubeconfig();
    let mut proxies: Vec<Proxy<'_>> = nodes.iter().map(|node| Proxy::with_api(node, &config(), &kubeconfig)).collect();
    proxies.iter_mut().for_each(|proxy| proxy.set_binary(binary));
    wait_for_idle();
    let idle = server.idle();
    let unwatched = cost(server, idle, |server| changes(server, size, 0));
    let start = Instant::now();
    let mut took = Duration::ZERO;
    let started = cost(server, idle, |_| {
        proxies.iter_mut().for_each(Proxy::spawn);
        proxies.iter().for_each(wait_until_synced);
        took = start.elapsed();
        sleep(AFTER_CHANGES);
    });
    let changed = cost(server, idle, |server| changes(server, size, 1)).less(unwatched);
    server.restart_behind_a_closed_door();
    let idle = server.idle();
    let returned = cost(server, idle, |server| {
        server.open_the_door();
        sleep(AFTER_RETURN);
    });
    proxies.iter_mut().for_each(|proxy| _ = proxy.kill());
    nodes.iter().for_each(crate::process::delete_rules);
    let what = |phase: &str| format!("fleet, {phase}, {} x 10, {who}", size.services);
    let count = nodes.len();
    table.text(&what("processes"), &count.to_string(), "");
    table.time(&what("until the last has its rules"), took, "");
    print(table, &what("start of a node"), started, per(count));
    print(table, &what("a change of an endpoint for a node"), changed, per(count) / f64::from(CHANGES));
    print(table, &what("a node after a restart of the API server"), returned, per(count));
    table.time("  time over which nine tenths of the bytes of all were sent", returned.spread, "");
}

/// Changes endpoints one after the other; `round` makes the changes differ from those of the round before.
fn changes(server: &mut Server<'_>, size: &Size, round: u32) {
    for n in 0..CHANGES {
        server.change(n % size.services, n / size.services + round);
        sleep(PAUSE);
    }
    sleep(AFTER_CHANGES);
}

/// Returns the share of one of `count`.
fn per(count: usize) -> f64 {
    1.0 / f64::from(u32::try_from(count).expect("a few"))
}

/// Adds the share of a cost.
fn print(table: &mut Table, what: &str, cost: Cost, share: f64) {
    table.amount(what, cost.bytes * share / 1e3, "kB");
    table.amount("  requests", cost.requests * share, "requests");
    if let Some(cpu) = cost.cpu {
        table.time("  processor time of the API server", cpu.mul_f64(share), "");
    }
}

impl Cost {
    /// Returns this cost without that of the same work without nodes.
    fn less(self, other: Self) -> Self {
        let cpu = self.cpu.zip(other.cpu).map(|(this, other)| this.saturating_sub(other));
        Self { requests: (self.requests - other.requests).max(0.0), cpu, ..self }
    }
}

/// Returns what the server spends while `work` runs, without what it spends when idle, by its processor time in a second.
fn cost(server: &mut Server<'_>, idle: f64, work: impl FnOnce(&mut Server<'_>)) -> Cost {
    let (requests, cpu, start) = (server.requests(), server.cpu(), Instant::now());
    let over = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        // A new thread is in the namespace of this one.
        let looking = scope.spawn(|| sent_over_time(&over));
        work(server);
        over.store(true, Ordering::Relaxed);
        looking.join().expect("it only reads")
    });
    let own = start.elapsed().mul_f64(idle);
    Cost {
        requests: server.requests() - requests,
        bytes: sent.last().map_or(0.0, |last| last.1),
        cpu: server.cpu().zip(cpu).map(|(after, before)| after.saturating_sub(before).saturating_sub(own)),
        spread: spread(&sent),
    }
}

/// Returns how many bytes the bridge sent until each of many moments.
fn sent_over_time(over: &AtomicBool) -> Vec<(Duration, f64)> {
    let (start, first) = (Instant::now(), sent());
    let mut found = Vec::new();
    while !over.load(Ordering::Relaxed) {
        found.push((start.elapsed(), sent() - first));
        sleep(LOOK);
    }
    found.push((start.elapsed(), sent() - first));
    found
}

/// Returns the time between the first and the last twentieth of the bytes.
fn spread(sent: &[(Duration, f64)]) -> Duration {
    let all = sent.last().map_or(0.0, |last| last.1);
    let reached = |share: f64| sent.iter().find(|(_, bytes)| *bytes >= all * share).map_or(Duration::ZERO, |at| at.0);
    reached(0.95).saturating_sub(reached(0.05))
}

/// Returns how many bytes the bridge of this namespace has sent to nodes (`/proc/net/dev`).
fn sent() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").expect("/proc is there");
    let prefix = format!("{}:", Switch::BRIDGE);
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&prefix)).unwrap_or_default();
    line.split_whitespace().nth(8).and_then(|field| field.parse().ok()).unwrap_or_default()
}

/// Waits until a proxy, ours or upstream's, says on its metrics page that it has synced.
fn wait_until_synced(proxy: &Proxy<'_>) {
    const SYNCED: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
    let end = Instant::now() + STARTED_WITHIN;
    let has_synced = || proxy.series(SYNCED).iter().any(|time| *time > 0.0);
    while !has_synced() {
        assert!(Instant::now() < end, "a proxy has no rules after {STARTED_WITHIN:?}:\n{}", proxy.log());
        sleep(Duration::from_millis(100));
    }
}

/// Returns the configuration of a node's proxy, the same for both programs.
fn config() -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "hostnameOverride": NODE, "clusterCIDR": "11.0.0.0/8", "clientConnection": {},
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}

/// The API server that the nodes watch.
enum Server<'a> {
    Real(Box<ControlPlane<'a>>),
    Tests(Box<ApiServer>),
}

impl Server<'_> {
    fn kubeconfig(&self) -> PathBuf {
        match self {
            Self::Real(plane) => plane.kubeconfig_for(SERVER_ON_SWITCH),
            Self::Tests(server) => server.kubeconfig(&json!({})),
        }
    }

    fn cpu(&self) -> Option<Duration> {
        match self {
            Self::Real(plane) => Some(cpu_time(&plane.server().to_string())),
            Self::Tests(_) => None,
        }
    }

    /// Returns how many lists, watches and reads of the kinds of a proxy have begun.
    fn requests(&self) -> f64 {
        match self {
            Self::Real(plane) => begun(&plane.text("/metrics")),
            Self::Tests(server) => Resource::ALL.iter().map(|kind| server.requests_for(*kind).len()).map(count).sum(),
        }
    }

    /// Replaces the last endpoint of a Service; `turn` makes its address another one than before.
    fn change(&mut self, service: u32, turn: u32) {
        let mut slice = objects(service..service + 1, ENDPOINTS).pop().expect("a Service and its slice");
        let last = slice["endpoints"].as_array_mut().and_then(|endpoints| endpoints.last_mut()).expect("ten endpoints");
        last["addresses"] = json!([address(FIRST + service, 14 + turn % 2)]);
        match self {
            Self::Real(plane) => {
                let name = slice["metadata"]["name"].as_str().expect("a name");
                let path = format!("/apis/discovery.k8s.io/v1/namespaces/bench/endpointslices/{name}");
                plane.patch(&path, &json!({ "endpoints": slice["endpoints"] }));
            }
            Self::Tests(server) => server.apply(&[slice]),
        }
    }

    /// Ends the server, and starts it again without the history of changes. Nodes get no connection until [`Server::open_the_door`], so
    /// that the server's own start is not among the costs of nodes.
    fn restart_behind_a_closed_door(&mut self) {
        match self {
            Self::Real(plane) => {
                nft::load(plane.namespace(), DOOR);
                plane.restart_server(Signal::TERM);
                sleep(AFTER_START);
            }
            Self::Tests(server) => {
                server.close();
                server.compact();
                sleep(AWAY);
            }
        }
    }

    fn open_the_door(&mut self) {
        match self {
            Self::Real(plane) => nft::load(plane.namespace(), "delete table ip door"),
            Self::Tests(server) => server.open(),
        }
    }

    /// Returns the processor time of the server in a second while nothing happens.
    fn idle(&self) -> f64 {
        let before = self.cpu();
        sleep(IDLE);
        let spent = self.cpu().zip(before).map_or(Duration::ZERO, |(after, before)| after.saturating_sub(before));
        spent.as_secs_f64() / IDLE.as_secs_f64()
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

/// Returns the requests that a server's metrics have for the kinds of a proxy: those that have ended, and the watches that are open.
fn begun(metrics: &str) -> f64 {
    let of_kind = |line: &&str| KINDS.iter().any(|kind| line.contains(&format!("resource=\"{kind}\"")));
    let reads = |line: &&str| ["LIST", "WATCH", "GET"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")));
    let counts = |line: &&str| {
        line.starts_with("apiserver_request_total{") || line.starts_with("apiserver_longrunning_requests{")
    };
    let lines = metrics.lines().filter(counts).filter(of_kind).filter(reads);
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

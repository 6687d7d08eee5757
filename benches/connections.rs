//! Measures the time to connect to a Service, by the number of Services and by which of them was programmed first or last.
//!
//! A client in a pod connects through a node to a pod of another node, all in network namespaces joined by veth pairs (a *world*). Each
//! kind of rules and each number of Services has its own world. The kinds are this program's layouts, with `BENCH_PEER` upstream's modes, a
//! single rule that translates, and no rule at all. All worlds exist at the same time and are measured in turns, in blocks of connections:
//! a machine that is slower for a while then slows all of them. The measured time is that of `connect(2)`, from the SYN to its answer.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};
use std::{env, io};

use rules::ruleset::Layout;
use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

use crate::cluster::{Shape, address, cluster_ip};
use crate::figures::Point;
use crate::measure::{Bench, permille};
use crate::peer::control_plane::{ControlPlane, Garbage, SERVER_ON_SWITCH, Switch};
use crate::peer::{FIRST, host, objects, programs};
use crate::support::netns::Namespace;
use crate::support::plan::{CLUSTER_CIDR, Family, NODE};
use crate::support::proxy::Proxy;
use crate::support::wiring::{attach, new_node};
use crate::support::{cluster, nft};
use crate::table::Table;
use crate::wait_for_idle;

const ENDPOINTS: u32 = 10;
const PORT: u16 = 8080;
/// The range of all endpoint addresses.
const PODS: &str = "11.0.0.0/8";
/// Connections in a block, after [`UNCOUNTED`] connections that are not measured. These reach each endpoint at least once, because the
/// first connection to an endpoint after a pause takes longer, and would be more than 1 % of all connections and so change the p99.
const BLOCK: usize = 250;
const UNCOUNTED: usize = 100;
/// Blocks of each world and Service: 10,000 connections in all.
const ROUNDS: usize = 40;
/// The largest number of Services measured for layout `chains` with a chain for each endpoint: with 20,000 its first sync takes a minute.
const MOST_CHAINS: u32 = 5_000;
/// How long upstream's proxy may take to program all Services.
const PROGRAMMED_WITHIN: Duration = Duration::from_secs(300);
const PROGRAMMED_WITHIN_QUICK: Duration = Duration::from_secs(60);
/// The series with which the others are compared.
const ONE_RULE: &str = "one rule that translates";

/// The modes of upstream's proxy.
const MODES: [&str; 3] = ["nftables", "iptables", "ipvs"];

/// A world with rules, and the Services to which its client connects.
struct Path {
    series: String,
    /// The number of Services; `None` where there are no Services.
    services: Option<u32>,
    world: World,
    targets: Vec<(&'static str, SocketAddr)>,
}

/// Adds the rows; `quick` has fewer Services and connections.
pub(crate) fn rows(table: &mut Table, quick: bool) {
    let sizes: &[u32] = if quick { &[100, 1_000] } else { &[100, 1_000, 5_000, 20_000] };
    let mut paths = vec![plain("no proxy", false), plain(ONE_RULE, true)];
    for (series, layout) in [
        ("layout maps", Layout::Maps),
        ("layout chains", Layout::Chains),
        ("layout chains without chains of endpoints", Layout::ServiceChains),
    ] {
        for &services in sizes {
            if layout == Layout::Chains && services > MOST_CHAINS {
                table.text(&name(series, Some(services)), "n/a: takes a minute to program", "");
            } else {
                paths.push(ours(series, layout, services));
            }
        }
    }
    if env::var_os("BENCH_PEER").is_some() {
        upstream(table, &mut paths, sizes, if quick { PROGRAMMED_WITHIN_QUICK } else { PROGRAMMED_WITHIN });
    }
    wait_for_idle();
    let times = in_turns(&paths, if quick { 4 } else { ROUNDS });
    print(table, &paths, &times);
}

/// Returns the name of a series in plots.
fn in_plots(series: &str) -> &str {
    match series {
        "layout maps" => "this program",
        "layout chains without chains of endpoints" => "chains of Services only",
        other => other,
    }
}

fn name(series: &str, services: Option<u32>) -> String {
    services.map_or_else(|| format!("connect, {series}"), |services| format!("connect, {series}, {services} Services"))
}

/// Measures all paths in turns. Returns the times of each path and Service, by their indices.
fn in_turns(paths: &[Path], rounds: usize) -> BTreeMap<(usize, usize), Vec<Duration>> {
    let mut times: BTreeMap<(usize, usize), Vec<Duration>> = BTreeMap::new();
    let turns: Vec<(usize, usize)> = paths
        .iter()
        .enumerate()
        .flat_map(|(path, of)| (0..of.targets.len()).map(move |target| (path, target)))
        .collect();
    for round in 0..rounds {
        // Each round begins with another path, so that none always follows the same one.
        for turn in 0..turns.len() {
            let (path, target) = turns[(turn + round * 7) % turns.len()];
            let to = paths[path].targets[target].1;
            let measured = paths[path].world.client.enter(|| block(to));
            times.entry((path, target)).or_default().extend(measured.expect("the Service answers"));
        }
    }
    times
}

/// Returns the times of a block of connections, each of which is reset at once.
fn block(to: SocketAddr) -> io::Result<Vec<Duration>> {
    let times: io::Result<Vec<Duration>> =
        (0..UNCOUNTED + BLOCK).map(|_| connect(to, Duration::from_secs(5))).collect();
    Ok(times?.split_off(UNCOUNTED))
}

/// Returns the time of one connection.
pub(crate) fn connect(to: SocketAddr, patience: Duration) -> io::Result<Duration> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // A reset leaves no connection in TIME_WAIT.
    socket.set_linger(Some(Duration::ZERO))?;
    // Bounds the wait of a blocking `connect`.
    socket.set_write_timeout(Some(patience))?;
    let start = Instant::now();
    socket.connect(&to.into())?;
    Ok(start.elapsed())
}

fn print(table: &mut Table, paths: &[Path], times: &BTreeMap<(usize, usize), Vec<Duration>>) {
    let all: Vec<Vec<Duration>> = (0..paths.len())
        .map(|path| times.range((path, 0)..(path + 1, 0)).flat_map(|(_, times)| times.iter().copied()).collect())
        .collect();
    for (n, path) in paths.iter().enumerate() {
        let what = name(&path.series, path.services);
        if path.targets.len() > 1 {
            for (target, (which, _)) in path.targets.iter().enumerate() {
                // The plots show the Service that was programmed last.
                let point = (*which == "last").then_some(path);
                quantiles(table, &format!("{what}, {which}"), &times[&(n, target)], point);
            }
        }
        let point = (path.targets.len() == 1).then_some(path);
        quantiles(table, &format!("{what}, all"), &all[n], point);
    }
    ratios(table, paths, &all);
}

/// Compares the greatest number of Services with the least, and with one rule that translates.
fn ratios(table: &mut Table, paths: &[Path], all: &[Vec<Duration>]) {
    let sizes = || paths.iter().filter_map(|path| path.services);
    let (Some(least), Some(most)) = (sizes().min(), sizes().max()) else { return };
    let smallest = paths.iter().filter(|path| path.services == Some(least));
    for series in smallest.map(|path| &*path.series) {
        for (quantile, rank) in [("p50", 500), ("p99", 990)] {
            let of = |series: &str, services: Option<u32>| {
                let at = paths.iter().position(|path| path.series == series && path.services == services);
                at.map(|at| permille(&all[at], rank))
            };
            let goals = if (series, quantile) == ("layout maps", "p99") { ["1.1", "1.2"] } else { [""; 2] };
            let (Some(few), Some(many)) = (of(series, Some(least)), of(series, Some(most))) else { continue };
            table.ratio(
                &format!("connect, {series}: {quantile} at {most} Services against {least}"),
                many,
                few,
                goals[0],
            );
            if let Some(one) = of(ONE_RULE, None) {
                table.ratio(&format!("  against {ONE_RULE}"), many, one, goals[1]);
            }
        }
    }
}

/// Adds the median, p95 and p99; with a path, as points of the plots.
fn quantiles(table: &mut Table, what: &str, times: &[Duration], path: Option<&Path>) {
    table.text(what, &format!("{} connections", times.len()), "");
    for (quantile, rank) in [("p50", 500), ("p95", 950), ("p99", 990)] {
        let point = path.map(|path| Point {
            plot: format!("connect-{quantile}"),
            series: in_plots(&path.series).to_owned(),
            services: path.services.unwrap_or(Point::ALWAYS),
        });
        table.time_at(point, &format!("  {quantile}"), permille(times, rank), "");
    }
}

/// Returns a world without rules, or with one rule that translates the cluster IP of one Service.
fn plain(series: &str, translates: bool) -> Path {
    const SERVICES: u32 = 10;
    let last = SERVICES - 1;
    let (ip, pod) = (cluster_ip(last), address(last, 0));
    let world = World::new();
    if translates {
        let rule = format!("ip daddr {ip} tcp dport 80 dnat to {pod}:{PORT}");
        let chain = format!("chain one {{ type nat hook prerouting priority -100; {rule}; }}");
        nft::load(&world.node, &format!("table ip one {{ {chain}; }}"));
    }
    let target: SocketAddr = if translates { (ip, 80).into() } else { (pod, PORT).into() };
    Path { series: series.to_owned(), services: None, world, targets: vec![("only", target)] }
}

fn ours(series: &str, layout: Layout, services: u32) -> Path {
    let world = World::new();
    world.node.enter(|| drop(Bench::new(&cluster::config(), layout, Shape::plain(services, ENDPOINTS))));
    let targets = named([0, services / 2, services - 1].map(cluster_ip));
    Path { series: series.to_owned(), services: Some(services), world, targets }
}

/// Names the Services that were programmed first, in the middle and last.
fn named(ips: [Ipv4Addr; 3]) -> Vec<(&'static str, SocketAddr)> {
    ["first", "middle", "last"].into_iter().zip(ips.map(|ip| (ip, 80).into())).collect()
}

/// A node, a client on it, and pods behind it.
pub(crate) struct World {
    node: Namespace,
    client: Namespace,
    /// Stops accepting before its namespace is deleted.
    _pods: Pods,
    _remote: Namespace,
}

impl World {
    /// Makes a world in which each endpoint of each Service accepts connections.
    pub(crate) fn new() -> Self {
        let node = new_node([Family::V4.node()]);
        let places = [("remote".to_owned(), Vec::new()), ("client".to_owned(), vec![Family::V4.shell()])];
        let mut spaces = attach(&node, 1, &places);
        let (client, remote) = (spaces.remove(1), spaces.remove(0));
        remote.ip(&[format!("route add local {PODS} dev lo")]);
        node.ip(&[format!("route add {PODS} via 169.254.1.2 dev to-remote")]);
        // Connections that were reset leave the table of connections soon, so that it stays small for all.
        node.set_sysctl("netfilter/nf_conntrack_tcp_timeout_close", "1");
        Self { _pods: Pods::start(&remote), node, client, _remote: remote }
    }

    pub(crate) fn node(&self) -> &Namespace {
        &self.node
    }

    pub(crate) fn client(&self) -> &Namespace {
        &self.client
    }
}

/// Has upstream's proxy program its rules from a real API server, for each size and mode, and adds the paths. Ends the proxy once its
/// rules are there; the rules stay. Adds a row with the reason for what cannot be measured.
fn upstream(table: &mut Table, paths: &mut Vec<Path>, sizes: &[u32], limit: Duration) {
    let programs = programs(&["kube-proxy", "kube-apiserver", "etcd"]);
    let control = host();
    let switch = Switch::new(&control);
    control.enter(|| {
        let plane = ControlPlane::start(&control, &programs, Garbage::Collected);
        let mut loaded = 0;
        for &services in sizes {
            plane.create(objects(loaded..services, ENDPOINTS));
            loaded = services;
            for mode in MODES {
                let series = format!("upstream {mode}");
                let binary = programs.join("kube-proxy");
                match program(&plane, &switch, mode, services, &binary, limit) {
                    Ok((took, world, targets)) => {
                        let what = format!("{}, until all were programmed", name(&series, Some(services)));
                        table.time(&what, took, "");
                        paths.push(Path { series, services: Some(services), world, targets });
                    }
                    Err(why) => table.text(&name(&series, Some(services)), &format!("n/a: {why}"), ""),
                }
            }
        }
    });
}

type Programmed = (Duration, World, Vec<(&'static str, SocketAddr)>);

/// Lets upstream's proxy program a world in a mode.
///
/// # Errors
/// Returns in words why there are no rules.
fn program(
    plane: &ControlPlane<'_>,
    switch: &Switch<'_>,
    mode: &str,
    services: u32,
    binary: &FilePath,
    limit: Duration,
) -> Result<Programmed, String> {
    let world = World::new();
    if mode == "ipvs" && !has_ipvs(&world.node) {
        return Err("the kernel has no ip_vs".to_owned());
    }
    switch.connect(&world.node);
    let mut proxy = Proxy::with_api(&world.node, &config(mode), &plane.kubeconfig_for(SERVER_ON_SWITCH));
    proxy.set_binary(binary);
    proxy.spawn();
    let took = programmed(&mut proxy, &world, services, limit);
    proxy.kill();
    drop(proxy);
    let by_rules = if mode == "iptables" { by_rules(&world.node) } else { None };
    let targets = by_rules.unwrap_or_else(|| named(chosen(services).map(cluster_ip)));
    Ok((took?, world, targets))
}

/// Returns the numbers of the Services that were created first, in the middle and last; the API server has others before them.
fn chosen(services: u32) -> [u32; 3] {
    [0, services / 2, services - 1].map(|n| FIRST + n)
}

/// Waits until the client reaches the Services that were created first, in the middle and last. Returns the time that it took.
///
/// # Errors
/// Returns in words why the rules are not there.
fn programmed(proxy: &mut Proxy<'_>, world: &World, services: u32, limit: Duration) -> Result<Duration, String> {
    let start = Instant::now();
    for ip in chosen(services).map(cluster_ip) {
        while world.client.enter(|| connect((ip, 80).into(), Duration::from_millis(100))).is_err() {
            if !proxy.is_running() {
                return Err(format!("upstream's proxy ended: {}", proxy.log().lines().last().unwrap_or_default()));
            }
            if start.elapsed() > limit {
                return Err(format!("no rules within {} s", limit.as_secs()));
            }
            sleep(Duration::from_millis(100));
        }
    }
    let took = start.elapsed();
    // The rules of one transaction are there now; a proxy that writes several has time for the rest.
    sleep(Duration::from_secs(2));
    Ok(took)
}

/// Returns the Services whose rules stand first, in the middle and last in the chain that each packet of mode iptables walks.
fn by_rules(node: &Namespace) -> Option<Vec<(&'static str, SocketAddr)>> {
    let output = node.command("iptables-save").args(["-t", "nat"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rules = text.lines().filter(|line| line.starts_with("-A KUBE-SERVICES ") && line.contains("bench/web-"));
    let ips: Vec<Ipv4Addr> =
        rules.filter_map(|line| line.split_once("-d ")?.1.split_once("/32")?.0.parse().ok()).collect();
    let (first, last) = (ips.first()?, ips.last()?);
    Some(named([*first, ips[ips.len() / 2], *last]))
}

/// Returns whether the kernel has IPVS in a namespace.
fn has_ipvs(node: &Namespace) -> bool {
    node.command("ipvsadm").arg("-Ln").output().is_ok_and(|output| output.status.success())
}

/// Returns upstream's configuration for a mode.
fn config(mode: &str) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": mode, "hostnameOverride": NODE, "clusterCIDR": CLUSTER_CIDR, "clientConnection": {},
        "detectLocalMode": "ClusterCIDR", "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}

/// Accepts connections to [`PORT`] on each address of a namespace, and closes them.
struct Pods {
    listener: Arc<TcpListener>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pods {
    /// Listens with a backlog for a whole block: with a full one, a client would try again only after a second.
    fn start(namespace: &Namespace) -> Self {
        let listen = || -> io::Result<TcpListener> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into())?;
            socket.listen(4_096)?;
            Ok(socket.into())
        };
        let listener = Arc::new(namespace.enter(listen).expect("the pods listen"));
        let over = Arc::new(AtomicBool::new(false));
        let (accepting, ended) = (Arc::clone(&listener), Arc::clone(&over));
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                drop(accepting.accept());
            }
        });
        Self { listener, over, thread: Some(thread) }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the thread, which waits for a connection.
        let woken = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            drop(thread.join());
        }
    }
}

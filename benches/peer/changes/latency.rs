//! From a change to a packet while the cluster changes: how long it takes from the API server's answer to a change of one Service's endpoint
//! until a connection reaches the new endpoint, while other Services change at a fixed rate.
//!
//! A second client watches the same object: the time until it has the event is the API server's, whatever the proxy does.
//!
//! This program runs with the minimum sync period that it chooses, and with one second, which is upstream's default; upstream's proxy with
//! its default, at both rates. The API server is not restarted here.

use std::iter;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::http::Request;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::super::control_plane::{ControlPlane, Garbage, client};
use super::super::{ENDPOINTS, PODS, Peers, SLICE, Who, answered, config, host, probe as probed, programs, wait_for};
use super::cluster::{App, NETWORK, PORTS};
use super::probes::come_first;
use super::writers::{Load, write};
use super::{SERVICES, Stop, rcu};
use crate::measure::{cpu_time_with_children, permille};
use crate::support::netns::Namespace;
use crate::support::proxy::{Proxy, binary};
use crate::support::server::Server;
use crate::table::Table;

/// The pause between two changes of the probed Service.
const PAUSE: Duration = Duration::from_millis(37);
/// The bench fails if no packet reaches the new endpoint within this time after a change.
const LIMIT: Duration = Duration::from_secs(60);

/// The metric with the number of syncs, of each IP family.
const SYNCS: &str = "kubeproxy_sync_proxy_rules_duration_seconds_count";

/// A run: the proxy, its `minSyncPeriod` if that is set, the changes a second, and the goals for median, p99 and longest time.
struct Case {
    who: Who,
    period: Option<&'static str>,
    rate: u32,
    goals: [&'static str; 3],
}

const CASES: [Case; 5] = [
    Case { who: Who::Ours, period: None, rate: 100, goals: ["1 ms", "10 ms", ""] },
    Case { who: Who::Ours, period: None, rate: 1_000, goals: ["", "10 ms", ""] },
    Case { who: Who::Ours, period: Some("1s"), rate: 1_000, goals: ["", "", "1.01 s"] },
    Case { who: Who::Upstream, period: None, rate: 100, goals: [""; 3] },
    Case { who: Who::Upstream, period: None, rate: 1_000, goals: [""; 3] },
];

/// Adds rows for each case; each takes `time` and about half a minute more.
pub(crate) fn rows(table: &mut Table, time: Duration) {
    let programs = programs(&["kube-proxy", "kube-apiserver", "etcd"]);
    for (case, seed) in CASES.iter().zip(1..) {
        let node = host();
        node.ip(&[format!("route add local {NETWORK} dev lo")]);
        let load = Load { rate: case.rate, time, rolls: false, seed };
        node.enter(|| one(table, &node, &programs, case, load));
    }
}

fn one(table: &mut Table, node: &Namespace, programs: &Path, case: &Case, load: Load) {
    let _pods = Server::start(node, &[IpAddr::V4(Ipv4Addr::UNSPECIFIED)], &PORTS);
    let plane = ControlPlane::start(node, programs, Garbage::CollectedSeldom);
    let endpoints = u8::try_from(ENDPOINTS).expect("a few");
    let apps: Vec<App> = (0..SERVICES).map(|number| App::lasting(number, endpoints)).collect();
    plane.create(apps.iter().flat_map(App::create).chain(probed()).collect());
    let mut config = config(case.who);
    if let Some(period) = case.period {
        config["nftables"] = json!({ "minSyncPeriod": period });
    }
    let mut proxy = Proxy::with_api(node, &config, &plane.kubeconfig());
    proxy.set_binary(&if case.who == Who::Upstream { programs.join("kube-proxy") } else { binary() });
    proxy.spawn();
    wait_for(PODS[0], Instant::now());
    let cpu = || cpu_time_with_children(&proxy.pid().to_string());
    let peers = Peers { node, plane: &plane, programs };
    // A packet may pass before the first sync is counted.
    let (before, syncs_before) = (cpu(), syncs(&proxy).unwrap_or_default());
    let stop = &AtomicBool::new(false);
    let (times, made, waits) = thread::scope(|scope| {
        let writing = scope.spawn(move || write(apps, load));
        let watching = scope.spawn(move || watch(load.time));
        let looking = scope.spawn(|| rcu::look(proxy.pid(), stop));
        let stopped = Stop(stop);
        let times = scope.spawn(|| peers.changes(load.time)).join().expect("the measurement does not panic");
        let seen = watching.join().expect("the watching client does not panic");
        drop(stopped);
        let waits = looking.join().expect("looking does not panic");
        (since_seen(&times, &seen), writing.join().expect("a writer does not panic"), waits)
    });
    let per_second = |count: f64| count / load.time.as_secs_f64();
    let share = per_second((cpu() - before).as_secs_f64());
    let syncs = per_second(syncs(&proxy).expect("the page has the number of syncs") - syncs_before);
    proxy.stop();
    let changes = made.random / load.time.as_secs().max(1);
    print(table, case, &Measured { changes, times, share, syncs, waits: waits.share() });
}

/// What was measured of a case.
struct Measured {
    /// Changes of other objects a second.
    changes: u64,
    times: Vec<Time>,
    /// The processor time of the proxy as a share of one processor.
    share: f64,
    /// Syncs a second.
    syncs: f64,
    /// The share of the time in which the proxy waited for RCU.
    waits: f64,
}

fn print(table: &mut Table, case: &Case, measured: &Measured) {
    let Measured { changes, times, share, syncs, waits } = measured;
    let period = case.period.map(|period| format!(", minSyncPeriod {period}")).unwrap_or_default();
    let what = format!("{}{period}, {} changes a second", case.who.name(), case.rate);
    table.text(&format!("{what}: changes made a second"), &changes.to_string(), &case.rate.to_string());
    let [median, p99, longest] = case.goals;
    let answered: Vec<Duration> = times.iter().filter_map(|time| time.to_packet).collect();
    let seen: Vec<Duration> = times.iter().filter_map(|time| time.to_event).collect();
    let own: Vec<Duration> = times.iter().filter_map(Time::of_the_proxy).collect();
    let ranks = [("median", 500, median), ("p99", 990, p99), ("longest", 1_000, longest)];
    for (what, times, has_goal) in [
        ("one endpoint, from the API server's answer to a packet", &answered, true),
        ("from the API server's answer until another client has the event", &seen, false),
        ("from that event to a packet", &own, false),
    ] {
        for (row, rank, goal) in ranks {
            table.time(&format!("  {what}, {row}"), permille(times, rank), if has_goal { goal } else { "" });
        }
    }
    table.text("  of so many", &answered.len().to_string(), "");
    table.text("  processor time of the proxy, share of one CPU", &format!("{:.0} %", share * 100.0), "");
    table.text("  syncs a second", &format!("{syncs:.1}"), "");
    table.text("  waits of the proxy for RCU in the kernel, share of the time", &format!("{:.1} %", waits * 100.0), "");
    if answered.len() < times.len() {
        table.fail(&format!("{what}: a change was not in force after {LIMIT:?}"));
    }
}

/// Returns how many syncs a proxy has made, as its metrics say; `None` before the first.
fn syncs(proxy: &Proxy<'_>) -> Option<f64> {
    proxy.series(SYNCS).into_iter().reduce(f64::max)
}

impl Peers<'_> {
    /// Changes the endpoint of the probed Service again and again. Returns the time of each change; `None` for one that is not in force
    /// within [`LIMIT`].
    fn changes(&self, time: Duration) -> Vec<Changed> {
        come_first();
        let end = Instant::now() + time;
        let mut times = Vec::new();
        for pod in PODS.iter().rev().cycle().take_while(|_| Instant::now() < end) {
            sleep(PAUSE);
            self.lead_to(*pod);
            let begin = Instant::now();
            times.push(Changed { pod: *pod, begin, to_packet: answered(*pod, begin, LIMIT) });
        }
        times
    }
}

/// How long it took from the API server's answer to a change.
struct Time {
    /// Until a connection reached the new endpoint; `None` if none did within [`LIMIT`].
    to_packet: Option<Duration>,
    /// Until another client had the event; `None` if it did not get the event before it stopped.
    to_event: Option<Duration>,
}

impl Time {
    /// Returns the time between the two; 0 if the proxy was faster than the other client.
    fn of_the_proxy(&self) -> Option<Duration> {
        Some(self.to_packet?.saturating_sub(self.to_event?))
    }
}

/// A change of the probed Service, and how long it took until a connection reached its endpoint.
struct Changed {
    pod: Ipv4Addr,
    /// When the API server had answered.
    begin: Instant,
    to_packet: Option<Duration>,
}

/// Adds to each change when the other client had its event, which came after the answer to the change before.
fn since_seen(changes: &[Changed], seen: &[(Ipv4Addr, Instant)]) -> Vec<Time> {
    let before = iter::once(None).chain(changes.iter().map(|change| Some(change.begin)));
    let time = |(change, before): (&Changed, Option<Instant>)| {
        let event = seen.iter().find(|(pod, at)| *pod == change.pod && before.is_none_or(|before| *at > before));
        Time { to_packet: change.to_packet, to_event: event.map(|(_, at)| at.saturating_duration_since(change.begin)) }
    };
    changes.iter().zip(before).map(time).collect()
}

/// Watches the slice of the probed Service. Returns its endpoint after each change, and when the event arrived.
fn watch(time: Duration) -> Vec<(Ipv4Addr, Instant)> {
    come_first();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let (collection, name) = SLICE.rsplit_once('/').expect("a path has a name");
        let path = format!("{collection}?watch=1&fieldSelector=metadata.name%3D{name}");
        let request = Request::get(path).body(Body::from(Vec::new())).expect("a request");
        let mut body = client().await.send(request).await.expect("the API server answers").into_body();
        let (end, mut seen, mut line) = (Instant::now() + time, Vec::new(), Vec::new());
        while let Ok(Some(frame)) = timeout(end.saturating_duration_since(Instant::now()), body.frame()).await {
            for byte in frame.expect("a part of the answer").into_data().unwrap_or_default() {
                line.push(byte);
                if byte == b'\n' {
                    let at = Instant::now();
                    let event: Value = serde_json::from_slice(&line).expect("an event");
                    let pod = &event["object"]["endpoints"][0]["addresses"][0];
                    seen.extend(pod.as_str().and_then(|pod| pod.parse().ok()).map(|pod| (pod, at)));
                    line.clear();
                }
            }
        }
        seen
    })
}

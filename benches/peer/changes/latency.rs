//! From a change to a packet while the cluster changes: how long it takes from the API server's answer to a change of one Service's endpoint
//! until a connection reaches the new endpoint, while other Services change at a fixed rate.
//!
//! This program runs with the minimum sync period that it chooses, and with one second, which is upstream's default; upstream's proxy with
//! its default, at both rates. The API server is not restarted here.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::json;

use super::super::control_plane::{ControlPlane, Garbage};
use super::super::{ENDPOINTS, PODS, Peers, Who, answered, config, host, probe as probed, programs, wait_for};
use super::SERVICES;
use super::cluster::{App, NETWORK, PORTS};
use super::probes::come_first;
use super::writers::{Load, write};
use crate::measure::{cpu_time_with_children, permille};
use crate::support::netns::Namespace;
use crate::support::proxy::{Proxy, binary};
use crate::support::server::Server;
use crate::table::Table;

/// The pause between two changes of the probed Service.
const PAUSE: Duration = Duration::from_millis(37);
/// The bench fails if no packet reaches the new endpoint within this time after a change.
const LIMIT: Duration = Duration::from_secs(60);

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
    let before = cpu();
    let (times, made) = thread::scope(|scope| {
        let writing = scope.spawn(move || write(apps, load));
        let times = scope.spawn(|| peers.changes(load.time)).join().expect("the measurement does not panic");
        (times, writing.join().expect("a writer does not panic"))
    });
    let share = (cpu() - before).as_secs_f64() / load.time.as_secs_f64();
    proxy.stop();
    let period = case.period.map(|period| format!(", minSyncPeriod {period}")).unwrap_or_default();
    let what = format!("{}{period}, {} changes a second", case.who.name(), case.rate);
    let seconds = load.time.as_secs().max(1);
    table.text(&format!("{what}: changes made a second"), &(made.random / seconds).to_string(), &case.rate.to_string());
    let [median, p99, longest] = case.goals;
    let answered: Vec<Duration> = times.iter().copied().flatten().collect();
    for (row, rank, goal) in [("median", 500, median), ("p99", 990, p99), ("longest", 1_000, longest)] {
        table.time(
            &format!("  one endpoint, from the API server's answer to a packet, {row}"),
            permille(&answered, rank),
            goal,
        );
    }
    table.text("  of so many", &answered.len().to_string(), "");
    table.text("  processor time of the proxy, share of one CPU", &format!("{:.0} %", share * 100.0), "");
    if answered.len() < times.len() {
        table.fail(&format!("{what}: a change was not in force after {LIMIT:?}"));
    }
}

impl Peers<'_> {
    /// Changes the endpoint of the probed Service again and again. Returns the time of each change; `None` for one that is not in force
    /// within [`LIMIT`].
    fn changes(&self, time: Duration) -> Vec<Option<Duration>> {
        come_first();
        let end = Instant::now() + time;
        let mut times = Vec::new();
        for pod in PODS.iter().rev().cycle().take_while(|_| Instant::now() < end) {
            sleep(PAUSE);
            self.lead_to(*pod);
            times.push(answered(*pod, Instant::now(), LIMIT));
        }
        times
    }
}

//! The large clusters that users of upstream reported, with default settings: this program and upstream's, one after the other, against a
//! real API server, as in the part `peer`.
//!
//! kubernetes/kubernetes#135639 has 5,006 Services with 50 endpoints each, kubernetes/kubernetes#139513 has 45,000 with one. A measurement
//! that takes longer than [`LIMIT`] is given up, and its row says so. A start over existing rules counts as done when a change that was
//! made while no proxy ran is in force.

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::control_plane::{ControlPlane, Garbage};
use super::{ACCOUNT, CHANGES, PAUSE, PODS, PORT, Peers, Who, answered, config, host, objects, probe, programs};
use crate::measure::permille;
use crate::process::{Goals, NONE, delete_rules, memory, until_end};
use crate::support::nft;
use crate::support::proxy::{Proxy, binary};
use crate::support::server::Server;
use crate::table::Table;
use crate::wait_for_idle;

/// The reported clusters: Services, endpoints of each, and the goals for this program.
pub(crate) const REPORTED: [(u32, u32, Goals); 2] = [
    (5_006, 50, Goals { api: "0.5 s", files: "0.5 s", over_rules: "0.7 s", peak: "54 MB", verify: "0.8 s", ..NONE }),
    (45_000, 1, Goals { api: "0.5 s", files: "0.5 s", over_rules: "0.6 s", peak: "80 MB", verify: "0.6 s", ..NONE }),
];
/// The goal for one endpoint, from the API server's answer to a packet.
const CHANGE: &str = "2 ms";
/// How long a start or a change may take.
const LIMIT: Duration = Duration::from_secs(300);
/// How long the API server may take for the objects of a cluster. On two processors it takes more than 12 minutes for 45,000 Services.
const CREATED_WITHIN: Duration = Duration::from_secs(300);

/// The measurements of a proxy; `None` for what took longer than [`LIMIT`], or was not measured for that reason.
#[derive(Default)]
struct Figures {
    start: Option<Duration>,
    changes: Option<Vec<Duration>>,
    over_rules: Option<Duration>,
    peak: String,
    /// The time and the peak memory of `kube-proxy verify`, which only this program has.
    verify: Option<(Duration, String)>,
}

/// Adds the rows of each cluster; one row that says so if its objects cannot be created within [`CREATED_WITHIN`].
pub(crate) fn rows(table: &mut Table) {
    let programs = programs(&["kube-proxy", "kube-apiserver", "etcd"]);
    for (services, endpoints, goals) in REPORTED {
        let node = host();
        node.ip(&PODS.map(|pod| format!("addr add {pod}/32 dev lo")));
        nft::load(&node, ACCOUNT);
        let _pods = Server::start(&node, &PODS.map(Into::into), &[PORT]);
        node.enter(|| {
            // These objects alone take some 4 GiB of the API server, so with that limit it would do nothing but collect garbage.
            let plane = ControlPlane::start(&node, &programs, Garbage::Collected);
            plane.create(probe());
            if !plane.create_within(objects(0..services, endpoints), CREATED_WITHIN) {
                let why =
                    format!("n/a: the API server has not taken the objects within {} s", CREATED_WITHIN.as_secs());
                table.text(&format!("start to the first answered connection, {services} x {endpoints}"), &why, "");
                return;
            }
            let bench = Peers { node: &node, plane: &plane, programs: &programs };
            for who in [Who::Ours, Who::Upstream] {
                let figures = bench.reported(who);
                let what = format!("{services} x {endpoints}, {}", who.name());
                print(table, &what, &figures, if who == Who::Ours { &goals } else { &NONE });
            }
        });
    }
}

fn print(table: &mut Table, what: &str, figures: &Figures, goals: &Goals) {
    let mut time = |row: &str, time: Option<Duration>, goal: &str| match time {
        Some(time) => table.time(row, time, goal),
        None => table.text(row, &format!("over {} s", LIMIT.as_secs()), goal),
    };
    let of_changes = |share| figures.changes.as_ref().map(|times| permille(times, share));
    let goal = if goals.api.is_empty() { "" } else { CHANGE };
    time(&format!("start to the first answered connection, {what}"), figures.start, goals.api);
    time("  one endpoint, from the API server's answer to a packet, median", of_changes(500), goal);
    time("  the longest of them", of_changes(1_000), "");
    time("  start over existing rules until a change is in force", figures.over_rules, goals.over_rules);
    table.text("  peak resident memory", &figures.peak, goals.peak);
    if let Some((took, peak)) = &figures.verify {
        table.time("  kube-proxy verify", *took, goals.verify);
        table.text("    peak resident memory", peak, "");
    }
}

impl Peers<'_> {
    fn reported(&self, who: Who) -> Figures {
        self.lead_to(PODS[0]);
        let mut proxy = Proxy::with_api(self.node, &config(who), &self.plane.kubeconfig());
        proxy.set_binary(&if who == Who::Upstream { self.programs.join("kube-proxy") } else { binary() });
        wait_for_idle();
        let begin = Instant::now();
        proxy.spawn();
        let mut figures = Figures { start: answered(PODS[0], begin, LIMIT), ..Figures::default() };
        if figures.start.is_some() {
            figures.changes = PODS.iter().rev().cycle().take(CHANGES).map(|pod| self.change_within(*pod)).collect();
        }
        figures.peak = memory(proxy.pid(), "VmHWM:");
        proxy.stop();
        if figures.changes.is_some() {
            // The number of changes is even, so the rules lead to the first pod.
            self.lead_to(PODS[1]);
            wait_for_idle();
            let begin = Instant::now();
            proxy.spawn();
            figures.over_rules = answered(PODS[1], begin, LIMIT);
            figures.verify = (who == Who::Ours).then(|| self.verify(&proxy));
            proxy.stop();
        }
        delete_rules(self.node);
        figures
    }

    /// As [`Peers::change`], but gives up after [`LIMIT`].
    fn change_within(&self, pod: std::net::Ipv4Addr) -> Option<Duration> {
        sleep(PAUSE);
        self.lead_to(pod);
        answered(pod, Instant::now(), LIMIT)
    }

    fn verify(&self, proxy: &Proxy<'_>) -> (Duration, String) {
        wait_for_idle();
        let mut command = self.node.command(binary());
        command.arg("verify").arg("--config").arg(proxy.config_path()).stdout(Stdio::null());
        let start = Instant::now();
        let (status, peak) = until_end(command.spawn().expect("it can be run"));
        assert!(status.success(), "{status}");
        (start.elapsed(), peak)
    }
}

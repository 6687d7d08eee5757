//! Tests this program on one node of a cluster that changes all the time: a real API server is restarted, and etcd is compacted.
//!
//! 2,000 Services change at random 1,000 times a second for `BENCH_SECONDS`, while the API server is ended once by SIGTERM and once by
//! SIGKILL, and etcd is compacted; then each Service gets a rolling update. Meanwhile, probes connect to the Services. At the end the rules
//! must equal those that a fresh start writes, object by object and element by element, and `kube-proxy verify` must find them right. All
//! this is done for each format of the API server, on an IPv4 node in ruleset layout `maps`. A failed connection or a difference makes the
//! bench fail.

mod cluster;
pub(crate) mod latency;
mod probes;
mod rcu;
mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::control_plane::{ControlPlane, Garbage};
use super::{ENDPOINTS, Who, config, host, programs};
use crate::process::{delete_rules, resident};
use crate::support::netns::Namespace;
use crate::support::nft::{list_ruleset, normalised, without_unused_chains};
use crate::support::proxy::{Proxy, binary};
use crate::support::server::Server;
use crate::table::Table;
use cluster::{App, NETWORK, PORTS};
use probes::{Probed, come_first, probe};
use writers::{Load, Made, RATE, write};

/// The number of Services that are never deleted.
const SERVICES: u32 = 2_000;
/// The number of threads that probe Services.
const PROBES: u64 = 2;
const LOOK: Duration = Duration::from_millis(200);
/// After the last change the proxy may wait for its `minSyncPeriod`, and after an outage up to 45 s until it asks the API server again.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// The API server's formats, as `clientConnection.contentType` names them.
const FORMATS: [&str; 2] = ["application/vnd.kubernetes.protobuf", "application/json"];

/// The content of tables, object by object.
type Listing = BTreeMap<String, Vec<String>>;

/// The results of a run.
struct Seen {
    made: Made,
    probed: Vec<Probed>,
    events: Events,
    /// Resident memory of the proxy in bytes, at regular intervals.
    memory: Vec<u64>,
    peak: u64,
    /// The time from the last change until `kube-proxy verify` found nothing wrong; if that never happened, `wrong` has its last output.
    settled: Duration,
    wrong: Option<String>,
}

/// The restarts of the API server and the compactions of etcd.
#[derive(Default)]
struct Events {
    /// The time from the signal until the API server was ready again, for SIGTERM and for SIGKILL.
    away: Vec<Duration>,
    compactions: usize,
}

/// Adds rows for each format; each takes `time` and about a minute more.
pub(crate) fn rows(table: &mut Table, time: Duration) {
    let programs = programs(&["kube-apiserver", "etcd"]);
    for (format, seed) in FORMATS.into_iter().zip(1..) {
        let node = host();
        node.ip(&[format!("route add local {NETWORK} dev lo")]);
        node.enter(|| one_format(table, &node, &programs, format, time, seed));
    }
}

fn one_format(table: &mut Table, node: &Namespace, programs: &Path, format: &str, time: Duration, seed: u64) {
    let _pods = thread::scope(|scope| {
        let start = || (come_first(), Server::start(node, &[IpAddr::V4(Ipv4Addr::UNSPECIFIED)], &PORTS)).1;
        scope.spawn(start).join().expect("the pods' ports are free")
    });
    let mut plane = ControlPlane::start(node, programs, Garbage::CollectedSeldom);
    let endpoints = u8::try_from(ENDPOINTS).expect("a few");
    let apps: Vec<App> = (0..SERVICES).map(|number| App::lasting(number, endpoints)).collect();
    plane.create(apps.iter().flat_map(App::create).collect());
    let mut config = config(Who::Ours);
    config["clientConnection"] = json!({ "contentType": format, "acceptContentTypes": format });
    let mut proxy = Proxy::with_api(node, &config, &plane.kubeconfig());
    proxy.launch();
    let seen = change(node, &mut plane, &proxy, apps, time, seed);
    let listing = || normalised(&list_ruleset(node));
    let all = listing();
    proxy.stop();
    delete_rules(node);
    proxy.launch();
    let fresh = listing();
    proxy.stop();
    let unused = |all: &Listing| all.len() - without_unused_chains(all.clone()).len();
    let kept = unused(&all).saturating_sub(unused(&fresh));
    let [grown, fresh] = [all, fresh].map(without_unused_chains);
    let what = format!("{SERVICES} Services that change, {format}");
    print(table, &what, time, &seen);
    let size: usize = fresh.values().map(Vec::len).sum();
    let differing = differences(&grown, &fresh);
    table.text("  rules and elements of a fresh start", &size.to_string(), "");
    table.text("  that differ from those of the end", &differing.len().to_string(), "0");
    table.text("  chains that the proxy keeps, and nothing leads to", &kept.to_string(), "");
    let failures: Vec<&String> =
        seen.probed.iter().flat_map(|probed| &probed.failures).chain(&seen.wrong).chain(&differing).collect();
    if !failures.is_empty() {
        eprintln!("the proxy's log:\n{}", proxy.log());
    }
    failures.iter().for_each(|failure| table.fail(&format!("{what}: {failure}")));
}

/// Runs writers, probes and restarts at the same time.
fn change<'a>(
    node: &Namespace,
    plane: &mut ControlPlane<'a>,
    proxy: &Proxy<'a>,
    apps: Vec<App>,
    time: Duration,
    seed: u64,
) -> Seen {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let probes: Vec<_> = (0..PROBES).map(|number| scope.spawn(move || probe(stop, number))).collect();
        let stopped = Stop(stop);
        let writing = scope.spawn(move || write(apps, Load { rate: RATE, time, rolls: true, seed }));
        let mut director = Director { plane, proxy, writing: &writing, memory: Vec::new() };
        let events = director.direct(time);
        let memory = director.memory;
        let made = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (settled, wrong) = settle(node, proxy);
        let peak = resident(proxy.pid(), "VmHWM:").expect("the proxy runs");
        drop(stopped);
        let probed = probes.into_iter().map(|probe| probe.join().expect("a probe does not panic")).collect();
        Seen { made, probed, events, memory, peak, settled, wrong }
    })
}

/// Stops the probes when it is dropped, also when another thread panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Restarts the API server and compacts etcd, and measures the proxy's memory.
struct Director<'a, 'p, 's> {
    plane: &'a mut ControlPlane<'p>,
    proxy: &'a Proxy<'p>,
    writing: &'a ScopedJoinHandle<'s, Made>,
    memory: Vec<u64>,
}

impl Director<'_, '_, '_> {
    /// Runs until the writers are done.
    fn direct(&mut self, time: Duration) -> Events {
        let (start, mut events) = (Instant::now(), Events::default());
        for tenth in 1..10 {
            self.look_until(start + time * tenth / 10);
            match tenth {
                3 => events.away.push(self.plane.restart_server(Signal::TERM)),
                6 => events.away.push(self.plane.restart_server(Signal::KILL)),
                _ => self.plane.compact(),
            }
            events.compactions += 1;
        }
        // The rolling update follows the random changes.
        self.look_until(start + time * 100);
        events
    }

    fn look_until(&mut self, end: Instant) {
        while Instant::now() < end && !self.writing.is_finished() {
            self.memory.push(resident(self.proxy.pid(), "VmRSS:").expect("the proxy runs"));
            sleep(LOOK);
        }
    }
}

fn print(table: &mut Table, what: &str, time: Duration, seen: &Seen) {
    let a_second =
        |changes: u64, time: Duration| format!("{} /s", u128::from(changes) * 1_000 / time.as_millis().max(1));
    table.text(&format!("{what}: changes"), &format!("{} in {} s", seen.made.random, time.as_secs()), "");
    let goal = format!("{RATE} /s");
    table.text(
        "  a second, without the time that writers waited for the API server",
        &a_second(seen.made.random, time.saturating_sub(seen.made.waited)),
        &goal,
    );
    table.text("  a second, in all", &a_second(seen.made.random, time), "");
    for (end, away) in ["in order", "by SIGKILL"].iter().zip(&seen.events.away) {
        table.time(&format!("  restart of the API server, ended {end}"), *away, "");
    }
    table.text("  compactions of etcd", &seen.events.compactions.to_string(), "");
    let rolling = format!("{} in {:.1} s", seen.made.rolling, seen.made.rolling_time.as_secs_f64());
    table.text("  changes of the rolling update of all Services", &rolling, "");
    let (made, failed) =
        seen.probed.iter().fold((0, 0), |(made, failed), probed| (made + probed.made, failed + probed.failures.len()));
    table.text("  connections to Services meanwhile", &made.to_string(), "");
    table.text("  of them failed", &failed.to_string(), "0");
    table.time(
        "  the longest of the others",
        seen.probed.iter().map(|probed| probed.longest).max().unwrap_or_default(),
        "",
    );
    let megabytes = |bytes: u64| format!("{} MB", bytes / 1_000_000);
    let at = |tenth: usize| seen.memory.get(seen.memory.len() * tenth / 10).copied().unwrap_or_default();
    table.text("  resident memory after a tenth of the time", &megabytes(at(1)), "");
    table.text("  resident memory at the end", &megabytes(seen.memory.last().copied().unwrap_or_default()), "");
    table.text("  peak resident memory", &megabytes(seen.peak), "");
    let settled =
        seen.wrong.as_ref().map_or_else(|| format!("{:.1} s", seen.settled.as_secs_f64()), |_| "never".into());
    table.text("  kube-proxy verify finds nothing wrong, after the last change", &settled, "");
}

/// Runs `kube-proxy verify` until it finds nothing wrong. Returns the time that this took, and the last output if it never happened.
fn settle(node: &Namespace, proxy: &Proxy<'_>) -> (Duration, Option<String>) {
    let start = Instant::now();
    loop {
        let output = node.command(binary()).arg("verify").arg("--config").arg(proxy.config_path()).output();
        let output = output.expect("`ip` can be run");
        if output.status.success() {
            return (start.elapsed(), None);
        }
        if start.elapsed() > SETTLED_WITHIN {
            let words = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            return (start.elapsed(), Some(format!("verify: {}: {}", output.status, words.concat())));
        }
    }
}

/// Returns the lines that two listings do not have equally often. Skips lines with the size of a set or map, because the size depends on
/// what the set held before.
fn differences(grown: &Listing, fresh: &Listing) -> Vec<String> {
    let objects: BTreeSet<&String> = grown.keys().chain(fresh.keys()).collect();
    let mut found = Vec::new();
    for object in objects {
        let [old, new] = [grown, fresh].map(|listing| counted(listing.get(object)));
        let lines: BTreeSet<&&str> = old.keys().chain(new.keys()).collect();
        let differing =
            lines.into_iter().filter(|line| !line.starts_with("size ") && old.get(**line) != new.get(**line));
        found.extend(differing.map(|line| {
            let times = |listing: &BTreeMap<&str, usize>| listing.get(*line).copied().unwrap_or_default();
            format!("{object}: {line}: {} times, after a fresh start {}", times(&old), times(&new))
        }));
    }
    found
}

/// Returns how often each line occurs.
fn counted(lines: Option<&Vec<String>>) -> BTreeMap<&str, usize> {
    let mut counted = BTreeMap::new();
    for line in lines.into_iter().flatten() {
        *counted.entry(line.as_str()).or_default() += 1;
    }
    counted
}

//! A kernel that refuses transactions: with every error, at every position, and at random. One that always refuses a single Service is
//! in `refused`.
//!
//! After each failure the rules of before are in force, what the kernel holds is read again, and the end is the same as without.

mod refused;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::log::logged;
use crate::support::cluster::{address, config, endpoint, name, node, served, service, slice};
use crate::support::faulty::{EINVAL, Fault, Faulty};
use crate::support::figures::Figures;
use crate::support::kernel::{Recorder, edit};
use inspect::history::{Entry, EntryKind, TriggerKind};
use kube_proxy::health;
use kube_proxy::history::History;
use kube_proxy::metrics::Metrics;
use kube_proxy::sync::{Engine, Report, Schedule, Sync, SyncError};
use nft::{Element, TableDump, TableName, Value};
use node::kernel::{ForeignWrites, Kernel};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use rules::conntrack::Flow;
use rules::model::{Event, Family, Protocol};
use rules::ruleset::Layout;
use rules::ruleset::map_steps::Steps;
use tracing::Level;

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
/// EPERM, ENOENT, EINTR, ENOMEM, EBUSY, EINVAL, ENFILE, ENOSPC and ENOBUFS.
const ERRNOS: [i32; 9] = [EPERM, 2, 4, ENOMEM, 16, EINVAL, 23, 28, 105];
/// The search's own limit and the two transactions of a sync, with the failed one before.
const MOST_TRIES: usize = 50;

struct Cluster {
    kernel: Faulty<Recorder>,
    engine: Engine<Faulty<Recorder>>,
    events: Vec<Event>,
}

impl Cluster {
    /// Services 0 to n-1, not synced yet.
    fn new(services: u16) -> Self {
        let kernel = Faulty::new(Recorder::default());
        let engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
        let mut cluster = Self { kernel, engine, events: Vec::new() };
        let services = (0..services).flat_map(|n| served(n, 3));
        let events: Vec<Event> = [node(None)].into_iter().chain(services).chain([Event::InitialListDone]).collect();
        events.into_iter().for_each(|event| cluster.apply(event));
        cluster
    }

    fn synced(services: u16) -> Self {
        let mut cluster = Self::new(services);
        cluster.sync().expect("nothing is wrong yet");
        cluster
    }

    fn apply(&mut self, event: Event) {
        self.events.push(event.clone());
        self.engine.apply(event);
    }

    /// Service `n` gets the endpoints 10.`block`.0.`n` and one that stays.
    fn move_endpoints(&mut self, n: u16, block: u8) {
        let v4 = |block| endpoint(address(Family::V4, block, n));
        self.apply(Event::SliceApplied(slice(n, Family::V4, vec![v4(block), v4(250)])));
    }

    fn sync(&mut self) -> Result<Report, SyncError> {
        self.engine.sync(false)
    }

    fn tables(&self) -> Vec<Option<TableDump>> {
        let read =
            |family| self.kernel.inner.clone().read(&TableName::new(family, "kube-proxy")).expect("no faults here");
        [nft::Family::Ip, nft::Family::Ip6].map(read).into()
    }

    fn tried(&self) -> usize {
        std::mem::take(&mut self.kernel.orders.borrow_mut().tried)
    }

    /// The kernel holds what another process would write that knows all but these Services.
    fn assert_converged(&self, without: &[u16]) {
        let mut other = Engine::new(config(), Layout::Maps, &Family::BOTH, self.kernel.inner.clone());
        let left_out =
            |event: &Event| without.iter().any(|n| matches!(event, Event::ServiceApplied(s) if s.name == name(*n)));
        self.events.iter().filter(|event| !left_out(event)).cloned().for_each(|event| {
            other.apply(event);
        });
        let report = other.sync(false).expect("the kernel without faults takes it");
        assert_eq!((report.added, report.removed, report.committed), (0, 0, None), "something is missing or left over");
    }
}

/// A value that is an endpoint in 10.66.0.0/16.
fn is_bad(element: &Element) -> bool {
    matches!(&element.value, Value::Data(value) if value.as_slice().starts_with(&[10, 66]))
}

#[test]
fn each_error_in_each_position_leaves_the_old_rules_and_passes() {
    // A transaction is all or nothing, and a failed sync is tried again (G5, G8).
    let mut cluster = Cluster::synced(3);
    let mut block = 0;
    let mut change = |cluster: &mut Cluster| {
        block = (block + 1) % 60;
        (0..3).for_each(|n| cluster.move_endpoints(n, block + 1));
    };
    // The first change also changes the number of endpoints.
    for _ in 0..2 {
        change(&mut cluster);
        cluster.sync().expect("no faults yet");
    }
    let positions = cluster.kernel.inner.log.borrow().sent.last().expect("a transaction").len();
    assert!(positions >= 2, "{positions}");
    for errno in ERRNOS {
        for position in 0..positions {
            change(&mut cluster);
            let (before, reads) = (cluster.tables(), cluster.kernel.orders.borrow().read);
            cluster.kernel.orders.borrow_mut().commits.push_back(Fault::Refuse(errno, position));
            let error = cluster.sync().expect_err("the fault came").to_string();
            assert!(error.contains(&format!("`command {position}`")), "the object is named: {error}");
            assert_eq!(cluster.tables(), before, "the rules of before are in force");
            cluster.sync().unwrap_or_else(|error| panic!("{errno} at {position} has passed: {error}"));
            assert_eq!(cluster.kernel.orders.borrow().read, reads + 2, "both tables were read again");
            cluster.assert_converged(&[]);
        }
    }
    assert_eq!(cluster.engine.quarantined().len(), 0);
}

#[test]
fn a_lost_acknowledgement_and_a_dead_socket_are_followed_by_reading() {
    for (fault, kind) in
        [(Fault::LoseAck, "unconfirmed"), (Fault::SocketDeath, "socket"), (Fault::RefuseAll(ENOMEM), "refused")]
    {
        let mut cluster = Cluster::synced(3);
        cluster.move_endpoints(1, 7);
        cluster.kernel.orders.borrow_mut().commits.push_back(fault);
        assert_eq!(cluster.sync().expect_err("the fault came").kind(), kind);
        cluster.kernel.orders.borrow_mut().reads.push_back(Fault::SocketDeath);
        assert_eq!(cluster.sync().expect_err("the socket is dead").kind(), "socket");
        cluster.sync().expect("the faults have passed");
        cluster.assert_converged(&[]);
    }
}

fn a_fault() -> impl Strategy<Value = Fault> {
    let errno = || prop::sample::select(&ERRNOS[..]);
    prop_oneof![
        4 => (errno(), 0..40_usize).prop_map(|(errno, position)| Fault::Refuse(errno, position)),
        1 => errno().prop_map(Fault::RefuseAll),
        2 => Just(Fault::LoseAck),
        2 => Just(Fault::SocketDeath),
        2 => Just(Fault::Fine),
    ]
}

/// A change, and what goes wrong with the transactions and the reads that follow.
type Step = ((u16, u8), Vec<Fault>, Vec<Fault>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let faults = |most: usize| prop::collection::vec(a_fault(), 0..most);
    prop::collection::vec(((0..6_u16, 1..60_u8), faults(3), faults(2)), 1..12)
}

/// Whether the tables at the end are the same as without the faults. Records the faults that happened.
fn survives(steps: Vec<Step>, met: &RefCell<Vec<Fault>>) -> Result<(), TestCaseError> {
    let mut cluster = Cluster::new(6);
    for ((service, block), commits, reads) in steps {
        cluster.move_endpoints(service, block);
        cluster.kernel.orders.borrow_mut().commits.extend(commits);
        cluster.kernel.orders.borrow_mut().reads.extend(reads);
        // The sync may fail, and the next change comes before it is tried again.
        let _outcome = cluster.sync();
    }
    // With the faults of all steps waiting, a Service may have been left out by mistake; it is tried again later.
    let left = cluster.kernel.orders.borrow().commits.len() + cluster.kernel.orders.borrow().reads.len();
    let tries = (0..=left + 1).position(|_| cluster.sync().is_ok());
    prop_assert!(tries.is_some(), "no end after the faults ended");
    met.borrow_mut().append(&mut cluster.kernel.orders.borrow_mut().met);
    // Faults that no transaction or read has met are removed, because the next change is to have none.
    cluster.kernel.orders.borrow_mut().commits.clear();
    cluster.kernel.orders.borrow_mut().reads.clear();
    (0..6).for_each(|service| cluster.move_endpoints(service, 61));
    prop_assert!(cluster.sync().is_ok());
    prop_assert_eq!(cluster.engine.quarantined().len(), 0);
    prop_assert_eq!(&cluster.kernel.inner.log.borrow().refused, &[], "a transaction in a wrong order");
    cluster.assert_converged(&[]);
    Ok(())
}

/// The kinds of faults, for the figures.
const FAULTS: [&str; 4] = ["a batch refused", "a command refused", "a socket dead", "an acknowledgement lost"];

fn kind(fault: Fault) -> Option<&'static str> {
    match fault {
        Fault::Refuse(..) => Some("a command refused"),
        Fault::RefuseAll(_) => Some("a batch refused"),
        Fault::LoseAck => Some("an acknowledgement lost"),
        Fault::SocketDeath => Some("a socket dead"),
        Fault::Fine => None,
    }
}

/// `KUBE_PROXY_FAULTS` is the number of random sequences of faults (60 by default).
#[test]
fn faults_at_random_change_nothing_of_the_end() {
    // The first sync fails as well, and is tried again (G5, G6).
    let cases = env::var("KUBE_PROXY_FAULTS").map_or(60, |text| text.parse().expect("a number of sequences"));
    let config =
        ProptestConfig { rng_seed: RngSeed::Fixed(11), failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let met = RefCell::default();
    let outcome = TestRunner::new(config).run(&steps(), |steps| survives(steps, &met));
    let mut counts = BTreeMap::from(FAULTS.map(|kind| (kind, 0_u32)));
    for kind in met.borrow().iter().filter_map(|fault| kind(*fault)) {
        *counts.entry(kind).or_default() += 1;
    }
    let mut figures = Figures::default();
    figures.row("Kernel faults: sequences of changes and faults", cases);
    counts.iter().for_each(|(kind, count)| figures.row(kind, count));
    figures.publish();
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(counts.values().all(|count| *count > 0), "a kind of fault was never met: {counts:?}");
}

#[test]
fn udp_flows_that_cannot_be_listed_are_listed_again_without_any_change() {
    // A listing that fails is repeated with the same Services and frontends (J8, J10).
    let kernel = Faulty::new(Recorder::default());
    let mut engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
    let mut dns = service(1);
    dns.ports[0].protocol = Protocol::Udp;
    let mut endpoints = slice(1, Family::V4, vec![endpoint(address(Family::V4, 1, 1))]);
    endpoints.ports[0].protocol = Protocol::Udp;
    let start =
        [node(None), Event::ServiceApplied(dns.clone()), Event::SliceApplied(endpoints), Event::InitialListDone];
    for event in start {
        engine.apply(event);
    }
    engine.sync(false).expect("nothing is wrong yet");
    let to = |ip: IpAddr| Flow {
        protocol: Protocol::Udp,
        client: SocketAddr::new(address(Family::V4, 7, 7), 4000),
        original_destination: SocketAddr::new(ip, 80),
        reply_source: SocketAddr::new(address(Family::V4, 1, 1), 8080),
        is_unanswered: false,
        timeout: 30,
        handle: Vec::new(),
    };
    // One more flow is no business of the Service.
    let flows = [dns.external_ips[0], dns.load_balancer_ips[0], address(Family::V4, 200, 1)].map(to);
    let left = flows[2].clone();
    kernel.orders.borrow_mut().flows = flows.into();
    // Both families fail twice.
    kernel.orders.borrow_mut().flow_errors = [ENOMEM; 4].into();
    let before = kernel.orders.borrow().flow_lists;
    let (reporter, _health) = health::new(Duration::from_secs(60));
    let schedule = Schedule::new(Some(Duration::from_millis(10)), Duration::from_secs(60));
    let sync = Sync::new(engine, schedule, Metrics::new(), reporter, Box::new(|_| Ok(())));
    let (sender, source) = channel();
    let end = thread::spawn(move || {
        sender.send(Event::ServiceDeleted(dns.name)).expect("the loop runs");
        thread::sleep(Duration::from_millis(1500));
    });
    sync.run(&source).expect("the loop ends with its source");
    end.join().expect("no panic");
    let orders = kernel.orders.borrow();
    assert_eq!((orders.flow_lists - before, &orders.flows), (6, &vec![left]), "lists, and the flows that are left");
}

/// Runs the loop over these lists of events, each of which is one sync, until the ring says that the last one is in the kernel.
fn run_with_faults(cluster: Cluster, steps: Vec<Vec<Event>>, faults: Vec<Fault>) -> (Metrics, Vec<Arc<Entry>>, String) {
    let Cluster { kernel, engine, events, .. } = cluster;
    let _known = events;
    kernel.orders.borrow_mut().commits.extend([Fault::Fine].into_iter().chain(faults));
    let (metrics, (reporter, _health)) = (Metrics::new(), health::new(Duration::from_secs(60)));
    let schedule = Schedule::new(Some(Duration::from_millis(10)), Duration::from_secs(1));
    let changes = History::new(SystemTime::now());
    let sync = Sync::new(engine, schedule, metrics.clone(), reporter, Box::new(|_| Ok(()))).telling(changes.clone());
    let (sender, source) = channel();
    let end = thread::spawn(move || {
        for step in steps {
            // Longer than a retry, so that each is a sync of its own.
            thread::sleep(Duration::from_millis(500));
            step.into_iter().for_each(|event| sender.send(event).expect("the loop runs"));
        }
        thread::sleep(Duration::from_millis(1_500));
    });
    let log = logged(Level::DEBUG, || sync.run(&source).expect("the loop ends with its source"));
    end.join().expect("no panic");
    (metrics, changes.snapshot(0).entries, log)
}

fn metric(metrics: &Metrics, line: &str) -> bool {
    metrics.text().lines().any(|other| other == line)
}

#[test]
fn a_retry_after_a_failed_sync_is_no_repair() {
    // A kernel without memory is not blamed on another program: not in the metric, the log, or the changes (G5, G10).
    let many = (0..5_000).map(|n| endpoint(address(Family::V4, 200, n))).collect();
    let change = vec![Event::SliceApplied(slice(1, Family::V4, many))];
    let (metrics, entries, log) =
        run_with_faults(Cluster::new(3), vec![change], vec![Fault::RefuseAll(ENOMEM), Fault::RefuseAll(ENOMEM)]);
    let repairs: Vec<_> = entries.iter().filter(|entry| matches!(entry.what, EntryKind::Repair(_))).collect();
    let runs: Vec<TriggerKind> = entries
        .iter()
        .filter_map(|entry| match &entry.what {
            EntryKind::Sync(run) => Some(run.trigger.kind),
            _ => None,
        })
        .collect();
    println!("syncs: {runs:?}; repairs: {repairs:?}");
    println!("{}", metrics.text().lines().filter(|line| line.contains("repairs_total ")).collect::<String>());
    assert_eq!(log.matches("Sync failed").count(), 2, "{log}");
    assert_eq!(runs, [TriggerKind::Start, TriggerKind::Slice, TriggerKind::Retry], "{entries:?}");
    assert!(repairs.is_empty(), "{repairs:?}");
    assert!(metric(&metrics, "kubeproxy_nft_repairs_total 0"), "{}", metrics.text());
    assert!(!log.contains("nother program"), "{log}");
}

#[test]
fn a_split_that_fails_after_a_comparison_is_followed_by_another_one_soon() {
    let Cluster { kernel, engine, events } = Cluster::new(2);
    let orders = kernel.clone();
    let cluster = Cluster { kernel, engine: engine.with_map_steps(Steps::ending_at(20)), events };
    // The growth is refused; the retry reads everything back, and the split after it is refused.
    let faults = vec![Fault::RefuseAll(ENOMEM), Fault::Fine, Fault::RefuseAll(ENOMEM)];
    run_with_faults(cluster, vec![served(2, 3)], faults);
    let orders = orders.orders.borrow();
    assert!(orders.commits.is_empty(), "the split is refused");
    assert_eq!(orders.read, 2 * 4, "both tables: the start, the retry, the split, and a comparison");
}

/// Another program deletes an element of the first table; the engine notices that.
fn tamper(cluster: &mut Cluster) {
    let name = TableName::new(nft::Family::Ip, "kube-proxy");
    let mut dump = cluster.tables()[0].clone().expect("a table");
    edit(&mut dump, "services", |elements| drop(elements.remove(0)));
    assert_eq!(dump.table.name, name);
    let mut log = cluster.kernel.inner.log.borrow_mut();
    log.put(dump);
    log.foreign = ForeignWrites::Unknown;
    drop(log);
    assert!(cluster.engine.foreign_writes().is_some());
}

#[test]
fn a_repair_counts_once_also_after_a_failure_and_beside_a_change_of_the_cluster() {
    // What another program changed is told from what failed and from what the cluster changed (G10).
    let repaired = |cluster: &mut Cluster| cluster.sync().expect("nothing is wrong").repaired;
    let mut cluster = Cluster::synced(3);
    tamper(&mut cluster);
    cluster.kernel.orders.borrow_mut().commits.push_back(Fault::RefuseAll(ENOMEM));
    cluster.sync().expect_err("the fault came");
    assert!(repaired(&mut cluster), "the new try puts it right");
    assert!(!repaired(&mut cluster));

    tamper(&mut cluster);
    cluster.move_endpoints(1, 7);
    assert!(repaired(&mut cluster), "it is not hidden by a change");

    cluster.kernel.inner.log.borrow_mut().foreign = ForeignWrites::Unknown;
    assert!(cluster.engine.foreign_writes().is_some());
    cluster.move_endpoints(1, 8);
    assert!(!repaired(&mut cluster), "the other program changed nothing");

    cluster.move_endpoints(2, 9);
    cluster.kernel.orders.borrow_mut().commits.push_back(Fault::LoseAck);
    cluster.sync().expect_err("the fault came");
    cluster.engine.compare_everything();
    assert!(!repaired(&mut cluster), "what was carried out without an answer is no work of another program");
    cluster.assert_converged(&[]);
}

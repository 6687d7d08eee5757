//! A kernel that refuses transactions: with every error, at every position, and at random; and one that always refuses a single Service.
//!
//! After each failure the rules of before are in force, what the kernel holds is read again, and the end is the same as without.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};
use std::{env, io};

use crate::log::logged;
use crate::support::cluster::{address, config, endpoint, name, node, served, service, slice};
use crate::support::faulty::{EINVAL, Fault, Faulty};
use crate::support::figures::Figures;
use crate::support::kernel::Recorder;
use inspect::history::{Action, Change, CommitOutcome, Entry, EntryKind, TriggerKind};
use kube_proxy::health;
use kube_proxy::history::History;
use kube_proxy::metrics::Metrics;
use kube_proxy::sync::{Engine, RefusedService, Report, Schedule, Sync, SyncError};
use nft::{Data, Element, TableDump, TableName, Value};
use node::kernel::{ForeignWrites, Kernel};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use rules::conntrack::Flow;
use rules::model::{Event, Family, Protocol, Service};
use rules::ruleset::{Layout, notes};
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

/// A cluster of which one Service was never accepted.
fn with_a_refused_service(tells_element: bool) -> Cluster {
    let mut cluster = Cluster::new(40);
    cluster.move_endpoints(7, 66);
    cluster.kernel.orders.borrow_mut().poison = Some(is_bad);
    cluster.kernel.orders.borrow_mut().tells_element = tells_element;
    cluster.sync().expect_err("the first refusal leaves no Service out");
    cluster.sync().expect("the others are programmed");
    cluster
}

#[test]
fn a_service_that_is_always_refused_does_not_stop_the_others() {
    // Only the Service that the kernel refuses is left out (G15).
    for tells_element in [true, false] {
        let mut cluster = with_a_refused_service(tells_element);
        assert!(cluster.tried() <= MOST_TRIES);
        let refused = cluster.engine.take_refused_services();
        let [RefusedService { service, reason }] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!(*service, name(7));
        assert!(reason.contains("element of endpoints"), "{reason}");
        cluster.assert_converged(&[7]);

        // Other Services go on with one transaction for each change.
        cluster.move_endpoints(3, 9);
        cluster.sync().expect("it is not about the refused Service");
        assert_eq!((cluster.tried(), cluster.engine.quarantined().len()), (1, 1));
        cluster.assert_converged(&[7]);
    }
}

#[test]
fn changes_by_other_programs_during_the_search_leave_no_service_out() {
    for errno in [2, 17] {
        let mut cluster = Cluster::synced(3);
        cluster.move_endpoints(1, 8);
        // Twice just before a transaction, and once more while the Service is tried alone.
        cluster.kernel.orders.borrow_mut().commits.extend([Fault::Refuse(errno, 0); 3]);
        cluster.sync().expect_err("the first refusal leaves no Service out");
        cluster.sync().expect("in the end it is taken");
        assert_eq!((cluster.engine.take_refused_services(), cluster.engine.quarantined().len()), (Vec::new(), 0));
        cluster.assert_converged(&[]);
    }
}

#[test]
fn a_refused_service_is_tried_again_when_it_changes() {
    // A Service that was left out is tried again when it changes (G15).
    let mut cluster = with_a_refused_service(true);
    assert_eq!(cluster.engine.take_refused_services().len(), 1);
    cluster.sync().expect("nothing changed");
    cluster.tried();
    // The changed Service is refused too, and is found at once.
    cluster.apply(Event::SliceApplied(slice(7, Family::V4, vec![endpoint(address(Family::V4, 66, 700))])));
    cluster.sync().expect("the others are not stopped");
    assert!(cluster.tried() > 1, "it was tried");
    assert_eq!(cluster.engine.quarantined().len(), 1);
    assert_eq!(cluster.engine.take_refused_services(), Vec::new(), "it was reported before");
    // The kernel accepts the Service now.
    cluster.move_endpoints(7, 8);
    cluster.sync().expect("nothing is wrong any more");
    assert_eq!(cluster.engine.quarantined().len(), 0);
    cluster.assert_converged(&[]);
}

#[test]
fn what_a_refused_service_had_before_stays() {
    // A Service that the kernel refuses keeps what it had (G15).
    let mut cluster = Cluster::synced(10);
    cluster.kernel.orders.borrow_mut().poison = Some(is_bad);
    let before = cluster.tables();
    cluster.move_endpoints(7, 66);
    cluster.sync().expect_err("the first refusal leaves no Service out");
    cluster.sync().expect("there is nothing else to do");
    assert_eq!((cluster.tables(), cluster.engine.quarantined().len()), (before, 1));
}

#[test]
fn a_frontend_that_a_refused_service_gave_up_goes_to_the_service_that_claims_it_now() {
    let external: IpAddr = "198.51.100.99".parse().expect("an address");
    let claims = |n: u16, frontend: bool| {
        let external_ips = if frontend { vec![external] } else { Vec::new() };
        Event::ServiceApplied(Service { external_ips, ..service(n) })
    };
    let mut cluster = Cluster::synced(10);
    cluster.apply(claims(7, true));
    cluster.sync().expect("nothing is wrong yet");
    let owner = |cluster: &Cluster| {
        let key = Data::from(external);
        let table = cluster.tables().swap_remove(0).expect("there is a table");
        let elements =
            table.sets["services"].1.iter().filter(|element| element.key.as_slice().starts_with(key.as_slice()));
        let comments = elements.map(|element| element.comment.clone().expect("a comment"));
        comments.map(|comment| notes::service_port(&comment).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(owner(&cluster), ["shop/web-7:http"]);

    cluster.kernel.orders.borrow_mut().poison = Some(is_bad);
    cluster.apply(claims(7, false));
    cluster.move_endpoints(7, 66);
    cluster.apply(claims(3, true));
    cluster.sync().expect_err("the first failure may be for outdated knowledge");
    cluster.sync().expect("the others are programmed");
    assert_eq!(cluster.engine.quarantined().collect::<Vec<_>>(), [&name(7)]);
    assert_eq!(owner(&cluster), ["shop/web-3:http"]);
    cluster.engine.compare_everything();
    cluster.sync().expect("nothing is left to be done");
    assert_eq!(owner(&cluster), ["shop/web-3:http"]);

    cluster.move_endpoints(7, 8);
    cluster.sync().expect("nothing is wrong any more");
    assert_eq!(cluster.kernel.inner.log.borrow().refused, [], "a transaction that the kernel does not take");
    cluster.assert_converged(&[]);
}

#[test]
fn a_service_too_large_for_a_batch_does_not_stop_the_others() {
    let mut cluster = Cluster::new(40);
    cluster.kernel.orders.borrow_mut().most_bytes = Some(80_000);
    let many = (0..1000).map(|n| endpoint(address(Family::V4, 200, n))).collect();
    cluster.apply(Event::SliceApplied(slice(7, Family::V4, many)));
    assert!(cluster.sync().is_err(), "the first failure may be for outdated knowledge");
    cluster.sync().expect("the others are programmed");
    assert_eq!(cluster.engine.quarantined().collect::<Vec<_>>(), [&name(7)]);
    let reason = &cluster.engine.take_refused_services()[0].reason;
    assert!(reason.starts_with("the kernel does not take a batch of ") && reason.contains("too long"), "{reason}");
    assert!(cluster.tried() <= MOST_TRIES);
    cluster.kernel.orders.borrow_mut().most_bytes = None;
    cluster.assert_converged(&[7]);

    cluster.kernel.orders.borrow_mut().most_bytes = Some(80_000);
    cluster.move_endpoints(7, 1);
    cluster.sync().expect("it fits again");
    assert_eq!(cluster.engine.quarantined().len(), 0);
    cluster.assert_converged(&[]);
}

#[test]
fn what_is_too_large_only_together_is_sent_in_parts() {
    // Few enough for the smallest maps: one that grows is sent again as a whole.
    let mut cluster = Cluster::new(80);
    cluster.kernel.orders.borrow_mut().most_bytes = Some(80_000);
    assert!(cluster.sync().is_err());
    cluster.sync().expect("each part is taken");
    assert_eq!(cluster.engine.take_refused_services(), []);
    cluster.assert_converged(&[]);
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
        client: address(Family::V4, 7, 7),
        original_destination: SocketAddr::new(ip, 80),
        reply_source: SocketAddr::new(address(Family::V4, 1, 1), 8080),
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
    let schedule = Schedule::new(Duration::from_millis(10), Duration::from_secs(60));
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

#[test]
fn several_refused_services_are_found() {
    let mut cluster = Cluster::synced(64);
    cluster.kernel.orders.borrow_mut().poison = Some(is_bad);
    (0..64).for_each(|n| cluster.move_endpoints(n, if n % 20 == 5 { 66 } else { 9 }));
    cluster.sync().expect_err("the first refusal leaves no Service out");
    let rounds = (0..6).position(|_| cluster.sync().is_ok());
    assert!(rounds.is_some());
    let mut found: Vec<_> = cluster.engine.take_refused_services().into_iter().map(|refused| refused.service).collect();
    found.sort();
    let mut expected: Vec<_> = [5, 25, 45].map(name).into();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_kernel_that_takes_nothing_says_nothing_about_services() {
    for errno in [EPERM, ENOMEM] {
        let mut cluster = Cluster::synced(10);
        cluster.move_endpoints(7, 8);
        cluster.kernel.orders.borrow_mut().commits.extend([Fault::Refuse(errno, 0); 1000]);
        cluster.tried();
        for _ in 0..8 {
            cluster.sync().expect_err("it takes nothing");
            assert!(cluster.tried() <= MOST_TRIES);
        }
        assert_eq!(cluster.engine.quarantined().len(), 0);
        cluster.kernel.orders.borrow_mut().commits.clear();
        cluster.sync().expect("it takes all");
        cluster.assert_converged(&[]);
    }
}

struct Nobody;

impl health::Observer for Nobody {
    fn answered(&self, _: health::Page, _: u16) {}
    fn listen_failed(&self, _: &health::ListenFailure) {}
}

/// Serves the proxy's health on loopback until the test ends; gives the address.
fn serve(servers: health::Servers) -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listen = health::Listen { healthz: Some(free), hard_fail: true, ..health::Listen::default() };
        runtime.block_on(servers.run(listen, Arc::new(Nobody))).expect("it can listen");
    });
    free
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a server listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request can be sent");
    io::read_to_string(stream).expect("an answer")
}

/// The change of a Service in an entry.
fn change(entry: &Entry) -> Option<&Change> {
    match &entry.what {
        EntryKind::Service(change) => Some(change),
        _ => None,
    }
}

#[test]
fn a_refused_service_is_in_the_log_a_metric_and_the_health_details_and_is_reported() {
    // A Service that is left out is shown to the operator, with what the kernel refuses (G13, G15).
    let Cluster { kernel, engine, events, .. } = {
        let mut cluster = Cluster::new(5);
        cluster.move_endpoints(2, 66);
        cluster
    };
    assert!(events.len() > 5);
    kernel.orders.borrow_mut().poison = Some(is_bad);
    let (metrics, (reporter, health)) = (Metrics::new(), health::new(Duration::from_secs(60)));
    let address = serve(health);
    let (report, reports) = channel();
    let schedule = Schedule::new(Duration::from_millis(10), Duration::from_secs(1));
    let sync = Sync::new(engine, schedule, metrics.clone(), reporter, Box::new(|_| Ok(())));
    let sync = sync.on_refused_service(Box::new(move |refused| report.send(refused).expect("the test listens")));
    let changes = History::new(SystemTime::now());
    let sync = sync.telling(changes.clone());
    let (sender, source) = channel();
    let end = thread::spawn(move || {
        let first = reports.recv_timeout(Duration::from_secs(20)).expect("a refused Service");
        // Time for a second line in the log, if there were one.
        thread::sleep(Duration::from_millis(1500));
        let details = ["/livez", "/healthz"].map(|path| get(address, path));
        drop::<std::sync::mpsc::Sender<Event>>(sender);
        (first.service, reports.try_iter().count(), details)
    });
    let log = logged(Level::INFO, || sync.run(&source).expect("the loop ends with its source"));
    let (refused, reported_again, details) = end.join().expect("no panic");
    assert_eq!((refused, reported_again), (name(2), 0));
    for body in details {
        assert!(body.contains("\"quarantinedServices\":[\"shop/web-2\"]"), "{body}");
    }
    let text = metrics.text();
    for line in ["kubeproxy_nft_quarantined_services 1", "kubeproxy_nft_errors_total{kind=\"refused\"} 1"] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
    let entries = changes.snapshot(0).entries;
    let told: Vec<&Change> = entries.iter().filter_map(|entry| change(entry)).collect();
    let [left_out] = told.iter().filter(|change| change.result == CommitOutcome::Quarantined).collect::<Vec<_>>()[..]
    else {
        panic!("{entries:?}")
    };
    assert_eq!((&left_out.service, left_out.action), (&name(2), Action::Kept));
    assert!(left_out.error.as_ref().is_some_and(|error| error.contains("element of endpoints")), "{left_out:?}");
    let naming = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(naming("left out until it changes"), 1, "{log}");
    assert!(naming("shop/web-2") >= 1 && naming("element of endpoints") >= 2, "{log}");
}

/// Runs the loop over these lists of events, each of which is one sync, until the ring says that the last one is in the kernel.
fn run_with_faults(cluster: Cluster, steps: Vec<Vec<Event>>, faults: Vec<Fault>) -> (Metrics, Vec<Arc<Entry>>, String) {
    let Cluster { kernel, engine, events, .. } = cluster;
    let _known = events;
    kernel.orders.borrow_mut().commits.extend([Fault::Fine].into_iter().chain(faults));
    let (metrics, (reporter, _health)) = (Metrics::new(), health::new(Duration::from_secs(60)));
    let schedule = Schedule::new(Duration::from_millis(10), Duration::from_secs(1));
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

/// Another program deletes an element of the first table; the engine notices that.
fn tamper(cluster: &mut Cluster) {
    let name = TableName::new(nft::Family::Ip, "kube-proxy");
    let mut dump = cluster.tables()[0].clone().expect("a table");
    let (_, elements) = dump.sets.get_mut("services").expect("the map of frontends");
    elements.remove(0);
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

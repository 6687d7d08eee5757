//! A kernel that always refuses a single Service: the others are programmed, and the one that is left out is reported.

use std::io;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};

use super::{Cluster, ENOMEM, EPERM, MOST_TRIES, is_bad};
use crate::log::logged;
use crate::support::cluster::{address, endpoint, name, service, slice};
use crate::support::faulty::Fault;
use inspect::history::{Action, Change, CommitOutcome, Entry, EntryKind};
use kube_proxy::health;
use kube_proxy::history::History;
use kube_proxy::metrics::Metrics;
use kube_proxy::sync::{NotProgrammed, Schedule, Sync};
use nft::Data;
use rules::model::{Event, Family, Service};
use rules::ruleset::notes;
use tracing::Level;

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
        let [NotProgrammed { service, reason }] = &refused[..] else { panic!("{refused:?}") };
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
        let elements = table.sets["services"].1.iter().filter(|element| element.key().starts_with(key.as_slice()));
        let comments = elements.map(|element| element.parts().comment.expect("a comment"));
        comments.map(|comment| notes::service_port(comment).to_owned()).collect::<Vec<_>>()
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

// Only the Service that does not fit is left out, and the sysctl is named that a node in a user namespace needs for it (G15, O22).
#[test]
fn a_service_too_large_for_a_batch_does_not_stop_the_others() {
    let mut cluster = Cluster::synced(40);
    cluster.kernel.orders.borrow_mut().most_bytes = Some(80_000);
    let many = (0..1000).map(|n| endpoint(address(Family::V4, 200, n))).collect();
    cluster.apply(Event::SliceApplied(slice(7, Family::V4, many)));
    cluster.move_endpoints(8, 9);
    cluster.sync().expect("the others are programmed at once");
    assert_eq!(cluster.engine.quarantined().collect::<Vec<_>>(), [&name(7)]);
    let reason = &cluster.engine.take_refused_services()[0].reason;
    assert!(reason.starts_with("a batch of ") && reason.contains("set sysctl net.core.wmem_max"), "{reason}");
    assert!(cluster.tried() <= MOST_TRIES);

    cluster.move_endpoints(7, 1);
    cluster.sync().expect("it fits again");
    assert_eq!(cluster.engine.quarantined().len(), 0);
    cluster.assert_converged(&[]);
}

// Each transaction has all of its Services, and none has a part of one (G8, O22).
#[test]
fn what_is_too_large_only_together_is_sent_in_parts() {
    // Few enough for the smallest maps: one that grows is sent again as a whole.
    let mut cluster = Cluster::synced(80);
    cluster.kernel.orders.borrow_mut().most_bytes = Some(10_000);
    let sent = cluster.kernel.inner.log.borrow().sent.len();
    (0..80).for_each(|n| cluster.move_endpoints(n, 9));
    cluster.sync().expect("each part is taken");
    assert_eq!(cluster.engine.take_refused_services(), []);
    cluster.assert_converged(&[]);
    let log = cluster.kernel.inner.log.borrow();
    assert!((2..20).contains(&(log.sent.len() - sent)), "{} transactions", log.sent.len() - sent);
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
    let schedule = Schedule::new(Some(Duration::from_millis(10)), Duration::from_secs(1));
    let sync = Sync::new(engine, schedule, metrics.clone(), reporter, Box::new(|_| Ok(())));
    let sync = sync.on_not_programmed(Box::new(move |refused| report.send(refused).expect("the test listens")));
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

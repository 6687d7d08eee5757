//! Clients that are remembered for an endpoint that is gone (session affinity), with a kernel that forgets clients at any
//! moment, as the real one does when a client's time is over: no sync may fail for that, no Service be left out, and no client
//! stay with an endpoint that is gone.
//!
//! Drives the engine with a kernel in memory; needs no root. `tests/engine/expiry` does the same with the real one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::cluster::{address, config, endpoints, node, service, slice};
use crate::support::faulty::Faulty;
use crate::support::kernel::{Expiry, Recorder, unpacked};
use kube_proxy::sync::{Engine, Report};
use nft::decode::DecodeError;
use nft::packed::ValueRef;
use nft::{Command, Data, Element, ElementRef, Set, TableName, Value};
use node::kernel::Kernel;
use rules::model::{Event, Family, Protocol};
use rules::ruleset::Layout;

const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
/// More than are forgotten in one transaction of their own.
const MANY: u16 = 2_000;

/// A Service with affinity and an engine that has synced it.
struct Dns {
    engine: Engine<Faulty<Recorder>>,
    kernel: Faulty<Recorder>,
    map: Arc<Set>,
}

fn table() -> TableName {
    TableName::new(nft::Family::Ip, "kube-proxy")
}

/// The slice of the Service with this many endpoints.
fn dns_slice(count: u16) -> Event {
    let mut slice = slice(0, Family::V4, endpoints(0, Family::V4, count));
    slice.ports[0].protocol = Protocol::Udp;
    Event::SliceApplied(slice)
}

fn client(n: u16) -> Data {
    Data::from(address(Family::V4, 1, n))
}

impl Dns {
    /// Three endpoints, of which the last is to go.
    fn new(is_old: bool) -> Self {
        let mut dns = service(0);
        dns.affinity_seconds = Some(300);
        dns.ports[0].protocol = Protocol::Udp;
        let kernel = Faulty::new(Recorder::default());
        kernel.inner.log.borrow_mut().is_old = is_old;
        let mut engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
        for event in [node(None), Event::ServiceApplied(dns), dns_slice(3), Event::InitialListDone] {
            engine.apply(event);
        }
        engine.sync(false).expect("this kernel takes everything");
        let dump = kernel.clone().read(&table()).expect("it can be read").expect("a table");
        let (map, _) = dump.sets.into_values().find(|(set, _)| set.flags.dynamic).expect("the map of clients");
        Self { engine, kernel, map: Arc::new(map) }
    }

    /// Remembers clients for an endpoint, as rules do.
    fn remember(&mut self, clients: impl IntoIterator<Item = u16>, endpoint: u16) {
        self.remember_for(clients, endpoint, None);
    }

    /// The same, for so much longer.
    fn remember_for(&mut self, clients: impl IntoIterator<Item = u16>, endpoint: u16, timeout: Option<Duration>) {
        let value = Value::Data(Data::from(address(Family::V4, 244, endpoint)));
        let element = |n| Element { timeout, ..Element::mapping(client(n), value.clone()) };
        let elements = clients.into_iter().map(element).collect();
        let add = Command::AddElements(table(), Arc::clone(&self.map), elements);
        self.kernel.inner.commit(&[add]).expect("there is room");
    }

    /// Has clients expire in one of the next transactions, before one of its commands.
    fn expire(&self, before: usize, clients: impl IntoIterator<Item = u16>) {
        let keys = clients.into_iter().map(client).collect();
        let expiry = Expiry { before, set: (table(), Arc::clone(&self.map.name)), keys };
        self.kernel.inner.log.borrow_mut().expiring.push_back(vec![expiry]);
    }

    fn remembered(&mut self) -> Vec<Element> {
        self.kernel.elements(&table(), &self.map).expect("it can be read")
    }

    /// Takes the last endpoint away.
    fn take_away(&mut self) -> Report {
        self.engine.apply(dns_slice(2));
        self.engine.sync(false).unwrap_or_else(|error| panic!("expiry costs a sync: {error}"))
    }

    /// Checks the remembered clients for as long as the engine asks for it; gives how long that was since `now`, and what the checks did.
    fn check_until_the_end(&mut self) -> (Duration, Vec<Report>) {
        let (begun, mut reports) = (Instant::now(), Vec::new());
        let mut last = begun;
        while let Some(look) = self.engine.next_client_check() {
            last = look.max(last);
            reports.extend(self.engine.check_clients(last));
        }
        (last - begun, reports)
    }

    /// Asserts that the tables are as wanted, and that no Service was left out.
    fn assert_forgotten(&mut self, context: &str) {
        self.check_until_the_end();
        let gone = Value::Data(Data::from(address(Family::V4, 244, 2)));
        let misled = self.remembered().iter().filter(|element| element.value == gone).count();
        assert_eq!((misled, self.engine.quarantined().len()), (0, 0), "{context}");
        let report = self.engine.sync(false).expect("nothing is wrong");
        assert_eq!(report.committed, None, "{context}: something was left to do");
    }
}

/// Runs a test with a present kernel, and with one before Linux 6.3.
fn with_each_kernel(test: impl Fn(bool)) {
    [false, true].into_iter().for_each(test);
}

#[test]
fn clients_that_expire_at_any_moment_of_the_transaction_cost_no_sync() {
    // Clients that expire do not make the sync fail that forgets them (E6).
    with_each_kernel(|is_old| {
        for before in 0..12 {
            // One of the clients, some, or all expire.
            for expired in [vec![3], vec![0, 4, 9], (0..10).collect()] {
                let context = format!("old: {is_old}, {expired:?} before command {before}");
                let mut dns = Dns::new(is_old);
                dns.remember(0..10, 2);
                dns.remember(10..20, 1);
                dns.expire(before, expired);
                dns.take_away();
                dns.assert_forgotten(&context);
                assert_eq!(dns.remembered().len(), 10, "{context}: the others stay");
            }
        }
    });
}

#[test]
fn a_client_about_to_expire_is_left_to_that_by_an_old_kernel_and_deleted_if_a_packet_renews_it() {
    // A kernel before Linux 6.3 refuses the whole transaction when one client is missing (E6).
    let mut dns = Dns::new(true);
    dns.remember(0..2, 2);
    dns.remember_for(2..4, 2, Some(Duration::from_millis(150)));
    // The first use shows that this kernel has no `destroy element`.
    dns.take_away();
    assert_eq!(dns.remembered().len(), 2, "those with little time left stay");
    // One client is renewed by a packet that was on its way; the other expires.
    let both = [2, 3].map(|n| Element::new(client(n))).to_vec();
    let expire = Command::DeleteElements(table(), Arc::clone(&dns.map), both.into());
    dns.kernel.inner.commit(&[expire]).expect("both are there");
    dns.remember_for([2], 2, Some(Duration::from_secs(300)));
    dns.assert_forgotten("renewed");
    assert_eq!(dns.remembered(), []);
}

#[test]
fn clients_that_go_on_expiring_cost_no_sync() {
    // Clients that expire before each further attempt do not make the sync fail either (E6).
    with_each_kernel(|is_old| {
        let mut dns = Dns::new(is_old);
        dns.remember(0..600, 2);
        // At each new attempt further clients are gone: at first one by one, in the end many at once.
        (0..50).for_each(|n| dns.expire(usize::from(n) % 3, [n]));
        (50..60).for_each(|n| dns.expire(0, (n * 10 - 450)..(n * 10 - 440)));
        dns.take_away();
        dns.assert_forgotten(&format!("old: {is_old}"));
    });
}

#[test]
fn many_clients_of_which_many_expire_cost_no_sync() {
    with_each_kernel(|is_old| {
        let mut dns = Dns::new(is_old);
        dns.remember(0..MANY, 2);
        dns.remember([MANY], 1);
        for third in 0..3 {
            dns.expire(0, (0..MANY).filter(|n| n % 9 == third));
        }
        dns.take_away();
        dns.assert_forgotten(&format!("old: {is_old}"));
        assert_eq!(dns.remembered().len(), 1);
    });
}

#[test]
fn the_endpoint_is_taken_away_even_if_clients_cannot_be_forgotten() {
    with_each_kernel(|is_old| {
        for errno in [ENOENT, EBUSY] {
            let mut dns = Dns::new(is_old);
            dns.remember(0..3, 2);
            dns.kernel.orders.borrow_mut().no_forgetting = Some(errno);
            dns.take_away();
            assert_eq!(dns.remembered().len(), 3, "they cannot be forgotten");
            let endpoints = dns.kernel.clone().read(&table()).expect("it can be read").expect("a table");
            let (_, endpoints) = &endpoints.sets["endpoints"];
            let gone = Data::from(address(Family::V4, 244, 2)).then(8080_u16);
            let leads_there = |element: ElementRef<'_>| element.parts().value == ValueRef::Data(gone.as_slice());
            assert!(!endpoints.iter().any(leads_there), "the rules do not lead there any more");
            assert!(dns.engine.next_client_check().is_some(), "it is tried again");
            dns.kernel.orders.borrow_mut().no_forgetting = None;
            dns.assert_forgotten(&format!("old: {is_old}, error {errno}"));
        }
    });
}

#[test]
fn a_refusal_of_other_commands_is_reported_without_the_clients() {
    with_each_kernel(|is_old| {
        let mut dns = Dns::new(is_old);
        dns.remember(0..3, 2);
        // Another program takes the endpoint's own elements away at the same moment.
        let dump = dns.kernel.read(&table()).expect("it can be read").expect("a table");
        let keys = unpacked(&dump.sets["endpoints"].1).into_iter().map(|element| element.key).collect();
        dns.expire(0, 0..3);
        let others = Expiry { before: 0, set: (table(), "endpoints".into()), keys };
        dns.kernel.inner.log.borrow_mut().expiring[0].push(others);
        dns.engine.apply(dns_slice(2));
        let error = dns.engine.sync(false).expect_err("another program is no friend").to_string();
        assert!(error.contains("endpoints") && !error.contains("affinity") && !error.contains("more"), "{error}");
        dns.engine.sync(false).expect("the tables are read again");
        dns.assert_forgotten(&format!("old: {is_old}"));
    });
}

#[test]
fn a_kernel_is_asked_once_whether_it_can_destroy_elements() {
    let mut dns = Dns::new(true);
    for round in 0..3 {
        dns.remember(0..10, 2);
        let before = dns.kernel.inner.log.borrow().sent.len();
        dns.take_away();
        let sent = dns.kernel.inner.log.borrow().sent.len() - before;
        assert_eq!(sent, if round == 0 { 2 } else { 1 });
        dns.engine.apply(dns_slice(3));
        dns.engine.sync(false).expect("nothing is wrong");
    }
}

#[test]
fn a_table_that_is_made_anew_has_no_clients_to_forget() {
    with_each_kernel(|is_old| {
        let mut dns = Dns::new(is_old);
        dns.remember(0..10, 2);
        // The table differs in a way that cannot be corrected, so it is made anew.
        dns.engine.apply(dns_slice(2));
        let mut log = dns.kernel.inner.log.borrow_mut();
        let mut dump = log.tables()[&table().to_string()].clone();
        dump.unreadable.push(DecodeError { object: "set", name: None, attribute: "something strange" });
        log.put(dump);
        drop(log);
        dns.engine.compare_everything();
        dns.engine.sync(false).expect("the table is made anew");
        assert!(dns.kernel.inner.log.borrow().refused.is_empty());
        dns.assert_forgotten(&format!("old: {is_old}"));
    });
}

#[test]
fn a_client_remembered_late_is_forgotten_within_a_second_whatever_else_is_synced() {
    // A client whose packet was on its way is forgotten as well (E6).
    with_each_kernel(|is_old| {
        let mut dns = Dns::new(is_old);
        dns.take_away();
        dns.remember(0..10, 2);
        // Syncs of other Services, one after the other.
        for round in 0..5 {
            let mut other = service(1);
            other.ports[0].port = 81 + round;
            dns.engine.apply(Event::ServiceApplied(other));
            dns.engine.sync(false).expect("nothing is wrong");
        }
        let (took, reports) = dns.check_until_the_end();
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(reports.iter().map(|report| report.removed).sum::<usize>(), 10);
        dns.assert_forgotten(&format!("old: {is_old}"));
    });
}

#[test]
fn flows_are_looked_through_again_when_a_client_is_expelled_late() {
    // Its UDP flow to the removed endpoint is deleted then (E6, J1).
    with_each_kernel(|is_old| {
        let mut dns = Dns::new(is_old);
        let report = dns.take_away();
        assert_eq!(report.flows.len(), 2, "the Service changed");
        // Flows of TCP and SCTP that a process before this one may have left.
        dns.engine.check_clients(Instant::now());
        dns.remember([1], 2);
        let (_, reports) = dns.check_until_the_end();
        let [report] = &reports[..] else { panic!("one check finds clients: {reports:?}") };
        assert_eq!(
            (report.removed, report.flows.len()),
            (1, 2),
            "the client is expelled, and its flows are looked for"
        );
    });
}

#[test]
fn a_map_of_clients_that_cannot_be_read_stops_no_service_and_is_read_again() {
    // Its stale clients are forgotten once it can be read; all else is programmed meanwhile (E6).
    with_each_kernel(|is_old| {
        let mut dns = Dns::new(is_old);
        dns.remember(0..10, 2);
        let unreadable = |dns: &Dns, map: Option<&Arc<str>>| dns.kernel.orders.borrow_mut().unreadable = map.cloned();
        unreadable(&dns, Some(&Arc::clone(&dns.map.name)));
        let report = dns.take_away();
        assert!(report.committed.is_some(), "the endpoint is out of the rules");
        dns.engine.apply(Event::ServiceApplied(service(1)));
        dns.engine.sync(false).expect("another Service is programmed");
        // Flows of TCP and SCTP that a process before this one may have left.
        dns.engine.check_clients(Instant::now());
        let looked = Instant::now() + Duration::from_secs(1);
        assert_eq!(dns.engine.check_clients(looked), None, "it still cannot be read");
        let next = dns.engine.next_client_check().expect("it is tried again");
        assert!(next > looked && next <= looked + Duration::from_secs(1), "not at once, and soon");

        // A comparison reads every map, and is not stopped either.
        dns.engine.compare_everything();
        dns.engine.sync(false).expect("the tables can be read");
        unreadable(&dns, None);
        dns.assert_forgotten(&format!("old: {is_old}"));
    });
}

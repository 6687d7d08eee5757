//! Tests the order of a sync's effects on the kernel and on the observers.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use nft::{Command, CommitError, Committed, Element, ReadError, Set, TableDump, TableName};

use super::Engine;
use component::config::Invocation;
use node::kernel::{ForeignWrites, Kernel};
use rules::conntrack::{Flow, Listing};
use rules::model::testing::{name, port, service, slice, slice_port};
use rules::model::{CloseConnections, Event, Family, Service, TrafficPolicy};
use rules::ruleset::Layout;

/// A kernel that holds nothing, records what the engine reads, commits and lists, and fails each commit on demand.
#[derive(Clone, Default)]
struct Recorder {
    calls: Rc<RefCell<Vec<&'static str>>>,
    fails: Rc<RefCell<bool>>,
}

impl Recorder {
    fn note(&self, call: &'static str) {
        self.calls.borrow_mut().push(call);
    }

    fn take(&self) -> Vec<&'static str> {
        self.calls.take()
    }
}

impl Kernel for Recorder {
    fn commit(&mut self, _: &[Command]) -> Result<Committed, CommitError> {
        self.note("commit");
        let error = || CommitError::Socket(io::Error::from(io::ErrorKind::OutOfMemory));
        if *self.fails.borrow() { Err(error()) } else { Ok(Committed::default()) }
    }

    fn read(&mut self, _: &TableName) -> Result<Option<TableDump>, ReadError> {
        self.note("read");
        Ok(None)
    }

    fn elements(&mut self, _: &TableName, _: &Set) -> Result<Vec<Element>, ReadError> {
        self.note("elements");
        Ok(Vec::new())
    }

    fn foreign_writes(&mut self, _: &[TableName], _: Instant) -> Result<ForeignWrites, ReadError> {
        Ok(ForeignWrites::None)
    }

    fn flows(&mut self, _: Family, listing: Listing, _: &mut dyn FnMut(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        self.note(match listing {
            Listing::Udp => "UDP flows",
            Listing::Unanswered => "unanswered flows",
            Listing::Translated => "all flows",
        });
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, _: &[Flow], _: Option<IpAddr>) -> io::Result<usize> {
        unreachable!("there are no flows")
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        self.note("addresses");
        Ok(Vec::new())
    }
}

fn engine(kernel: Recorder) -> Engine<Recorder> {
    let invocation =
        component::config::load(["kube-proxy", "--manifests=/", "--hostname-override=here"].map(Into::into));
    let Ok(Invocation::Run(config)) = invocation else { panic!("a configuration") };
    let mut engine = Engine::new(config, Layout::Maps, &[Family::V4], kernel);
    let mut dns = service("shop/dns", &["10.96.0.10"]);
    dns.external_policy = TrafficPolicy::Local;
    dns.health_check_node_port = Some(30_000);
    dns.ports = vec![port("dns/udp", 53)];
    dns.ports[0].node_port = Some(30_053);
    engine.apply(Event::ServiceApplied(dns));
    engine.apply(dns_slice(&["10.244.0.1 @here"]));
    engine
}

fn dns_slice(endpoints: &[&str]) -> Event {
    Event::SliceApplied(slice("shop/dns-1", "shop/dns", &[slice_port("dns/udp", 53)], endpoints))
}

/// Returns the numbers of local endpoints that the health-check node ports report.
fn healthy(engine: &Engine<Recorder>) -> Vec<usize> {
    engine.observers.health_checks.snapshot().checks.values().map(|check| check.local_endpoints).collect()
}

// Flows are examined after the commit, because the old rules would make a deleted flow again while they are in force (B15, G9).
#[test]
fn a_sync_reads_commits_tells_the_observers_and_examines_udp_flows_in_this_order() {
    let kernel = Recorder::default();
    let mut engine = engine(kernel.clone());
    assert_eq!(healthy(&engine), [0; 0], "nothing is told before a commit");
    assert_eq!(engine.next_client_check(), None, "no list delays the first sync");
    engine.sync(true).expect("the kernel takes everything");
    assert_eq!(kernel.take(), ["read", "addresses", "commit", "UDP flows"]);
    assert_eq!(healthy(&engine), [1]);
    assert_eq!(engine.next_client_check(), None, "no process before this one left rules");
    engine.removed_rules_of_others();
    let idle = engine.next_client_check().expect("these rules may have left flows");
    engine.check_clients(idle).expect("flows are examined");
    assert_eq!(kernel.take(), ["UDP flows", "unanswered flows"], "no sync waits for these");
    assert_eq!(engine.next_client_check(), None);

    engine.apply(dns_slice(&["10.244.0.1 @here", "10.244.0.2 @here"]));
    engine.sync(true).expect("the kernel takes everything");
    assert_eq!(kernel.take(), ["commit", "UDP flows"], "a small sync reads nothing");
    assert_eq!(healthy(&engine), [2]);
}

// A failed sync leaves the old rules in force, with all their effects (G7, G9).
#[test]
fn after_a_refusal_no_observer_is_told_and_no_flow_is_examined() {
    let kernel = Recorder::default();
    let mut engine = engine(kernel.clone());
    engine.sync(true).expect("the kernel takes everything");
    kernel.take();

    engine.apply(dns_slice(&[]));
    *kernel.fails.borrow_mut() = true;
    engine.sync(true).expect_err("the kernel has no memory");
    assert!(!kernel.take().contains(&"UDP flows"));
    assert_eq!(healthy(&engine), [1], "the rules still have its endpoint");

    *kernel.fails.borrow_mut() = false;
    engine.sync(true).expect("the kernel takes everything");
    assert_eq!(kernel.take(), ["read", "commit", "UDP flows"], "after a failure everything is compared");
    assert_eq!(healthy(&engine), [0]);
}

// After a sync in which a Service lost an endpoint that could answer, the flows of TCP and SCTP are listed. Open connections are in the
// list only if an annotation of the Service asks to close connections (J12, J13). The sync itself does not wait for the list.
#[test]
fn connections_are_listed_after_the_syncs_that_need_it() {
    let kernel = Recorder::default();
    let mut engine = engine(kernel.clone());
    let mut listed = |events: Vec<Event>| {
        events.into_iter().for_each(|event| {
            engine.apply(event);
        });
        engine.sync(true).expect("the kernel takes everything");
        let mut calls = kernel.take();
        assert!(!calls.contains(&"unanswered flows") && !calls.contains(&"all flows"), "{calls:?}");
        while let Some(idle) = engine.next_client_check() {
            engine.check_clients(idle).expect("flows are examined");
        }
        calls.extend(kernel.take());
        // Endpoints that left at different times are looked for at different times.
        calls.dedup();
        calls.into_iter().filter(|call| call.ends_with("flows")).collect::<Vec<_>>()
    };
    let web = |close_connections| {
        let mut web = service("shop/web", &["10.96.0.11"]);
        web.ports = vec![port("http", 80)];
        Event::ServiceApplied(Service { close_connections, ..web })
    };
    let slice =
        |endpoints: &[&str]| Event::SliceApplied(slice("shop/web-1", "shop/web", &[slice_port("http", 80)], endpoints));
    let start = listed(vec![web(None), slice(&["10.244.0.1", "10.244.0.2"])]);
    assert_eq!(start, ["UDP flows"], "what began without rules");
    for (endpoints, needs) in [
        (&["10.244.0.1", "10.244.0.2", "10.244.0.3"][..], &[][..]),
        (&["10.244.0.3", "10.244.0.2", "10.244.0.1"], &[]),
        (&["10.244.0.3 terminating", "10.244.0.2", "10.244.0.1"], &[]),
        (&["10.244.0.3 dead", "10.244.0.2", "10.244.0.1"], &["unanswered flows"]),
        (&["10.244.0.2", "10.244.0.1"], &[]),
        (&["10.244.0.1"], &["unanswered flows"]),
    ] {
        assert_eq!(listed(vec![slice(endpoints)]), needs, "{endpoints:?}");
    }
    assert_eq!(listed(vec![web(Some(CloseConnections::EndpointGone))]), ["all flows"], "it asks now");
    assert_eq!(listed(vec![slice(&["10.244.0.1", "10.244.0.2"])]), [""; 0]);
    assert_eq!(listed(vec![slice(&["10.244.0.1", "10.244.0.2 dead"])]), ["unanswered flows"]);
    assert_eq!(listed(vec![slice(&["10.244.0.1"])]), ["all flows"], "it is in no slice");
    assert_eq!(listed(vec![Event::ServiceDeleted(name("shop/web"))]), [""; 0], "this is not asked for");
    assert_eq!(listed(vec![web(Some(CloseConnections::EndpointOrServiceGone))]), [""; 0], "it has lost nothing");
    assert_eq!(listed(vec![Event::ServiceDeleted(name("shop/web"))]), ["all flows"]);
}

//! Clients that are remembered for an endpoint that is gone: a packet that was on its way when they were expelled may have had
//! them remembered once more, and a UDP flow made on the strength of that would lead nowhere for as long as the client goes on.
//!
//! Drives the engine with a kernel that only remembers; needs no root.

#![forbid(unsafe_code)]

mod support;

use kube_proxy::kernel::Kernel;
use kube_proxy::model::{Event, Family, Protocol};
use kube_proxy::ruleset::AnyLayout;
use kube_proxy::sync::Engine;
use nft::{Command, Data, Element, TableName, Value};
use support::cluster::{address, config, endpoints, node, service, slice};
use support::kernel::Recorder;

/// The slice of the Service with so many endpoints.
fn dns_slice(count: u16) -> Event {
    let mut slice = slice(0, Family::V4, endpoints(0, Family::V4, count));
    slice.ports[0].protocol = Protocol::Udp;
    Event::SliceApplied(slice)
}

#[test]
fn flows_are_looked_through_again_when_a_client_is_expelled_late() {
    // E6 J1
    let mut dns = service(0);
    dns.affinity_seconds = Some(300);
    dns.ports[0].protocol = Protocol::Udp;
    let mut kernel = Recorder::default();
    let mut engine = Engine::new(config(), AnyLayout::Maps, &Family::BOTH, kernel.clone());
    for event in [node(None), Event::ServiceApplied(dns), dns_slice(3), Event::InitialListDone] {
        engine.apply(event);
    }
    engine.sync(false).expect("this kernel takes everything");
    engine.apply(dns_slice(2));
    let report = engine.sync(false).expect("this kernel takes everything");
    assert_eq!(report.flows.len(), 2, "the Service changed");
    assert!(engine.unfinished(), "a packet may be on its way");

    let table = TableName::new(nft::Family::Ip, "kube-proxy");
    let dump = kernel.read(&table).expect("it can be read").expect("a table");
    let (memory, _) = dump.sets.values().find(|(set, _)| set.flags.dynamic).expect("the map of remembered clients");
    let (client, gone) = (address(Family::V4, 1, 1), address(Family::V4, 244, 2));
    let remembered = Element::mapping(Data::from(client), Value::Data(Data::from(gone)));
    let late = Command::AddElements(table, memory.clone().into(), vec![remembered]);
    kernel.commit(&[late]).expect("what a rule does");

    let report = engine.sync(true).expect("this kernel takes everything");
    assert_eq!((report.removed, report.flows.len()), (1, 2), "the client is expelled, and its flows are looked for");
    let report = engine.sync(true).expect("this kernel takes everything");
    assert_eq!((report.committed, report.flows.len()), (None, 0), "once");
}

//! What a table that another program wrote into costs at a read-back: as much as its elements, whatever numbers these have.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::sync::atomic::Ordering;

use crate::support::cluster::{address, config, node, served};
use crate::support::kernel::{Recorder, edit};
use crate::{BYTES, turn};
use kube_proxy::sync::Engine;
use nft::{Data, Element, TableName, Value};
use node::kernel::{ForeignWrites, Kernel};
use rules::model::{Event, Family};
use rules::ruleset;

/// Foreign elements, each of another group.
const FOREIGN: u16 = 1_000;
/// The highest number that a slot can have.
const LAST_SLOT: u32 = (1 << 17) - 1;
/// Bytes that may be allocated for each foreign element until it is gone.
const MOST_BYTES: usize = 4_096;

/// An engine that has synced some Services, and its kernel.
fn programmed() -> (Engine<Recorder>, Recorder) {
    let kernel = Recorder::default();
    let mut engine = Engine::new(config(), ruleset::Layout::Maps, &Family::BOTH, kernel.clone());
    let services = (0..10).flat_map(|n| served(n, 3));
    for event in [node(None)].into_iter().chain(services).chain([Event::InitialListDone]) {
        engine.apply(event);
    }
    engine.sync(false).unwrap();
    (engine, kernel)
}

/// The bytes that are allocated while elements with this slot, each of a group of its own, are found and deleted.
fn repaired(slot: u32) -> usize {
    let (mut engine, kernel) = programmed();
    let name = TableName::new(nft::Family::Ip, "kube-proxy");
    let before = kernel.clone().read(&name).unwrap().unwrap();
    let mut dump = before.clone();
    let value = Value::Data(Data::from(address(Family::V4, 66, 1)).then(80_u16));
    edit(&mut dump, "endpoints", |elements| {
        for n in 0..FOREIGN {
            let prefix = Data::from(address(Family::V4, 99, n)).then(6_u8).then(80_u16);
            elements.push(Element::mapping(prefix.then(slot), value.clone()));
        }
    });
    kernel.log.borrow_mut().put(dump);
    kernel.log.borrow_mut().foreign = ForeignWrites::Unknown;
    assert!(engine.foreign_writes().is_some());
    let bytes = BYTES.load(Ordering::Relaxed);
    let report = engine.sync(false).unwrap();
    let bytes = BYTES.load(Ordering::Relaxed) - bytes;
    assert_eq!((report.added, report.removed), (0, usize::from(FOREIGN)));
    assert_eq!(kernel.clone().read(&name).unwrap().unwrap(), before);
    bytes
}

#[test]
fn a_read_back_costs_what_is_listed_whatever_slots_another_program_wrote() {
    let _turn = turn();
    let [low, high] = [0, LAST_SLOT].map(repaired);
    println!("{FOREIGN} foreign elements cost {low} bytes in slot 0, {high} bytes in slot {LAST_SLOT}");
    assert!(high <= low + low / 4, "{high} bytes, {low} in slot 0");
    assert!(low <= usize::from(FOREIGN) * MOST_BYTES, "{low} bytes");
}

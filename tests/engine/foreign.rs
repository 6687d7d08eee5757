//! What another program does to the tables: a comment on an endpoint, slots far behind the last one of a map, and a table that it owns.
//!
//! Drives the engine with a kernel in memory; needs no root. `tests/hostile` does the same with the real one.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::log::logged;
use crate::support::cluster::{address, config, endpoint, node, served, slice};
use crate::support::faulty::Faulty;
use crate::support::kernel::{Recorder, edit};
use kube_proxy::sync::{Engine, Report};
use nft::{Data, Element, Ownership, TableDump, TableName, Value};
use node::kernel::{ForeignWrites, Kernel};
use rules::model::{Event, Family};
use rules::ruleset::Layout;
use tracing::Level;

struct Cluster {
    engine: Engine<Recorder>,
    kernel: Recorder,
}

fn table() -> TableName {
    TableName::new(nft::Family::Ip, "kube-proxy")
}

impl Cluster {
    fn new() -> Self {
        let kernel = Recorder::default();
        let engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
        let mut cluster = Self { engine, kernel };
        let services = (0..3).flat_map(|n| served(n, 3));
        for event in [node(None)].into_iter().chain(services).chain([Event::InitialListDone]) {
            cluster.engine.apply(event);
        }
        cluster.sync();
        cluster
    }

    fn sync(&mut self) -> Report {
        self.engine.sync(false).expect("this kernel takes everything")
    }

    fn table(&self) -> TableDump {
        self.kernel.clone().read(&table()).expect("it can be read").expect("a table")
    }

    /// Another program changes the elements of `endpoints`.
    fn alter(&mut self, change: impl FnOnce(&mut Vec<Element>)) {
        let mut dump = self.table();
        edit(&mut dump, "endpoints", change);
        let mut log = self.kernel.log.borrow_mut();
        log.put(dump);
        log.foreign = ForeignWrites::Unknown;
    }

    /// The proxy notices that, and syncs.
    fn repair(&mut self) -> Report {
        assert!(self.engine.foreign_writes().is_some());
        self.sync()
    }
}

#[test]
fn a_comment_or_a_time_out_that_another_program_puts_on_an_endpoint_goes() {
    // What another program changes in the tables is put back, whatever part of an element it is (G10).
    type Alteration = fn(&mut Element);
    let alterations: [(&str, Alteration); 2] = [
        ("a comment", |element| element.comment = Some("foreign".into())),
        ("a time-out", |element| element.timeout = Some(Duration::from_secs(3600))),
    ];
    for (what, alteration) in alterations {
        let mut cluster = Cluster::new();
        let before = cluster.table();
        cluster.alter(|elements| alteration(&mut elements[4]));
        assert_ne!(cluster.table(), before);
        let names = cluster.engine.table_names();
        let dumps: Vec<_> = names.iter().map(|name| cluster.kernel.read(name).expect("readable")).collect();
        let found = cluster.engine.differences(dumps, None).listed;
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert!(found[0].subject.service().is_some_and(|service| service.starts_with("shop/web-")), "{found:?}");
        let report = cluster.repair();
        assert_eq!((report.added, report.removed), (1, 1), "{what} stays");
        assert_eq!(cluster.table(), before, "{what}");
    }
}

#[test]
fn slots_far_behind_the_last_one_go_and_no_other_element_with_them() {
    let mut cluster = Cluster::new();
    let before = cluster.table();
    let value = Value::Data(Data::from(address(Family::V4, 66, 1)).then(80_u16));
    cluster.alter(|elements| {
        // One behind the slots of a group that is there, with a gap before it; one of a group that is not there.
        let prefix = elements[4].key.as_slice()[..elements[4].key.len() - 4].to_vec();
        for prefix in [prefix, vec![9; 12]] {
            for slot in [5_u32, 131_071] {
                let key = Data::from_bytes(&[&prefix[..], &slot.to_ne_bytes()].concat()).expect("a short key");
                elements.push(Element::mapping(key, value.clone()));
            }
        }
        // And a gap between the slots of a group.
        elements.remove(1);
    });
    let report = cluster.repair();
    assert_eq!((report.added, report.removed), (1, 4));
    assert_eq!(cluster.table(), before);
}

/// Whether the engine says that another program wrote, when the kernel answers that question with these errors first, and the warnings that
/// it logs.
fn asked(errors: &[i32], times: usize) -> (Vec<bool>, Vec<String>) {
    let kernel = Faulty::new(Recorder::default());
    let mut engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
    kernel.orders.borrow_mut().foreign_errors.extend(errors);
    let mut found = Vec::new();
    let log = logged(Level::INFO, || found = (0..times).map(|_| engine.foreign_writes().is_some()).collect());
    (found, log.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect())
}

#[test]
fn an_error_of_the_question_who_wrote_is_logged_once_while_it_lasts() {
    // The question is asked at each pass of the sync loop, and so is one that the kernel does not answer (G10).
    const ENOBUFS: i32 = 105;
    const ENFILE: i32 = 23;
    let (found, warnings) = asked(&[ENOBUFS; 100], 100);
    assert_eq!(found, [false; 100]);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("Cannot ask whether another program changed our rules"), "{warnings:#?}");
    let (_, warnings) = asked(&[ENOBUFS, ENOBUFS, ENFILE, ENFILE], 10);
    assert_eq!(warnings.len(), 2, "another error is another matter: {warnings:#?}");

    let kernel = Faulty::new(Recorder::default());
    let mut engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
    let mut ask = |errno: Option<i32>| {
        kernel.orders.borrow_mut().foreign_errors.extend(errno);
        engine.foreign_writes().is_some()
    };
    let log = logged(Level::INFO, || {
        ask(Some(ENOBUFS));
        kernel.inner.log.borrow_mut().foreign = ForeignWrites::Unknown;
        assert!(ask(None), "what was written meanwhile is noticed with the first answer");
        ask(Some(ENOBUFS));
    });
    assert_eq!(log.matches("Cannot ask").count(), 2, "an answer ends the matter: {log}");
}

/// Another program makes a table anew that it owns.
fn take(kernel: &Recorder, table: &str) {
    let family = if table.starts_with("ip6") { nft::Family::Ip6 } else { nft::Family::Ip };
    let name = TableName::new(family, "kube-proxy");
    let dump = TableDump::empty(nft::Table { name, comment: None });
    kernel.log.borrow_mut().put(TableDump { ownership: Ownership::Of { port: 4711 }, ..dump });
}

/// The tables that the commands since the last call were about.
fn written(kernel: &Recorder) -> BTreeSet<String> {
    let sent = std::mem::take(&mut kernel.log.borrow_mut().sent);
    sent.iter().flatten().map(|command| command.table().to_string()).collect()
}

// The other family is programmed, in one transaction a sync; when the owner has ended, everything is as without it (G16).
#[test]
fn a_table_that_another_program_owns_is_left_alone_until_that_program_ends() {
    let moved = |n: u16, block: u8| {
        let of = |family| Event::SliceApplied(slice(n, family, vec![endpoint(address(family, block, n))]));
        Family::BOTH.map(of)
    };
    for layout in [Layout::Maps, Layout::Chains, Layout::ServiceChains] {
        for (owned, other) in [("ip6 kube-proxy", "ip kube-proxy"), ("ip kube-proxy", "ip6 kube-proxy")] {
            for is_first in [true, false] {
                let kernel = Recorder::default();
                let mut engine = Engine::new(config(), layout, &Family::BOTH, kernel.clone());
                let start = || {
                    [node(None)].into_iter().chain((0..3).flat_map(|n| served(n, 3))).chain([Event::InitialListDone])
                };
                start().for_each(|event| _ = engine.apply(event));
                if !is_first {
                    engine.sync(true).expect("nothing is wrong yet");
                }
                take(&kernel, owned);
                written(&kernel);
                // Even if it is noticed only by the kernel's refusal.
                moved(1, 9).into_iter().for_each(|event| _ = engine.apply(event));
                let report = engine.sync(true).expect("the other family is programmed");
                assert_eq!(report.transactions, 1);
                moved(2, 9).into_iter().for_each(|event| _ = engine.apply(event));
                written(&kernel);
                let report = engine.sync(true).expect("the other family is programmed");
                assert_eq!((report.transactions, written(&kernel)), (1, BTreeSet::from([other.to_owned()])));
                engine.compare_everything();
                engine.sync(true).expect("nothing is to be done, but for empty chains");
                assert!(!written(&kernel).contains(owned));

                kernel.log.borrow_mut().remove(owned);
                engine.compare_everything();
                engine.sync(true).expect("the family is programmed");
                assert!(written(&kernel).contains(owned));
                let mut next = Engine::new(config(), layout, &Family::BOTH, kernel.clone());
                start().chain([moved(1, 9), moved(2, 9)].into_iter().flatten()).for_each(|event| _ = next.apply(event));
                let report = next.sync(true).expect("nothing is wrong");
                assert_eq!((report.added, report.removed), (0, 0), "something is missing or left over");
            }
        }
    }
}

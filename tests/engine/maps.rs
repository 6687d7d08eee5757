//! How many maps share the endpoints: chosen at the first sync, raised in one transaction when the table has grown, with the maps of before
//! deleted in the next one, and taken over by the next process (F10).

use std::collections::BTreeMap;

use crate::support::cluster::{address, config, config_from, endpoint, name, node, served, slice};
use crate::support::faulty::{Fault, Faulty};
use crate::support::kernel::{Recorder, unpacked};
use crate::support::proxy;
use kube_proxy::sync::{Engine, NoKernel, Report};
use nft::{Command, Data, TableDump, Value};
use rules::diff::differences::as_read;
use rules::model::{Event, Family};
use rules::ruleset::Layout;
use rules::ruleset::map_steps::{Steps, found_in};
use serde_json::json;

type Kernel = Faulty<Recorder>;
type Proxy = Engine<Kernel>;

/// The elements that one map takes; 16 take eight times as many. A Service of these tests has nine in each family.
const FIRST_STEP: usize = 20;
const ENOMEM: i32 = 12;
const LAYOUTS: [Layout; 2] = [Layout::Maps, Layout::ServiceChains];

fn empty() -> Kernel {
    Faulty::new(Recorder::default())
}

fn proxy_with(kernel: &Kernel, layout: Layout, first_step: usize, services: u16) -> Proxy {
    let engine = Engine::new(config(), layout, &Family::BOTH, kernel.clone());
    let mut proxy = engine.with_map_steps(Steps::ending_at(first_step));
    let services = (0..services).flat_map(|n| served(n, 3));
    apply(&mut proxy, [node(None)].into_iter().chain(services).chain([Event::InitialListDone]));
    proxy
}

fn proxy(kernel: &Kernel, layout: Layout, services: u16) -> Proxy {
    proxy_with(kernel, layout, FIRST_STEP, services)
}

fn apply(proxy: &mut Proxy, events: impl IntoIterator<Item = Event>) {
    events.into_iter().for_each(|event| {
        proxy.apply(event);
    });
}

fn sync(proxy: &mut Proxy) -> Report {
    proxy.sync(true).expect("the kernel takes it")
}

/// Adds Services up to this number, and syncs.
fn grow(proxy: &mut Proxy, services: std::ops::Range<u16>) -> Report {
    apply(proxy, services.flat_map(|n| served(n, 3)));
    sync(proxy)
}

fn tables(kernel: &Kernel) -> BTreeMap<String, TableDump> {
    kernel.inner.log.borrow().tables().clone()
}

/// The number of maps in each table.
fn maps(kernel: &Kernel) -> Vec<Option<u8>> {
    tables(kernel).values().map(found_in).collect()
}

/// The transactions since the last call.
fn sent(kernel: &Kernel) -> Vec<Vec<Command>> {
    std::mem::take(&mut kernel.inner.log.borrow_mut().sent)
}

fn reads(kernel: &Kernel) -> usize {
    std::mem::take(&mut kernel.inner.log.borrow_mut().reads)
}

/// The keys of each set of each table, in order.
fn keys(kernel: &Kernel) -> BTreeMap<(String, String), Vec<Data>> {
    let mut all = BTreeMap::new();
    for (table, dump) in tables(kernel) {
        for (set, (_, elements)) in dump.sets {
            let mut keys: Vec<Data> = unpacked(&elements).into_iter().map(|element| element.key).collect();
            keys.sort();
            all.insert((table.clone(), set.to_string()), keys);
        }
    }
    all
}

/// The tables are those of a process that starts now: it writes the same elements into the same maps where there are no tables, and finds
/// nothing to change here, but for chains without rules.
fn assert_as_started_now(kernel: &Kernel, layout: Layout, services: u16) {
    let fresh = empty();
    sync(&mut proxy(&fresh, layout, services));
    assert_eq!(keys(kernel), keys(&fresh));
    let report = proxy(kernel, layout, services).sync(false).expect("the kernel takes it");
    assert_eq!((report.committed, report.full), (None, true));
}

#[test]
fn a_table_that_has_grown_gets_more_maps_in_one_transaction() {
    for layout in LAYOUTS {
        let kernel = empty();
        let mut proxy = proxy(&kernel, layout, 2);
        assert_eq!(sync(&mut proxy).transactions, 1);
        assert_eq!(maps(&kernel), [Some(1); 2]);
        sent(&kernel);
        reads(&kernel);

        let report = grow(&mut proxy, 2..3);
        let transactions = sent(&kernel);
        assert_eq!(
            (report.transactions, transactions.len()),
            (3, 3),
            "the change, the split of both tables, the old maps"
        );
        let is_deletion = |command: &&Command| matches!(command, Command::DeleteSet(..));
        assert_eq!(
            transactions[1].iter().filter(is_deletion).count(),
            0,
            "packets may still look up the maps of before"
        );
        assert_eq!(transactions[2].iter().filter(is_deletion).count(), 8, "four kinds of maps in both families");
        assert_eq!(transactions[2].len(), 8, "all else stays");
        assert_eq!((reads(&kernel), maps(&kernel)), (2, vec![Some(16); 2]));
        // The chains of before are deleted once nothing can be in them (F8).
        assert!(proxy.has_emptied_chains());
        sync(&mut proxy);
        sent(&kernel);
        assert_as_started_now(&kernel, layout, 3);

        let report = grow(&mut proxy, 3..4);
        assert_eq!((report.transactions, sent(&kernel).len(), report.full), (1, 1, false), "changes are small again");
        assert!(report.added < 60, "{report:?}");
        assert_eq!(sync(&mut proxy).committed, None);

        grow(&mut proxy, 4..18);
        assert_eq!(maps(&kernel), [Some(64); 2], "162 elements in 16 maps");
        assert_as_started_now(&kernel, layout, 18);
    }
}

#[test]
fn the_number_of_maps_never_falls_and_the_next_process_takes_it_over() {
    for layout in LAYOUTS {
        let kernel = empty();
        let mut first = proxy(&kernel, layout, 3);
        sync(&mut first);
        apply(&mut first, (1..3).map(|n| Event::ServiceDeleted(name(n))));
        sync(&mut first);
        sync(&mut first);
        assert_eq!(maps(&kernel), [Some(16); 2]);
        sent(&kernel);
        reads(&kernel);

        let report = sync(&mut proxy(&kernel, layout, 1));
        assert_eq!((report.committed, report.full, sent(&kernel).len()), (None, true, 0), "a restart writes nothing");
        assert_eq!(reads(&kernel), 2, "each table is read once");
    }
}

#[test]
fn a_process_that_finds_too_few_maps_writes_more_in_its_first_sync() {
    for layout in LAYOUTS {
        let kernel = empty();
        sync(&mut proxy_with(&kernel, layout, 1_000, 3));
        assert_eq!(maps(&kernel), [Some(1); 2]);
        sent(&kernel);
        reads(&kernel);
        // The second one deletes the maps of before.
        assert_eq!(sync(&mut proxy(&kernel, layout, 3)).transactions, 2);
        assert_eq!((maps(&kernel), reads(&kernel)), (vec![Some(16); 2], 2));
        assert_as_started_now(&kernel, layout, 3);
    }
}

#[test]
fn a_number_of_the_configuration_is_kept_whatever_the_size() {
    let kernel = empty();
    let mut fixed = proxy::config();
    fixed["nftables"]["endpointMaps"] = json!(4);
    let engine = Engine::new(config_from(&fixed), Layout::Maps, &Family::BOTH, kernel.clone());
    let mut proxy = engine.with_map_steps(Steps::ending_at(FIRST_STEP));
    apply(&mut proxy, [node(None), Event::InitialListDone]);
    sync(&mut proxy);
    assert_eq!(grow(&mut proxy, 0..30).transactions, 1);
    assert_eq!(maps(&kernel), [Some(4); 2]);
    // The next process may choose, and 4 is no number that it would choose.
    sync(&mut self::proxy(&kernel, Layout::Maps, 30));
    assert_eq!(maps(&kernel), [Some(64); 2]);
}

#[test]
fn with_a_chain_for_each_endpoint_there_is_one_map() {
    let kernel = empty();
    let mut proxy = proxy(&kernel, Layout::Chains, 3);
    sync(&mut proxy);
    assert_eq!(grow(&mut proxy, 3..30).transactions, 1);
    assert_eq!(maps(&kernel), [Some(1); 2]);
}

#[test]
fn a_split_that_fails_leaves_the_rules_and_is_not_tried_with_each_change() {
    for fault in [Fault::RefuseAll(ENOMEM), Fault::SocketDeath, Fault::LoseAck] {
        let kernel = empty();
        let mut proxy = proxy(&kernel, Layout::Maps, 2);
        sync(&mut proxy);
        kernel.orders.borrow_mut().commits = [Fault::Fine, fault].into();
        let report = grow(&mut proxy, 2..3);
        assert_eq!(report.transactions, 1, "the change is in force");
        assert_eq!(maps(&kernel), [Some(if fault == Fault::LoseAck { 16 } else { 1 }); 2], "{fault:?}");
        sent(&kernel);
        let report = grow(&mut proxy, 3..4);
        assert_eq!((report.transactions, report.full), (1, true), "everything is compared once: {fault:?}");
        assert_eq!(maps(&kernel), [Some(1); 2]);
        assert_eq!(proxy.quarantined().len(), 0);
        // The chains without rules that a lost split left.
        sync(&mut proxy);
        assert_eq!(sync(&mut proxy).committed, None);
        // The next process needs no hour.
        sync(&mut self::proxy(&kernel, Layout::Maps, 4));
        assert_as_started_now(&kernel, Layout::Maps, 4);
    }
}

#[test]
fn the_old_rules_of_a_refused_service_outlive_the_growth_of_the_table() {
    // A Service that the kernel refuses keeps what it had before (G15).
    let kernel = empty();
    let mut proxy = proxy(&kernel, Layout::Maps, 2);
    sync(&mut proxy);
    let is_bad = |element: &nft::Element| matches!(&element.value, Value::Data(value) if Data::as_slice(value).starts_with(&[10, 66]));
    kernel.orders.borrow_mut().poison = Some(is_bad);
    kernel.orders.borrow_mut().tells_element = true;
    apply(&mut proxy, [Event::SliceApplied(slice(1, Family::V4, vec![endpoint(address(Family::V4, 66, 1))]))]);
    assert!((0..20).any(|_| proxy.sync(true).is_ok()), "the search for the refused one comes to an end");
    assert_eq!(proxy.quarantined().cloned().collect::<Vec<_>>(), [name(1)]);
    grow(&mut proxy, 2..4);
    let elements = |map: &str| tables(&kernel)["ip kube-proxy"].sets[map].1.len();
    assert_eq!((maps(&kernel), elements("endpoints")), (vec![Some(1); 2], 4 * 9), "with those of the refused one");
    apply(&mut proxy, served(1, 2));
    sync(&mut proxy);
    assert_eq!((proxy.quarantined().len(), maps(&kernel)), (0, vec![Some(16); 2]), "it is whole again");
}

#[test]
fn what_is_rendered_has_the_maps_of_a_first_sync_and_what_is_compared_those_of_the_tables() {
    let engine = |services, first_step| {
        let engine = Engine::new(config(), Layout::Maps, &Family::BOTH, NoKernel::default());
        let mut engine = engine.with_map_steps(Steps::ending_at(first_step));
        let services = (0..services).flat_map(|n| served(n, 3));
        [node(None)].into_iter().chain(services).chain([Event::InitialListDone]).for_each(|event| {
            engine.apply(event);
        });
        engine
    };
    let rendered = |services, first_step| -> Vec<TableDump> {
        engine(services, first_step).content().tables.iter().map(as_read).collect()
    };
    let maps = |services| rendered(services, FIRST_STEP).iter().map(found_in).collect::<Vec<_>>();
    assert_eq!([maps(2), maps(3), maps(18)], [[Some(1); 2], [Some(16); 2], [Some(64); 2]]);
    // The number may also change between two looks.
    let mut looks = engine(3, FIRST_STEP);
    for (first_step, expected) in [(1_000, 1), (FIRST_STEP, 16), (3, 64), (1_000, 1)] {
        let dumps = rendered(3, first_step);
        assert!(dumps.iter().all(|dump| found_in(dump) == Some(expected)));
        assert_eq!(looks.differences(dumps.into_iter().map(Some).collect(), None).listed, []);
    }
}

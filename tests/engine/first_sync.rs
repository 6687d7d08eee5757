//! A first sync of very much: the tables are filled in several transactions, and the last one makes packets pass them. Whatever
//! fails between two of them, no packet passes half a table, and the next sync completes it.

use crate::support::cluster::{address, config, endpoint, name, node, served, slice};
use crate::support::faulty::{Fault, Faulty};
use crate::support::kernel::Recorder;
use kube_proxy::sync::Engine;
use nft::{Batch, Command, Data, Value};
use node::kernel::ForeignWrites;
use rules::model::{Event, Family};
use rules::ruleset::Layout;

/// Objects, elements among them, from which on there are several transactions, and the most in each but the last.
const ONE: usize = 50_000;
const PART: usize = 10_000;
/// Services with 16 endpoints in each family, for three addresses and a node port: some more elements than one transaction takes.
const SERVICES: u16 = 500;
const ENOMEM: i32 = 12;

type Proxy = Engine<Faulty<Recorder>>;

fn proxy(kernel: &Faulty<Recorder>, layout: Layout, services: u16) -> Proxy {
    let mut proxy = Engine::new(config(), layout, &Family::BOTH, kernel.clone());
    let services = (0..services).flat_map(|n| served(n, 16));
    [node(None)].into_iter().chain(services).chain([Event::InitialListDone]).for_each(|event| {
        proxy.apply(event);
    });
    proxy
}

fn empty() -> Faulty<Recorder> {
    Faulty::new(Recorder::default())
}

/// What the kernel keeps for these commands until the end of their transaction.
fn objects(commands: &[Command]) -> usize {
    commands.iter().map(|command| command.elements().max(1)).sum()
}

/// The base chains that these commands add.
fn hooks(commands: &[Command]) -> usize {
    commands.iter().filter(|command| matches!(command, Command::AddChain(_, chain) if chain.base.is_some())).count()
}

/// The transactions since the last call.
fn sent(kernel: &Faulty<Recorder>) -> Vec<Vec<Command>> {
    std::mem::take(&mut kernel.inner.log.borrow_mut().sent)
}

/// The base chains in the kernel.
fn hooks_present(kernel: &Faulty<Recorder>) -> usize {
    let log = kernel.inner.log.borrow();
    let tables = log.tables();
    let chains = tables.values().flat_map(|table| table.chains.values());
    chains.filter(|(chain, _)| chain.base.is_some()).count()
}

fn assert_complete(kernel: &Faulty<Recorder>, layout: Layout) {
    let report = proxy(kernel, layout, SERVICES).sync(false).expect("nothing is wrong");
    assert_eq!((report.added, report.removed, report.committed), (0, 0, None), "something is missing or left over");
}

fn is_sent_in_parts(layout: Layout) {
    let kernel = empty();
    let mut first = proxy(&kernel, layout, SERVICES);
    let report = first.sync(false).expect("nothing is wrong");
    let parts = sent(&kernel);
    let in_all: usize = parts.iter().map(|part| objects(part)).sum();
    assert!(in_all > ONE && parts.len() > ONE / PART, "{in_all} objects in {} transactions", parts.len());
    assert_eq!((report.transactions, report.full), (parts.len(), true));
    let (last, early) = parts.split_last().expect("several");
    for part in early {
        assert_eq!(hooks(part), 0, "no packet passes before the last transaction");
        assert!(objects(part) <= PART, "{}", objects(part));
    }
    assert!(objects(last) <= PART && hooks(last) >= 2, "{} base chains", hooks(last));
    assert_eq!(hooks_present(&kernel), hooks(last), "of both families");
    assert_complete(&kernel, layout);

    first.apply(Event::SliceApplied(slice(7, Family::V4, vec![endpoint(address(Family::V4, 245, 1))])));
    let report = first.sync(false).expect("nothing is wrong");
    assert_eq!((report.transactions, sent(&kernel).len()), (1, 1), "a change is one transaction");
}

#[test]
fn very_much_is_sent_in_parts_of_which_the_last_makes_packets_pass() {
    // A first sync beyond 50,000 objects is several transactions (G8).
    is_sent_in_parts(Layout::Maps);
}

#[test]
fn very_much_is_sent_in_parts_in_layout_chains_too() {
    is_sent_in_parts(Layout::Chains);
    is_sent_in_parts(Layout::ServiceChains);
}

#[test]
fn a_first_sync_of_less_is_one_transaction() {
    let kernel = empty();
    let report = proxy(&kernel, Layout::Maps, 300).sync(false).expect("nothing is wrong");
    assert!((ONE / 2..ONE).contains(&report.added), "{}", report.added);
    assert_eq!((report.transactions, sent(&kernel).len()), (1, 1));
}

#[test]
fn what_is_longer_than_the_kernel_takes_is_sent_in_parts_too() {
    // A process in a user namespace has a short send buffer; the first sync succeeds all the same (G8, O22).
    const MOST: usize = 200_000;
    for layout in [Layout::Maps, Layout::Chains, Layout::ServiceChains] {
        let kernel = empty();
        kernel.orders.borrow_mut().most_bytes = Some(MOST);
        let report = proxy(&kernel, layout, SERVICES).sync(false).expect("nothing is wrong");
        let parts = sent(&kernel);
        let len = |part: &Vec<Command>| Batch::encode(part).expect("it can be encoded").datagram_len();
        let least = parts.iter().map(len).sum::<usize>().div_ceil(MOST);
        assert!(parts.len() > 10 && parts.len() <= 2 * least, "{} transactions, at least {least}", parts.len());
        assert_eq!((report.transactions, report.full), (parts.len(), true));
        let (last, early) = parts.split_last().expect("several");
        assert!(early.iter().all(|part| hooks(part) == 0), "no packet passes before the last transaction");
        assert_eq!(hooks_present(&kernel), hooks(last), "of both families");
        assert_complete(&kernel, layout);
    }
}

#[test]
fn after_a_failure_between_the_parts_no_packet_passes_and_the_next_sync_completes_the_tables() {
    // A failed sync is tried again after reading back (G5).
    let parts = {
        let kernel = empty();
        proxy(&kernel, Layout::Maps, SERVICES).sync(false).expect("nothing is wrong").transactions
    };
    let last = parts - 1;
    for (fault, position) in
        [(Fault::SocketDeath, 0), (Fault::LoseAck, 1), (Fault::RefuseAll(ENOMEM), last), (Fault::LoseAck, last)]
    {
        let kernel = empty();
        let mut proxy = proxy(&kernel, Layout::Maps, SERVICES);
        let faults = [vec![Fault::Fine; position], vec![fault]].concat();
        kernel.orders.borrow_mut().commits = faults.into();
        proxy.sync(false).expect_err("the fault came");
        let is_done = fault == Fault::LoseAck && position == last;
        assert_eq!(hooks_present(&kernel) > 0, is_done, "{fault:?} in part {position}");
        let mut next = self::proxy(&kernel, Layout::Maps, 0);
        assert_eq!(next.adopt_previous(), is_done, "half a table is no table of a process before");
        sent(&kernel);
        let report = proxy.sync(false).expect("the fault has passed");
        let again = sent(&kernel);
        assert!(report.added <= (parts - position) * PART, "what is there is not sent again: {}", report.added);
        assert!(again.iter().rev().skip(1).all(|part| hooks(part) == 0), "{fault:?} in part {position}");
        assert_eq!(proxy.quarantined().len(), 0);
        assert_complete(&kernel, Layout::Maps);
    }
}

#[test]
fn a_service_that_is_refused_in_one_of_the_parts_is_found_and_the_others_are_served() {
    // A Service that the kernel refuses is left out (G15).
    for tells_element in [true, false] {
        let kernel = empty();
        let mut proxy = proxy(&kernel, Layout::Maps, SERVICES);
        proxy.apply(Event::SliceApplied(slice(250, Family::V4, vec![endpoint(address(Family::V4, 66, 1))])));
        let is_bad = |element: &nft::Element| matches!(&element.value, Value::Data(value) if Data::as_slice(value).starts_with(&[10, 66]));
        kernel.orders.borrow_mut().poison = Some(is_bad);
        kernel.orders.borrow_mut().tells_element = tells_element;
        let ended = (0..20).any(|_| proxy.sync(false).is_ok());
        assert!(ended, "the search comes to an end");
        assert_eq!(proxy.quarantined().cloned().collect::<Vec<_>>(), [name(250)]);
        let log = kernel.inner.log.borrow();
        assert_eq!(
            log.tables()["ip kube-proxy"].sets["endpoints"].1.len(),
            usize::from(SERVICES - 1) * 3 * 16,
            "the others have their endpoints"
        );
    }
}

#[test]
fn a_table_that_packets_pass_is_made_anew_in_one_transaction() {
    // However much that is (G8).
    let kernel = empty();
    let mut proxy = proxy(&kernel, Layout::Maps, SERVICES);
    proxy.sync(false).expect("nothing is wrong");
    sent(&kernel);
    {
        let mut log = kernel.inner.log.borrow_mut();
        for name in ["ip kube-proxy", "ip6 kube-proxy"] {
            let mut table = log.tables()[name].clone();
            table.unknown_flags = 8;
            log.put(table);
        }
        log.foreign = ForeignWrites::Unknown;
    }
    assert!(proxy.foreign_writes().is_some());
    let report = proxy.sync(false).expect("nothing is wrong");
    let [whole] = &sent(&kernel)[..] else { panic!("several transactions") };
    assert!(report.added > ONE && objects(whole) > ONE && hooks(whole) >= 2);
    assert!(whole.iter().any(|command| matches!(command, Command::DeleteTable(_))));
}

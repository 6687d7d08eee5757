//! How many allocations, messages and bytes one changed endpoint costs, whatever else the cluster holds.
//!
//! A binary of its own, with one test, because it counts every allocation of the process. The kernel here only has the
//! transaction encoded; needs no root.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube_proxy::conntrack::Flow;
use kube_proxy::kernel::{ForeignWrites, Kernel};
use kube_proxy::model::{Event, Family};
use kube_proxy::ruleset;
use kube_proxy::sync::{Engine, Report};
use nft::{Batch, Command, CommitError, Committed, Element, ReadError, Set, TableDump, TableName};
use support::cluster::{address, config, endpoint, endpoints, node, served, slice};

/// The sizes of cluster that must make no difference.
const SIZES: [u16; 2] = [10, 2000];
/// Endpoints of each Service in a family.
const ENDPOINTS: u16 = 3;
/// Allocations for one endpoint of a Service with four fronts; 142 when this was written.
const MOST_CALLS: usize = 170;
/// Changes that are counted; the one in the middle stands for all, so that the rare growth of a hash table is no matter.
const CHANGES: u16 = 9;

/// Counts the calls that ask for memory, and the bytes they ask for.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `GlobalAlloc::alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the block came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A kernel that encodes what it is given, and holds nothing.
struct Encoding;

impl Kernel for Encoding {
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        let batch = Batch::encode(commands)?;
        Ok(Committed { messages: batch.messages(), bytes: batch.bytes() })
    }

    fn read(&mut self, _: &TableName) -> Result<Option<TableDump>, ReadError> {
        Ok(None)
    }

    fn elements(&mut self, _: &TableName, _: &Set) -> Result<Vec<Element>, ReadError> {
        Ok(Vec::new())
    }

    fn foreign_writes(&mut self, _: &[TableName]) -> Result<ForeignWrites, ReadError> {
        Ok(ForeignWrites::None)
    }

    fn udp_flows(&mut self, _: Family) -> io::Result<Vec<Flow>> {
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, _: &[Flow]) -> io::Result<usize> {
        Ok(0)
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }
}

/// What a change cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    calls: usize,
    bytes: usize,
    messages: usize,
    sent: usize,
}

type Proxy = Engine<Encoding>;

fn change(proxy: &mut Proxy, events: impl IntoIterator<Item = Event>) -> Report {
    for event in events {
        proxy.apply(event);
    }
    proxy.sync(false).unwrap()
}

/// An engine that has synced a cluster with this many Services.
fn programmed(services: u16) -> Proxy {
    let mut proxy = Engine::new(config(), ruleset::Layout::Maps, &Family::BOTH, Encoding);
    let objects = (0..services).flat_map(|n| served(n, ENDPOINTS));
    change(&mut proxy, [node(Some("a"))].into_iter().chain(objects).chain([Event::InitialListDone]));
    proxy
}

/// The cost of replacing one endpoint of Service `n`.
fn replaced(proxy: &mut Proxy, n: u16) -> Cost {
    let mut list = endpoints(n, Family::V4, ENDPOINTS);
    list.pop();
    list.push(endpoint(address(Family::V4, 245, n)));
    let event = Event::SliceApplied(slice(n, Family::V4, list));
    let before = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    let report = change(proxy, [event]);
    let calls = CALLS.load(Ordering::Relaxed) - before.0;
    let bytes = BYTES.load(Ordering::Relaxed) - before.1;
    let committed = report.committed.expect("an endpoint was replaced");
    Cost { calls, bytes, messages: committed.messages, sent: committed.bytes }
}

#[test]
fn a_replaced_endpoint_costs_the_same_in_every_cluster() {
    let [small, large] = SIZES.map(|services| {
        let mut proxy = programmed(services);
        let mut costs: Vec<Cost> = (0..CHANGES).map(|n| replaced(&mut proxy, n)).collect();
        costs.sort_unstable();
        costs[usize::from(CHANGES / 2)]
    });
    println!("{small:?} with {} Services, {large:?} with {}", SIZES[0], SIZES[1]);
    assert_eq!((small.messages, small.sent), (large.messages, large.sent), "what goes over netlink");
    assert!(large.calls <= small.calls + 8, "{} allocations, {} in a small cluster", large.calls, small.calls);
    assert!(large.bytes <= small.bytes + 4096, "{} bytes allocated, {} in a small cluster", large.bytes, small.bytes);
    assert!((1..=MOST_CALLS).contains(&large.calls), "{} allocations", large.calls);
}

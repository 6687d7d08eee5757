//! How many allocations, messages and bytes one changed endpoint costs, whatever else the cluster holds.
//!
//! The kernel of these tests only encodes the transaction; needs no root.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use crate::support::cluster::{address, config, endpoint, endpoints, node, served, slice};
use crate::{count, turn};
use kube_proxy::sync::{Engine, Report};
use nft::{Batch, Command, CommitError, Committed, Element, ReadError, Set, TableDump, TableName};
use node::kernel::{ForeignWrites, Kernel};
use rules::conntrack::{Flow, Listing};
use rules::model::{Event, Family};
use rules::ruleset;

/// The sizes of cluster that must make no difference.
const SIZES: [u16; 2] = [10, 2000];
/// Endpoints of each Service in a family.
const ENDPOINTS: u16 = 3;
/// Allocations for one endpoint of a Service with four frontends; 142 when this was written, 172 since endpoints that left are remembered until
/// the flows that lead to them were examined (J12, J13).
const MOST_CALLS: usize = 175;
/// Changes that are counted; the one in the middle stands for all, so that the rare growth of a hash table does not count.
const CHANGES: u16 = 9;

/// A kernel that encodes what it is given, and holds nothing.
#[derive(Default)]
pub(crate) struct Encoding {
    /// The node's addresses.
    pub(crate) addresses: Vec<IpAddr>,
}

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

    fn foreign_writes(&mut self, _: &[TableName], _: Instant) -> Result<ForeignWrites, ReadError> {
        Ok(ForeignWrites::None)
    }

    fn flows(&mut self, _: Family, _: Listing, _: &mut dyn FnMut(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, _: &[Flow], _: Option<IpAddr>) -> io::Result<usize> {
        Ok(0)
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        Ok(self.addresses.clone())
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
    let mut proxy = Engine::new(config(), ruleset::Layout::Maps, &Family::BOTH, Encoding::default());
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
    let before = count();
    let report = change(proxy, [event]);
    let after = count();
    let committed = report.committed.expect("an endpoint was replaced");
    Cost {
        calls: after.calls - before.calls,
        bytes: after.bytes - before.bytes,
        messages: committed.messages,
        sent: committed.bytes,
    }
}

#[test]
fn a_replaced_endpoint_costs_the_same_in_every_cluster() {
    let _turn = turn();
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

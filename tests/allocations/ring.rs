//! The ring of changes: its memory, whatever happens.

use std::net::SocketAddr;
use std::time::SystemTime;

use crate::{count, turn};
use inspect::history::{Action, Change, CommitOutcome, Endpoints, EntryKind, Trigger, TriggerKind};
use kube_proxy::history::{History, MAX_BYTES, MAX_ENTRIES};
use rules::model::ObjectName;

const CHANGES: u32 = 100_000;
/// What the allocator adds to the bytes that are counted, at most: the ring's own table, which grows by doubling.
const TABLE: usize = 2 * MAX_ENTRIES * 64;

/// A change of a Service of its own, with so many endpoints added.
fn change(n: u32, endpoints: u32) -> EntryKind {
    let service = ObjectName::new(format!("namespace-{}", n % 100), format!("service-{n}"));
    let mut change = Change {
        trigger: Trigger { kind: TriggerKind::Slice, object: Some(service.clone()) },
        service,
        action: Action::Changed,
        latency: None,
        cluster_latency: None,
        result: CommitOutcome::Committed,
        error: None,
        fields: Vec::new(),
        frontends: Vec::new(),
        more_frontends: 0,
        endpoints: Endpoints::default(),
    };
    for endpoint in 0..endpoints {
        change.endpoints.add(SocketAddr::new(endpoint.to_be_bytes().into(), 8080));
    }
    EntryKind::Service(Box::new(change))
}

#[test]
fn a_hundred_thousand_changes_take_no_more_memory_than_the_ring_may() {
    let _turn = turn();
    for endpoints in [1, 100] {
        let before = count().live;
        let ring = History::new(SystemTime::now());
        let mut most = 0;
        for n in 0..CHANGES {
            ring.push(SystemTime::now(), Some(1), change(n, endpoints));
            most = most.max(count().live - before);
        }
        println!("{endpoints} endpoints a change: {most} bytes at most");
        assert!(most <= MAX_BYTES + TABLE, "{most} bytes with {endpoints} endpoints a change");
        let snapshot = ring.snapshot(0);
        assert_eq!(snapshot.last, u64::from(CHANGES));
        assert!(snapshot.entries.len() >= 500, "{} entries are left", snapshot.entries.len());
    }
}

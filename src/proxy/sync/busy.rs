//! Simulates two minutes of a cluster that changes five times a second, and checks that the periodic work of the loop is done in time.
//!
//! Calls the pure parts of the loop in the order in which [`super::Sync`] calls them. The test `tests/hostile` simulates such a cluster for
//! a real process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::addresses::AddressChecks;
use super::cleanup::{Cleanup, Step};
use super::repairs::Repairs;
use super::schedule::{End, Schedule};
use super::tables::{ClientChecks, Owner};
use super::writer_lock::WriterLock;
use inspect::history::Program;
use node::kernel::AddressNews;

const MILLISECOND: Duration = Duration::from_millis(1);
const LASTS: u32 = 120_000;
/// Milliseconds between two changes of the cluster (`EVENT`), two writes of another program (`WRITE`), two changes of addresses
/// (`ADDRESS`).
const EVENT: u32 = 200;
const WRITE: u32 = 7_000;
const ADDRESS: u32 = 13_000;
/// The time between two full comparisons in this test.
const COMPARISON: Duration = Duration::from_secs(30);

/// The milliseconds at which each kind of work was done.
type Happened = BTreeMap<&'static str, Vec<u32>>;

struct Loop {
    schedule: Schedule,
    addresses: AddressChecks,
    cleanup: Cleanup,
    checks: ClientChecks,
    repairs: Repairs,
    writer_lock: WriterLock,
    happened: Happened,
}

impl Loop {
    /// Simulates one millisecond of the loop.
    fn pass(&mut self, ms: u32, now: Instant) {
        let map: Arc<str> = "clients".into();
        let mut done = Vec::new();
        if self.writer_lock.is_due(now) {
            self.writer_lock.answered(None, now);
            done.push("the lock is checked");
        }
        if self.schedule.due(now) <= now {
            let compares = self.schedule.started(now);
            done.push(if compares { "everything is compared" } else { "a sync" });
            self.repairs.started(now);
            if !compares {
                // A sync that removes an endpoint for which session affinity remembers clients.
                self.checks.changed(&Owner::Node, &map, now);
            }
            // The first sync also reads everything back.
            let is_first = !self.happened.contains_key("a sync");
            self.schedule.finished(now, if compares || is_first { End::Compared } else { End::Done }, Duration::ZERO);
            self.cleanup.synced(now);
        }
        if ms % EVENT == EVENT / 2 {
            self.schedule.request();
        }
        if ms % WRITE == WRITE - 1 {
            let by = Program { name: "nft".to_owned(), pid: 1 };
            self.schedule.request_at(self.repairs.noticed([by], now));
        }
        if self.checks.due(now).is_some() {
            self.checks.checked(&map, false, now);
            done.push("clients are looked for");
        }
        if self.repairs.take_due(now).is_some() {
            done.push("a foreign write is logged");
        }
        let is_news = ms % ADDRESS == ADDRESS - 1;
        if self.addresses.is_due(if is_news { AddressNews::Changed } else { AddressNews::None }, now) {
            done.push(if is_news { "changed addresses are listed" } else { "addresses are listed" });
        }
        if self.cleanup.wait(now) == Some(Duration::ZERO) {
            self.cleanup.run_if_due(now);
            done.push("a cleanup step");
        }
        done.into_iter().for_each(|what| self.happened.entry(what).or_default().push(ms));
    }
}

#[test]
fn in_two_minutes_with_five_changes_a_second_all_that_happens_now_and_then_happens() {
    let start = Instant::now();
    let mut all = Loop {
        schedule: Schedule::new(Some(Duration::from_secs(1)), Duration::from_secs(30)).comparing_every(COMPARISON),
        addresses: AddressChecks::default(),
        cleanup: Cleanup::new(Box::new(|| Step { again: Some(Duration::from_secs(60)), removed: false })),
        checks: ClientChecks::default(),
        repairs: Repairs::new(),
        writer_lock: WriterLock::default(),
        happened: Happened::new(),
    };
    (0..LASTS).for_each(|ms| all.pass(ms, start + MILLISECOND * ms));
    for (what, least, most_between) in [
        ("a sync", 115, 1_300),
        ("everything is compared", 3, 31_500),
        ("clients are looked for", 300, 1_100),
        ("a foreign write is logged", 16, 10_500),
        ("changed addresses are listed", 9, ADDRESS),
        ("addresses are listed", 1, LASTS),
        ("the lock is checked", 119, 1_100),
        ("a cleanup step", 2, 61_000),
    ] {
        let times = all.happened.get(what).map_or(&[][..], Vec::as_slice);
        assert!(times.len() >= least, "{what}: {} times in two minutes", times.len());
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        assert!(longest <= most_between, "{what}: {longest} ms without it");
    }
}

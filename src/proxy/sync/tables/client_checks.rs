//! Decides when to read a session-affinity map again after an endpoint was removed.
//!
//! A packet that chose its endpoint under the old rules may add its client to the map after these rules are gone. Also, the kernel's
//! listing of a map misses elements if other elements expire while it is read: the next part of a listing starts at an element's number
//! (`nf_tables_dump_set` in `net/netfilter/nf_tables_api.c`), and by then the later elements have smaller numbers. So a map is read soon
//! after a change, and a few times more at growing intervals; if a read finds stale clients, the next read is soon again. Without stale
//! clients, the reads end within a second of the change: by then, no client may be remembered for an endpoint that is gone (E6).
//!
//! Takes names of maps and the results of reads, returns times. Pure: the caller passes in the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::owner::Owner;

/// Time from a change to the first read, and from a read that found stale clients to the next read.
const SOON: Duration = Duration::from_millis(100);
/// Time from a change to the last read, unless that read finds stale clients.
const LATE: Duration = Duration::from_millis(700);
/// Time from a read that failed to the next read: a failure often lasts for a while.
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);

/// The maps of a table that are to be read again.
#[derive(Debug, Default)]
pub(in crate::sync) struct ClientChecks(BTreeMap<Arc<str>, Check>);

#[derive(Clone, Debug)]
struct Check {
    owner: Owner,
    changed: Instant,
    next: Instant,
    /// Whether the last read failed, or the deletion of the stale clients that it found.
    has_failed: bool,
}

impl ClientChecks {
    /// Notes that endpoints changed for which a map may have clients, and that the kernel has committed the change. A read that is due
    /// sooner stays due: changes that come faster than reads must not put reads off.
    pub(in crate::sync) fn changed(&mut self, owner: &Owner, map: &Arc<str>, now: Instant) {
        let soon = now + SOON;
        let (next, has_failed) =
            self.0.get(map).map_or((soon, false), |check| (check.next.min(soon), check.has_failed));
        self.0.insert(Arc::clone(map), Check { owner: owner.clone(), changed: now, next, has_failed });
    }

    /// Makes a map due at once, because it still has clients that should be deleted.
    pub(in crate::sync) fn hurry(&mut self, owner: &Owner, map: &Arc<str>, now: Instant) {
        let check = Check { owner: owner.clone(), changed: now, next: now, has_failed: false };
        self.0.entry(Arc::clone(map)).or_insert(check).next = now;
    }

    /// Returns the Service, or the node, that a map belongs to.
    pub(in crate::sync) fn owner(&self, map: &str) -> Option<&Owner> {
        self.0.get(map).map(|check| &check.owner)
    }

    /// Returns when the next read is due.
    pub(in crate::sync) fn next(&self) -> Option<Instant> {
        self.0.values().map(|check| check.next).min()
    }

    /// Returns the map that has been due for longest, if any is due.
    pub(in crate::sync) fn due(&self, now: Instant) -> Option<&Arc<str>> {
        let due = self.0.iter().filter(|(_, check)| check.next <= now);
        due.min_by_key(|(_, check)| check.next).map(|(map, _)| map)
    }

    /// Notes that a map was read, and whether stale clients were found in it.
    pub(in crate::sync) fn checked(&mut self, map: &str, found: bool, now: Instant) {
        let Some(check) = self.0.get_mut(map) else { return };
        let last = check.changed + LATE;
        check.has_failed = false;
        if found {
            check.next = now + SOON;
        } else if now < last {
            check.next = (now + now.duration_since(check.changed) + SOON).min(last);
        } else {
            self.forget(map);
        }
    }

    /// Notes that a map could not be read, or its stale clients not be deleted. Returns whether this is the first failure in a row.
    pub(in crate::sync) fn failed(&mut self, map: &str, now: Instant) -> bool {
        let Some(check) = self.0.get_mut(map) else { return false };
        check.next = now + AFTER_A_FAILURE;
        !std::mem::replace(&mut check.has_failed, true)
    }

    /// Ends the reads of a map, for example because it does not exist any more.
    pub(in crate::sync) fn forget(&mut self, map: &str) {
        self.0.remove(map);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Reads the map whenever it is due, for three seconds, and finds stale clients until the millisecond `found_until`. Returns the
    /// milliseconds of the reads.
    fn reads(found_until: u32) -> Vec<u32> {
        let (mut checks, start, map) = (ClientChecks::default(), Instant::now(), "clients".into());
        checks.changed(&Owner::Node, &map, start);
        let read = |n: &u32| {
            let now = start + MILLISECOND * *n;
            let is_due = checks.due(now).is_some();
            assert_eq!(is_due, checks.next().is_some_and(|next| next <= now));
            if is_due {
                checks.checked(&map, *n < found_until, now);
            }
            is_due
        };
        (0..3_000).filter(read).collect()
    }

    #[test]
    fn a_map_without_stale_clients_is_read_three_times_within_a_second() {
        assert_eq!(reads(0), [100, 300, 700]);
    }

    #[test]
    fn changes_that_come_faster_than_reads_do_not_put_them_off() {
        let (mut checks, start, map) = (ClientChecks::default(), Instant::now(), "clients".into());
        let read = (0..1_000).filter(|n| {
            let now = start + MILLISECOND * *n;
            if n % 50 == 0 {
                checks.changed(&Owner::Node, &map, now);
            }
            let is_due = checks.due(now).is_some();
            if is_due {
                checks.checked(&map, false, now);
            }
            is_due
        });
        assert!(read.count() >= 5);
    }

    #[test]
    fn as_long_as_stale_clients_are_found_it_is_read_soon_again_and_at_the_end_once_in_vain() {
        assert_eq!(reads(101), [100, 200, 500, 700]);
        assert_eq!(reads(701), [100, 200, 300, 400, 500, 600, 700, 800]);
    }

    #[test]
    fn the_map_that_waited_longest_comes_first() {
        let (mut checks, start, [a, b]) = (ClientChecks::default(), Instant::now(), ["a", "b"].map(Arc::from));
        checks.changed(&Owner::Node, &b, start);
        checks.changed(&Owner::Node, &a, start + MILLISECOND);
        assert_eq!(checks.due(start + LATE), Some(&b));
        checks.hurry(&Owner::Node, &a, start);
        assert_eq!(checks.due(start), Some(&a));
    }

    #[test]
    fn a_failure_is_not_repeated_at_once() {
        let (mut checks, now, map) = (ClientChecks::default(), Instant::now(), "clients".into());
        checks.hurry(&Owner::Node, &map, now);
        assert_eq!(checks.next(), Some(now));
        assert!(checks.failed(&map, now));
        assert_eq!(checks.next(), Some(now + AFTER_A_FAILURE));
        checks.changed(&Owner::Node, &map, now);
        assert_eq!(checks.next(), Some(now + SOON), "a change does not wait for that");
        assert!(!checks.failed(&map, now), "it is logged once");
        checks.checked(&map, false, now);
        assert!(checks.failed(&map, now));
        checks.forget(&map);
        assert_eq!(checks.next(), None);
    }
}

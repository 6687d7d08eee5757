//! When a map of remembered clients is looked at again, after an endpoint was taken away.
//!
//! A packet that chose its endpoint under the old rules may have its client remembered after these are gone. And the kernel's list of
//! a map lacks some elements if others expire while it is read: it goes on at the number of the element where it stopped, and what
//! was behind has moved up. So a map is looked at soon after a change, and a few times more, ever later; and as long as a look finds
//! somebody, soon again. All of it is over within a second, because nobody may be sent to an endpoint that has been gone for longer.
//!
//! Takes names of maps and what became of a look, gives times. Pure: the clock is handed in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// From a change to the first look, and from a look that found somebody to the next.
const SOON: Duration = Duration::from_millis(100);
/// From a change to the last look, unless that one finds somebody.
const LATE: Duration = Duration::from_millis(700);
/// From a look that failed to the next: what failed often fails for a while, and each time is logged.
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);

/// The maps of a table that are to be looked at again.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<Arc<str>, Look>);

#[derive(Clone, Copy, Debug)]
struct Look {
    changed: Instant,
    next: Instant,
}

impl Looks {
    /// The endpoints that a map may remember changed, and the kernel has taken that over. A look that is due sooner stays: changes
    /// that come faster than looks must not put them off.
    pub(super) fn changed(&mut self, map: &Arc<str>, now: Instant) {
        let soon = now + SOON;
        let next = self.0.get(map).map_or(soon, |look| look.next.min(soon));
        self.0.insert(Arc::clone(map), Look { changed: now, next });
    }

    /// Clients that should be forgotten are still in this map.
    pub(super) fn hurry(&mut self, map: &Arc<str>, now: Instant) {
        self.0.entry(Arc::clone(map)).or_insert(Look { changed: now, next: now }).next = now;
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|look| look.next).min()
    }

    /// The map that is to be looked at next, if it is time.
    pub(super) fn due(&self, now: Instant) -> Option<&Arc<str>> {
        let due = self.0.iter().filter(|(_, look)| look.next <= now);
        due.min_by_key(|(_, look)| look.next).map(|(map, _)| map)
    }

    /// A map was looked at, and whether anybody was found who should not be in it.
    pub(super) fn looked(&mut self, map: &str, found: bool, now: Instant) {
        let Some(look) = self.0.get_mut(map) else { return };
        let last = look.changed + LATE;
        if found {
            look.next = now + SOON;
        } else if now < last {
            look.next = (now + now.duration_since(look.changed) + SOON).min(last);
        } else {
            self.forget(map);
        }
    }

    /// A map could not be looked at, or who was found could not be forgotten.
    pub(super) fn failed(&mut self, map: &str, now: Instant) {
        if let Some(look) = self.0.get_mut(map) {
            look.next = now + AFTER_A_FAILURE;
        }
    }

    /// A map does not exist any more.
    pub(super) fn forget(&mut self, map: &str) {
        self.0.remove(map);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Looks at the map whenever that is due, for three seconds; gives the milliseconds at which it did.
    fn looks_at(found_until: u32) -> Vec<u32> {
        let (mut looks, start, map) = (Looks::default(), Instant::now(), "clients".into());
        looks.changed(&map, start);
        let look = |n: &u32| {
            let now = start + MILLISECOND * *n;
            let is_due = looks.due(now).is_some();
            assert_eq!(is_due, looks.next().is_some_and(|next| next <= now));
            if is_due {
                looks.looked(&map, *n < found_until, now);
            }
            is_due
        };
        (0..3_000).filter(look).collect()
    }

    #[test]
    fn a_map_without_surprises_is_looked_at_three_times_within_a_second() {
        assert_eq!(looks_at(0), [100, 300, 700]);
    }

    #[test]
    fn changes_that_come_faster_than_looks_do_not_put_them_off() {
        let (mut looks, start, map) = (Looks::default(), Instant::now(), "clients".into());
        let looked = (0..1_000).filter(|n| {
            let now = start + MILLISECOND * *n;
            if n % 50 == 0 {
                looks.changed(&map, now);
            }
            let is_due = looks.due(now).is_some();
            if is_due {
                looks.looked(&map, false, now);
            }
            is_due
        });
        assert!(looked.count() >= 5);
    }

    #[test]
    fn as_long_as_somebody_is_found_it_is_looked_at_soon_again_and_at_the_end_once_in_vain() {
        assert_eq!(looks_at(101), [100, 200, 500, 700]);
        assert_eq!(looks_at(701), [100, 200, 300, 400, 500, 600, 700, 800]);
    }

    #[test]
    fn the_map_that_waited_longest_comes_first() {
        let (mut looks, start, [a, b]) = (Looks::default(), Instant::now(), ["a", "b"].map(Arc::from));
        looks.changed(&b, start);
        looks.changed(&a, start + MILLISECOND);
        assert_eq!(looks.due(start + LATE), Some(&b));
        looks.hurry(&a, start);
        assert_eq!(looks.due(start), Some(&a));
    }

    #[test]
    fn a_failure_is_not_repeated_at_once() {
        let (mut looks, now, map) = (Looks::default(), Instant::now(), "clients".into());
        looks.hurry(&map, now);
        assert_eq!(looks.next(), Some(now));
        looks.failed(&map, now);
        assert_eq!(looks.next(), Some(now + AFTER_A_FAILURE));
        looks.forget(&map);
        assert_eq!(looks.next(), None);
    }
}

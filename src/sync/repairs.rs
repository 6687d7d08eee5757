//! How often changes of the tables by other programs are repaired, and how often that is logged.
//!
//! Takes each finding that the tables were changed, gives the moment of the repair and, now and then, what is to be logged. The first
//! changes are repaired at once, further ones ten times a second; the first are logged at once, further ones every ten seconds with
//! their number. Pure: the caller passes in the time.
//!
//! Invariant: memory is bounded, whatever other programs do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How many repairs are made at once, and the least time between two further ones.
const REPAIRS: Rate = Rate { at_once: 5, then_every: Duration::from_millis(100) };

/// How many log records are written at once, and the least time between two further ones.
const RECORDS: Rate = Rate { at_once: 10, then_every: Duration::from_secs(10) };

/// Programs and findings that a log record names.
const NAMED: usize = 16;

/// A limit of how often something may happen.
#[derive(Clone, Copy, Debug)]
struct Rate {
    at_once: u32,
    then_every: Duration,
}

/// How much of a rate has been used.
#[derive(Debug)]
struct Budget {
    rate: Rate,
    /// When the whole number `at_once` is allowed again.
    full: Option<Instant>,
}

impl Budget {
    const fn new(rate: Rate) -> Self {
        Self { rate, full: None }
    }

    /// The earliest moment for the next time.
    fn next(&self, now: Instant) -> Instant {
        let head_start = self.rate.then_every * (self.rate.at_once - 1);
        self.full.and_then(|full| full.checked_sub(head_start)).map_or(now, |next| next.max(now))
    }

    fn take(&mut self, now: Instant) {
        self.full = Some(self.full.map_or(now, |full| full.max(now)) + self.rate.then_every);
    }
}

/// Changes of the tables by other programs that have not been repaired or not been logged.
#[derive(Debug)]
pub(super) struct Repairs {
    repairs: Budget,
    records: Budget,
    /// A change waits for its repair.
    waiting: bool,
    unlogged: Unlogged,
}

/// What the next log record is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unlogged {
    /// Times that the tables were found changed.
    pub(super) times: u64,
    /// The programs that changed them, as far as they are known.
    pub(super) by: BTreeSet<String>,
    /// What was found in the tables, where it is more than other rules and elements.
    pub(super) found: BTreeSet<String>,
}

impl Repairs {
    pub(super) const fn new() -> Self {
        let unlogged = Unlogged { times: 0, by: BTreeSet::new(), found: BTreeSet::new() };
        Self { repairs: Budget::new(REPAIRS), records: Budget::new(RECORDS), waiting: false, unlogged }
    }

    /// The tables were changed by these programs, or may have been. Gives the moment of the repair.
    pub(super) fn noticed(&mut self, by: impl IntoIterator<Item = String>, now: Instant) -> Instant {
        self.waiting = true;
        self.unlogged.times += 1;
        extend(&mut self.unlogged.by, by);
        self.repairs.next(now)
    }

    /// A sync begins, and with it the repair if there is one to do.
    pub(super) fn started(&mut self, now: Instant) {
        if std::mem::take(&mut self.waiting) {
            self.repairs.take(now);
        }
    }

    /// This was found in the tables.
    pub(super) fn found(&mut self, what: impl IntoIterator<Item = String>) {
        extend(&mut self.unlogged.found, what);
    }

    /// What is to be logged now. A change is logged after the sync that repaired it, together with what that found.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Unlogged> {
        if self.waiting || self.unlogged == Unlogged::default() || self.records.next(now) > now {
            return None;
        }
        self.records.take(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

fn extend(names: &mut BTreeSet<String>, more: impl IntoIterator<Item = String>) {
    for name in more {
        if names.len() < NAMED {
            names.insert(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program causes that changes the tables once a millisecond for this many seconds: repairs, log records.
    fn attack(seconds: u64) -> (usize, Vec<Unlogged>) {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        let (mut done, mut logged) = (0, Vec::new());
        for millisecond in 0..seconds * 1000 {
            let now = start + Duration::from_millis(millisecond);
            if repairs.noticed([format!("nft (pid {millisecond})")], now) <= now {
                repairs.started(now);
                done += 1;
            }
            logged.extend(repairs.take_due(now));
        }
        (done, logged)
    }

    #[test]
    fn the_first_changes_are_put_right_at_once_and_then_ten_a_second() {
        let (done, _) = attack(1);
        assert!((14..=15).contains(&done), "{done}");
        let (done, _) = attack(60);
        assert!((604..=605).contains(&done), "{done}");
    }

    #[test]
    fn a_program_that_goes_on_is_named_now_and_then_with_a_count() {
        let (_, logged) = attack(61);
        assert_eq!(logged.len(), 10 + 6, "ten at once, then one in ten seconds");
        assert_eq!(logged[0].by, BTreeSet::from(["nft (pid 0)".to_owned()]));
        assert_eq!((logged[4].times, logged[9].times, logged[10].times), (1, 100, 9_500));
        assert_eq!(logged[10].by.len(), NAMED, "no more are named, so that memory is bounded");
    }

    #[test]
    fn after_a_while_of_peace_all_is_as_at_the_beginning() {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        for now in [start, start + Duration::from_secs(200)] {
            for _ in 0..REPAIRS.at_once {
                assert_eq!(repairs.noticed([], now), now);
                assert_eq!(repairs.take_due(now), None, "it is not repaired yet");
                repairs.started(now);
                assert!(repairs.take_due(now).is_some());
            }
            assert_eq!(repairs.noticed([], now), now + REPAIRS.then_every);
            repairs.started(now);
        }
    }

    #[test]
    fn findings_are_logged_also_when_no_program_was_seen() {
        let (mut repairs, now) = (Repairs::new(), Instant::now());
        assert_eq!(repairs.take_due(now), None);
        repairs.found(["counter foreign".to_owned()]);
        repairs.started(now);
        let logged = repairs.take_due(now).map(|unlogged| (unlogged.times, unlogged.found));
        assert_eq!(logged, Some((0, BTreeSet::from(["counter foreign".to_owned()]))));
        assert_eq!(repairs.noticed([], now), now, "no repair was counted");
    }
}

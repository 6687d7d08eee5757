//! How often what other programs did to our rules is put right, and how often that is logged.
//!
//! Takes each finding that our tables were changed, gives the moment of the repair and, now and then, a sentence. A program that does
//! it again and again is answered at once for the first times and then ten times a second; it is named at once for the first times
//! and then every ten seconds, with the number of its changes. Pure: the clock is handed in.
//!
//! Invariant: memory is bounded, whatever other programs do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Repairs at once before they are spaced, and the space.
const TURNS: Rate = Rate { at_once: 5, then_every: Duration::from_millis(100) };

/// Sentences at once before they are spaced, and the space.
const SENTENCES: Rate = Rate { at_once: 10, then_every: Duration::from_secs(10) };

/// Programs and findings that a sentence names.
const NAMED: usize = 16;

/// Something that may happen so often.
#[derive(Clone, Copy, Debug)]
struct Rate {
    at_once: u32,
    then_every: Duration,
}

/// How much of a rate is used up.
#[derive(Debug)]
struct Budget {
    rate: Rate,
    /// When all of what may happen at once may happen again.
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

/// Changes of our tables by others that have not been put right or not been told of.
#[derive(Debug)]
pub(super) struct Repairs {
    turns: Budget,
    sentences: Budget,
    /// A change waits for its repair.
    waiting: bool,
    untold: Untold,
}

/// What the next sentence is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Untold {
    /// Times that the tables were found changed.
    pub(super) times: u64,
    /// By whom, as far as it is known.
    pub(super) by: BTreeSet<String>,
    /// What was found in the tables, where it is more than other rules and elements.
    pub(super) found: BTreeSet<String>,
}

impl Repairs {
    pub(super) const fn new() -> Self {
        let untold = Untold { times: 0, by: BTreeSet::new(), found: BTreeSet::new() };
        Self { turns: Budget::new(TURNS), sentences: Budget::new(SENTENCES), waiting: false, untold }
    }

    /// The tables were changed by these programs, or may have been. Gives the moment of the repair.
    pub(super) fn noticed(&mut self, by: impl IntoIterator<Item = String>, now: Instant) -> Instant {
        self.waiting = true;
        self.untold.times += 1;
        extend(&mut self.untold.by, by);
        self.turns.next(now)
    }

    /// A sync begins, and with it the repair if there is one to do.
    pub(super) fn started(&mut self, now: Instant) {
        if std::mem::take(&mut self.waiting) {
            self.turns.take(now);
        }
    }

    /// This was found in the tables.
    pub(super) fn found(&mut self, what: impl IntoIterator<Item = String>) {
        extend(&mut self.untold.found, what);
    }

    /// What is to be logged now. A change is told of after the sync that dealt with it, together with what that found.
    pub(super) fn sentence(&mut self, now: Instant) -> Option<Untold> {
        if self.waiting || self.untold == Untold::default() || self.sentences.next(now) > now {
            return None;
        }
        self.sentences.take(now);
        Some(std::mem::take(&mut self.untold))
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

    /// What a program causes that changes our tables once a millisecond for so many seconds: repairs, sentences.
    fn attack(seconds: u64) -> (usize, Vec<Untold>) {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        let (mut done, mut said) = (0, Vec::new());
        for millisecond in 0..seconds * 1000 {
            let now = start + Duration::from_millis(millisecond);
            if repairs.noticed([format!("nft (pid {millisecond})")], now) <= now {
                repairs.started(now);
                done += 1;
            }
            said.extend(repairs.sentence(now));
        }
        (done, said)
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
        let (_, said) = attack(61);
        assert_eq!(said.len(), 10 + 6, "ten at once, then one in ten seconds");
        assert_eq!(said[0].by, BTreeSet::from(["nft (pid 0)".to_owned()]));
        assert_eq!((said[4].times, said[9].times, said[10].times), (1, 100, 9_500));
        assert_eq!(said[10].by.len(), NAMED, "no more are named, so that memory is bounded");
    }

    #[test]
    fn after_a_while_of_peace_all_is_as_at_the_beginning() {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        for now in [start, start + Duration::from_secs(200)] {
            for _ in 0..TURNS.at_once {
                assert_eq!(repairs.noticed([], now), now);
                assert_eq!(repairs.sentence(now), None, "it is not dealt with");
                repairs.started(now);
                assert!(repairs.sentence(now).is_some());
            }
            assert_eq!(repairs.noticed([], now), now + TURNS.then_every);
            repairs.started(now);
        }
    }

    #[test]
    fn what_was_found_is_told_also_when_nobody_was_seen() {
        let (mut repairs, now) = (Repairs::new(), Instant::now());
        assert_eq!(repairs.sentence(now), None);
        repairs.found(["counter foreign".to_owned()]);
        repairs.started(now);
        let said = repairs.sentence(now).map(|untold| (untold.times, untold.found));
        assert_eq!(said, Some((0, BTreeSet::from(["counter foreign".to_owned()]))));
        assert_eq!(repairs.noticed([], now), now, "no turn was taken");
    }
}

//! Limits how often something may happen: a number of times at once, and then once in each interval.
//!
//! Pure: the caller passes in the time.

use std::time::{Duration, Instant};

/// A limit of how often something may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// How often it may happen at once; at least 1.
    pub(super) at_once: u32,
    pub(super) then_every: Duration,
}

/// How much of a rate has been used.
#[derive(Debug)]
pub(super) struct Budget {
    rate: Rate,
    /// When all `at_once` uses are allowed again; `None` before the first use.
    full: Option<Instant>,
}

impl Budget {
    pub(super) const fn new(rate: Rate) -> Self {
        Self { rate, full: None }
    }

    /// Returns the earliest time of the next use.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let head_start = self.rate.then_every * (self.rate.at_once - 1);
        self.full.and_then(|full| full.checked_sub(head_start)).map_or(now, |next| next.max(now))
    }

    /// Counts one use, even if none is allowed now.
    pub(super) fn take(&mut self, now: Instant) {
        self.full = Some(self.full.map_or(now, |full| full.max(now)) + self.rate.then_every);
    }

    /// Counts one use if one is allowed now. Returns whether it was allowed.
    pub(super) fn try_take(&mut self, now: Instant) -> bool {
        let is_allowed = self.next(now) <= now;
        if is_allowed {
            self.take(now);
        }
        is_allowed
    }

    /// Returns whether all uses are allowed again, as in a new budget.
    pub(super) fn is_unused(&self, now: Instant) -> bool {
        self.full.is_none_or(|full| full <= now)
    }
}

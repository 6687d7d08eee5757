//! Limits how often something may happen: a number of times at once, and then once in each interval.
//!
//! Pure: the caller passes in the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A limit of how often something may happen.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// How often it may happen at once; at least 1.
    pub at_once: u32,
    /// The least time between two further uses.
    pub then_every: Duration,
}

/// How much of a rate has been used.
#[derive(Debug)]
pub struct Budget {
    rate: Rate,
    /// When all `at_once` uses are allowed again; `None` before the first use.
    full: Option<Instant>,
}

impl Budget {
    /// Returns a budget of which nothing has been used.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate, full: None }
    }

    /// Returns the earliest time of the next use.
    #[must_use]
    pub fn next(&self, now: Instant) -> Instant {
        let head_start = self.rate.then_every * (self.rate.at_once - 1);
        self.full.and_then(|full| full.checked_sub(head_start)).map_or(now, |next| next.max(now))
    }

    /// Counts one use, even if none is allowed now.
    pub fn take(&mut self, now: Instant) {
        self.full = Some(self.full.map_or(now, |full| full.max(now)) + self.rate.then_every);
    }

    /// Counts one use if one is allowed now. Returns whether it was allowed.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let is_allowed = self.next(now) <= now;
        if is_allowed {
            self.take(now);
        }
        is_allowed
    }

    /// Returns whether all uses are allowed again, as in a new budget.
    #[must_use]
    pub fn is_unused(&self, now: Instant) -> bool {
        self.full.is_none_or(|full| full <= now)
    }
}

/// A budget for each of many keys, in bounded memory.
#[derive(Debug)]
pub struct Budgets<K> {
    rate: Rate,
    by_key: HashMap<K, Budget>,
}

impl<K: Eq + Hash> Budgets<K> {
    /// The most keys whose use is remembered. When more keys are in use, all of them get new budgets.
    pub const REMEMBERED: usize = 4096;

    /// Returns budgets with this rate for each key.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self { rate, by_key: HashMap::new() }
    }

    /// Counts one use for a key if one is allowed now. Returns whether it was allowed.
    pub fn try_take(&mut self, key: K, now: Instant) -> bool {
        if self.by_key.len() >= Self::REMEMBERED {
            self.by_key.retain(|_, budget| !budget.is_unused(now));
        }
        if self.by_key.len() >= Self::REMEMBERED {
            self.by_key.clear();
        }
        self.by_key.entry(key).or_insert_with(|| Budget::new(self.rate)).try_take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { at_once: 3, then_every: Duration::from_secs(60) };

    #[test]
    fn each_key_has_its_own_budget() {
        let (mut budgets, now) = (Budgets::new(RATE), Instant::now());
        let mut uses = |key, now| (0..10).filter(|_| budgets.try_take(key, now)).count();
        assert_eq!((uses("a", now), uses("b", now), uses("a", now)), (3, 3, 0));
        assert_eq!(uses("a", now + RATE.then_every), 1);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut budgets, now) = (Budgets::new(RATE), Instant::now());
        for key in 0..3 * Budgets::<usize>::REMEMBERED {
            budgets.try_take(key, now);
            assert!(budgets.by_key.len() <= Budgets::<usize>::REMEMBERED);
        }
    }
}

//! How long to wait before the next try.
//!
//! Takes failures and successes, gives durations. Pure: chance and time come from the caller, so clock jumps mean nothing.

use std::time::Duration;

/// The wait after the first failure, at least.
const FIRST: Duration = Duration::from_millis(800);
/// What no wait exceeds, whatever the number of failures.
const LONGEST: Duration = Duration::from_secs(30);
/// The part of a wait that is left to chance, so that a thousand nodes do not come back at the same moment.
const JITTER: f64 = 0.5;
/// The longest wait that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(120);

/// The back-off of one watch.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure: 0.8 s at first, twice as long each time, 30 s at most.
    ///
    /// `asked` is what the server asked for (Retry-After), and is kept to up to two minutes; `chance` is in 0..1.
    pub(super) fn failed(&mut self, asked: Option<Duration>, chance: f64) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let base = doubled.min(LONGEST.div_f64(1.0 + JITTER));
        let wait = base.mul_f64(JITTER.mul_add(chance, 1.0));
        wait.max(asked.unwrap_or_default().min(LONGEST_ASKED))
    }

    /// All is well again: the next failure counts as the first.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(backoff: &mut Backoff, chance: f64) -> u128 {
        backoff.failed(None, chance).as_millis()
    }

    #[test]
    fn waits_double_up_to_half_a_minute() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| millis(&mut backoff, 0.0)).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12_800, 20_000, 20_000, 20_000]);
        assert_eq!(millis(&mut backoff, 1.0), 30_000);
        backoff.succeeded();
        assert_eq!(millis(&mut backoff, 0.5), 1000);
    }

    #[test]
    fn years_of_failures_overflow_nothing() {
        let mut backoff = Backoff { failures: u32::MAX };
        assert_eq!(millis(&mut backoff, 0.0), 20_000);
    }

    #[test]
    fn a_server_may_ask_for_more_but_not_for_hours() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.failed(Some(Duration::from_secs(7)), 0.0), Duration::from_secs(7));
        assert_eq!(backoff.failed(Some(Duration::ZERO), 0.0), Duration::from_millis(1600));
        assert_eq!(backoff.failed(Some(Duration::from_secs(86_400)), 0.0), LONGEST_ASKED);
    }
}

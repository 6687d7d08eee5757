//! When to sync: at most so often, again after a failure, and once in a while without a reason.
//!
//! Pure: the clock is handed in. Requests are coalesced into one (G2); between the end of a run and the start of the next lies at
//! least the minimum interval (G3); a failed run is tried again with growing delays up to the sync period (G5); an hour after the
//! last run there is another one (G4).

use std::time::{Duration, Instant};

/// Time without a request after which everything is compared again (G4).
const RESYNC: Duration = Duration::from_secs(3600);

/// Delay before the first new try of a failed run; it doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// When the next run is due.
#[derive(Clone, Debug)]
pub struct Schedule {
    min_interval: Duration,
    max_retry: Duration,
    requested: bool,
    last_end: Option<Instant>,
    /// Failed runs in a row.
    failures: u32,
}

impl Schedule {
    /// A schedule with `nftables.minSyncPeriod` and `nftables.syncPeriod`.
    #[must_use]
    pub fn new(min_interval: Duration, max_retry: Duration) -> Self {
        Self { min_interval, max_retry, requested: false, last_end: None, failures: 0 }
    }

    /// Asks for a run.
    pub fn request(&mut self) {
        self.requested = true;
    }

    /// Whether a run was asked for.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.requested
    }

    /// When the next run is due; it may lie in the past.
    #[must_use]
    pub fn due(&self, now: Instant) -> Instant {
        let Some(end) = self.last_end else { return now };
        let retry = (self.failures > 0).then(|| end + self.retry_delay());
        let asked = self.requested.then_some(end);
        let wanted = retry.into_iter().chain(asked).min().unwrap_or(end + RESYNC);
        wanted.max(end + self.min_interval)
    }

    /// Notes that a run takes place now: requests from here on are for the next one.
    pub fn started(&mut self) {
        self.requested = false;
    }

    /// Notes the end of a run.
    pub fn finished(&mut self, now: Instant, ok: bool) {
        self.last_end = Some(now);
        self.failures = if ok { 0 } else { self.failures.saturating_add(1) };
    }

    fn retry_delay(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        FIRST_RETRY.saturating_mul(1 << doublings).min(self.max_retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(30);

    fn after_a_run(ok: bool) -> (Schedule, Instant) {
        let now = Instant::now();
        let mut schedule = Schedule::new(MIN, MAX);
        schedule.request();
        schedule.started();
        schedule.finished(now, ok);
        (schedule, now)
    }

    // G3
    #[test]
    fn the_first_run_is_not_delayed_and_later_ones_keep_their_distance() {
        let now = Instant::now();
        assert_eq!(Schedule::new(MIN, MAX).due(now), now);
        let (mut schedule, end) = after_a_run(true);
        schedule.request();
        assert_eq!(schedule.due(end + MAX), end + MIN);
    }

    // G2
    #[test]
    fn requests_during_a_run_are_one_request_for_the_next() {
        let (mut schedule, end) = after_a_run(true);
        schedule.started();
        schedule.request();
        schedule.request();
        schedule.finished(end, true);
        assert_eq!(schedule.due(end), end + MIN);
        schedule.started();
        schedule.finished(end, true);
        assert_eq!(schedule.due(end), end + RESYNC);
    }

    // G4
    #[test]
    fn without_requests_there_is_a_run_every_hour() {
        let (schedule, end) = after_a_run(true);
        assert_eq!(schedule.due(end), end + Duration::from_secs(3600));
    }

    // G5
    #[test]
    fn failures_are_tried_again_ever_later_up_to_the_sync_period() {
        let (mut schedule, end) = after_a_run(false);
        assert_eq!(schedule.due(end), end + MIN, "not before the minimum interval");
        let mut delays = Vec::new();
        for _ in 0..12 {
            schedule.finished(end, false);
            delays.push(schedule.due(end) - end);
        }
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&MAX));
        schedule.request();
        assert_eq!(schedule.due(end), end + MIN, "a request is served earlier");
        schedule.started();
        schedule.finished(end, true);
        assert_eq!(schedule.due(end), end + RESYNC);
    }
}

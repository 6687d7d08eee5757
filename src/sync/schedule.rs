//! When to sync: at most so often, again after a failure, and once in a while without a reason.
//!
//! Pure: the caller passes in the time. Requests are coalesced into one (G2); between the end of a run that an event asked for and the
//! start of the next such run lies at least the minimum interval (G3); a failed run is tried again with growing delays up to the sync
//! period (G5); an hour after the last run there is another one (G4).
//!
//! Invariant: a run that no event asked for (a clean-up, a repair, a new try, the hourly one) delays none that an event asks for. A
//! clean-up keeps the minimum interval from every run before it, a repair from none.

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
    wanted: Wanted,
    /// What the run that takes place was asked for.
    running: Wanted,
    last_end: Option<Instant>,
    /// The end of the last run that an event asked for.
    last_asked: Option<Instant>,
    /// Failed runs in a row.
    failures: u32,
}

/// The reasons for the next run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Something changed.
    event: bool,
    /// What an earlier run left for later.
    chore: bool,
    /// Another program changed the tables: not before this moment.
    repair: Option<Instant>,
}

impl Schedule {
    /// A schedule with `nftables.minSyncPeriod` and `nftables.syncPeriod`.
    #[must_use]
    pub fn new(min_interval: Duration, max_retry: Duration) -> Self {
        let (wanted, running) = (Wanted::default(), Wanted::default());
        Self { min_interval, max_retry, wanted, running, last_end: None, last_asked: None, failures: 0 }
    }

    /// Asks for a run because something changed.
    pub fn request(&mut self) {
        self.wanted.event = true;
    }

    /// Asks for a run that finishes what an earlier one left for later.
    pub fn request_chore(&mut self) {
        self.wanted.chore = true;
    }

    /// Asks for a run at this moment because another program changed the tables. After a failed run it waits as long as that does.
    pub fn request_repair(&mut self, at: Instant) {
        self.wanted.repair = Some(self.wanted.repair.map_or(at, |before| before.min(at)));
    }

    /// Whether a run was asked for, for whatever reason.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.wanted != Wanted::default()
    }

    /// When the next run is due; it may lie in the past.
    #[must_use]
    pub fn due(&self, now: Instant) -> Instant {
        let Some(end) = self.last_end else { return now };
        let spaced = self.last_asked.map_or(end, |asked| asked + self.min_interval);
        let retry = (self.failures > 0).then(|| (end + self.retry_delay()).max(spaced));
        let event = self.wanted.event.then_some(spaced);
        let chore = self.wanted.chore.then_some(end + self.min_interval);
        let repair = self.wanted.repair.filter(|_| self.failures == 0);
        [retry, event, chore, repair].into_iter().flatten().min().unwrap_or(end + RESYNC)
    }

    /// Notes that a run takes place now: requests from here on are for the next one. Says whether there was a request.
    pub fn started(&mut self) -> bool {
        let requested = self.is_requested();
        self.running = std::mem::take(&mut self.wanted);
        requested
    }

    /// Notes the end of a run.
    pub fn finished(&mut self, now: Instant, ok: bool) {
        if self.running.event || self.last_end.is_none() {
            self.last_asked = Some(now);
        }
        self.running = Wanted::default();
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

    // The first sync does not wait, later ones keep `minSyncPeriod` after the end of the last one (G3).
    #[test]
    fn the_first_run_is_not_delayed_and_later_ones_keep_their_distance() {
        let now = Instant::now();
        assert_eq!(Schedule::new(MIN, MAX).due(now), now);
        let (mut schedule, end) = after_a_run(true);
        schedule.request();
        assert_eq!(schedule.due(end + MAX), end + MIN);
    }

    // At most one request is pending (G2).
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

    // An hour after the last sync everything is compared, without a request (G4).
    #[test]
    fn without_requests_there_is_a_run_every_hour() {
        let (schedule, end) = after_a_run(true);
        assert_eq!(schedule.due(end), end + Duration::from_secs(3600));
    }

    // A failed sync is tried again after 0.1 s, then later and later, up to `syncPeriod` (G5).
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

    // Repairs, clean-ups and the hourly comparison delay no change (F8, G3).
    #[test]
    fn a_run_that_no_event_asked_for_delays_none_that_an_event_asks_for() {
        type Ask = fn(&mut Schedule, Instant);
        let runs: [(&str, Ask); 3] = [
            ("a clean-up", |schedule, _| schedule.request_chore()),
            ("a repair", |schedule, now| schedule.request_repair(now)),
            ("the hourly run", |_, _| {}),
        ];
        for (what, ask) in runs {
            let (mut schedule, end) = after_a_run(true);
            let later = end + 10 * MIN;
            ask(&mut schedule, later);
            schedule.started();
            schedule.finished(later, true);
            schedule.request();
            assert!(schedule.due(later) <= later, "{what}");
            schedule.started();
            schedule.finished(later, true);
            schedule.request();
            assert_eq!(schedule.due(later), later + MIN, "{what}, then two runs that events asked for");
        }
    }

    // Emptied chains are deleted by a later transaction, which can wait; what another program changed cannot (F8).
    #[test]
    fn a_clean_up_keeps_the_minimum_interval_and_a_repair_does_not() {
        let (mut schedule, end) = after_a_run(true);
        schedule.request_chore();
        assert_eq!(schedule.due(end), end + MIN);
        schedule.request_repair(end);
        assert_eq!(schedule.due(end), end);
        assert!(schedule.started(), "it was asked for");
        schedule.finished(end, false);
        schedule.request_repair(end);
        assert_eq!(schedule.due(end), end + MIN, "a repair that fails is tried again like any other run");
        assert!(schedule.is_requested());
    }
}

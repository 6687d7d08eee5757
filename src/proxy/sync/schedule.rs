//! Decides when to sync: not too often, again after a failure, and once in a while without a request.
//!
//! Pure: the caller passes in the time. A run is one sync. Requests are coalesced into one (G2). Between the end of a run that an event
//! asked for and the start of the next such run lies at least the minimum interval, unless that run also makes a repair, which does not
//! wait (G3). A failed run is tried again with growing delays up to the sync period (G5). The next full comparison, which reads the tables
//! back, follows about an hour after the last one (G4).
//!
//! The minimum interval is what the configuration says. If it says nothing, it is [`INTERVAL_PER_COST`] times the processor time of the
//! last run that an event asked for, at most [`AUTOMATIC_LIMIT`]: a run of 0.4 ms does not make the next change wait for a second; the
//! first run of the process counts as free. Processor time and not duration, because a run that waited for a busy processor or for the
//! kernel costs no more than one that did not.
//!
//! The hour counts from the last comparison and not from the last run, because on a busy cluster one run follows another. A comparison
//! reads all tables, which may take long, so it is put off while an event waits for a run; after [`PATIENCE`] it is done together with the
//! next run.
//!
//! Invariant: a run that no event asked for (a clean-up, a repair, a retry, the hourly one) does not make the schedule delay a run that an
//! event asks for. A clean-up keeps the minimum interval from every run before it; a repair and a run for the node's addresses do not.

use std::time::{Duration, Instant};

use component::config::AUTOMATIC_LIMIT;

/// Time between two full comparisons (G4), before jitter of a quarter. Upstream does a full sync once an hour (`FullSyncPeriod` in
/// `pkg/proxy/util/utils.go` of Kubernetes).
const COMPARISON: Duration = Duration::from_secs(3600);

/// By which share the time between two comparisons may be longer or shorter, so that nodes that were started together do not read their
/// tables back at the same time.
const JITTER: f64 = 0.25;

/// How long at most a comparison is put off while events wait for a run: events may come faster than runs end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Delay before the first retry of a failed run; it doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// Without a configured minimum interval, the interval is this many times the processor time of the last run that an event asked for, at
/// most [`AUTOMATIC_LIMIT`]. So runs that take up to 100 ms use at most a tenth of a processor (`src/decisions/0007-minimum-sync-period.md`).
const INTERVAL_PER_COST: u32 = 10;

/// Knows the requests and the times of earlier runs, and so when the next run is due.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The configured minimum interval; `None`: it follows from `last_cost`.
    min_interval: Option<Duration>,
    max_retry: Duration,
    /// The time between two full comparisons.
    comparison: Duration,
    wanted: Wanted,
    /// The reasons for the run under way.
    running: Wanted,
    last_end: Option<Instant>,
    /// The end of the last run that an event asked for, or of the first run.
    last_asked: Option<Instant>,
    /// The processor time of the run of `last_asked`; 0 if that is the first run of the process.
    last_cost: Duration,
    /// The end of the last run that compared everything.
    last_compared: Option<Instant>,
    /// Failed runs in a row.
    failures: u32,
}

/// The reasons for the next run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Something changed.
    event: bool,
    /// An earlier run left work for later.
    cleanup_step: bool,
    /// When a run is due that does not wait for the minimum interval: for a repair, or for changed addresses; `None` without such a
    /// request.
    urgent: Option<Instant>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run did what was requested.
    Done,
    /// The run did what was requested, and read back and compared everything.
    Compared,
    /// The run failed, and is to be tried again. The retry reads everything back, because it is not known what the kernel holds.
    Failed,
}

impl Schedule {
    /// Makes a schedule with a full comparison once an hour. `min_interval` is `nftables.minSyncPeriod`, or `None` to derive the interval
    /// from the processor time of runs. `max_retry` is `nftables.syncPeriod`.
    #[must_use]
    pub fn new(min_interval: Option<Duration>, max_retry: Duration) -> Self {
        let (wanted, running) = (Wanted::default(), Wanted::default());
        Self {
            min_interval,
            max_retry,
            comparison: COMPARISON,
            wanted,
            running,
            last_end: None,
            last_asked: None,
            last_cost: Duration::ZERO,
            last_compared: None,
            failures: 0,
        }
    }

    /// Returns this schedule with another time between two full comparisons.
    #[must_use]
    pub(crate) const fn comparing_every(self, comparison: Duration) -> Self {
        Self { comparison, ..self }
    }

    /// Returns this schedule with 45 to 75 minutes between two full comparisons; `chance` is a number from 0 to 1.
    #[must_use]
    pub(crate) fn with_jitter(self, chance: f64) -> Self {
        self.comparing_every(COMPARISON.mul_f64((2.0 * chance - 1.0).mul_add(JITTER, 1.0)))
    }

    /// Asks for a run because something changed.
    pub fn request(&mut self) {
        self.wanted.event = true;
    }

    /// Asks for a run that finishes work that an earlier one left for later.
    pub(crate) fn request_cleanup(&mut self) {
        self.wanted.cleanup_step = true;
    }

    /// Asks for a run at the time `at` that does not wait for the minimum interval, for example for a repair. After a failed run, the
    /// request waits for the retry.
    pub(crate) fn request_at(&mut self, at: Instant) {
        self.wanted.urgent = Some(self.wanted.urgent.map_or(at, |before| before.min(at)));
    }

    /// Asks for a run because the node's addresses changed: at once or, after a failed run, as early as for an event. The failure may have
    /// nothing to do with addresses, and the retry may be as far away as the sync period.
    pub(crate) fn request_for_addresses(&mut self, now: Instant) {
        if self.failures == 0 {
            self.request_at(now);
        } else {
            self.request();
        }
    }

    /// Returns whether a run was asked for, for whatever reason.
    #[must_use]
    pub(crate) fn is_requested(&self) -> bool {
        self.wanted != Wanted::default()
    }

    /// Returns when the next run is due; the time may lie in the past.
    #[must_use]
    pub fn due(&self, now: Instant) -> Instant {
        let Some(end) = self.last_end else { return now };
        let interval = self.interval();
        let spaced = self.last_asked.map_or(end, |asked| asked + interval);
        let retry = (self.failures > 0).then(|| (end + self.retry_delay()).max(spaced));
        let event = self.wanted.event.then_some(spaced);
        let cleanup_step = self.wanted.cleanup_step.then_some(end + interval);
        let urgent = self.wanted.urgent.filter(|_| self.failures == 0);
        // A retry compares everything itself, and an event goes first.
        let comparison = self.comparison_due().filter(|_| self.failures == 0 && !self.wanted.event);
        [retry, event, cleanup_step, urgent, comparison].into_iter().flatten().min().unwrap_or(end + self.comparison)
    }

    /// Returns the minimum interval: the configured one, or else one that follows from the processor time of the last run that an event
    /// asked for.
    fn interval(&self) -> Duration {
        self.min_interval.unwrap_or_else(|| self.last_cost.saturating_mul(INTERVAL_PER_COST).min(AUTOMATIC_LIMIT))
    }

    /// Returns when the next full comparison is due; `None` before the first run, which compares everything.
    fn comparison_due(&self) -> Option<Instant> {
        Some(self.last_compared.or(self.last_end)? + self.comparison)
    }

    /// Notes that a run starts now: later requests are for the next run. Returns whether this run is to compare everything, because the
    /// last comparison is long ago.
    pub fn started(&mut self, now: Instant) -> bool {
        let is_over = |due: Instant| now >= if self.wanted.event { due + PATIENCE } else { due };
        let compares = self.failures == 0 && self.comparison_due().is_some_and(is_over);
        self.running = std::mem::take(&mut self.wanted);
        compares
    }

    /// Notes the end of a run, and the processor time that it took.
    pub fn finished(&mut self, now: Instant, how: End, cost: Duration) {
        if self.running.event || self.last_end.is_none() {
            // The first run programs everything and comes only once, so its cost does not delay the first change after it.
            let cost = if self.last_end.is_none() { Duration::ZERO } else { cost };
            (self.last_asked, self.last_cost) = (Some(now), cost);
        }
        self.running = Wanted::default();
        self.last_end = Some(now);
        match how {
            End::Done => self.failures = 0,
            End::Compared => (self.failures, self.last_compared) = (0, Some(now)),
            End::Failed => self.failures = self.failures.saturating_add(1),
        }
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
    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns a schedule after its first run, which reads everything back, and the time at which that run ended.
    fn after_a_run(how: End) -> (Schedule, Instant) {
        let now = Instant::now();
        let mut schedule = Schedule::new(Some(MIN), MAX);
        schedule.request();
        assert!(!schedule.started(now), "the first run compares everything by itself");
        schedule.finished(now, how, Duration::ZERO);
        (schedule, now)
    }

    // The first sync does not wait; a later one that an event asks for keeps `minSyncPeriod` after the end of the last one (G3).
    #[test]
    fn the_first_run_is_not_delayed_and_later_ones_keep_their_distance() {
        let now = Instant::now();
        assert_eq!(Schedule::new(Some(MIN), MAX).due(now), now);
        let (mut schedule, end) = after_a_run(End::Compared);
        schedule.request();
        assert_eq!(schedule.due(end + MAX), end + MIN);
    }

    /// Returns how long after the end of the second run, which takes nine seconds and has this cost, the third run may start, without a
    /// configured interval.
    fn automatic(how: End, cost: Duration) -> Duration {
        let start = Instant::now();
        let mut schedule = Schedule::new(None, MAX);
        for end in [start, start + Duration::from_secs(9)] {
            schedule.request();
            schedule.started(start);
            schedule.finished(end, how, cost);
            if end == start {
                schedule.request();
                assert_eq!(schedule.due(end), end, "the first run counts as free");
            }
        }
        schedule.request();
        schedule.due(start) - (start + Duration::from_secs(9))
    }

    // Without a configured interval, a change waits for ten times the processor time of the last run that an event asked for, and at most for
    // a second (G3).
    #[test]
    fn the_automatic_interval_is_ten_times_the_processor_time_and_at_most_a_second() {
        let ms = Duration::from_millis;
        assert_eq!(automatic(End::Done, Duration::from_micros(400)), ms(4));
        assert_eq!(automatic(End::Done, ms(99)), ms(990));
        assert_eq!(automatic(End::Compared, ms(100)), AUTOMATIC_LIMIT);
        assert_eq!(automatic(End::Compared, Duration::from_secs(7)), AUTOMATIC_LIMIT);
    }

    // The hourly comparison takes much processor time, which delays no change (G3, G4).
    #[test]
    fn the_automatic_interval_follows_from_runs_that_events_asked_for_and_from_no_other() {
        let start = Instant::now();
        let mut schedule = Schedule::new(None, MAX);
        schedule.request();
        schedule.started(start);
        schedule.finished(start, End::Compared, Duration::ZERO);
        let late = start + 2 * HOUR;
        assert!(schedule.started(late), "the hourly comparison");
        schedule.finished(late + MIN, End::Compared, MIN);
        schedule.request();
        assert!(schedule.due(late + MIN) <= late + MIN);
    }

    // At most one request is pending (G2).
    #[test]
    fn requests_during_a_run_are_one_request_for_the_next() {
        let (mut schedule, end) = after_a_run(End::Compared);
        schedule.started(end);
        schedule.request();
        schedule.request();
        schedule.finished(end, End::Done, Duration::ZERO);
        assert_eq!(schedule.due(end), end + MIN);
        schedule.started(end);
        schedule.finished(end, End::Done, Duration::ZERO);
        assert_eq!(schedule.due(end), end + HOUR);
    }

    // An hour after the last comparison, everything is compared again without a request (G4).
    #[test]
    fn without_requests_everything_is_compared_every_hour() {
        let (mut schedule, end) = after_a_run(End::Compared);
        assert_eq!(schedule.due(end), end + HOUR);
        assert!(schedule.started(end + HOUR));
        schedule.finished(end + HOUR, End::Compared, Duration::ZERO);
        assert_eq!(schedule.due(end + HOUR), end + 2 * HOUR);
    }

    // The time between comparisons differs by process, so that nodes that were started together read their tables back at different times
    // (G4).
    #[test]
    fn the_hour_is_less_or_more_by_chance_and_each_time_the_same_for_a_process() {
        let due = |chance| {
            let (schedule, end) = after_a_run(End::Compared);
            schedule.with_jitter(chance).due(end) - end
        };
        assert_eq!([0.0, 0.5, 1.0].map(due), [HOUR * 3 / 4, HOUR, HOUR * 5 / 4]);
    }

    // A run that reads everything back for another reason, such as a repair, is a comparison (G4, G7).
    #[test]
    fn the_hour_begins_with_each_run_that_compared_everything_and_with_no_other() {
        let (mut schedule, end) = after_a_run(End::Compared);
        for (minute, how, due) in [
            (10, End::Done, 60),
            (20, End::Compared, 80),
            (30, End::Done, 80),
            (40, End::Failed, 80),
            (41, End::Compared, 101),
        ] {
            let now = end + Duration::from_secs(60) * minute;
            schedule.request();
            assert!(!schedule.started(now), "it is not an hour");
            schedule.finished(now, how, Duration::ZERO);
            let expected = if how == End::Failed { now + MIN } else { end + Duration::from_secs(60) * due };
            assert_eq!(schedule.due(now), expected, "after {how:?} in minute {minute}");
        }
    }

    /// Simulates for the time `lasts` a cluster with an event each `every`, whose runs take `takes`. Returns for each comparison how long
    /// ago the last comparison before it ended, and whether an event was waiting.
    fn live(min: Duration, every: Duration, takes: Duration, lasts: Duration, chance: f64) -> Vec<(Duration, bool)> {
        let start = Instant::now();
        let mut schedule = Schedule::new(Some(min), MAX).with_jitter(chance);
        schedule.finished(start, End::Compared, Duration::ZERO);
        let (mut now, mut next_event, mut compared, mut found) = (start, start + every, start, Vec::new());
        while now < start + lasts {
            // Like the loop, takes the events that are there, and then checks whether a run is due.
            while next_event <= now {
                schedule.request();
                next_event += every;
            }
            let due = schedule.due(now);
            if due > now {
                now = due.min(next_event);
                continue;
            }
            let waits = schedule.wanted.event;
            let compares = schedule.started(now);
            if compares {
                found.push((now - compared, waits));
            }
            now += takes;
            schedule.finished(now, if compares { End::Compared } else { End::Done }, takes);
            if compares {
                compared = now;
            }
        }
        found
    }

    // The alert KubeProxyTablesNotVerified fires after two hours without a comparison; it is silent on a node that is busy for days (G4).
    #[test]
    fn on_a_live_cluster_everything_is_compared_about_once_an_hour_and_no_event_waits_for_it() {
        const DAYS: Duration = Duration::from_secs(3 * 24 * 3600);
        for (min, every) in [(MIN, 200), (Duration::from_millis(10), 200), (MIN, 5_000), (MIN, 3_500_000)] {
            for chance in [0.0, 0.6, 1.0] {
                let every = Duration::from_millis(every);
                let found = live(min, every, Duration::from_millis(5), DAYS, chance);
                let oldest = found.iter().map(|(age, _)| *age).max().expect("comparisons in three days");
                assert!(found.len() >= 56, "{} comparisons in three days", found.len());
                assert!(oldest < HOUR * 5 / 4 + 2 * MIN, "an event each {every:?}: {oldest:?}");
                assert!(found.iter().all(|(_, waited)| !waited), "an event each {every:?} waited for a comparison");
            }
        }
    }

    // Events that come faster than runs end put a comparison off for minutes, and not for ever (G4).
    #[test]
    fn where_an_event_always_waits_everything_is_compared_some_minutes_late() {
        let takes = Duration::from_millis(300);
        let found = live(Duration::ZERO, Duration::from_millis(200), takes, Duration::from_secs(24 * 3600), 1.0);
        assert!(found.len() >= 17, "{} comparisons in a day", found.len());
        assert!(found.iter().all(|(age, waited)| *waited && *age < HOUR * 5 / 4 + PATIENCE + MIN), "{found:?}");
    }

    // A failed sync is tried again after 0.1 s, then later and later, up to `syncPeriod` (G5).
    #[test]
    fn failures_are_tried_again_ever_later_up_to_the_sync_period() {
        let (mut schedule, end) = after_a_run(End::Failed);
        assert_eq!(schedule.due(end), end + MIN, "not before the minimum interval");
        let mut delays = Vec::new();
        for _ in 0..12 {
            schedule.finished(end, End::Failed, Duration::ZERO);
            delays.push(schedule.due(end) - end);
        }
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&MAX));
        schedule.request();
        assert_eq!(schedule.due(end), end + MIN, "a request is served earlier");
        assert!(!schedule.started(end), "it is tried again, which is no hourly comparison");
        schedule.finished(end, End::Compared, Duration::ZERO);
        assert_eq!(schedule.due(end), end + HOUR);
    }

    // A new address is served soon while runs fail, too (G11).
    #[test]
    fn new_addresses_do_not_wait_for_a_new_try_that_is_far_away() {
        let (mut schedule, mut end) = after_a_run(End::Compared);
        schedule.request_for_addresses(end);
        assert_eq!(schedule.due(end), end);
        for _ in 0..12 {
            schedule.started(end);
            schedule.finished(end, End::Failed, Duration::ZERO);
            end += MAX;
        }
        schedule.started(end);
        schedule.finished(end, End::Failed, Duration::ZERO);
        assert_eq!(schedule.due(end), end + MAX);
        schedule.request_for_addresses(end + MIN);
        assert!(schedule.due(end + MIN) <= end + MIN);
    }

    // A retry reads everything back anyway. So it does not count as the hourly comparison, after which differences would be blamed on other
    // programs (G4, G5).
    #[test]
    fn a_new_try_is_never_the_hourly_comparison() {
        let (mut schedule, end) = after_a_run(End::Compared);
        schedule.request();
        schedule.started(end);
        schedule.finished(end, End::Failed, Duration::ZERO);
        assert!(!schedule.started(end + 3 * HOUR));
        schedule.finished(end + 3 * HOUR, End::Compared, Duration::ZERO);
        assert_eq!(schedule.due(end + 3 * HOUR), end + 4 * HOUR);
    }

    // Repairs, clean-ups and the hourly comparison delay no change (F8, G3).
    #[test]
    fn a_run_that_no_event_asked_for_delays_none_that_an_event_asks_for() {
        type Ask = fn(&mut Schedule, Instant);
        let runs: [(&str, Ask); 3] = [
            ("a clean-up", |schedule, _| schedule.request_cleanup()),
            ("a repair", |schedule, now| schedule.request_at(now)),
            ("the hourly run", |_, _| {}),
        ];
        for (what, ask) in runs {
            let (mut schedule, end) = after_a_run(End::Compared);
            let later = end + 10 * MIN;
            ask(&mut schedule, later);
            schedule.started(later);
            schedule.finished(later, End::Done, Duration::ZERO);
            schedule.request();
            assert!(schedule.due(later) <= later, "{what}");
            schedule.started(later);
            schedule.finished(later, End::Done, Duration::ZERO);
            schedule.request();
            assert_eq!(schedule.due(later), later + MIN, "{what}, then two runs that events asked for");
        }
    }

    // Emptied chains are deleted by a later transaction, which can wait; the repair of what another program changed cannot wait (F8).
    #[test]
    fn a_clean_up_keeps_the_minimum_interval_and_a_repair_does_not() {
        let (mut schedule, end) = after_a_run(End::Compared);
        schedule.request_cleanup();
        assert_eq!(schedule.due(end), end + MIN);
        schedule.request_at(end);
        assert_eq!(schedule.due(end), end);
        assert!(!schedule.started(end), "what is asked for is not the hourly comparison");
        schedule.finished(end, End::Failed, Duration::ZERO);
        schedule.request_at(end);
        assert_eq!(schedule.due(end), end + MIN, "a repair that fails is tried again like any other run");
        assert!(schedule.is_requested());
    }
}

//! What follows from a failure of one kind: how long to wait before the next attempt, and whether to log it.
//!
//! Takes failures and successes, gives durations. Pure: chance and monotonic time come from the caller.
//!
//! Invariants: the waits double up to 30 s. A failure that lasts is a warning at once and again after every five minutes, each cause at
//! most once in that time; a failure that the next attempt may explain better, or take back, is not a warning yet.

use std::time::{Duration, Instant};

use super::error::Cause;

/// The shortest wait after the first failure.
const FIRST: Duration = Duration::from_millis(800);
/// The longest wait, jitter included.
const LONGEST: Duration = Duration::from_secs(30);
/// The random share that is added to a wait, so that the nodes of a cluster do not come back at the same moment.
const JITTER: f64 = 0.5;
/// The longest wait that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);
/// The time between two warnings about the same cause.
const REPEAT: Duration = Duration::from_secs(300);

/// The back-off of one kind.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure: 0.8 s to 1.2 s at first, twice as long each time, 30 s at most.
    ///
    /// `retry_after` is what the server asked for, up to two minutes; `chance` is in 0..1.
    pub(super) fn next(&mut self, retry_after: Option<Duration>, chance: f64) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let base = doubled.min(LONGEST.div_f64(1.0 + JITTER));
        let wait = base.mul_f64(JITTER.mul_add(chance, 1.0));
        wait.max(retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER))
    }

    /// The next failure counts as the first.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// The time in which one kind cannot be listed and watched, if it cannot be now.
#[derive(Debug, Default)]
pub(super) struct Outage(Option<Lasting>);

#[derive(Debug)]
struct Lasting {
    since: Instant,
    /// How many times [`REPEAT`] had passed when `logged` was begun.
    period: u128,
    /// The causes that were logged in this period; a handful.
    logged: Vec<Cause>,
    last: Cause,
}

impl Outage {
    /// An attempt failed. Gives how long the outage has lasted if a warning is due.
    pub(super) fn failed(&mut self, cause: Cause, now: Instant) -> Option<Duration> {
        let Some(lasting) = &mut self.0 else {
            let interrupted = cause == Cause::Interrupted;
            let logged = if interrupted { Vec::new() } else { vec![cause] };
            self.0 = Some(Lasting { since: now, period: 0, logged, last: cause });
            return (!interrupted).then_some(Duration::ZERO);
        };
        let lasted = now.saturating_duration_since(lasting.since);
        let period = lasted.as_nanos() / REPEAT.as_nanos();
        if period > lasting.period {
            lasting.period = period;
            lasting.logged.clear();
        }
        // A server that restarts refuses all requests for a moment: such a cause after another one has to come twice.
        let is_new = std::mem::replace(&mut lasting.last, cause) != cause && !lasting.logged.is_empty();
        let may_pass = matches!(cause, Cause::Interrupted | Cause::Refused(_));
        if is_new && may_pass || lasting.logged.contains(&cause) {
            return None;
        }
        lasting.logged.push(cause);
        Some(lasted)
    }

    /// Whether there is an outage now.
    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The server serves the kind again. Gives how long the outage lasted, if there was one.
    pub(super) fn over(&mut self, now: Instant) -> Option<Duration> {
        self.0.take().map(|lasting| now.saturating_duration_since(lasting.since))
    }
}

/// A duration as Kubernetes writes it: `12m0s`, `1h0m3s`; tenths of a second below a minute.
pub(super) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m{}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(backoff: &mut Backoff, chance: f64) -> u128 {
        backoff.next(None, chance).as_millis()
    }

    #[test]
    fn waits_double_up_to_half_a_minute() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| millis(&mut backoff, 0.0)).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12_800, 20_000, 20_000, 20_000]);
        assert_eq!(millis(&mut backoff, 1.0), 30_000);
        backoff.reset();
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
        assert_eq!(backoff.next(Some(Duration::from_secs(7)), 0.0), Duration::from_secs(7));
        assert_eq!(backoff.next(Some(Duration::ZERO), 0.0), Duration::from_millis(1600));
        assert_eq!(backoff.next(Some(Duration::from_secs(86_400)), 0.0), LONGEST_RETRY_AFTER);
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds at which warnings are due when an attempt fails every `every` seconds of an outage that lasts this many seconds.
    fn warnings(outage: &mut Outage, start: Instant, seconds: u32, every: usize, cause: Cause) -> Vec<u32> {
        let due = |second: &u32| outage.failed(cause, start + SECOND * *second).is_some();
        (0..seconds).step_by(every).filter(due).collect()
    }

    #[test]
    fn an_outage_of_twelve_minutes_leaves_three_warnings() {
        for every in [1, 7, 30] {
            let (mut outage, start) = (Outage::default(), Instant::now());
            let found = warnings(&mut outage, start, 720, every, Cause::Unreachable);
            let step = u32::try_from(every).unwrap();
            assert_eq!(found, [0, 300_u32.next_multiple_of(step), 600_u32.next_multiple_of(step)]);
            assert_eq!(outage.over(start + SECOND * 720), Some(SECOND * 720));
        }
    }

    #[test]
    fn a_warning_says_how_long_the_outage_has_lasted() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        assert_eq!(outage.failed(Cause::Unreachable, start), Some(Duration::ZERO));
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 20), None);
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 310), Some(SECOND * 310));
        // After a pause of the machine one warning is due, not all that were missed, and the next is at a multiple of the interval again.
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 1000), Some(SECOND * 1000));
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 1199), None);
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 1200), Some(SECOND * 1200));
    }

    #[test]
    fn a_break_is_a_warning_only_if_the_next_try_fails() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        assert_eq!(outage.failed(Cause::Interrupted, start), None);
        assert!(outage.is_on());
        assert_eq!(outage.over(start + SECOND), Some(SECOND));
        assert_eq!(outage.failed(Cause::Interrupted, start + SECOND * 9), None);
        assert_eq!(outage.failed(Cause::Interrupted, start + SECOND * 10), Some(SECOND));
        // A new cause is logged within an outage too.
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 11), Some(SECOND * 2));
        assert_eq!(outage.failed(Cause::Interrupted, start + SECOND * 12), None);
    }

    #[test]
    fn another_cause_is_a_warning_too_when_it_lasts() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let mut failed = |second, cause| outage.failed(cause, start + SECOND * second).is_some();
        assert!(failed(0, Cause::Unreachable));
        // As a server that starts answers for a moment.
        assert!(!failed(10, Cause::Refused(403)) && !failed(11, Cause::Unreachable));
        assert!(
            !failed(20, Cause::Refused(403)) && failed(21, Cause::Refused(403)) && !failed(22, Cause::Refused(403))
        );
        assert!(failed(23, Cause::ExcessiveRemoval), "it is logged before a second list confirms it");
        assert!(failed(301, Cause::Refused(500)), "the first failure after five minutes, whatever it is");
    }

    #[test]
    fn causes_that_take_turns_are_not_more_warnings_than_there_are_causes() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let causes = [Cause::Unreachable, Cause::Unreachable, Cause::Refused(503), Cause::Refused(503)];
        let due =
            (0..720_u32).filter(|n| outage.failed(causes[*n as usize % 4], start + SECOND * *n).is_some()).count();
        assert_eq!(due, 6);
    }

    #[test]
    fn after_an_outage_the_next_one_starts_from_zero() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        assert_eq!(outage.over(start), None);
        assert!(outage.failed(Cause::Unreachable, start).is_some());
        assert!(outage.over(start + SECOND).is_some());
        assert!(!outage.is_on());
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 2), Some(Duration::ZERO));
    }

    #[test]
    fn durations_are_written_as_kubernetes_does() {
        let written =
            [0, 900, 59_000, 60_000, 720_000, 3_600_000, 90_061_000].map(|ms| go_duration(Duration::from_millis(ms)));
        assert_eq!(written, ["0.0s", "0.9s", "59.0s", "1m0s", "12m0s", "1h0m0s", "25h1m1s"]);
    }
}

//! When a kind that cannot be followed is worth a line in the log.
//!
//! Takes the failures of one kind and the moments at which the server serves it again; gives what to log and how long it
//! has lasted. Pure; monotonic time comes from the caller.
//!
//! Invariants: a failure that lasts is a warning at once and again with every five minutes of its duration, each cause at most
//! once in that time. What the next try may explain better, or take back, is not a warning yet.

use std::time::{Duration, Instant};

/// The time between two warnings about the same cause.
const REPEAT: Duration = Duration::from_secs(300);

/// Why a kind cannot be followed, as far as two failures are the same to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// What worked ended: a broken connection, a version that is too old. The next try often succeeds.
    Interrupted,
    /// No connection comes about, or no answer to a request.
    Unreachable,
    /// The server answered with this HTTP status.
    Refused(u16),
    /// The server says what no API server says.
    NotUnderstood,
    /// The list is hard to believe.
    Doubtful,
    /// Our own configuration cannot be read.
    Configuration,
}

/// The state of one kind.
#[derive(Debug, Default)]
pub(super) struct Outage(Option<Lasting>);

#[derive(Debug)]
struct Lasting {
    since: Instant,
    /// How many times [`REPEAT`] had passed when `logged` was begun.
    period: u128,
    /// What was logged in this period; a handful of values.
    logged: Vec<Cause>,
    last: Cause,
}

impl Outage {
    /// A try failed. Gives how long the kind has not been followed if a warning is due.
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
        // A server that starts again refuses everybody for a moment: what replaces another cause has to be there twice.
        let is_new = std::mem::replace(&mut lasting.last, cause) != cause && !lasting.logged.is_empty();
        let may_pass = matches!(cause, Cause::Interrupted | Cause::Refused(_));
        if is_new && may_pass || lasting.logged.contains(&cause) {
            return None;
        }
        lasting.logged.push(cause);
        Some(lasted)
    }

    /// Whether the kind cannot be followed at present.
    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The server serves the kind. Gives how long it did not, if there was an outage.
    pub(super) fn over(&mut self, now: Instant) -> Option<Duration> {
        self.0.take().map(|lasting| now.saturating_duration_since(lasting.since))
    }
}

/// A duration as Kubernetes writes them: `12m0s`, `1h0m3s`; tenths of a second below a minute.
pub(super) fn words(duration: Duration) -> String {
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

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds at which warnings are due when a try fails each so many seconds of an outage.
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
        // Nothing is made up for after a pause of the machine, and the next is at a multiple again.
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
        // Within an outage too.
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
        assert!(failed(23, Cause::Doubtful), "that is said before a second list confirms it");
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
    fn what_comes_after_an_outage_begins_anew() {
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
            [0, 900, 59_000, 60_000, 720_000, 3_600_000, 90_061_000].map(|ms| words(Duration::from_millis(ms)));
        assert_eq!(written, ["0.0s", "0.9s", "59.0s", "1m0s", "12m0s", "1h0m0s", "25h1m1s"]);
    }
}

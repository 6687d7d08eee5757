//! Decides how long to wait after the end of a list or watch before the next attempt, and whether to log a failure.
//!
//! The module takes the result of an attempt (one list or watch) and returns durations. It does no I/O: the caller passes in random numbers
//! and monotonic time.
//!
//! Invariants: a watch that delivered a new version or lasted a second resets the waits, however it ended; only a lasting watch resets
//! those before lists. After an attempt that broke off, ended at once or got no connection, the first waits are short, because changes may
//! wait at the server; further waits double, up to 30 s, or up to 3 s while the server accepts watches. Waits have jitter, so that nodes do
//! not retry at the same moment. In each five minutes of an outage, each cause is logged as a warning at most once. A failure that the next
//! attempt may end or explain better is not logged as a warning at first.

use std::time::{Duration, Instant};

use super::error::{Cause, End};

/// The shortest of the waits that double; tests may use another value.
pub(super) const FIRST: Duration = Duration::from_millis(800);
/// The longest wait to which doubling leads, jitter included.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest time between two lists that follow watches which fail although the server answers ([`Paced`]): the longest wait without its
/// jitter, so that a list may follow each failure whose wait is that long.
pub(super) const LONGEST_BETWEEN_LISTS: Duration = Duration::from_secs(20);
/// The longest wait, jitter included, while the server accepts watches but ends each one at once: the four kinds then send at most two
/// requests a second.
const LONGEST_ACCEPTED: Duration = Duration::from_secs(3);
/// The largest share of a doubling wait that is added as jitter, so that the nodes of a cluster do not retry at the same moment.
const JITTER: f64 = 0.5;
/// The longest wait that a server may ask for; if it asks for more, this one counts.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);
/// The duration of a watch that counts as working even if it delivered nothing, however it ended, as in client-go.
pub(super) const LASTING: Duration = Duration::from_secs(1);
/// The shortest time from the start of a watch that delivers a version, and that the server ends in order, to the start of the next one.
const PACE: Duration = Duration::from_millis(500);
/// The longest random wait after a watch that the server ended without an error, or whose version is too old. It spreads the requests of
/// the nodes: a server that shuts down ends the watches of all nodes at once, and a server that starts has no history for any node.
const SPREAD: Duration = Duration::from_millis(200);
/// The longest random wait before a list that replaces what is known already. If a server needs 20 us of processor time for each object of
/// a list, 5,000 lists of 20,000 objects take more than half an hour of it.
const LONGEST_SPREAD: Duration = Duration::from_secs(15);
/// The wait after a watch that broke off, without jitter; jitter may double it.
const SOON: Duration = Duration::from_millis(300);
/// How many waits are short after watches that broke off within an event: enough for about a minute, because a change waits at the server.
const SOON_WITHIN_EVENT: u32 = 120;
/// How many waits are short after watches that broke off between events or ended at once, after lists that broke off, and before lists that
/// are needed because the server does not have the version.
const SOON_INTERRUPTED: u32 = 6;
/// How many waits are short after a 401, because credentials are read again at once, or if there was no connection.
const SOON_ELSE: u32 = 1;
/// How often the first answer of a server that was unreachable may reset the waits before an attempt works.
const ANSWERS: u32 = 2;
/// The wait of the kind with the fewest objects, without jitter, before it tries again a server that does not answer, or whose load
/// balancer answers 502, 503 or 504.
const PROBE_UNREACHABLE: Duration = Duration::from_secs(3);
/// The wait of the kind with the fewest objects, without jitter, after a 401 or a redirect. It is shorter, because these answers cost the
/// server little.
const PROBE_REFUSED: Duration = Duration::from_secs(2);
/// The length of the periods of an outage, in each of which a cause is logged once.
const REPEAT: Duration = Duration::from_secs(300);

/// The facts about an attempt to list or watch on which the next wait depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// Whether the watch delivered a new resource version.
    pub(super) delivered: bool,
    /// How long the server kept the watch open, counted from the end of the list for a streaming list; zero if there was no watch.
    pub(super) lived: Duration,
    pub(super) end: End,
}

impl Attempt {
    /// Returns whether the watch worked: it delivered a new version, or stayed open for [`LASTING`].
    pub(super) fn worked(self) -> bool {
        self.delivered || self.lived >= LASTING
    }
}

/// Determines the waits of one kind's reflector.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    /// The number of short waits since the last attempt that worked.
    soon: u32,
    /// The number of doubling waits since the last attempt that worked, or since [`Backoff::answered_again`] reset it.
    failures: u32,
    /// How often the first answer of a server that was unreachable has reset the waits since the last attempt that worked.
    answers: u32,
    /// The number of lists that were needed since a watch lasted for [`LASTING`]. A shorter watch does not reset it, even if it delivered a
    /// version, because lists are expensive.
    lists: u32,
}

impl Backoff {
    /// Returns a back-off whose first long wait is `first`, plus up to half of it as jitter.
    pub(super) const fn new(first: Duration) -> Self {
        Self { first, soon: 0, failures: 0, answers: 0, lists: 0 }
    }

    /// Returns the wait after an attempt.
    ///
    /// `retry_after` is the wait that the server asked for, which counts up to two minutes; `chance` is a random number in 0..1.
    pub(super) fn next(&mut self, attempt: Attempt, retry_after: Option<Duration>, chance: f64) -> Duration {
        if attempt.worked() {
            let lists = if attempt.lived >= LASTING { 0 } else { self.lists };
            *self = Self { lists, ..Self::new(self.first) };
            if attempt.end == End::InOrder {
                return PACE.saturating_sub(attempt.lived) + SPREAD.mul_f64(chance);
            }
        }
        let wait =
            if attempt.end == End::ListNeeded { self.before_list(chance) } else { self.before(attempt.end, chance) };
        wait.max(retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER))
    }

    /// Returns the wait before a list that is needed because the server does not have the version.
    fn before_list(&mut self, chance: f64) -> Duration {
        self.lists = self.lists.saturating_add(1);
        match self.lists.checked_sub(SOON_INTERRUPTED + 1) {
            None => SPREAD.mul_f64(chance),
            Some(failures) => self.doubled(failures, LONGEST, chance),
        }
    }

    /// Returns the wait after an attempt that ended with `end`.
    fn before(&mut self, end: End, chance: f64) -> Duration {
        let (soon, longest) = match end {
            End::InOrder => (SOON_INTERRUPTED, LONGEST_ACCEPTED),
            End::WithinEvent => (SOON_WITHIN_EVENT, LONGEST_ACCEPTED),
            End::Interrupted => (SOON_INTERRUPTED, LONGEST_ACCEPTED),
            End::Unfinished => (SOON_INTERRUPTED, LONGEST),
            End::NoAnswer => (SOON_ELSE, LONGEST),
            End::ListNeeded | End::Failed => (0, LONGEST),
        };
        if self.soon < soon {
            self.soon += 1;
            return SOON.mul_f64(1.0 + chance);
        }
        let failures = self.failures;
        self.failures = self.failures.saturating_add(1);
        self.doubled(failures, longest, chance)
    }

    /// Returns the wait after this many failures: `first` at first (0.8 s to 1.2 s with [`FIRST`] and jitter), and twice as long each time,
    /// up to `longest`.
    fn doubled(&self, failures: u32, longest: Duration, chance: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(16));
        doubled.min(longest.div_f64(1.0 + JITTER)).mul_f64(JITTER.mul_add(chance, 1.0))
    }

    /// Resets the doubling waits, because a server that did not answer answers again. Does so at most [`ANSWERS`] times before an attempt
    /// works, so that a server that is repeatedly unreachable gets fewer requests over time. Returns whether the waits were reset.
    pub(super) fn answered_again(&mut self) -> bool {
        let counts = self.answers < ANSWERS;
        if counts {
            self.answers += 1;
            self.failures = 0;
        }
        counts
    }
}

/// Limits how often something happens that may follow each failure: once at once, then after `first`, and after twice as long each time, up
/// to `longest`. After twice `longest` without it, the next time is a first one again.
#[derive(Debug)]
pub(super) struct Paced {
    first: Duration,
    longest: Duration,
    last: Option<Instant>,
    wait: Duration,
}

impl Paced {
    pub(super) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, last: None, wait: Duration::ZERO }
    }

    /// Returns whether it may happen now. If it returns true, also notes that it happens.
    pub(super) fn may_happen(&mut self, now: Instant) -> bool {
        let since = self.last.map_or(Duration::MAX, |last| now.saturating_duration_since(last));
        if since < self.wait {
            return false;
        }
        let doubled = self.wait.saturating_mul(2).clamp(self.first, self.longest);
        self.wait = if since >= self.longest * 2 { self.first } else { doubled };
        self.last = Some(now);
        true
    }
}

/// Returns whether a failure means that this node reaches no API server: there is no connection, no answer in time, or one of a load
/// balancer with status 502, 503 or 504.
pub(super) const fn is_away(cause: Cause) -> bool {
    matches!(cause, Cause::Unreachable | Cause::Refused(502..=504))
}

/// Returns the longest wait of the kind with the fewest objects after a failure that affects all kinds, without jitter of up to a half.
/// When the attempt of this kind works, the other kinds try at once, so these can wait longer. Returns `None` for a failure of one kind
/// only, or if the server sent Retry-After.
pub(super) fn probe_interval(cause: Cause, retry_after: Option<Duration>) -> Option<Duration> {
    match cause {
        _ if retry_after.is_some() => None,
        away if is_away(away) => Some(PROBE_UNREACHABLE),
        Cause::Refused(300..=399 | 401) => Some(PROBE_REFUSED),
        _ => None,
    }
}

/// Returns the longest random wait before a list that replaces `objects` known objects, with `per_object` for each: the nodes of a cluster
/// list at the same moment, because the server was away for all of them or has lost its history. The more objects a list has, the longer is
/// the time over which the lists spread. Without known objects the first sync needs the list, so the wait is zero.
pub(super) fn list_spread(objects: usize, per_object: Duration) -> Duration {
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    if objects == 0 {
        return Duration::ZERO;
    }
    per_object.saturating_mul(objects).saturating_add(SPREAD).min(LONGEST_SPREAD)
}

/// The current outage of one kind; contains `None` while the kind can be listed and watched.
#[derive(Debug, Default)]
pub(super) struct Outage(Option<Lasting>);

#[derive(Debug)]
struct Lasting {
    since: Instant,
    /// The number of whole [`REPEAT`] periods since the start of the outage when `logged` was last cleared.
    period: u128,
    /// The causes that were logged in the current period.
    logged: Vec<Cause>,
    last: Cause,
}

impl Outage {
    /// Notes that an attempt failed. Returns how long the outage has lasted if a warning is due.
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
        // A server that restarts refuses all requests for a moment, so a new cause that may be temporary is logged only if it occurs twice
        // in a row.
        let is_new = std::mem::replace(&mut lasting.last, cause) != cause && !lasting.logged.is_empty();
        let may_pass = matches!(cause, Cause::Interrupted | Cause::Refused(_));
        if is_new && may_pass || lasting.logged.contains(&cause) {
            return None;
        }
        lasting.logged.push(cause);
        Some(lasted)
    }

    /// Returns whether there is an outage now.
    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Notes that the server serves the kind again. Returns how long the outage lasted, if there was one.
    pub(super) fn over(&mut self, now: Instant) -> Option<Duration> {
        self.0.take().map(|lasting| now.saturating_duration_since(lasting.since))
    }
}

/// Returns a duration in the form of Go's durations, such as `12m0s` or `1h0m3s`, and below a minute with tenths of a second.
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

    const FAILED: Attempt = Attempt { delivered: false, lived: Duration::ZERO, end: End::Failed };

    fn attempt(end: End, lived: u64, delivered: bool) -> Attempt {
        Attempt { delivered, lived: Duration::from_millis(lived), end }
    }

    /// Returns the waits in milliseconds, without jitter, after `count` attempts in a row that end like `attempt`.
    fn waits(attempt: Attempt, count: usize) -> Vec<u128> {
        let mut backoff = Backoff::new(FIRST);
        (0..count).map(|_| backoff.next(attempt, None, 0.0).as_millis()).collect()
    }

    #[test]
    fn waits_for_a_server_that_is_away_double_up_to_half_a_minute() {
        assert_eq!(waits(FAILED, 8), [800, 1600, 3200, 6400, 12_800, 20_000, 20_000, 20_000]);
        let mut backoff = Backoff { failures: 9, ..Backoff::new(FIRST) };
        assert_eq!(backoff.next(FAILED, None, 1.0), LONGEST);
    }

    #[test]
    fn what_a_watch_did_decides_how_soon_the_next_one_begins() {
        use End::{Failed, InOrder, Interrupted, ListNeeded, NoAnswer, Unfinished, WithinEvent};
        for (end, lived, delivered, expected) in [
            // A watch that the server ends without an error is no failure if it has lasted or delivered something.
            (InOrder, 1200, false, [0; 10]),
            (InOrder, 260_000, false, [0; 10]),
            (InOrder, 1200, true, [0; 10]),
            (InOrder, 100, true, [400; 10]),
            (InOrder, 0, true, [500; 10]),
            // While watches end at once, the waits before the next ones grow.
            (InOrder, 0, false, [300, 300, 300, 300, 300, 300, 800, 1600, 2000, 2000]),
            // After watches that delivered a version or lasted, the waits do not grow, however the watches ended.
            (WithinEvent, 0, true, [300; 10]),
            (Interrupted, 0, true, [300; 10]),
            (Interrupted, 1000, false, [300; 10]),
            (Failed, 0, true, [800; 10]),
            // After watches without a new version, the first waits are short, then they double. After breaks within an event, more waits
            // are short.
            (WithinEvent, 0, false, [300; 10]),
            (Interrupted, 999, false, [300, 300, 300, 300, 300, 300, 800, 1600, 2000, 2000]),
            (Unfinished, 0, false, [300, 300, 300, 300, 300, 300, 800, 1600, 3200, 6400]),
            (ListNeeded, 0, false, [0, 0, 0, 0, 0, 0, 800, 1600, 3200, 6400]),
            // Only a watch that lasted resets the waits before lists, not one that delivered a version.
            (ListNeeded, 0, true, [0, 0, 0, 0, 0, 0, 800, 1600, 3200, 6400]),
            (ListNeeded, 1000, true, [0; 10]),
            (NoAnswer, 0, false, [300, 800, 1600, 3200, 6400, 12_800, 20_000, 20_000, 20_000, 20_000]),
        ] {
            let attempt = attempt(end, lived, delivered);
            assert_eq!(waits(attempt, 10), expected, "{attempt:?}");
        }
        let within = waits(attempt(WithinEvent, 0, false), 130);
        assert_eq!((within[119], within[120], within[129]), (300, 800, 2000), "not for ever");
    }

    #[test]
    fn a_server_that_ends_every_watch_at_once_gets_two_requests_a_second_of_a_node() {
        let mut backoff = Backoff::new(FIRST);
        let ended = attempt(End::InOrder, 0, false);
        let waits: Vec<_> = (0..60_u32).map(|n| backoff.next(ended, None, f64::from(n % 10) / 10.0)).collect();
        let seconds = waits.iter().sum::<Duration>().as_secs_f64();
        assert!((60.0 * 4.0 / seconds) < 2.0, "{seconds} s for 60 watches of four kinds");
    }

    #[test]
    fn lists_stay_rare_when_watches_that_bring_news_lie_between() {
        let mut backoff = Backoff::new(FIRST);
        let mut list = || {
            backoff.next(attempt(End::InOrder, 100, true), None, 0.0);
            backoff.next(attempt(End::ListNeeded, 0, false), None, 0.0).as_millis()
        };
        assert_eq!([0; 8].map(|_| list()), [0, 0, 0, 0, 0, 0, 800, 1600]);
    }

    #[test]
    fn news_end_the_long_waits() {
        let mut backoff = Backoff::new(FIRST);
        (0..9).for_each(|_| _ = backoff.next(FAILED, None, 0.0));
        let broken = attempt(End::Interrupted, 0, true);
        assert_eq!(backoff.next(broken, None, 1.0).as_millis(), 600);
        assert_eq!(backoff.next(FAILED, None, 0.5).as_millis(), 1000);
    }

    #[test]
    fn an_answer_after_none_ends_the_long_waits_twice() {
        let mut backoff = Backoff::new(FIRST);
        let mut after_answer = || {
            (0..9).for_each(|_| _ = backoff.next(FAILED, None, 0.0));
            backoff.answered_again();
            backoff.next(FAILED, None, 0.0).as_millis()
        };
        assert_eq!([after_answer(), after_answer(), after_answer()], [800, 800, 20_000]);
    }

    #[test]
    fn what_is_paced_happens_at_once_and_then_less_and_less_often() {
        let (mut paced, start) = (Paced::new(Duration::from_secs(5), Duration::from_secs(60)), Instant::now());
        let mut times = |seconds: std::ops::Range<u64>| -> Vec<u64> {
            seconds.filter(|second| paced.may_happen(start + Duration::from_secs(*second))).collect()
        };
        assert_eq!(times(0..200), [0, 5, 15, 35, 75, 135, 195]);
        assert_eq!(times(400..420), [400, 405, 415], "the next time is a first one");
    }

    #[test]
    fn years_of_failures_overflow_nothing() {
        let mut backoff = Backoff { failures: u32::MAX, ..Backoff::new(FIRST) };
        assert_eq!(backoff.next(FAILED, None, 0.0).as_millis(), 20_000);
    }

    #[test]
    fn a_server_may_ask_for_more_but_not_for_hours() {
        let mut backoff = Backoff::new(FIRST);
        assert_eq!(backoff.next(FAILED, Some(Duration::from_secs(7)), 0.0), Duration::from_secs(7));
        assert_eq!(backoff.next(FAILED, Some(Duration::ZERO), 0.0), Duration::from_millis(1600));
        assert_eq!(backoff.next(FAILED, Some(Duration::from_secs(86_400)), 0.0), LONGEST_RETRY_AFTER);
    }

    #[test]
    fn one_kind_asks_for_all_when_the_failure_is_one_of_all() {
        for (cause, expected) in [
            (Cause::Unreachable, Some(PROBE_UNREACHABLE)),
            (Cause::Refused(503), Some(PROBE_UNREACHABLE)),
            (Cause::Refused(401), Some(PROBE_REFUSED)),
            (Cause::Refused(302), Some(PROBE_REFUSED)),
            (Cause::Refused(403), None),
            (Cause::Interrupted, None),
        ] {
            assert_eq!(probe_interval(cause, None), expected, "{cause:?}");
            assert_eq!(probe_interval(cause, Some(Duration::from_secs(1))), None, "the server says when");
        }
    }

    #[test]
    fn lists_of_many_nodes_spread_over_a_time_that_grows_with_their_size() {
        let spread = |objects| list_spread(objects, Duration::from_micros(500)).as_millis();
        assert_eq!([0, 1, 100, 1_000, 20_000].map(spread), [0, 200, 250, 700, 10_200]);
        assert_eq!([100_000, usize::MAX].map(spread), [15_000, 15_000], "the rules may not be old for longer");
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the seconds at which warnings are due when an attempt fails every `every` seconds of an outage that lasts this many seconds.
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
        // After a long time without an attempt, only one warning is due, and the next one is due at a multiple of five minutes.
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
        // A new cause within an outage is logged, too.
        assert_eq!(outage.failed(Cause::Unreachable, start + SECOND * 11), Some(SECOND * 2));
        assert_eq!(outage.failed(Cause::Interrupted, start + SECOND * 12), None);
    }

    #[test]
    fn another_cause_is_a_warning_too_when_it_lasts() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let mut failed = |second, cause| outage.failed(cause, start + SECOND * second).is_some();
        assert!(failed(0, Cause::Unreachable));
        // A server that starts may answer 403 for a moment.
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

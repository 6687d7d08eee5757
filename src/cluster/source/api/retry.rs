//! What follows from the end of a list or watch: how long to wait before the next attempt, and whether to log a failure.
//!
//! Takes what an attempt did, gives durations. Pure: chance and monotonic time come from the caller.
//!
//! Invariants: a watch that brought news or lasted ends all long waits, whatever ended it. Without news the first attempts follow soon,
//! for news that wait and for networks that break off now and then; then the waits double, up to 30 s, or up to 3 s while the server
//! accepts watches. No wait is the same on all nodes. A failure that lasts is a warning at once and again after every
//! five minutes, each cause at most once in that time; a failure that the next attempt may explain better, or take back, is not a
//! warning yet.

use std::time::{Duration, Instant};

use super::error::{Cause, End};

/// The shortest wait after a failure, but for tests that need another.
pub(super) const FIRST: Duration = Duration::from_millis(800);
/// The longest wait, jitter included.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait while the server accepts watches and each ends at once, jitter included: four kinds are two requests a second then.
const LONGEST_ACCEPTED: Duration = Duration::from_secs(3);
/// The random share that is added to a wait, so that the nodes of a cluster do not come back at the same moment.
const JITTER: f64 = 0.5;
/// The longest wait that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);
/// A watch that lived this long worked, whatever ended it; as for client-go.
pub(super) const LASTING: Duration = Duration::from_secs(1);
/// The least time from the begin of a watch that ends in order to that of the next one.
const PACE: Duration = Duration::from_millis(500);
/// The random time after a watch that ended in order, or whose version is too old: a server ends those of all nodes at once when it
/// shuts down, and has no history when it starts.
const SPREAD: Duration = Duration::from_millis(200);
/// The shortest wait after a watch that broke off; up to twice as long with jitter.
const SOON: Duration = Duration::from_millis(300);
/// How often an attempt follows soon after a watch that broke off within an event, for there is news: about a minute.
const SOON_WITHIN_EVENT: u32 = 120;
/// How often an attempt follows soon after a watch that broke off elsewhere or ended at once, and where a list is needed.
const SOON_INTERRUPTED: u32 = 6;
/// How often an attempt follows soon after a 401, because credentials are read again at once, and after no answer.
const SOON_ELSE: u32 = 1;
/// How often an answer after none ends the long waits before a watch has lasted.
const ANSWERS: u32 = 2;
/// How often the kind with the fewest objects tries to reach a server that gives no answer, or whose load balancer answers that there is
/// none; before jitter.
const PROBE_UNREACHABLE: Duration = Duration::from_secs(3);
/// How often that kind tries after a 401 or a redirect, which cost the server little; before jitter.
const PROBE_REFUSED: Duration = Duration::from_secs(2);
/// The time between two warnings about the same cause.
const REPEAT: Duration = Duration::from_secs(300);

/// What became of an attempt to list or watch, as far as the next one depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// The watch brought a version that was not known.
    pub(super) delivered: bool,
    /// How long the server kept the watch open, from the end of a list that it began with; zero without a watch.
    pub(super) lived: Duration,
    pub(super) end: End,
}

impl Attempt {
    /// Whether the server served the kind: it sent news, or kept the watch open.
    pub(super) fn worked(self) -> bool {
        self.delivered || self.lived >= LASTING
    }
}

/// The back-off of one kind.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    /// Attempts since the last one that worked, that were followed by another one soon.
    soon: u32,
    /// The other ones.
    failures: u32,
    /// Answers after none, since the last attempt that worked.
    answers: u32,
    /// Lists that were needed since the last watch that lasted; news alone do not make lists cheaper.
    lists: u32,
}

impl Backoff {
    /// A back-off that waits so long, and up to half as long again, after the first failure.
    pub(super) const fn new(first: Duration) -> Self {
        Self { first, soon: 0, failures: 0, answers: 0, lists: 0 }
    }

    /// The wait after an attempt.
    ///
    /// `retry_after` is what the server asked for, up to two minutes; `chance` is in 0..1.
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

    /// The wait before a list that is needed because the server does not have the version.
    fn before_list(&mut self, chance: f64) -> Duration {
        self.lists = self.lists.saturating_add(1);
        match self.lists.checked_sub(SOON_INTERRUPTED + 1) {
            None => SPREAD.mul_f64(chance),
            Some(failures) => self.doubled(failures, LONGEST, chance),
        }
    }

    /// The wait after an attempt that ended like this.
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

    /// The wait after this many failures: with [`FIRST`] 0.8 s to 1.2 s at first, twice as long each time.
    fn doubled(&self, failures: u32, longest: Duration, chance: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(16));
        doubled.min(longest.div_f64(1.0 + JITTER)).mul_f64(JITTER.mul_add(chance, 1.0))
    }

    /// The server answers after it gave no answer, so the waits for that are over. Gives whether that counts: not more than twice until an
    /// attempt works, so that a server that stays in this state gets fewer and fewer requests.
    pub(super) fn answered_again(&mut self) -> bool {
        let counts = self.answers < ANSWERS;
        if counts {
            self.answers += 1;
            self.failures = 0;
        }
        counts
    }
}

/// Whether a failure shows that no server is there, as far as this node can see.
pub(super) const fn is_away(cause: Cause) -> bool {
    matches!(cause, Cause::Unreachable | Cause::Refused(502..=504))
}

/// The longest wait of the kind with the fewest objects after a failure that all kinds share, before jitter of a half. When that kind
/// works again the others try at once, so the server gets one request at a time. `None` for a failure that is about one kind, or that
/// says when to come back.
pub(super) fn probe_interval(cause: Cause, retry_after: Option<Duration>) -> Option<Duration> {
    match cause {
        _ if retry_after.is_some() => None,
        away if is_away(away) => Some(PROBE_UNREACHABLE),
        Cause::Refused(300..=399 | 401) => Some(PROBE_REFUSED),
        _ => None,
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

    const FAILED: Attempt = Attempt { delivered: false, lived: Duration::ZERO, end: End::Failed };

    fn attempt(end: End, lived: u64, delivered: bool) -> Attempt {
        Attempt { delivered, lived: Duration::from_millis(lived), end }
    }

    /// The milliseconds of waits after attempts like this one, again and again, with the least jitter.
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
            // A watch that ends in order is no failure, once it has lasted or sent something.
            (InOrder, 1200, false, [0; 10]),
            (InOrder, 260_000, false, [0; 10]),
            (InOrder, 1200, true, [0; 10]),
            (InOrder, 100, true, [400; 10]),
            (InOrder, 0, true, [500; 10]),
            // One that ends at once is asked for less often, but no failure either.
            (InOrder, 0, false, [300, 300, 300, 300, 300, 300, 800, 1600, 2000, 2000]),
            // What brought news or lasted is tried again soon, whatever ended it.
            (WithinEvent, 0, true, [300; 10]),
            (Interrupted, 0, true, [300; 10]),
            (Interrupted, 1000, false, [300; 10]),
            (Failed, 0, true, [800; 10]),
            // There is news that did not come.
            (WithinEvent, 0, false, [300; 10]),
            (Interrupted, 999, false, [300, 300, 300, 300, 300, 300, 800, 1600, 2000, 2000]),
            (Unfinished, 0, false, [300, 300, 300, 300, 300, 300, 800, 1600, 3200, 6400]),
            (ListNeeded, 0, false, [0, 0, 0, 0, 0, 0, 800, 1600, 3200, 6400]),
            // News of a watch make no list cheaper, only a watch that lasted.
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

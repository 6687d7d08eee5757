//! Decides how often the loop looks for writes of other programs, how often their changes of the tables are repaired, and how often they are
//! logged.
//!
//! Takes each notice that the tables were changed; returns when to repair them and, now and then, what to log. The first changes are
//! repaired at once, further ones at most ten times a second; the first are logged after their repair, further ones at most every ten
//! seconds, with their number. A look is a wake-up of the process, which a node pays for all the time, so there are fewer than two a second
//! until another program changes the tables. Pure: the caller passes in the time.
//!
//! Invariant: memory is bounded, whatever other programs do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use component::rates::{Budget, Rate};
use inspect::history::{Program, Repair};

/// How many repairs are made at once, and the least time between two repairs after them.
const REPAIRS: Rate = Rate { at_once: 5, then_every: Duration::from_millis(100) };

/// How many log records are written at once, and the least time between two records after them.
const RECORDS: Rate = Rate { at_once: 10, then_every: Duration::from_secs(10) };

/// The time between two looks for writes of other programs (G10). A change is found and repaired within 600 ms.
const QUIET_LOOK: Duration = Duration::from_millis(580);

/// The same for [`ALERT`] after another program changed the tables, because a program that does so often goes on.
const ALERT_LOOK: Duration = Duration::from_millis(25);
const ALERT: Duration = Duration::from_secs(60);

/// How long the log record about a change by an unknown program waits: if the program writes again meanwhile, the record names it.
const NAMELESS: Duration = Duration::from_secs(1);

/// The most programs, and findings, that a log record names.
const NAMED: usize = 16;

/// Changes of the tables by other programs that have not been repaired or not been logged.
#[derive(Debug)]
pub(super) struct Repairs {
    repairs: Budget,
    records: Budget,
    /// Whether a change waits for its repair.
    waiting: bool,
    /// The programs of the changes that no sync has repaired yet, if there are such changes.
    unrepaired: Option<BTreeSet<Program>>,
    unlogged: Unlogged,
    /// When the first change that the next log record covers was noticed.
    since: Option<Instant>,
    /// When another program last changed the tables.
    changed: Option<Instant>,
}

/// The content of the next log record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unlogged {
    /// How often another program changed the tables, or may have done so.
    pub(super) times: u64,
    /// The programs that changed the tables, as far as they are known.
    pub(super) by: BTreeSet<String>,
    /// Findings in the tables other than changed rules and elements, such as a foreign counter.
    pub(super) found: BTreeSet<String>,
    /// The repairs that were necessary; `None` when the changes did not touch what this proxy wrote.
    pub(super) repair: Option<Repair>,
}

impl Repairs {
    pub(super) const fn new() -> Self {
        let unlogged = Unlogged { times: 0, by: BTreeSet::new(), found: BTreeSet::new(), repair: None };
        let (repairs, records) = (Budget::new(REPAIRS), Budget::new(RECORDS));
        Self { repairs, records, waiting: false, unrepaired: None, unlogged, since: None, changed: None }
    }

    /// Notes that these programs changed the tables, or may have done so. Returns when to repair.
    pub(super) fn noticed(&mut self, by: impl IntoIterator<Item = Program>, now: Instant) -> Instant {
        self.waiting = true;
        self.unlogged.times += 1;
        self.since.get_or_insert(now);
        let unrepaired = self.unrepaired.get_or_insert_default();
        for program in by {
            extend(&mut self.unlogged.by, [program.to_string()]);
            extend(unrepaired, [program]);
        }
        self.repairs.next(now)
    }

    /// Notes that another program did change the tables.
    pub(super) fn changed(&mut self, now: Instant) {
        self.changed = Some(now);
    }

    /// Returns the time after which to look again for writes of other programs.
    pub(super) fn look_within(&self, now: Instant) -> Duration {
        let is_alert = self.changed.is_some_and(|then| now.saturating_duration_since(then) < ALERT);
        if is_alert { ALERT_LOOK } else { QUIET_LOOK }
    }

    /// Whether all changes and findings have been repaired and logged.
    pub(super) fn is_done(&self) -> bool {
        !self.waiting && self.unlogged == Unlogged::default()
    }

    /// Whether there are changes to repair, and none of the programs that made them is known.
    pub(super) fn is_nameless(&self) -> bool {
        self.unrepaired.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// Notes a committed sync, with its repair if one was necessary. Returns the repair if no write of another program was noticed before;
    /// otherwise keeps it for the next log record, together with the programs.
    pub(super) fn done(&mut self, repair: Option<Repair>) -> Option<Repair> {
        let by = self.unrepaired.take();
        let repair = repair?;
        let Some(by) = by else { return Some(repair) };
        let sum = self.unlogged.repair.get_or_insert_default();
        let new: Vec<Program> = by.into_iter().filter(|program| !sum.by.contains(program)).collect();
        sum.by.extend(new.into_iter().take(NAMED.saturating_sub(sum.by.len())));
        sum.add(repair);
        None
    }

    /// Notes that a sync begins; the sync makes the repair, if one waits.
    pub(super) fn started(&mut self, now: Instant) {
        if std::mem::take(&mut self.waiting) {
            self.repairs.take(now);
        }
    }

    /// Notes findings in the tables.
    pub(super) fn found(&mut self, what: impl IntoIterator<Item = String>) {
        extend(&mut self.unlogged.found, what);
    }

    /// Returns what to log now. A change is logged after the sync that repaired it, together with the findings of that sync; a change by an
    /// unknown program is logged no sooner than a second after it was noticed.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Unlogged> {
        if self.waiting || self.is_done() || self.records.next(now) > now {
            return None;
        }
        let is_early = self.since.is_some_and(|since| now.saturating_duration_since(since) < NAMELESS);
        if self.unlogged.by.is_empty() && is_early {
            return None;
        }
        self.since = None;
        self.records.take(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

fn extend<T: Ord>(names: &mut BTreeSet<T>, more: impl IntoIterator<Item = T>) {
    for name in more {
        if names.len() < NAMED {
            names.insert(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nft(pid: u32) -> Program {
        Program { name: "nft".to_owned(), pid }
    }

    /// Simulates a program that changes the tables once a millisecond. Returns the number of repairs, and the log records.
    fn attack(seconds: u64) -> (usize, Vec<Unlogged>) {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        let (mut done, mut logged) = (0, Vec::new());
        for millisecond in 0..seconds * 1000 {
            let now = start + Duration::from_millis(millisecond);
            let by = nft(u32::try_from(millisecond).unwrap());
            if repairs.noticed([by], now) <= now {
                repairs.started(now);
                done += 1;
            }
            logged.extend(repairs.take_due(now));
        }
        (done, logged)
    }

    #[test]
    fn the_first_changes_are_put_right_at_once_and_then_ten_a_second() {
        let (done, _) = attack(1);
        assert!((14..=15).contains(&done), "{done}");
        let (done, _) = attack(60);
        assert!((604..=605).contains(&done), "{done}");
    }

    #[test]
    fn a_program_that_goes_on_is_named_now_and_then_with_a_count() {
        let (_, logged) = attack(61);
        assert_eq!(logged.len(), 10 + 6, "ten at once, then one in ten seconds");
        assert_eq!(logged[0].by, BTreeSet::from(["nft (pid 0)".to_owned()]));
        assert_eq!((logged[4].times, logged[9].times, logged[10].times), (1, 100, 9_500));
        assert_eq!(logged[10].by.len(), NAMED, "no more are named, so that memory is bounded");
    }

    #[test]
    fn after_a_while_of_peace_all_is_as_at_the_beginning() {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        for now in [start, start + Duration::from_secs(200)] {
            for _ in 0..REPAIRS.at_once {
                assert_eq!(repairs.noticed([nft(7)], now), now);
                assert_eq!(repairs.take_due(now), None, "it is not repaired yet");
                repairs.started(now);
                assert!(repairs.take_due(now).is_some());
            }
            assert_eq!(repairs.noticed([], now), now + REPAIRS.then_every);
            repairs.started(now);
        }
    }

    #[test]
    fn a_change_without_a_name_waits_a_second_for_one() {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        let later = |milliseconds| start + Duration::from_millis(milliseconds);
        repairs.noticed([], start);
        assert!(repairs.is_nameless());
        repairs.started(start);
        assert_eq!(repairs.take_due(later(999)), None);
        assert_eq!(repairs.take_due(later(1_000)).map(|logged| (logged.times, logged.by.len())), Some((1, 0)));

        repairs.noticed([], later(5_000));
        repairs.noticed([nft(7)], later(5_010));
        assert!(!repairs.is_nameless());
        repairs.started(later(5_010));
        let logged = repairs.take_due(later(5_010)).map(|logged| (logged.times, logged.by));
        assert_eq!(logged, Some((2, BTreeSet::from(["nft (pid 7)".to_owned()]))));
    }

    // An idle process wakes fewer than twice a second; for a minute after a change of the tables it looks every 25 ms (G10).
    #[test]
    fn looks_are_frequent_only_for_a_minute_after_a_change_of_the_tables() {
        let (mut repairs, start) = (Repairs::new(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(repairs.look_within(start), QUIET_LOOK);
        repairs.noticed([], start);
        assert_eq!(repairs.look_within(start), QUIET_LOOK, "a write that may be to other tables");
        repairs.changed(start);
        assert_eq!([0, 59, 60].map(|s| repairs.look_within(later(s))), [ALERT_LOOK, ALERT_LOOK, QUIET_LOOK]);
        repairs.changed(later(59));
        assert_eq!([60, 118, 119].map(|s| repairs.look_within(later(s))), [ALERT_LOOK, ALERT_LOOK, QUIET_LOOK]);
    }

    #[test]
    fn findings_are_logged_also_when_no_program_was_seen() {
        let (mut repairs, now) = (Repairs::new(), Instant::now());
        assert_eq!(repairs.take_due(now), None);
        repairs.found(["counter foreign".to_owned()]);
        repairs.started(now);
        let logged = repairs.take_due(now).map(|unlogged| (unlogged.times, unlogged.found));
        assert_eq!(logged, Some((0, BTreeSet::from(["counter foreign".to_owned()]))));
        assert_eq!(repairs.noticed([], now), now, "no repair was counted");
    }

    #[test]
    fn a_repair_is_told_with_the_programs_that_made_it_necessary_and_with_those_of_its_log_record() {
        let (mut repairs, now) = (Repairs::new(), Instant::now());
        let repair = |added| Repair { times: 1, elements_added: added, ..Repair::default() };
        assert_eq!(repairs.done(Some(repair(1))), Some(repair(1)), "no program was seen");

        repairs.noticed([nft(7)], now);
        repairs.started(now);
        assert_eq!(repairs.done(None), None);
        assert_eq!(repairs.take_due(now).unwrap().repair, None, "nothing was to be repaired");

        repairs.noticed([nft(8)], now);
        repairs.started(now);
        repairs.done(Some(repair(2)));
        repairs.noticed([nft(9), nft(8)], now);
        repairs.started(now);
        repairs.done(Some(repair(3)));
        let told = repairs.take_due(now).unwrap().repair.unwrap();
        assert_eq!((told.by, told.times, told.elements_added), (vec![nft(8), nft(9)], 2, 5));
    }
}

//! Detects writes of other programs to our tables.
//!
//! Follows the generation, a number that grows by one with each transaction of any program in this network namespace: asking for it
//! takes the kernel 3 us and no lock, so the sync loop asks at each of its passes. Only the notifications of nf_tables tell which tables a
//! transaction changed and which program sent it, but they are not received all the time. The kernel has one list of subscribers for all
//! network namespaces (`netlink_has_listeners`), and while there is one in any of them, it makes a notification of some 8 kB for each
//! object of every transaction in every namespace: a node that always subscribes would make the first sync of each other node on the
//! machine several times slower (kind and k3d have several). The kernel has no other sign of a transaction: the notification of the
//! generation is sent to the same group, and the audit log, tracepoints and BPF need more privileges than this process keeps.
//!
//! So there are two states. In the quiet state there is no subscription. If another program has raised the generation, our tables may have
//! been changed, and the caller has to compare them. In the other state notifications are received: each transaction of another program
//! is known with its tables and its sender, and a transaction that does not touch our tables causes no comparison. Notifications are
//! received when that is cheaper than to compare ([`Pace`]): for a short time when transactions follow each other closely; for
//! [`LISTENING`] after a change of our tables, to name the sender of further changes; and as long as another program writes in [`OFTEN`]
//! different seconds of each minute. A program that writes to its own tables less often causes a comparison each time, and no
//! subscription. One that writes more often causes a subscription for as long as it does: a comparison reads both tables, and needs a
//! subscription itself meanwhile.
//!
//! While a large transaction of our own is committed, the subscription is suspended, because it makes our transaction slower too; the
//! generation shows whether another program wrote meanwhile. The subscription stays during small transactions of our own, which are
//! recognised by the port of the socket that sent them. Transactions for the flowtable go through another socket, and are recognised by
//! [`OwnWrites`].

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use nft::monitor::Process;
use nft::{Command, CommitError, Connection, Monitor, ReadError, TableName};

use super::own_writes::OwnWrites;

/// How long notifications are received after another program changed our tables, and while it writes often.
const LISTENING: Duration = Duration::from_secs(60);

/// How long notifications are received if a transaction follows the previous one within this same time.
const BURST: Duration = Duration::from_secs(3);

/// Other programs write often if they write in at least this many different seconds of [`LISTENING`].
const OFTEN: usize = 5;
const SECOND: Duration = Duration::from_secs(1);

/// The most transactions that one check examines; further ones count as unknown.
const MAX_TRANSACTIONS: usize = 10_000;

/// The subscription stays during a transaction of our own with at most this many commands and elements. Each of them then costs some
/// microseconds more.
const SMALL: usize = 16;

/// The writes of other programs to our tables since the last check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForeignWrites {
    /// No other program wrote.
    #[default]
    None,
    /// Other programs wrote. The list has those that the kernel names.
    By(Vec<Process>),
    /// Other programs may have written.
    Unknown,
}

/// Detects writes in one network namespace.
#[derive(Default)]
pub(super) struct Detector {
    /// The notifications, while they are received.
    listener: Option<Listener>,
    /// The generation after the last check or commit; `None` before the first.
    generation: Option<u32>,
    /// Another program committed a transaction of which nothing else is known.
    unknown: bool,
    /// Our tables may have been changed even if they have an owner, because the owner's socket was closed since the last check.
    lost: bool,
    /// The caller found that an unknown program changed our tables.
    changed: bool,
    pace: Pace,
    own: OwnWrites,
}

/// A subscription to notifications.
struct Listener {
    monitor: Monitor,
    /// When the subscription ends, unless another program writes before.
    until: Instant,
}

/// Counts how often other programs write, to decide whether it is cheaper to receive notifications than to compare tables. Pure.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    /// The beginnings of the last seconds in which other programs wrote, at most [`OFTEN`].
    seconds: VecDeque<Instant>,
}

impl Pace {
    /// Notes that another program wrote. Gives the time until which to receive notifications; `None` if that is not worth it.
    fn wrote(&mut self, now: Instant) -> Option<Instant> {
        let is_within = |then: &Instant, time| now.saturating_duration_since(*then) < time;
        let is_close = self.last.replace(now).is_some_and(|last| is_within(&last, BURST));
        if self.seconds.back().is_none_or(|last| !is_within(last, SECOND)) {
            self.seconds.push_back(now);
        }
        if self.seconds.len() > OFTEN {
            self.seconds.pop_front();
        }
        let is_often =
            self.seconds.len() == OFTEN && self.seconds.front().is_some_and(|first| is_within(first, LISTENING));
        match (is_often, is_close) {
            (true, _) => Some(now + LISTENING),
            (false, true) => Some(now + BURST),
            (false, false) => None,
        }
    }
}

impl Detector {
    /// A detector that knows the transactions of other threads of this process.
    pub(super) fn knowing(own: OwnWrites) -> Self {
        Self { own, ..Self::default() }
    }

    /// Notes that the caller found a change of our tables by another program: the next check subscribes, to name who makes further ones.
    pub(super) fn changed(&mut self) {
        self.changed = true;
    }

    /// Notes that another program could write to any table since the last check.
    pub(super) fn lost(&mut self) {
        self.lost = true;
    }

    /// Notes that the caller is about to read all tables, where it will see all earlier writes.
    pub(super) fn reading(&mut self, connection: &mut Connection) {
        self.generation = connection.generation().ok();
        (self.unknown, self.lost) = (false, false);
    }

    /// Runs `write`, which commits these commands of our own.
    pub(super) fn during<T>(
        &mut self,
        connection: &mut Connection,
        commands: &[Command],
        write: impl FnOnce(&mut Connection) -> Result<T, CommitError>,
    ) -> Result<T, CommitError> {
        let is_large = commands.iter().map(|command| command.elements().max(1)).sum::<usize>() > SMALL;
        let before = connection.generation().ok();
        let paused = is_large && self.listener.as_ref().is_some_and(|listener| listener.monitor.pause().is_ok());
        let result = write(connection);
        if paused && self.listener.as_ref().is_some_and(|listener| listener.monitor.resume().is_err()) {
            self.listener = None;
        }
        let after = connection.generation().ok();
        let is_listening = self.listener.is_some() && !paused;
        let from =
            if self.listener.is_some() { before } else { self.generation.map(|from| self.own.since(from)).or(before) };
        self.unknown |= !is_listening && !is_ours(commands, result.as_ref().err(), from, before, after);
        self.generation = after;
        result
    }

    /// The writes of other programs to these tables since the last call. An empty list means that our tables have an owner, so that other
    /// programs cannot write to them; then the result only tells whether they were without their owner since the last call.
    ///
    /// # Errors
    /// When a socket fails; then the next call says that other programs may have written.
    pub(super) fn foreign_writes(
        &mut self,
        connection: &mut Connection,
        tables: &[TableName],
        now: Instant,
    ) -> Result<ForeignWrites, ReadError> {
        let is_new = std::mem::take(&mut self.changed) && !tables.is_empty() && self.listen_until(now + LISTENING);
        let generation = connection.generation()?;
        let before = self.generation.replace(generation);
        let raised = before.is_some_and(|before| self.own.since(before) != generation);
        let (unknown, lost) = (std::mem::take(&mut self.unknown), std::mem::take(&mut self.lost));
        if tables.is_empty() {
            self.listener = None;
            return Ok(if lost { ForeignWrites::Unknown } else { ForeignWrites::None });
        }
        // No notifications were received about transactions before the subscription.
        let unknown = unknown || raised && (is_new || self.listener.is_none());
        if unknown
            && let Some(until) = self.pace.wrote(now)
            && self.listen_until(until)
        {
            // The caller will find earlier writes when it compares the tables; notifications report later ones.
            self.generation = connection.generation().ok().or(self.generation);
        }
        let Some(listener) = &mut self.listener else {
            return Ok(if unknown || lost { ForeignWrites::Unknown } else { ForeignWrites::None });
        };
        let writes = match listener.monitor.writes(MAX_TRANSACTIONS) {
            Ok(writes) => writes,
            Err(error) => return self.fail(error),
        };
        let ours = connection.port();
        let foreign =
            || writes.transactions.iter().filter(|write| write.port != ours && !self.own.has_port(write.port));
        let is_touched = foreign().any(|write| tables.iter().any(|table| write.tables.contains(table)));
        let until = if foreign().next().is_some() || writes.lost { self.pace.wrote(now) } else { None };
        let until = if is_touched { Some(now + LISTENING) } else { until };
        if let Some(until) = until {
            listener.until = listener.until.max(until);
        } else if listener.until <= now {
            // A transaction after the generation was read above may not be received any more, but the next check sees its generation.
            self.listener = None;
        }
        let touching = || foreign().filter(|write| tables.iter().any(|table| write.tables.contains(table)));
        let mut by = Vec::new();
        for process in touching().filter_map(|write| write.by.as_ref()) {
            if !by.contains(process) {
                by.push(process.clone());
            }
        }
        Ok(match (is_touched, unknown || lost || writes.lost) {
            (true, _) => ForeignWrites::By(by),
            (false, true) => ForeignWrites::Unknown,
            (false, false) => ForeignWrites::None,
        })
    }

    /// Receives notifications at least until this time. Returns whether the subscription is new. If the kernel refuses it, each raised
    /// generation still means that the tables may have been changed.
    fn listen_until(&mut self, until: Instant) -> bool {
        if let Some(listener) = &mut self.listener {
            listener.until = listener.until.max(until);
            return false;
        }
        self.listener = Monitor::open().ok().map(|monitor| Listener { monitor, until });
        self.listener.is_some()
    }

    fn fail<T>(&mut self, error: io::Error) -> Result<T, ReadError> {
        self.listener = None;
        self.unknown = true;
        Err(error.into())
    }
}

/// Whether the generations show that since `from` no other program committed a transaction. `before` and `after` are the generations right
/// before and after a transaction of our own with these commands, and `error` is its error. A transaction without an acknowledgement may
/// have been committed. One that only destroys elements may have changed nothing, and then has not raised the generation.
fn is_ours(
    commands: &[Command],
    error: Option<&CommitError>,
    from: Option<u32>,
    before: Option<u32>,
    after: Option<u32>,
) -> bool {
    let (Some(from), Some(before), Some(after)) = (from, before, after) else { return false };
    let raised = after.wrapping_sub(before);
    let may_change_nothing = commands.iter().all(|command| matches!(command, Command::DestroyElements(..)));
    let fits = match error {
        None => raised == 1 || may_change_nothing && raised == 0,
        Some(CommitError::Unconfirmed) => raised <= 1,
        Some(_) => raised == 0,
    };
    from == before && fits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of ten minutes in which notifications are received, if a program writes in bursts: `writes` writes with `apart` between
    /// them, one burst in each period of `every`.
    fn listened(writes: u32, apart: Duration, every: Duration) -> f64 {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let (mut listened, mut until) = (Duration::ZERO, start);
        let all = Duration::from_secs(600);
        let mut burst = Duration::ZERO;
        while burst < all {
            for write in 0..writes {
                let now = start + burst + apart * write;
                if let Some(end) = pace.wrote(now) {
                    listened += end.saturating_duration_since(until.max(now));
                    until = until.max(end);
                }
            }
            burst += every;
        }
        listened.as_secs_f64() / all.as_secs_f64()
    }

    // Rare writes of a program to its own tables cause no subscription, and frequent writes do (G10).
    #[test]
    fn notifications_are_received_for_as_long_as_that_is_cheaper_than_to_compare() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        for every in [s(15), s(20), s(60), s(90)] {
            assert!(listened(1, ms(0), every) == 0.0, "a write each {every:?}");
        }
        for every in [s(30), s(60)] {
            let share = listened(5, ms(10), every);
            assert!(share <= 0.11, "five writes each {every:?}: {share}");
        }
        for every in [ms(10), ms(500), s(1), s(5), s(10)] {
            let share = listened(1, ms(0), every);
            assert!(share > 0.9, "a write each {every:?}: {share}");
        }
    }

    // Of many writes in a row the first causes a comparison, and notifications report the others (G10).
    #[test]
    fn of_writes_that_follow_each_other_only_the_first_is_compared() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(pace.wrote(start), None);
        let second = start + Duration::from_millis(25);
        assert_eq!(pace.wrote(second), Some(second + BURST));
        let later = start + 10 * BURST;
        assert_eq!(pace.wrote(later), None, "after a pause it begins anew");
        assert_eq!(pace.seconds.len(), 2);
    }

    // Our own transaction is no foreign write if its acknowledgement is lost, so that the next try is not reported as a repair (G10).
    #[test]
    fn a_transaction_of_which_the_acknowledgement_is_lost_is_ours() {
        let ours = |error: Option<&CommitError>, from, before, after| {
            is_ours(
                &[Command::DeleteTable(TableName::new(nft::Family::Ip, "ours"))],
                error,
                Some(from),
                Some(before),
                Some(after),
            )
        };
        let refused = CommitError::Refused(Vec::new());
        assert!(ours(None, 7, 7, 8) && !ours(None, 7, 7, 9) && !ours(None, 6, 7, 8));
        assert!(ours(Some(&refused), 7, 7, 7) && !ours(Some(&refused), 7, 7, 8));
        for (after, expected) in [(7, true), (8, true), (9, false)] {
            assert_eq!(ours(Some(&CommitError::Unconfirmed), 7, 7, after), expected, "{after}");
        }
    }
}

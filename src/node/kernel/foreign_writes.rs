//! Detects writes of other programs to our tables.
//!
//! Follows the generation, a number that grows by one with each transaction of any program in this network namespace: asking for it
//! takes the kernel 3 us and no lock, so the sync loop asks at each of its passes. The notifications, which alone say which tables a
//! transaction changed and which program sent it, are not received all the time. The kernel has one list of subscribers for all network
//! namespaces (`netlink_has_listeners`), and while there is one in any of them, it makes a notification of some 8 kB for each object
//! of every transaction in every namespace: a node that subscribed for good would make the first sync of each other node on the machine
//! several times dearer (kind and k3d have several). The kernel has no other sign of a transaction: the notification of the generation
//! is sent to the same group, and the audit log, tracepoints and BPF need more privileges than this process keeps.
//!
//! So there are two states. In the quiet state nothing is subscribed to. A generation that another program has raised means that our tables
//! may have been changed, and the caller has to compare them. While notifications are received each transaction of another
//! program is known with its tables and its sender, and those that do not touch our tables cost nothing. They are received when that is
//! cheaper than to compare ([`Pace`]): for a short time when transactions follow each other closely, for [`LISTENING`] after a change of our
//! tables, which may be followed by others and whose sender is to be named, and as long as another program writes in [`OFTEN`] different
//! seconds of each minute. A program that writes to its own tables less often than that causes a comparison each time, and no
//! subscription. One that writes more often has the node subscribe for as long as it does: each comparison reads both tables, and
//! needs a subscription itself while it does.
//!
//! While a large transaction of our own is committed, the subscription is suspended, because it makes that transaction slower too; the
//! generation shows whether another program wrote meanwhile. During small ones it stays, and our own are recognised by the port of the
//! socket that sent them. Those of the flowtable go through another socket, and are recognised by [`OwnWrites`].

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use nft::monitor::Process;
use nft::{Command, CommitError, Connection, Monitor, ReadError, TableName};

use super::own_writes::OwnWrites;

/// How long notifications are received after another program changed our tables, and while it writes often.
const LISTENING: Duration = Duration::from_secs(60);

/// How long they are received after transactions that follow each other closely, and what closely is.
const BURST: Duration = Duration::from_secs(3);

/// The number of seconds of [`LISTENING`] in which other programs wrote from which on that is often.
const OFTEN: usize = 5;
const SECOND: Duration = Duration::from_secs(1);

/// Foreign transactions that are examined in one check; if there are more, they count as unknown.
const MAX_TRANSACTIONS: usize = 10_000;

/// Commands and elements of a transaction of ours during which the subscription stays. Each costs some microseconds more then.
const SMALL: usize = 16;

/// The writes of other programs to our tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForeignWrites {
    /// No other program wrote.
    #[default]
    None,
    /// Other programs wrote: these, as far as the kernel names them.
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
    /// Our own tables may have been changed, also if only this process may change them.
    lost: bool,
    /// Another program did change them, and it is not known which.
    changed: bool,
    pace: Pace,
    own: OwnWrites,
}

/// A subscription.
struct Listener {
    monitor: Monitor,
    /// When it ends, unless another program writes before.
    until: Instant,
}

/// How often other programs write, and so whether it is cheaper to receive notifications than to compare. Pure.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    /// When the last different seconds with a transaction began, at most [`OFTEN`].
    seconds: VecDeque<Instant>,
}

impl Pace {
    /// Another program wrote. Gives until when notifications are to be received, if at all.
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

    /// The caller found that another program changed our tables: the next changes are to be named.
    pub(super) fn changed(&mut self) {
        self.changed = true;
    }

    /// Notes that another program could write to any table since the last check.
    pub(super) fn lost(&mut self) {
        self.lost = true;
    }

    /// The caller reads all tables from now on, and will find there what was written before.
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

    /// The writes of other programs to these tables since the last call. Without tables, only this process may change ours, and what other
    /// programs write is of no interest.
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
        // What came before the subscription was not notified.
        let unknown = unknown || raised && (is_new || self.listener.is_none());
        if unknown
            && let Some(until) = self.pace.wrote(now)
            && self.listen_until(until)
        {
            // What was written until now is for the caller to find in the tables; what is written from now on is notified.
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
            // A transaction that came after the generation was asked for, and is not received any more, shows in the next generation.
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

    /// Receives notifications at least until then. Gives whether that begins now. Without a subscription, which the kernel may refuse, each
    /// raised generation means that the tables may have been changed.
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

/// Whether the generation says that since `from` no other program committed a transaction beside this one of ours, which was sent after
/// `before`; `error` is what came of it. One without an acknowledgement may have been committed. One that only deletes elements that need not be there may have changed nothing, and then has not raised it.
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

    /// For how much of ten minutes a program that writes in bursts has notifications received: so many writes, so far apart, each so often.
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

    // A program that writes to its own tables now and then has no node subscribe, and one that writes all the time does (G10).
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

    // The first of many writes are compared, the others are told (G10).
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

    // What was committed without an acknowledgement is no foreign write, so that the new try is not told as a repair (G10).
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

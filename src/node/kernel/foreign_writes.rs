//! Detects writes of other programs to our tables, which are the nf_tables tables of this program.
//!
//! The module follows the generation, a number that the kernel raises by one with each transaction that changes something, of any program
//! in this network namespace. To ask for it takes 3 us (measured) and no lock, so the sync loop asks each time it wakes. Only the
//! notifications of nf_tables tell which tables a transaction changed and which program sent it, but a permanent subscription makes the
//! transactions of all network namespaces of the machine slower (`src/decisions/0009-foreign-writes.md`).
//!
//! So the module subscribes for limited times only. Without a subscription, a generation that another program raised means that our tables
//! may have been changed, and the caller has to compare them with the wanted content. With a subscription, the tables and the sender of
//! each transaction are known, and a transaction that does not touch our tables causes no comparison. The module subscribes when that is
//! cheaper than comparisons, which read both tables ([`Pace`]): for [`BURST`] when transactions follow each other closely; for
//! [`LISTENING`] after a change of our tables, to name the sender of further changes; and as long as other programs write in [`OFTEN`]
//! different seconds of each minute. A program that writes to its own tables less often, and not in bursts, causes a comparison each time,
//! and no subscription.
//!
//! While this program commits a large transaction, the subscription is suspended, because it would slow the transaction down; the
//! generation shows whether another program wrote in the meantime. The subscription stays during small transactions of this program, which
//! the module recognises by the netlink port of the socket that sent them. Transactions for the flowtable go through another socket;
//! [`OwnWrites`] records them.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nft::monitor::Process;
use nft::{Command, CommitError, Connection, Monitor, ReadError, TableName};

use super::own_writes::OwnWrites;

/// The length of a subscription after another program changed our tables, or while other programs write often. Further writes of this kind
/// extend it.
const LISTENING: Duration = Duration::from_secs(60);

/// The length of a subscription after two transactions less than [`BURST`] apart.
const BURST: Duration = Duration::from_secs(3);

/// Other programs write often if they write in at least this many different seconds of [`LISTENING`].
const OFTEN: usize = 5;
const SECOND: Duration = Duration::from_secs(1);

/// The largest number of transactions that one check examines. If there are more, the check reports that other programs may have written.
const MAX_TRANSACTIONS: usize = 10_000;

/// The subscription stays during a transaction of this program with at most this many commands and elements: the notification of each costs
/// only some microseconds.
const SMALL: usize = 16;

/// The writes of other programs to our tables since the last check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForeignWrites {
    /// No other program wrote.
    #[default]
    None,
    /// Other programs wrote. The list contains those that the kernel names: by process, or by the thread that wrote if its process is not
    /// found.
    By(Vec<Process>),
    /// Other programs may have written.
    Unknown,
}

/// Detects writes in one network namespace.
#[derive(Default)]
pub(super) struct Detector {
    /// The subscription to notifications, if there is one.
    listener: Option<Listener>,
    /// The generation after the last check or commit; `None` before the first.
    generation: Option<u32>,
    /// Whether another program committed a transaction whose tables and sender are unknown.
    unknown: bool,
    /// Whether our tables were without an owner since the last check, because the socket that owned them was closed, so that other programs
    /// could write to them.
    lost: bool,
    /// Whether the caller found that an unknown program changed our tables.
    changed: bool,
    pace: Pace,
    own: OwnWrites,
}

/// A subscription to notifications.
struct Listener {
    monitor: Monitor,
    /// When the subscription ends, unless writes of other programs extend it before that time.
    until: Instant,
}

/// Counts how often other programs write, to decide whether a subscription is cheaper than comparisons of the tables. Does no I/O.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    /// The start times of the last seconds in which other programs wrote, at most [`OFTEN`] of them.
    seconds: VecDeque<Instant>,
}

impl Pace {
    /// Notes that another program wrote. Returns the time at which a subscription should end; `None` if comparisons are cheaper than a
    /// subscription.
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
    /// Returns a detector that does not report the transactions in `own`, which other threads of this process committed.
    pub(super) fn knowing(own: OwnWrites) -> Self {
        Self { own, ..Self::default() }
    }

    /// Notes that the caller found a change of our tables by another program: the next check subscribes, to learn which program makes
    /// further changes.
    pub(super) fn changed(&mut self) {
        self.changed = true;
    }

    /// Notes that our tables had no owner for a while since the last check, so that other programs could write to them.
    pub(super) fn lost(&mut self) {
        self.lost = true;
    }

    /// Notes that the caller is about to read all our tables, and so will see all earlier writes.
    pub(super) fn reading(&mut self, connection: &mut Connection) {
        self.generation = connection.generation().ok();
        (self.unknown, self.lost) = (false, false);
    }

    /// Runs `write`, which commits the given commands of this program, and does not report them as writes of another program.
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

    /// Whether [`Self::foreign_writes`] has anything to look at: `false` if the generation is that of its last call or of the last commit,
    /// without a subscription, a change or a loss that was noted.
    pub(super) fn may_find(&self, connection: &mut Connection) -> bool {
        let is_noted = self.unknown || self.lost || self.changed || self.listener.is_some();
        is_noted || self.generation.is_none() || connection.generation().ok() != self.generation
    }

    /// Returns the writes of other programs to these tables since the last call. An empty list means that our tables have an owner, so that
    /// other programs cannot write to them; then the result tells only whether our tables were without an owner since the last call.
    ///
    /// # Errors
    /// Fails when a socket fails. If it is the socket of the subscription, the next call takes the transactions that were missed for
    /// unknown ones.
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
        // A transaction is also unknown if it was committed before the subscription began.
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
            // The notification of a transaction that was committed after the generation was read above may be lost here, but the next check
            // sees the raised generation.
            self.listener = None;
        }
        let touching = || foreign().filter(|write| tables.iter().any(|table| write.tables.contains(table)));
        let mut threads = Vec::new();
        for thread in touching().filter_map(|write| write.by.as_ref()) {
            if !threads.contains(&thread) {
                threads.push(thread);
            }
        }
        let mut by = Vec::new();
        for process in threads.into_iter().map(|thread| process_of(thread, Path::new("/proc"))) {
            if !by.contains(&process) {
                by.push(process);
            }
        }
        Ok(match (is_touched, unknown || lost || writes.lost) {
            (true, _) => ForeignWrites::By(by),
            (false, true) => ForeignWrites::Unknown,
            (false, false) => ForeignWrites::None,
        })
    }

    /// Subscribes to notifications at least until this time. Returns whether the subscription is new. If the kernel refuses the
    /// subscription, every raised generation still counts as a possible change of our tables.
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

/// Returns the process of a thread that sent a transaction, by its main thread's id and name: the kernel names the thread, which `ps` does not
/// list and which has a name of its own in some programs. Returns the thread itself if `proc` does not show it: it has ended, or this
/// process is in another PID namespace, where the id is that of no thread or of another one.
fn process_of(thread: &Process, proc: &Path) -> Process {
    let find = || {
        let status = fs::read_to_string(proc.join(thread.pid.to_string()).join("status")).ok()?;
        let field = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let pid = field("Tgid:").filter(|_| field("Name:") == Some(&*thread.name))?.parse().ok()?;
        let name = fs::read_to_string(proc.join(format!("{pid}/comm"))).ok()?;
        Some(Process { pid, name: name.trim_end_matches('\n').to_owned() })
    };
    find().unwrap_or_else(|| thread.clone())
}

/// Returns whether the generations show that no other program has committed a transaction since `from`. `before` and `after` are the
/// generations right before and after this program's transaction with these commands, and `error` is its error. A transaction without an
/// acknowledgement may have been committed. A transaction that only destroys elements may have changed nothing, and then has not raised the
/// generation.
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

    /// Returns the share of ten minutes with a subscription, if another program writes in bursts: `writes` writes with `apart` between
    /// them, and one burst in each period of `every`.
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

    // Rare writes of another program to its own tables cause no subscription; frequent writes do (G10).
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

    // Of many writes in a row, the second begins a subscription, and notifications report the later ones (G10).
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

    // People look for the program with `ps`, which lists processes (G10).
    #[test]
    fn a_thread_that_wrote_is_reported_as_its_process() {
        let proc = tempfile::tempdir().unwrap();
        for (id, name, process) in [(71, "calico-node", 71), (75, "worker", 71)] {
            let directory = proc.path().join(id.to_string());
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("status"), format!("Name:\t{name}\nUmask:\t0022\nTgid:\t{process}\nPid:\t{id}\n"))
                .unwrap();
            fs::write(directory.join("comm"), format!("{name}\n")).unwrap();
        }
        let of = |pid, name: &str| process_of(&Process { pid, name: name.to_owned() }, proc.path());
        let calico = Process { pid: 71, name: "calico-node".to_owned() };
        assert_eq!((of(75, "worker"), of(71, "calico-node")), (calico.clone(), calico));
        for (pid, name) in [(75, "nft"), (76, "nft")] {
            assert_eq!(of(pid, name), Process { pid, name: name.to_owned() }, "another thread, or none");
        }
    }

    // A transaction of this program whose acknowledgement is lost is no foreign write; otherwise its next try would be reported as a repair
    // (G10).
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

//! Detects writes of other programs to our tables.
//!
//! Receives the kernel's notifications, except during large transactions of our own: every subscriber makes a transaction slower. A write
//! during that time shows in the generation, which grows by one with each transaction of any program. During small transactions the
//! subscription stays, and our own are recognised by the port of the socket that sent them: beside a program that commits to its own
//! tables all the time, the generation alone would make us compare everything after each of our own transactions.

use std::io;

use nft::monitor::Process;
use nft::{Command, Connection, Monitor, ReadError, TableName};

use super::waker::{Wake, Waker};

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
pub(super) struct Detector {
    /// Missing if the kernel refuses it; then only the generation shows writes.
    monitor: Option<Monitor>,
    /// Wakes the sync loop when the monitor has notifications.
    waker: Option<Waker>,
    /// The function that wakes it, if there is one.
    wake: Option<Wake>,
    /// The generation after our last check or commit.
    generation: Option<u32>,
    /// Something may have been written while there was no subscription.
    missed: bool,
}

impl Detector {
    /// Subscribes. Notifications wake the sync loop after the first check.
    pub(super) fn new(wake: Option<Wake>) -> Self {
        let monitor = Monitor::open().ok();
        let waker = wake.clone().filter(|_| monitor.is_some()).and_then(|wake| Waker::new(wake).ok());
        Self { monitor, waker, wake, generation: None, missed: false }
    }

    /// Subscribes again, after the socket failed.
    fn reopen(&mut self) {
        *self = Self { missed: true, ..Self::new(self.wake.take()) };
    }

    /// Notes that something may have been written while there was no subscription.
    pub(super) fn missed(&mut self) {
        self.missed = true;
    }

    /// Runs `write`, which commits these commands of our own.
    pub(super) fn during<T, E>(
        &mut self,
        connection: &mut Connection,
        commands: &[Command],
        write: impl FnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        let is_large = commands.iter().map(|command| command.elements().max(1)).sum::<usize>() > SMALL;
        let before = connection.generation().ok();
        let paused = is_large && self.monitor.as_ref().is_some_and(|monitor| monitor.pause().is_ok());
        let result = write(connection);
        if paused && self.monitor.as_ref().is_some_and(|monitor| monitor.resume().is_err()) {
            self.monitor = None;
        }
        let ours = u32::from(result.is_ok());
        let after = connection.generation().ok();
        // Without a monitor, writes since the last check count as well.
        let from = if self.monitor.is_some() { before } else { self.generation.or(before) };
        if paused || self.monitor.is_none() {
            self.missed |= from.zip(after).is_none_or(|(from, after)| after != from.wrapping_add(ours));
        }
        self.generation = after;
        result
    }

    /// The writes of other programs to these tables since the last call.
    ///
    /// # Errors
    /// When a socket fails; then the next call subscribes again.
    pub(super) fn foreign_writes(
        &mut self,
        connection: &mut Connection,
        tables: &[TableName],
    ) -> Result<ForeignWrites, ReadError> {
        let missed = std::mem::take(&mut self.missed);
        let Some(monitor) = &mut self.monitor else {
            let now = connection.generation()?;
            let same = self.generation.replace(now).is_none_or(|before| before == now);
            return Ok(if same && !missed { ForeignWrites::None } else { ForeignWrites::Unknown });
        };
        let writes = match monitor.writes(MAX_TRANSACTIONS) {
            Ok(writes) => writes,
            Err(error) => return self.fail(error),
        };
        if let Some(waker) = &self.waker {
            waker.arm(|| monitor.waiter());
        }
        let ours = connection.port();
        let foreign = writes.transactions.into_iter().filter(|write| write.port != ours);
        let touching = foreign.filter(|write| tables.iter().any(|table| write.tables.contains(table)));
        let mut by = Vec::new();
        let mut any = false;
        for write in touching {
            any = true;
            by.extend(write.by.filter(|process| !by.contains(process)));
        }
        Ok(match (any, missed || writes.lost) {
            (true, _) => ForeignWrites::By(by),
            (false, true) => ForeignWrites::Unknown,
            (false, false) => ForeignWrites::None,
        })
    }

    fn fail<T>(&mut self, error: io::Error) -> Result<T, ReadError> {
        self.reopen();
        Err(error.into())
    }
}

//! Notices when another program writes to our tables.
//!
//! Listens to the kernel's notifications, except while we write much ourselves: every listener makes a large transaction slower.
//! What happened during that moment shows in the generation, which grows by one with each transaction of anybody. While we write
//! little we go on listening, and tell our own transactions by the port of the socket that sent them: beside a program that commits
//! to its own tables all the time, the generation alone would have us compare everything after each of our own transactions.

use std::io;

use nft::monitor::Process;
use nft::{Command, Connection, Monitor, ReadError, TableName};

use super::bell::{Bell, Wake};

/// Foreign transactions that are told apart between two looks; more count as unknown.
const MOST: usize = 10_000;

/// Commands and elements of a transaction of ours during which we go on listening. Each costs some microseconds more then.
const LITTLE: usize = 16;

/// What others did to our tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForeignWrites {
    /// Nothing.
    #[default]
    None,
    /// They were changed, by these programs as far as the kernel says it.
    By(Vec<Process>),
    /// They may have been changed.
    Unknown,
}

/// The watch over the tables of one network namespace.
pub(super) struct Watch {
    /// Not there on a kernel that refuses it; then the generation tells everything.
    monitor: Option<Monitor>,
    /// Rings when there is something to read from the monitor.
    bell: Option<Bell>,
    /// Whom it wakes, if there is anybody.
    wake: Option<Wake>,
    /// The generation after our last look or commit.
    generation: Option<u32>,
    /// Something was written while nobody listened.
    missed: bool,
}

impl Watch {
    /// Begins to listen. Whoever shall be woken is woken by notifications after the first look.
    pub(super) fn new(wake: Option<Wake>) -> Self {
        let monitor = Monitor::open().ok();
        let bell = wake.clone().filter(|_| monitor.is_some()).and_then(|wake| Bell::new(wake).ok());
        Self { monitor, bell, wake, generation: None, missed: false }
    }

    /// Listens anew, after the socket failed.
    fn reopen(&mut self) {
        *self = Self { missed: true, ..Self::new(self.wake.take()) };
    }

    /// Notes that something may have been written while nobody listened.
    pub(super) fn missed(&mut self) {
        self.missed = true;
    }

    /// Does our own writing of these commands.
    pub(super) fn during<T, E>(
        &mut self,
        connection: &mut Connection,
        commands: &[Command],
        write: impl FnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        let much = commands.iter().map(|command| command.elements().max(1)).sum::<usize>() > LITTLE;
        let before = connection.generation().ok();
        let paused = much && self.monitor.as_ref().is_some_and(|monitor| monitor.pause().is_ok());
        let result = write(connection);
        if paused && self.monitor.as_ref().is_some_and(|monitor| monitor.resume().is_err()) {
            self.monitor = None;
        }
        let ours = u32::from(result.is_ok());
        let after = connection.generation().ok();
        // Without a monitor, also what was written since the last look counts.
        let from = if self.monitor.is_some() { before } else { self.generation.or(before) };
        if paused || self.monitor.is_none() {
            self.missed |= from.zip(after).is_none_or(|(from, after)| after != from.wrapping_add(ours));
        }
        self.generation = after;
        result
    }

    /// What others wrote to these tables since the last call.
    ///
    /// # Errors
    /// When the kernel cannot be asked; then the next call listens anew.
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
        let writes = match monitor.writes(MOST) {
            Ok(writes) => writes,
            Err(error) => return self.fail(error),
        };
        if let Some(bell) = &self.bell {
            bell.arm(|| monitor.waiter());
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

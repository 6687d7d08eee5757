//! Notices when somebody else writes to our tables.
//!
//! Listens to the kernel's notifications, except while we write ourselves: every listener makes a large transaction slower. What
//! happened during that moment shows in the generation, which grows by one with each transaction of anybody.

use nft::monitor::Process;
use nft::{Connection, Monitor, ReadError, TableName};

/// Foreign transactions that are told apart between two looks; more count as unknown.
const MOST: usize = 1000;

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
    /// The generation after our last look or commit.
    generation: Option<u32>,
    /// Something was written while nobody listened.
    missed: bool,
}

impl Watch {
    /// Begins to listen.
    pub(super) fn new() -> Self {
        Self { monitor: Monitor::open().ok(), generation: None, missed: false }
    }

    /// Notes that something may have been written while nobody listened.
    pub(super) fn missed(&mut self) {
        self.missed = true;
    }

    /// Does our own writing.
    pub(super) fn during<T, E>(
        &mut self,
        connection: &mut Connection,
        write: impl FnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = connection.generation().ok();
        let paused = self.monitor.as_ref().is_some_and(|monitor| monitor.pause().is_ok());
        let result = write(connection);
        if paused && self.monitor.as_ref().is_some_and(|monitor| monitor.resume().is_err()) {
            self.monitor = None;
        }
        let ours = u32::from(result.is_ok());
        let after = connection.generation().ok();
        // Without a monitor, also what was written since the last look counts.
        let from = if self.monitor.is_some() { before } else { self.generation.or(before) };
        self.missed |= from.zip(after).is_none_or(|(from, after)| after != from.wrapping_add(ours));
        self.generation = after;
        result
    }

    /// What others wrote to these tables since the last call.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
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
        let writes = monitor.writes(MOST).map_err(ReadError::Socket)?;
        let ours =
            writes.transactions.into_iter().filter(|write| tables.iter().any(|table| write.tables.contains(table)));
        let mut by = Vec::new();
        let mut any = false;
        for write in ours {
            any = true;
            by.extend(write.by.filter(|process| !by.contains(process)));
        }
        Ok(match (any, missed || writes.lost) {
            (true, _) => ForeignWrites::By(by),
            (false, true) => ForeignWrites::Unknown,
            (false, false) => ForeignWrites::None,
        })
    }
}

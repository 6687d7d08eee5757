//! Access to the table of the fast path. It is separate from [`super::Kernel`], so that an error there does not affect the Services'
//! tables.

use std::io;
use std::sync::Arc;

use nft::{Command, CommitError, Connection, Flowtable, ReadError, TableDump, TableName};

use super::reconnect::{Reconnecting, is_broken};
use super::rtnetlink;

/// The operations that the fast path needs. Tests have another implementation.
pub(crate) trait FlowtableKernel {
    /// The names of the node's interfaces except loopback, sorted.
    ///
    /// # Errors
    /// The kernel's error.
    fn interfaces(&mut self) -> io::Result<Vec<Arc<str>>>;

    /// The generation of all rules, which changes with each transaction of any program.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn generation(&mut self) -> Result<u32, ReadError>;

    /// A table with its flowtables; `None` when there is no such table.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&mut self, table: &TableName) -> Result<Option<(TableDump, Vec<Flowtable>)>, ReadError>;

    /// Commits all commands, or none.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(&mut self, commands: &[Command]) -> Result<(), CommitError>;
}

/// The kernel of the calling thread's network namespace. A socket that fails is opened again at its next use.
pub(crate) struct Flowtables {
    connection: Reconnecting<Connection>,
}

impl Flowtables {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn open() -> io::Result<Self> {
        let mut connection = Reconnecting::new(Connection::open);
        connection.ensure()?;
        Ok(Self { connection })
    }
}

impl FlowtableKernel for Flowtables {
    fn interfaces(&mut self) -> io::Result<Vec<Arc<str>>> {
        rtnetlink::interfaces()
    }

    fn generation(&mut self) -> Result<u32, ReadError> {
        self.connection.with(is_broken, Connection::generation)
    }

    fn read(&mut self, table: &TableName) -> Result<Option<(TableDump, Vec<Flowtable>)>, ReadError> {
        self.connection.with(is_broken, |connection| {
            let Some(dump) = connection.read_table(table)? else { return Ok(None) };
            Ok(Some((dump, connection.read_flowtables(table)?)))
        })
    }

    fn commit(&mut self, commands: &[Command]) -> Result<(), CommitError> {
        let broken = |error: &CommitError| matches!(error, CommitError::Socket(_));
        self.connection.with(broken, |connection| connection.commit(commands).map(drop))
    }
}

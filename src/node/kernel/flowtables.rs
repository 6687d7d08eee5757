//! Access to the table of the fast path (`--flowtable`). It uses a socket of its own and not [`super::Kernel`], so that an error there
//! does not affect the Services' tables.

use std::io;
use std::sync::Arc;

use nft::{Command, CommitError, Connection, Flowtable, ReadError, TableDump, TableName};

use super::own_writes::OwnWrites;
use super::reconnect::{Reconnecting, is_broken};
use super::rtnetlink;

/// The operations that the fast path needs. Tests have another implementation.
pub trait FlowtableKernel {
    /// The names of the node's interfaces except loopback, sorted.
    ///
    /// # Errors
    /// The kernel's error.
    fn interfaces(&mut self) -> io::Result<Vec<Arc<str>>>;

    /// The generation of the ruleset, a number that changes with each transaction of any program.
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
pub struct Flowtables {
    connection: Reconnecting<Connection>,
    own: OwnWrites,
}

impl Flowtables {
    /// Opens the socket. Transactions that are committed through it are recorded in `own`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(own: OwnWrites) -> io::Result<Self> {
        let mut connection = Reconnecting::new(Connection::open);
        connection.ensure()?;
        Ok(Self { connection, own })
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
        let own = &self.own;
        self.connection.with(broken, |connection| {
            own.begins(connection.port());
            let before = connection.generation();
            connection.commit(commands)?;
            if let (Ok(before), Ok(after)) = (before, connection.generation()) {
                own.committed(before, after);
            }
            Ok(())
        })
    }
}

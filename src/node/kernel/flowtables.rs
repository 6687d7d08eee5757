//! Access to the nf_tables table of the fast path (`--flowtable`). It uses a separate socket and not [`super::Kernel`], so that a failing
//! socket does not affect the tables of the Services.

use std::io;
use std::sync::Arc;

use nft::{Command, CommitError, Connection, Flowtable, ReadError, TableDump, TableName};

use super::own_writes::OwnWrites;
use super::reconnect::{Reconnecting, is_broken};
use super::rtnetlink;

/// The kernel operations that the fast path needs. Unit tests implement it with a simulated kernel.
pub trait FlowtableKernel {
    /// Returns the names of the node's interfaces except loopback, sorted.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    fn interfaces(&mut self) -> io::Result<Vec<Arc<str>>>;

    /// Returns the generation of the ruleset, a number that changes with each transaction that changes something, of any program.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn generation(&mut self) -> Result<u32, ReadError>;

    /// Returns a table with its flowtables; `None` if the table does not exist.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&mut self, table: &TableName) -> Result<Option<(TableDump, Vec<Flowtable>)>, ReadError>;

    /// Commits the commands as one transaction: all of them or none.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(&mut self, commands: &[Command]) -> Result<(), CommitError>;
}

/// The kernel in the network namespace of the thread that opened it. A socket that failed is opened again at its next use.
pub struct Flowtables {
    connection: Reconnecting<Connection>,
    own: OwnWrites,
}

impl Flowtables {
    /// Opens the socket. `own` records the transactions that are committed through it.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
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

//! The door to the fast path's table. It is not behind [`super::Kernel`]: whatever happens to it, the Services' tables are none the
//! wiser.

use std::io;
use std::sync::Arc;

use nft::{Command, CommitError, Connection, Flowtable, ReadError, TableDump, TableName};

use super::link::Link;
use super::{interfaces, is_broken};

/// What the fast path asks of the kernel. Tests put another one in its place.
pub trait FlowtableKernel {
    /// The names of the node's interfaces but loopback, sorted.
    ///
    /// # Errors
    /// What the kernel answers.
    fn interfaces(&mut self) -> io::Result<Vec<Arc<str>>>;

    /// The generation of all rules: another one when anybody changed any.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn generation(&mut self) -> Result<u32, ReadError>;

    /// A table with its flowtables; `None` when there is no such table.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&mut self, table: &TableName) -> Result<Option<(TableDump, Vec<Flowtable>)>, ReadError>;

    /// Has the kernel carry out all commands, or none.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(&mut self, commands: &[Command]) -> Result<(), CommitError>;
}

/// The kernel of the calling thread's network namespace. A socket that fails is opened again at its next use.
pub struct Flowtables {
    connection: Link<Connection>,
}

impl Flowtables {
    /// Opens the socket.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn open() -> io::Result<Self> {
        let mut connection = Link::new(Connection::open);
        connection.ensure()?;
        Ok(Self { connection })
    }
}

impl FlowtableKernel for Flowtables {
    fn interfaces(&mut self) -> io::Result<Vec<Arc<str>>> {
        interfaces::list()
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

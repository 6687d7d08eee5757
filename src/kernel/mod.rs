//! The door to the kernel: commit a transaction, read a table back, list the node's addresses, list and delete UDP flows.
//!
//! Takes commands and gives an acknowledgement or a typed error. Knows neither what a Service is nor whether to try again. Its
//! sockets belong to the network namespace of the thread that opens them, and stay on that thread: a commit blocks it.

pub mod addresses;
mod bell;
pub mod families;
mod flows;
mod flowtables;
pub mod interfaces;
pub mod leftovers;
mod link;
mod lock;
pub mod probe;
pub mod process;
mod rtnetlink;
pub mod sysctl;
mod watch;

use std::io;
use std::net::IpAddr;

use nft::{Command, CommitError, Committed, Connection, Element, ReadError, Set, Table, TableDump, TableName};
use tracing::info;

use crate::conntrack::Flow;
use crate::model::Family;
use link::Link;
use watch::Watch;

pub use bell::Wake;
pub use flows::load_conntrack;
#[doc(hidden)]
pub use flows::{deletion, flow};
pub use flowtables::{FlowtableKernel, Flowtables};
pub use lock::{Held, Holder, Lock, LockError, TABLE as LOCK, Turn};
pub use watch::ForeignWrites;

/// What the sync loop asks of the kernel. Tests put another one in its place.
pub trait Kernel {
    /// Has the kernel carry out all commands, or none.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError>;

    /// Everything in a table; `None` when there is no such table.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError>;

    /// The elements of a set as they are now; none when there is no such set.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError>;

    /// What others wrote to these tables since the last call.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn foreign_writes(&mut self, tables: &[TableName]) -> Result<ForeignWrites, ReadError>;

    /// Whose turn it is to write to our tables. Without a lock, it is always ours.
    ///
    /// # Errors
    /// See [`LockError`]; then it is not our turn.
    fn turn(&mut self) -> Result<Turn, LockError> {
        Ok(Turn::Ours)
    }

    /// The UDP flows of a family that the kernel tracks.
    ///
    /// # Errors
    /// What the kernel answers.
    fn udp_flows(&mut self, family: Family) -> io::Result<Vec<Flow>>;

    /// Deletes flows and gives the number of those that were still there.
    ///
    /// # Errors
    /// What the kernel answers.
    fn delete_flows(&mut self, flows: &[Flow]) -> io::Result<usize>;

    /// The addresses of all interfaces of this node.
    ///
    /// # Errors
    /// What the kernel answers.
    fn addresses(&mut self) -> io::Result<Vec<IpAddr>>;
}

/// The kernel of the calling thread's network namespace. A socket that fails is opened again at its next use.
pub struct Netfilter {
    connection: Link<Connection>,
    watch: Watch,
    /// The table with the flowtable that flows of ours may be in.
    fast_path: Option<TableName>,
    /// Without it nothing keeps two processes from writing.
    lock: Option<Lock>,
}

impl Netfilter {
    /// Opens the sockets.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn open() -> io::Result<Self> {
        let mut connection = Link::new(Connection::open);
        connection.ensure()?;
        Ok(Self { connection, watch: Watch::new(None), fast_path: None, lock: None })
    }

    /// Names the table of the fast path. Where the kernel deletes no flow that is in a flowtable, the table is deleted for that; who
    /// keeps it makes it again.
    #[must_use]
    pub fn with_fast_path(self, table: Option<TableName>) -> Self {
        Self { fast_path: table, ..self }
    }

    /// Has somebody woken when another program wrote to nf_tables, from the first call of [`Kernel::foreign_writes`] on. Each such
    /// call asks for the next time.
    #[must_use]
    pub fn waking(self, wake: Wake) -> Self {
        Self { watch: Watch::new(Some(wake)), ..self }
    }

    /// Has [`Kernel::turn`] ask this lock.
    #[must_use]
    pub fn with_lock(self, lock: Lock) -> Self {
        Self { lock: Some(lock), ..self }
    }

    fn release_flows(&mut self) -> io::Result<()> {
        let Some(name) = self.fast_path.clone() else {
            let text = "a flow is in somebody else's flowtable, and this kernel deletes none that is";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        };
        info!("this kernel deletes no flow that is in a flowtable: all flows leave it for a moment");
        // Added first, as somebody may have deleted it.
        let commands = [Command::AddTable(Table { name: name.clone(), comment: None }), Command::DeleteTable(name)];
        self.commit(&commands).map(drop).map_err(io::Error::other)
    }
}

impl Kernel for Netfilter {
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        let watch = &mut self.watch;
        self.connection.with(
            |error| matches!(error, CommitError::Socket(_)),
            |connection| watch.during(connection, commands, |connection| connection.commit(commands)),
        )
    }

    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError> {
        self.connection.with(is_broken, |connection| connection.read_table(table))
    }

    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError> {
        self.connection.with(is_broken, |connection| connection.read_set(table, set))
    }

    fn foreign_writes(&mut self, tables: &[TableName]) -> Result<ForeignWrites, ReadError> {
        let watch = &mut self.watch;
        if self.connection.ensure().map_err(ReadError::Socket)? {
            // Tables that the former connection owned were anybody's for a moment.
            watch.missed();
        }
        self.connection.with(is_broken, |connection| watch.foreign_writes(connection, tables))
    }

    fn turn(&mut self) -> Result<Turn, LockError> {
        self.lock.as_mut().map_or(Ok(Turn::Ours), Lock::take)
    }

    fn udp_flows(&mut self, family: Family) -> io::Result<Vec<Flow>> {
        flows::list(family)
    }

    fn delete_flows(&mut self, flows: &[Flow]) -> io::Result<usize> {
        flows::delete(flows, || self.release_flows())
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        addresses::list()
    }
}

/// Whether a new socket may do better. A kernel that answers with an error gets a new one too: that costs little.
fn is_broken(error: &ReadError) -> bool {
    matches!(error, ReadError::Socket(_))
}

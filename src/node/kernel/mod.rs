//! Access to the kernel: commits transactions, reads tables back, lists the node's addresses, lists and ends flows.
//!
//! Takes commands and returns an acknowledgement or a typed error. The caller decides when to try again. The sockets belong to the network
//! namespace of the thread that opens them; a commit blocks its thread. "Our tables" are the nf_tables tables of this program.

mod address_watch;
pub mod bridges;
pub mod connections;
mod ctnetlink;
mod encode_ahead;
pub(crate) mod errno;
pub mod families;
mod flowtables;
mod foreign_writes;
pub mod iptables;
pub mod leftovers;
pub mod local_ports;
mod lock;
mod own_writes;
pub mod probe;
pub mod process;
mod read_ahead;
mod reconnect;
pub mod routes;
mod rtnetlink;
pub mod socket_users;
pub mod sysctl;
pub mod table_owner;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nft::{
    Batch, Command, CommitError, Committed, Connection, Element, Elements, ReadError, Set, Table, TableDump, TableName,
};
use rustix::thread::{MembarrierCommand, membarrier};
use tracing::{Level, enabled, info, trace};

use address_watch::AddressWatch;
use foreign_writes::Detector;
use read_ahead::ReadAhead;
use reconnect::{Reconnecting, is_broken};
use rules::conntrack::{Flow, Listing};
use rules::model::Family;

pub use address_watch::AddressNews;
pub use ctnetlink::ConntrackLoad;
pub use ctnetlink::each_connection;
pub use ctnetlink::find_connection;
pub use ctnetlink::load_conntrack;
#[doc(hidden)]
pub use ctnetlink::{connection, deletion, flow};
pub(crate) use flowtables::FlowtableKernel;
pub use flowtables::Flowtables;
pub use foreign_writes::ForeignWrites;
pub use lock::Held;
pub use lock::{Holder, Lock, LockError, TABLE as LOCK, WriterLockState};
pub use own_writes::OwnWrites;
#[doc(hidden)]
pub use rtnetlink::address;
pub use rtnetlink::addresses;

/// The kernel operations that the sync loop needs. Tests have other implementations.
pub trait Kernel {
    /// Commits the commands as one transaction: all of them or none.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError>;

    /// Commits transactions one after the other until one fails. Returns the results of those that were committed, and the error of the one
    /// after them, if there is one.
    fn commit_each(&mut self, transactions: &[Vec<Command>]) -> (Vec<Committed>, Option<CommitError>) {
        encode_ahead::until_error(transactions.iter().map(|commands| self.commit(commands)))
    }

    /// Waits until each packet that was on its way through the rules before the last commit has passed them.
    fn packets_passed(&mut self) {}

    /// Returns everything in a table; `None` if the table does not exist.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError>;

    /// Begins to read tables that the caller will need soon, so that [`Kernel::read`] takes less time.
    fn read_ahead(&mut self, _tables: Vec<TableName>) {}

    /// Notes that the caller is about to read all our tables: earlier writes of other programs are then no longer reported, because the
    /// caller sees them.
    fn reading(&mut self) {}

    /// Returns the present elements of a set; none if the set does not exist.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError>;

    /// Returns the port of the netlink socket of another program that owns a table, so that only that program may change the table; `None`
    /// if no other program owns it.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn owner(&mut self, table: &TableName) -> Result<Option<u32>, ReadError> {
        Ok(self.read(table)?.and_then(|dump| dump.ownership.other()))
    }

    /// Describes the program that has the netlink socket with this port.
    fn program(&mut self, port: u32) -> String {
        table_owner::program(port)
    }

    /// Returns the writes of other programs to these tables since the last call. An empty list means that our tables have an owner, so only
    /// this process may change them; then the result tells only whether our tables were without an owner since the last call.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn foreign_writes(&mut self, tables: &[TableName], now: Instant) -> Result<ForeignWrites, ReadError>;

    /// Returns whether [`Kernel::foreign_writes`] may find something: `false` if no program committed a transaction since its last call, which
    /// is quicker to find out.
    fn may_be_written(&mut self) -> bool {
        true
    }

    /// Notes that a comparison found a change of our tables by another program.
    fn changed_by_others(&mut self) {}

    /// Takes the writer lock if it is free, and returns which process may write to our tables. Without a lock, it is always this process.
    ///
    /// # Errors
    /// See [`LockError`]; after an error this process may not write.
    fn take_writer_lock(&mut self) -> Result<WriterLockState, LockError> {
        Ok(WriterLockState::Ours)
    }

    /// Returns whether the kernel tracks any flow. If not, [`Kernel::flows`] returns none, but walks over the kernel's whole table for that.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    fn tracks_flows(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Returns the flows of a family and listing that the kernel tracks and for which `is_wanted` is true.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    fn flows(
        &mut self,
        family: Family,
        listing: Listing,
        is_wanted: &mut dyn FnMut(&Flow) -> bool,
    ) -> io::Result<Vec<Flow>>;

    /// Deletes flows. Returns how many of them still existed. If `reset_at`, an address of this node, is given, this node resets each open
    /// TCP connection among them when its client sends the next packet, unless the connection is in a conntrack zone.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    fn delete_flows(&mut self, flows: &[Flow], reset_at: Option<IpAddr>) -> io::Result<usize>;

    /// Returns the addresses of all interfaces of this node.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    fn addresses(&mut self) -> io::Result<Vec<IpAddr>>;

    /// Returns whether the node's addresses changed since the last call, according to the kernel's notifications.
    fn address_news(&mut self) -> AddressNews {
        AddressNews::Unwatched
    }
}

/// The kernel in the network namespace of the thread that opened it. A socket that failed is opened again at its next use.
pub struct Netfilter {
    connection: Reconnecting<Connection>,
    /// Tables that are read before they are needed; `None` before [`Kernel::read_ahead`] and after the next commit.
    read_ahead: Option<ReadAhead>,
    foreign_writes: Detector,
    /// The table with the flowtable of the fast path, if there is one.
    fast_path: Option<TableName>,
    /// The lock for writers. If it is `None`, two processes may write at the same time.
    lock: Option<Lock>,
    /// Receives the kernel's notifications about addresses. If it is `None`, changes of the node's addresses are not reported.
    address_watch: Option<AddressWatch>,
}

impl Netfilter {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn open() -> io::Result<Self> {
        let mut connection = Reconnecting::new(Connection::open);
        connection.ensure()?;
        Ok(Self {
            connection,
            read_ahead: None,
            foreign_writes: Detector::default(),
            fast_path: None,
            lock: None,
            address_watch: None,
        })
    }

    /// Sets the table of the fast path. If the kernel does not delete flows that are in a flowtable, [`Kernel::delete_flows`] deletes this
    /// table and tries again; the reconciler of the fast path creates the table again.
    #[must_use]
    pub fn with_fast_path(self, table: Option<TableName>) -> Self {
        Self { fast_path: table, ..self }
    }

    /// Sets the record of the transactions that other threads of this process commit.
    #[must_use]
    pub fn with_own_writes(self, own: OwnWrites) -> Self {
        Self { foreign_writes: Detector::knowing(own), ..self }
    }

    /// Starts a thread that watches the node's addresses, and calls `wake` when they change. If the thread cannot be started, the sync loop
    /// lists the addresses once a second.
    #[must_use]
    pub fn watching_addresses(self, wake: impl Fn() + Send + 'static) -> Self {
        Self { address_watch: AddressWatch::new(wake).ok(), ..self }
    }

    /// Sets the lock that [`Kernel::take_writer_lock`] takes.
    #[must_use]
    pub fn with_lock(self, lock: Lock) -> Self {
        Self { lock: Some(lock), ..self }
    }

    fn commit_encoded(&mut self, batch: &Batch, commands: &[Command]) -> Result<Committed, CommitError> {
        if enabled!(Level::TRACE) {
            commands.iter().for_each(|command| trace!(command = shortened(command), "Running nftables command"));
        }
        self.read_ahead = None;
        let detector = &mut self.foreign_writes;
        self.connection.with(
            |error| matches!(error, CommitError::Socket(_)),
            |connection| detector.during(connection, commands, |connection| connection.commit_encoded(batch, commands)),
        )
    }

    fn release_flows(&mut self) -> io::Result<()> {
        let Some(name) = self.fast_path.clone() else {
            let text = "a flow is in a flowtable of another program, and this kernel does not delete such flows";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        };
        info!("This kernel does not delete flows that are in a flowtable: all flows are removed from it for a moment");
        // Add the table first, because the deletion of a missing table would fail: another program may have deleted it.
        let commands = [Command::AddTable(Table { name: name.clone(), comment: None }), Command::DeleteTable(name)];
        self.commit(&commands).map(drop).map_err(io::Error::other)
    }
}

/// The largest number of elements of a command that the log shows; the log only counts further elements.
const LOGGED: usize = 64;

/// Returns a command in nft syntax. If the command has more than [`LOGGED`] elements, the text shows the first ones and the number of the
/// rest.
fn shortened(command: &Command) -> String {
    let first = |elements: &Elements| elements.iter().take(LOGGED).collect();
    let short = match command {
        _ if command.elements() <= LOGGED => return command.to_string(),
        Command::AddElements(table, set, list) => Command::AddElements(table.clone(), Arc::clone(set), first(list)),
        Command::DeleteElements(table, set, list) => {
            Command::DeleteElements(table.clone(), Arc::clone(set), first(list))
        }
        Command::DestroyElements(table, set, list) => {
            Command::DestroyElements(table.clone(), Arc::clone(set), first(list))
        }
        other => return other.to_string(),
    };
    format!("{short} and {} more elements", command.elements() - LOGGED)
}

impl Kernel for Netfilter {
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        self.commit_encoded(&Batch::encode(commands)?, commands)
    }

    fn commit_each(&mut self, transactions: &[Vec<Command>]) -> (Vec<Committed>, Option<CommitError>) {
        encode_ahead::commit_each(transactions, |batch, commands| self.commit_encoded(batch, commands))
    }

    fn packets_passed(&mut self) {
        /// Much longer than a packet takes, where the kernel cannot say it.
        const LONG: Duration = Duration::from_millis(100);
        // The kernel evaluates rules within a read-side critical section of RCU (`nf_hook`), and this call waits until all of them that
        // have begun have ended. It fails where processors run without timer ticks (`nohz_full`).
        if membarrier(MembarrierCommand::Global).is_err() {
            thread::sleep(LONG);
        }
    }

    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError> {
        let ahead = &mut self.read_ahead;
        self.connection.with(is_broken, |connection| {
            match ahead.as_mut().and_then(|ahead| ahead.take(table, connection)) {
                Some(dump) => Ok(dump),
                None => connection.read_table(table),
            }
        })
    }

    fn read_ahead(&mut self, tables: Vec<TableName>) {
        self.read_ahead = ReadAhead::begin(tables);
    }

    fn reading(&mut self) {
        let detector = &mut self.foreign_writes;
        // Ignore the error: if the socket fails here, the caller's read of the tables fails too.
        let _ = self.connection.with(is_broken, |connection| {
            detector.reading(connection);
            Ok::<(), ReadError>(())
        });
    }

    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError> {
        self.connection.with(is_broken, |connection| connection.read_set(table, set))
    }

    fn owner(&mut self, table: &TableName) -> Result<Option<u32>, ReadError> {
        let found = self.connection.with(is_broken, |connection| connection.table(table))?;
        Ok(found.and_then(|(_, ownership)| ownership.other()))
    }

    fn foreign_writes(&mut self, tables: &[TableName], now: Instant) -> Result<ForeignWrites, ReadError> {
        let detector = &mut self.foreign_writes;
        if self.connection.ensure().map_err(ReadError::Socket)? {
            // Our tables lost their owner when the previous connection was closed, so other programs could write to them.
            detector.lost();
        }
        self.connection.with(is_broken, |connection| detector.foreign_writes(connection, tables, now))
    }

    fn may_be_written(&mut self) -> bool {
        self.connection.present().is_none_or(|connection| self.foreign_writes.may_find(connection))
    }

    fn changed_by_others(&mut self) {
        self.foreign_writes.changed();
    }

    fn take_writer_lock(&mut self) -> Result<WriterLockState, LockError> {
        self.lock.as_mut().map_or(Ok(WriterLockState::Ours), Lock::take)
    }

    fn tracks_flows(&mut self) -> io::Result<bool> {
        ctnetlink::tracked().map(|count| count > 0)
    }

    fn flows(
        &mut self,
        family: Family,
        listing: Listing,
        is_wanted: &mut dyn FnMut(&Flow) -> bool,
    ) -> io::Result<Vec<Flow>> {
        ctnetlink::list(family, listing, is_wanted)
    }

    fn delete_flows(&mut self, flows: &[Flow], reset_at: Option<IpAddr>) -> io::Result<usize> {
        ctnetlink::delete(flows, reset_at, || self.release_flows())
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        rtnetlink::addresses()
    }

    fn address_news(&mut self) -> AddressNews {
        self.address_watch.as_ref().map_or(AddressNews::Unwatched, AddressWatch::news)
    }
}

//! Reads tables in another thread before they are needed: a process that starts needs them when all objects of the cluster have arrived,
//! and to read a table with a million endpoints takes about a second in our measurements.
//!
//! Takes the names of tables; gives each table once, and only if no transaction has changed it since it was read. If nobody asks for the
//! tables within [`PATIENCE`], the thread drops them and ends: until then the kernel sends notifications about all transactions to its
//! sockets, which makes transactions slower.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use component::supervise;
use nft::{Connection, ReadError, TableAhead, TableDump, TableName};

/// How long the tables are kept after they were read. Objects arrive sooner, unless the API server does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tables, each after its name.
type Tables = Vec<(TableName, TableAhead)>;

/// Tables that are being read, or were read.
pub(super) struct ReadAhead {
    /// Asks the thread for the tables.
    ask: SyncSender<()>,
    answer: Receiver<Tables>,
    /// The tables that the thread gave.
    tables: Tables,
}

impl ReadAhead {
    /// Begins to read tables in the network namespace of the calling thread; `None` if the system cannot start a thread.
    pub(super) fn begin(names: Vec<TableName>) -> Option<Self> {
        let (ask, asked) = sync_channel(1);
        let (give, answer) = sync_channel(1);
        let read = move || {
            // A table that cannot be read now is read again when it is needed, and the error is reported then.
            let tables = read(names).unwrap_or_default();
            if asked.recv_timeout(PATIENCE).is_ok() {
                // The receiver may be gone: then nobody needs the tables.
                let _ = give.send(tables);
            }
        };
        supervise::thread("read-ahead", read).ok()?;
        Some(Self { ask, answer, tables: Vec::new() })
    }

    /// Returns a table as it is now; `None` if it has to be read now. Waits until the thread has read it.
    pub(super) fn take(&mut self, name: &TableName, connection: &Connection) -> Option<Option<TableDump>> {
        // Fails when the thread has ended: nobody asked for the tables in time, or the thread has already given them.
        if self.ask.try_send(()).is_ok()
            && let Ok(tables) = self.answer.recv()
        {
            self.tables = tables;
        }
        let place = self.tables.iter().position(|(known, _)| known == name)?;
        let (_, table) = self.tables.swap_remove(place);
        connection.unchanged(table).ok().flatten()
    }
}

fn read(names: Vec<TableName>) -> Result<Tables, ReadError> {
    let mut connection = Connection::open()?;
    let read = |name| connection.read_table_ahead(&name).map(|table| (name, table));
    names.into_iter().map(read).collect()
}

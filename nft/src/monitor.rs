//! Watches the transactions of all programs in a network namespace, and the tables that they change.
//!
//! Reads the kernel's notifications and gives [`Writes`]. While any socket subscribes to notifications, in any network namespace of the
//! machine, the kernel makes a notification for every object of a transaction. In our measurements, a transaction of many elements was
//! several times slower then. So a caller keeps a monitor only for as long as it needs it, and pauses it before it sends a transaction of
//! many elements. The monitor does not see the transactions during a pause; [`crate::Connection::generation`] shows whether there were any.
//!
//! Invariant: memory is bounded by the number of tables and by `most`, the number of transactions that a caller asks for.

use std::collections::BTreeSet;
use std::io;

use crate::decode::{Messages, Notice, is_about, notice};
use crate::socket::{Bus, Socket};
use crate::table::TableName;

pub use crate::decode::Process;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;

/// The size of the socket's receive buffer in bytes, for [`Socket::reserve_receive`].
const BUFFER: usize = 2 << 20;

/// The transactions since the last call of [`Monitor::writes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// The transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// Transactions are missing from the list, so any table may have changed: the buffer overflowed, or there were more than the caller
    /// asked for.
    pub lost: bool,
}

/// A transaction of any program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The tables in which it added, changed or deleted something.
    pub tables: BTreeSet<TableName>,
    /// The port of the socket that sent it ([`crate::Connection::port`]).
    pub port: u32,
    /// The program that sent it, if the kernel names one.
    pub by: Option<Process>,
}

/// A subscription to the notifications of one network namespace.
pub struct Monitor {
    socket: Socket,
    /// The tables of a transaction whose end was not read yet.
    open: BTreeSet<TableName>,
}

impl Monitor {
    /// Subscribes in the calling thread's network namespace.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn open() -> io::Result<Self> {
        let monitor = Self { socket: Socket::open(Bus::Netfilter)?, open: BTreeSet::new() };
        // With a smaller buffer it overflows earlier, which `Writes::lost` reports.
        let _ = monitor.socket.reserve_receive(BUFFER);
        monitor.resume()?;
        Ok(monitor)
    }

    /// Ends the subscription until [`Self::resume`].
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn pause(&self) -> io::Result<()> {
        self.socket.leave(GROUP)
    }

    /// Subscribes again.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn resume(&self) -> io::Result<()> {
        self.socket.join(GROUP)
    }

    /// The transactions since the last call, without waiting. Transactions beyond the first `most` count as lost.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn writes(&mut self, most: usize) -> io::Result<Writes> {
        let mut writes = Writes::default();
        loop {
            match self.socket.receive_now() {
                Ok(None) => return Ok(writes),
                Ok(Some(bytes)) => Messages::new(bytes).filter_map(notice).for_each(|notice| match notice {
                    Notice::About(table) => {
                        self.open.insert(table);
                    }
                    Notice::End { port, by } => {
                        let tables = std::mem::take(&mut self.open);
                        if writes.transactions.len() < most {
                            writes.transactions.push(Transaction { tables, port, by });
                        } else {
                            writes.lost = true;
                        }
                    }
                }),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => writes.lost = true,
                Err(error) => return Err(error),
            }
        }
    }
}

/// A watch on one table, for the time in which it is read.
pub(crate) struct TableWatch {
    monitor: Monitor,
    table: TableName,
    changed: bool,
}

impl TableWatch {
    /// Watches a table in the calling thread's network namespace.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub(crate) fn open(table: &TableName) -> io::Result<Self> {
        Ok(Self { monitor: Monitor::open()?, table: table.clone(), changed: false })
    }

    /// Whether a transaction changed the table, or may have, according to the notifications that [`Self::update`] read.
    pub(crate) fn changed(&self) -> bool {
        self.changed
    }

    /// Reads the notifications so far. Callers do this now and then during a long dump, so that the socket's buffer does not overflow.
    pub(crate) fn update(&mut self) {
        self.changed |= self.read().unwrap_or(true);
    }

    /// Whether a notification names the table, or notifications were lost.
    fn read(&mut self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            match self.monitor.socket.receive_now() {
                Ok(None) => return Ok(changed),
                Ok(Some(bytes)) => changed |= Messages::new(bytes).any(|message| is_about(message, &self.table)),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(error),
            }
        }
    }
}

//! Who else writes to nf_tables, and to which tables.
//!
//! Takes the kernel's notifications, gives [`Writes`]. The kernel makes a notification for every object of a transaction as long as
//! anybody listens, which makes a transaction of many elements several times slower; so whoever is about to send one pauses the
//! monitor. What happens during a pause is not seen: the generation tells whether anything did.
//!
//! Invariant: memory is bounded by the number of tables, whatever others write.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use crate::decode::{Messages, Notice, is_about, notice};
use crate::object::TableName;
use crate::socket::{Bus, Socket};

pub use crate::decode::Process;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;

/// Bytes of notifications that wait for whoever listens, with what the kernel needs to keep them: some seconds of another program
/// that commits a thousand times a second.
const BUFFER: usize = 2 << 20;

/// What was written since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// The transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// The kernel had more to say than fits into the socket: any table may have changed.
    pub lost: bool,
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The tables in which something was made, changed or removed.
    pub tables: BTreeSet<TableName>,
    /// The port of the socket that sent it ([`crate::Connection::port`]).
    pub port: u32,
    /// Who sent it, where the kernel says it.
    pub by: Option<Process>,
}

/// Listens in one network namespace.
pub struct Monitor {
    socket: Socket,
    /// Tables of a transaction whose end was not read yet.
    open: BTreeSet<TableName>,
}

impl Monitor {
    /// Begins to listen in the calling thread's network namespace.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn open() -> io::Result<Self> {
        let monitor = Self { socket: Socket::open(Bus::Netfilter)?, open: BTreeSet::new() };
        // Where that is not allowed (another user namespace on old kernels), more is lost, and said to be.
        let _ = monitor.socket.reserve_receive(BUFFER);
        monitor.resume()?;
        Ok(monitor)
    }

    /// Stops to listen.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn pause(&self) -> io::Result<()> {
        self.socket.leave(GROUP)
    }

    /// Listens again.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn resume(&self) -> io::Result<()> {
        self.socket.join(GROUP)
    }

    /// Another handle of the socket, for waiting until there is something to read. Nobody but the monitor may read it.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn waiter(&self) -> io::Result<OwnedFd> {
        self.socket.duplicate()
    }

    /// Whether a table was written to since the last call, or may have been, without waiting.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(crate) fn touched(&mut self, table: &TableName) -> io::Result<bool> {
        let mut touched = false;
        loop {
            match self.socket.receive_now() {
                Ok(None) => return Ok(touched),
                Ok(Some(bytes)) => touched |= Messages::new(bytes).any(|message| is_about(message, table)),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => touched = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// What was written since the last call, without waiting. More than `most` transactions count as lost.
    ///
    /// # Errors
    /// What the kernel answers.
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

//! Who else writes to nf_tables, and to which tables.
//!
//! Takes the kernel's notifications, gives [`Writes`]. The kernel makes a notification for every object of a transaction as long as
//! anybody listens, which makes a transaction of many elements several times slower; so whoever is about to send one pauses the
//! monitor. What happens during a pause is not seen: the generation tells whether anything did.
//!
//! Invariant: memory is bounded by the number of tables, whatever others write.

use std::collections::BTreeSet;
use std::io;

use crate::decode::{Messages, Notice, notice};
use crate::object::TableName;
use crate::socket::{Bus, Socket};

pub use crate::decode::Process;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;

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
                    Notice::End(by) => {
                        let tables = std::mem::take(&mut self.open);
                        if writes.transactions.len() < most {
                            writes.transactions.push(Transaction { tables, by });
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

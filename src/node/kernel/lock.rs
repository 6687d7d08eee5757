//! The lock that allows only one process of this program at a time to write the rules of a network namespace.
//!
//! The lock is an empty table with the flag `owner` (kernel 5.12 and later; `nft_rcv_nl_event` and `nft_table_lookup` in
//! `net/netfilter/nf_tables_api.c`): the kernel refuses to create it for a second netlink socket, keeps it when another program flushes the
//! ruleset, and removes it when the owner's socket closes, also after SIGKILL. Creating it needs CAP_NET_ADMIN, so a pod in the host's
//! network without that capability cannot block the proxy. The table's comment names the holder by process id and command line. `/proc`
//! cannot name the holder, because a process in another container may not see the holder, or may see another process under the holder's id.
//!
//! [`Lock::take`] takes the lock if it is free, and returns whether this process or another one holds it.
//!
//! Invariant: the socket of a lock that is held is not closed before the process ends, because the process may have threads that still
//! write. The exception is an error of [`Lock::take`], which closes the socket: then this process does not write until it has the lock
//! again.

use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nft::{Command, CommitError, Connection, Family, Ownership, ReadError, Table, TableName};
use tracing::info;

use super::table_owner::with_port;
use component::redact::redact;

/// The table's name, in family `inet`.
pub const TABLE: &str = "kube-proxy-lock";

/// The largest number of bytes of the command line in the table's comment: nft reads at most 127 bytes of a comment, and the process id
/// needs some of them.
const COMMAND: usize = 100;

/// Which process may write rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterLockState {
    /// This process holds the lock.
    Ours,
    /// Another process holds it.
    HeldBy(Holder),
}

/// Another process that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The comment of the table: `pid 4711: kube-proxy --config ...`, with the process id in the host's PID namespace.
    comment: Option<Arc<str>>,
    /// The port of the holder's netlink socket.
    port: u32,
}

impl Holder {
    /// The process that holds the lock of the calling thread's network namespace, if there is one.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn find() -> Result<Option<Self>, ReadError> {
        Self::ask(&mut Connection::open().map_err(ReadError::Socket)?)
    }

    fn ask(connection: &mut Connection) -> Result<Option<Self>, ReadError> {
        match connection.table(&table_name())? {
            Some((table, Ownership::Of { port })) => Ok(Some(Self { comment: table.comment, port })),
            _ => Ok(None),
        }
    }

    /// The directory in /proc of the process that holds the lock; `None` when this process does not see it, as from another container, or
    /// may not look at it. The process is found by the socket that owns the table. A process id or a command line proves nothing: it could
    /// be that of a process which an unprivileged user started to be taken for the proxy.
    #[must_use]
    pub fn process(&self) -> Option<PathBuf> {
        with_port(Path::new("/proc"), self.port)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.comment {
            // Earlier versions wrote passwords of `--master` into the comment.
            Some(text) => f.write_str(&redact(text)),
            None => write!(f, "an unnamed program with netlink port {}", self.port),
        }
    }
}

/// Tells other threads than the one that takes the lock whether this process holds it.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<AtomicBool>);

impl Held {
    /// Returns whether this process held the lock at the last call of [`Lock::take`].
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The table cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The table cannot be created.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

/// The lock of the network namespace of the thread that first uses it.
pub struct Lock {
    /// The id of this process in the host's PID namespace.
    pid: u32,
    /// The comment that names this process.
    comment: Arc<str>,
    /// The socket that owns the table if this process holds the lock. It is not closed when it is dropped, as the module's invariant
    /// requires.
    connection: Option<ManuallyDrop<Connection>>,
    held: Held,
    /// Whether this kernel has no tables with an owner. Then every process counts as the holder of the lock.
    unsupported: bool,
}

impl Lock {
    /// Returns a lock that is not taken yet. Call this on the main thread: the kernel reports the id of the calling thread in the host's
    /// PID namespace, which is the process id for the main thread. The lock's comment contains `pid` if the kernel reports no id.
    #[must_use]
    pub fn new(pid: u32, command_line: &[String]) -> Self {
        let caller = Connection::open().ok().and_then(|mut connection| connection.caller().ok().flatten());
        let pid = caller.map_or(pid, |caller| caller.pid);
        let comment = comment(pid, command_line).into();
        Self { pid, comment, connection: None, held: Held::default(), unsupported: false }
    }

    /// Returns the id of this process by which the lock's comment names it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns a handle by which other threads see whether this process holds the lock.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Takes the lock if it is free, and returns which process holds it. While the holder does not change, a call costs one short netlink
    /// request.
    ///
    /// # Errors
    /// See [`LockError`]; after an error this process does not hold the lock.
    pub fn take(&mut self) -> Result<WriterLockState, LockError> {
        let outcome = self.try_take();
        if outcome.is_err() {
            self.close();
        }
        self.held.0.store(matches!(outcome, Ok(WriterLockState::Ours)), Ordering::Release);
        outcome
    }

    /// Returns the other process that holds the lock at this moment, if there is one. Does not take the lock.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn holder(&mut self) -> Result<Option<Holder>, LockError> {
        Ok(Holder::ask(self.connection()?)?)
    }

    fn connection(&mut self) -> Result<&mut Connection, ReadError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(ManuallyDrop::new(Connection::open().map_err(ReadError::Socket)?)),
        };
        Ok(connection)
    }

    fn try_take(&mut self) -> Result<WriterLockState, LockError> {
        if self.unsupported {
            return Ok(WriterLockState::Ours);
        }
        let table = Table { name: table_name(), comment: Some(Arc::clone(&self.comment)) };
        let connection = self.connection()?;
        let commands = match connection.table(&table.name)? {
            Some((_, Ownership::Ours)) => return Ok(WriterLockState::Ours),
            Some((table, Ownership::Of { port })) => {
                return Ok(WriterLockState::HeldBy(Holder { comment: table.comment, port }));
            }
            None => vec![Command::LockTable(table.clone())],
            // The table exists without an owner, such as after it was loaded from a file. It locks nothing, and a table can get an owner
            // only when it is created.
            Some(_) => vec![Command::DeleteTable(table.name.clone()), Command::LockTable(table.clone())],
        };
        match connection.commit(&commands) {
            Ok(_) => Ok(WriterLockState::Ours),
            Err(CommitError::Refused(refusals)) if refusals.iter().any(nft::Refusal::is_unsupported) => {
                info!("This kernel has no tables with an owner: a second kube-proxy could write at the same time");
                self.unsupported = true;
                Ok(WriterLockState::Ours)
            }
            // Another process took the lock first.
            Err(error) => self.holder()?.map(WriterLockState::HeldBy).ok_or_else(|| error.into()),
        }
    }

    fn close(&mut self) {
        self.connection.take().map(ManuallyDrop::into_inner);
    }
}

fn table_name() -> TableName {
    TableName::new(Family::Inet, TABLE)
}

/// Returns the comment that names a process: text without secrets, and without the characters that nft cannot read back between quotes.
fn comment(pid: u32, command_line: &[String]) -> String {
    let plain = |character: char| match character {
        '"' | '\\' => '\'',
        character if character.is_ascii_graphic() || character == ' ' => character,
        _ => '?',
    };
    let mut text: String = redact(&command_line.join(" ")).chars().map(plain).collect();
    if text.len() > COMMAND {
        text.truncate(COMMAND - 3);
        text.push_str("...");
    }
    format!("pid {pid}: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comment_names_process_and_command_line_in_text_that_nft_can_load() {
        let line = |arguments: &[&str]| arguments.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(comment(7, &line(&["kube-proxy", "--v=2"])), "pid 7: kube-proxy --v=2");
        assert_eq!(comment(7, &line(&["a\"b\\c\nd\u{e9}"])), "pid 7: a'b'c?d?");
        let secret = comment(7, &line(&["kube-proxy", "--master=https://user:hunter2@host"]));
        assert_eq!(secret, "pid 7: kube-proxy --master=https://***@host");
        let long = comment(u32::MAX, &line(&["x".repeat(500).as_str()]));
        assert!(long.len() <= nft::Element::MAX_COMMENT && long.ends_with("x..."), "{long}");
    }
}

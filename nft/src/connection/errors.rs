//! The errors of committing a batch and of reading a table.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::batch::{Batch, EncodeError, Origin};
use crate::command::Command;
use crate::decode::{Ack, DecodeError};
use crate::packed::Elements;
use crate::socket::{LONGEST, SEND_OVERHEAD};

/// The number of attempts to read a table, or to repeat one dump of it, before [`ReadError::Unstable`]. Another attempt follows only if
/// transactions may have disturbed the last one.
pub(super) const DUMP_TRIES: usize = 10;
/// How often a table is read for a caller that also accepts an inconsistent result, before a last reading ignores changes. A reading that
/// notices a change begins no further dump.
pub(super) const FEW_TRIES: usize = 2;

/// Why a batch was not committed, or may not have been. After [`CommitError::Unconfirmed`], and after a [`CommitError::Socket`] that came
/// while the answers were received, the kernel may have carried out the commands; otherwise it changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The commands cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The socket failed, before or after the kernel had the batch.
    #[error("netlink socket: {0}")]
    Socket(io::Error),
    /// The kernel has no memory for a batch of this size now.
    #[error("the kernel does not take a batch of {bytes} bytes: {error}")]
    TooLarge {
        /// The length of the batch's messages, in bytes.
        bytes: usize,
        /// The error that the kernel answered.
        error: io::Error,
    },
    /// The batch is longer than the kernel takes from this process: outside the initial user namespace, sysctl `net.core.wmem_max` is the
    /// limit.
    #[error("a batch of {bytes} bytes is longer than the {limit} bytes that the kernel takes from this process{}", remedy(*bytes, *limit))]
    OverLimit {
        /// The length of the batch, in bytes ([`Batch::datagram_len`]).
        bytes: usize,
        /// The length of the longest batch that the kernel takes from this process, in bytes.
        limit: usize,
    },
    /// The kernel refused some of the commands, and therefore carried out none.
    #[error("the kernel refused {}{}", .0[0], more(.0.len()))]
    Refused(Vec<Refusal>),
    /// The kernel neither confirmed nor refused the batch, so the table must be read again.
    #[error("the kernel did not confirm the batch")]
    Unconfirmed,
}

// Not `#[from]`: a cause that is also the `source()` would be printed twice, because the text of this error contains it.
impl From<io::Error> for CommitError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

/// What to do so that the kernel takes a batch, if anything can be done: the kernel doubles the sysctl.
fn remedy(bytes: usize, limit: usize) -> String {
    if limit >= LONGEST {
        return String::new();
    }
    let wanted = (bytes + SEND_OVERHEAD).div_ceil(2);
    format!(", which runs in a user namespace: set sysctl net.core.wmem_max of the machine to {wanted} or more")
}

fn more(count: usize) -> String {
    if count > 1 { format!(" and {} more", count - 1) } else { String::new() }
}

/// A command, or an element of a command, that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The index of the command in the batch; `None` when the kernel refused the batch as a whole.
    pub command: Option<usize>,
    /// The index of the element in the command, if the kernel's answer identifies it.
    pub element: Option<usize>,
    /// The command in nft syntax, with one of its elements at most; `the batch` when the kernel refused the batch as a whole.
    pub object: String,
    /// The error number, positive.
    pub errno: i32,
    /// The kernel's description of the error, if it gives one.
    pub message: Option<String>,
}

impl Refusal {
    /// Whether the kernel answered `EOPNOTSUPP`: it lacks a feature that the command needs, or does not allow this change of a table's
    /// flags ([`Command::OwnTable`]).
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno == libc::EOPNOTSUPP
    }

    /// Whether the kernel found no object or element with the name or key in the command.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.errno == libc::ENOENT
    }

    /// Whether the command needs something that is missing, or adds something that exists. The table may have changed since it was read.
    #[must_use]
    pub fn is_about_presence(&self) -> bool {
        matches!(self.errno, libc::ENOENT | libc::EEXIST)
    }

    /// Whether the kernel possibly does not know this type of message. The kernel answers a malformed message with these errors too.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.errno, libc::EINVAL | libc::EOPNOTSUPP)
    }

    /// Whether the kernel refused the command for lack of permission.
    #[must_use]
    pub fn is_about_rights(&self) -> bool {
        matches!(self.errno, libc::EPERM | libc::EACCES)
    }

    /// Whether the reason often goes away by itself, such as no memory, a signal, or an object in use.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self.errno, libc::ENOMEM | libc::ENOBUFS | libc::EINTR | libc::EAGAIN | libc::EBUSY)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.object, io::Error::from_raw_os_error(self.errno))?;
        self.message.as_ref().map_or(Ok(()), |text| write!(f, " ({text})"))
    }
}

/// Why a table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The socket or the kernel failed.
    #[error("netlink socket: {0}")]
    Socket(io::Error),
    /// The kernel's answer cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Transactions disturbed every attempt to read the table: they changed it, or other tables whose chains the kernel lists with its own.
    #[error("transactions of nf_tables disturbed each of {DUMP_TRIES} attempts to read the table")]
    Unstable,
}

// Not `#[from]`: a cause that is also the `source()` would be printed twice, because the text of this error contains it.
impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

/// Turns the kernel's answer to a message of a batch into a [`Refusal`], with the command and the element that it is about.
#[doc(hidden)]
#[must_use]
pub fn refusal(batch: &Batch, commands: &[Command], ack: Ack) -> Refusal {
    let origin = batch.origin(ack.seq);
    let element = origin.and_then(|o| batch.element_at(o, ack.seq, ack.offset?, &commands[o.command]));
    let object = origin.map_or_else(|| "the batch".to_owned(), |o| describe(&commands[o.command], o, element));
    Refusal { command: origin.map(|o| o.command), element, object, errno: ack.errno, message: ack.message }
}

/// Writes a command in nft syntax, with only the refused element; if that is unknown, with the first element of the refused message.
fn describe(command: &Command, origin: Origin, element: Option<usize>) -> String {
    let index = element.unwrap_or(origin.first_element);
    let one = |list: &Elements| list.get(index).into_iter().collect::<Elements>();
    match command {
        Command::AddElements(table, set, list) => {
            Command::AddElements(table.clone(), Arc::clone(set), one(list)).to_string()
        }
        Command::DeleteElements(table, set, list) => {
            Command::DeleteElements(table.clone(), Arc::clone(set), one(list)).to_string()
        }
        Command::DestroyElements(table, set, list) => {
            Command::DestroyElements(table.clone(), Arc::clone(set), one(list)).to_string()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The kernel doubles the sysctl and keeps some bytes (`netlink_sendmsg`). Without a limit of the user namespace no sysctl helps.
    #[test]
    fn a_batch_that_is_too_long_names_the_value_of_the_sysctl_that_it_needs() {
        let text = |bytes, limit| CommitError::OverLimit { bytes, limit }.to_string();
        let limited = text(1_000_001, 2 * 212_992 - SEND_OVERHEAD);
        assert!(limited.starts_with("a batch of 1000001 bytes is longer than the 425952 bytes"), "{limited}");
        assert!(limited.ends_with("set sysctl net.core.wmem_max of the machine to 500017 or more"), "{limited}");
        let whole = text(LONGEST + 1, LONGEST);
        assert!(whole.ends_with("that the kernel takes from this process"), "{whole}");
    }
}

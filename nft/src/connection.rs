//! A conversation with nf_tables: commit a batch, or read a table.
//!
//! Takes [`Command`]s and gives an acknowledgement or, for each thing the kernel refused, which command and element it was; takes a
//! table's name and gives everything in it.

mod outline;
mod read;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::batch::{Batch, Command, EncodeError, Origin};
use crate::decode::{self, DecodeError, Decoded, Messages, RawElement};
use crate::object::{Chain, Element, Family, Flowtable, NamedObject, Ownership, RuleDump, Set, Table, TableName};
use crate::socket::{Bus, Socket};
use crate::wire::Writer;

pub use outline::TableOutline;

/// How often a table is read anew when it changed meanwhile.
const DUMP_TRIES: usize = 10;

/// What a commit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Messages in the batch.
    pub messages: usize,
    /// Bytes of those messages.
    pub bytes: usize,
}

/// Why a batch was not committed. Except after [`CommitError::Unconfirmed`], nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The batch could not be written down.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The socket failed.
    #[error("netlink socket: {0}")]
    Socket(io::Error),
    /// The kernel does not take a batch of this size, at all or for want of memory; nothing was changed.
    #[error("the kernel does not take a batch of {bytes} bytes: {error}")]
    TooLarge {
        /// Bytes of its messages.
        bytes: usize,
        /// What the kernel says.
        error: io::Error,
    },
    /// The kernel refused some of it; nothing was changed.
    #[error("the kernel refused {}{}", .0[0], more(.0.len()))]
    Refused(Vec<Refusal>),
    /// No answer says whether it was committed: the table must be read again.
    #[error("the kernel did not confirm the batch")]
    Unconfirmed,
}

// Its text is in ours already: as a source it would be printed twice.
impl From<io::Error> for CommitError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl CommitError {
    /// Whether the kernel had no memory at the moment for a batch of this size: the next time it may have.
    #[must_use]
    pub fn is_want_of_memory(&self) -> bool {
        let Self::TooLarge { error, .. } = self else { return false };
        matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
    }
}

fn more(count: usize) -> String {
    if count > 1 { format!(" and {} more", count - 1) } else { String::new() }
}

/// Something the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the command; `None` when the kernel refused the batch as a whole.
    pub command: Option<usize>,
    /// Index of the element in the command, where that can be told.
    pub element: Option<usize>,
    /// The command or element in nft syntax.
    pub object: String,
    /// The error number, positive.
    pub errno: i32,
    /// The kernel's own words, where it has any.
    pub message: Option<String>,
}

impl Refusal {
    /// Whether the kernel does not have what was asked for.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno == libc::EOPNOTSUPP
    }

    /// Whether there is nothing of that name or key.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.errno == libc::ENOENT
    }

    /// Whether it is about what is there already or is not there, which may have changed since it was last read.
    #[must_use]
    pub fn is_about_presence(&self) -> bool {
        matches!(self.errno, libc::ENOENT | libc::EEXIST)
    }

    /// Whether the kernel may not know this kind of message: its answer is the one to a message that is wrong in itself.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.errno, libc::EINVAL | libc::EOPNOTSUPP)
    }

    /// Whether we lack the right, whatever it was that we asked for.
    #[must_use]
    pub fn is_about_rights(&self) -> bool {
        matches!(self.errno, libc::EPERM | libc::EACCES)
    }

    /// Whether such a refusal often passes by itself: no memory, a signal, something in use at the moment.
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
    /// The kernel's answer makes no sense to us.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The table kept changing while it was read.
    #[error("the table changed during each of {DUMP_TRIES} attempts to read it")]
    Unstable,
}

// As for CommitError.
impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

/// Chains with their rules, by name.
pub type ChainDumps = BTreeMap<Arc<str>, (Chain, Vec<RuleDump>)>;

/// A table as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDump {
    /// The table itself.
    pub table: Table,
    /// Who may change it.
    pub ownership: Ownership,
    /// Its base chains hang nowhere: no packet sees it.
    pub dormant: bool,
    /// Flags that this crate knows nothing of.
    pub unknown_flags: u32,
    /// Its chains with their rules, by name.
    pub chains: ChainDumps,
    /// Its sets and maps with their elements, by name. Elements that rules made are among them.
    pub sets: BTreeMap<Arc<str>, (Set, Vec<Element>)>,
    /// Objects with a name, and flowtables of whatever sort. Of flowtables see [`Connection::read_flowtables`].
    pub objects: Vec<NamedObject>,
    /// What else is in the table but cannot be expressed here, so that it is not ours.
    pub unreadable: Vec<DecodeError>,
}

/// A connection to nf_tables in one network namespace.
pub struct Connection {
    socket: Socket,
    /// There while a table is read.
    listener: Option<read::Listener>,
}

impl Connection {
    /// Connects to nf_tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Bus::Netfilter)?, listener: None })
    }

    /// The port of this connection: what [`Ownership::Of`] says of a table that is its own.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Has the kernel carry out all commands, or none.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        self.commit_encoded(&Batch::encode(commands)?, commands)
    }

    /// The same for commands that are encoded already; `commands` are those of the batch, for the names in errors.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit_encoded(&mut self, batch: &Batch, commands: &[Command]) -> Result<Committed, CommitError> {
        while self.socket.receive_now()?.is_some() {
            // What an interrupted conversation left behind is not an answer to this batch.
        }
        self.socket.send_datagram(batch.pages()).map_err(|error| match error.raw_os_error() {
            Some(libc::EMSGSIZE | libc::ENOBUFS | libc::ENOMEM) => {
                CommitError::TooLarge { bytes: batch.bytes(), error }
            }
            _ => error.into(),
        })?;
        let mut refusals = Vec::new();
        let mut confirmed = false;
        loop {
            match self.socket.receive_now() {
                Ok(None) => break,
                Ok(Some(bytes)) => {
                    for ack in Messages::new(bytes).filter_map(decode::ack) {
                        if ack.errno != 0 {
                            refusals.push(refusal(batch, commands, ack));
                        } else if ack.seq == batch.commit_sequence() {
                            confirmed = true;
                        }
                    }
                }
                // More errors than fit into the socket; those that were read say enough.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match (refusals.is_empty(), confirmed) {
            (true, true) => Ok(Committed { messages: batch.messages(), bytes: batch.bytes() }),
            (true, false) => Err(CommitError::Unconfirmed),
            (false, _) => Err(CommitError::Refused(refusals)),
        }
    }

    fn read_elements(
        &mut self,
        table: &TableName,
        set: &str,
        unreadable: &mut Vec<DecodeError>,
    ) -> Result<Vec<RawElement>, ReadError> {
        let filter = [(request::ELEMENTS_TABLE, &*table.name), (request::ELEMENTS_SET, set)];
        let mut raw = Vec::new();
        self.dump(request::ELEMENTS, table, &filter, |item| match item {
            Ok(Decoded::Elements { elements, .. }) => raw.extend(elements),
            Ok(_) => {}
            Err(error) => unreadable.push(error),
        })?;
        Ok(raw)
    }

    /// The elements of one set, or nothing when there is no such set. In a set that rules fill, the time-out of each is the time for
    /// which it still lives.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_set(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError> {
        match self.read_elements(table, &set.name, &mut Vec::new()) {
            Ok(mut raw) => {
                if set.flags.dynamic {
                    raw.iter_mut().for_each(|raw| raw.element.timeout = raw.expires.or(raw.element.timeout));
                }
                Ok(decode::pair(set, raw))
            }
            Err(ReadError::Socket(error)) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The flowtables of a table. What is not a flowtable of this crate's kind is an error.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_flowtables(&mut self, table: &TableName) -> Result<Vec<Flowtable>, ReadError> {
        let mut found = Vec::new();
        self.dump(request::FLOWTABLES, table, &[(request::FLOWTABLE_TABLE, &table.name)], |item| match item {
            Ok(Decoded::Flowtable { table: of, flowtable, .. }) if of == *table => found.push(Ok(flowtable)),
            Ok(_) => {}
            Err(error) => found.push(Err(error)),
        })?;
        Ok(found.into_iter().collect::<Result<_, _>>()?)
    }

    /// The generation of all rules: it grows with each committed batch, whoever sent it.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn generation(&mut self) -> Result<u32, ReadError> {
        self.socket.send(&request::message(request::GENERATION, 0, None, &[]))?;
        loop {
            let bytes = self.socket.receive()?;
            for message in Messages::new(bytes) {
                if let Some(ack) = decode::ack(message)
                    && ack.errno != 0
                {
                    return Err(io::Error::from_raw_os_error(ack.errno).into());
                }
                if let Decoded::Generation(generation) = decode::message(message)? {
                    return Ok(generation);
                }
            }
        }
    }

    /// A table without its content, and who may change it; `None` when there is no such table.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn table(&mut self, name: &TableName) -> Result<Option<(Table, Ownership)>, ReadError> {
        Ok(self.read_table_object(name)?.map(|(table, state)| (table, state.ownership)))
    }

    /// The calling thread as the kernel's own process namespace knows it, whatever namespace it runs in (`task_pid_nr` in
    /// `nf_tables_fill_gen_info` of `net/netfilter/nf_tables_api.c`). The main thread's number is that of the process.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn caller(&mut self) -> Result<Option<decode::Process>, ReadError> {
        self.socket.send(&request::message(request::GENERATION, 0, None, &[]))?;
        loop {
            let bytes = self.socket.receive()?;
            for message in Messages::new(bytes) {
                if let Some(decode::Notice::End { by, .. }) = decode::notice(message) {
                    return Ok(by);
                }
                if let Some(ack) = decode::ack(message)
                    && ack.errno != 0
                {
                    return Err(io::Error::from_raw_os_error(ack.errno).into());
                }
            }
        }
    }

    /// Asks for all objects of a kind and hands over each.
    fn dump(
        &mut self,
        kind: u16,
        table: &TableName,
        filter: &[(u16, &str)],
        mut each: impl FnMut(Result<Decoded, DecodeError>),
    ) -> Result<(), ReadError> {
        self.dump_messages(kind, table, filter, |message| each(decode::message(message)))
    }

    /// The same, with each object as the kernel wrote it.
    fn dump_messages(
        &mut self,
        kind: u16,
        table: &TableName,
        filter: &[(u16, &str)],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        if self.listener.as_ref().is_some_and(read::Listener::changed) {
            return Err(ReadError::Unstable);
        }
        self.socket.send(&request::message(kind, request::NLM_F_DUMP, Some(table.family), filter))?;
        loop {
            self.listener.iter_mut().for_each(read::Listener::listen);
            let bytes = self.socket.receive()?;
            for message in Messages::new(bytes) {
                // A request that is refused is answered by an error, any other by objects and the end of the dump.
                if let Some(errno) = decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                    return match errno {
                        0 => Ok(()),
                        errno => Err(io::Error::from_raw_os_error(errno).into()),
                    };
                }
                each(message);
            }
        }
    }
}

/// What the kernel refused of a batch of commands, by its answer.
#[doc(hidden)]
#[must_use]
pub fn refusal(batch: &Batch, commands: &[Command], ack: decode::Ack) -> Refusal {
    let origin = batch.origin(ack.seq);
    let element = origin.and_then(|o| batch.element_at(o, ack.seq, ack.offset?, &commands[o.command]));
    let object = origin.map_or_else(|| "the batch".to_owned(), |o| describe(&commands[o.command], o, element));
    Refusal { command: origin.map(|o| o.command), element, object, errno: ack.errno, message: ack.message }
}

/// A command in nft syntax, reduced to the element that is meant, or to the first that may be.
fn describe(command: &Command, origin: Origin, element: Option<usize>) -> String {
    let index = element.unwrap_or(origin.first_element);
    let one = |list: &[Element]| list.get(index).cloned().into_iter().collect::<Vec<_>>();
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

/// Requests for dumps.
mod request {
    use super::{Family, Writer};

    pub(super) const TABLES: u16 = 1;
    pub(super) const CHAINS: u16 = 4;
    pub(super) const RULES: u16 = 7;
    pub(super) const SETS: u16 = 10;
    pub(super) const ELEMENTS: u16 = 13;
    pub(super) const GENERATION: u16 = 16;
    pub(super) const OBJECTS: u16 = 19;
    pub(super) const FLOWTABLES: u16 = 23;

    pub(super) const TABLE_NAME: u16 = 1;
    pub(super) const RULE_TABLE: u16 = 1;
    pub(super) const SET_TABLE: u16 = 1;
    pub(super) const OBJECT_TABLE: u16 = 1;
    pub(super) const FLOWTABLE_TABLE: u16 = 1;
    pub(super) const ELEMENTS_TABLE: u16 = 1;
    pub(super) const ELEMENTS_SET: u16 = 2;

    pub(super) const NLM_F_DUMP: u16 = 0x300;
    const NLM_F_REQUEST: u16 = 1;
    const SUBSYSTEM: u16 = 10 << 8;

    /// A batch without a command: the kernel takes the lock of transactions for it, and changes nothing.
    pub(super) fn empty_batch() -> Vec<u8> {
        const BEGIN: u16 = 16;
        const END: u16 = 17;
        const LEN: u32 = 20;
        let mut writer = Writer::default();
        for kind in [BEGIN, END] {
            writer.raw(&LEN.to_ne_bytes());
            writer.raw(&kind.to_ne_bytes());
            writer.raw(&NLM_F_REQUEST.to_ne_bytes());
            writer.raw(&[0; 10]);
            // The subsystem's number, here alone, is in network order.
            writer.raw(&(SUBSYSTEM >> 8).to_be_bytes());
        }
        writer.into_bytes()
    }

    /// One request with text attributes.
    pub(super) fn message(kind: u16, flags: u16, family: Option<Family>, filter: &[(u16, &str)]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&[0; 4]);
        writer.raw(&(SUBSYSTEM | kind).to_ne_bytes());
        writer.raw(&(NLM_F_REQUEST | flags).to_ne_bytes());
        writer.raw(&[0; 8]);
        writer.raw(&[family.map_or(0, Family::number), 0, 0, 0]);
        for (attribute, text) in filter {
            writer.str(*attribute, text);
        }
        let mut bytes = writer.into_bytes();
        let len = u32::try_from(bytes.len()).expect("a request is short");
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes
    }
}

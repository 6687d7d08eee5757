//! A connection to nf_tables: commits batches and reads tables.
//!
//! Commits [`Command`]s, and names the commands and elements that the kernel refuses. Reads tables by their names, whole or in part.

mod errors;
mod hooks;
mod look;
mod outline;
mod read;
mod walk;

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::batch::Batch;
use crate::command::Command;
use crate::decode::{self, Count, DecodeError, Decoded, Messages, RawElement};
use crate::monitor::TableWatch;
use crate::object::{Element, Flowtable, RuleDump, Set};
use crate::socket::{Bus, Socket};
use crate::table::{Family, Ownership, Table, TableName, TableState};
use crate::wire::{Writer, flag, kind};

pub use errors::{CommitError, ReadError, Refusal, refusal};
pub use hooks::HookedChain;
pub(crate) use hooks::OfChain;
pub use outline::TableOutline;
pub use read::{TableAhead, TableDump};
pub use walk::{Item, Walked};

/// The kernel sends a dump in pieces: datagrams of up to 32 KiB. One thread receives and decodes this many pieces; a second thread receives
/// the rest, if any.
const SHORT: usize = 8;
/// How many received pieces may wait to be decoded.
const WAITING: usize = 8;

/// The size of a committed batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The number of its messages ([`Batch::messages`]).
    pub messages: usize,
    /// The number of bytes of its messages ([`Batch::bytes`]).
    pub bytes: usize,
}

/// A connection to nf_tables in one network namespace.
pub struct Connection {
    socket: Socket,
    /// Watches the table that is being read; `None` at other times.
    watch: Option<TableWatch>,
}

impl Connection {
    /// Connects to nf_tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Bus::Netfilter)?, watch: None })
    }

    /// The netlink port of this connection's socket. Other connections see it as the owner of its tables ([`Ownership::Of`]).
    #[must_use]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Makes the kernel carry out all commands, or none of them.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        self.commit_encoded(&Batch::encode(commands)?, commands)
    }

    /// Commits a batch that was encoded before. `commands` must be the commands of the batch, because errors quote them.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit_encoded(&mut self, batch: &Batch, commands: &[Command]) -> Result<Committed, CommitError> {
        while self.socket.receive_now()?.is_some() {
            // Discards answers to an earlier request that failed half-way.
        }
        self.socket.send_datagram(batch.pages()).map_err(|error| match error.raw_os_error() {
            Some(libc::EMSGSIZE) => CommitError::OverLimit { bytes: batch.datagram_len(), limit: self.socket.limit() },
            Some(libc::ENOBUFS | libc::ENOMEM) => CommitError::TooLarge { bytes: batch.bytes(), error },
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
                // The socket's buffer had no room for all errors; the first of them are enough for the caller.
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

    /// The elements of a set, as the kernel lists them; empty when there is no such set. Adds decoding errors to `unreadable`.
    fn read_elements(
        &mut self,
        table: &TableName,
        set: &str,
        unreadable: &mut Vec<DecodeError>,
    ) -> Result<Vec<RawElement>, ReadError> {
        let mut raw = Vec::new();
        let dumped = self.dump(kind::GET_ELEMENTS, table, &[&table.name, set], |item| match item {
            Ok(Decoded::Elements { elements, .. }) => raw.extend(elements),
            Ok(_) => {}
            Err(error) => unreadable.push(error),
        });
        unless_absent(dumped)?;
        Ok(raw)
    }

    /// The elements of one set; empty when there is no such set. If the set has the flag `dynamic`, an element's time-out is the time that
    /// it still has to live.
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

    /// Calls `each` for every element with a counter in a set. The result is no snapshot: the kernel goes on counting, and elements can be
    /// missed or repeated when a transaction changes the set meanwhile. Does nothing when there is no such set.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn element_counters(
        &mut self,
        table: &TableName,
        set: &str,
        mut each: impl FnMut(Element, Count),
    ) -> Result<(), ReadError> {
        let read = self.dump(kind::GET_ELEMENTS, table, &[&table.name, set], |item| {
            if let Ok(Decoded::Elements { elements, .. }) = item {
                for RawElement { element, count, .. } in elements {
                    if let Some(count) = count {
                        each(element, count);
                    }
                }
            }
        });
        unless_absent(read)
    }

    /// Calls `each` with the chain, the rule and the rule's first counter, for every rule that has a counter. Reads one chain, or all if
    /// `of_chain` is `None`. The result is no snapshot, as with [`Self::element_counters`]. Does nothing when there is no such table or
    /// chain.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn rule_counters(
        &mut self,
        table: &TableName,
        of_chain: Option<&str>,
        mut each: impl FnMut(&str, RuleDump, Count),
    ) -> Result<(), ReadError> {
        let names: Vec<&str> = [&*table.name].into_iter().chain(of_chain).collect();
        let read = self.dump(kind::GET_RULE, table, &names, |item| {
            if let Ok(Decoded::Rule { chain, rule, count: Some(count), .. }) = item {
                each(&chain, rule, count);
            }
        });
        unless_absent(read)
    }

    /// The flowtables of a table. A flowtable that this crate cannot express, such as one with hardware offload, is an error.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_flowtables(&mut self, table: &TableName) -> Result<Vec<Flowtable>, ReadError> {
        let mut found = Vec::new();
        self.dump(kind::GET_FLOWTABLE, table, &[&table.name], |item| match item {
            Ok(Decoded::Flowtable { table: of, flowtable, .. }) if of == *table => found.push(Ok(flowtable)),
            Ok(_) => {}
            Err(error) => found.push(Err(error)),
        })?;
        Ok(found.into_iter().collect::<Result<_, _>>()?)
    }

    /// The generation number of the ruleset. It grows by one with each transaction, of any program in the network namespace, that changes
    /// something.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn generation(&mut self) -> Result<u32, ReadError> {
        self.ask(kind::GET_GENERATION, None, |message| match decode::message(message)? {
            Decoded::Generation(generation) => Ok(Some(generation)),
            _ => Ok(None),
        })
    }

    /// A table without its content, and which sockets may change it; `None` when there is no such table.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn table(&mut self, name: &TableName) -> Result<Option<(Table, Ownership)>, ReadError> {
        Ok(self.read_table_object(name)?.map(|(table, state)| (table, state.ownership)))
    }

    /// The id and the name of the calling thread, as the kernel knows them in the initial PID namespace (`task_pid_nr` in
    /// `nf_tables_fill_gen_info` of `net/netfilter/nf_tables_api.c`). The main thread's id is the process id. `None` when the kernel does
    /// not report them.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn caller(&mut self) -> Result<Option<decode::Process>, ReadError> {
        self.ask(kind::GET_GENERATION, None, |message| match decode::notice(message) {
            Some(decode::Notice::End { by, .. }) => Ok(Some(by)),
            _ => Ok(None),
        })
    }

    /// Reads a table without its content; `None` only when the kernel answers that there is no such table.
    fn read_table_object(&mut self, name: &TableName) -> Result<Option<(Table, TableState)>, ReadError> {
        let ours = Ownership::Of { port: self.socket.port() };
        let answer = self.ask(kind::GET_TABLE, Some(name), |message| match decode::message(message)? {
            Decoded::Table { table, state, .. } => Ok(Some((table, state))),
            _ => Ok(None),
        });
        match answer {
            Ok((table, state)) if state.ownership == ours => {
                Ok(Some((table, TableState { ownership: Ownership::Ours, ..state })))
            }
            Ok(answer) => Ok(Some(answer)),
            Err(ReadError::Socket(error)) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request for one object, in `table` if it is given. Calls `read` with each message of the answer, and returns the first
    /// result that is not `None`.
    fn ask<T>(
        &mut self,
        kind: u16,
        table: Option<&TableName>,
        read: impl Fn(&[u8]) -> Result<Option<T>, DecodeError>,
    ) -> Result<T, ReadError> {
        let name: Vec<&str> = table.iter().map(|table| &*table.name).collect();
        self.socket.send(&request(kind, 0, table.map(|table| table.family), &name))?;
        loop {
            for message in Messages::new(self.socket.receive()?) {
                if let Some(errno) = decode::ack(message).map(|ack| ack.errno).filter(|errno| *errno != 0) {
                    return Err(io::Error::from_raw_os_error(errno).into());
                }
                if let Some(answer) = read(message)? {
                    return Ok(answer);
                }
            }
        }
    }

    /// Dumps the objects of a kind and calls `each` with every one, decoded. `names` may select a table, and a set or chain in it.
    fn dump(
        &mut self,
        kind: u16,
        table: &TableName,
        names: &[&str],
        mut each: impl FnMut(Result<Decoded, DecodeError>),
    ) -> Result<(), ReadError> {
        self.dump_messages(kind, table, names, |message| each(decode::message(message)))
    }

    /// Dumps objects as [`Self::dump`] does, and calls `each` with every message, not decoded.
    fn dump_messages(
        &mut self,
        kind: u16,
        table: &TableName,
        names: &[&str],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        if self.watch.as_ref().is_some_and(TableWatch::changed) {
            return Err(ReadError::Unstable);
        }
        self.socket.send(&request(kind, flag::DUMP, Some(table.family), names))?;
        let mut received = 0;
        loop {
            if received == SHORT
                && let Some(end) = self.receive_beside(&mut each)
            {
                return end;
            }
            received += 1;
            if let Some(end) = take(self.receive()?, &mut each) {
                return end;
            }
        }
    }

    /// Receives the next piece of a dump. Also reads the notifications of the watch, if there is one.
    fn receive(&mut self) -> io::Result<&[u8]> {
        self.watch.iter_mut().for_each(TableWatch::update);
        self.socket.receive()
    }

    /// Receives the rest of a long dump in another thread, so the kernel lists the next pieces while this thread decodes. `None` if no
    /// thread can be started; then nothing was received.
    fn receive_beside(&mut self, each: &mut impl FnMut(&[u8])) -> Option<Result<(), ReadError>> {
        let (sender, pieces) = sync_channel(WAITING);
        let receive = move || loop {
            let piece = self.receive().map(<[u8]>::to_vec);
            let is_last =
                piece.as_ref().map_or(true, |piece| Messages::new(piece).any(|message| end(message).is_some()));
            if sender.send(piece).is_err() || is_last {
                return;
            }
        };
        thread::scope(|scope| {
            // Owned by this closure, so a panic of `each` drops the receiver. Otherwise the scope would wait for the thread, and the thread
            // for space in the channel.
            let pieces = pieces;
            let reader = thread::Builder::new().name("nft-read".into()).spawn_scoped(scope, receive).ok()?;
            let ended = pieces.iter().find_map(|piece| match piece {
                Ok(piece) => take(&piece, each),
                Err(error) => Some(Err(error.into())),
            });
            // The pieces stop before the end of the dump only if the thread panicked.
            ended.or_else(|| reader.join().map_or_else(|panic| resume_unwind(panic), |()| None))
        })
    }
}

/// Calls `each` with the messages of a piece of a dump. Gives the result of the dump if it ends in this piece; else `None`.
fn take(piece: &[u8], each: &mut impl FnMut(&[u8])) -> Option<Result<(), ReadError>> {
    for message in Messages::new(piece) {
        match end(message) {
            Some(0) => return Some(Ok(())),
            Some(errno) => return Some(Err(io::Error::from_raw_os_error(errno).into())),
            None => each(message),
        }
    }
    None
}

/// The error number in a message that ends a dump, 0 for success; `None` for other messages. The kernel ends a refused request with an
/// error message, and a dump with `NLMSG_DONE`.
fn end(message: &[u8]) -> Option<i32> {
    decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message))
}

/// Takes `ENOENT` as success: a table or set that does not exist has nothing to list.
fn unless_absent(read: Result<(), ReadError>) -> Result<(), ReadError> {
    match read {
        Err(ReadError::Socket(error)) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        read => read,
    }
}

/// A request about objects of a family; `None` stands for all families. The names become attributes 1, 2, ...: in every request these are
/// the table, then a set or chain in it.
fn request(kind: u16, flags: u16, family: Option<Family>, names: &[&str]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.begin(kind, flag::REQUEST | flags, family.map_or(0, Family::number));
    (1..).zip(names).for_each(|(attribute, name)| writer.str(attribute, name));
    writer.finish()
}

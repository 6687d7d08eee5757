//! Reads objects of any program's tables, without reading whole tables.
//!
//! A caller that follows one packet needs a few chains of a table that may have very many. The answers are read at different moments. They
//! are consistent if [`Connection::generation`] is the same before and after.

use std::io;

use super::{Connection, ReadError, request};
use crate::data::Data;
use crate::decode::{self, ChainHead, Decoded, Messages, RawElement, RuleHead, SetHead, TableHead};
use crate::table::{Family, TableName};
use crate::wire::{Writer, flag, kind};

impl Connection {
    /// All tables of all families.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn tables(&mut self) -> Result<Vec<TableHead>, ReadError> {
        self.list(None, kind::GET_TABLE, &[], decode::table_head)
    }

    /// The base chains of all tables of a family.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn base_chains(&mut self, family: Family) -> Result<Vec<ChainHead>, ReadError> {
        self.list(Some(family), kind::GET_CHAIN, &[], |message| {
            decode::chain_head(message).filter(|chain| chain.hook.is_some())
        })
    }

    /// The rules of a chain in their order; empty when there is no such chain.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn rules(&mut self, table: &TableName, chain: &str) -> Result<Vec<RuleHead>, ReadError> {
        self.list(Some(table.family), kind::GET_RULE, &[&table.name, chain], decode::rule_head)
    }

    /// A set or map without its elements; `None` when there is no such set.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn set(&mut self, table: &TableName, set: &str) -> Result<Option<SetHead>, ReadError> {
        let names = [&*table.name, set];
        let answer = self.answer(&request(kind::GET_SET, 0, Some(table.family), &names), |message| {
            decode::set_head(message).map(Ok)
        });
        or_none(answer)
    }

    /// The element with a key, in a set whose keys are not ranges; `None` when there is no such element or set.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn element(&mut self, table: &TableName, set: &str, key: &Data) -> Result<Option<RawElement>, ReadError> {
        /// `NFTA_SET_ELEM_LIST_ELEMENTS`, `NFTA_LIST_ELEM` and `NFTA_SET_ELEM_KEY`, each within the one before; the key's `NFTA_DATA_VALUE`
        /// is `VALUE`.
        const NESTS: [u16; 3] = [3, 1, 1];
        const VALUE: u16 = 1;
        let mut writer = Writer::default();
        writer.begin(kind::GET_ELEMENTS, flag::REQUEST, table.family.number());
        writer.str(1, &table.name);
        writer.str(2, set);
        let nests = NESTS.map(|nest| writer.open(nest));
        writer.attr(VALUE, key.as_slice());
        nests.into_iter().rev().for_each(|nest| writer.close(nest));
        let answer = self.answer(&writer.finish(), |message| match decode::message(message) {
            Ok(Decoded::Elements { mut elements, .. }) => Some(Ok(elements.pop())),
            Ok(_) => None,
            Err(error) => Some(Err(error.into())),
        });
        or_none(answer).map(Option::flatten)
    }

    /// The elements of a set, as the kernel lists them: [`decode::pair`] makes ranges of them. Empty when there is no such set.
    ///
    /// # Errors
    /// See [`ReadError`]; also when one of the elements cannot be decoded.
    pub fn elements(&mut self, table: &TableName, set: &str) -> Result<Vec<RawElement>, ReadError> {
        let mut unreadable = Vec::new();
        let raw = or_none(self.read_elements(table, set, &mut unreadable))?.unwrap_or_default();
        unreadable.pop().map_or(Ok(raw), |error| Err(error.into()))
    }

    /// Dumps objects and collects what `read` gives for each message. Skips a message for which `read` gives `None`.
    fn list<T>(
        &mut self,
        family: Option<Family>,
        kind: u16,
        names: &[&str],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, ReadError> {
        self.socket.send(&request(kind, flag::DUMP, family, names))?;
        let mut found = Vec::new();
        loop {
            for message in Messages::new(self.socket.receive()?) {
                match decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                    Some(0) => return Ok(found),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno).into()),
                    None => found.extend(read(message)),
                }
            }
        }
    }

    /// Sends a request for one object, calls `read` with each message of the answer, and returns the first result that is not `None`.
    fn answer<T>(
        &mut self,
        request: &[u8],
        read: impl Fn(&[u8]) -> Option<Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        self.socket.send(request)?;
        loop {
            for message in Messages::new(self.socket.receive()?) {
                if let Some(errno) = decode::ack(message).map(|ack| ack.errno).filter(|errno| *errno != 0) {
                    return Err(io::Error::from_raw_os_error(errno).into());
                }
                if let Some(answer) = read(message) {
                    return answer;
                }
            }
        }
    }
}

fn is_missing(error: &ReadError) -> bool {
    matches!(error, ReadError::Socket(error) if error.raw_os_error() == Some(libc::ENOENT))
}

fn or_none<T>(answer: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match answer {
        Err(error) if is_missing(&error) => Ok(None),
        other => other.map(Some),
    }
}

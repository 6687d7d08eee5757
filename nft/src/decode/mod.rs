//! Netlink messages -> objects.
//!
//! Takes what the kernel sends, gives values that equal those that were sent to it: registers in the kernel's form, without the
//! defaults that it fills in, without counters' readings. Never panics, whatever the bytes are: lengths are checked, attributes may
//! be missing, and what this crate does not know comes out as such.

mod elements;
mod exprs;
mod objects;

use std::sync::Arc;

use crate::object::{Chain, RuleDump, Set, Table, TableName};
use crate::wire::Attrs;

pub use elements::{RawElement, pair_elements};

/// Length of `nlmsghdr`.
const HEADER: usize = 16;
/// Length of `nlmsghdr` and `nfgenmsg`.
const HEADERS: usize = 20;

/// The messages of a datagram, each with its header. Ends at the first that does not fit.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The messages in these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(u32_at(self.rest, 0)?).ok()?;
        if len < HEADER {
            return None;
        }
        let message = self.rest.get(..len)?;
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// An answer that is no object: acknowledgement, error, or the end of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Sequence number of the request.
    pub seq: u32,
    /// Error number, positive; 0 for success.
    pub errno: i32,
    /// The kernel's own words.
    pub message: Option<String>,
    /// Offset in the request of the attribute that the error is about.
    pub offset: Option<u32>,
}

/// The answer in a message; `None` when it is an object.
#[must_use]
pub fn ack(message: &[u8]) -> Option<Ack> {
    const NLMSG_ERROR: u16 = 2;
    const NLMSG_DONE: u16 = 3;
    let kind = u16_at(message, 4)?;
    if kind != NLMSG_ERROR && kind != NLMSG_DONE {
        return None;
    }
    // A datagram that ends a dump has an error number; one without it is success.
    let errno = u32_at(message, HEADER).map_or(0, |number| number.cast_signed().wrapping_neg());
    let mut ack = Ack { seq: u32_at(message, 8)?, errno, message: None, offset: None };
    for attr in extended(message, kind == NLMSG_ERROR) {
        match attr.kind {
            1 => ack.message = attr.str().map(str::to_owned),
            2 => ack.offset = u32_at(attr.payload, 0),
            _ => {}
        }
    }
    Some(ack)
}

/// The attributes of an extended acknowledgement.
fn extended(message: &[u8], is_error: bool) -> Attrs<'_> {
    const CAPPED: u16 = 0x100;
    const HAS_ATTRIBUTES: u16 = 0x200;
    const ERRNO: usize = 4;
    let flags = u16_at(message, 6).unwrap_or_default();
    let start = if !is_error {
        Some(HEADER + ERRNO)
    } else if flags & CAPPED != 0 {
        Some(HEADER + ERRNO + HEADER)
    } else {
        let request = u32_at(message, HEADER + ERRNO).and_then(|len| usize::try_from(len).ok());
        request.and_then(|len| len.checked_next_multiple_of(4)?.checked_add(HEADER + ERRNO))
    };
    let bytes = start.filter(|_| flags & HAS_ATTRIBUTES != 0).and_then(|start| message.get(start..));
    Attrs::new(bytes.unwrap_or_default())
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A table.
    Table(Table),
    /// A chain.
    Chain(TableName, Chain),
    /// A rule, with the name of its chain.
    Rule(TableName, Arc<str>, RuleDump),
    /// A set or map.
    Set(TableName, Set),
    /// Some elements of a set.
    Elements(Vec<RawElement>),
    /// The generation of all rules.
    Generation(u32),
    /// Something else; its message type.
    Other(u16),
}

/// A message that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel's message about a {object} has no valid {attribute}")]
pub struct DecodeError {
    /// What the message is about.
    pub object: &'static str,
    /// What is missing or malformed.
    pub attribute: &'static str,
}

impl DecodeError {
    fn new(object: &'static str, attribute: &'static str) -> Self {
        Self { object, attribute }
    }
}

/// Message types of nf_tables (`enum nf_tables_msg_types`).
mod kind {
    pub(super) const SUBSYSTEM: u16 = 10;
    pub(super) const NEW_TABLE: u16 = 0;
    pub(super) const NEW_CHAIN: u16 = 3;
    pub(super) const NEW_RULE: u16 = 6;
    pub(super) const NEW_SET: u16 = 9;
    pub(super) const NEW_ELEMENTS: u16 = 12;
    pub(super) const NEW_GENERATION: u16 = 15;
}

/// The object in a message.
///
/// # Errors
/// When a message that should hold an object does not.
pub fn message(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let kind = u16_at(bytes, 4).ok_or(DecodeError::new("message", "header"))?;
    let attrs = Attrs::new(bytes.get(HEADERS..).unwrap_or_default());
    let family = bytes.get(HEADER).copied().unwrap_or_default();
    if kind >> 8 != kind::SUBSYSTEM {
        return Ok(Decoded::Other(kind));
    }
    match kind & 0xff {
        kind::NEW_TABLE => objects::table(family, attrs),
        kind::NEW_CHAIN => objects::chain(family, attrs),
        kind::NEW_RULE => objects::rule(family, attrs),
        kind::NEW_SET => objects::set(family, attrs),
        kind::NEW_ELEMENTS => elements::elements(attrs).map(Decoded::Elements),
        kind::NEW_GENERATION => {
            let id = attrs.find(1).and_then(|attr| attr.u32());
            id.map(Decoded::Generation).ok_or(DecodeError::new("generation", "number"))
        }
        _ => Ok(Decoded::Other(kind)),
    }
}

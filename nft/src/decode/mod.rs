//! Decodes bytes from the kernel: its answers to dumps, requests and batches, and its notifications.
//!
//! Takes single netlink messages (split a receive buffer with [`Messages`]) and gives values of this crate. Never panics, whatever the
//! bytes are. The values are canonical: [`crate::Rule::to_dump`] of a rule that was sent equals the decoded rule, and a set or a (paired,
//! see [`pair`]) element that was sent equals the decoded one. An expression that no other variant of [`crate::Expr`] can express becomes
//! `Foreign` or `Unknown`, which equal no expression that this crate sends; an object that this crate cannot express is a [`DecodeError`]
//! for that message only.

mod ack;
mod decoded;
mod elements;
mod exprs;
mod extension;
mod foreign;
mod heads;
mod messages;
mod notice;
mod objects;
mod outline;
mod reader;
mod trace;

use crate::packed::Elements;
use crate::table::Family;
use crate::wire::{Attrs, SUBSYSTEM, kind};

pub use ack::{Ack, ack, done};
pub use decoded::{Count, DecodeError, Decoded, RawElement};
pub use elements::{pair, pair_of};
pub use extension::Effects;
pub(crate) use extension::Extension;
pub use heads::{ChainHead, HookHead, RuleHead, SetHead, TableHead, chain_head, rule_head, set_head, table_head};
pub use messages::{Messages, dump_interrupted, sequence};
pub(crate) use notice::is_about;
pub use notice::{Notice, Process, notice};
pub use outline::{
    ChainOutline, HookOutline, RuleEffects, RuleOutline, chain_outline, hook_outline, named_object, rule_effects,
    rule_outline,
};
pub use trace::{Event, Headers, Traced, traced};

/// Appends the elements in a message to a list. They are those that [`message`] gives, but without the fields that only [`RawElement`] has,
/// and take less memory. Use it only for sets whose elements need no [`pair`]. Ignores messages about other objects.
///
/// # Errors
/// As [`message`]; then no element is appended.
pub fn pack_elements(bytes: &[u8], elements: &mut Elements) -> Result<(), DecodeError> {
    match object(bytes)? {
        Object::Of(number, kind::NEW_ELEMENTS, attrs) if Family::from_number(number).is_some() => {
            elements::pack_elements(attrs, elements)
        }
        Object::Of(..) | Object::Other(_) => Ok(()),
    }
}

/// Decodes one message; `bytes` begins with its `nlmsghdr`.
///
/// # Errors
/// When the message is shorter than its headers, or an attribute of its object is missing, malformed or unknown to this crate.
pub fn message(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let (number, kind, attrs) = match object(bytes)? {
        Object::Of(number, kind, attrs) => (number, kind, attrs),
        Object::Other(kind) => return Ok(Decoded::Other(kind)),
    };
    if kind == kind::NEW_GENERATION {
        return objects::generation(attrs);
    }
    let other = Decoded::Other(SUBSYSTEM << 8 | kind);
    let Some(family) = Family::from_number(number) else { return Ok(other) };
    match kind {
        kind::NEW_TABLE => objects::table(family, attrs),
        kind::NEW_CHAIN => objects::chain(family, attrs),
        kind::NEW_RULE => objects::rule(family, attrs),
        kind::NEW_SET => objects::set(family, attrs),
        kind::NEW_FLOWTABLE => objects::flowtable(family, attrs),
        kind::NEW_ELEMENTS => elements::elements(family, attrs),
        _ => Ok(other),
    }
}

/// What a message is about.
enum Object<'a> {
    /// An object of nf_tables: the number of its family, the type of the message without the subsystem, and its attributes.
    Of(u8, u16, Attrs<'a>),
    /// A message of another type.
    Other(u16),
}

fn object(bytes: &[u8]) -> Result<Object<'_>, DecodeError> {
    let malformed = |attribute| DecodeError { object: "message", name: None, attribute };
    let header = messages::Header::read(bytes).ok_or(malformed("header"))?;
    if header.kind >> 8 != SUBSYSTEM {
        return Ok(Object::Other(header.kind));
    }
    let (nfgenmsg, attrs) = header.payload.split_first_chunk::<4>().ok_or(malformed("family"))?;
    Ok(Object::Of(nfgenmsg[0], header.kind & 0xff, Attrs::new(attrs)))
}

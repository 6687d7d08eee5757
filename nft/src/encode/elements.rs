//! Encodes elements of sets and maps, without libnftnl, which took eight times as long in our measurement.
//!
//! A message holds about as many elements as fit into one nested attribute, which is shorter than 64 KiB. A range of a single field is two
//! elements: one with the first key and one, marked as an end, with the key behind the last. A range up to the highest key has no end. A
//! range of a concatenation is one element with two keys.

use crate::object::Set;
use crate::packed::{ElementRef, Elements, Parts, ValueRef};
use crate::table::TableName;
use crate::userdata;
use crate::wire::{self, Writer, flag};

/// Attributes (`linux/netfilter/nf_tables.h`).
mod number {
    pub(super) const LIST_TABLE: u16 = 1;
    pub(super) const LIST_SET: u16 = 2;
    pub(super) const LIST_ELEMENTS: u16 = 3;

    pub(super) const ELEMENT: u16 = 1;
    pub(super) const KEY: u16 = 1;
    pub(super) const DATA: u16 = 2;
    pub(super) const FLAGS: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const USERDATA: u16 = 6;
    pub(super) const KEY_END: u16 = 10;

    pub(super) const VALUE: u16 = 1;
    pub(super) const VERDICT: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
    pub(super) const VERDICT_CHAIN: u16 = 2;

    /// `NFT_SET_ELEM_INTERVAL_END`.
    pub(super) const INTERVAL_END: u32 = 1;
}

/// A message takes no further element when its nested attribute has less room than this, in bytes. The largest element takes less.
const HEADROOM: usize = 1024;
/// The length of a long element in bytes, roughly: the buffer of a message is allocated with room for elements of this length.
const ROOM_PER_ELEMENT: usize = 192;

/// One finished message.
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// The index, within the command, of the first element in the message; 0 in messages of other objects.
    pub(crate) first_element: usize,
}

/// Whether the kernel adds, deletes or destroys the elements of a message.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Add,
    Delete,
    Destroy,
}

/// Calls `sink` with each message for a list of elements.
pub(super) fn messages(table: &TableName, set: &Set, elements: &Elements, kind: Kind, sink: &mut dyn FnMut(Message)) {
    let shape = Shape::of(set);
    let (mut rest, mut first_element) = (elements.iter().peekable(), 0);
    while rest.peek().is_some() {
        let left = elements.len() - first_element;
        let (bytes, taken) = message(table, set, shape, &mut rest, left, kind);
        sink(Message { bytes, first_element });
        first_element += taken;
    }
}

/// The form in which the kernel expects the keys of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Single,
    /// Ranges of a single field.
    Ranges,
    /// Ranges of a concatenation.
    ConcatenatedRanges,
}

impl Shape {
    fn of(set: &Set) -> Self {
        match (set.is_concat_interval(), set.flags.interval) {
            (true, _) => Self::ConcatenatedRanges,
            (false, true) => Self::Ranges,
            (false, false) => Self::Single,
        }
    }
}

/// Writes a message with as many of the next elements as fit, and returns their number. `left` is the number of remaining elements.
fn message<'a>(
    table: &TableName,
    set: &Set,
    shape: Shape,
    elements: &mut impl Iterator<Item = ElementRef<'a>>,
    left: usize,
    kind: Kind,
) -> (Vec<u8>, usize) {
    let room = left.saturating_mul(ROOM_PER_ELEMENT).min(usize::from(u16::MAX)) + HEADROOM;
    let mut writer = Writer::with_capacity(room);
    let (message, create) = match kind {
        Kind::Add => (wire::kind::NEW_ELEMENTS, flag::CREATE),
        Kind::Delete => (wire::kind::DELETE_ELEMENTS, 0),
        Kind::Destroy => (wire::kind::DESTROY_ELEMENTS, 0),
    };
    writer.begin(message, flag::REQUEST | create, table.family.number());
    writer.str(number::LIST_TABLE, &table.name);
    writer.str(number::LIST_SET, &set.name);
    let list = writer.open(number::LIST_ELEMENTS);
    let limit = writer.bytes().len() + usize::from(u16::MAX) - HEADROOM;
    let mut taken = 0;
    while writer.bytes().len() < limit
        && let Some(element) = elements.next()
    {
        write(&mut writer, shape, element.parts(), kind);
        taken += 1;
    }
    writer.close(list);
    (writer.finish(), taken)
}

/// Writes an element. Messages that delete or destroy have only its keys.
fn write(writer: &mut Writer, shape: Shape, element: Parts<'_>, kind: Kind) {
    let Parts { key, key_end, value, timeout, comment } = element;
    let last_key = key_end.unwrap_or(key);
    let nest = writer.open(number::ELEMENT);
    data(writer, number::KEY, key);
    if shape == Shape::ConcatenatedRanges {
        data(writer, number::KEY_END, last_key);
    }
    if matches!(kind, Kind::Add) {
        match value {
            ValueRef::None => {}
            ValueRef::Data(bytes) => data(writer, number::DATA, bytes),
            ValueRef::Verdict(number, chain) => verdict(writer, number, chain),
        }
        if let Some(timeout) = timeout {
            writer.u64(number::TIMEOUT, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(text) = comment {
            writer.attr(number::USERDATA, &userdata::comment(userdata::COMMENT, text));
        }
    }
    writer.close(nest);
    if shape == Shape::Ranges {
        range_end(writer, last_key);
    }
}

fn data(writer: &mut Writer, kind: u16, bytes: &[u8]) {
    let nest = writer.open(kind);
    writer.attr(number::VALUE, bytes);
    writer.close(nest);
}

fn verdict(writer: &mut Writer, number: u32, chain: Option<&str>) {
    let outer = writer.open(number::DATA);
    let inner = writer.open(number::VERDICT);
    writer.u32(number::VERDICT_CODE, number);
    if let Some(chain) = chain {
        writer.str(number::VERDICT_CHAIN, chain);
    }
    writer.close(inner);
    writer.close(outer);
}

/// Writes the second element of a range of a single field; a range that ends at the highest key has none.
fn range_end(writer: &mut Writer, last_key: &[u8]) {
    let Some(behind) = successor(last_key) else { return };
    let nest = writer.open(number::ELEMENT);
    data(writer, number::KEY, &behind);
    writer.u32(number::FLAGS, number::INTERVAL_END);
    writer.close(nest);
}

/// The key that follows a key, both taken as numbers in network order; `None` after the highest key.
fn successor(key: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = key.to_vec();
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(bytes);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Data, Value};
    use crate::object::Element;

    #[test]
    fn the_messages_that_destroy_and_delete_differ_only_in_their_type() {
        let table = TableName::new(crate::table::Family::Ip, "t");
        let set = Set::new("s", crate::object::Types::Named(vec![crate::datatype::DataType::Ipv4Addr]));
        let elements = Elements::from(vec![Element::mapping(Data::from(7_u32), Value::Data(Data::from(8_u32)))]);
        let [add, delete, destroy] = [Kind::Add, Kind::Delete, Kind::Destroy].map(|kind| {
            let mut bytes = Vec::new();
            messages(&table, &set, &elements, kind, &mut |message| bytes.push(message.bytes));
            bytes.swap_remove(0)
        });
        assert_eq!([&add, &delete, &destroy].map(|bytes| (bytes[4], bytes[5])), [(12, 10), (14, 10), (30, 10)]);
        assert_eq!((&delete[..4], &delete[6..]), (&destroy[..4], &destroy[6..]), "without the value");
        assert!(add.len() > delete.len());
    }

    #[test]
    fn the_key_behind_a_range() {
        assert_eq!(successor(&[10, 255, 255, 255]), Some(vec![11, 0, 0, 0]));
        assert_eq!(successor(&[255; 4]), None);
    }
}

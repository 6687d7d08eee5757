//! Elements of sets and maps, written without libnftnl, which takes eight times as long.
//!
//! A message holds as many elements as fit into one nested attribute, 64 KiB. A range of a single field is two elements: one with the
//! first key and one, marked as an end, with the key behind the last. A range of a concatenation is one element with two keys.

use crate::data::{Data, Value, Verdict};
use crate::object::{Element, Set};
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

/// A message takes no further element when its nested attribute has less room than this: more than the largest element takes.
const HEADROOM: usize = 1024;
/// About the length of a long element, in bytes.
const ROOM_PER_ELEMENT: usize = 192;

/// One finished message.
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// The index, within the command, of the first element in the message; 0 in messages of other objects.
    pub(crate) first_element: usize,
}

/// What the kernel does with the elements of a message.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Add,
    Delete,
    Destroy,
}

/// Hands over the messages for a list of elements, one after the other.
pub(super) fn messages(table: &TableName, set: &Set, elements: &[Element], kind: Kind, sink: &mut dyn FnMut(Message)) {
    let mut rest = elements;
    while !rest.is_empty() {
        let first_element = elements.len() - rest.len();
        let (bytes, taken) = message(table, set, rest, kind);
        sink(Message { bytes, first_element });
        rest = &rest[taken..];
    }
}

/// One message with as many of the elements as fit, and their number.
fn message(table: &TableName, set: &Set, elements: &[Element], kind: Kind) -> (Vec<u8>, usize) {
    let room = elements.len().saturating_mul(ROOM_PER_ELEMENT).min(usize::from(u16::MAX)) + HEADROOM;
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
    for item in elements {
        match kind {
            Kind::Add => add(&mut writer, set, item),
            Kind::Delete | Kind::Destroy => delete(&mut writer, set, item),
        }
        taken += 1;
        if writer.bytes().len() >= limit {
            break;
        }
    }
    writer.close(list);
    (writer.finish(), taken)
}

fn add(writer: &mut Writer, set: &Set, item: &Element) {
    let nest = writer.open(number::ELEMENT);
    keys(writer, set, item);
    value(writer, &item.value);
    if let Some(timeout) = item.timeout {
        writer.u64(number::TIMEOUT, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    }
    if let Some(text) = &item.comment {
        writer.attr(number::USERDATA, &userdata::comment(userdata::COMMENT, text));
    }
    writer.close(nest);
    range_end(writer, set, item);
}

fn delete(writer: &mut Writer, set: &Set, item: &Element) {
    let nest = writer.open(number::ELEMENT);
    keys(writer, set, item);
    writer.close(nest);
    range_end(writer, set, item);
}

fn keys(writer: &mut Writer, set: &Set, item: &Element) {
    data(writer, number::KEY, &item.key);
    if set.is_concat_interval() {
        data(writer, number::KEY_END, item.key_end.as_deref().unwrap_or(&item.key));
    }
}

fn data(writer: &mut Writer, kind: u16, bytes: &Data) {
    let nest = writer.open(kind);
    writer.attr(number::VALUE, bytes.as_slice());
    writer.close(nest);
}

fn value(writer: &mut Writer, value: &Value) {
    match value {
        Value::None => {}
        Value::Data(bytes) => data(writer, number::DATA, bytes),
        Value::Verdict(verdict) => verdict_data(writer, verdict),
    }
}

fn verdict_data(writer: &mut Writer, verdict: &Verdict) {
    let outer = writer.open(number::DATA);
    let inner = writer.open(number::VERDICT);
    writer.u32(number::VERDICT_CODE, verdict.number());
    if let Some(chain) = verdict.chain() {
        writer.str(number::VERDICT_CHAIN, chain);
    }
    writer.close(inner);
    writer.close(outer);
}

/// The second element of a range of a single field; a range that ends at the highest key has none.
fn range_end(writer: &mut Writer, set: &Set, item: &Element) {
    if !set.flags.interval || set.is_concat_interval() {
        return;
    }
    let Some(behind) = successor(item.key_end.as_deref().unwrap_or(&item.key)) else { return };
    let nest = writer.open(number::ELEMENT);
    data(writer, number::KEY, &behind);
    writer.u32(number::FLAGS, number::INTERVAL_END);
    writer.close(nest);
}

/// The next key, both taken as numbers in network order; `None` behind the highest.
fn successor(key: &Data) -> Option<Data> {
    let mut bytes = key.as_slice().to_vec();
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Data::from_bytes(&bytes);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_that_destroy_and_delete_differ_only_in_their_type() {
        let table = TableName::new(crate::table::Family::Ip, "t");
        let set = Set::new("s", crate::object::Types::Named(vec![crate::datatype::DataType::Ipv4Addr]));
        let elements = [Element::mapping(Data::from(7_u32), Value::Data(Data::from(8_u32)))];
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
        let key = |bytes: [u8; 4]| Data::from_bytes(&bytes).unwrap();
        assert_eq!(successor(&key([10, 255, 255, 255])), Some(key([11, 0, 0, 0])));
        assert_eq!(successor(&key([255; 4])), None);
    }
}

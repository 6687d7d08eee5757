//! Elements of sets and maps, written directly.
//!
//! A message holds as many elements as fit into one nested attribute, 64 KiB. Ranges of a single field are two elements, the
//! first key and, marked as an end, the key behind the last one; ranges of concatenations are one element with two keys.

use super::exprs::verdict_code;
use super::{Encoder, Message, set_message_len};
use crate::data::Data;
use crate::object::{Element, Set, TableName, Value, Verdict};
use crate::userdata;
use crate::wire::Writer;

/// Netlink and nf_tables numbers (`linux/netlink.h`, `linux/netfilter/nf_tables.h`).
mod number {
    pub(super) const NLM_F_REQUEST: u16 = 1;
    pub(super) const NLM_F_CREATE: u16 = 0x400;
    pub(super) const SUBSYSTEM: u16 = 10 << 8;
    pub(super) const NEW_ELEMENTS: u16 = SUBSYSTEM | 12;
    pub(super) const DELETE_ELEMENTS: u16 = SUBSYSTEM | 14;
    pub(super) const DESTROY_ELEMENTS: u16 = SUBSYSTEM | 30;

    pub(super) const LIST_TABLE: u16 = 1;
    pub(super) const LIST_SET: u16 = 2;
    pub(super) const LIST_ELEMENTS: u16 = 3;
    pub(super) const LIST_SET_ID: u16 = 4;

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

/// Room left in a nested attribute below which a message is closed: more than the largest element takes.
const HEADROOM: usize = 1024;
/// About what a long element takes, in bytes.
const ROOM_PER_ELEMENT: usize = 192;

/// What becomes of the elements of a message.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Add,
    Delete,
    Destroy,
}

pub(super) fn messages(
    encoder: &Encoder,
    table: &TableName,
    set: &Set,
    elements: &[Element],
    kind: Kind,
    sink: &mut dyn FnMut(Message),
) {
    let mut rest = elements;
    while !rest.is_empty() {
        let first_element = elements.len() - rest.len();
        let (bytes, taken) = message(encoder, table, set, rest, kind);
        sink(Message { bytes, first_element });
        rest = &rest[taken..];
    }
}

/// One message with as many of the elements as fit, and their number.
fn message(encoder: &Encoder, table: &TableName, set: &Set, elements: &[Element], kind: Kind) -> (Vec<u8>, usize) {
    let room = elements.len().saturating_mul(ROOM_PER_ELEMENT).min(usize::from(u16::MAX)) + HEADROOM;
    let mut writer = Writer::with_capacity(room);
    header(&mut writer, table, kind);
    let (name, id) = encoder.set_reference(table, set);
    writer.str(number::LIST_TABLE, &table.name);
    writer.str(number::LIST_SET, &name);
    if let Some(id) = id {
        writer.u32(number::LIST_SET_ID, id);
    }
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
    let mut bytes = writer.into_bytes();
    set_message_len(&mut bytes);
    (bytes, taken)
}

/// `nlmsghdr` and `nfgenmsg`; length, acknowledgement flag and sequence number are filled in later.
fn header(writer: &mut Writer, table: &TableName, kind: Kind) {
    let (message, flags) = match kind {
        Kind::Add => (number::NEW_ELEMENTS, number::NLM_F_REQUEST | number::NLM_F_CREATE),
        Kind::Delete => (number::DELETE_ELEMENTS, number::NLM_F_REQUEST),
        Kind::Destroy => (number::DESTROY_ELEMENTS, number::NLM_F_REQUEST),
    };
    writer.raw(&[0; 4]);
    writer.raw(&message.to_ne_bytes());
    writer.raw(&flags.to_ne_bytes());
    writer.raw(&[0; 8]);
    writer.raw(&[table.family.number(), 0, 0, 0]);
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
    writer.u32(number::VERDICT_CODE, verdict_code(verdict));
    if let Some(chain) = verdict.chain() {
        writer.str(number::VERDICT_CHAIN, chain);
    }
    writer.close(inner);
    writer.close(outer);
}

/// The second element of a single-field range; a range that ends at the highest key has none.
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

/// The next key, as a number in network order.
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
    fn destroying_is_deleting_under_another_number() {
        let table = TableName::new(crate::object::Family::Ip, "t");
        let set = Set::new("s", crate::object::Types::Named(vec![crate::datatype::DataType::Ipv4Addr]));
        let elements = [Element::mapping(Data::from(7_u32), Value::Data(Data::from(8_u32)))];
        let [add, delete, destroy] = [Kind::Add, Kind::Delete, Kind::Destroy].map(|kind| {
            let mut bytes = Vec::new();
            messages(&Encoder::new(), &table, &set, &elements, kind, &mut |message| bytes.push(message.bytes));
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

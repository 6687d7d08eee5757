//! Decodes the elements of sets, and joins the two elements that the kernel lists for a range.

use super::decoded::{DecodeError, Decoded, ObjectAttrs, RawElement, milliseconds, value};
use super::exprs::counted;
use super::heads::SetHead;
use crate::data::{Data, Value};
use crate::object::{Element, Set};
use crate::table::Family;
use crate::userdata;
use crate::wire::{Attr, Attrs};

pub(super) fn elements(family: Family, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    const TABLE: u16 = 1;
    const SET: u16 = 2;
    const ELEMENTS: u16 = 3;
    let object = ObjectAttrs::new("elements", attrs, SET);
    let list = object.find(ELEMENTS).map_or_else(|| Attrs::new(&[]), |list| list.nested());
    // Allocates once: decoded elements take several times the bytes of the message, and a list that grows is copied again and again.
    let mut elements = Vec::with_capacity(list.count());
    for item in list {
        elements.push(element(&ObjectAttrs { attrs: item.nested(), ..object })?);
    }
    Ok(Decoded::Elements { table: object.table(family, TABLE)?, set: object.name()?, elements })
}

fn element(object: &ObjectAttrs<'_>) -> Result<RawElement, DecodeError> {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const FLAGS: u16 = 3;
    const TIMEOUT: u16 = 4;
    const EXPIRATION: u16 = 5;
    const USERDATA: u16 = 6;
    const EXPRESSION: u16 = 7;
    const KEY_END: u16 = 10;
    const INTERVAL_END: u32 = 1;
    let flags = object.number(FLAGS);
    if flags & !INTERVAL_END != 0 {
        return Err(object.error("element flags"));
    }
    let element = Element {
        key: object.need(KEY, "element key", data)?,
        key_end: object.find(KEY_END).map(|_| object.need(KEY_END, "element key end", data)).transpose()?.map(Box::new),
        value: object.find(DATA).map_or(Some(Value::None), value).ok_or_else(|| object.error("element value"))?,
        timeout: milliseconds(object.find(TIMEOUT)),
        comment: userdata::read_comment(object.bytes(USERDATA)),
    };
    Ok(RawElement {
        element,
        interval_end: flags & INTERVAL_END != 0,
        expires: milliseconds(object.find(EXPIRATION)),
        count: object.find(EXPRESSION).and_then(|attr| counted(attr.nested())),
    })
}

fn data(attr: Attr<'_>) -> Option<Data> {
    match value(attr)? {
        Value::Data(data) => Some(data),
        Value::Verdict(_) | Value::None => None,
    }
}

/// Returns the elements of a set, given the elements in all messages of its dump.
///
/// In an interval set of one field the kernel keeps a range as two elements: one with the first key, and an end with the key behind the
/// last; a range up to the highest key has no end. This function joins them to ranges, ordered by key. The list of any other set keeps its
/// order; an element of an interval set of several fields that has no last key is a range of one key.
#[must_use]
pub fn pair(set: &Set, raw: Vec<RawElement>) -> Vec<Element> {
    if !set.flags.interval {
        return raw.into_iter().map(|raw| raw.element).collect();
    }
    if set.is_concat_interval() {
        return raw.into_iter().map(|raw| with_end(raw.element, None)).collect();
    }
    pair_ranges(raw)
}

/// As [`pair`], for a set of any program, of which only the [`SetHead`] is known.
#[must_use]
pub fn pair_of(set: &SetHead, raw: Vec<RawElement>) -> Vec<Element> {
    match (set.is_interval, set.fields.len()) {
        (false, _) => raw.into_iter().map(|raw| raw.element).collect(),
        (true, 0 | 1) => pair_ranges(raw),
        (true, _) => raw.into_iter().map(|raw| with_end(raw.element, None)).collect(),
    }
}

fn pair_ranges(mut raw: Vec<RawElement>) -> Vec<Element> {
    // At a key where one range ends and the next starts, the end comes first.
    raw.sort_by_key(|raw| (raw.element.key, !raw.interval_end));
    let mut elements = Vec::with_capacity(raw.len() / 2 + 1);
    let mut raw = raw.into_iter().peekable();
    while let Some(RawElement { element, interval_end, .. }) = raw.next() {
        if !interval_end {
            let end = raw.peek().map_or_else(|| greatest(element.key), |next| before(next.element.key));
            elements.push(with_end(element, Some(end)));
        }
    }
    elements
}

/// The element with a last key: its own last key if it has one, else `end`, else its first key.
fn with_end(element: Element, end: Option<Data>) -> Element {
    let key_end = element.key_end.or_else(|| Some(Box::new(end.unwrap_or(element.key))));
    Element { key_end, ..element }
}

/// The key with every bit set.
fn greatest(key: Data) -> Data {
    map_bytes(key, |bytes| bytes.fill(0xff))
}

/// The key before a key, both taken as numbers in network order.
fn before(key: Data) -> Data {
    map_bytes(key, |bytes| {
        for byte in bytes.iter_mut().rev() {
            let (less, borrow) = byte.overflowing_sub(1);
            *byte = less;
            if !borrow {
                break;
            }
        }
    })
}

fn map_bytes(key: Data, change: impl FnOnce(&mut [u8])) -> Data {
    let mut bytes = key.as_slice().to_vec();
    change(&mut bytes);
    Data::from_bytes(&bytes).unwrap_or(key)
}

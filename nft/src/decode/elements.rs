//! Decodes the elements of sets, and joins the two elements that the kernel lists for a range.

use super::decoded::{DecodeError, Decoded, ObjectAttrs, RawElement, milliseconds, value_ref};
use super::exprs::counted;
use super::heads::SetHead;
use crate::data::Data;
use crate::object::{Element, Set};
use crate::packed::{Elements, Parts, ValueRef};
use crate::table::Family;
use crate::userdata;
use crate::wire::{Attr, Attrs};

const TABLE: u16 = 1;
const SET: u16 = 2;
const ELEMENTS: u16 = 3;

/// An element as the kernel lists it, borrowed from the message.
struct Listed<'a> {
    parts: Parts<'a>,
    interval_end: bool,
    attrs: Attrs<'a>,
}

pub(super) fn elements(family: Family, attrs: Attrs<'_>) -> Result<Decoded, DecodeError> {
    let (object, list) = list(attrs);
    let (table, set) = (object.table(family, TABLE)?, object.name()?);
    // Allocates once: decoded elements take several times the bytes of the message, and a list that grows is copied again and again.
    let mut elements = Vec::with_capacity(list.count());
    for item in list {
        elements.push(listed(&ObjectAttrs { attrs: item.nested(), ..object })?.raw());
    }
    Ok(Decoded::Elements { table, set, elements })
}

/// Appends the elements in a message about a set to a list: all of them or, with an error, none.
pub(super) fn pack_elements(attrs: Attrs<'_>, elements: &mut Elements) -> Result<(), DecodeError> {
    let ((object, list), before) = (list(attrs), elements.end());
    object.need(TABLE, "table", |attr| attr.str())?;
    object.name.ok_or_else(|| object.error("name"))?;
    for item in list {
        match listed(&ObjectAttrs { attrs: item.nested(), ..object }) {
            Ok(element) => elements.push_parts(element.parts),
            Err(error) => {
                elements.cut(before);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// The attributes of a message about a set, and the elements that the message lists.
fn list(attrs: Attrs<'_>) -> (ObjectAttrs<'_>, Attrs<'_>) {
    let object = ObjectAttrs::new("elements", attrs, SET);
    (object, object.find(ELEMENTS).map_or_else(|| Attrs::new(&[]), |list| list.nested()))
}

/// An element, given its attributes.
fn listed<'a>(object: &ObjectAttrs<'a>) -> Result<Listed<'a>, DecodeError> {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const FLAGS: u16 = 3;
    const TIMEOUT: u16 = 4;
    const USERDATA: u16 = 6;
    const KEY_END: u16 = 10;
    const INTERVAL_END: u32 = 1;
    let flags = object.number(FLAGS);
    if flags & !INTERVAL_END != 0 {
        return Err(object.error("element flags"));
    }
    let parts = Parts {
        key: object.need(KEY, "element key", data)?,
        key_end: object.find(KEY_END).map(|_| object.need(KEY_END, "element key end", data)).transpose()?,
        value: match object.find(DATA) {
            Some(attr) => value_ref(attr).ok_or_else(|| object.error("element value"))?,
            None => ValueRef::None,
        },
        timeout: milliseconds(object.find(TIMEOUT)),
        comment: userdata::comment_in(object.bytes(USERDATA)),
    };
    Ok(Listed { parts, interval_end: flags & INTERVAL_END != 0, attrs: object.attrs })
}

impl Listed<'_> {
    fn raw(&self) -> RawElement {
        const EXPIRATION: u16 = 5;
        const EXPRESSION: u16 = 7;
        RawElement {
            element: self.parts.element(),
            interval_end: self.interval_end,
            expires: milliseconds(self.attrs.find(EXPIRATION)),
            count: self.attrs.find(EXPRESSION).and_then(|attr| counted(attr.nested())),
        }
    }
}

fn data(attr: Attr<'_>) -> Option<&[u8]> {
    match value_ref(attr)? {
        ValueRef::Data(data) => Some(data),
        ValueRef::Verdict(..) | ValueRef::None => None,
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

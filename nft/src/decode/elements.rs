//! Elements of sets and maps.

use std::sync::Arc;
use std::time::Duration;

use super::DecodeError;
use crate::data::Data;
use crate::object::{Element, Set, Value, Verdict};
use crate::userdata;
use crate::wire::{Attr, Attrs};

/// An element as it travels: a range of one field is two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawElement {
    pub(super) element: Element,
    /// The key is the first one behind a range.
    pub(super) ends_range: bool,
}

/// The elements of a message (`enum nft_set_elem_list_attributes`).
pub(super) fn elements(attrs: Attrs<'_>) -> Result<Vec<RawElement>, DecodeError> {
    let list = attrs.find(3).map_or(Attrs::new(&[]), |list| list.nested());
    list.map(|item| element(item.nested())).collect()
}

/// `enum nft_set_elem_attributes`. Of the time-outs the configured one is kept, not what is left of it.
fn element(attrs: Attrs<'_>) -> Result<RawElement, DecodeError> {
    const INTERVAL_END: u32 = 1;
    const CATCH_ALL: u32 = 2;
    let flags = attrs.find(3).and_then(|attr| attr.u32()).unwrap_or_default();
    let key = match attrs.find(1) {
        Some(attr) => data(attr).ok_or(DecodeError::new("element", "key"))?,
        None if flags & CATCH_ALL != 0 => Data::EMPTY,
        None => return Err(DecodeError::new("element", "key")),
    };
    let key_end = attrs.find(10).map(|attr| data(attr).ok_or(DecodeError::new("element", "end of key"))).transpose()?;
    let value = match attrs.find(2) {
        None => Value::None,
        Some(attr) => value(attr).ok_or(DecodeError::new("element", "value"))?,
    };
    let timeout = attrs.find(4).and_then(|attr| attr.u64()).map(Duration::from_millis);
    let comment = attrs.find(6).and_then(|attr| userdata::find_comment(userdata::COMMENT, attr.payload));
    let element = Element { key, key_end, value, timeout, comment };
    Ok(RawElement { element, ends_range: flags & INTERVAL_END != 0 })
}

/// The bytes of `NFTA_DATA_VALUE` within an attribute.
pub(super) fn data(attr: Attr<'_>) -> Option<Data> {
    Data::from_bytes(attr.nested().find(1)?.payload)
}

/// The verdict of `NFTA_DATA_VERDICT` within an attribute.
pub(super) fn verdict(attr: Attr<'_>) -> Option<Verdict> {
    let attrs = attr.nested().find(2)?.nested();
    let chain = || attrs.find(2).and_then(|attr| attr.str()).map(Arc::from);
    match attrs.find(1)?.u32()?.cast_signed() {
        0 => Some(Verdict::Drop),
        1 => Some(Verdict::Accept),
        -3 => chain().map(Verdict::Jump),
        -4 => chain().map(Verdict::Goto),
        -5 => Some(Verdict::Return),
        _ => None,
    }
}

fn value(attr: Attr<'_>) -> Option<Value> {
    data(attr).map(Value::Data).or_else(|| verdict(attr).map(Value::Verdict))
}

/// The elements of a set from all its raw elements: the two halves of each single-field range become one.
#[must_use]
pub fn pair_elements(set: &Set, raw: Vec<RawElement>) -> Vec<Element> {
    if !set.flags.interval || set.is_concat_interval() {
        return raw.into_iter().map(|raw| raw.element).collect();
    }
    let mut raw = raw;
    // Where one range ends and the next begins, the end comes first.
    raw.sort_by_key(|raw| (raw.element.key, !raw.ends_range));
    let mut elements: Vec<Element> = Vec::new();
    let mut open = false;
    for item in raw {
        if !item.ends_range {
            // A range that begins where another is still open, or that nothing ends, reaches to the highest key.
            elements.push(Element { key_end: Some(highest(&item.element.key)), ..item.element });
            open = true;
        } else if let Some(last) = elements.last_mut().filter(|_| open) {
            last.key_end = predecessor(&item.element.key);
            open = false;
        }
    }
    elements
}

fn highest(key: &Data) -> Data {
    Data::from_bytes(&vec![0xff; key.len()]).unwrap_or(Data::EMPTY)
}

/// The key before, as a number in network order.
fn predecessor(key: &Data) -> Option<Data> {
    let mut bytes = key.as_slice().to_vec();
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != 0xff {
            break;
        }
    }
    Data::from_bytes(&bytes)
}

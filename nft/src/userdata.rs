//! User data: bytes that the kernel stores with an object and does not interpret, but that nft interprets. They are a list of entries. An
//! entry has a type and a length of one byte each, and a value.
//!
//! User data holds comments, and the types of sets that no type number describes: nft cannot load its own listing of a set that was
//! declared with `typeof` unless the set's user data describes the types. The numbers are those of libnftnl's `udata.h` and of nft's
//! sources.

use std::sync::Arc;

use crate::datatype::DataType;
use crate::expr::MetaKey;
use crate::field::Field;
use crate::object::{Element, Set, Types, ValueType};
use crate::wire::narrow;

/// A comment on a table, chain, rule or element.
pub(crate) const COMMENT: u8 = 0;

/// The types of the entries in a set's user data.
mod set {
    pub(super) const KEY_BYTE_ORDER: u8 = 0;
    pub(super) const DATA_BYTE_ORDER: u8 = 1;
    pub(super) const KEY_TYPEOF: u8 = 3;
    pub(super) const DATA_TYPEOF: u8 = 4;
    pub(super) const COMMENT: u8 = 7;
}

/// The types of the entries that describe the expression of a `typeof`.
mod type_of {
    pub(super) const EXPRESSION: u8 = 0;
    pub(super) const DETAIL: u8 = 1;
}

/// `enum byteorder` in nft.
const BYTE_ORDER_INVALID: u32 = 0;
const BYTE_ORDER_HOST: u32 = 1;
const BYTE_ORDER_BIG: u32 = 2;

/// nft's expression kinds (`enum expr_types`).
mod expression {
    pub(super) const VERDICT: u32 = 1;
    pub(super) const PAYLOAD: u32 = 7;
    pub(super) const META: u32 = 9;
    pub(super) const CONCAT: u32 = 13;
    pub(super) const NUMGEN: u32 = 23;
}

/// Encodes an entry.
fn entry(kind: u8, value: &[u8]) -> Vec<u8> {
    let len = narrow::<u8>(value.len(), "an entry of user data is at most 255 bytes");
    let mut bytes = vec![kind, len];
    bytes.extend_from_slice(value);
    bytes
}

fn number(kind: u8, value: u32) -> Vec<u8> {
    entry(kind, &value.to_ne_bytes())
}

/// A comment's text, shortened to [`Element::MAX_COMMENT`] bytes or a little less, at the end of a character.
pub(crate) fn cut(text: &str) -> &str {
    let mut end = text.len().min(Element::MAX_COMMENT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Encodes an entry with a comment.
pub(crate) fn comment(kind: u8, text: &str) -> Vec<u8> {
    let mut bytes = cut(text).as_bytes().to_vec();
    bytes.push(0);
    entry(kind, &bytes)
}

/// The user data of a set. Numbers that the kernel keeps in host order, such as marks, need the entries about byte order: without them, nft
/// would list these numbers with their bytes reversed.
pub(crate) fn of_set(set: &Set) -> Vec<u8> {
    let value_order = set.value.as_ref().map(|value| match value {
        ValueType::Verdict => BYTE_ORDER_INVALID,
        ValueType::Data(types) => byte_order(types),
    });
    let mut bytes = number(set::KEY_BYTE_ORDER, byte_order(&set.key));
    bytes.extend(value_order.into_iter().flat_map(|order| number(set::DATA_BYTE_ORDER, order)));
    if let Types::Of(key) = &set.key {
        bytes.extend(entry(set::KEY_TYPEOF, &typed(key)));
        bytes.extend(set.value.iter().filter_map(typed_value).flat_map(|typed| entry(set::DATA_TYPEOF, &typed)));
    }
    if let Some(text) = &set.comment {
        bytes.extend(comment(set::COMMENT, text));
    }
    bytes
}

/// The `typeof` expression of a map's value. Without it nft's listing of the map has no `typeof` for the key either.
fn typed_value(value: &ValueType) -> Option<Vec<u8>> {
    match value {
        ValueType::Verdict => Some(expression(expression::VERDICT, &[])),
        ValueType::Data(Types::Of(fields)) => Some(typed(fields)),
        ValueType::Data(Types::Named(_)) => None,
    }
}

/// The byte order of a type. A concatenation has none of its own.
fn byte_order(types: &Types) -> u32 {
    match types.data_types()[..] {
        [DataType::Integer | DataType::Mark] => BYTE_ORDER_HOST,
        [_] => BYTE_ORDER_BIG,
        _ => BYTE_ORDER_INVALID,
    }
}

/// Encodes a field, or a concatenation of fields, as the expression of a `typeof`.
fn typed(fields: &[Field]) -> Vec<u8> {
    match fields {
        [one] => typed_field(*one),
        many => {
            let parts: Vec<u8> = (0_u8..).zip(many).flat_map(|(i, field)| entry(i, &typed_field(*field))).collect();
            expression(expression::CONCAT, &parts)
        }
    }
}

fn expression(kind: u32, detail: &[u8]) -> Vec<u8> {
    let mut bytes = number(type_of::EXPRESSION, kind);
    bytes.extend(entry(type_of::DETAIL, detail));
    bytes
}

/// Encodes a payload expression by its protocol and header field (`enum proto_desc_id` and the protocol's header fields in nft).
fn payload(protocol: u32, field: u32) -> Vec<u8> {
    expression(expression::PAYLOAD, &[number(0, protocol), number(1, field)].concat())
}

fn meta(key: MetaKey) -> Vec<u8> {
    expression(expression::META, &number(0, key.number()))
}

fn typed_field(field: Field) -> Vec<u8> {
    const IP: u32 = 12;
    const IP6: u32 = 13;
    const TRANSPORT: u32 = 11;
    match field {
        Field::IpSaddr | Field::CtOriginalIpDaddr => payload(IP, 11),
        Field::IpDaddr => payload(IP, 12),
        Field::Ip6Saddr | Field::CtOriginalIp6Daddr => payload(IP6, 8),
        Field::Ip6Daddr => payload(IP6, 9),
        Field::ThSport => payload(TRANSPORT, 1),
        Field::ThDport | Field::CtOriginalProtoDst => payload(TRANSPORT, 2),
        Field::L4Proto => meta(MetaKey::L4Proto),
        Field::Mark => meta(MetaKey::Mark),
        Field::IifName => meta(MetaKey::IifName),
        Field::Jhash { .. } => unreachable!("no set has the type of a hash: its key is a number, as numgen makes it"),
        Field::NumgenRandom(modulus) => {
            let random = 1;
            expression(expression::NUMGEN, &[number(0, random), number(1, modulus), number(2, 0)].concat())
        }
    }
}

/// Iterates over the entries of user data, or of an entry that holds entries; ends at the first entry that is longer than the bytes that
/// are left.
struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let ([kind, len], rest) = self.0.split_first_chunk::<2>()?;
        let (value, rest) = rest.split_at_checked(usize::from(*len))?;
        self.0 = rest;
        Some((*kind, value))
    }
}

fn find(bytes: &[u8], kind: u8) -> Option<&[u8]> {
    Entries(bytes).find_map(|(k, value)| (k == kind).then_some(value))
}

/// The comment in the user data of a table, chain, rule or element.
pub(crate) fn read_comment(bytes: &[u8]) -> Option<Arc<str>> {
    comment_in(bytes).map(Arc::from)
}

/// The comment in the user data of a table, chain, rule or element, borrowed from it.
pub(crate) fn comment_in(bytes: &[u8]) -> Option<&str> {
    text(find(bytes, COMMENT)?)
}

/// The comment in the user data of a set.
pub(crate) fn read_set_comment(bytes: &[u8]) -> Option<Arc<str>> {
    text(find(bytes, set::COMMENT)?).map(Arc::from)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()
}

/// The fields of a set's key; `None` unless it was declared with `typeof` and fields that this crate knows.
pub(crate) fn read_key(bytes: &[u8]) -> Option<Vec<Field>> {
    read_typed(find(bytes, set::KEY_TYPEOF)?)
}

/// The fields of a map's value; `None` as for [`read_key`].
pub(crate) fn read_value(bytes: &[u8]) -> Option<Vec<Field>> {
    read_typed(find(bytes, set::DATA_TYPEOF)?)
}

/// The inverse of [`typed`].
fn read_typed(bytes: &[u8]) -> Option<Vec<Field>> {
    if find(bytes, type_of::EXPRESSION)? != expression::CONCAT.to_ne_bytes() {
        return Some(vec![read_field(bytes)?]);
    }
    Entries(find(bytes, type_of::DETAIL)?).map(|(_, field)| read_field(field)).collect()
}

/// The inverse of [`typed_field`]. If several fields have the same user data, returns the field that nft prints.
fn read_field(bytes: &[u8]) -> Option<Field> {
    const FIXED: [Field; 9] = [
        Field::IpSaddr,
        Field::IpDaddr,
        Field::Ip6Saddr,
        Field::Ip6Daddr,
        Field::L4Proto,
        Field::ThSport,
        Field::ThDport,
        Field::Mark,
        Field::IifName,
    ];
    let numgen = || {
        let modulus = find(find(bytes, type_of::DETAIL)?, 1)?;
        Some(Field::NumgenRandom(u32::from_ne_bytes(modulus.try_into().ok()?)))
    };
    FIXED.into_iter().chain(numgen()).find(|field| typed_field(*field) == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typeof_key_is_read_back() {
        let key = vec![Field::IpDaddr, Field::L4Proto, Field::ThDport, Field::NumgenRandom(65536)];
        let source = vec![Field::IpSaddr, Field::L4Proto, Field::ThSport];
        for fields in
            [key, source, vec![Field::Mark], vec![Field::NumgenRandom(3)], vec![Field::Ip6Saddr, Field::IifName]]
        {
            let bytes = of_set(&Set::new("s", Types::Of(fields.clone())));
            assert_eq!(read_key(&bytes), Some(fields));
        }
        assert_eq!(read_key(&of_set(&Set::new("s", Types::Named(Vec::new())))), None);
    }

    #[test]
    fn a_verdict_is_a_typed_value() {
        let bytes = of_set(&Set::map("m", Types::Of(vec![Field::IpDaddr]), ValueType::Verdict));
        assert_eq!(find(&bytes, set::DATA_BYTE_ORDER), Some(&[0; 4][..]));
        // The bytes that nft 1.0.6 sends.
        let verdict = [&[0, 4][..], &expression::VERDICT.to_ne_bytes(), &[1, 0]].concat();
        assert_eq!(find(&bytes, set::DATA_TYPEOF), Some(&verdict[..]));
    }

    #[test]
    fn an_expression_of_another_kind_is_no_field() {
        let symhash = entry(set::KEY_TYPEOF, &expression(24, &number(1, 7)));
        assert_eq!(read_key(&symhash), None);
    }

    #[test]
    fn comments_are_read_back() {
        assert_eq!(read_comment(&comment(COMMENT, "ns/web:http")).as_deref(), Some("ns/web:http"));
        assert_eq!(read_comment(&[COMMENT, 200, b'x']), None, "a length beyond the end");
        assert_eq!(read_comment(&[]), None);
    }
}

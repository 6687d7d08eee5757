//! User data: bytes that the kernel keeps for nft with an object, as a list of type, length and value, one byte each for the first two.
//!
//! It carries comments, and the types of a set that have no number. Codes are those of libnftnl's `udata.h` and of nft's own
//! sources; a set typed with `typeof` cannot be listed and loaded again without them.

use crate::field::Field;
use crate::object::{Set, Types, ValueType};

/// A comment on a table, chain, rule or element.
pub(crate) const COMMENT: u8 = 0;

/// Entries of a set's user data.
mod set {
    pub(super) const KEY_BYTE_ORDER: u8 = 0;
    pub(super) const DATA_BYTE_ORDER: u8 = 1;
    pub(super) const KEY_TYPEOF: u8 = 3;
    pub(super) const DATA_TYPEOF: u8 = 4;
    pub(super) const COMMENT: u8 = 7;
}

/// Entries of a typed expression.
mod type_of {
    pub(super) const EXPRESSION: u8 = 0;
    pub(super) const DETAIL: u8 = 1;
}

/// nft's byte orders.
const BYTE_ORDER_INVALID: u32 = 0;
const BYTE_ORDER_HOST: u32 = 1;

/// nft's expression kinds (`enum expr_types`).
mod expression {
    pub(super) const PAYLOAD: u32 = 7;
    pub(super) const META: u32 = 9;
    pub(super) const CONCAT: u32 = 13;
    pub(super) const NUMGEN: u32 = 23;
}

/// One entry.
fn entry(kind: u8, value: &[u8]) -> Vec<u8> {
    let len = u8::try_from(value.len()).expect("an entry of user data is at most 255 bytes");
    let mut bytes = vec![kind, len];
    bytes.extend_from_slice(value);
    bytes
}

fn number(kind: u8, value: u32) -> Vec<u8> {
    entry(kind, &value.to_ne_bytes())
}

/// A comment, cut at a character's end to what nft reads back.
pub(crate) fn comment(kind: u8, text: &str) -> Vec<u8> {
    let mut end = text.len().min(crate::Element::MAX_COMMENT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = text.as_bytes()[..end].to_vec();
    bytes.push(0);
    entry(kind, &bytes)
}

/// The user data of a set.
pub(crate) fn of_set(set: &Set) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Types::Of(key) = &set.key {
        bytes.extend(number(set::KEY_BYTE_ORDER, byte_order(key)));
        if let Some(ValueType::Data(Types::Of(value))) = &set.value {
            bytes.extend(number(set::DATA_BYTE_ORDER, byte_order(value)));
            bytes.extend(entry(set::KEY_TYPEOF, &typed(key)));
            bytes.extend(entry(set::DATA_TYPEOF, &typed(value)));
        } else {
            bytes.extend(entry(set::KEY_TYPEOF, &typed(key)));
        }
    } else if set.flags.anonymous && set.key.data_types() == [crate::DataType::Integer] {
        // The keys of `numgen ... vmap { 0 : ... }` are host-order numbers, which the bare type does not say.
        bytes.extend(number(set::KEY_BYTE_ORDER, BYTE_ORDER_HOST));
    }
    if let Some(text) = &set.comment {
        bytes.extend(comment(set::COMMENT, text));
    }
    bytes
}

/// A concatenation has no byte order of its own.
fn byte_order(fields: &[Field]) -> u32 {
    const BYTE_ORDER_BIG: u32 = 2;
    match fields {
        [one] if one.data_type() == crate::DataType::Integer => BYTE_ORDER_HOST,
        [_] => BYTE_ORDER_BIG,
        _ => BYTE_ORDER_INVALID,
    }
}

/// A field, or a concatenation of fields, as an expression.
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

/// Protocol and header field of a payload expression (`enum proto_desc_id` and the protocol's header fields in nft).
fn payload(protocol: u32, field: u32) -> Vec<u8> {
    expression(expression::PAYLOAD, &[number(0, protocol), number(1, field)].concat())
}

fn meta(key: u32) -> Vec<u8> {
    expression(expression::META, &number(0, key))
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
        // Key numbers of the kernel's `enum nft_meta_keys`.
        Field::L4Proto => meta(16),
        Field::Mark => meta(3),
        Field::IifName => meta(6),
        Field::OifName => meta(7),
        Field::NumgenRandom(modulus) | Field::JhashSaddr(modulus) => {
            let random = 1;
            expression(expression::NUMGEN, &[number(0, random), number(1, modulus), number(2, 0)].concat())
        }
    }
}

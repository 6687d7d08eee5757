//! User data: bytes that the kernel keeps for nft with an object, as a list of type, length and value, one byte each for the first two.
//!
//! It carries comments, and the types of a set that have no number. Codes are those of libnftnl's `udata.h` and of nft's own
//! sources; a set typed with `typeof` cannot be listed and loaded again without them.

use std::sync::Arc;

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

/// A comment cut, at a character's end, to what nft reads back.
pub(crate) fn cut(text: &str) -> &str {
    let mut end = text.len().min(crate::Element::MAX_COMMENT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A comment.
pub(crate) fn comment(kind: u8, text: &str) -> Vec<u8> {
    let mut bytes = cut(text).as_bytes().to_vec();
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

/// Entries of user data. Ends at the first that does not fit.
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

fn find(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    Entries(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// The comment in user data.
pub(crate) fn find_comment(kind: u8, bytes: &[u8]) -> Option<Arc<str>> {
    let text = find(bytes, kind)?;
    let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    std::str::from_utf8(&text[..end]).ok().map(Arc::from)
}

/// What a set's user data says.
#[derive(Debug, Default)]
pub(crate) struct SetData {
    /// The fields of a `typeof` key.
    pub(crate) key: Option<Vec<Field>>,
    /// The fields of a `typeof` value.
    pub(crate) value: Option<Vec<Field>>,
    pub(crate) comment: Option<Arc<str>>,
}

impl SetData {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        Self {
            key: find(bytes, set::KEY_TYPEOF).and_then(fields),
            value: find(bytes, set::DATA_TYPEOF).and_then(fields),
            comment: find_comment(set::COMMENT, bytes),
        }
    }
}

fn find_number(bytes: &[u8], kind: u8) -> Option<u32> {
    Some(u32::from_ne_bytes(find(bytes, kind)?.try_into().ok()?))
}

/// The fields of a typed expression; `None` when one is not known here.
fn fields(bytes: &[u8]) -> Option<Vec<Field>> {
    if find_number(bytes, type_of::EXPRESSION)? != expression::CONCAT {
        return field(bytes).map(|one| vec![one]);
    }
    Entries(find(bytes, type_of::DETAIL)?).map(|(_, part)| field(part)).collect()
}

/// The field that [`typed_field`] writes like this; fields of a connection are written like those of its packets.
fn field(bytes: &[u8]) -> Option<Field> {
    const PLAIN: [Field; 10] = [
        Field::IpSaddr,
        Field::IpDaddr,
        Field::Ip6Saddr,
        Field::Ip6Daddr,
        Field::ThSport,
        Field::ThDport,
        Field::L4Proto,
        Field::Mark,
        Field::IifName,
        Field::OifName,
    ];
    if find_number(bytes, type_of::EXPRESSION)? == expression::NUMGEN {
        return find_number(find(bytes, type_of::DETAIL)?, 1).map(Field::NumgenRandom);
    }
    PLAIN.into_iter().find(|known| typed_field(*known) == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_slotted_map_as_nft_sends_it() {
        // nft 1.0.6, `typeof ip daddr . meta l4proto . th dport . numgen random mod 1 : ip daddr . th dport`
        const SENT: &str = "0004000000000104000000000360\
            00040d00000001580014000407000000010c00040c00000001040c000000010e000409000000010600041000000002140004\
            07000000010c00040b000000010402000000031a0004170000000112000401000000010401000000020400000000\
            043400040d000000012c0014000407000000010c00040c00000001040c0000000114000407000000010c00040b000000010402000000";
        let fields = vec![Field::IpDaddr, Field::L4Proto, Field::ThDport, Field::NumgenRandom(1)];
        let endpoint = vec![Field::IpDaddr, Field::ThDport];
        let set = Set::map("endpoints", Types::Of(fields.clone()), ValueType::Data(Types::Of(endpoint.clone())));
        let bytes = of_set(&set);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, SENT);
        let parsed = SetData::parse(&bytes);
        assert_eq!((parsed.key, parsed.value), (Some(fields), Some(endpoint)));
    }

    #[test]
    fn comments_are_cut_between_characters() {
        let bytes = comment(COMMENT, &"\u{e9}".repeat(100));
        let back = find_comment(COMMENT, &bytes).unwrap();
        assert_eq!(back.chars().count(), crate::Element::MAX_COMMENT / 2);
    }

    #[test]
    fn entries_that_lie_about_their_length_end_the_walk() {
        assert_eq!(Entries(&[7, 200, 1]).count(), 0);
        assert_eq!(Entries(&[7]).count(), 0);
    }
}

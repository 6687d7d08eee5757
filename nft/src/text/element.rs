//! Writes elements of sets and maps, and the values of each data type.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::data::{Data, Value};
use crate::datatype::DataType;
use crate::object::{Element, Set, ValueType};
use crate::text::words::{comment, duration, interface};

/// Writes the elements of one set.
pub(super) struct ElementText {
    key: Vec<DataType>,
    value: Vec<DataType>,
    counter: bool,
}

impl ElementText {
    pub(super) fn of(set: &Set) -> Self {
        let value = match &set.value {
            Some(ValueType::Data(types)) => types.data_types(),
            Some(ValueType::Verdict) | None => Vec::new(),
        };
        Self { key: set.key.data_types(), value, counter: set.counter }
    }

    /// An element in nft syntax: `KEY counter timeout T comment "..." : VALUE`.
    pub(super) fn element(&self, element: &Element) -> String {
        let mut text = self.key(element);
        if self.counter {
            text += " counter";
        }
        if let Some(timeout) = element.timeout {
            text += &format!(" timeout {}", duration(timeout));
        }
        text += &comment(element.comment.as_deref());
        match &element.value {
            Value::None => {}
            Value::Verdict(verdict) => text += &format!(" : {verdict}"),
            Value::Data(data) => text += &format!(" : {}", values(&self.value, data)),
        }
        text
    }

    /// The key, or the range of keys.
    pub(super) fn key(&self, element: &Element) -> String {
        let Some(end) = &element.key_end else { return values(&self.key, &element.key) };
        let parts: Vec<String> = self
            .key
            .iter()
            .zip(split(&self.key, &element.key).into_iter().zip(split(&self.key, end)))
            .map(|(data_type, (first, last))| range(*data_type, first, last))
            .collect();
        parts.join(" . ")
    }
}

impl DataType {
    /// A value of the type in nft syntax. Bytes of another length are written as a hexadecimal number.
    pub(super) fn format(self, bytes: &[u8]) -> String {
        match (self, bytes) {
            (Self::Ipv4Addr, &[a, b, c, d]) => Ipv4Addr::new(a, b, c, d).to_string(),
            (Self::Ipv6Addr, _) => {
                <[u8; 16]>::try_from(bytes).map_or_else(|_| hex(bytes), |b| Ipv6Addr::from(b).to_string())
            }
            (Self::InetProto, &[number]) => protocol_name(number).map_or_else(|| number.to_string(), str::to_owned),
            (Self::InetService, &[high, low]) => u16::from_be_bytes([high, low]).to_string(),
            (Self::Integer, &[a, b, c, d]) => u32::from_ne_bytes([a, b, c, d]).to_string(),
            (Self::Mark, &[a, b, c, d]) => format!("0x{:08x}", u32::from_ne_bytes([a, b, c, d])),
            (Self::IfName, _) => {
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
                interface(&String::from_utf8_lossy(&bytes[..end]))
            }
            _ => hex(bytes),
        }
    }
}

/// The name of a protocol that is written by name; `None` for the others, which are written as numbers.
pub(super) fn protocol_name(number: u8) -> Option<&'static str> {
    match number {
        6 => Some("tcp"),
        17 => Some("udp"),
        132 => Some("sctp"),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A value as text: a field for each type, joined with dots.
pub(super) fn values(types: &[DataType], data: &Data) -> String {
    let parts: Vec<String> = types.iter().zip(split(types, data)).map(|(t, bytes)| t.format(bytes)).collect();
    parts.join(" . ")
}

/// The fields of a value without their padding; a single field is the whole value.
fn split<'a>(types: &[DataType], data: &'a Data) -> Vec<&'a [u8]> {
    let mut rest = data.as_slice();
    if types.len() == 1 {
        return vec![rest];
    }
    let mut fields = Vec::with_capacity(types.len());
    for data_type in types {
        let (field, behind) = rest.split_at(data_type.padded_size().min(rest.len()));
        fields.push(&field[..data_type.size().min(field.len())]);
        rest = behind;
    }
    fields
}

/// The range of one field: a single value, a prefix of addresses, or the first and the last value.
fn range(data_type: DataType, first: &[u8], last: &[u8]) -> String {
    let start = data_type.format(first);
    if first == last {
        return start;
    }
    let is_address = matches!(data_type, DataType::Ipv4Addr | DataType::Ipv6Addr);
    match prefix_len(first, last).filter(|_| is_address) {
        Some(len) => format!("{start}/{len}"),
        None => format!("{start}-{}", data_type.format(last)),
    }
}

/// The prefix length of a range that is exactly one network.
fn prefix_len(first: &[u8], last: &[u8]) -> Option<u32> {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |n, byte| n << 8 | u128::from(*byte));
    let (first_number, varying) = (number(first), number(first) ^ number(last));
    let bits = u32::try_from(first.len() * 8).ok()?;
    let is_network = varying & varying.wrapping_add(1) == 0 && first_number & varying == 0;
    is_network.then(|| bits - varying.count_ones().min(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_prefixes_where_they_can_be() {
        let text = |first: [u8; 4], last: [u8; 4]| range(DataType::Ipv4Addr, &first, &last);
        assert_eq!(text([10, 0, 0, 0], [10, 255, 255, 255]), "10.0.0.0/8");
        assert_eq!(text([0; 4], [255; 4]), "0.0.0.0/0");
        assert_eq!(text([1, 2, 3, 4], [1, 2, 3, 4]), "1.2.3.4");
        assert_eq!(text([10, 0, 0, 1], [10, 0, 0, 2]), "10.0.0.1-10.0.0.2");
        assert_eq!(text([10, 0, 0, 2], [10, 0, 0, 5]), "10.0.0.2-10.0.0.5");
        assert_eq!(range(DataType::InetService, &[0, 0], &[255, 255]), "0-65535");
    }

    #[test]
    fn a_value_of_a_wrong_length_is_still_text() {
        let types = [DataType::Ipv4Addr, DataType::InetService];
        assert_eq!(values(&types, &Data::from_bytes(&[10, 0]).unwrap()), "0x0a00 . 0x");
        assert_eq!(values(&types[..1], &Data::EMPTY), "0x");
    }

    #[test]
    fn values_are_written_in_nft_syntax() {
        assert_eq!(DataType::Ipv4Addr.format(&[10, 96, 0, 10]), "10.96.0.10");
        assert_eq!(DataType::Ipv6Addr.format(&Ipv6Addr::LOCALHOST.octets()), "::1");
        assert_eq!(DataType::InetProto.format(&[132]), "sctp");
        assert_eq!(DataType::InetProto.format(&[1]), "1");
        assert_eq!(DataType::InetService.format(&[0, 53]), "53");
        assert_eq!(DataType::Mark.format(&0x4000_u32.to_ne_bytes()), "0x00004000");
        assert_eq!(DataType::IfName.format(b"cbr0\0\0"), "\"cbr0\"");
        assert_eq!(DataType::Ipv4Addr.format(&[1]), "0x01");
    }
}

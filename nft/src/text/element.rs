//! Elements of sets and maps.

use crate::data::Data;
use crate::datatype::DataType;
use crate::object::{Element, Set, Value, ValueType};
use crate::text::{comment, duration};

/// Writes the elements of one set.
pub(super) struct ElementText {
    key: Vec<DataType>,
    value: Vec<DataType>,
}

impl ElementText {
    pub(super) fn of(set: &Set) -> Self {
        let value = match &set.value {
            Some(ValueType::Data(types)) => types.data_types(),
            Some(ValueType::Verdict) | None => Vec::new(),
        };
        Self { key: set.key.data_types(), value }
    }

    /// `KEY timeout T comment "..." : VALUE`.
    pub(super) fn element(&self, element: &Element) -> String {
        let mut text = self.key(element);
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

/// A value of a type, its fields joined with dots.
pub(super) fn values(types: &[DataType], data: &Data) -> String {
    let parts: Vec<String> = types.iter().zip(split(types, data)).map(|(t, bytes)| t.format(bytes)).collect();
    parts.join(" . ")
}

/// The fields of a value without their padding; a lone field is the whole value.
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

/// One field's range: a value, a prefix of addresses, or first and last.
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
}

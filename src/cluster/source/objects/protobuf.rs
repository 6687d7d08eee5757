//! Decodes objects from protobuf.
//!
//! The module takes the bytes of a message and decodes its fields one after the other; strings borrow from the bytes. The macro [`message`]
//! assigns field numbers to the fields of a type. prost decodes the varints and skips fields of other wire types. The module does no I/O.
//!
//! Invariants: unknown fields are ignored; if a field that is no list occurs twice, the last one counts, or both are merged if they are
//! messages, as the protobuf format demands.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Why a message cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::source) struct Malformed {
    /// The path of the field, with the names in JSON, such as `spec.ports[0].port`; empty for the message itself.
    pub(in crate::source) field: String,
    /// What is wrong with the field.
    pub(in crate::source) reason: String,
}

impl Malformed {
    pub(in crate::source) fn new(reason: impl ToString) -> Box<Self> {
        Box::new(Self { field: String::new(), reason: reason.to_string() })
    }

    /// Prepends the name of the field that holds the message with the error.
    pub(in crate::source) fn within(mut self: Box<Self>, field: &str) -> Box<Self> {
        let separator = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{}{separator}{}", in_json(field), self.field);
        self
    }

    fn at(mut self: Box<Self>, index: usize) -> Box<Self> {
        let separator = if self.field.is_empty() { "" } else { "." };
        self.field = format!("[{index}]{separator}{}", self.field);
        self
    }
}

/// Returns the name of a field in JSON: `clusterIPs` for `cluster_ips`.
fn in_json(field: &str) -> String {
    let mut words = field.trim_end_matches('_').split('_');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        match word {
            "ip" | "ips" | "cidrs" => name.push_str(&word.to_uppercase().replace('S', "s")),
            _ => {
                let (first, rest) = word.split_at(1);
                name.push_str(&first.to_uppercase());
                name.push_str(rest);
            }
        }
    }
    name
}

/// The value of a field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) enum Value<'a> {
    /// A number or a boolean.
    Varint(u64),
    /// A string, bytes or a message.
    Bytes(&'a [u8]),
    /// A value of another wire type. No field that the proxy reads has such a value.
    Other,
}

impl<'a> Value<'a> {
    /// Returns the bytes of a string or a message.
    ///
    /// # Errors
    /// Fails if the value is neither a string nor a message.
    pub(in crate::source) fn bytes(self) -> Result<&'a [u8], Box<Malformed>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Other => Err(Malformed::new("a text or a message was expected")),
        }
    }

    fn varint(self) -> Result<u64, Box<Malformed>> {
        match self {
            Self::Varint(number) => Ok(number),
            Self::Bytes(_) | Self::Other => Err(Malformed::new("a number was expected")),
        }
    }

    /// Calls `take` with the number and the value of each field of a message.
    ///
    /// # Errors
    /// Returns the first error of `take`, or what is wrong with the message.
    #[inline]
    pub(in crate::source) fn fields(
        self,
        mut take: impl FnMut(u32, Value<'a>) -> Result<(), Box<Malformed>>,
    ) -> Result<(), Box<Malformed>> {
        let mut rest = self.bytes()?;
        while !rest.is_empty() {
            let (number, wire_type) = decode_key(&mut rest).map_err(Malformed::new)?;
            let value = match wire_type {
                WireType::Varint => Value::Varint(decode_varint(&mut rest).map_err(Malformed::new)?),
                WireType::LengthDelimited => {
                    let length = decode_varint(&mut rest).map_err(Malformed::new)?;
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let (bytes, after) =
                        rest.split_at_checked(length).ok_or_else(|| Malformed::new("it breaks off"))?;
                    rest = after;
                    Value::Bytes(bytes)
                }
                other => {
                    skip_field(other, number, &mut rest, DecodeContext::default()).map_err(Malformed::new)?;
                    Value::Other
                }
            };
            take(number, value)?;
        }
        Ok(())
    }
}

/// A type that can be decoded from protobuf.
pub(in crate::source) trait Message<'a>: Default {
    /// Merges the value of a field into `self`. Fields that were merged before an error stay.
    ///
    /// # Errors
    /// Returns what is wrong with the field.
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>>;

    /// Reads a message.
    ///
    /// # Errors
    /// Returns what is wrong with the message.
    fn read(bytes: &'a [u8]) -> Result<Self, Box<Malformed>> {
        let mut message = Self::default();
        message.merge(Value::Bytes(bytes))?;
        Ok(message)
    }
}

impl Message<'_> for i32 {
    // Protobuf sends a negative int32 as a varint of 64 bits, of which the lower 32 are its value.
    #[allow(clippy::cast_possible_truncation, reason = "protobuf defines it")]
    fn merge(&mut self, value: Value<'_>) -> Result<(), Box<Malformed>> {
        *self = value.varint()?.cast_signed() as Self;
        Ok(())
    }
}

impl Message<'_> for i64 {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Box<Malformed>> {
        *self = value.varint()?.cast_signed();
        Ok(())
    }
}

impl Message<'_> for bool {
    fn merge(&mut self, value: Value<'_>) -> Result<(), Box<Malformed>> {
        *self = value.varint()? != 0;
        Ok(())
    }
}

impl<'a, T: Message<'a>> Message<'a> for Option<T> {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        self.get_or_insert_default().merge(value)
    }
}

impl<'a, T: Message<'a>> Message<'a> for Box<T> {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        (**self).merge(value)
    }
}

impl<'a, T: Message<'a>> Message<'a> for Vec<T> {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        let mut item = T::default();
        item.merge(value).map_err(|error| error.at(self.len()))?;
        self.push(item);
        Ok(())
    }
}

/// `message!(Type<'a> { 1 => field, .. })` implements `Message` for a type whose fields have these numbers in protobuf.
macro_rules! message {
    ($type:ident $(<$life:lifetime>)? { $($number:literal => $field:ident),* }) => {
        impl<'a> $crate::source::objects::Message<'a> for $type $(<$life>)? {
            #[inline]
            fn merge(
                &mut self,
                value: $crate::source::objects::Value<'a>,
            ) -> Result<(), Box<$crate::source::objects::Malformed>> {
                value.fields(|number, _value| {
                    match number {
                        $($number => $crate::source::objects::Message::merge(&mut self.$field, _value)
                            .map_err(|error| error.within(stringify!($field))),)*
                        _ => Ok(()),
                    }
                })
            }
        }
    };
}

pub(in crate::source) use message;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Inner {
        number: i32,
        is_set: Option<bool>,
    }

    message!(Inner { 1 => number, 2 => is_set });

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Outer {
        inner: Inner,
        cluster_ips: Vec<Inner>,
    }

    message!(Outer { 1 => inner, 2 => cluster_ips });

    fn outer(bytes: &[u8]) -> Result<Outer, (String, String)> {
        Outer::read(bytes).map_err(|error| (error.field, error.reason))
    }

    #[test]
    fn messages_are_merged_and_of_other_fields_the_last_counts() {
        let found = outer(b"\x0a\x02\x08\x05\x0a\x04\x08\x07\x10\x00").unwrap();
        assert_eq!(found.inner, Inner { number: 7, is_set: Some(false) });
        let negative = outer(b"\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").unwrap();
        assert_eq!(negative.inner.number, -1);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        let error = |bytes: &[u8]| outer(bytes).unwrap_err();
        assert_eq!(error(b"\x12\x00\x12\x02\x0a\x00"), ("clusterIPs[1].number".into(), "a number was expected".into()));
        assert_eq!(error(b"\x08\x01"), ("inner".into(), "a text or a message was expected".into()));
        assert_eq!(error(b"\x12\x09\x08"), (String::new(), "it breaks off".into()));
        assert_eq!(error(b"\x0d\x00").0, "", "four bytes of which one is there");
        assert_eq!(in_json("load_balancer_source_ranges"), "loadBalancerSourceRanges");
        assert_eq!(in_json("type_"), "type");
    }

    #[test]
    fn a_length_beyond_the_end_takes_no_memory() {
        assert!(outer(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f").is_err());
        assert!(outer(b"\x13\x13\x13").is_err(), "groups in groups that do not end");
    }
}

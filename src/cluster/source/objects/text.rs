//! Strings, lists and maps of an object, which borrow from the input from which the object is decoded.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::USED;
use super::protobuf::{Malformed, Message, Value};

/// A string, which is empty for null. It borrows from the input, unless it is a JSON string with escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::source) struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowing;

        impl<'de> Visitor<'de> for Borrowing {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Text::default())
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_any(Borrowing)
    }
}

impl<'a> Message<'a> for Text<'a> {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        let text = std::str::from_utf8(value.bytes()?).map_err(|_| Malformed::new("not UTF-8"))?;
        self.0 = Cow::Borrowed(text);
        Ok(())
    }
}

/// The first string of a list; null counts as an empty list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::source) struct First<'a>(Option<Text<'a>>);

impl<'a> First<'a> {
    /// Returns the string; `None` if the list is empty.
    pub(in crate::source) fn get(&self) -> Option<&Text<'a>> {
        self.0.as_ref()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for First<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfList;

        impl<'de> Visitor<'de> for OfList {
            type Value = First<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strings")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(First::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let first = list.next_element()?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }

        deserializer.deserialize_any(OfList)
    }
}

impl<'a> Message<'a> for First<'a> {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        if self.0.is_none() { self.0.insert(Text::default()).merge(value) } else { Ok(()) }
    }
}

/// The labels or annotations of an object: those whose keys are in `USED`, or all of them; null counts as an empty map.
#[derive(Clone, Debug, Default)]
pub(in crate::source) struct Pairs<'a> {
    keeps_all: bool,
    pairs: Vec<(Text<'a>, Text<'a>)>,
}

impl<'a> Pairs<'a> {
    /// Returns an empty map that keeps all keys that are merged into it.
    pub(super) const fn keeping_all() -> Self {
        Self { keeps_all: true, pairs: Vec::new() }
    }

    /// Returns the value of a key; the last one if the key occurs twice.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rfind(|(known, _)| **known == *key).map(|(_, value)| &**value)
    }

    /// Returns all keys that were kept, with their values.
    pub(in crate::source) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (&**key, &**value))
    }
}

/// Returns whether a label or annotation is one that is kept of every object.
fn is_used(key: &[u8]) -> bool {
    USED.iter().any(|used| used.as_bytes() == key)
}

/// Reads a map; `keeps_all` says whether keys that are not in `USED` are kept as well.
struct Keep {
    keeps_all: bool,
}

impl<'de> Visitor<'de> for Keep {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Pairs { keeps_all: self.keeps_all, pairs: Vec::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<Text<'de>>()? {
            if self.keeps_all || is_used(key.as_bytes()) {
                pairs.extend(map.next_value::<Option<Text<'de>>>()?.map(|value| (key, value)));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Pairs { keeps_all: self.keeps_all, pairs })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Keep { keeps_all: false })
    }
}

/// Deserializes a map of which all keys are kept.
pub(super) fn all_pairs<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<'a>, D::Error> {
    deserializer.deserialize_any(Keep { keeps_all: true })
}

impl<'a> Message<'a> for Pairs<'a> {
    fn merge(&mut self, value: Value<'a>) -> Result<(), Box<Malformed>> {
        let (mut key, mut text) = (None, None);
        value.fields(|number, value| {
            match number {
                1 => key = Some(value).filter(|value| self.keeps_all || value.bytes().is_ok_and(is_used)),
                2 => text = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        // Only keys that are kept, and their values, have to be valid UTF-8.
        if let Some(key) = key {
            let mut pair = (Text::default(), Text::default());
            pair.0.merge(key)?;
            text.map_or(Ok(()), |text| pair.1.merge(text))?;
            self.pairs.push(pair);
        }
        Ok(())
    }
}

//! An element as the tables keep it: without its key, and without room for what few elements have.

use std::sync::Arc;
use std::time::Duration;

use nft::{Data, Element, Value, Verdict};

/// What an element says besides its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    value: StoredValue,
    comment: Option<Arc<str>>,
    rare: Option<Box<Rare>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum StoredValue {
    None,
    Verdict(Verdict),
    Data(Box<Data>),
}

/// What elements of ranges, and those that expire, have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rare {
    key_end: Option<Box<Data>>,
    timeout: Option<Duration>,
}

impl Stored {
    /// The key of an element, and the rest of it.
    pub(super) fn split(element: Element) -> (Data, Self) {
        let Element { key, key_end, value, timeout, comment } = element;
        let value = match value {
            Value::None => StoredValue::None,
            Value::Verdict(verdict) => StoredValue::Verdict(verdict),
            Value::Data(data) => StoredValue::Data(Box::new(data)),
        };
        let is_rare = key_end.is_some() || timeout.is_some();
        (key, Self { value, comment, rare: is_rare.then(|| Box::new(Rare { key_end, timeout })) })
    }

    /// The whole element.
    pub(super) fn element(&self, key: &Data) -> Element {
        let value = match &self.value {
            StoredValue::None => Value::None,
            StoredValue::Verdict(verdict) => Value::Verdict(verdict.clone()),
            StoredValue::Data(data) => Value::Data(**data),
        };
        let rare = self.rare.as_deref();
        Element {
            key: *key,
            key_end: rare.and_then(|rare| rare.key_end.clone()),
            value,
            timeout: rare.and_then(|rare| rare.timeout),
            comment: self.comment.clone(),
        }
    }

    /// The verdict, if that is all.
    pub(super) fn bare_verdict(&self) -> Option<&Verdict> {
        self.verdict().filter(|_| self.comment.is_none() && self.rare.is_none())
    }

    /// The chain that the element leads to.
    pub(super) fn target(&self) -> Option<&Arc<str>> {
        self.verdict().and_then(Verdict::chain)
    }

    fn verdict(&self) -> Option<&Verdict> {
        match &self.value {
            StoredValue::Verdict(verdict) => Some(verdict),
            StoredValue::None | StoredValue::Data(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost() {
        let key = Data::from(7_u32);
        let plain = Element::new(key);
        let all = Element {
            key_end: Some(Box::new(Data::from(9_u32))),
            value: Value::Data(Data::from(8_u16)),
            timeout: Some(Duration::from_secs(3)),
            comment: Some("a/b".into()),
            ..plain.clone()
        };
        let leads = Element::mapping(key, Value::Verdict(Verdict::Goto("lb-3".into())));
        for element in [plain, all, leads] {
            let (key, stored) = Stored::split(element.clone());
            assert_eq!(stored.element(&key), element);
        }
    }
}

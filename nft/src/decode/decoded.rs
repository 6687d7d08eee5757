//! The values that decoding gives, and a reader for the attributes of one object.

use std::sync::Arc;
use std::time::Duration;

use crate::data::{Data, Value, Verdict};
use crate::object::{Chain, Element, Flowtable, RuleDump, Set};
use crate::packed::ValueRef;
use crate::table::{Family, Table, TableName, TableState};
use crate::wire::{Attr, Attrs};

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A table.
    Table {
        /// Its name and its comment.
        table: Table,
        /// Its flags, its owner and the number of its objects.
        state: TableState,
    },
    /// A chain.
    Chain {
        /// The family and name of its table.
        table: TableName,
        /// Its name, its hook and its comment.
        chain: Chain,
    },
    /// A rule.
    Rule {
        /// The family and name of its table.
        table: TableName,
        /// Its chain's name.
        chain: Arc<str>,
        /// Its expressions and its comment.
        rule: RuleDump,
        /// The count of its first counter; `None` without a counter.
        count: Option<Count>,
    },
    /// A set or map, without its elements.
    Set {
        /// The family and name of its table.
        table: TableName,
        /// Its name, types, flags and limits.
        set: Set,
    },
    /// Some elements of a set. The dump of a large set has several messages of this kind.
    Elements {
        /// The set's table.
        table: TableName,
        /// The set's name.
        set: Arc<str>,
        /// The elements of this message; [`super::pair`] makes [`crate::Element`]s of a set's whole list.
        elements: Vec<RawElement>,
    },
    /// A flowtable.
    Flowtable {
        /// The family and name of its table.
        table: TableName,
        /// Its name, its priority and its interfaces.
        flowtable: Flowtable,
    },
    /// The generation number of the ruleset.
    Generation(u32),
    /// A message of another type, or about a table of a family that this crate does not know.
    Other(u16),
}

/// The packets and bytes that a counter has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An element as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawElement {
    /// Its key, value, time-out and comment. The time-out is the configured one; `None` when the set's default applies.
    pub element: Element,
    /// Whether it is the end of a range, in an interval set of one field: its key is the first key behind the range.
    pub interval_end: bool,
    /// The time that the element still has to live; `None` when it does not expire.
    pub expires: Option<Duration>,
    /// The count of its counter; `None` without a counter.
    pub count: Option<Count>,
}

/// A message or object that this crate cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object} {}: {attribute} is missing, malformed or unknown", name.as_deref().unwrap_or("of unknown name"))]
pub struct DecodeError {
    /// The kind of object: `message`, `table`, `chain`, `rule`, `set`, `elements`, `flowtable`, `object` or `generation`.
    pub object: &'static str,
    /// The object's name if it has one; for a rule the name of its chain, for an element the name of its set.
    pub name: Option<Arc<str>>,
    /// The attribute that is missing, malformed or unknown.
    pub attribute: &'static str,
}

/// The attributes of one object, with its kind and name for errors.
#[derive(Clone, Copy)]
pub(super) struct ObjectAttrs<'a> {
    pub(super) attrs: Attrs<'a>,
    pub(super) object: &'static str,
    pub(super) name: Option<&'a str>,
}

impl<'a> ObjectAttrs<'a> {
    /// The attributes of an object whose name is in the attribute number `name`.
    pub(super) fn new(object: &'static str, attrs: Attrs<'a>, name: u16) -> Self {
        Self { attrs, object, name: attrs.find(name).and_then(|attr| attr.str()) }
    }

    pub(super) fn error(&self, attribute: &'static str) -> DecodeError {
        DecodeError { object: self.object, name: self.name.map(Arc::from), attribute }
    }

    pub(super) fn find(&self, kind: u16) -> Option<Attr<'a>> {
        self.attrs.find(kind)
    }

    /// What `read` gives for an attribute that every object of this kind has; an error if the attribute is missing or `read` gives `None`.
    pub(super) fn need<T>(
        &self,
        kind: u16,
        attribute: &'static str,
        read: impl FnOnce(Attr<'a>) -> Option<T>,
    ) -> Result<T, DecodeError> {
        self.find(kind).and_then(read).ok_or_else(|| self.error(attribute))
    }

    /// The name of the object.
    pub(super) fn name(&self) -> Result<Arc<str>, DecodeError> {
        self.name.map(Arc::from).ok_or_else(|| self.error("name"))
    }

    /// The table that the object lives in.
    pub(super) fn table(&self, family: Family, kind: u16) -> Result<TableName, DecodeError> {
        Ok(TableName::new(family, self.need(kind, "table", |attr| attr.str())?))
    }

    /// The number in an attribute, 0 when the attribute is absent or too short.
    pub(super) fn number(&self, kind: u16) -> u32 {
        self.find(kind).and_then(|attr| attr.u32()).unwrap_or(0)
    }

    /// The payload of an attribute, empty when it is absent.
    pub(super) fn bytes(&self, kind: u16) -> &'a [u8] {
        self.find(kind).map_or(&[], |attr| attr.payload)
    }
}

/// The bytes or the verdict in a nested attribute.
pub(super) fn value(attr: Attr<'_>) -> Option<Value> {
    value_ref(attr).map(ValueRef::value)
}

/// As [`value`], without a copy.
pub(super) fn value_ref(attr: Attr<'_>) -> Option<ValueRef<'_>> {
    const VALUE: u16 = 1;
    const VERDICT: u16 = 2;
    let attrs = attr.nested();
    match attrs.find(VALUE) {
        Some(bytes) => data_ref(bytes.payload).map(ValueRef::Data),
        None => verdict_ref(attrs.find(VERDICT)?),
    }
}

/// The given bytes; `None` when they do not fit into [`Data`].
fn data_ref(bytes: &[u8]) -> Option<&[u8]> {
    (bytes.len() <= Data::MAX_LEN).then_some(bytes)
}

pub(super) fn verdict(attr: Attr<'_>) -> Option<Verdict> {
    match verdict_ref(attr)?.value() {
        Value::Verdict(verdict) => Some(verdict),
        Value::None | Value::Data(_) => None,
    }
}

fn verdict_ref(attr: Attr<'_>) -> Option<ValueRef<'_>> {
    const CODE: u16 = 1;
    const CHAIN: u16 = 2;
    let attrs = attr.nested();
    let code = attrs.find(CODE)?.u32()?;
    let chain = match code.cast_signed() {
        0 | 1 | -5 => None,
        -3 | -4 => Some(attrs.find(CHAIN)?.str()?),
        _ => return None,
    };
    Some(ValueRef::Verdict(code, chain))
}

/// The text of an attribute as a name that outlives the message.
pub(super) fn name(attr: Option<Attr<'_>>) -> Option<Arc<str>> {
    attr?.str().map(Arc::from)
}

pub(super) fn milliseconds(attr: Option<Attr<'_>>) -> Option<Duration> {
    attr?.u64().map(Duration::from_millis)
}

//! Writes declarations of sets and maps.

use std::borrow::Borrow;
use std::fmt;

use crate::datatype::DataType;
use crate::field::Field;
use crate::object::{Element, Set, SetFlags, Types, ValueType};
use crate::text::element::ElementText;
use crate::text::words::{duration, quoted};

/// Writes a set with its elements, as nft lists it.
pub(crate) fn write<E: Borrow<Element>>(
    f: &mut fmt::Formatter<'_>,
    set: &Set,
    mut elements: impl Iterator<Item = E>,
) -> fmt::Result {
    writeln!(f, "\t{} {} {{", keyword(set), set.name)?;
    properties(set).iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
    if let Some(first) = elements.next() {
        let text = ElementText::of(set);
        write!(f, "\t\telements = {{ {}", text.element(first.borrow()))?;
        elements.try_for_each(|element| write!(f, ",\n\t\t\t     {}", text.element(element.borrow())))?;
        f.write_str(" }\n")?;
    }
    f.write_str("\t}\n")
}

pub(super) const fn keyword(set: &Set) -> &'static str {
    if set.value.is_some() { "map" } else { "set" }
}

/// The lines of a set's declaration.
pub(super) fn properties(set: &Set) -> Vec<String> {
    let mut lines = vec![types(set)];
    // nft does not list the size of a set that cannot grow.
    lines.extend(set.size.filter(|_| !set.flags.constant).map(|size| format!("size {size}")));
    let flags = flags(set.flags);
    // nft does not list the flag `timeout` by itself when the set has a default time-out.
    if !flags.is_empty() && (set.timeout.is_none() || flags != ["timeout"]) {
        lines.push(format!("flags {}", flags.join(",")));
    }
    lines.extend(set.counter.then(|| "counter".to_owned()));
    lines.extend(set.timeout.map(|timeout| format!("timeout {}", duration(timeout))));
    lines.extend(set.comment.as_deref().map(|text| format!("comment {}", quoted(text))));
    lines
}

fn flags(flags: SetFlags) -> Vec<&'static str> {
    let all = [
        (flags.constant, "constant"),
        (flags.dynamic, "dynamic"),
        (flags.interval, "interval"),
        (flags.timeout, "timeout"),
    ];
    all.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect()
}

fn types(set: &Set) -> String {
    let keyword = match set.key {
        Types::Named(_) => "type",
        Types::Of(_) => "typeof",
    };
    match &set.value {
        None => format!("{keyword} {}", set.key),
        Some(ValueType::Verdict) => format!("{keyword} {} : verdict", set.key),
        Some(ValueType::Data(value)) => format!("{keyword} {} : {value}", set.key),
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = match self {
            Self::Named(types) => types.iter().map(DataType::to_string).collect(),
            Self::Of(fields) => fields.iter().map(Field::to_string).collect(),
        };
        f.write_str(&names.join(" . "))
    }
}

//! Reads a text as Go's `sigs.k8s.io/yaml` does, from which upstream's kube-proxy has its configuration: as YAML 1.1, and only its first
//! document. JSON is YAML, too.
//!
//! Without quotes `yes`, `off` and `n` are booleans, `010` is 8, and a number without a fraction is whole however it is written
//! (`1.048576e+06`, as Helm prints it). Invariant: the values have at most [`MAX_DEPTH`] levels of blocks and as many of brackets, and
//! aliases add at most [`MAX_ALIASED`] values, so that a small malicious file cannot become a huge or deep document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Number, Value};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, StrInput, Tag, options};

use crate::config::number::whole;

/// The largest number of values that aliases may stand for in total; more than any configuration needs.
const MAX_ALIASED: usize = 1_000;
/// The largest number of nested blocks, and of nested brackets.
const MAX_DEPTH: usize = 64;

/// The first document of a text.
pub(super) struct Document {
    pub(super) value: Value,
    /// The paths of the fields that are given more than once, such as `nftables.masqueradeBit`; the last value of each counts.
    pub(super) repeated: BTreeSet<String>,
}

/// Reads the first document of a text; what follows it is not even parsed.
///
/// # Errors
/// Returns what is wrong with the text, with line and column.
pub(super) fn first_document(text: &str) -> Result<Document, String> {
    let mut options = options! { flow_nesting_limit: MAX_DEPTH, block_nesting_limit: MAX_DEPTH };
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader { parser, anchors: BTreeMap::new(), repeated: BTreeSet::new(), aliased: MAX_ALIASED };
    let value = reader.document()?;
    Ok(Document { value, repeated: reader.repeated })
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// The values that aliases can stand for.
    anchors: BTreeMap<usize, Value>,
    repeated: BTreeSet<String>,
    /// How many more values aliases may stand for.
    aliased: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        let event = self.parser.next_event().ok_or("the text ends too early")?;
        event.map(|(event, _)| event).map_err(|error| error.to_string())
    }

    fn document(&mut self) -> Result<Value, String> {
        loop {
            match self.next()? {
                Event::DocumentStart(..) => break,
                Event::StreamEnd => return Ok(Value::Null),
                _ => {}
            }
        }
        let first = self.next()?;
        let value = self.value(first, "")?;
        match self.next()? {
            Event::DocumentEnd => Ok(value),
            _ => Err("something follows the configuration".to_owned()),
        }
    }

    /// Reads the value at a path, which begins with `event`.
    fn value(&mut self, event: Event<'a>, path: &str) -> Result<Value, String> {
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, scalar(&text, style, tag.as_deref())),
            Event::SequenceStart(_, anchor, _) => (anchor, self.list(path)?),
            Event::MappingStart(_, anchor, _) => (anchor, self.object(path)?),
            Event::Alias(anchor) => return self.alias(anchor),
            _ => return Err(format!("{path:?} has no value")),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn list(&mut self, path: &str) -> Result<Value, String> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(items.into()),
                event => items.push(self.value(event, &format!("{path}[{}]", items.len()))?),
            }
        }
    }

    fn object(&mut self, path: &str) -> Result<Value, String> {
        let (mut fields, mut names) = (Map::new(), BTreeSet::new());
        loop {
            let (name, style) = match self.next()? {
                Event::MappingEnd => return Ok(fields.into()),
                Event::Scalar(name, style, ..) => (name.into_owned(), style),
                _ => return Err(format!("a field of {path:?} has a name that is not a text")),
            };
            let event = self.next()?;
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let value = self.value(event, &path)?;
            if name == "<<" && style == ScalarStyle::Plain {
                merge(&mut fields, value)?;
                continue;
            }
            if !names.insert(name.clone()) {
                self.repeated.insert(path);
            }
            fields.insert(name, value);
        }
    }

    fn alias(&mut self, anchor: usize) -> Result<Value, String> {
        let value = self.anchors.get(&anchor).ok_or("an alias stands for a value that contains the alias")?;
        let too_many = || format!("aliases stand for more than {MAX_ALIASED} values");
        self.aliased = self.aliased.checked_sub(size(value)).ok_or_else(too_many)?;
        Ok(value.clone())
    }
}

/// Adds the fields of the value of a merge key `<<`: an object, or a list of them, of which earlier ones win.
fn merge(fields: &mut Map<String, Value>, value: Value) -> Result<(), String> {
    match value {
        Value::Object(more) => fields.extend(more),
        Value::Array(list) => return list.into_iter().rev().try_for_each(|item| merge(fields, item)),
        other => return Err(format!("<< takes an object or a list of objects, not {other}")),
    }
    Ok(())
}

/// Counts a value and the values in it.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.values().map(size).sum(),
        _ => 0,
    }
}

/// Returns the value of a scalar: with a tag as the tag says, and without one a text if it has quotes.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    match tag.map(Tag::core_suffix) {
        None if style == ScalarStyle::Plain => plain(text),
        Some(Some("bool" | "float" | "int" | "null")) => plain(text),
        _ => text.into(),
    }
}

/// Returns the value of a scalar without quotes.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => true.into(),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => false.into(),
        _ => number(text).map_or_else(|| text.into(), Value::Number),
    }
}

/// Returns the number that a scalar without quotes is; `None` if it is a text.
fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || ['+', '-', '.'].contains(&first)) {
        return None;
    }
    let digits = if text.starts_with('.') { text.to_owned() } else { text.replace('_', "") };
    if let Some(number) = whole(&digits).and_then(Number::from_i128).filter(|number| !number.is_f64()) {
        return Some(number);
    }
    // This leaves out `-inf` and `+nan`, which Rust would take.
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number = digits.parse::<f64>().ok().filter(|number| is_decimal && number.is_finite())?;
    whole_of(number).map(Number::from).or_else(|| Number::from_f64(number))
}

/// Returns a floating-point number without a fraction as a whole number.
#[expect(clippy::cast_possible_truncation, reason = "it is whole and fits")]
fn whole_of(number: f64) -> Option<i64> {
    // 2^63 as a floating-point number is the first that does not fit.
    const END: f64 = 9_223_372_036_854_775_808.0;
    (number.fract() == 0.0 && (-END..END).contains(&number)).then_some(number as i64)
}

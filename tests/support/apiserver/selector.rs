//! Label and field selectors.
//!
//! Takes the selectors of a query, and returns whether an object matches. Pure. Sets (`key in (a, b)`) are refused: the proxy does not use
//! them, and the server answers 400, so that no test relies on them by mistake.

use serde_json::Value;

use super::resource::Resource;

/// One part of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Exists(String),
    Absent(String),
    Is(String, String),
    IsNot(String, String),
}

/// Label and field selector of one request; objects have to match all terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Term>,
    fields: Vec<Term>,
}

impl Selector {
    /// Reads both selectors; empty texts match everything.
    ///
    /// # Errors
    /// A term that is not understood, or a field by which this kind cannot be selected.
    pub(crate) fn parse(resource: Resource, labels: &str, fields: &str) -> Result<Self, String> {
        let labels = terms(labels)?;
        let fields = terms(fields)?;
        for term in &fields {
            let (Term::Is(field, _) | Term::IsNot(field, _)) = term else {
                return Err(format!("invalid field selector: {term:?}"));
            };
            let known = ["metadata.name", "metadata.namespace"].contains(&field.as_str());
            if !known && !resource.selectable().contains(&field.as_str()) {
                return Err(format!("field label not supported: {field}"));
            }
        }
        Ok(Self { labels, fields })
    }

    /// Whether the object matches.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"].get(key).map(text);
        // A field is always there; an unset one is empty.
        let field = |key: &str| Some(text(key.split('.').fold(object, |value, part| &value[part])));
        self.labels.iter().all(|term| term.holds(label)) && self.fields.iter().all(|term| term.holds(field))
    }
}

impl Term {
    fn holds(&self, value: impl Fn(&str) -> Option<String>) -> bool {
        match self {
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
            Self::Is(key, wanted) => value(key).is_some_and(|found| found == *wanted),
            Self::IsNot(key, unwanted) => value(key).is_none_or(|found| found != *unwanted),
        }
    }
}

fn terms(text: &str) -> Result<Vec<Term>, String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(term).collect()
}

fn term(text: &str) -> Result<Term, String> {
    let owned = |(key, value): (&str, &str)| (key.trim().to_owned(), value.trim().to_owned());
    let parts = if let Some(parts) = text.split_once("!=") {
        let (key, value) = owned(parts);
        Term::IsNot(key, value)
    } else if let Some(parts) = text.split_once("==").or_else(|| text.split_once('=')) {
        let (key, value) = owned(parts);
        Term::Is(key, value)
    } else if let Some(key) = text.strip_prefix('!') {
        Term::Absent(key.trim().to_owned())
    } else {
        Term::Exists(text.to_owned())
    };
    let (Term::Is(key, _) | Term::IsNot(key, _) | Term::Absent(key) | Term::Exists(key)) = &parts;
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    if is_key { Ok(parts) } else { Err(format!("unable to parse requirement: {text:?}")) }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

//! Decodes the text of a configuration file.
//!
//! Takes YAML or JSON. Returns the configuration, and warnings about unknown and repeated fields. The error about a wrong value names its
//! field.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::yaml::{Document, first_document};
use super::{API_VERSION, KIND, KubeProxyConfiguration};

/// Fields of this program's own that take the word `off`, which is a boolean in YAML 1.1. Helm prints it as `false`.
const WORDS: [&str; 3] = ["counters", "flowtable", "tableOwnership"];

/// A decoded file.
#[derive(Debug)]
pub struct Decoded {
    /// The configuration with defaults filled in.
    pub config: KubeProxyConfiguration,
    /// A warning for each unknown field, and for each field that is given more than once.
    pub(crate) warnings: Vec<String>,
}

/// Why a file cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The text is neither YAML nor JSON.
    #[error("not valid YAML or JSON: {0}")]
    Syntax(String),
    /// The document is of another version or kind.
    #[error("{field}: must be \"{expected}\", not {found}")]
    NotOurs {
        /// `apiVersion` or `kind`.
        field: &'static str,
        /// The required value.
        expected: &'static str,
        /// The value in the file, as JSON.
        found: Value,
    },
    /// A field has a value of the wrong type.
    #[error("{path}: {message}")]
    Field {
        /// The path of the field, such as `nftables.masqueradeBit`.
        path: String,
        /// What is wrong with its value.
        message: String,
    },
}

/// Decodes the text of a configuration file: its first document.
///
/// # Errors
/// Fails when the text is not YAML, is of another kind or version, or has a value of the wrong type. Unknown and duplicate fields cause
/// only warnings, as in upstream, so that a file for a newer release still works.
pub fn decode(text: &str) -> Result<Decoded, DecodeError> {
    let Document { value, repeated } = first_document(text).or_else(|error| {
        // Some JSON is no YAML, such as a name with more than 1,024 characters.
        let value = serde_json::from_str(text).map_err(|_| DecodeError::Syntax(error))?;
        Ok(Document { value, repeated: BTreeSet::new() })
    })?;
    let mut document = without_nulls(with_gates(value));
    expect(&document, "apiVersion", API_VERSION)?;
    expect(&document, "kind", KIND)?;
    let twice = |field| format!("a field is given twice, its last value is used: {field}");
    let mut warnings = repeated.into_iter().map(twice).collect();
    let words = WORDS.into_iter().filter(|word| document["nftables"][word] == false).collect::<Vec<_>>();
    words.into_iter().for_each(|word| document["nftables"][word] = "off".into());
    let mut config = decode_fields(&document, &mut warnings)?;
    config.fill_defaults();
    warnings.extend(config.adopt_sections());
    Ok(Decoded { config, warnings })
}

/// Replaces null by false in `featureGates`: in a map of Go, unlike in a struct, null is the zero value.
fn with_gates(mut document: Value) -> Value {
    if let Some(gates) = document.pointer_mut("/featureGates").and_then(Value::as_object_mut) {
        gates.values_mut().filter(|gate| gate.is_null()).for_each(|gate| *gate = false.into());
    }
    document
}

/// Removes fields with value null: in Kubernetes files null means "not set", and kubeadm writes many such fields.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

fn expect(document: &Value, field: &'static str, expected: &'static str) -> Result<(), DecodeError> {
    let found = &document[field];
    if found.as_str() == Some(expected) {
        return Ok(());
    }
    Err(DecodeError::NotOurs { field, expected, found: found.clone() })
}

fn decode_fields(document: &Value, warnings: &mut Vec<String>) -> Result<KubeProxyConfiguration, DecodeError> {
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(document, &mut track);
    let mut unknown = |path: serde_ignored::Path<'_>| {
        warnings.push(format!("unknown field {path} in the configuration file is ignored"));
    };
    let decoded = KubeProxyConfiguration::deserialize(serde_ignored::Deserializer::new(tracked, &mut unknown));
    decoded.map_err(|error| {
        let error = error.to_string();
        // Such as a host name `n`, which is a boolean in YAML 1.1.
        let remedy = if error.ends_with("expected a string") { "; put it in quotes" } else { "" };
        DecodeError::Field { path: track.path().to_string(), message: format!("{error}{remedy}") }
    })
}

//! Decodes the text of a configuration file.
//!
//! Takes YAML or JSON. Returns the configuration, and warnings about unknown and repeated fields. The error about a wrong value names its
//! field.

use serde::Deserialize;
use serde::de::DeserializeSeed as _;
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use super::repeated::Noting;
use super::{API_VERSION, KIND, KubeProxyConfiguration};

/// The largest number of YAML events that aliases may add. It is more than any configuration needs, and prevents a small malicious file
/// from expanding to a huge document.
const MAX_ALIASED_EVENTS: usize = 10_000;

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

/// Decodes the text of a configuration file.
///
/// # Errors
/// Fails when the text is not YAML, is of another kind or version, or has a value of the wrong type. Unknown and duplicate fields cause
/// only warnings, as in upstream, so that a file for a newer release still works.
pub fn decode(text: &str) -> Result<Decoded, DecodeError> {
    let mut warnings = Vec::new();
    let document = without_nulls(parse(text, &mut warnings)?);
    expect(&document, "apiVersion", API_VERSION)?;
    expect(&document, "kind", KIND)?;
    let mut config = decode_fields(&document, &mut warnings)?;
    config.fill_defaults();
    Ok(Decoded { config, warnings })
}

/// Parses the text. If that fails, parses it again with duplicate keys allowed and adds a warning for each; the last of several equal keys
/// counts.
fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Value, DecodeError> {
    let options = |policy| {
        serde_saphyr::options! {
            duplicate_keys: policy,
            strict_booleans: true,
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED_EVENTS },
        }
    };
    serde_saphyr::from_str_with_options(text, options(DuplicateKeyPolicy::Error)).or_else(|strict| {
        let mut repeated = Vec::new();
        let noting = Noting { path: String::new(), repeated: &mut repeated };
        let policy = options(DuplicateKeyPolicy::LastWins);
        let read = |deserializer: serde_saphyr::Deserializer<'_, '_>| noting.deserialize(deserializer);
        let value = serde_saphyr::with_deserializer_from_str_with_options(text, policy, read)
            .map_err(|error| DecodeError::Syntax(error.to_string()))?;
        if repeated.is_empty() {
            // The library drops repeated keys that are numbers, and its error names only the first key.
            repeated.push(first_line(&strict.to_string()).to_owned());
        }
        warnings
            .extend(repeated.iter().map(|field| format!("a field is given twice, its last value is used: {field}")));
        Ok(value)
    })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
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
    decoded.map_err(|error| DecodeError::Field { path: track.path().to_string(), message: error.to_string() })
}

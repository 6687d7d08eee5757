//! `logging`: the part of the file that every Kubernetes component shares.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::{fill_duration, fill_text};
use crate::config::duration::GoDuration;

/// The `logging` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoggingSection {
    /// `text` or `json`.
    pub(crate) format: String,
    /// How often upstream flushes its log buffer; 0 stands for 5 s. Without effect here: logs are not buffered.
    pub(crate) flush_frequency: GoDuration,
    /// 0 and more; more is more verbose.
    pub(crate) verbosity: u32,
    /// Verbosity of single source files of upstream.
    pub(crate) vmodule: Vec<VmoduleItem>,
    /// Options of each format.
    pub(crate) options: LoggingOptions,
}

/// An item of `vmodule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VmoduleItem {
    /// A pattern of Go file names.
    pub(crate) file_pattern: String,
    /// The verbosity of these files.
    pub(crate) verbosity: u32,
}

/// The `logging.options` section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoggingOptions {
    /// Options of format `text`.
    pub(crate) text: FormatOptions,
    /// Options of format `json`.
    pub(crate) json: FormatOptions,
}

/// Options of a log format; all need feature gate LoggingAlphaOptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FormatOptions {
    /// Whether info messages go to standard output.
    pub(crate) split_stream: bool,
    /// How much of them is buffered.
    pub(crate) info_buffer_size: Quantity,
}

impl Default for LoggingSection {
    fn default() -> Self {
        let mut section = Self {
            format: String::new(),
            flush_frequency: GoDuration::ZERO,
            verbosity: 0,
            vmodule: Vec::new(),
            options: LoggingOptions::default(),
        };
        section.fill_defaults();
        section
    }
}

impl LoggingSection {
    pub(super) fn fill_defaults(&mut self) {
        fill_text(&mut self.format, "text");
        fill_duration(&mut self.flush_frequency, GoDuration::from_secs(5));
    }
}

/// A Kubernetes quantity such as `0`, `64Ki` or `1M`, kept as written. A bare number in a file is taken as its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Quantity(String);

impl Quantity {
    const SUFFIXES: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

    /// Whether the amount is nothing, in whatever unit.
    #[must_use]
    pub(crate) fn is_zero(&self) -> bool {
        !self.0.bytes().any(|byte| matches!(byte, b'1'..=b'9'))
    }

    pub(in crate::config) fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
        (is_number && Self::SUFFIXES.contains(&suffix)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as \"64Ki\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_recognised() {
        for (text, zero) in
            [("0", true), ("0Ki", true), ("0.00", true), ("64Ki", false), ("1.5M", false), ("+1", false)]
        {
            assert_eq!(Quantity::parse(text).map(|q| q.is_zero()), Some(zero), "{text}");
        }
        for text in ["", "Ki", "1.2.3", "1 Ki", "1kb", "ten"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }
}

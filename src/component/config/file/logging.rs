//! The section `logging` of the configuration file, which k8s.io/component-base defines for all components.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::{fill_duration, fill_text};
use crate::config::duration::GoDuration;

/// The `logging` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoggingSection {
    /// The log format: `text` or `json`.
    pub(crate) format: String,
    /// The longest time that informational records stay in their buffer; 0 stands for 5 s. It has no effect without a buffer.
    pub(crate) flush_frequency: GoDuration,
    /// The log verbosity: 0 or more; a higher number logs more.
    pub(crate) verbosity: u32,
    /// Higher verbosity of single source files. Works with format `text` only.
    pub(crate) vmodule: Vec<VmoduleItem>,
    pub(crate) options: LoggingOptions,
}

/// An item of `vmodule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VmoduleItem {
    /// A pattern of file names without folder and ending.
    pub(crate) file_pattern: String,
    /// The verbosity of the files that match the pattern.
    pub(crate) verbosity: u32,
}

/// The `logging.options` section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoggingOptions {
    pub(crate) text: FormatOptions,
    pub(crate) json: FormatOptions,
}

/// Options of a log format; all need feature gate LoggingAlphaOptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FormatOptions {
    /// Whether informational records go to standard output, and only the others to standard error. In format `json` warnings are
    /// informational records too.
    pub(crate) split_stream: bool,
    /// The size in bytes of the buffer for informational records, if `split_stream` is set.
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

/// A Kubernetes quantity such as `0`, `64Ki` or `1M`, stored as the text in the file. A number without quotes is stored as text, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Quantity(String);

impl Quantity {
    /// The suffixes of quantities, each with its factor.
    const SUFFIXES: [(&str, f64); 16] = [
        ("", 1.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
    ];
    /// The largest buffer in bytes, as in upstream. A larger amount stands for this size.
    const MOST_BYTES: f64 = 2_147_483_648.0;

    /// Returns whether the amount is zero, whatever its suffix.
    #[must_use]
    pub(crate) fn is_zero(&self) -> bool {
        !Self::parts(&self.0).0.bytes().any(|byte| matches!(byte, b'1'..=b'9'))
    }

    /// Returns the amount as the size of a buffer in bytes: rounded up, at least 0 and at most 2 GiB, as in upstream.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is whole and from 0 to 2 GiB")]
    pub(crate) fn bytes(&self) -> usize {
        self.amount().clamp(0.0, Self::MOST_BYTES) as usize
    }

    /// Returns the amount as a whole number, rounded up.
    pub(in crate::config) fn amount(&self) -> f64 {
        let (number, suffix) = Self::parts(&self.0);
        (number.parse().unwrap_or(0.0) * Self::unit(suffix).unwrap_or(1.0)).ceil()
    }

    pub(in crate::config) fn parse(text: &str) -> Option<Self> {
        let (number, suffix) = Self::parts(text.strip_prefix(['+', '-']).unwrap_or(text));
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let is_known = number.parse::<f64>().is_ok() && Self::unit(suffix).is_some();
        (is_number && is_known).then(|| Self(text.to_owned()))
    }

    /// Splits a quantity into its number and its suffix.
    fn parts(text: &str) -> (&str, &str) {
        text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()))
    }

    /// Returns the factor for a suffix: one of [`Self::SUFFIXES`], or a decimal exponent such as `e3`.
    fn unit(suffix: &str) -> Option<f64> {
        let known = Self::SUFFIXES.iter().find(|(name, _)| *name == suffix).map(|(_, unit)| *unit);
        let exponent = || suffix.strip_prefix(['e', 'E'])?.parse().ok();
        known.or_else(|| exponent().map(|exponent| 10_f64.powi(exponent)))
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
        Quantity::parse(text.trim()).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_recognised() {
        for (text, zero) in
            [("0", true), ("0Ki", true), ("0.00", true), ("0e5", true), ("64Ki", false), ("1.5M", false), ("+1", false)]
        {
            assert_eq!(Quantity::parse(text).map(|q| q.is_zero()), Some(zero), "{text}");
        }
        for text in ["", "Ki", "1.2.3", "1 Ki", "1kb", "ten", "1e", "1e3Ki", "1K", "--1"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn quantities_are_sizes_of_buffers() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("1k", 1000),
            ("64Ki", 65_536),
            ("1.5M", 1_500_000),
            ("1.", 1),
            ("1500m", 2),
            ("1e3", 1000),
            ("15E-1", 2),
            ("1e400", 1 << 31),
            ("+1", 1),
            ("-1Mi", 0),
            ("3Gi", 1 << 31),
            ("1E", 1 << 31),
        ] {
            assert_eq!(Quantity::parse(text).map(|q| q.bytes()), Some(bytes), "{text}");
        }
    }
}

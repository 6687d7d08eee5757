//! Durations as Go prints and reads them: `1h0m0s`, `10ms`, `500µs`.
//!
//! Serde reads and writes the same text, and reads a bare number as nanoseconds. Invariant: [`FromStr`] parses printed text back to the
//! same value. Parsing uses integers only, and cuts off fractions of a nanosecond.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::excerpt::quoted;

/// A signed number of nanoseconds, like Go's `time.Duration`. Negative values can be parsed, so that validation can refuse them with the
/// name of the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration {
    nanos: i64,
}

/// Why a text cannot be parsed as a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// The text does not follow the grammar.
    #[error("invalid duration {}: expected a number with a unit, such as \"30s\" or \"1h30m\"", quoted(.0))]
    Syntax(String),
    /// The value in nanoseconds does not fit into 64 bits, which hold about 292 years.
    #[error("invalid duration {}: out of range", quoted(.0))]
    Range(String),
}

/// The units, longest names first so that `ms` is not taken for `m`.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, the micro sign
    ("μs", 1_000), // U+03BC, the Greek letter
    ("ms", 1_000_000),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3600 * NANOS_PER_SECOND),
];

const NANOS_PER_SECOND: i128 = 1_000_000_000;

impl GoDuration {
    /// Zero, which stands for the default in some fields of the configuration.
    pub(crate) const ZERO: Self = Self { nanos: 0 };

    /// Makes a duration from nanoseconds.
    #[must_use]
    pub(crate) const fn from_nanos(nanos: i64) -> Self {
        Self { nanos }
    }

    /// Makes a duration from seconds. Every `i32` fits.
    #[must_use]
    pub(crate) const fn from_secs(seconds: i32) -> Self {
        // The cast and the product cannot overflow: an i32 of seconds is less than 69 years.
        Self { nanos: seconds as i64 * 1_000_000_000 }
    }

    /// Returns whether the duration is zero.
    #[must_use]
    pub(crate) const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Returns this duration as a [`Duration`]; `None` if it is negative.
    #[must_use]
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.nanos).ok().map(Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let syntax = || ParseDurationError::Syntax(text.to_owned());
        let range = || ParseDurationError::Range(text.to_owned());
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(syntax());
        }
        let mut nanos: i128 = 0;
        while !rest.is_empty() {
            let (value, after) = take_number(rest).ok_or_else(syntax)?;
            let (unit, after) = take_unit(after).ok_or_else(syntax)?;
            nanos = value.in_nanos(unit).and_then(|part| nanos.checked_add(part)).ok_or_else(range)?;
            rest = after;
        }
        i64::try_from(sign * nanos).map(Self::from_nanos).map_err(|_| range())
    }
}

/// A decimal number, kept as its digits.
struct Number<'a> {
    whole: &'a str,
    fraction: &'a str,
}

impl Number<'_> {
    /// Returns the number times `unit` in whole nanoseconds, with fractions cut off. Returns `None` if the number is too large.
    fn in_nanos(&self, unit: i128) -> Option<i128> {
        let whole: i128 = if self.whole.is_empty() { 0 } else { self.whole.parse().ok()? };
        // Digits after the 18th decimal place are worth less than a nanosecond, even if the unit is hours.
        let digits = &self.fraction[..self.fraction.len().min(18)];
        let part = if digits.is_empty() { 0 } else { unit * digits.parse::<i128>().ok()? };
        let scale = 10_i128.pow(u32::try_from(digits.len()).ok()?);
        whole.checked_mul(unit)?.checked_add(part / scale)
    }
}

/// Splits a text such as `12.5ms` into the number and the rest; returns `None` if the text does not begin with a number.
fn take_number(text: &str) -> Option<(Number<'_>, &str)> {
    let (whole, rest) = take_digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), take_digits);
    (!whole.is_empty() || !fraction.is_empty()).then_some((Number { whole, fraction }, rest))
}

fn take_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn take_unit(text: &str) -> Option<(i128, &str)> {
    UNITS.iter().find_map(|(name, nanos)| Some((*nanos, text.strip_prefix(name)?)))
}

impl fmt::Display for GoDuration {
    /// Writes the duration as Go does: in one unit if it is below a second (`1.5ms`), otherwise in hours, minutes and seconds, beginning
    /// with the largest unit that is not 0 (`1h0m0s`, `1m0s`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nanos = self.nanos.unsigned_abs();
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write_decimal(f, nanos, 1_000, "µs"),
            1_000_000..1_000_000_000 => write_decimal(f, nanos, 1_000_000, "ms"),
            _ => write_clock(f, nanos),
        }
    }
}

/// Writes `nanos` of at least a second as `1h0m0s`, `1m0s` or `1.5s`.
fn write_clock(f: &mut fmt::Formatter<'_>, nanos: u64) -> fmt::Result {
    const MINUTE: u64 = 60_000_000_000;
    let minutes = nanos / MINUTE;
    if minutes >= 60 {
        write!(f, "{}h", minutes / 60)?;
    }
    if minutes > 0 {
        write!(f, "{}m", minutes % 60)?;
    }
    write_decimal(f, nanos % MINUTE, 1_000_000_000, "s")
}

/// Writes `value / unit` without trailing zeros, and then the unit's name.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", value / unit)?;
    if !value.is_multiple_of(unit) {
        // `unit + remainder` has a leading 1 before the zeros that the decimals need.
        let decimals = (unit + value % unit).to_string();
        write!(f, ".{}", decimals[1..].trim_end_matches('0'))?;
    }
    f.write_str(name)
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor)
    }
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"30s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
        text.parse().map_err(E::custom)
    }

    // kubeadm writes `flushFrequency: 0`; Go reads a bare number as nanoseconds.
    fn visit_i64<E: de::Error>(self, nanos: i64) -> Result<GoDuration, E> {
        Ok(GoDuration::from_nanos(nanos))
    }

    fn visit_u64<E: de::Error>(self, nanos: u64) -> Result<GoDuration, E> {
        i64::try_from(nanos).map(GoDuration::from_nanos).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nanos(text: &str) -> i64 {
        text.parse::<GoDuration>().unwrap().nanos
    }

    #[test]
    fn reads_what_go_reads() {
        assert_eq!(nanos("0"), 0);
        assert_eq!(nanos("0s"), 0);
        assert_eq!(nanos("1h0m0s"), 3_600_000_000_000);
        assert_eq!(nanos("10ms"), 10_000_000);
        assert_eq!(nanos("500us"), 500_000);
        assert_eq!(nanos("500µs"), 500_000);
        assert_eq!(nanos("500μs"), 500_000);
        assert_eq!(nanos("1.5s"), 1_500_000_000);
        assert_eq!(nanos(".25m"), 15_000_000_000);
        assert_eq!(nanos("1.123456789h"), 4_044_444_440_400);
        assert_eq!(nanos("-1m30s"), -90_000_000_000);
        assert_eq!(nanos("+5ns"), 5);
        assert_eq!(nanos("-9223372036854775808ns"), i64::MIN);
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in ["", "-", "30", "s", "1.s.", "1 s", "3d", "1h-5m", ".s", " 1s"] {
            assert_eq!(text.parse::<GoDuration>(), Err(ParseDurationError::Syntax(text.to_owned())), "{text:?}");
        }
        for text in ["2562048h", "9223372036854775808ns", &format!("{}h", "9".repeat(60))] {
            assert_eq!(text.parse::<GoDuration>(), Err(ParseDurationError::Range(text.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn prints_as_go_prints() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (500_000, "500µs"),
            (10_000_000, "10ms"),
            (2_200_000, "2.2ms"),
            (30_000_000_000, "30s"),
            (3_003_000_000, "3.003s"),
            (60_000_000_000, "1m0s"),
            (900_000_000_000, "15m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (86_400_000_000_000, "24h0m0s"),
            (-1_500_000_000, "-1.5s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration::from_nanos(nanos).to_string(), text);
        }
    }

    #[test]
    fn numbers_in_files_count_nanoseconds() {
        assert_eq!(serde_json::from_str::<GoDuration>("5000000000").unwrap(), GoDuration::from_secs(5));
        assert_eq!(serde_json::from_str::<GoDuration>("\"5s\"").unwrap(), GoDuration::from_secs(5));
        assert!(serde_json::from_str::<GoDuration>("true").is_err());
    }

    #[test]
    fn negative_lengths_have_no_std_form() {
        assert_eq!(GoDuration::from_nanos(-1).to_std(), None);
        assert_eq!(GoDuration::from_secs(2).to_std(), Some(Duration::from_secs(2)));
    }

    proptest! {
        #[test]
        fn printing_and_reading_agree(nanos in any::<i64>()) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
        }

        #[test]
        fn reading_never_panics(text in "[-+]?[0-9.hmsnuµ]{0,60}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}

//! The types of flags: how a value is parsed, which field it sets, and how Go prints it.
//!
//! Takes the values of a flag and sets one field of the configuration. Invariant: in a configuration with its defaults, [`Field::set`] with
//! the text that [`Field::show`] prints gives the same value, once the brackets around a list are removed.

use crate::addresses::{parse_ip, parse_socket};
use crate::config::duration::GoDuration;
use crate::config::file::{
    Counters, Flowtable, KubeProxyConfiguration, Quantity, RulesetLayout, Scheduler, SchedulerHash, TableOwnership,
    VmoduleItem,
};
use crate::config::number::whole;

/// Borrows one field of the configuration.
type Place<T> = fn(&mut KubeProxyConfiguration) -> &mut T;

/// The field that a flag sets, by the Go type of the flag's value.
#[derive(Clone, Copy)]
pub(super) enum Field {
    /// Any text.
    Text(Place<String>),
    /// An IP, with or without a port; empty means that the flag was not given.
    Address(Place<String>),
    /// `true` or `false`.
    Bool(Place<bool>),
    /// A whole number, as Go's source has it.
    Int(Place<i32>),
    /// A log level.
    Level(Place<u32>),
    /// A number.
    Float(Place<f32>),
    /// A Go duration.
    Duration(Place<GoDuration>),
    /// A comma-separated list, in which an item may have quotes; if the flag is repeated, the lists are joined.
    List(Place<Vec<String>>),
    /// A Kubernetes quantity.
    Quantity(Place<Quantity>),
    /// `maps` or `chains`.
    Layout(Place<RulesetLayout>),
    /// `off`, `services` or `endpoints`.
    Counts(Place<Counters>),
    /// `random`, `source-hash` or `maglev`; empty when it is not set.
    Picks(Place<Scheduler>),
    /// `source` or `source-and-port`.
    Hashes(Place<SchedulerHash>),
    /// `off`, `auto`, or names of interfaces.
    Interfaces(Place<Flowtable>),
    /// `off` or `auto`.
    Ownership(Place<TableOwnership>),
    /// `name=bool` pairs; if the flag is repeated, the pairs are merged.
    Gates,
    /// `pattern=level` pairs, which are put before the file's pairs.
    Vmodule,
}

impl Field {
    /// Sets the field from the values of a flag, which are in the order in which they were given. Of several values the last one counts,
    /// except where the type joins them. Without values, the field stays as it is.
    ///
    /// # Errors
    /// A text that tells which values are valid.
    pub(super) fn set(self, config: &mut KubeProxyConfiguration, values: &[String]) -> Result<(), String> {
        let Some(last) = values.last() else { return Ok(()) };
        match self {
            Self::Text(place) => place(config).clone_from(last),
            Self::Address(_) if last.is_empty() => {}
            Self::Address(place) => *place(config) = address(last)?,
            Self::Bool(place) => *place(config) = go_bool(last)?,
            Self::Int(place) => *place(config) = go_int(last)?,
            Self::Level(place) => *place(config) = parsed(last)?,
            Self::Float(place) => *place(config) = parsed(&last.replace('_', ""))?,
            Self::Duration(place) => *place(config) = last.parse().map_err(|error| format!("{error}"))?,
            Self::List(place) => *place(config) = values.iter().flat_map(|text| words(text)).collect(),
            Self::Quantity(place) => {
                *place(config) = Quantity::parse(last).ok_or("expected a quantity such as 64Ki")?;
            }
            Self::Layout(place) => *place(config) = parsed(last)?,
            Self::Counts(place) => *place(config) = parsed(last)?,
            Self::Picks(place) => *place(config) = parsed(last)?,
            Self::Hashes(place) => *place(config) = parsed(last)?,
            Self::Ownership(place) => *place(config) = parsed(last)?,
            Self::Interfaces(place) => *place(config) = Flowtable::from(last.clone()),
            Self::Gates => config.feature_gates.extend(pairs(values, go_bool)?),
            Self::Vmodule => {
                let items = pairs(values, parsed)?.into_iter();
                let items = items.map(|(file_pattern, verbosity)| VmoduleItem { file_pattern, verbosity });
                config.logging.vmodule.splice(0..0, items);
            }
        }
        Ok(())
    }

    /// The field's value as Go prints it.
    pub(super) fn show(self, config: &mut KubeProxyConfiguration) -> String {
        match self {
            Self::Text(place) | Self::Address(place) => place(config).clone(),
            Self::Bool(place) => place(config).to_string(),
            Self::Int(place) => place(config).to_string(),
            Self::Level(place) => place(config).to_string(),
            Self::Float(place) => place(config).to_string(),
            Self::Duration(place) => place(config).to_string(),
            Self::List(place) => format!("[{}]", place(config).join(",")),
            Self::Quantity(place) => place(config).to_string(),
            Self::Layout(place) => place(config).to_string(),
            Self::Counts(place) => place(config).to_string(),
            Self::Picks(place) => place(config).to_string(),
            Self::Hashes(place) => place(config).to_string(),
            Self::Ownership(place) => place(config).to_string(),
            Self::Interfaces(place) => place(config).to_string(),
            Self::Gates => joined(config.feature_gates.iter()),
            Self::Vmodule => joined(config.logging.vmodule.iter().map(|item| (&item.file_pattern, &item.verbosity))),
        }
    }

    /// Go's name of the type, or the words that the flag accepts. A `bool` flag may be given without a value.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Address(_) => "ipport",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int32",
            Self::Level(_) => "level",
            Self::Float(_) => "float32",
            Self::Duration(_) => "duration",
            Self::List(_) => "strings",
            Self::Quantity(_) => "quantity",
            Self::Layout(_) => "maps|chains",
            Self::Counts(_) => "off|services|endpoints",
            Self::Picks(_) => "random|source-hash|maglev",
            Self::Hashes(_) => "source|source-and-port",
            Self::Interfaces(_) => "off|auto|INTERFACES",
            Self::Ownership(_) => "off|auto",
            Self::Gates => "mapStringBool",
            Self::Vmodule => "pattern=N,...",
        }
    }
}

/// Parses the words that Go accepts as a boolean.
pub(crate) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Parses a whole number as Go does: also `0x10`, `010` as 8, and `1_000`.
pub(super) fn go_int(text: &str) -> Result<i32, String> {
    let number = whole(text).ok_or("expected a whole number such as 10, 0x10 or 1_000")?;
    i32::try_from(number).map_err(|_| format!("expected a number from {} to {}", i32::MIN, i32::MAX))
}

fn parsed<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn address(text: &str) -> Result<String, String> {
    let fits = parse_ip(text).is_some() || parse_socket(text).is_some();
    fits.then(|| text.to_owned()).ok_or_else(|| "expected an IP or IP:port".to_owned())
}

/// Splits a comma-separated list, and takes the quotes away that an item may have. An empty text is an empty list, as in Go, and not a list
/// of one empty word.
fn words(text: &str) -> Vec<String> {
    let bare = |word: &str| word.strip_prefix('"').and_then(|word| word.strip_suffix('"')).unwrap_or(word).to_owned();
    if text.is_empty() { Vec::new() } else { text.split(',').map(bare).collect() }
}

fn pairs<T>(values: &[String], parse: fn(&str) -> Result<T, String>) -> Result<Vec<(String, T)>, String> {
    let words = values.iter().flat_map(|text| text.split(',')).map(str::trim).filter(|word| !word.is_empty());
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("expected name=value, not {word:?}"))?;
        let value = parse(value.trim()).map_err(|error| format!("{name}: {error}"))?;
        Ok((name.trim().to_owned(), value))
    };
    words.map(pair).collect()
}

fn joined<K: std::fmt::Display, V: std::fmt::Display>(pairs: impl Iterator<Item = (K, V)>) -> String {
    pairs.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

//! `nftables.flowtable`: which interfaces take part in the fast path of established connections. A field of our own.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `off`, `auto`, or names of interfaces with commas between them. Names are judged with the other rules of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Flowtable {
    /// There is no fast path.
    #[default]
    Off,
    /// Every interface of the node but loopback, also those that come later.
    Auto,
    /// The interfaces of these names, as far as they exist.
    Interfaces(Vec<String>),
}

impl Flowtable {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl From<String> for Flowtable {
    fn from(text: String) -> Self {
        match text.as_str() {
            "" | "off" => Self::Off,
            "auto" => Self::Auto,
            names => Self::Interfaces(names.split(',').map(str::to_owned).collect()),
        }
    }
}

impl From<Flowtable> for String {
    fn from(flowtable: Flowtable) -> Self {
        flowtable.to_string()
    }
}

impl fmt::Display for Flowtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Interfaces(names) => f.write_str(&names.join(",")),
        }
    }
}

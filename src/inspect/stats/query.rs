//! Paths and query strings of URLs: words in percent-encoding, and the parameters of the list of Services.
//!
//! Pure. Invariant: a word that is encoded and decoded is the same word.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::tables::State;

/// All but letters, digits and `-._~`.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A word for a path or a query: all but letters, digits and `-._~` in percent-encoding.
pub(super) fn encoded(word: &str) -> String {
    utf8_percent_encode(word, &ENCODED).to_string()
}

/// The word that an encoded one stands for. What is no valid encoding stays as it is; bytes that are not UTF-8 become U+FFFD.
pub(super) fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The parameters of a query, decoded; a plus sign is a space, as forms send it. Values are without spaces at both ends.
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(&name.replace('+', " ")), decoded(&value.replace('+', " ")).trim().to_owned())
    })
}

/// The value of a parameter; empty when it is missing.
pub(super) fn parameter(query: &str, name: &str) -> String {
    parameters(query).find(|(its, _)| its == name).map(|(_, value)| value).unwrap_or_default()
}

/// What the list of Services is ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// The name, from A to Z.
    #[default]
    Name,
    /// The state, the worst first.
    State,
    /// The number of endpoints, the fewest first.
    Endpoints,
    /// Open connections, the most first.
    Open,
    /// New connections a second, the most first.
    New,
    /// Bytes a second, the most first.
    Bytes,
}

impl Order {
    /// All orders with their words in the query and on the page.
    pub(super) const ALL: [(Self, &'static str, &'static str); 6] = [
        (Self::Name, "name", "Service"),
        (Self::State, "state", "State"),
        (Self::Endpoints, "endpoints", "Endpoints"),
        (Self::Open, "open", "Open"),
        (Self::New, "new", "New/s"),
        (Self::Bytes, "bytes", "Bytes/s"),
    ];

    pub(super) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(order, _, _)| *order == self).map_or("", |(_, word, _)| word)
    }
}

/// The states by which the list can be filtered, with their words, the worst first; `None` is a state that is not known.
pub(super) const STATES: [(Option<State>, &str); 5] = [
    (Some(State::Quarantined), "quarantined"),
    (None, "unknown"),
    (Some(State::Dropped), "dropped"),
    (Some(State::Refused), "refused"),
    (Some(State::Served), "served"),
];

/// What the list of Services shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListQuery {
    /// Only Services with this in their name or in one of their frontends, or with this endpoint.
    pub(super) search: String,
    /// Only Services with a frontend in this state, as a word of [`STATES`].
    pub(super) state: Option<&'static str>,
    pub(super) order: Order,
    pub(super) reversed: bool,
    /// The number of pages before this one.
    pub(super) page: usize,
}

impl ListQuery {
    /// Reads a query; what it does not know has no effect.
    pub(super) fn parse(query: &str) -> Self {
        let mut list = Self::default();
        for (name, value) in parameters(query) {
            match name.as_str() {
                "q" => list.search = value,
                "state" => list.state = STATES.iter().map(|(_, word)| *word).find(|word| *word == value),
                "sort" => {
                    let order = Order::ALL.iter().find(|(_, word, _)| *word == value);
                    list.order = order.map_or_else(Order::default, |(order, _, _)| *order);
                }
                "reverse" => list.reversed = value == "1",
                "page" => list.page = value.parse::<usize>().map_or(0, |page| page.saturating_sub(1)),
                _ => {}
            }
        }
        list
    }

    /// The path and query of the page with this list.
    pub(super) fn address(&self) -> String {
        let mut parts = Vec::new();
        if !self.search.is_empty() {
            parts.push(format!("q={}", encoded(&self.search)));
        }
        parts.extend(self.state.map(|state| format!("state={state}")));
        if self.order != Order::default() {
            parts.push(format!("sort={}", self.order.word()));
        }
        parts.extend(self.reversed.then(|| "reverse=1".to_owned()));
        if self.page > 0 {
            parts.push(format!("page={}", self.page + 1));
        }
        if parts.is_empty() { "/".to_owned() } else { format!("/?{}", parts.join("&")) }
    }
}

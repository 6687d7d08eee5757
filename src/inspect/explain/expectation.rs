//! The verdict that a user expects of a packet (`--expect`).

use std::str::FromStr;

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::{self, StrDeserializer};

use super::verdict::{Explanation, Verdict};

/// A verdict that a user expects, and the Service that the packet has to be for, if that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expectation {
    verdict: Verdict,
    service: Option<String>,
}

impl Expectation {
    /// Whether an explanation has this verdict. A Service may be given with or without the name of its port.
    pub(super) fn is_met(&self, explanation: &Explanation) -> bool {
        let is_of = |wanted: &String| {
            let rest = explanation.service.as_deref().and_then(|service| service.strip_prefix(wanted.as_str()));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        explanation.verdict == self.verdict && self.service.as_ref().is_none_or(is_of)
    }
}

impl FromStr for Expectation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (word, service) = text.split_once(':').map_or((text, None), |(word, service)| (word, Some(service)));
        let word: StrDeserializer<'_, value::Error> = word.into_deserializer();
        let verdict = Verdict::deserialize(word)
            .map_err(|_| "expected translated, partly, refused, dropped, passed, proxied or unknown")?;
        if service.is_some_and(|service| !service.contains('/')) {
            return Err("expected NAMESPACE/NAME or NAMESPACE/NAME:PORT behind the colon");
        }
        Ok(Self { verdict, service: service.map(str::to_owned) })
    }
}

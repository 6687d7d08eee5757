//! Remembers which Services need more elements than the limit allows. They are left out, so that they do not delay the rules of
//! all other Services.
//!
//! The size of a Service is counted before its rules and elements are made, so a change of a Service over the limit costs little. A Service
//! over the limit has nothing in the tables, whatever it had before.

use std::collections::BTreeMap;
use std::fmt;

use rules::endpoints::Gathered;
use rules::endpoints::size::sizes;
use rules::model::ObjectName;
use rules::ruleset::{Balancing, Layout};

/// A Service that is over the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oversized {
    /// The Service that is left out.
    pub service: ObjectName,
    /// About how many elements its rules need.
    pub size: u64,
    /// How many elements a Service may have.
    pub limit: u64,
}

impl fmt::Display for Oversized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, limit, .. } = self;
        write!(
            f,
            "it takes about {size} elements, and nftables.serviceElementsLimit (--service-elements-limit) is {limit}; give it fewer \
             ports, addresses or endpoints, or raise the limit"
        )
    }
}

/// Returns about how many elements the rules of a Service need.
pub(super) fn size(gathered: &Gathered<'_>, layout: Layout, balancing: Balancing) -> u64 {
    sizes(gathered).iter().fold(0, |sum: u64, port| sum.saturating_add(layout.weight(balancing, port)))
}

/// The limit, and the Services that are over it.
#[derive(Debug)]
pub(super) struct Budget {
    /// In elements; `u64::MAX` for no limit.
    limit: u64,
    over: BTreeMap<ObjectName, u64>,
    news: Vec<Oversized>,
}

impl Budget {
    /// Makes a budget with this limit of elements for each Service.
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, over: BTreeMap::new(), news: Vec::new() }
    }

    /// Returns how many elements a Service may have.
    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Notes the size of a Service, and thereby whether it is over the limit.
    pub(super) fn note(&mut self, name: &ObjectName, size: u64) {
        if size <= self.limit {
            self.over.remove(name);
        } else if self.over.insert(name.clone(), size).is_none() {
            self.news.push(Oversized { service: name.clone(), size, limit: self.limit });
        }
    }

    /// Returns the names of the Services that are over the limit.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.over.keys()
    }

    /// Returns the Services that are over the limit, with their sizes, in order of name.
    pub(super) fn all(&self) -> impl Iterator<Item = Oversized> {
        let limit = self.limit;
        self.over.iter().map(move |(service, size)| Oversized { service: service.clone(), size: *size, limit })
    }

    /// Returns the Services that went over the limit since the last call.
    pub(super) fn take_news(&mut self) -> Vec<Oversized> {
        std::mem::take(&mut self.news)
    }
}

//! Tables together with what is in them: the values behind a listing.
//!
//! Built by whoever wants a ruleset, or put together from a dump of the kernel. [`std::fmt::Display`] (in `text`) writes them as
//! `nft --stateless list ruleset` of nft 1.0.6 does.

use std::sync::Arc;

use crate::object::{Chain, Element, Flowtable, Rule, Set, Table};

/// A set and its elements.
pub type SetContent = (Arc<Set>, Vec<Element>);

/// A table with all that is in it, in the order of the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableContent {
    /// The table.
    pub table: Table,
    /// Sets and maps. An anonymous one is written in the rule that refers to it and nowhere else.
    pub sets: Vec<SetContent>,
    /// Flowtables.
    pub flowtables: Vec<Flowtable>,
    /// Chains and their rules.
    pub chains: Vec<(Chain, Vec<Rule>)>,
}

impl TableContent {
    /// A table with nothing in it.
    #[must_use]
    pub fn new(table: Table) -> Self {
        Self { table, sets: Vec::new(), flowtables: Vec::new(), chains: Vec::new() }
    }
}

/// Several tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// The tables, in the order of the listing.
    pub tables: Vec<TableContent>,
}

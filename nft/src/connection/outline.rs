//! Reads the names of chains and the jumps of rules in a table that other programs fill, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Connection, ReadError};
use crate::decode::{self, RuleOutline};
use crate::table::TableName;
use crate::wire::kind;

/// The chains of a table, and the jumps of its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOutline {
    /// The chains by name, and whether each is a base chain.
    pub chains: BTreeMap<Arc<str>, bool>,
    /// The rules, chain by chain, in their order.
    pub rules: Vec<RuleOutline>,
}

impl Connection {
    /// The chains and jumps of a table, whatever expressions its rules have; `None` when there is no such table.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn outline(&mut self, name: &TableName) -> Result<Option<TableOutline>, ReadError> {
        self.undisturbed(name, |connection| connection.outline_once(name))
    }

    fn outline_once(&mut self, name: &TableName) -> Result<Option<TableOutline>, ReadError> {
        if self.read_table_object(name)?.is_none() {
            return Ok(None);
        }
        let mut outline = TableOutline::default();
        self.until_quiet(|connection| {
            connection.dump_messages(kind::GET_CHAIN, name, &[], |message| {
                let chain = decode::chain_outline(message).filter(|chain| chain.table == *name);
                outline.chains.extend(chain.map(|chain| (chain.name, chain.is_base)));
            })
        })?;
        self.dump_messages(kind::GET_RULE, name, &[&name.name], |message| {
            outline.rules.extend(decode::rule_outline(message).filter(|rule| rule.table == *name));
        })?;
        Ok(Some(outline))
    }
}

//! Changes to the ruleset, as values.
//!
//! The kernel carries out a list of commands in one transaction: see [`crate::Batch`] for the bytes and [`crate::Connection::commit`]
//! for sending them. `text` writes a command as a line of `nft -f` input.

use std::sync::Arc;

use crate::object::{Chain, Flowtable, NamedObject, Rule, Set};
use crate::packed::Elements;
use crate::table::{Table, TableName};

/// One change to the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a table unless it exists. Removes the flag `dormant` from a table that exists.
    AddTable(Table),
    /// Adds a table that only this connection can change and that stays when the connection ends, or takes over a table of this name whose
    /// owner is gone. The kernel refuses the command when the table exists and never had an owner. Kernel 6.9 and later.
    OwnTable(Table),
    /// Adds a table that only this connection can change, and that the kernel removes with its content when the connection ends. Refused
    /// with `EPERM` while another connection owns a table of this name, and with `EOPNOTSUPP` when the table exists without an owner.
    /// Kernel 5.12 and later.
    LockTable(Table),
    /// Deletes a table with its content. It must exist.
    DeleteTable(TableName),
    /// Adds a chain unless it exists.
    AddChain(TableName, Chain),
    /// Deletes a chain that no rule or element refers to.
    DeleteChain(TableName, Arc<str>),
    /// Deletes all rules of a chain.
    FlushChain(TableName, Arc<str>),
    /// Deletes the rule with a handle from a chain.
    DeleteRule(TableName, Arc<str>, u64),
    /// Appends a rule to a chain.
    AddRule(TableName, Arc<str>, Rule),
    /// Adds a set unless it exists.
    AddSet(TableName, Arc<Set>),
    /// Deletes a set that no rule refers to.
    DeleteSet(TableName, Arc<Set>),
    /// Adds a flowtable or, if it exists, adds the interfaces of this value to it. Linux before 5.8 cannot add interfaces to a flowtable
    /// that exists.
    AddFlowtable(TableName, Flowtable),
    /// Deletes a named object or a flowtable that no rule or element refers to.
    DeleteObject(TableName, NamedObject),
    /// Adds elements. The kernel refuses an element whose key exists with another value.
    AddElements(TableName, Arc<Set>, Elements),
    /// Deletes elements, which must exist.
    DeleteElements(TableName, Arc<Set>, Elements),
    /// Deletes elements, by their keys; an element that does not exist is no error. Linux 6.3 and later, and older kernels of distributions
    /// that have the change; other kernels do not know the message and refuse it with `EINVAL`.
    DestroyElements(TableName, Arc<Set>, Elements),
}

impl Command {
    /// The table that the command changes.
    #[must_use]
    pub fn table(&self) -> &TableName {
        match self {
            Self::AddTable(table) | Self::OwnTable(table) | Self::LockTable(table) => &table.name,
            Self::DeleteTable(table)
            | Self::AddChain(table, _)
            | Self::DeleteChain(table, _)
            | Self::FlushChain(table, _)
            | Self::DeleteRule(table, _, _)
            | Self::AddRule(table, _, _)
            | Self::AddSet(table, _)
            | Self::DeleteSet(table, _)
            | Self::AddFlowtable(table, _)
            | Self::DeleteObject(table, _)
            | Self::AddElements(table, _, _)
            | Self::DeleteElements(table, _, _)
            | Self::DestroyElements(table, _, _) => table,
        }
    }

    /// The number of elements that the command adds or deletes.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::AddElements(_, _, list) | Self::DeleteElements(_, _, list) | Self::DestroyElements(_, _, list) => {
                list.len()
            }
            _ => 0,
        }
    }
}

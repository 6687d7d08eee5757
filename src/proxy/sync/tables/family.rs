//! The table of one family: the records of what it should hold and of what was last committed, and the result of the last read-back. A
//! record has the rules and elements of one owner (a Service, or the node).

use nft::{Command, TableDump, TableName};

use super::client_checks::ClientChecks;
use super::owner::Owner;
use rules::diff::{Collect, Records};
use rules::ruleset::Settings;

pub(super) struct FamilyTable {
    pub(super) settings: Settings,
    pub(super) records: Records<Owner>,
    /// The result of the last read-back, until the next commit; `Some(None)` when there was no table. `None` if the table was not read
    /// since the last commit.
    pub(super) read: Option<Option<TableDump>>,
    /// The session affinity maps that have to be read again, because their endpoints changed.
    pub(super) checks: ClientChecks,
    /// The program that owns the table, so that the kernel refuses each change by another one: then nothing is committed for the family.
    /// `None` if no other program owns it.
    pub(super) foreign_owner: Option<ForeignOwner>,
}

/// Another program that owns a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignOwner {
    /// The port of its netlink socket.
    pub(super) port: u32,
    /// The program, in words.
    pub(super) program: String,
}

impl FamilyTable {
    /// Makes a table of which nothing was committed or read yet.
    pub(super) fn new(settings: Settings, records: Records<Owner>) -> Self {
        Self { settings, records, read: None, checks: ClientChecks::default(), foreign_owner: None }
    }

    pub(super) fn name(&self) -> &TableName {
        &self.records.static_rules().table.name
    }

    /// Whether another program owns the table.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign_owner.is_some()
    }

    /// Notes which other program owns the table, if any. What this program had in the table is gone then: a table gets its owner when it is
    /// made.
    pub(super) fn set_foreign_owner(&mut self, owner: Option<ForeignOwner>) {
        if owner.is_some() && !self.is_foreign() {
            self.records.lost();
            self.checks = ClientChecks::default();
        }
        self.foreign_owner = owner;
    }

    /// Returns the commands that bring the kernel's table up to date; none for a table of another program.
    pub(super) fn commands(&mut self, collect: Collect) -> Vec<Command> {
        match &self.read {
            _ if self.is_foreign() => Vec::new(),
            Some(dump) => self.records.comparison(dump.as_ref(), collect),
            None => self.records.changes(collect),
        }
    }

    /// Returns whether the table was read, and no packet passes it yet.
    pub(super) fn is_unseen(&self) -> bool {
        self.read.as_ref().is_some_and(|dump| dump.as_ref().is_none_or(|dump| !packets_pass(dump)))
    }
}

/// Returns whether packets may pass a table: it has base chains, or an object that cannot be read and may be a base chain.
pub(in crate::sync) fn packets_pass(dump: &TableDump) -> bool {
    !dump.unreadable.is_empty() || dump.chains.values().any(|(chain, _)| chain.base.is_some())
}

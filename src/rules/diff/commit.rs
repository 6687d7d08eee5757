//! Turns new records into committed ones after the kernel has carried out a transaction. A record has the objects of one Service, or of the
//! node.

use std::hash::Hash;

use nft::{Command, TableDump};

use super::kernel_state::KernelState;
use super::records::Records;
use super::totals::Totals;
use super::wanted::Wanted;

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// Updates the records after the kernel has carried out `commands` from [`Records::changes`] or [`Records::comparison`]. After a
    /// comparison, `compared` is the table that it compared with (`Some(None)` if there was no table); otherwise `None`.
    pub fn committed(&mut self, commands: &[Command], compared: Option<Option<&TableDump>>) {
        for (owner, record) in &self.open {
            let before = self.committed.get(owner);
            self.totals.replace(before, record);
            self.kernel.replace(before, record);
        }
        if let Some(dump) = compared {
            let emptied = self.unwanted_chains(dump);
            self.kernel.read(&self.static_rules, dump, emptied);
        }
        for command in commands {
            if *command.table() == self.static_rules.table.name {
                self.kernel.apply(&self.static_rules, command);
            }
        }
        self.has_new_static_rules = false;
        self.close();
        if self.totals.slipped() {
            self.totals = Totals::new(&self.static_rules);
            for record in self.committed.values() {
                self.totals.replace(None, record);
            }
            self.slipped = true;
        }
    }

    /// Notes that the table has nothing of these records any more, because another program made it again: all records are new ones.
    pub fn lost(&mut self) {
        for (owner, record) in std::mem::take(&mut self.committed) {
            self.open.entry(owner).or_insert(record);
        }
        self.open.retain(|_, record| !record.is_empty());
        (self.totals, self.kernel) = (Totals::new(&self.static_rules), KernelState::new(&self.static_rules));
        self.has_new_static_rules = true;
    }

    /// Replaces the committed records by the new ones.
    fn close(&mut self) {
        if self.committed.is_empty() {
            self.committed = std::mem::take(&mut self.open);
            self.committed.retain(|_, record| !record.is_empty());
        }
        for (owner, record) in std::mem::take(&mut self.open) {
            if record.is_empty() {
                self.committed.remove(&owner);
            } else {
                self.committed.insert(owner, record);
            }
        }
    }

    /// The chains of a table that neither a record nor the static rules have, and that are not chains on demand (such as `lb-3`).
    fn unwanted_chains(&self, dump: Option<&TableDump>) -> Vec<std::sync::Arc<str>> {
        let mut names = Vec::new();
        if let Some(dump) = dump {
            for (chain, _) in Wanted::of(self).unwanted_chains(dump) {
                names.push(chain.name.clone());
            }
        }
        names
    }
}

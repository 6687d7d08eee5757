//! Finds clients that session affinity still remembers for endpoints that are gone (E6): decides which maps to read for them, and when.
//!
//! The kernel may forget each client at any moment. A map that cannot be read stops no sync: it is read again soon.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use nft::{Command, Element, ReadError, Set, TableName};
use tracing::warn;

use super::Tables;
use super::family::FamilyTable;
use super::owner::Owner;
use node::kernel::Kernel;
use rules::table::DynamicSet;

/// The clients of one map that are remembered for endpoints that are gone.
#[derive(Debug)]
pub(in crate::sync) struct StaleClients {
    pub(in crate::sync) table: TableName,
    pub(in crate::sync) owner: Owner,
    pub(in crate::sync) map: Arc<Set>,
    pub(in crate::sync) clients: Vec<Element>,
}

impl FamilyTable {
    /// Schedules a read of each map whose endpoints `commands` changed, except maps that `commands` add.
    pub(super) fn note_checks(&mut self, commands: &[Command], now: Instant) {
        let mut new: BTreeSet<&str> = BTreeSet::new();
        for command in commands {
            match command {
                Command::AddSet(table, set) if table == self.name() => _ = new.insert(&set.name),
                _ => {}
            }
        }
        for (owner, map) in self.records.changed_dynamic_sets() {
            if !new.contains(&*map.set.name) {
                self.checks.changed(owner, &map.set.name, now);
            }
        }
    }

    /// Returns the stale clients of all maps that the last read-back found; without one, those of the maps whose endpoints changed.
    fn stale_clients(&mut self, kernel: &mut impl Kernel, now: Instant) -> Vec<StaleClients> {
        let maps: Vec<(&Owner, &DynamicSet)> = match &self.read {
            Some(dump) => {
                let has = |map: &DynamicSet| dump.as_ref().is_some_and(|dump| dump.sets.contains_key(&map.set.name));
                self.records.dynamic_sets().filter(|(_, map)| has(map)).collect()
            }
            None => {
                let changed = self.records.changed_dynamic_sets();
                changed.filter(|(owner, map)| self.records.is_committed(owner, &map.set.name)).collect()
            }
        };
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for (owner, map) in maps {
            match self.stale_clients_of(kernel, owner, map) {
                Ok(stale) => found.extend(stale),
                Err(error) => failed.push((owner.clone(), Arc::clone(&map.set.name), error)),
            }
        }
        for (owner, map, error) in failed {
            self.checks.changed(&owner, &map, now);
            self.check_failed(&map, &error, now);
        }
        found
    }

    /// Returns the stale clients of one map; `None` when there are none.
    fn stale_clients_of(
        &self,
        kernel: &mut impl Kernel,
        owner: &Owner,
        map: &DynamicSet,
    ) -> Result<Option<StaleClients>, ReadError> {
        let clients = map.not_allowed(kernel.elements(self.name(), &map.set)?);
        if clients.is_empty() {
            return Ok(None);
        }
        let (table, owner, map) = (self.name().clone(), owner.clone(), Arc::clone(&map.set));
        Ok(Some(StaleClients { table, owner, map, clients }))
    }

    /// Schedules another read of a map that could not be read. Logs only the first failure of several in a row.
    fn check_failed(&mut self, map: &str, error: &ReadError, now: Instant) {
        if self.checks.failed(map, now) {
            warn!(err = %error, map, "Cannot look for clients of endpoints that are gone; trying again");
        }
    }
}

impl Tables {
    /// Returns the clients to delete together with `transactions`, which remove the clients' endpoints. Leaves clients in a map that cannot
    /// be read to a later check, because they must not stop the transactions.
    pub(in crate::sync) fn stale_clients(
        &mut self,
        kernel: &mut impl Kernel,
        transactions: &VecDeque<Vec<Command>>,
        now: Instant,
    ) -> Vec<StaleClients> {
        let mut found = Vec::new();
        for table in &mut self.tables {
            let is_deletion = |command: &Command| matches!(command, Command::DeleteTable(name) if name == table.name());
            // A table that the transactions delete and make again has no clients, and that of another program has none of ours.
            if !table.is_foreign() && !transactions.iter().flatten().any(is_deletion) {
                found.extend(table.stale_clients(kernel, now));
            }
        }
        found
    }

    /// Returns when the next map is to be read, if any.
    pub(in crate::sync) fn next_check(&self) -> Option<Instant> {
        self.tables.iter().filter_map(|table| table.checks.next()).min()
    }

    /// Returns a map that is to be read now, if any.
    pub(in crate::sync) fn due_check(&self, now: Instant) -> Option<(TableName, Arc<str>)> {
        self.tables.iter().find_map(|table| Some((table.name().clone(), Arc::clone(table.checks.due(now)?))))
    }

    /// Reads a map that is due, and returns its stale clients. A map that cannot be read is read again later.
    pub(in crate::sync) fn check(
        &mut self,
        kernel: &mut impl Kernel,
        (table, map): &(TableName, Arc<str>),
        now: Instant,
    ) -> Option<StaleClients> {
        let table = self.tables.iter_mut().find(|known| known.name() == table)?;
        let owner = table.checks.owner(map).cloned();
        let dynamic_set = owner.and_then(|owner| Some((table.records.dynamic_set_of(&owner, map)?, owner)));
        let Some((dynamic_set, owner)) = dynamic_set else {
            table.checks.forget(map);
            return None;
        };
        match table.stale_clients_of(kernel, &owner, dynamic_set) {
            Ok(found) => {
                table.checks.checked(map, found.is_some(), now);
                found
            }
            Err(error) => {
                table.check_failed(map, &error, now);
                None
            }
        }
    }

    /// Schedules a read of these clients' map soon, as after a change.
    pub(in crate::sync) fn check_soon(&mut self, stale: &StaleClients, now: Instant) {
        if let Some(table) = self.table_of(stale) {
            table.checks.changed(&stale.owner, &stale.map.name, now);
        }
    }

    /// Schedules a read of these clients' map at once, because they are still in it; or later, if deleting them has `failed`.
    pub(in crate::sync) fn check_again(&mut self, stale: &StaleClients, failed: bool, now: Instant) {
        if let Some(table) = self.table_of(stale) {
            table.checks.hurry(&stale.owner, &stale.map.name, now);
            if failed {
                table.checks.failed(&stale.map.name, now);
            }
        }
    }

    fn table_of(&mut self, stale: &StaleClients) -> Option<&mut FamilyTable> {
        self.tables.iter_mut().find(|table| *table.name() == stale.table)
    }
}

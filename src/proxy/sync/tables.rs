//! The tables of both families: the records of what they should hold and hold, and what was read from the kernel.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use nft::decode::DecodeError;
use nft::{Command, Element, Refusal, Set, TableDump, TableName};
use tracing::warn;

use crate::localhost::{self, NodePort};
use crate::sync::client_checks::ClientChecks;
use crate::sync::other_proxy::OtherProxy;
use component::config::Config;
use node::kernel::Kernel;
use rules::diff::differences::{Difference, What};
use rules::diff::{self, Changed, Collect, Entry, Objects, Record, Records};
use rules::model::{Family, Node, ObjectName};
use rules::ruleset::{Balancing, Layout, Localhost, NodeFacts, Settings};
use rules::select::{PortSelection, ServiceSelection};
use rules::table::{DynamicSet, ServiceObjects};

/// What a part of a table belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Owner {
    /// The node.
    Node,
    /// A Service.
    Service(ObjectName),
}

/// The table of one family.
pub(super) struct FamilyTable {
    settings: Settings,
    records: Records<Owner>,
    /// The fixed part is not what was last committed.
    has_new_program: bool,
    /// What the last read-back found, until a transaction was committed after it; `Some(None)` when there was no table. Without it,
    /// the kernel holds what was last committed.
    read: Option<Option<TableDump>>,
    /// Maps filled by rules that have to be read again, because an endpoint was taken away.
    checks: ClientChecks,
}

/// The tables of all families that this node serves.
pub(super) struct Tables {
    layout: Layout,
    tables: Vec<FamilyTable>,
    /// Whether only this process may change the tables.
    owned: bool,
    /// Whether it is known what the kernel holds.
    known: bool,
    /// The records of Services were made with settings that have changed since.
    outdated: bool,
    /// At least a second has passed since the last such note that a commit took into account.
    second_passed: bool,
    /// The objects of other programs that read-backs found; rules and elements are not among them.
    findings: Vec<String>,
    /// Another kube-proxy that writes to the same tables.
    pub(super) other_proxy: OtherProxy,
}

/// The records of a Service in each table, in order.
pub(super) type ServiceRecords = Vec<Record>;

/// What the tables hold for a Service that is held back.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeldBack {
    /// What was last committed for it.
    AsCommitted,
    /// Nothing, because the kernel does not accept that either.
    Removed,
}

/// What changes for a Service in the table of one family.
#[derive(Clone, Copy)]
pub(super) struct ChangedIn<'a> {
    pub(super) family: Family,
    pub(super) changed: Changed<'a>,
    records: &'a Records<Owner>,
}

impl ChangedIn<'_> {
    /// The name of the set of an entry.
    pub(super) fn set_name(&self, entry: Entry<'_>) -> &str {
        self.records.set_name(entry)
    }
}

/// Clients that are remembered in a map for endpoints that are gone. Each may be forgotten by the kernel at any moment.
#[derive(Debug)]
pub(super) struct StaleClients {
    pub(super) table: TableName,
    pub(super) owner: Owner,
    pub(super) map: Arc<Set>,
    pub(super) clients: Vec<Element>,
}

impl FamilyTable {
    fn name(&self) -> &TableName {
        &self.records.static_rules().table.name
    }

    /// Notes which maps are to be read again after these commands: those of which the endpoints changed, unless they are new.
    fn note_checks(&mut self, commands: &[Command], now: Instant) {
        let name = self.records.static_rules().table.name.clone();
        let new = commands.iter().filter_map(|command| match command {
            Command::AddSet(table, set) if *table == name => Some(&set.name),
            _ => None,
        });
        let new: BTreeSet<&Arc<str>> = new.collect();
        for (owner, map) in self.records.changed_dynamic_sets() {
            if !new.contains(&map.set.name) {
                self.checks.changed(owner, &map.set.name, now);
            }
        }
    }

    /// The clients that are remembered for endpoints that are gone (E6): in all maps after a read-back, else in those of which the
    /// endpoints changed. A map that cannot be read is read again soon.
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

    /// Such a map could not be read. It is read again, and what lasts is logged once.
    fn check_failed(&mut self, map: &str, error: &nft::ReadError, now: Instant) {
        if self.checks.failed(map, now) {
            warn!(err = %error, map, "Cannot look for clients of endpoints that are gone; trying again");
        }
    }

    /// The same for one map; `None` when there are none.
    fn stale_clients_of(
        &self,
        kernel: &mut impl Kernel,
        owner: &Owner,
        map: &DynamicSet,
    ) -> Result<Option<StaleClients>, nft::ReadError> {
        let clients = map.not_allowed(kernel.elements(self.name(), &map.set)?);
        let stale =
            StaleClients { table: self.name().clone(), owner: owner.clone(), map: Arc::clone(&map.set), clients };
        Ok((!stale.clients.is_empty()).then_some(stale))
    }
}

impl Tables {
    /// Empty tables of which is not known what the kernel holds.
    pub(super) fn new(layout: Layout, families: &[Family], config: &Config) -> Self {
        let owned = config.own_tables;
        let table = |family: &Family| {
            let settings = super::settings::settings(config, None, *family, owned);
            let records = Records::new(layout.static_rules(&settings));
            FamilyTable { records, settings, has_new_program: true, read: None, checks: ClientChecks::default() }
        };
        Self {
            tables: families.iter().map(table).collect(),
            layout,
            owned,
            known: false,
            outdated: false,
            second_passed: false,
            findings: Vec::new(),
            other_proxy: OtherProxy::default(),
        }
    }

    /// How Services are written down.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// How endpoints are chosen.
    pub(super) fn balancing(&self) -> Balancing {
        self.tables.first().map_or_else(Balancing::default, |table| table.settings.balancing)
    }

    /// The families, in order.
    pub(super) fn families(&self) -> impl Iterator<Item = Family> {
        self.tables.iter().map(|table| table.settings.family)
    }

    /// The names of the tables.
    pub(super) fn names(&self) -> Vec<TableName> {
        self.tables.iter().map(|table| table.name().clone()).collect()
    }

    /// Takes over facts of the node and of the cluster that belong to no Service.
    pub(super) fn set_node(&mut self, config: &Config, node: Option<&Node>, interfaces: &[IpAddr], facts: NodeFacts) {
        let node_port_addresses = super::settings::node_port_addresses(config, node, interfaces);
        let facts = NodeFacts { node_port_addresses, ..facts };
        for table in &mut self.tables {
            let settings = super::settings::settings(config, node, table.settings.family, self.owned);
            if settings != table.settings {
                table.records.set_static_rules(self.layout.static_rules(&settings));
                table.has_new_program = true;
                table.settings = settings;
                self.known = false;
                self.outdated = true;
            }
            table.records.put(Owner::Node, self.layout.node(&table.settings, &facts));
        }
    }

    /// The records for what was selected for a Service, which is `None` when it is gone.
    pub(super) fn records_for(&self, name: &ObjectName, selection: Option<&ServiceSelection>) -> ServiceRecords {
        let Some(selection) = selection else { return self.tables.iter().map(|_| Record::default()).collect() };
        let owner = Owner::Service(name.clone());
        let record =
            |table: &FamilyTable| table.records.record_for(&owner, self.layout.service(&table.settings, selection));
        self.tables.iter().map(record).collect()
    }

    /// The TCP node ports that are to be served on the loopback addresses of the families where that is done.
    pub(super) fn localhost_node_ports(&self, selection: &ServiceSelection) -> Vec<NodePort> {
        let served = self.tables.iter().filter(|table| table.settings.localhost == Localhost::Served);
        served.flat_map(|table| localhost::node_ports(selection, table.settings.family)).collect()
    }

    /// Makes room for the records of so many Services.
    pub(super) fn reserve(&mut self, services: usize) {
        self.tables.iter_mut().for_each(|table| table.records.reserve(services));
    }

    /// The records of a Service.
    pub(super) fn records(&self, name: &ObjectName) -> ServiceRecords {
        let owner = Owner::Service(name.clone());
        self.tables.iter().map(|table| table.records.record(&owner)).collect()
    }

    /// Puts these records in the place of a Service's present ones.
    pub(super) fn put_records(&mut self, name: &ObjectName, records: ServiceRecords) {
        for (table, record) in self.tables.iter_mut().zip(records) {
            table.records.put_record(Owner::Service(name.clone()), record);
        }
    }

    /// Has the tables hold for these Services what was last committed for them, or nothing, by the second value.
    pub(super) fn hold_back<'a>(&mut self, services: impl Iterator<Item = (&'a ObjectName, HeldBack)>) {
        for (name, held_back) in services {
            let owner = Owner::Service(name.clone());
            for table in &mut self.tables {
                match held_back {
                    HeldBack::AsCommitted => table.records.keep_committed(&owner),
                    HeldBack::Removed => table.records.put_record(owner.clone(), Record::default()),
                }
            }
        }
    }

    /// Takes from these Services, which are held back, each frontend that belongs to another Service by now.
    pub(super) fn give_way<'a>(&mut self, services: impl Iterator<Item = &'a ObjectName>) {
        let owners: Vec<Owner> = services.cloned().map(Owner::Service).collect();
        self.tables.iter_mut().for_each(|table| table.records.give_way(owners.iter()));
    }

    /// The Services that have something that these commands add, or had something that they take away.
    pub(super) fn contributors(&self, commands: &[Command]) -> BTreeSet<ObjectName> {
        self.services_of(commands.iter().map(|command| (command, None)))
    }

    /// The Services that have what was refused; none when the kernel did not name a command.
    pub(super) fn refused(&self, commands: &[Command], refusals: &[Refusal]) -> BTreeSet<ObjectName> {
        let refused = refusals.iter().filter_map(|refusal| Some((commands.get(refusal.command?)?, refusal.element)));
        self.services_of(refused)
    }

    fn services_of<'a>(&self, objects: impl Iterator<Item = (&'a Command, Option<usize>)>) -> BTreeSet<ObjectName> {
        let mut by_table: Vec<Objects> = self.tables.iter().map(|_| Objects::default()).collect();
        for (command, element) in objects {
            let tables = self.tables.iter().zip(&mut by_table);
            let mut fitting = tables.filter(|(table, _)| table.name() == command.table());
            if let Some((_, objects)) = fitting.next() {
                objects.add(command, element);
            }
        }
        let owners = self.tables.iter().zip(&by_table).flat_map(|(table, objects)| table.records.owners(objects));
        let services = owners.filter_map(|owner| match owner {
            Owner::Node => None,
            Owner::Service(name) => Some(name.clone()),
        });
        services.collect()
    }

    /// Hands over what changes for each Service since the last commit, by table; `true` with the first table of a Service.
    pub(super) fn each_changed(&self, mut each: impl FnMut(&Owner, &ObjectName, ChangedIn<'_>, bool)) {
        for (index, FamilyTable { settings, records, .. }) in self.tables.iter().enumerate() {
            for (owner, changed) in records.each_changed() {
                let Owner::Service(name) = owner else { continue };
                let is_first = self.tables[..index].iter().all(|table| !table.records.is_open(owner));
                each(owner, name, ChangedIn { family: settings.family, changed, records }, is_first);
            }
        }
    }

    /// What was read of the tables and is not taken over yet, with what they should hold.
    pub(super) fn each_read(&self) -> impl Iterator<Item = (Family, &TableDump, &Records<Owner>)> {
        self.tables.iter().filter_map(|FamilyTable { settings, records, read, .. }| {
            Some((settings.family, read.as_ref()?.as_ref()?, records))
        })
    }

    /// Whether the tables hold something of an owner, and whether they should.
    pub(super) fn presence(&self, owner: &Owner) -> (bool, bool) {
        let presence = self.tables.iter().map(|table| table.records.presence(owner));
        presence.fold((false, false), |all, one| (all.0 || one.0, all.1 || one.1))
    }

    /// Whether a Service changed since the last commit.
    pub(super) fn is_open(&self, name: &ObjectName) -> bool {
        let owner = Owner::Service(name.clone());
        self.tables.iter().any(|table| table.records.is_open(&owner))
    }

    /// Whether every Service has to be written again; resets that.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.outdated)
    }

    /// Whether only this process may change the tables.
    pub(super) fn owned(&self) -> bool {
        self.owned
    }

    /// No longer makes tables that only this process may change, because the kernel has none.
    pub(super) fn disown(&mut self) {
        self.owned = false;
        for table in &mut self.tables {
            table.settings.owned = false;
            table.records.set_static_rules(self.layout.static_rules(&table.settings));
            table.has_new_program = true;
        }
        self.known = false;
    }

    /// Whether it is known what the kernel holds.
    pub(super) fn known(&self) -> bool {
        self.known
    }

    /// Whether the next transaction is a comparison with what was read, and not only of what changed.
    pub(super) fn compares_everything(&self) -> bool {
        self.tables.iter().any(|table| table.read.is_some())
    }

    /// Notes that at least a second has passed since the last call.
    pub(super) fn second_passed(&mut self) {
        self.second_passed = true;
    }

    /// Notes that the kernel may hold anything.
    pub(super) fn forget(&mut self) {
        self.known = false;
        // If the kernel refused a deletion, the next sync does not try it again.
        self.second_passed = false;
    }

    /// Notes that what the kernel held before [`Tables::forget`] is what it holds now.
    pub(super) fn remember(&mut self) {
        self.known = true;
    }

    /// Reads back what the kernel holds.
    ///
    /// # Errors
    /// See [`nft::ReadError`].
    pub(super) fn read_back(&mut self, kernel: &mut impl Kernel) -> Result<(), nft::ReadError> {
        let (now, mut found) = (Instant::now(), false);
        for table in &mut self.tables {
            let program = table.records.static_rules();
            let mut dump = match kernel.read(&program.table.name) {
                // A program that writes to it all the time must not keep this one from writing: it is made anew, unread.
                Err(nft::ReadError::Unstable) => {
                    let name = &program.table.name;
                    self.findings
                        .push(format!("table {name} changed during each attempt to read it, and is made anew"));
                    Some(unread(program.table.clone()))
                }
                other => other?,
            };
            found |= dump.as_mut().is_some_and(|dump| self.other_proxy.set_aside(dump, now));
            self.findings.extend(dump.iter().flat_map(findings));
            table.read = Some(dump);
        }
        self.other_proxy.tables_read(found, now);
        self.known = true;
        Ok(())
    }

    /// The objects that other programs put into the tables, as the last read-backs found them, in words; rules and elements are not among
    /// them.
    pub(super) fn take_findings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.findings)
    }

    /// The commands that make the kernel hold what it should, for all families, but for what rules remember. `after_pause` says that
    /// the last sync was long enough ago to delete the chains that it emptied.
    pub(super) fn transaction(&mut self, after_pause: bool) -> Vec<Command> {
        let collect = self.collect(after_pause);
        let of_table = |table: &mut FamilyTable| match &table.read {
            Some(dump) => table.records.comparison(dump.as_ref(), collect),
            None => table.records.changes(collect),
        };
        self.tables.iter_mut().flat_map(of_table).collect()
    }

    /// The commands of [`Tables::transaction`] if the kernel held what was last committed; `None` when that says nothing, because the fixed
    /// part of a table changes.
    pub(super) fn own_changes(&self, after_pause: bool) -> Option<Vec<Command>> {
        let collect = self.collect(after_pause);
        let of_table = |table: &FamilyTable| (!table.has_new_program).then(|| table.records.changes(collect));
        self.tables.iter().map(of_table).collect::<Option<Vec<_>>>().map(|commands| commands.concat())
    }

    /// Which of the chains that were emptied a transaction deletes.
    const fn collect(&self, after_pause: bool) -> Collect {
        match (after_pause, self.second_passed) {
            (true, _) => Collect::AllEmpty,
            (false, true) => Collect::EmptyForASecond,
            (false, false) => Collect::Nothing,
        }
    }

    /// The same as the transactions in which the kernel is to do it: one, but for a table that no packet passes yet.
    pub(super) fn transactions(&mut self, after_pause: bool) -> VecDeque<Vec<Command>> {
        let is_unseen = |table: &&FamilyTable| {
            table.read.as_ref().is_some_and(|dump| dump.as_ref().is_none_or(|dump| !packets_pass(dump)))
        };
        let unseen = self.tables.iter().filter(is_unseen).map(|table| table.name().clone()).collect();
        diff::transactions(self.transaction(after_pause), &unseen)
    }

    /// The clients that are to be forgotten together with these transactions, because they take their endpoints away. Those in a map that
    /// cannot be read are left to a later check: it must not stop what else is to be done.
    pub(super) fn stale_clients(
        &mut self,
        kernel: &mut impl Kernel,
        transactions: &VecDeque<Vec<Command>>,
        now: Instant,
    ) -> Vec<StaleClients> {
        // A table that is made anew remembers no clients.
        let is_new = |table: &&mut FamilyTable| {
            transactions
                .iter()
                .flatten()
                .any(|command| matches!(command, Command::DeleteTable(name) if name == table.name()))
        };
        let tables = self.tables.iter_mut().filter(|table| !is_new(table));
        tables.flat_map(|table| table.stale_clients(kernel, now)).collect()
    }

    /// When a map that rules fill is to be read again.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.tables.iter().filter_map(|table| table.checks.next()).min()
    }

    /// The map that rules fill and that is to be read now, if there is one.
    pub(super) fn due_check(&self, now: Instant) -> Option<(TableName, Arc<str>)> {
        self.tables.iter().find_map(|table| Some((table.name().clone(), Arc::clone(table.checks.due(now)?))))
    }

    /// Reads such a map, and gives the clients that are still remembered for endpoints that are gone. One that cannot be read is read again.
    pub(super) fn check(
        &mut self,
        kernel: &mut impl Kernel,
        (table, map): &(TableName, Arc<str>),
        now: Instant,
    ) -> Option<StaleClients> {
        let table = self.tables.iter_mut().find(|known| known.name() == table)?;
        let owner = table.checks.owner(map).cloned();
        let learned = owner.and_then(|owner| Some((table.records.dynamic_set_of(&owner, map)?, owner)));
        let Some((learned, owner)) = learned else {
            table.checks.forget(map);
            return None;
        };
        match table.stale_clients_of(kernel, &owner, learned) {
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

    /// Has the map of these clients read again soon, as after a change.
    pub(super) fn check_soon(&mut self, stale: &StaleClients, now: Instant) {
        for table in self.tables.iter_mut().filter(|table| *table.name() == stale.table) {
            table.checks.changed(&stale.owner, &stale.map.name, now);
        }
    }

    /// Has the map of these clients read again at once, because they are still remembered, or later, if it just failed.
    pub(super) fn check_again(&mut self, stale: &StaleClients, failed: bool, now: Instant) {
        for table in self.tables.iter_mut().filter(|table| *table.name() == stale.table) {
            table.checks.hurry(&stale.owner, &stale.map.name, now);
            if failed {
                table.checks.failed(&stale.map.name, now);
            }
        }
    }

    /// Whether emptied chains are left to be deleted, which has to wait for a second.
    pub(super) fn has_emptied_chains(&self) -> bool {
        self.tables.iter().any(|table| table.records.has_emptied_chains())
    }

    /// Notes that the kernel carried out the commands of [`Tables::transaction`] just now.
    pub(super) fn committed(&mut self, commands: &[Command], now: Instant) {
        let mut slipped = false;
        for table in &mut self.tables {
            table.note_checks(commands, now);
            let read = table.read.take();
            table.records.committed(commands, read.as_ref().map(Option::as_ref));
            table.has_new_program = false;
            if self.second_passed {
                table.records.second_passed();
            }
            slipped |= table.records.take_slip();
        }
        self.second_passed = false;
        if slipped {
            self.known = false;
            warn!("What the tables hold was not counted right; the next sync reads them back and compares everything");
        }
    }

    /// The sets of each family's table as of the last commit, with their numbers of elements; without those that rules fill.
    pub(super) fn lens(&self) -> impl Iterator<Item = (Family, impl Iterator<Item = (&str, usize)>)> {
        self.tables.iter().map(|table| (table.settings.family, table.records.lens()))
    }

    /// What of these tables, in order, is not as it should be; for each the number of its table.
    pub(super) fn differences(&mut self, dumps: Vec<Option<TableDump>>) -> Vec<(usize, Difference<Owner>)> {
        let of_table = |((number, table), dump): ((usize, &mut FamilyTable), _)| {
            table.records.differences(dump).into_iter().map(move |difference| (number, difference)).collect::<Vec<_>>()
        };
        self.tables.iter_mut().enumerate().zip(dumps).flat_map(of_table).collect()
    }

    /// The owner of something in the table of this number.
    pub(super) fn owners_of<'a>(&self, table: usize, whats: impl IntoIterator<Item = &'a What>) -> Vec<Option<Owner>> {
        self.tables[table].records.owners_of(whats)
    }

    /// What each of these service ports has in the table of this number.
    pub(super) fn fragments<'a>(
        &self,
        table: usize,
        selection: &'a ServiceSelection,
    ) -> Vec<(&'a Arc<str>, ServiceObjects)> {
        let settings = &self.tables[table].settings;
        let ports = selection.ports.iter().filter(|port| port.family == settings.family);
        let fragment = |port: &'a PortSelection| {
            let alone =
                ServiceSelection { ports: vec![port.clone()], cluster_ips: Vec::new(), health_checks: Vec::new() };
            (&port.label, self.layout.service(settings, &alone))
        };
        ports.map(fragment).collect()
    }

    /// Everything the tables should hold, as nft text wants it.
    pub(super) fn content(&self) -> nft::Ruleset {
        nft::Ruleset { tables: self.tables.iter().map(|table| table.records.content()).collect() }
    }
}

/// Whether a packet may pass a table: it has base chains, or something that could be one.
pub(super) fn packets_pass(dump: &TableDump) -> bool {
    !dump.unreadable.is_empty() || dump.chains.values().any(|(chain, _)| chain.base.is_some())
}

/// A table of which is known only that it is there.
fn unread(table: nft::Table) -> TableDump {
    let error = DecodeError { object: "table", name: Some(Arc::clone(&table.name.name)), attribute: "content" };
    TableDump { unreadable: vec![error], ..TableDump::empty(table) }
}

/// Objects and errors that a finding names.
const NAMED: usize = 16;

/// The objects, flags and states of a table that this proxy never makes, in words; `None` when there are none.
fn findings(dump: &TableDump) -> Option<String> {
    let dormant = dump.dormant.then(|| "is dormant".to_owned());
    let flags = (dump.unknown_flags != 0).then(|| format!("has the unknown flags {:#x}", dump.unknown_flags));
    let objects = dump.objects.iter().map(|object| format!("holds {object}"));
    let unreadable = dump.unreadable.iter().map(|error| format!("holds what we never make ({error})"));
    let all: Vec<String> = dormant.into_iter().chain(flags).chain(objects).chain(unreadable).take(NAMED).collect();
    (!all.is_empty()).then(|| format!("table {} {}", dump.table.name, all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::NoKernel;
    use component::config::Invocation;
    use rules::table::SetName;

    fn commit(tables: &mut Tables) {
        if !tables.known() {
            tables.read_back(&mut NoKernel::default()).unwrap();
        }
        let commands = tables.transaction(false);
        tables.committed(&commands, Instant::now());
    }

    // What was counted wrong costs a comparison and not the process (G7).
    #[test]
    fn after_a_slip_of_the_bookkeeping_the_next_sync_reads_everything_back() {
        let invocation =
            component::config::load(["kube-proxy", "--manifests=/", "--hostname-override=node"].map(Into::into));
        let Ok(Invocation::Run(config)) = invocation else { panic!("a configuration") };
        let mut tables = Tables::new(Layout::Maps, &[Family::V4], &config);
        let element = Element {
            key: nft::Data::from(IpAddr::from([10, 96, 0, 1])),
            key_end: None,
            value: nft::Value::None,
            timeout: None,
            comment: None,
        };
        let elements = vec![(SetName::Borrowed("cluster-ips"), element)];
        tables.tables[0].records.put(Owner::Node, ServiceObjects { elements, ..ServiceObjects::default() });
        commit(&mut tables);
        commit(&mut tables);
        assert!(tables.known() && !tables.compares_everything());

        tables.tables[0].records.break_sums();
        tables.tables[0].records.put(Owner::Node, ServiceObjects::default());
        commit(&mut tables);
        assert!(!tables.known(), "the next sync reads everything back");
        commit(&mut tables);
        assert!(tables.known());
    }
}

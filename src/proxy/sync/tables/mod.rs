//! The tables of both families: what they should hold, as records, and what the kernel holds, as far as it is known. A record has the rules
//! and elements of one owner (a Service, or the node) in one table; an entry of a record is one element, or a group of elements of one map.
//!
//! Takes records of Services and facts of the node; returns the commands of a transaction, and takes over its result once it is committed.
//! Invariant: [`Tables::known`] is true only while the kernel holds what was last committed or what was read after that, unless another
//! program wrote and this process has not noticed it yet.

mod client_checks;
mod family;
mod maps;
mod owner;
mod read_back;
mod stale_clients;

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use nft::{Command, Refusal, TableDump, TableName};
use tracing::warn;

use crate::localhost::{self, NodePort};
use crate::sync::other_proxy::OtherProxy;
use component::config::Config;
use node::kernel::Kernel;
use rules::diff::differences::{Difference, DifferenceKind};
use rules::diff::{self, Changed, Collect, Entry, Objects, Record, Records};
use rules::endpoints::{PortSelection, ServiceSelection};
use rules::model::{Family, Node, ObjectName};
use rules::ruleset::{Balancing, Layout, Localhost, NodeFacts};
use rules::table::ServiceObjects;

#[cfg(test)]
pub(super) use client_checks::ClientChecks;
use family::FamilyTable;
pub(super) use family::packets_pass;
pub(super) use maps::Before;
pub(super) use owner::Owner;
pub(super) use stale_clients::StaleClients;

/// The transactions of a sync.
pub(super) struct Transactions {
    /// What brings the tables up to date: usually one transaction.
    pub(super) parts: VecDeque<Vec<Command>>,
    /// Deletes what only the rules of before look up, once no packet is on its way through them; empty unless the rules that do not depend on
    /// Services may be others than before.
    pub(super) later: Vec<Command>,
}

impl Transactions {
    /// A single transaction.
    pub(super) fn one(commands: Vec<Command>) -> Self {
        Self { parts: VecDeque::from([commands]), later: Vec::new() }
    }
}

/// The tables of all families that this node serves.
pub(super) struct Tables {
    layout: Layout,
    tables: Vec<FamilyTable>,
    /// The number of maps into which each map of endpoints is split.
    maps: u8,
    /// The facts of the node that the tables should hold.
    facts: NodeFacts,
    /// Whether only this process may change the tables.
    owned: bool,
    /// The length in bytes of the longest batch that the kernel takes from this process; `None` while no batch was too long.
    longest_batch: Option<usize>,
    /// Whether it is known what the kernel holds.
    known: bool,
    /// Whether the records of Services were made with settings that have changed since.
    outdated: bool,
    /// Whether [`Tables::second_passed`] was called since the last commit or [`Tables::forget`]: then the next commit may delete the chains
    /// that were empty for a second (F8).
    second_passed: bool,
    /// What read-backs found in the tables that this program never makes, since [`Tables::take_findings`] was last called.
    findings: Vec<String>,
    /// What is known about another kube-proxy that writes to the same tables.
    pub(super) other_proxy: OtherProxy,
}

/// The records of a Service, one for each table in the order of the tables.
pub(super) type ServiceRecords = Vec<Record>;

/// What the tables keep for a Service that the kernel refuses.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeldBack {
    /// The records that were last committed for it.
    AsCommitted,
    /// Nothing, because the kernel does not accept the committed records either.
    Removed,
}

/// The changes of a Service in the table of one family.
#[derive(Clone, Copy)]
pub(super) struct ChangedIn<'a> {
    pub(super) family: Family,
    pub(super) changed: Changed<'a>,
    records: &'a Records<Owner>,
}

impl ChangedIn<'_> {
    /// Returns the name of the set that an entry belongs to.
    pub(super) fn set_name(&self, entry: Entry<'_>) -> &str {
        self.records.set_name(entry)
    }
}

impl Tables {
    /// Makes empty tables; what the kernel holds is not known yet.
    pub(super) fn new(layout: Layout, families: &[Family], config: &Config) -> Self {
        let (owned, maps) = (config.own_tables, config.endpoint_maps.unwrap_or(1));
        let table = |family: &Family| {
            let settings = super::settings::settings(config, (None, &[]), *family, owned, maps);
            let records = Records::new(layout.static_rules(&settings));
            FamilyTable::new(settings, records)
        };
        Self {
            tables: families.iter().map(table).collect(),
            maps,
            facts: NodeFacts::default(),
            layout,
            owned,
            longest_batch: None,
            known: false,
            outdated: false,
            second_passed: false,
            findings: Vec::new(),
            other_proxy: OtherProxy::default(),
        }
    }

    /// Returns the ruleset layout, which decides how a Service becomes map elements or chains.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns how the rules choose endpoints.
    pub(super) fn balancing(&self) -> Balancing {
        self.tables.first().map_or_else(Balancing::default, |table| table.settings.balancing)
    }

    /// Returns the families, in the order of the tables.
    pub(super) fn families(&self) -> impl Iterator<Item = Family> {
        self.tables.iter().map(|table| table.settings.family)
    }

    /// Returns the families that this program cannot program, because another program owns the table, with the table and that program.
    pub(super) fn foreign(&self) -> impl Iterator<Item = (Family, &TableName, &str)> {
        self.tables
            .iter()
            .filter_map(|table| Some((table.settings.family, table.name(), &*table.foreign_owner.as_ref()?.program)))
    }

    /// Returns the families whose tables no other program owns.
    pub(super) fn own_families(&self) -> impl Iterator<Item = Family> {
        self.own().map(|table| table.settings.family)
    }

    /// Returns the names of the tables that no other program owns.
    pub(super) fn own_names(&self) -> Vec<TableName> {
        self.own().map(|table| table.name().clone()).collect()
    }

    /// The tables that no other program owns.
    fn own(&self) -> impl Iterator<Item = &FamilyTable> {
        self.tables.iter().filter(|table| !table.is_foreign())
    }

    /// Returns whether a table that belonged to another program when it was read now has another owner, or none. A table that cannot be
    /// asked for is asked for again at the next call.
    pub(super) fn have_changed_owner(&self, kernel: &mut impl Kernel) -> bool {
        let is_other = |table: &FamilyTable| {
            let known = table.foreign_owner.as_ref().map(|owner| owner.port);
            known.is_some() && kernel.owner(table.name()).is_ok_and(|owner| owner != known)
        };
        self.tables.iter().any(is_other)
    }

    /// Returns whether the kernel holds rules of this program that packets pass, as far as that is known.
    pub(super) fn have_rules(&self) -> bool {
        self.own().any(|table| match &table.read {
            Some(dump) => dump.as_ref().is_some_and(packets_pass),
            None => table.records.has_committed(),
        })
    }

    /// Returns the names of the tables, in the order of [`Tables::families`].
    pub(super) fn names(&self) -> Vec<TableName> {
        self.tables.iter().map(|table| table.name().clone()).collect()
    }

    /// Applies facts of the node and of the cluster that belong to no Service.
    pub(super) fn set_node(&mut self, config: &Config, node: Option<&Node>, interfaces: &[IpAddr], facts: NodeFacts) {
        let node_port_addresses = super::settings::node_port_addresses(config, node, interfaces);
        self.facts = NodeFacts { node_port_addresses, ..facts };
        for table in &mut self.tables {
            let settings =
                super::settings::settings(config, (node, interfaces), table.settings.family, self.owned, self.maps);
            if settings != table.settings {
                table.records.set_static_rules(self.layout.static_rules(&settings));
                table.settings = settings;
                // What was read in this sync, and is not compared yet, needs no second reading.
                self.known &= table.read.is_some();
                self.outdated = true;
            }
            table.records.put(Owner::Node, self.layout.node(&table.settings, &self.facts));
        }
    }

    /// Makes the records of a Service from its selected endpoints; the selection is `None` when the Service is gone.
    pub(super) fn records_for(&self, name: &ObjectName, selection: Option<&ServiceSelection>) -> ServiceRecords {
        let Some(selection) = selection else { return self.tables.iter().map(|_| Record::default()).collect() };
        let owner = Owner::Service(name.clone());
        let record =
            |table: &FamilyTable| table.records.record_for(&owner, self.layout.service(&table.settings, selection));
        self.tables.iter().map(record).collect()
    }

    /// Returns the TCP node ports of a Service to serve on loopback addresses, in the families in which loopback node ports are served.
    pub(super) fn localhost_node_ports(&self, selection: &ServiceSelection) -> Vec<NodePort> {
        let served = self.tables.iter().filter(|table| table.settings.localhost == Localhost::Served);
        served.flat_map(|table| localhost::node_ports(selection, table.settings.family)).collect()
    }

    /// Makes room for the records of this many Services.
    pub(super) fn reserve(&mut self, services: usize) {
        self.tables.iter_mut().for_each(|table| table.records.reserve(services));
    }

    /// Returns the present records of a Service.
    pub(super) fn records(&self, name: &ObjectName) -> ServiceRecords {
        let owner = Owner::Service(name.clone());
        self.tables.iter().map(|table| table.records.record(&owner)).collect()
    }

    /// Replaces a Service's present records by `records`.
    pub(super) fn put_records(&mut self, name: &ObjectName, records: ServiceRecords) {
        for (table, record) in self.tables.iter_mut().zip(records) {
            table.records.put_record(Owner::Service(name.clone()), record);
        }
    }

    /// Makes the present records of each Service in `services` those that were last committed, or empty ones, as its [`HeldBack`] says.
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

    /// Removes from the records of each held-back Service in `services` the frontends that another Service has taken over.
    pub(super) fn give_way<'a>(&mut self, services: impl Iterator<Item = &'a ObjectName>) {
        let owners: Vec<Owner> = services.cloned().map(Owner::Service).collect();
        self.tables.iter_mut().for_each(|table| table.records.give_way(owners.iter()));
    }

    /// Returns the Services that own something that `commands` add or delete.
    pub(super) fn contributors(&self, commands: &[Command]) -> BTreeSet<ObjectName> {
        self.services_of(commands.iter().map(|command| (command, None)))
    }

    /// Returns the Services that own the refused objects; empty when the kernel named no command, or only commands about objects of no
    /// Service.
    pub(super) fn refused(&self, commands: &[Command], refusals: &[Refusal]) -> BTreeSet<ObjectName> {
        let refused = refusals.iter().filter_map(|refusal| Some((commands.get(refusal.command?)?, refusal.element)));
        self.services_of(refused)
    }

    fn services_of<'a>(&self, objects: impl Iterator<Item = (&'a Command, Option<usize>)>) -> BTreeSet<ObjectName> {
        let mut by_table: Vec<Objects> = self.tables.iter().map(|_| Objects::default()).collect();
        for (command, element) in objects {
            if let Some(number) = self.tables.iter().position(|table| table.name() == command.table()) {
                by_table[number].add(command, element);
            }
        }
        let mut services = BTreeSet::new();
        for (table, objects) in self.tables.iter().zip(&by_table) {
            for owner in table.records.owners(objects) {
                if let Owner::Service(name) = owner {
                    services.insert(name.clone());
                }
            }
        }
        services
    }

    /// Calls `each` with the changes of each Service since the last commit, by table that no other program owns; the last argument is `true` for the first table in
    /// which the Service changed.
    pub(super) fn each_changed(&self, mut each: impl FnMut(&Owner, &ObjectName, ChangedIn<'_>, bool)) {
        for (index, FamilyTable { settings, records, .. }) in self.own().enumerate() {
            for (owner, changed) in records.each_changed() {
                let Owner::Service(name) = owner else { continue };
                let is_first = self.own().take(index).all(|table| !table.records.is_open(owner));
                each(owner, name, ChangedIn { family: settings.family, changed, records }, is_first);
            }
        }
    }

    /// Returns the tables as they were last read back, with the records of what they should hold; nothing after the next commit.
    pub(super) fn each_read(&self) -> impl Iterator<Item = (Family, &TableDump, &Records<Owner>)> {
        self.own().filter_map(|FamilyTable { settings, records, read, .. }| {
            Some((settings.family, read.as_ref()?.as_ref()?, records))
        })
    }

    /// Returns whether any of the tables has objects of `owner` as of the last commit, and whether it should have some after the next one.
    pub(super) fn presence(&self, owner: &Owner) -> (bool, bool) {
        let presence = self.own().map(|table| table.records.presence(owner));
        presence.fold((false, false), |all, one| (all.0 || one.0, all.1 || one.1))
    }

    /// Returns whether a Service changed since the last commit.
    pub(super) fn is_open(&self, name: &ObjectName) -> bool {
        let owner = Owner::Service(name.clone());
        self.own().any(|table| table.records.is_open(&owner))
    }

    /// Returns whether settings changed since the last call, so that the records of all Services have to be made again.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.outdated)
    }

    /// Whether only this process may change the tables.
    pub(super) fn owned(&self) -> bool {
        self.owned
    }

    /// Stops making owned tables, which only this process may change, because the kernel does not support them.
    pub(super) fn disown(&mut self) {
        self.owned = false;
        for table in &mut self.tables {
            table.settings.owned = false;
            table.records.set_static_rules(self.layout.static_rules(&table.settings));
        }
        self.known = false;
    }

    /// Whether it is known what the kernel holds.
    pub(super) fn known(&self) -> bool {
        self.known
    }

    /// Whether the next transaction compares everything with what was read, instead of writing only what changed.
    pub(super) fn compares_everything(&self) -> bool {
        self.tables.iter().any(|table| table.read.is_some())
    }

    /// Notes that at least a second has passed since the last call, see [`Engine::second_passed`](crate::sync::Engine::second_passed).
    pub(super) fn second_passed(&mut self) {
        self.second_passed = true;
    }

    /// Notes that it is not known any more what the kernel holds.
    pub(super) fn forget(&mut self) {
        self.known = false;
        // The kernel may have refused to delete an emptied chain, so the next sync does not try that again, unless another second has
        // passed.
        self.second_passed = false;
    }

    /// Notes that the kernel still holds what it held before [`Tables::forget`].
    pub(super) fn remember(&mut self) {
        self.known = true;
    }

    /// Returns the commands that bring the kernel's tables of all families up to date, except for the clients that session affinity
    /// remembers. `after_pause` says that the last sync was at least a second ago: then chains that earlier syncs emptied are deleted (F8).
    pub(super) fn transaction(&mut self, after_pause: bool) -> Vec<Command> {
        let collect = self.collect(after_pause);
        self.tables.iter_mut().flat_map(|table| table.commands(collect)).collect()
    }

    /// Returns what [`Tables::transaction`] would return if the kernel held what was last committed; `None` when the rules of a table that
    /// do not depend on Services change, because then the two results cannot be compared.
    pub(super) fn own_changes(&self, after_pause: bool) -> Option<Vec<Command>> {
        let collect = self.collect(after_pause);
        let mut commands = Vec::new();
        for table in self.own() {
            if table.records.has_new_static_rules() {
                return None;
            }
            commands.extend(table.records.changes(collect));
        }
        Some(commands)
    }

    /// Returns which emptied chains a transaction deletes.
    const fn collect(&self, after_pause: bool) -> Collect {
        match (after_pause, self.second_passed) {
            (true, _) => Collect::AllEmpty,
            (false, true) => Collect::EmptyForASecond,
            (false, false) => Collect::Nothing,
        }
    }

    /// Splits transactions that are longer than this many bytes, as far as tables that no packet passes yet allow it. Returns whether longer
    /// ones were sent before.
    pub(super) fn limit_batches(&mut self, bytes: usize) -> bool {
        let is_new = self.longest_batch.is_none_or(|before| before > bytes);
        if is_new {
            self.longest_batch = Some(bytes);
        }
        is_new
    }

    /// Returns the commands of [`Tables::transaction`] as transactions: one, unless the commands add many objects to tables that no packet
    /// passes yet, are longer than the kernel takes, or replace the rules of another layout.
    pub(super) fn transactions(&mut self, after_pause: bool) -> Transactions {
        let unseen = self.tables.iter().filter(|table| table.is_unseen()).map(|table| table.name().clone()).collect();
        let collect = self.collect(after_pause);
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for table in &mut self.tables {
            let mut commands = table.commands(collect);
            if table.records.has_new_static_rules() {
                later.extend(diff::deferred(&mut commands));
            }
            if now.is_empty() {
                now = commands;
            } else {
                now.extend(commands);
            }
        }
        Transactions { parts: diff::transactions(now, &unseen, self.longest_batch), later }
    }

    /// Returns whether emptied chains are left; they are deleted at least a second after they were emptied.
    pub(super) fn has_emptied_chains(&self) -> bool {
        self.tables.iter().any(|table| table.records.has_emptied_chains())
    }

    /// Notes that the kernel just committed these commands, so that the tables hold what their records say.
    pub(super) fn committed(&mut self, commands: &[Command], now: Instant) {
        let mut slipped = false;
        for table in &mut self.tables {
            let read = table.read.take();
            if table.is_foreign() {
                continue;
            }
            table.note_checks(commands, now);
            table.records.committed(commands, read.as_ref().map(Option::as_ref));
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

    /// Returns the number of elements of each set of each family's table as of the last commit. Verdict maps are counted together by the
    /// prefix of their names. Dynamic sets, which session affinity fills, are left out.
    pub(super) fn lens(&self) -> impl Iterator<Item = (Family, impl Iterator<Item = (&str, usize)>)> {
        self.tables.iter().map(|table| (table.settings.family, table.records.lens()))
    }

    /// Returns the differences between `dumps`, which are in the order of the tables, and what the tables should hold; each with the number
    /// of its table. Also the number of those of each table that are not listed.
    pub(super) fn differences(
        &mut self,
        dumps: Vec<Option<TableDump>>,
    ) -> (Vec<(usize, Difference<Owner>)>, Vec<usize>) {
        let (mut all, mut unlisted) = (Vec::new(), Vec::new());
        for ((number, table), dump) in self.tables.iter_mut().enumerate().zip(dumps) {
            let of_table = table.records.differences(dump);
            all.extend(of_table.listed.into_iter().map(|difference| (number, difference)));
            unlisted.push(of_table.unlisted);
        }
        (all, unlisted)
    }

    /// Returns the owners of the differing objects `whats`, in their order, in the table with the number `table`.
    pub(super) fn owners_of<'a>(
        &self,
        table: usize,
        whats: impl IntoIterator<Item = &'a DifferenceKind>,
    ) -> Vec<Option<Owner>> {
        self.tables[table].records.owners_of(whats)
    }

    /// Returns the objects of each port of a Service in the table with the number `table`.
    pub(super) fn objects_of_ports<'a>(
        &self,
        table: usize,
        selection: &'a ServiceSelection,
    ) -> Vec<(&'a Arc<str>, ServiceObjects)> {
        let settings = &self.tables[table].settings;
        let ports = selection.ports.iter().filter(|port| port.family == settings.family);
        let objects = |port: &'a PortSelection| {
            let alone =
                ServiceSelection { ports: vec![port.clone()], cluster_ips: Vec::new(), health_checks: Vec::new() };
            (&port.label, self.layout.service(settings, &alone))
        };
        ports.map(objects).collect()
    }

    /// Returns everything that the tables should hold, as a ruleset that prints as nft text.
    pub(super) fn content(&self) -> nft::Ruleset {
        nft::Ruleset { tables: self.tables.iter().map(|table| table.records.content()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use nft::Element;

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

    // If the bookkeeping of the tables is wrong, the next sync compares everything, and the process does not end (G7).
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

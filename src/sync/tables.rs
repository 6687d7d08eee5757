//! The tables of both families: what they should hold and what they hold.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashMap;
use nft::decode::DecodeError;
use nft::{Command, Element, Refusal, Set, TableName};

use crate::config::Config;
use crate::diff::{
    Collect, Desired, Fragment, LearnedMap, Objects, Realised, Scope, emptied_chains, has_garbage, transaction,
};
use crate::kernel::Kernel;
use crate::model::{Family, Node, ObjectName};
use crate::ruleset::{Layout, NodeFacts, Settings};
use crate::select::ServiceSelection;
use crate::sync::company::Company;
use crate::sync::looks::Looks;

/// Who contributes a part of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// The node's own facts.
    Node,
    /// A Service.
    Service(ObjectName),
}

/// The table of one family.
struct FamilyTable {
    settings: Settings,
    desired: Desired<Part>,
    realised: Realised,
    /// Maps filled by rules that have to be looked at again, because an endpoint was taken away.
    looks: Looks,
    /// Chains that were empty at the last tick; those that still are may be deleted at the next one.
    ripe: BTreeSet<Arc<str>>,
}

/// The tables of all families that this node serves.
pub(super) struct Tables<L> {
    layout: L,
    tables: Vec<FamilyTable>,
    /// Whether nobody else may change the tables.
    owned: bool,
    /// Whether `realised` is what the kernel holds.
    known: bool,
    /// What was written for Services depends on settings that are not in force any more.
    outdated: bool,
    /// At least a second has passed since the last tick that a sync took into account.
    tick: bool,
    /// What read-backs found that is not ours, but for other rules and elements.
    findings: Vec<String>,
    /// The parts, as of the last commit, of Services that were written since; no parts where there was nothing.
    former: HashMap<ObjectName, Parts>,
    /// Another kube-proxy that writes to the same tables.
    pub(super) company: Company,
}

/// The parts of a Service in each table, in order.
pub(super) type Parts = Vec<Fragment>;

/// Clients that are remembered for endpoints that are gone, in one map. Each may be forgotten by the kernel at any moment.
#[derive(Clone, Debug)]
pub(super) struct Expulsion {
    pub(super) table: TableName,
    pub(super) map: Arc<Set>,
    pub(super) clients: Vec<Element>,
}

impl FamilyTable {
    fn name(&self) -> &TableName {
        &self.desired.program().table.name
    }

    /// Notes which maps are to be looked at again after these commands: those of which the endpoints changed, unless they are new.
    fn note_looks(&mut self, commands: &[Command], now: Instant) {
        let name = &self.desired.program().table.name;
        let ours: Vec<&Command> = commands.iter().filter(|command| command.table() == name).collect();
        if ours.is_empty() {
            return;
        }
        let new = ours.into_iter().filter_map(|command| match command {
            Command::AddSet(_, set) => Some(&set.name),
            _ => None,
        });
        let new: BTreeSet<&Arc<str>> = new.collect();
        let changed =
            self.desired.touched_learned().filter(|map| map.allowed.is_some() && !new.contains(&map.set.name));
        changed.for_each(|map| self.looks.changed(&map.set.name, now));
    }

    /// Takes chains that were emptied again from those that have been empty for long; with a tick, starts anew with all.
    fn ripen(&mut self, commands: &[Command], tick: bool) {
        let table = &self.desired.program().table.name;
        if tick {
            self.ripe = emptied_chains(&self.desired, &self.realised).collect();
            return;
        }
        for command in commands.iter().filter(|command| command.table() == table) {
            if let Command::FlushChain(_, name) = command {
                self.ripe.remove(name);
            }
        }
    }

    /// The clients that are remembered for endpoints that are gone (E6): in all maps, or in those of which the endpoints changed.
    fn expulsions(&self, kernel: &mut impl Kernel, scope: Scope) -> Result<Vec<Expulsion>, nft::ReadError> {
        let maps: Vec<&LearnedMap> = match scope {
            Scope::Everything => self.desired.all_learned().collect(),
            Scope::Touched => self.desired.touched_learned().collect(),
        };
        let present = maps.into_iter().filter(|map| self.realised.has_set(&map.set.name));
        present.filter_map(|map| self.expulsion(kernel, map).transpose()).collect()
    }

    /// The same for one map; `None` when there is nobody.
    fn expulsion(&self, kernel: &mut impl Kernel, map: &LearnedMap) -> Result<Option<Expulsion>, nft::ReadError> {
        if map.allowed.is_none() {
            return Ok(None);
        }
        let clients = map.expelled(kernel.elements(self.name(), &map.set)?);
        let (table, map) = (self.name().clone(), Arc::clone(&map.set));
        Ok((!clients.is_empty()).then_some(Expulsion { table, map, clients }))
    }
}

impl<L: Layout> Tables<L> {
    /// Empty tables of which is not known what the kernel holds.
    pub(super) fn new(layout: L, families: &[Family], config: &Config) -> Self {
        let owned = config.own_tables;
        let table = |family: &Family| {
            let settings = super::settings::settings(config, None, *family, owned);
            let program = layout.program(&settings);
            let realised = Realised::absent(&program);
            FamilyTable {
                realised,
                desired: Desired::new(program),
                settings,
                looks: Looks::default(),
                ripe: BTreeSet::new(),
            }
        };
        Self {
            tables: families.iter().map(table).collect(),
            layout,
            owned,
            known: false,
            outdated: false,
            tick: false,
            findings: Vec::new(),
            former: HashMap::default(),
            company: Company::default(),
        }
    }

    /// How Services are written down.
    pub(super) fn layout(&self) -> &L {
        &self.layout
    }

    /// The families, in order.
    pub(super) fn families(&self) -> impl Iterator<Item = Family> {
        self.tables.iter().map(|table| table.settings.family)
    }

    /// The names of the tables.
    pub(super) fn names(&self) -> Vec<nft::TableName> {
        self.tables.iter().map(|table| table.desired.program().table.name.clone()).collect()
    }

    /// Takes over facts of the node and of the cluster that belong to no Service.
    pub(super) fn set_node(&mut self, config: &Config, node: Option<&Node>, interfaces: &[IpAddr], facts: NodeFacts) {
        let node_port_addresses = super::settings::node_port_addresses(config, node, interfaces);
        let facts = NodeFacts { node_port_addresses, ..facts };
        for table in &mut self.tables {
            let settings = super::settings::settings(config, node, table.settings.family, self.owned);
            if settings != table.settings {
                table.desired.set_program(self.layout.program(&settings));
                table.settings = settings;
                self.known = false;
                self.outdated = true;
            }
            table.desired.replace(Part::Node, self.layout.node(&table.settings, &facts));
        }
    }

    /// Takes over what was selected for a Service; `None` when it is gone.
    pub(super) fn set_service(&mut self, name: &ObjectName, selection: Option<&ServiceSelection>) {
        let part = |table: &FamilyTable| selection.map(|s| self.layout.service(&table.settings, s)).unwrap_or_default();
        let parts = self.tables.iter().map(part).collect();
        self.put(name, parts);
    }

    /// Puts these parts in the place of a Service's present ones.
    pub(super) fn put(&mut self, name: &ObjectName, parts: Parts) {
        if !self.former.contains_key(name) {
            let parts = self.parts(name);
            let nothing = parts.iter().all(Fragment::is_empty);
            self.former.insert(name.clone(), if nothing { Parts::new() } else { parts });
        }
        for (table, part) in self.tables.iter_mut().zip(parts) {
            table.desired.replace(Part::Service(name.clone()), part);
        }
    }

    /// The present parts of a Service.
    pub(super) fn parts(&self, name: &ObjectName) -> Parts {
        let owner = Part::Service(name.clone());
        self.tables.iter().map(|table| table.desired.fragment(&owner)).collect()
    }

    /// The parts of a Service as of the last commit; nothing of one that was not written since.
    pub(super) fn former(&self, name: &ObjectName) -> Parts {
        self.former.get(name).filter(|parts| !parts.is_empty()).cloned().unwrap_or_else(|| self.nothing())
    }

    /// The parts of a Service that contributes nothing.
    pub(super) fn nothing(&self) -> Parts {
        self.tables.iter().map(|_| Fragment::default()).collect()
    }

    /// The Services that contribute something that these commands add, or contributed something that they take away.
    pub(super) fn contributors(&self, commands: &[Command]) -> BTreeSet<ObjectName> {
        self.services_of(commands.iter().map(|command| (command, None)))
    }

    /// The Services that contribute what was refused; none when that cannot be told of all of it.
    pub(super) fn refused(&self, commands: &[Command], refusals: &[Refusal]) -> BTreeSet<ObjectName> {
        let refused = refusals.iter().filter_map(|refusal| Some((commands.get(refusal.command?)?, refusal.element)));
        self.services_of(refused)
    }

    fn services_of<'a>(&self, objects: impl Iterator<Item = (&'a Command, Option<usize>)>) -> BTreeSet<ObjectName> {
        let mut by_table: Vec<Objects> = self.tables.iter().map(|_| Objects::default()).collect();
        for (command, element) in objects {
            let tables = self.tables.iter().zip(&mut by_table);
            let mut fitting = tables.filter(|(table, _)| table.desired.program().table.name == *command.table());
            if let Some((_, objects)) = fitting.next() {
                objects.add(command, element);
            }
        }
        let present = self.tables.iter().zip(&by_table).flat_map(|(table, objects)| table.desired.owners(objects));
        let present = present.filter_map(|part| match part {
            Part::Node => None,
            Part::Service(name) => Some(name),
        });
        let met = |parts: &Parts| parts.iter().zip(&by_table).any(|(part, objects)| objects.meet(part));
        let former = self.former.iter().filter(|(_, parts)| met(parts)).map(|(name, _)| name);
        present.chain(former).cloned().collect()
    }

    /// Whether every Service has to be written again; says so once.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.outdated)
    }

    /// Does without owning the tables.
    pub(super) fn disown(&mut self) {
        self.owned = false;
        for table in &mut self.tables {
            table.settings.owned = false;
            table.desired.set_program(self.layout.program(&table.settings));
        }
        self.known = false;
    }

    /// Whether what the kernel holds is known.
    pub(super) fn known(&self) -> bool {
        self.known
    }

    /// Notes that at least a second has passed since the last call.
    pub(super) fn tick(&mut self) {
        self.tick = true;
    }

    /// Notes that the kernel may hold anything.
    pub(super) fn forget(&mut self) {
        self.known = false;
        // If it was a deletion that the kernel refused, the next sync does without.
        self.tick = false;
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
            let program = table.desired.program();
            let mut dump = match kernel.read(&program.table.name) {
                // Whoever writes to it all the time must not keep us from writing: it is made anew, unread.
                Err(nft::ReadError::Unstable) => {
                    let name = &program.table.name;
                    self.findings
                        .push(format!("table {name} changed during each attempt to read it, and is made anew"));
                    Some(unread(program.table.clone()))
                }
                other => other?,
            };
            found |= dump.as_mut().is_some_and(|dump| self.company.set_aside(dump, now));
            self.findings.extend(dump.iter().flat_map(findings));
            table.realised = Realised::from_dump(dump, program);
        }
        self.company.looked(found, now);
        self.known = true;
        Ok(())
    }

    /// What the last read-backs found that is not ours, but for other rules and elements, in words.
    pub(super) fn take_findings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.findings)
    }

    /// The commands that make the kernel hold what it should, for all families, but for what rules remember. `settled` says that
    /// the last sync was long enough ago to delete what it emptied.
    pub(super) fn transaction(&self, scope: Scope, settled: bool) -> Vec<Command> {
        let mut commands = Vec::new();
        for table in &self.tables {
            let collect = match (settled, self.tick) {
                (true, _) => Collect::Emptied,
                (false, true) => Collect::Of(&table.ripe),
                (false, false) => Collect::Nothing,
            };
            commands.extend(transaction(&table.desired, &table.realised, scope, collect));
        }
        commands
    }

    /// The clients that are to be forgotten together with this transaction, because it takes their endpoints away.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(super) fn expulsions(
        &self,
        kernel: &mut impl Kernel,
        scope: Scope,
        transaction: &[Command],
    ) -> Result<Vec<Expulsion>, nft::ReadError> {
        // A table that is made anew remembers nobody.
        let is_new = |table: &&FamilyTable| {
            transaction.iter().any(|command| matches!(command, Command::DeleteTable(name) if name == table.name()))
        };
        let mut expulsions = Vec::new();
        for table in self.tables.iter().filter(|table| !is_new(table)) {
            expulsions.extend(table.expulsions(kernel, scope)?);
        }
        Ok(expulsions)
    }

    /// When a map that rules fill is to be looked at again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.tables.iter().filter_map(|table| table.looks.next()).min()
    }

    /// The map that rules fill and that is to be looked at now, if there is one.
    pub(super) fn due(&self, now: Instant) -> Option<(TableName, Arc<str>)> {
        self.tables.iter().find_map(|table| Some((table.name().clone(), Arc::clone(table.looks.due(now)?))))
    }

    /// Looks at such a map, and gives the clients that are still remembered for endpoints that are gone.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(super) fn look(
        &mut self,
        kernel: &mut impl Kernel,
        (table, map): &(TableName, Arc<str>),
        now: Instant,
    ) -> Result<Option<Expulsion>, nft::ReadError> {
        let Some(table) = self.tables.iter_mut().find(|known| known.name() == table) else { return Ok(None) };
        let Some(learned) = table.desired.learned(map) else {
            table.looks.forget(map);
            return Ok(None);
        };
        let found = table.expulsion(kernel, learned).inspect_err(|_| table.looks.failed(map, now))?;
        table.looks.looked(map, found.is_some(), now);
        Ok(found)
    }

    /// Has the map of an expulsion looked at within [`crate::sync::looks`]'s usual time after a change.
    pub(super) fn look_soon(&mut self, expulsion: &Expulsion, now: Instant) {
        for table in self.tables.iter_mut().filter(|table| *table.name() == expulsion.table) {
            table.looks.changed(&expulsion.map.name, now);
        }
    }

    /// Has the map of an expulsion looked at at once, because the clients are still remembered, or later, if it just failed.
    pub(super) fn look_again(&mut self, expulsion: &Expulsion, failed: bool, now: Instant) {
        for table in self.tables.iter_mut().filter(|table| *table.name() == expulsion.table) {
            table.looks.hurry(&expulsion.map.name, now);
            if failed {
                table.looks.failed(&expulsion.map.name, now);
            }
        }
    }

    /// Whether something is left to do that has to wait a moment.
    pub(super) fn unfinished(&self) -> bool {
        self.tables.iter().any(|table| has_garbage(&table.desired, &table.realised))
    }

    /// Notes that the kernel carried out the commands of [`Tables::transaction`] just now.
    pub(super) fn committed(&mut self, commands: &[Command], now: Instant) {
        for table in &mut self.tables {
            let name = table.desired.program().table.name.clone();
            table.note_looks(commands, now);
            commands.iter().for_each(|command| table.realised.apply(command, &name));
            table.ripen(commands, self.tick);
            table.desired.settle();
        }
        self.tick = false;
        self.former = HashMap::default();
    }

    /// The sets of each family's table, as far as we know, with their numbers of elements; without those that rules fill.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Family, impl Iterator<Item = (&str, usize)>)> {
        self.tables.iter().map(|table| (table.settings.family, table.realised.counts()))
    }

    /// Everything the tables should hold, as nft text wants it.
    pub(super) fn content(&self) -> nft::Ruleset {
        nft::Ruleset { tables: self.tables.iter().map(|table| table.desired.content()).collect() }
    }
}

/// A table of which is known only that it is there.
fn unread(table: nft::Table) -> nft::TableDump {
    let error = DecodeError { object: "table", name: Some(Arc::clone(&table.name.name)), attribute: "content" };
    nft::TableDump { unreadable: vec![error], ..nft::TableDump::empty(table) }
}

/// Objects and errors that a finding names.
const FOUND: usize = 16;

/// What is in a table, or is said of it, that we never make; `None` when there is nothing.
fn findings(dump: &nft::TableDump) -> Option<String> {
    let dormant = dump.dormant.then(|| "is dormant".to_owned());
    let flags = (dump.unknown_flags != 0).then(|| format!("has the unknown flags {:#x}", dump.unknown_flags));
    let objects = dump.objects.iter().map(|object| format!("holds {object}"));
    let unreadable = dump.unreadable.iter().map(|error| format!("holds what we never make ({error})"));
    let all: Vec<String> = dormant.into_iter().chain(flags).chain(objects).chain(unreadable).take(FOUND).collect();
    (!all.is_empty()).then(|| format!("table {} {}", dump.table.name, all.join(", ")))
}

//! The tables of both families: what they should hold and what they hold.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::HashMap;
use nft::decode::DecodeError;
use nft::{Command, Refusal};

use crate::config::Config;
use crate::diff::{Collect, Desired, Fragment, Objects, Realised, Scope, emptied_chains, has_garbage, transaction};
use crate::kernel::Kernel;
use crate::model::{Family, Node, ObjectName};
use crate::ruleset::{Layout, NodeFacts, Settings};
use crate::select::ServiceSelection;

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
    /// Maps filled by rules that have to be looked at again: a packet that was on its way during the last commit may have put
    /// a value in that had just been expelled.
    recheck: BTreeSet<Arc<str>>,
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
}

/// The parts of a Service in each table, in order.
pub(super) type Parts = Vec<Fragment>;

impl FamilyTable {
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

    /// Deletes clients' memories of endpoints that are gone, so that they are balanced anew (E6).
    fn expulsions(
        &self,
        kernel: &mut impl Kernel,
        scope: Scope,
        settled: bool,
    ) -> Result<Vec<Command>, nft::ReadError> {
        let table = &self.desired.program().table.name;
        let mut names: BTreeSet<&Arc<str>> = match scope {
            Scope::Everything => self.desired.all_learned().map(|map| &map.set.name).collect(),
            Scope::Touched => self.desired.touched_learned().map(|map| &map.set.name).collect(),
        };
        if settled {
            names.extend(&self.recheck);
        }
        let mut commands = Vec::new();
        for map in names.into_iter().filter_map(|name| self.desired.learned(name)) {
            if map.allowed.is_none() || !self.realised.has_set(&map.set.name) {
                continue;
            }
            let expelled = map.expelled(kernel.elements(table, &map.set)?);
            if !expelled.is_empty() {
                commands.push(Command::DeleteElements(table.clone(), Arc::clone(&map.set), expelled));
            }
        }
        Ok(commands)
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
                recheck: BTreeSet::new(),
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
        }
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
        for table in &mut self.tables {
            let program = table.desired.program();
            let dump = match kernel.read(&program.table.name) {
                // Whoever writes to it all the time must not keep us from writing: it is made anew, unread.
                Err(nft::ReadError::Unstable) => {
                    let name = &program.table.name;
                    self.findings
                        .push(format!("table {name} changed during each attempt to read it, and is made anew"));
                    Some(unread(program.table.clone()))
                }
                other => other?.inspect(|dump| self.findings.extend(findings(dump))),
            };
            table.realised = Realised::from_dump(dump, program);
        }
        self.known = true;
        Ok(())
    }

    /// What the last read-backs found that is not ours, but for other rules and elements, in words.
    pub(super) fn take_findings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.findings)
    }

    /// The commands that make the kernel hold what it should, for all families. `settled` says that the last sync was long
    /// enough ago to delete what it emptied, and to look again at what it expelled.
    ///
    /// # Errors
    /// When the content of a map that rules fill cannot be read.
    pub(super) fn transaction(
        &self,
        kernel: &mut impl Kernel,
        scope: Scope,
        settled: bool,
    ) -> Result<Vec<Command>, nft::ReadError> {
        let mut commands = Vec::new();
        for table in &self.tables {
            let collect = match (settled, self.tick) {
                (true, _) => Collect::Emptied,
                (false, true) => Collect::Of(&table.ripe),
                (false, false) => Collect::Nothing,
            };
            commands.extend(transaction(&table.desired, &table.realised, scope, collect));
            commands.extend(table.expulsions(kernel, scope, settled)?);
        }
        Ok(commands)
    }

    /// Whether something is left to do that has to wait a moment.
    pub(super) fn unfinished(&self) -> bool {
        self.tables.iter().any(|table| !table.recheck.is_empty() || has_garbage(&table.desired, &table.realised))
    }

    /// Notes that the kernel carried out the commands of [`Tables::transaction`].
    pub(super) fn committed(&mut self, commands: &[Command], settled: bool) {
        for table in &mut self.tables {
            if settled {
                table.recheck.clear();
            }
            let limited = table.desired.touched_learned().filter(|map| map.allowed.is_some());
            table.recheck.extend(limited.map(|map| Arc::clone(&map.set.name)));
            let name = table.desired.program().table.name.clone();
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

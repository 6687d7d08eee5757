//! Lists the differences between the records (each has the wanted objects of its owner, a Service or the node) and a table that was read
//! from the kernel. Each difference is listed with its owner, if it has one.
//!
//! Takes the records and a table dump, returns [`Difference`]s. It serves commands that only report; the sync uses `comparison`.
//! Differences of elements and rules come from `comparison` too, so this module and `comparison` agree on when two objects are equal. For
//! some faults `comparison` would delete and create the whole table (for example a set of another type, or a base chain with another hook).
//! Here such a fault is one difference, and is then corrected in the dump, so that everything else is still compared.
//!
//! Invariant: equal inputs give equal differences.
//!
//! Not differences: the ownership of the table, chains on demand (shared chains such as `lb-3`) that no element goes to, chains without
//! rules that wait to be deleted, clients that session affinity has recorded. But a client that is recorded with an endpoint that its map
//! must not have is a difference.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashMap;
use nft::decode::DecodeError;
use nft::{
    Chain, Command, Element, ElementRef, Elements, NamedObject, Ownership, Rule, RuleDump, Set, TableContent,
    TableDump, TableName, TableState,
};

use super::record::Record;
use super::records::Records;
use super::{Collect, set_size, verdicts};
use crate::table::{ChainContent, fit};

/// A difference between the records and the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<Owner> {
    /// The owner (Service or node) of the object that differs; `None` if it belongs to the static rules or to no record.
    pub owner: Option<Owner>,
    /// The object that differs, and how it differs.
    pub what: DifferenceKind,
}

/// The object that differs: its wanted and its present form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The table does not exist.
    NoTable,
    /// The table has the flag `dormant`: its rules are not in effect.
    Dormant,
    /// The table has another comment, or flags that this program does not know.
    Table(TableState),
    /// An object of a type that this program never creates in this table, such as a flowtable.
    Object(NamedObject),
    /// An object that cannot be decoded, because it has a property that this program never writes.
    Unreadable(DecodeError),
    /// A chain is missing. Has the content that the chain should have.
    NoChain(ChainContent),
    /// A chain that should not exist, with the number of its rules. If it is not a base chain, the correction deletes only its rules; a
    /// later transaction deletes the chain.
    SurplusChain(Chain, usize),
    /// A chain has another type, hook, priority or comment. Its rules are not compared, because the chain has to be made anew.
    OtherChain {
        /// The chain that the table should have, with its rules.
        wanted: ChainContent,
        /// The chain in the kernel.
        present: Chain,
    },
    /// A chain has rules other than the wanted rules.
    Rules {
        /// The chain with its wanted rules.
        wanted: ChainContent,
        /// The rules that the chain has in the kernel.
        present: Vec<RuleDump>,
    },
    /// A set or map is missing.
    NoSet(Arc<Set>),
    /// A set or map that should not exist.
    SurplusSet(Arc<Set>),
    /// A set or map differs from the wanted one, for example in its type, flags or comment, or it is too small for its wanted elements.
    OtherSet {
        /// The set that the table should have.
        wanted: Arc<Set>,
        /// The set in the kernel.
        present: Arc<Set>,
    },
    /// An element is missing, should not exist, or has another value or comment.
    Element {
        /// The set or map of the element.
        set: Arc<Set>,
        /// The wanted element; `None` if it should not exist.
        wanted: Option<LedElement>,
        /// The element in the kernel; `None` if it is missing.
        present: Option<LedElement>,
    },
    /// A session affinity entry of a client whose endpoint the map must not have.
    StaleClient {
        /// The dynamic map, which rules fill while they process packets.
        set: Arc<Set>,
        /// The entry: client and endpoint.
        element: Element,
    },
}

/// An element, with the comment of the chain that it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedElement {
    /// The element with its key, and its value if it is of a map.
    pub element: Element,
    /// The comment of the chain that the element's verdict goes to; `None` if there is no such chain, or it has no comment.
    pub leads_to: Option<Arc<str>>,
}

impl DifferenceKind {
    /// The commands to show for the difference: they add, replace or delete the object that differs. None if the whole table has to be made
    /// anew: the sync or a start of the proxy does that, and until then deleting the table would only end what still works.
    ///
    /// The kernel refuses to delete a set, or a chain without a hook, that other rules or elements use; then too the sync makes the table
    /// anew.
    #[must_use]
    pub fn commands(&self, table: &TableName) -> Vec<Command> {
        let table = || table.clone();
        let elements = |held: &Option<LedElement>| held.iter().map(|held| held.element.clone()).collect::<Elements>();
        let rules = |content: &ChainContent| {
            let name = &content.chain.name;
            let add = |rule: &Rule| Command::AddRule(table(), Arc::clone(name), rule.clone());
            content.rules.iter().map(add).collect::<Vec<_>>()
        };
        match self {
            Self::NoTable | Self::Table(_) | Self::Unreadable(_) => Vec::new(),
            // Adding a table without flags makes a dormant one of that name active.
            Self::Dormant => vec![Command::AddTable(nft::Table { name: table(), comment: None })],
            Self::Object(object) => vec![Command::DeleteObject(table(), object.clone())],
            Self::NoChain(content) => {
                [vec![Command::AddChain(table(), content.chain.clone())], rules(content)].concat()
            }
            Self::SurplusChain(chain, _) => {
                let flush = Command::FlushChain(table(), Arc::clone(&chain.name));
                let delete = Command::DeleteChain(table(), Arc::clone(&chain.name));
                if chain.base.is_some() { vec![flush, delete] } else { vec![flush] }
            }
            Self::OtherChain { wanted, .. } => {
                let name = &wanted.chain.name;
                let delete =
                    [Command::FlushChain(table(), Arc::clone(name)), Command::DeleteChain(table(), Arc::clone(name))];
                [delete.to_vec(), vec![Command::AddChain(table(), wanted.chain.clone())], rules(wanted)].concat()
            }
            Self::Rules { wanted, present } => {
                let flush = Command::FlushChain(table(), Arc::clone(&wanted.chain.name));
                let flush = if present.is_empty() { Vec::new() } else { vec![flush] };
                [flush, rules(wanted)].concat()
            }
            Self::NoSet(set) => vec![Command::AddSet(table(), Arc::clone(set))],
            Self::SurplusSet(set) => vec![Command::DeleteSet(table(), Arc::clone(set))],
            Self::OtherSet { wanted, present } => {
                vec![Command::DeleteSet(table(), Arc::clone(present)), Command::AddSet(table(), Arc::clone(wanted))]
            }
            Self::Element { set, wanted, present } => {
                let (delete, add) = (elements(present), elements(wanted));
                let delete = (!delete.is_empty()).then(|| Command::DeleteElements(table(), Arc::clone(set), delete));
                let add = (!add.is_empty()).then(|| Command::AddElements(table(), Arc::clone(set), add));
                delete.into_iter().chain(add).collect()
            }
            Self::StaleClient { set, element } => {
                let elements = [element.clone()].into_iter().collect();
                vec![Command::DeleteElements(table(), Arc::clone(set), elements)]
            }
        }
    }
}

/// The dump that the kernel would return for a table with this content.
#[must_use]
pub fn as_read(content: &TableContent) -> TableDump {
    let family = content.table.name.family;
    let rules = |rules: &[Rule]| rules.iter().map(|rule| rule.to_dump(family)).collect();
    let chain = |(chain, of_chain): &(Chain, Vec<Rule>)| (Arc::clone(&chain.name), (chain.clone(), rules(of_chain)));
    let set = |(set, elements): &nft::SetContent| (Arc::clone(&set.name), (Set::clone(set), elements.clone().into()));
    TableDump {
        chains: content.chains.iter().map(chain).collect(),
        sets: content.sets.iter().map(set).collect(),
        ..TableDump::empty(content.table.clone())
    }
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// Returns the differences between a table that was read and the wanted records. In the records, the values of numbered elements get
    /// the numbers that they have in the table, so that equal values are no difference.
    pub fn differences(&mut self, dump: Option<TableDump>) -> Vec<Difference<Owner>> {
        let Some(mut dump) = dump else { return vec![Difference { owner: None, what: DifferenceKind::NoTable }] };
        let mut found = Finder { found: Vec::new(), hidden: BTreeSet::new() };
        found.of_table(self, &mut dump);
        found.of_chains(self, &mut dump);
        found.of_sets(self, &mut dump);
        let commands = self.comparison(Some(&dump), Collect::Nothing);
        found.of_commands(self, &dump, &commands);
        found.stale_clients(self, &dump);
        let owners = self.owners_of(&found.found);
        let found = found.found.into_iter().zip(owners);
        found.map(|(what, owner)| Difference { owner, what }).collect()
    }

    /// The owner of the object of each difference; `None` if no record has the object.
    pub fn owners_of<'a>(&self, whats: impl IntoIterator<Item = &'a DifferenceKind>) -> Vec<Option<Owner>> {
        let whats: Vec<&DifferenceKind> = whats.into_iter().collect();
        let mut owners: Vec<Option<&Owner>> = vec![None; whats.len()];
        let mut by_key: HashMap<(u16, &[u8]), Vec<usize>> = HashMap::default();
        let mut by_name: HashMap<&str, Vec<usize>> = HashMap::default();
        for (number, what) in whats.iter().enumerate() {
            if let Some((name, key)) = what.element()
                && let Some(set) = self.static_rules.sets.iter().position(|set| *set.name == *name)
            {
                let set: u16 = fit(set);
                by_key.entry((set, key)).or_default().push(number);
                // In a map with numbered elements the key ends with the number, and a record has only the part before it.
                let prefix = key.split_last_chunk::<4>().map(|(prefix, _)| prefix);
                if let Some(prefix) = prefix.filter(|_| self.static_rules.slotted.iter().any(|slotted| slotted == name))
                {
                    by_key.entry((set, prefix)).or_default().push(number);
                }
            } else if let Some(name) = what.name() {
                by_name.entry(name).or_default().push(number);
            }
        }
        for (owner, record) in self.wanted() {
            let keys = record.entries().filter_map(|entry| by_key.get(&(entry.set, entry.key())));
            let names = record.own_names().filter_map(|name| by_name.get(name));
            for number in keys.chain(names).flatten() {
                let known = &mut owners[*number];
                // If several owners have the key, takes the smallest, so that the result is always the same.
                *known = Some(known.map_or(owner, |known| known.min(owner)));
            }
        }
        owners.into_iter().map(|owner| owner.cloned()).collect()
    }

    /// The number of elements that each set of the static rules should have.
    fn wanted_lens(&self) -> Vec<usize> {
        let mut totals = self.totals.clone();
        for (_, now, before) in self.changed() {
            totals.replace(before, now);
        }
        (0..).take(self.static_rules.sets.len()).map(|set| totals.len(set)).collect()
    }
}

impl Record {
    /// The names of the sets and chains that belong to the owner only.
    fn own_names(&self) -> impl Iterator<Item = &str> {
        let chains = self.chains().iter().map(|content| &*content.chain.name);
        self.own_sets().map(|set| &*set.name).chain(chains)
    }
}

impl DifferenceKind {
    /// The set and the key, if the difference is an element.
    #[must_use]
    pub fn element(&self) -> Option<(&str, &[u8])> {
        match self {
            Self::Element { set, wanted, present } => {
                let held = wanted.as_ref().or(present.as_ref())?;
                Some((&*set.name, held.element.key.as_slice()))
            }
            _ => None,
        }
    }

    /// The name of the chain or set that differs or that has the element; `None` for the table, for objects of other types, and if the name
    /// could not be read.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        Some(match self {
            Self::NoTable | Self::Dormant | Self::Table(_) | Self::Object(_) => return None,
            Self::Unreadable(error) => error.name.as_deref()?,
            Self::NoChain(content) | Self::Rules { wanted: content, .. } | Self::OtherChain { wanted: content, .. } => {
                &content.chain.name
            }
            Self::SurplusChain(chain, _) => &chain.name,
            Self::NoSet(set)
            | Self::SurplusSet(set)
            | Self::OtherSet { wanted: set, .. }
            | Self::Element { set, .. }
            | Self::StaleClient { set, .. } => &set.name,
        })
    }

    /// The comments of the wanted and of the present object; for an element, its own comment and that of its set. Most comments of Services'
    /// objects contain the name of a service port.
    #[must_use]
    pub fn comments(&self) -> Vec<&str> {
        let comments = match self {
            Self::NoChain(content) | Self::Rules { wanted: content, .. } => [content.chain.comment.as_deref(), None],
            Self::SurplusChain(chain, _) => [chain.comment.as_deref(), None],
            Self::OtherChain { wanted, present } => [wanted.chain.comment.as_deref(), present.comment.as_deref()],
            Self::NoSet(set) | Self::SurplusSet(set) | Self::StaleClient { set, .. } => [set.comment.as_deref(), None],
            Self::OtherSet { wanted, present } => [wanted.comment.as_deref(), present.comment.as_deref()],
            // In a map that belongs to one service port, the map has its name as a comment, and the elements have no comment.
            Self::Element { set, wanted, present } => {
                let mut of_element =
                    [wanted, present].into_iter().flatten().map(|held| held.element.comment.as_deref());
                [of_element.find_map(|comment| comment), set.comment.as_deref()]
            }
            _ => [None, None],
        };
        comments.into_iter().flatten().collect()
    }
}

struct Finder {
    found: Vec<DifferenceKind>,
    /// The kind and name of each object that exists but could not be decoded or compared, so it must not be reported as missing.
    hidden: BTreeSet<(&'static str, Arc<str>)>,
}

impl Finder {
    /// Finds differences of the table itself, and objects that this program never creates.
    fn of_table<Owner>(&mut self, records: &Records<Owner>, dump: &mut TableDump) {
        if std::mem::take(&mut dump.dormant) {
            self.found.push(DifferenceKind::Dormant);
        }
        let unknown_flags = std::mem::take(&mut dump.unknown_flags);
        if unknown_flags != 0 || dump.table != records.static_rules.table {
            dump.table = records.static_rules.table.clone();
            self.found.push(DifferenceKind::Table(TableState { unknown_flags, ..TableState::default() }));
        }
        // Ownership (which process may change the table) does not affect packets, so it is not a difference.
        dump.ownership = if records.static_rules.owned { Ownership::Ours } else { Ownership::Unowned };
        self.found.extend(std::mem::take(&mut dump.objects).into_iter().map(DifferenceKind::Object));
        for error in std::mem::take(&mut dump.unreadable) {
            self.hidden.extend(error.name.clone().map(|name| (error.object, name)));
            self.found.push(DifferenceKind::Unreadable(error));
        }
    }

    /// Finds chains with another type, hook, priority or comment, and base chains that should not exist.
    fn of_chains<Owner: Clone + Eq + Hash + Ord>(&mut self, records: &Records<Owner>, dump: &mut TableDump) {
        let (wanted, family) = (chains(records), dump.table.name.family);
        dump.chains.retain(|name, (chain, rules)| {
            let what = match wanted.get(&**name) {
                Some(content) if content.chain == *chain => return true,
                Some(content) => {
                    *rules = content.rules.iter().map(|rule| rule.to_dump(family)).collect();
                    let present = std::mem::replace(chain, content.chain.clone());
                    DifferenceKind::OtherChain { wanted: ChainContent::clone(content), present }
                }
                None if chain.base.is_none() => return true,
                None => DifferenceKind::SurplusChain(chain.clone(), rules.len()),
            };
            let stays = matches!(what, DifferenceKind::OtherChain { .. });
            self.found.push(what);
            stays
        });
    }

    /// Finds sets that differ from the wanted ones, sets that are too small, and surplus sets that are neither dynamic nor maps from numbers
    /// to verdicts; [`Self::of_commands`] finds these.
    fn of_sets<Owner: Clone + Eq + Hash + Ord>(&mut self, records: &Records<Owner>, dump: &mut TableDump) {
        let lens = records.wanted_lens();
        let of_static = records.static_rules.sets.iter().zip(&lens).map(|(set, len)| (&*set.name, (set, *len)));
        let own = records.wanted().flat_map(|(_, record)| record.own_sets()).map(|set| (&*set.name, (set, 0)));
        let wanted: HashMap<&str, (&Arc<Set>, usize)> = own.chain(of_static).collect();
        let is_static = |name: &str| records.static_rules.sets.iter().any(|set| *set.name == *name);
        let mut others = Vec::new();
        for (name, (present, _)) in &mut dump.sets {
            let other = |wanted: &Arc<Set>, present: &Set| DifferenceKind::OtherSet {
                wanted: Arc::clone(wanted),
                present: Arc::new(present.clone()),
            };
            match wanted.get(&**name) {
                Some((set, _)) if !set_size::is_same_kind(set, present) => {
                    others.push(Arc::clone(name));
                    self.hidden.insert(("set", Arc::clone(name)));
                    self.found.push(other(set, present));
                }
                Some((set, len)) if is_static(name) && set_size::needs_resize(set, present.size, *len) => {
                    let with_capacity = set_size::with_capacity(set, *len);
                    self.found.push(other(&with_capacity, present));
                    present.size = with_capacity.size;
                }
                Some(_) => {}
                None if present.flags.dynamic || verdicts::can_be_verdict_map(present) => {}
                // An anonymous set is part of a rule, and rules are compared as a whole.
                None if present.flags.anonymous => others.push(Arc::clone(name)),
                None => {
                    others.push(Arc::clone(name));
                    self.found.push(DifferenceKind::SurplusSet(Arc::new(present.clone())));
                }
            }
        }
        dump.sets.retain(|name, _| !others.contains(name));
    }

    /// Turns the commands that `comparison` returned into differences.
    fn of_commands<Owner: Clone + Eq + Hash + Ord>(
        &mut self,
        records: &Records<Owner>,
        dump: &TableDump,
        commands: &[Command],
    ) {
        let wanted = chains(records);
        let content = |name: &str| {
            let known = wanted.get(name).map(|content| ChainContent::clone(content));
            known.or_else(|| (records.static_rules.on_demand)(name))
        };
        let mut elements = Changed::default();
        let (mut new, mut other) = (BTreeSet::new(), BTreeSet::new());
        for command in commands {
            match command {
                Command::AddChain(_, chain) => drop(new.insert(&chain.name)),
                Command::FlushChain(_, name) | Command::AddRule(_, name, _) => drop(other.insert(name)),
                Command::AddSet(_, set) if !self.is_hidden("set", &set.name) => {
                    self.found.push(DifferenceKind::NoSet(Arc::clone(set)));
                }
                Command::DeleteSet(_, set) => self.found.push(DifferenceKind::SurplusSet(Arc::clone(set))),
                Command::AddElements(_, set, list) => elements.add(set, list, true),
                Command::DeleteElements(_, set, list) => elements.add(set, list, false),
                // Only commands for sets that were reported already come here: the table in the dump was corrected before, and `comparison`
                // was told to delete no chains.
                _ => {}
            }
        }
        for name in new.union(&other) {
            let present = dump.chains.get(&***name);
            let what = match (content(name), present) {
                _ if self.is_hidden("chain", name) || self.is_hidden("rule", name) => continue,
                (Some(wanted), Some((_, present))) => DifferenceKind::Rules { wanted, present: present.clone() },
                (Some(wanted), None) => DifferenceKind::NoChain(wanted),
                (None, Some((chain, rules))) => DifferenceKind::SurplusChain(chain.clone(), rules.len()),
                (None, None) => continue,
            };
            self.found.push(what);
        }
        let comment = |name: &str| {
            let of_record = wanted.get(name).and_then(|content| content.chain.comment.clone());
            of_record.or_else(|| dump.chains.get(name)?.0.comment.clone())
        };
        elements.finish(self, comment);
    }

    fn is_hidden(&self, kind: &'static str, name: &Arc<str>) -> bool {
        self.hidden.contains(&(kind, Arc::clone(name)))
    }

    fn stale_clients<Owner: Clone + Eq + Hash + Ord>(&mut self, records: &Records<Owner>, dump: &TableDump) {
        let mut found = BTreeMap::new();
        for (_, map) in records.dynamic_sets() {
            if let Some((_, elements)) = dump.sets.get(&map.set.name) {
                found.insert(
                    &map.set.name,
                    (&map.set, map.not_allowed(elements.iter().map(ElementRef::element).collect())),
                );
            }
        }
        for (set, elements) in found.into_values() {
            self.found.extend(
                elements.into_iter().map(|element| DifferenceKind::StaleClient { set: Arc::clone(set), element }),
            );
        }
    }
}

/// All chains of the static rules and of the records, by name.
fn chains<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>) -> HashMap<&str, &ChainContent> {
    let own = records.wanted().flat_map(|(_, record)| record.chains());
    records.static_rules.chains.iter().chain(own).map(|content| (&*content.chain.name, content)).collect()
}

/// The elements that `comparison` deletes and adds, by set name and key.
#[derive(Default)]
struct Changed(BTreeMap<Arc<str>, (Arc<Set>, Pairs)>);

/// Pairs of present and wanted element, by key.
type Pairs = BTreeMap<Vec<u8>, Pair>;

/// The present and the wanted element with one key.
type Pair = (Option<Element>, Option<Element>);

impl Changed {
    fn add(&mut self, set: &Arc<Set>, list: &Elements, is_wanted: bool) {
        let entry = self.0.entry(Arc::clone(&set.name));
        let (_, keys) = entry.or_insert_with(|| (Arc::clone(set), Pairs::new()));
        for element in list {
            let (present, wanted) = keys.entry(element.key().to_vec()).or_default();
            *(if is_wanted { wanted } else { present }) = Some(element.element());
        }
    }

    fn finish(self, finder: &mut Finder, comment: impl Fn(&str) -> Option<Arc<str>>) {
        let held = |element: Element| {
            let leads_to = match &element.value {
                nft::Value::Verdict(verdict) => verdict.chain().and_then(|chain| comment(chain)),
                nft::Value::None | nft::Value::Data(_) => None,
            };
            LedElement { element, leads_to }
        };
        for (name, (set, keys)) in self.0 {
            // If some elements of the set could not be decoded, a wanted element may exist although the dump lacks it.
            let is_partial = finder.is_hidden("elements", &name);
            let known = keys.into_values().filter(|(present, _)| !is_partial || present.is_some());
            finder.found.extend(known.map(|(present, wanted)| DifferenceKind::Element {
                set: Arc::clone(&set),
                wanted: wanted.map(held),
                present: present.map(held),
            }));
        }
    }
}

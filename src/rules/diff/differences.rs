//! The differences between a table that was read and the records, one by one, each with its owner.
//!
//! Takes the records and a table as it was read, gives [`Difference`]s. For commands that look; the sync writes what `comparison` gives.
//! Elements and rules are found by that comparison too, so both agree on what is equal. A fault for which it would make the whole table
//! anew (another kind of set, a base chain elsewhere, an object of another program) is a difference of its own here, and is taken for
//! right after that, so that everything else is still compared.
//!
//! Invariants: no difference if and only if the comparison gives no commands; equal inputs give equal differences.
//!
//! No differences: chains on demand that nothing leads to, emptied chains that wait to be deleted, clients that rules remember. A client
//! that is remembered for an endpoint that its map must not hold is one.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashMap;
use nft::decode::DecodeError;
use nft::{
    Chain, Command, Element, Elements, NamedObject, Ownership, Rule, RuleDump, Set, TableContent, TableDump, TableName,
    TableState,
};

use super::record::Record;
use super::records::Records;
use super::{Collect, set_size, verdicts};
use crate::table::{ChainContent, fit};

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<Owner> {
    /// The owner of the object that differs; `None` when it belongs to the fixed part, or to nobody.
    pub owner: Option<Owner>,
    /// The object, and how it differs.
    pub what: DifferenceKind,
}

/// A thing that differs: what is wanted, and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// There is no table.
    NoTable,
    /// The table has the flag `dormant`: no packet passes it.
    Dormant,
    /// The table has another comment, or flags that are not known.
    Table(TableState),
    /// An object that no table of this program has.
    Object(NamedObject),
    /// Something that cannot be read, because this program never writes such a thing.
    Unreadable(DecodeError),
    /// A chain that is not there.
    NoChain(ChainContent),
    /// A chain that should not be there; of one without a hook only its rules should go.
    SurplusChain(Chain, usize),
    /// A chain with another hook, priority or comment.
    OtherChain {
        /// As it should be.
        wanted: Chain,
        /// As it is.
        present: Chain,
    },
    /// A chain with other rules.
    Rules {
        /// The chain with the rules that it should have.
        wanted: ChainContent,
        /// The rules that it has.
        present: Vec<RuleDump>,
    },
    /// A set or map that is not there.
    NoSet(Arc<Set>),
    /// A set or map that should not be there.
    SurplusSet(Arc<Set>),
    /// A set or map of another type, with other flags, another comment, or without room for its elements.
    OtherSet {
        /// As it should be.
        wanted: Arc<Set>,
        /// As it is.
        present: Arc<Set>,
    },
    /// An element: one of both is there, or they differ.
    Element {
        /// Its set or map.
        set: Arc<Set>,
        /// As it should be.
        wanted: Option<LedElement>,
        /// As it is.
        present: Option<LedElement>,
    },
    /// A client that is remembered for an endpoint that the map must not hold.
    StaleClient {
        /// A dynamic set: the packet path fills it (session affinity).
        set: Arc<Set>,
        /// Client and endpoint.
        element: Element,
    },
}

/// An element, and what is known of the chain that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedElement {
    /// The element.
    pub element: Element,
    /// The comment of the chain that its verdict leads to.
    pub leads_to: Option<Arc<str>>,
}

impl DifferenceKind {
    /// The commands that put it right, in an order that the kernel accepts if nothing else is wrong.
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
            Self::NoTable | Self::Dormant => vec![Command::AddTable(nft::Table { name: table(), comment: None })],
            Self::Table(_) | Self::Unreadable(_) => vec![Command::DeleteTable(table())],
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
                let name = &wanted.name;
                let delete =
                    [Command::FlushChain(table(), Arc::clone(name)), Command::DeleteChain(table(), Arc::clone(name))];
                [delete.to_vec(), vec![Command::AddChain(table(), wanted.clone())]].concat()
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

/// A table as the kernel would list it.
#[must_use]
pub fn as_read(content: &TableContent) -> TableDump {
    let family = content.table.name.family;
    let rules = |rules: &[Rule]| rules.iter().map(|rule| rule.to_dump(family)).collect();
    let chain = |(chain, of_chain): &(Chain, Vec<Rule>)| (Arc::clone(&chain.name), (chain.clone(), rules(of_chain)));
    let set = |(set, elements): &nft::SetContent| (Arc::clone(&set.name), (Set::clone(set), elements.clone()));
    TableDump {
        chains: content.chains.iter().map(chain).collect(),
        sets: content.sets.iter().map(set).collect(),
        ..TableDump::empty(content.table.clone())
    }
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// The differences between a table that was read and these records, committed or new. The records take the numbers of slots that the
    /// table has.
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

    /// The owner of each of these, as far as the records have what it is about.
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
                // In a map of slots the key ends with the number of the slot.
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
                // Of several owners of one key always the same one.
                *known = Some(known.map_or(owner, |known| known.min(owner)));
            }
        }
        owners.into_iter().map(|owner| owner.cloned()).collect()
    }

    /// Number of elements that a set of the static rules should hold.
    fn wanted_lens(&self) -> Vec<usize> {
        let mut totals = self.totals.clone();
        for (_, now, before) in self.changed() {
            totals.replace(before, now);
        }
        (0..).take(self.static_rules.sets.len()).map(|set| totals.len(set)).collect()
    }
}

impl Record {
    /// The names of sets and chains of its own.
    fn own_names(&self) -> impl Iterator<Item = &str> {
        let chains = self.chains().iter().map(|content| &*content.chain.name);
        self.own_sets().map(|set| &*set.name).chain(chains)
    }
}

impl DifferenceKind {
    /// The set and the key of an element that is not in a set of one owner.
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

    /// The chain or set that it is, or that it is in.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        Some(match self {
            Self::NoTable | Self::Dormant | Self::Table(_) | Self::Object(_) => return None,
            Self::Unreadable(error) => error.name.as_deref()?,
            Self::NoChain(content) | Self::Rules { wanted: content, .. } => &content.chain.name,
            Self::SurplusChain(chain, _) | Self::OtherChain { wanted: chain, .. } => &chain.name,
            Self::NoSet(set)
            | Self::SurplusSet(set)
            | Self::OtherSet { wanted: set, .. }
            | Self::Element { set, .. }
            | Self::StaleClient { set, .. } => &set.name,
        })
    }

    /// The comments of what should be and of what is there: most name a service port.
    #[must_use]
    pub fn comments(&self) -> Vec<&str> {
        let comments = match self {
            Self::NoChain(content) | Self::Rules { wanted: content, .. } => [content.chain.comment.as_deref(), None],
            Self::SurplusChain(chain, _) => [chain.comment.as_deref(), None],
            Self::OtherChain { wanted, present } => [wanted.comment.as_deref(), present.comment.as_deref()],
            Self::NoSet(set) | Self::SurplusSet(set) | Self::StaleClient { set, .. } => [set.comment.as_deref(), None],
            Self::OtherSet { wanted, present } => [wanted.comment.as_deref(), present.comment.as_deref()],
            // In a map of one owner the elements have no comment, and the map has one.
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

/// Collects what differs.
struct Finder {
    found: Vec<DifferenceKind>,
    /// The kind and name of what could not be read: it is there, so it is not missing.
    hidden: BTreeSet<(&'static str, Arc<str>)>,
}

impl Finder {
    /// The table itself, and what no table of this program has.
    fn of_table<Owner>(&mut self, records: &Records<Owner>, dump: &mut TableDump) {
        if std::mem::take(&mut dump.dormant) {
            self.found.push(DifferenceKind::Dormant);
        }
        let unknown_flags = std::mem::take(&mut dump.unknown_flags);
        if unknown_flags != 0 || dump.table != records.static_rules.table {
            dump.table = records.static_rules.table.clone();
            self.found.push(DifferenceKind::Table(TableState { unknown_flags, ..TableState::default() }));
        }
        // Which process may write to the table is no part of what it does.
        dump.ownership = if records.static_rules.owned { Ownership::Ours } else { Ownership::Unowned };
        self.found.extend(std::mem::take(&mut dump.objects).into_iter().map(DifferenceKind::Object));
        for error in std::mem::take(&mut dump.unreadable) {
            self.hidden.extend(error.name.clone().map(|name| (error.object, name)));
            self.found.push(DifferenceKind::Unreadable(error));
        }
    }

    /// Chains with another hook or comment, and base chains that should not be there.
    fn of_chains<Owner: Clone + Eq + Hash + Ord>(&mut self, records: &Records<Owner>, dump: &mut TableDump) {
        let wanted = chains(records);
        dump.chains.retain(|name, (chain, rules)| {
            let what = match wanted.get(&**name) {
                Some(content) if content.chain == *chain => return true,
                Some(content) => DifferenceKind::OtherChain {
                    wanted: content.chain.clone(),
                    present: std::mem::replace(chain, content.chain.clone()),
                },
                None if chain.base.is_none() => return true,
                None => DifferenceKind::SurplusChain(chain.clone(), rules.len()),
            };
            let stays = matches!(what, DifferenceKind::OtherChain { .. });
            self.found.push(what);
            stays
        });
    }

    /// Sets of another kind, too small ones, and those that no record could have had.
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
                // One without a name belongs to a rule, and rules are compared as a whole.
                None if present.flags.anonymous => others.push(Arc::clone(name)),
                None => {
                    others.push(Arc::clone(name));
                    self.found.push(DifferenceKind::SurplusSet(Arc::new(present.clone())));
                }
            }
        }
        dump.sets.retain(|name, _| !others.contains(name));
    }

    /// Takes each command of the comparison as a difference.
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
                // The table was made one that is kept, and chains that are empty stay.
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
                found.insert(&map.set.name, (&map.set, map.not_allowed(elements.clone())));
            }
        }
        for (set, elements) in found.into_values() {
            self.found.extend(
                elements.into_iter().map(|element| DifferenceKind::StaleClient { set: Arc::clone(set), element }),
            );
        }
    }
}

/// Every chain that is always there, and those of owners, by name.
fn chains<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>) -> HashMap<&str, &ChainContent> {
    let own = records.wanted().flat_map(|(_, record)| record.chains());
    records.static_rules.chains.iter().chain(own).map(|content| (&*content.chain.name, content)).collect()
}

/// Elements that are deleted and added, by the name of the set and the key.
#[derive(Default)]
struct Changed(BTreeMap<Arc<str>, (Arc<Set>, Pairs)>);

/// Elements by their keys.
type Pairs = BTreeMap<Vec<u8>, Pair>;

/// An element as it is and as it should be.
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
            // A list that could not be read lacks elements that are there.
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

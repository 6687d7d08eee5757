//! Lists the differences between the records (each has the wanted objects of its owner, a Service or the node) and a table that was read
//! from the kernel. Each difference is listed with its owner, if it has one.
//!
//! Takes the records and a table dump, returns [`Difference`]s. It serves commands that only report; the sync uses `comparison`.
//! Differences of elements and rules come from `comparison` too, so this module and `comparison` agree on when two objects are equal. For
//! some faults `comparison` would delete and create the whole table (for example a set of another type, or a base chain with another hook).
//! Here such a fault is one difference, and is then corrected in the dump, so that everything else is still compared. The elements of a set
//! that has to be made anew are part of the one difference of the set.
//!
//! The differences are found in the same order each time, and after the first [`MOST_LISTED`] they are only counted.
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
use nft::{Chain, Command, ElementRef, Elements, Ownership, Rule, Set, TableContent, TableDump, TableState};

pub use super::difference::{Difference, DifferenceKind, Differences, LedElement, MOST_LISTED};
use super::record::Record;
use super::records::Records;
use super::set_changes::all_elements;
use super::{Collect, set_size, verdicts};
use crate::table::{ChainContent, fit};

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
    pub fn differences(&mut self, dump: Option<TableDump>) -> Differences<Owner> {
        let Some(mut dump) = dump else {
            let listed = vec![Difference { owner: None, what: DifferenceKind::NoTable }];
            return Differences { listed, unlisted: 0 };
        };
        let mut found = Finder::default();
        found.of_table(self, &mut dump);
        found.of_chains(self, &mut dump);
        found.of_sets(self, &mut dump);
        let commands = self.comparison(Some(&dump), Collect::Nothing);
        found.of_commands(self, &dump, &commands);
        found.stale_clients(self, &dump);
        let owners = self.owners_of(&found.found);
        let listed = found.found.into_iter().zip(owners).map(|(what, owner)| Difference { owner, what }).collect();
        Differences { listed, unlisted: found.unlisted }
    }

    /// The owner of the object of each difference; `None` if no record has the object.
    pub fn owners_of<'a>(&self, whats: impl IntoIterator<Item = &'a DifferenceKind>) -> Vec<Option<Owner>> {
        let whats: Vec<&DifferenceKind> = whats.into_iter().collect();
        let mut owners: Vec<Option<&Owner>> = vec![None; whats.len()];
        let mut by_key: HashMap<(u16, &[u8]), Vec<usize>> = HashMap::default();
        let mut by_name: HashMap<&str, Vec<usize>> = HashMap::default();
        for (number, what) in whats.iter().enumerate() {
            if let Some((name, key)) = what.element()
                && let Some(set) = self.static_number(name)
            {
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

    /// The number of a set of the static rules; `None` if they do not have it.
    fn static_number(&self, name: &str) -> Option<u16> {
        self.static_rules.sets.iter().position(|set| *set.name == *name).map(fit)
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

#[derive(Default)]
struct Finder {
    /// At most [`MOST_LISTED`].
    found: Vec<DifferenceKind>,
    /// The number of differences that came after these.
    unlisted: usize,
    /// The kind and name of each object that exists but could not be decoded, so it must not be reported as missing.
    hidden: BTreeSet<(&'static str, Arc<str>)>,
    /// The sets in the kernel that have to be made anew, by name. The dump does not have them any more.
    others: BTreeMap<Arc<str>, Arc<Set>>,
}

impl Finder {
    fn push(&mut self, what: DifferenceKind) {
        if self.found.len() < MOST_LISTED {
            self.found.push(what);
        } else {
            self.unlisted += 1;
        }
    }

    /// Finds differences of the table itself, and objects that this program never creates.
    fn of_table<Owner>(&mut self, records: &Records<Owner>, dump: &mut TableDump) {
        if std::mem::take(&mut dump.dormant) {
            self.push(DifferenceKind::Dormant);
        }
        let unknown_flags = std::mem::take(&mut dump.unknown_flags);
        if unknown_flags != 0 || dump.table != records.static_rules.table {
            dump.table = records.static_rules.table.clone();
            self.push(DifferenceKind::Table(TableState { unknown_flags, ..TableState::default() }));
        }
        // Ownership (which process may change the table) does not affect packets, so it is not a difference.
        dump.ownership = if records.static_rules.owned { Ownership::Ours } else { Ownership::Unowned };
        std::mem::take(&mut dump.objects).into_iter().for_each(|object| self.push(DifferenceKind::Object(object)));
        for error in std::mem::take(&mut dump.unreadable) {
            self.hidden.extend(error.name.clone().map(|name| (error.object, name)));
            self.push(DifferenceKind::Unreadable(error));
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
            self.push(what);
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
        dump.sets.retain(|name, (present, _)| {
            match wanted.get(&**name) {
                Some((set, _)) if !set_size::is_same_kind(set, present) => {
                    self.others.insert(Arc::clone(name), Arc::new(present.clone()));
                    return false;
                }
                Some((set, len)) => {
                    if let Some(number) = records.static_number(name)
                        && set_size::needs_resize(set, present.size, *len)
                    {
                        let wanted = set_size::with_capacity(set, *len);
                        let size = wanted.size;
                        let elements = all_elements(records, number);
                        self.push(DifferenceKind::OtherSet { wanted, present: Arc::new(present.clone()), elements });
                        present.size = size;
                    }
                }
                None if present.flags.dynamic || verdicts::can_be_verdict_map(present) => {}
                // An anonymous set is part of a rule, and rules are compared as a whole.
                None if present.flags.anonymous => return false,
                None => {
                    self.push(DifferenceKind::SurplusSet(Arc::new(present.clone())));
                    return false;
                }
            }
            true
        });
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
            known.or_else(|| records.static_rules.on_demand.content(name))
        };
        let mut elements = Changed::default();
        let mut sets = BTreeMap::new();
        let (mut new, mut other) = (BTreeSet::new(), BTreeSet::new());
        for command in commands {
            match command {
                Command::AddChain(_, chain) => drop(new.insert(&chain.name)),
                Command::FlushChain(_, name) | Command::AddRule(_, name, _) => drop(other.insert(name)),
                Command::AddSet(_, set) => drop(sets.insert(&set.name, (set, Elements::default()))),
                Command::DeleteSet(_, set) => self.push(DifferenceKind::SurplusSet(Arc::clone(set))),
                Command::AddElements(_, set, list) => match sets.get_mut(&set.name) {
                    Some((_, of_set)) if self.is_whole(records, &set.name) => of_set.clone_from(list),
                    _ => elements.add(set, list, true),
                },
                Command::DeleteElements(_, set, list) => elements.add(set, list, false),
                // Only commands for sets that were reported already come here: the table in the dump was corrected before, and `comparison`
                // was told to delete no chains.
                _ => {}
            }
        }
        self.whole_sets(sets.into_values());
        for name in new.union(&other) {
            let present = dump.chains.get(&***name);
            let what = match (content(name), present) {
                _ if self.is_hidden("chain", name) || self.is_hidden("rule", name) => continue,
                (Some(wanted), Some((_, present))) => DifferenceKind::Rules { wanted, present: present.clone() },
                (Some(wanted), None) => DifferenceKind::NoChain(wanted),
                (None, Some((chain, rules))) => DifferenceKind::SurplusChain(chain.clone(), rules.len()),
                (None, None) => continue,
            };
            self.push(what);
        }
        let comment = |name: &str| {
            let of_record = wanted.get(name).and_then(|content| content.chain.comment.clone());
            of_record.or_else(|| dump.chains.get(name)?.0.comment.clone())
        };
        elements.finish(self, comment);
    }

    /// Reports sets that are missing or of another form, each with the elements that it should have.
    fn whole_sets<'a>(&mut self, sets: impl Iterator<Item = (&'a Arc<Set>, Elements)>) {
        for (set, elements) in sets {
            let wanted = Arc::clone(set);
            match self.others.remove(&set.name) {
                Some(present) => self.push(DifferenceKind::OtherSet { wanted, present, elements }),
                None if self.is_hidden("set", &set.name) => {}
                None => self.push(DifferenceKind::NoSet { set: wanted, elements }),
            }
        }
    }

    /// Whether the difference of a set that has to be added says enough of its elements. Of a missing set of one owner it does not: see
    /// [`DifferenceKind::NoSet`].
    fn is_whole<Owner: Clone + Eq + Hash + Ord>(&self, records: &Records<Owner>, name: &Arc<str>) -> bool {
        records.static_number(name).is_some() || self.others.contains_key(name) || self.is_hidden("set", name)
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
            for element in elements {
                self.push(DifferenceKind::StaleClient { set: Arc::clone(set), element });
            }
        }
    }
}

/// All chains of the static rules and of the records, by name.
fn chains<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>) -> HashMap<&str, &ChainContent> {
    let own = records.wanted().flat_map(|(_, record)| record.chains());
    records.static_rules.chains.iter().chain(own).map(|content| (&*content.chain.name, content)).collect()
}

/// The elements that `comparison` deletes and adds, by set name; those that it adds are wanted.
#[derive(Default)]
struct Changed<'a>(BTreeMap<&'a Arc<str>, OfSet<'a>>);

/// A set, and its changed elements, each with whether it is wanted.
type OfSet<'a> = (&'a Arc<Set>, Vec<(ElementRef<'a>, bool)>);

impl<'a> Changed<'a> {
    fn add(&mut self, set: &'a Arc<Set>, list: &'a Elements, is_wanted: bool) {
        let (_, all) = self.0.entry(&set.name).or_insert_with(|| (set, Vec::new()));
        all.extend(list.iter().map(|element| (element, is_wanted)));
    }

    /// Joins the present and the wanted element of each key. They stay packed until here, because a set may have a million.
    fn finish(self, finder: &mut Finder, comment: impl Fn(&str) -> Option<Arc<str>>) {
        let held = |element: ElementRef<'_>| {
            let leads_to = element.target().and_then(&comment);
            LedElement { element: element.element(), leads_to }
        };
        for (name, (set, mut all)) in self.0 {
            // If some elements of the set could not be decoded, a wanted element may exist although the dump lacks it.
            let is_partial = finder.is_hidden("elements", name);
            all.sort_by_key(|(element, _)| element.key());
            for of_key in all.chunk_by(|(one, _), (next, _)| one.key() == next.key()) {
                let find =
                    |of| of_key.iter().find(|(_, is_wanted)| *is_wanted == of).map(|(element, _)| held(*element));
                let (present, wanted) = (find(false), find(true));
                if !is_partial || present.is_some() {
                    finder.push(DifferenceKind::Element { set: Arc::clone(set), wanted, present });
                }
            }
        }
    }
}

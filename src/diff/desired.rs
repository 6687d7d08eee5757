//! What a table should hold.

mod owners;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use nft::{Data, Element, Set};

use super::{ChainContent, Choice, Fragment, LearnedMap, Program, SetName};

pub use owners::Objects;

/// The wanted content of one table, as the sum of parts. A part is replaced as a whole; only what that changes is touched.
#[derive(Debug)]
pub struct Desired<Owner> {
    program: Program,
    sets: Vec<DesiredSet>,
    index: HashMap<SetName, usize>,
    /// Maps that belong to parts, by name.
    learned: HashMap<Arc<str>, Wanted<LearnedMap>>,
    /// Numbered verdicts that belong to parts, by the name of their map.
    choices: HashMap<Arc<str>, Wanted<Choice>>,
    /// Chains that belong to parts, by name.
    chains: HashMap<Arc<str>, Wanted<ChainContent>>,
    parts: HashMap<Owner, Footprint>,
    touched: Touched,
}

/// The wanted content of one set.
#[derive(Debug, Default)]
pub(super) struct DesiredSet {
    elements: HashMap<Data, Wanted<Element>>,
    slots: HashMap<Data, Wanted<Vec<Data>>>,
}

/// Something wanted by a number of parts.
#[derive(Debug)]
struct Wanted<T> {
    value: T,
    owners: u32,
}

/// What a part contributed: set and key.
#[derive(Debug, Default)]
struct Footprint {
    elements: Vec<(usize, Data)>,
    slots: Vec<(usize, Data)>,
    learned: Vec<Arc<str>>,
    choices: Vec<Arc<str>>,
    chains: Vec<Arc<str>>,
}

impl Footprint {
    fn is_empty(&self) -> bool {
        let names = [&self.learned, &self.choices, &self.chains];
        self.elements.is_empty() && self.slots.is_empty() && names.into_iter().all(Vec::is_empty)
    }
}

/// What changed since the last [`Desired::settle`]: sets and keys, and names.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) elements: HashSet<(usize, Data)>,
    pub(super) slots: HashSet<(usize, Data)>,
    pub(super) learned: BTreeSet<Arc<str>>,
    pub(super) choices: BTreeSet<Arc<str>>,
    pub(super) chains: BTreeSet<Arc<str>>,
}

impl<Owner: Eq + Hash> Desired<Owner> {
    /// A table without parts.
    #[must_use]
    pub fn new(program: Program) -> Self {
        let sets = program.sets.iter().map(|_| DesiredSet::default()).collect();
        let index = program.sets.iter().enumerate().map(|(i, set)| (SetName::Owned(set.name.to_string()), i)).collect();
        Self {
            program,
            sets,
            index,
            learned: HashMap::new(),
            choices: HashMap::new(),
            chains: HashMap::new(),
            parts: HashMap::new(),
            touched: Touched::default(),
        }
    }

    /// Puts a fragment in the place of an owner's former one.
    ///
    /// # Panics
    /// When the fragment names a set that the program does not have.
    pub fn replace(&mut self, owner: Owner, fragment: Fragment) {
        let mut footprint = Footprint::default();
        for (name, element) in fragment.elements {
            let set = self.set_index(&name);
            footprint.elements.push((set, element.key));
            let key = element.key;
            if insert(&mut self.sets[set].elements, key, element) {
                self.touched.elements.insert((set, key));
            }
        }
        for slots in fragment.slots {
            let set = self.set_index(&slots.set);
            footprint.slots.push((set, slots.prefix));
            if insert(&mut self.sets[set].slots, slots.prefix, slots.values) {
                self.touched.slots.insert((set, slots.prefix));
            }
        }
        let learned = fragment.learned.into_iter().map(|map| (Arc::clone(&map.set.name), map));
        footprint.learned = insert_named(&mut self.learned, learned, &mut self.touched.learned);
        let choices = fragment.choices.into_iter().map(|choice| (Arc::clone(&choice.set.name), choice));
        footprint.choices = insert_named(&mut self.choices, choices, &mut self.touched.choices);
        let chains = fragment.chains.into_iter().map(|content| (Arc::clone(&content.chain.name), content));
        footprint.chains = insert_named(&mut self.chains, chains, &mut self.touched.chains);
        let former = if footprint.is_empty() { self.parts.remove(&owner) } else { self.parts.insert(owner, footprint) };
        self.withdraw(former.unwrap_or_default());
    }

    fn withdraw(&mut self, footprint: Footprint) {
        for (set, key) in footprint.elements {
            if release(&mut self.sets[set].elements, &key) {
                self.touched.elements.insert((set, key));
            }
        }
        for (set, prefix) in footprint.slots {
            if release(&mut self.sets[set].slots, &prefix) {
                self.touched.slots.insert((set, prefix));
            }
        }
        release_named(&mut self.learned, footprint.learned, &mut self.touched.learned);
        release_named(&mut self.choices, footprint.choices, &mut self.touched.choices);
        release_named(&mut self.chains, footprint.chains, &mut self.touched.chains);
    }

    fn set_index(&self, name: &SetName) -> usize {
        *self.index.get(name).unwrap_or_else(|| panic!("the program has no set {name}"))
    }

    /// Changes the fixed part. The sets must stay the same.
    pub fn set_program(&mut self, program: Program) {
        debug_assert_eq!(self.program.sets, program.sets);
        self.program = program;
    }

    /// The fixed part.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Takes what was touched as done.
    pub fn settle(&mut self) {
        self.touched = Touched::default();
    }

    /// A chain that is wanted whatever elements there are.
    pub(super) fn chain(&self, name: &str) -> Option<&ChainContent> {
        let fixed = self.program.chains.iter().find(|content| &*content.chain.name == name);
        fixed.or_else(|| self.chains.get(name).map(|wanted| &wanted.value))
    }

    /// The chains that are wanted whatever elements there are.
    pub(super) fn chains(&self) -> impl Iterator<Item = &ChainContent> {
        let own: BTreeSet<&Arc<str>> = self.chains.keys().collect();
        self.program.chains.iter().chain(own.into_iter().map(|name| &self.chains[name].value))
    }

    /// A set or map by name.
    pub(super) fn wanted_set(&self, name: &str) -> Option<&Set> {
        let fixed = self.index.get(name).map(|index| &*self.program.sets[*index]);
        let own = || self.learned(name).map(|map| &*map.set).or_else(|| self.choice(name).map(|choice| &*choice.set));
        fixed.or_else(own)
    }

    /// A choice by the name of its map.
    pub(super) fn choice(&self, name: &str) -> Option<&Choice> {
        self.choices.get(name).map(|wanted| &wanted.value)
    }

    /// All choices, by name.
    pub(super) fn choices(&self) -> impl Iterator<Item = &Choice> {
        let names: BTreeSet<&Arc<str>> = self.choices.keys().collect();
        names.into_iter().map(|name| &self.choices[name].value)
    }

    /// A map that belongs to a part.
    #[must_use]
    pub fn learned(&self, name: &str) -> Option<&LearnedMap> {
        self.learned.get(name).map(|wanted| &wanted.value)
    }

    /// The maps filled by rules in which values may sit that are not allowed any more: those whose values were touched.
    pub fn touched_learned(&self) -> impl Iterator<Item = &LearnedMap> {
        self.touched.learned.iter().filter_map(|name| self.learned(name))
    }

    /// All maps filled by rules, by name.
    pub fn all_learned(&self) -> impl Iterator<Item = &LearnedMap> {
        let names: BTreeSet<&Arc<str>> = self.learned.keys().collect();
        names.into_iter().map(|name| &self.learned[name].value)
    }

    pub(super) fn touched(&self) -> &Touched {
        &self.touched
    }

    /// The sets of the program with their wanted content.
    pub(super) fn sets(&self) -> impl Iterator<Item = (&Arc<Set>, &DesiredSet)> {
        self.program.sets.iter().zip(&self.sets)
    }

    pub(super) fn set(&self, index: usize) -> (&Arc<Set>, &DesiredSet) {
        (&self.program.sets[index], &self.sets[index])
    }

    /// Number of wanted elements by set, for metrics.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.sets().map(|(set, content)| {
            (&*set.name, content.elements.len() + content.slots.values().map(|w| w.value.len()).sum::<usize>())
        })
    }

    /// Everything, as nft text wants it: sets with their elements, and chains, each in a fixed order.
    #[must_use]
    pub fn content(&self) -> nft::TableContent {
        let mut chains: Vec<ChainContent> = self.chains().cloned().collect();
        let mut sets: Vec<(Arc<Set>, Vec<Element>)> = Vec::new();
        for (set, content) in self.sets() {
            let mut elements = content.all_elements();
            elements.sort_by_key(|element| element.key);
            chains_of(&elements, &self.program, &mut chains);
            sets.push((Arc::clone(set), elements));
        }
        sets.extend(self.all_learned().map(|map| (Arc::clone(&map.set), Vec::new())));
        sets.extend(self.choices().map(|choice| (Arc::clone(&choice.set), choice.elements())));
        let further: Vec<Arc<str>> = chains.iter().flat_map(ChainContent::targets).cloned().collect();
        add_chains(further, &self.program, &mut chains);
        let chains = chains.into_iter().map(|c| (c.chain, c.rules)).collect();
        nft::TableContent { flowtables: Vec::new(), table: self.program.table.clone(), sets, chains }
    }
}

/// Adds the chains on demand that elements lead to, and those that these lead to.
fn chains_of(elements: &[Element], program: &Program, chains: &mut Vec<ChainContent>) {
    let mut targets: Vec<Arc<str>> = elements.iter().filter_map(element_target).cloned().collect();
    targets.sort_by(|a, b| b.cmp(a));
    targets.dedup();
    add_chains(targets, program, chains);
}

/// Adds those of the chains that are made on demand, and those that they lead to.
fn add_chains(mut targets: Vec<Arc<str>>, program: &Program, chains: &mut Vec<ChainContent>) {
    while let Some(target) = targets.pop() {
        let Some(content) = (program.on_demand)(&target) else { continue };
        if chains.iter().all(|known| known.chain.name != target) {
            targets.extend(content.targets().cloned());
            chains.push(content);
        }
    }
}

/// The chain that an element leads to.
pub(super) fn element_target(element: &Element) -> Option<&Arc<str>> {
    match &element.value {
        nft::Value::Verdict(verdict) => verdict.chain(),
        nft::Value::None | nft::Value::Data(_) => None,
    }
}

impl Choice {
    fn elements(&self) -> Vec<Element> {
        self.verdicts.iter().enumerate().map(|(number, verdict)| Self::element(number, verdict.clone())).collect()
    }
}

impl ChainContent {
    /// The chains that its rules lead to.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().flat_map(|rule| &rule.statements).filter_map(|statement| match statement {
            nft::Statement::Verdict(verdict) => verdict.chain(),
            _ => None,
        })
    }
}

impl DesiredSet {
    pub(super) fn element(&self, key: &Data) -> Option<&Element> {
        self.elements.get(key).map(|wanted| &wanted.value)
    }

    pub(super) fn elements(&self) -> impl Iterator<Item = &Element> {
        self.elements.values().map(|wanted| &wanted.value)
    }

    /// The wanted values of a group of slots.
    pub(super) fn slots(&self, prefix: &Data) -> &[Data] {
        self.slots.get(prefix).map_or(&[], |wanted| &wanted.value)
    }

    pub(super) fn slot_prefixes(&self) -> impl Iterator<Item = &Data> {
        self.slots.keys()
    }

    fn all_elements(&self) -> Vec<Element> {
        let slots = self.slots.iter().flat_map(|(prefix, wanted)| {
            let numbered = wanted.value.iter().enumerate();
            numbered.map(|(i, value)| Element::mapping(super::slot_key(prefix, i), nft::Value::Data(*value)))
        });
        self.elements().cloned().chain(slots).collect()
    }
}

/// Adds an owner; says whether the wanted value changed.
fn insert<K: Eq + Hash, T: PartialEq>(map: &mut HashMap<K, Wanted<T>>, key: K, value: T) -> bool {
    match map.get_mut(&key) {
        Some(wanted) => {
            wanted.owners += 1;
            let changed = wanted.value != value;
            if changed {
                wanted.value = value;
            }
            changed
        }
        None => {
            map.insert(key, Wanted { value, owners: 1 });
            true
        }
    }
}

/// Takes an owner away; says whether nobody wants the key any more.
fn release<K: Eq + Hash, T>(map: &mut HashMap<K, Wanted<T>>, key: &K) -> bool {
    let Some(wanted) = map.get_mut(key) else { return false };
    wanted.owners -= 1;
    let gone = wanted.owners == 0;
    if gone {
        map.remove(key);
    }
    gone
}

/// [`insert`] for named objects of a part; gives their names.
fn insert_named<T: PartialEq>(
    map: &mut HashMap<Arc<str>, Wanted<T>>,
    objects: impl Iterator<Item = (Arc<str>, T)>,
    touched: &mut BTreeSet<Arc<str>>,
) -> Vec<Arc<str>> {
    let insert_one = |(name, value)| {
        if insert(map, Arc::clone(&name), value) {
            touched.insert(Arc::clone(&name));
        }
        name
    };
    objects.map(insert_one).collect()
}

/// [`release`] for named objects of a part.
fn release_named<T>(map: &mut HashMap<Arc<str>, Wanted<T>>, names: Vec<Arc<str>>, touched: &mut BTreeSet<Arc<str>>) {
    touched.extend(names.into_iter().filter(|name| release(map, name)));
}

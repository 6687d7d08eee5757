//! What a table should hold.

mod owners;

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use nft::{Data, Element, Set};

use super::stored::Stored;
use super::values::Values;
use super::{ChainContent, Choice, Fragment, LearnedMap, Program, SetName, room};

pub use owners::Objects;

/// The wanted content of one table, as the sum of parts. A part is replaced as a whole; only what that changes is touched.
#[derive(Debug)]
pub struct Desired<Owner> {
    program: Program,
    sets: Vec<DesiredSet>,
    index: HashMap<SetName, u16>,
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
    elements: HashMap<Data, Wanted<Stored>>,
    slots: HashMap<Data, Wanted<Values>>,
    /// Number of values in all groups of slots.
    slotted: usize,
}

/// Something wanted by a number of parts.
#[derive(Debug)]
struct Wanted<T> {
    value: T,
    owners: u32,
}

/// What a part contributed. There are as many of these as parts, so they are small.
#[derive(Debug, Default)]
struct Footprint {
    /// Elements, then groups of slots.
    keys: Box<[Place]>,
    /// How many of the keys are those of elements.
    elements: usize,
    named: Option<Box<Named>>,
}

/// A set, by its number, and a key or prefix in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) set: u16,
    pub(super) key: Data,
}

/// Objects that belong to parts.
#[derive(Debug, Default)]
struct Named {
    learned: Vec<Arc<str>>,
    choices: Vec<Arc<str>>,
    chains: Vec<Arc<str>>,
}

impl Footprint {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.named.is_none()
    }

    fn elements(&self) -> &[Place] {
        &self.keys[..self.elements]
    }

    fn slots(&self) -> &[Place] {
        &self.keys[self.elements..]
    }
}

/// What changed since the last [`Desired::settle`]: sets and keys, and names.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Nothing was ever settled: everything counts as touched, and elements and slots are not listed.
    pub(super) everything: bool,
    pub(super) elements: HashSet<Place>,
    pub(super) slots: HashSet<Place>,
    pub(super) learned: BTreeSet<Arc<str>>,
    pub(super) choices: BTreeSet<Arc<str>>,
    pub(super) chains: BTreeSet<Arc<str>>,
}

impl<Owner: Eq + Hash> Desired<Owner> {
    /// A table without parts.
    #[must_use]
    pub fn new(program: Program) -> Self {
        let sets = program.sets.iter().map(|_| DesiredSet::default()).collect();
        let index = program.sets.iter().zip(0..).map(|(set, i)| (SetName::Owned(set.name.to_string()), i)).collect();
        Self {
            program,
            sets,
            index,
            learned: HashMap::default(),
            choices: HashMap::default(),
            chains: HashMap::default(),
            parts: HashMap::default(),
            touched: Touched { everything: true, ..Touched::default() },
        }
    }

    /// Puts a fragment in the place of an owner's former one.
    ///
    /// # Panics
    /// When the fragment names a set that the program does not have.
    pub fn replace(&mut self, owner: Owner, fragment: Fragment) {
        let mut keys = Vec::with_capacity(fragment.elements.len() + fragment.slots.len());
        let elements = fragment.elements.len();
        for (name, element) in fragment.elements {
            let set = self.set_index(&name);
            let (key, stored) = Stored::split(element);
            let place = Place { set, key };
            if insert(&mut self.content_of(set).elements, key, stored) {
                self.touched.element(place);
            }
            keys.push(place);
        }
        for slots in fragment.slots {
            let set = self.set_index(&slots.set);
            let place = Place { set, key: slots.prefix };
            if self.content_of(set).insert_slots(slots.prefix, slots.values) {
                self.touched.group(place);
            }
            keys.push(place);
        }
        let named = [fragment.learned.len(), fragment.choices.len(), fragment.chains.len()];
        let named = (named != [0; 3]).then(|| {
            let learned = fragment.learned.into_iter().map(|map| (Arc::clone(&map.set.name), map));
            let choices = fragment.choices.into_iter().map(|choice| (Arc::clone(&choice.set.name), choice));
            let chains = fragment.chains.into_iter().map(|content| (Arc::clone(&content.chain.name), content));
            Box::new(Named {
                learned: insert_named(&mut self.learned, learned, &mut self.touched.learned),
                choices: insert_named(&mut self.choices, choices, &mut self.touched.choices),
                chains: insert_named(&mut self.chains, chains, &mut self.touched.chains),
            })
        });
        let footprint = Footprint { keys: keys.into(), elements, named };
        let former = if footprint.is_empty() { self.parts.remove(&owner) } else { self.parts.insert(owner, footprint) };
        if let Some(former) = former {
            self.withdraw(former);
        }
    }

    fn withdraw(&mut self, footprint: Footprint) {
        for place in footprint.elements() {
            if release(&mut self.content_of(place.set).elements, &place.key).is_some() {
                self.touched.element(*place);
            }
        }
        for place in footprint.slots() {
            if self.content_of(place.set).release_slots(&place.key) {
                self.touched.group(*place);
            }
        }
        let Some(named) = footprint.named else { return };
        release_named(&mut self.learned, named.learned, &mut self.touched.learned);
        release_named(&mut self.choices, named.choices, &mut self.touched.choices);
        release_named(&mut self.chains, named.chains, &mut self.touched.chains);
    }

    fn set_index(&self, name: &SetName) -> u16 {
        *self.index.get(name).unwrap_or_else(|| panic!("the program has no set {name}"))
    }

    fn content_of(&mut self, set: u16) -> &mut DesiredSet {
        &mut self.sets[usize::from(set)]
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
        let fixed = self.index.get(name).map(|index| &*self.program.sets[usize::from(*index)]);
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

    pub(super) fn set(&self, index: u16) -> (&Arc<Set>, &DesiredSet) {
        let index = usize::from(index);
        (&self.program.sets[index], &self.sets[index])
    }

    /// Number of wanted elements by set, for metrics.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.sets().map(|(set, content)| (&*set.name, content.len()))
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
            sets.push((room::roomy(set, elements.len()), elements));
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
fn element_target(element: &Element) -> Option<&Arc<str>> {
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
    /// Number of elements, those in slots included.
    pub(super) fn len(&self) -> usize {
        self.elements.len() + self.slotted
    }

    pub(super) fn element(&self, key: &Data) -> Option<&Stored> {
        self.elements.get(key).map(|wanted| &wanted.value)
    }

    pub(super) fn elements(&self) -> impl Iterator<Item = (&Data, &Stored)> {
        self.elements.iter().map(|(key, wanted)| (key, &wanted.value))
    }

    /// The wanted values of a group of slots.
    pub(super) fn slots(&self, prefix: &Data) -> Option<&Values> {
        self.slots.get(prefix).map(|wanted| &wanted.value)
    }

    /// Every group of slots.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&Data, &Values)> {
        self.slots.iter().map(|(prefix, wanted)| (prefix, &wanted.value))
    }

    /// Adds an owner of a group of slots; says whether its values changed.
    fn insert_slots(&mut self, prefix: Data, values: Values) -> bool {
        let former = self.slots.get(&prefix).map_or(0, |wanted| wanted.value.len());
        let now = values.len();
        let changed = insert(&mut self.slots, prefix, values);
        if changed {
            self.slotted = self.slotted - former + now;
        }
        changed
    }

    /// Takes an owner of a group of slots away; says whether nobody wants it any more.
    fn release_slots(&mut self, prefix: &Data) -> bool {
        let gone = release(&mut self.slots, prefix);
        self.slotted -= gone.as_ref().map_or(0, Values::len);
        gone.is_some()
    }

    fn all_elements(&self) -> Vec<Element> {
        let slots = self.groups().flat_map(|(prefix, values)| {
            let numbered = values.data().enumerate();
            numbered.map(|(i, value)| Element::mapping(super::slot_key(prefix, i), nft::Value::Data(value)))
        });
        self.elements().map(|(key, stored)| stored.element(key)).chain(slots).collect()
    }
}

impl Touched {
    fn element(&mut self, place: Place) {
        if !self.everything {
            self.elements.insert(place);
        }
    }

    fn group(&mut self, place: Place) {
        if !self.everything {
            self.slots.insert(place);
        }
    }
}

/// Adds an owner; says whether the wanted value changed.
fn insert<K: Eq + Hash, T: PartialEq>(map: &mut HashMap<K, Wanted<T>>, key: K, value: T) -> bool {
    match map.entry(key) {
        Entry::Occupied(mut entry) => {
            let wanted = entry.get_mut();
            wanted.owners += 1;
            let changed = wanted.value != value;
            if changed {
                wanted.value = value;
            }
            changed
        }
        Entry::Vacant(entry) => {
            entry.insert(Wanted { value, owners: 1 });
            true
        }
    }
}

/// Takes an owner away; gives what nobody wants any more.
fn release<K: Eq + Hash, T>(map: &mut HashMap<K, Wanted<T>>, key: &K) -> Option<T> {
    let wanted = map.get_mut(key)?;
    wanted.owners -= 1;
    if wanted.owners > 0 {
        return None;
    }
    map.remove(key).map(|wanted| wanted.value)
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
    touched.extend(names.into_iter().filter(|name| release(map, name).is_some()));
}

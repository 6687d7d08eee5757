//! What a table should hold.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use nft::{Data, Element, Set};

use super::{ChainContent, Fragment, Program, SetName};

/// The wanted content of one table, as the sum of parts. A part is replaced as a whole; only what that changes is touched.
#[derive(Debug)]
pub struct Desired<Owner> {
    program: Program,
    sets: Vec<DesiredSet>,
    index: HashMap<SetName, usize>,
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
}

/// Set and key of what changed since the last [`Desired::settle`].
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) elements: HashSet<(usize, Data)>,
    pub(super) slots: HashSet<(usize, Data)>,
}

impl<Owner: Eq + Hash> Desired<Owner> {
    /// A table without parts.
    #[must_use]
    pub fn new(program: Program) -> Self {
        let sets = program.sets.iter().map(|_| DesiredSet::default()).collect();
        let index = program.sets.iter().enumerate().map(|(i, set)| (SetName::Owned(set.name.to_string()), i)).collect();
        Self { program, sets, index, parts: HashMap::new(), touched: Touched::default() }
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
        let former = if footprint.elements.is_empty() && footprint.slots.is_empty() {
            self.parts.remove(&owner)
        } else {
            self.parts.insert(owner, footprint)
        };
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

    /// Whether anything changed since the last [`Desired::settle`].
    #[must_use]
    pub fn is_touched(&self) -> bool {
        !self.touched.elements.is_empty() || !self.touched.slots.is_empty()
    }

    /// Takes what was touched as done.
    pub fn settle(&mut self) {
        self.touched = Touched::default();
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
        let mut chains = self.program.chains.clone();
        let mut sets = Vec::new();
        for (set, content) in self.sets() {
            let mut elements = content.all_elements();
            elements.sort_by_key(|element| element.key);
            chains_of(&elements, &self.program, &mut chains);
            sets.push((Arc::clone(set), elements));
        }
        let chains = chains.into_iter().map(|c| (c.chain, c.rules)).collect();
        nft::TableContent { table: self.program.table.clone(), sets, chains }
    }
}

/// Adds the chains on demand that elements lead to, and those that these lead to.
fn chains_of(elements: &[Element], program: &Program, chains: &mut Vec<ChainContent>) {
    let mut targets: Vec<Arc<str>> = elements.iter().filter_map(element_target).cloned().collect();
    targets.sort_by(|a, b| b.cmp(a));
    targets.dedup();
    while let Some(target) = targets.pop() {
        if chains.iter().any(|known| known.chain.name == target) {
            continue;
        }
        if let Some(content) = (program.on_demand)(&target) {
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
fn insert<T: PartialEq>(map: &mut HashMap<Data, Wanted<T>>, key: Data, value: T) -> bool {
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
fn release<T>(map: &mut HashMap<Data, Wanted<T>>, key: &Data) -> bool {
    let Some(wanted) = map.get_mut(key) else { return false };
    wanted.owners -= 1;
    let gone = wanted.owners == 0;
    if gone {
        map.remove(key);
    }
    gone
}

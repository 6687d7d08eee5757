//! Who contributed what a command is about.
//!
//! Takes commands, gives owners. Needed only when the kernel refused something, so nothing is kept for it: each question walks
//! through all parts.

use std::hash::Hash;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use nft::{Command, Data};

use super::super::{Fragment, Slots, split_slot_key};
use super::{Desired, Footprint, Named, Place};

/// Objects of a table: elements by set and key, and sets and chains by name.
#[derive(Debug, Default)]
pub struct Objects {
    keys: HashMap<Arc<str>, HashSet<Data>>,
    /// Keys without their slot numbers.
    prefixes: HashMap<Arc<str>, HashSet<Data>>,
    names: HashSet<Arc<str>>,
}

impl Objects {
    /// Adds what a command is about, or one of its elements only.
    pub fn add(&mut self, command: &Command, element: Option<usize>) {
        match command {
            Command::AddElements(_, set, elements)
            | Command::DeleteElements(_, set, elements)
            | Command::DestroyElements(_, set, elements) => {
                self.names.insert(Arc::clone(&set.name));
                let one = element.and_then(|index| elements.get(index)).map(std::slice::from_ref);
                for element in one.unwrap_or(elements) {
                    self.keys.entry(Arc::clone(&set.name)).or_default().insert(element.key);
                    if let Some((prefix, _)) = split_slot_key(&element.key) {
                        self.prefixes.entry(Arc::clone(&set.name)).or_default().insert(prefix);
                    }
                }
            }
            Command::AddSet(_, set) | Command::DeleteSet(_, set) => {
                self.names.insert(Arc::clone(&set.name));
            }
            Command::AddChain(_, chain) => {
                self.names.insert(Arc::clone(&chain.name));
            }
            Command::DeleteChain(_, name)
            | Command::FlushChain(_, name)
            | Command::AddRule(_, name, _)
            | Command::DeleteRule(_, name, _) => {
                self.names.insert(Arc::clone(name));
            }
            // A flowtable is in a table of its own.
            Command::AddTable(_)
            | Command::OwnTable(_)
            | Command::LockTable(_)
            | Command::DeleteTable(_)
            | Command::AddFlowtable(..)
            | Command::DeleteObject(..) => {}
        }
    }

    /// Whether a part has some of these.
    #[must_use]
    pub fn meet(&self, fragment: &Fragment) -> bool {
        fragment.elements.iter().any(|(set, element)| has(&self.keys, set, &element.key))
            || fragment.slots.iter().any(|slots| has(&self.prefixes, &slots.set, &slots.prefix))
            || fragment.learned.iter().any(|map| self.names.contains(&map.set.name))
            || fragment.choices.iter().any(|choice| self.names.contains(&choice.set.name))
            || fragment.chains.iter().any(|content| self.names.contains(&content.chain.name))
    }
}

fn has(map: &HashMap<Arc<str>, HashSet<Data>>, set: &str, key: &Data) -> bool {
    map.get(set).is_some_and(|keys| keys.contains(key))
}

impl<Owner: Eq + Hash> Desired<Owner> {
    /// The owners of parts that have some of these objects, in no order.
    pub fn owners<'a>(&'a self, objects: &'a Objects) -> impl Iterator<Item = &'a Owner> {
        self.parts.iter().filter(|(_, footprint)| self.meet(objects, footprint)).map(|(owner, _)| owner)
    }

    fn meet(&self, objects: &Objects, footprint: &Footprint) -> bool {
        let is_among =
            |map: &HashMap<Arc<str>, HashSet<Data>>, place: &Place| has(map, &self.set(place.set).0.name, &place.key);
        let names = footprint.named.iter().flat_map(|named| [&named.learned, &named.choices, &named.chains]);
        footprint.elements().iter().any(|place| is_among(&objects.keys, place))
            || footprint.slots().iter().any(|place| is_among(&objects.prefixes, place))
            || names.flatten().any(|name| objects.names.contains(name))
    }

    /// An owner's present part: what was given to [`Desired::replace`], as far as no other owner changed its values since.
    #[must_use]
    pub fn fragment(&self, owner: &Owner) -> Fragment {
        let Some(footprint) = self.parts.get(owner) else { return Fragment::default() };
        let element = |place: &Place| {
            let (set, content) = self.set(place.set);
            Some((set.name.to_string().into(), content.element(&place.key)?.element(&place.key)))
        };
        let slots = |place: &Place| {
            let (set, content) = self.set(place.set);
            let values = content.slots(&place.key)?.clone();
            Some(Slots { set: set.name.to_string().into(), prefix: place.key, values })
        };
        let mut fragment = Fragment {
            elements: footprint.elements().iter().filter_map(element).collect(),
            slots: footprint.slots().iter().filter_map(slots).collect(),
            ..Fragment::default()
        };
        if let Some(Named { learned, choices, chains }) = footprint.named.as_deref() {
            fragment.learned = learned.iter().filter_map(|name| self.learned(name)).cloned().collect();
            fragment.choices = choices.iter().filter_map(|name| self.choice(name)).cloned().collect();
            let contents = chains.iter().filter_map(|name| self.chains.get(name));
            fragment.chains = contents.map(|wanted| wanted.value.clone()).collect();
        }
        fragment
    }
}

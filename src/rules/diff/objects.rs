//! Finds the owners (Services, or the node) of the objects that a command changes.
//!
//! Takes commands, returns owners. This is needed only after the kernel refused a command and after a repair, so there is no index: each
//! search goes through all records.

use std::hash::Hash;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use nft::Command;

use super::record::{Content, Record};
use super::records::Records;

/// Objects of a table: elements by set and key, and sets and chains by name.
#[derive(Debug, Default)]
pub struct Objects {
    keys: HashMap<Arc<str>, HashSet<Vec<u8>>>,
    /// Keys without their last four bytes: in a map with numbered elements these bytes are the number (slot).
    prefixes: HashMap<Arc<str>, HashSet<Vec<u8>>>,
    names: HashSet<Arc<str>>,
}

impl Objects {
    /// Adds the objects that a command changes. With `element`, the index of one of its elements, adds only this element and its set.
    pub fn add(&mut self, command: &Command, element: Option<usize>) {
        match command {
            Command::AddElements(_, set, elements)
            | Command::DeleteElements(_, set, elements)
            | Command::DestroyElements(_, set, elements) => {
                self.names.insert(Arc::clone(&set.name));
                if let Some(element) = element.and_then(|index| elements.get(index)) {
                    self.add_key(&set.name, element.key());
                    return;
                }
                for element in elements.iter() {
                    self.add_key(&set.name, element.key());
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
            // No record has objects of these kinds.
            Command::AddTable(_)
            | Command::OwnTable(_)
            | Command::LockTable(_)
            | Command::DeleteTable(_)
            | Command::AddFlowtable(..)
            | Command::DeleteObject(..) => {}
        }
    }

    fn add_key(&mut self, set: &Arc<str>, key: &[u8]) {
        self.keys.entry(Arc::clone(set)).or_default().insert(key.to_vec());
        if let Some((prefix, _)) = key.split_last_chunk::<4>() {
            self.prefixes.entry(Arc::clone(set)).or_default().insert(prefix.to_vec());
        }
    }
}

fn has(map: &HashMap<Arc<str>, HashSet<Vec<u8>>>, set: &str, key: &[u8]) -> bool {
    map.get(set).is_some_and(|keys| keys.contains(key))
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// Returns the owners that have some of `objects` in their new or committed record, in no order; an owner may come twice.
    pub fn owners<'a>(&'a self, objects: &'a Objects) -> impl Iterator<Item = &'a Owner> {
        let before = self.committed.iter().filter(|(owner, _)| self.open.contains_key(owner));
        let all = self.wanted().chain(before);
        all.filter(|(_, record)| self.is_met(objects, record)).map(|(owner, _)| owner)
    }

    fn is_met(&self, objects: &Objects, record: &Record) -> bool {
        for entry in record.entries() {
            let set = &self.set(entry.set).name;
            let is_met = match entry.content {
                Content::Element(element) => has(&objects.keys, set, element.key()),
                Content::Group(group) => has(&objects.prefixes, set, group.prefix),
            };
            if is_met {
                return true;
            }
        }
        for set in record.own_sets() {
            if objects.names.contains(&set.name) {
                return true;
            }
        }
        record.chains().iter().any(|content| objects.names.contains(&content.chain.name))
    }
}

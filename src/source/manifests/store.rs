//! Which file defines which object, and what a change of a file changes.
//!
//! Takes the objects of files, gives the events that lead from the former objects to the present ones. Pure.
//!
//! Invariants: of an object in several places the first counts (smallest path, then first in the file); equal content gives
//! no event; a broken file loses no object that it defined before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::decode::Object;
use super::{ManifestProblem, Severity};
use crate::model::Event;
use crate::source::Key;

/// The consequences of a change of a file.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) events: Vec<Event>,
    /// Objects that are newly in two places.
    pub(super) duplicates: Vec<ManifestProblem>,
}

/// The objects of all files.
#[derive(Debug, Default)]
pub(super) struct Store {
    files: BTreeMap<Arc<Path>, BTreeSet<Key>>,
    /// Where each object is defined, in the order of the places; never an empty list.
    definitions: HashMap<Key, Vec<Definition>>,
}

#[derive(Clone, Debug)]
struct Definition {
    place: Place,
    /// Shared with the state before a change, so that it is compared but not copied.
    event: Arc<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: Arc<Path>,
    document: usize,
    /// Counts the objects of the file.
    index: usize,
}

impl Store {
    /// The files that define an object, or did when they were last read without an error.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.files.keys()
    }

    /// Notes what a file holds now. `broken`: a part of it could not be read, so objects that it lacks stay.
    pub(super) fn replace(&mut self, file: &Arc<Path>, objects: Vec<Object>, broken: bool) -> Changes {
        let old = self.files.remove(file).unwrap_or_default();
        let new: BTreeSet<Key> = objects.iter().map(|object| object.key.clone()).collect();
        let before: Vec<(Key, Effective)> = old.union(&new).map(|key| (key.clone(), self.effective(key))).collect();
        let replaced = |key: &&Key| !broken || new.contains(*key);
        for key in old.iter().filter(replaced) {
            self.undefine(key, file);
        }
        for (index, object) in objects.into_iter().enumerate() {
            let place = Place { file: Arc::clone(file), document: object.document, index };
            self.define(object.key, Definition { place, event: Arc::new(object.event) });
        }
        let keys = if broken { &old | &new } else { new };
        self.files.insert(Arc::clone(file), keys);
        self.changes_since(before)
    }

    /// Notes that a file was deleted.
    pub(super) fn remove(&mut self, file: &Arc<Path>) -> Changes {
        let changes = self.replace(file, Vec::new(), false);
        self.files.remove(file);
        changes
    }

    fn define(&mut self, key: Key, definition: Definition) {
        let definitions = self.definitions.entry(key).or_insert_with(|| Vec::with_capacity(1));
        let at = definitions.partition_point(|other| other.place < definition.place);
        definitions.insert(at, definition);
    }

    fn undefine(&mut self, key: &Key, file: &Arc<Path>) {
        if let Some(definitions) = self.definitions.get_mut(key) {
            definitions.retain(|definition| definition.place.file != *file);
            if definitions.is_empty() {
                self.definitions.remove(key);
            }
        }
    }

    fn effective(&self, key: &Key) -> Effective {
        let Some((first, others)) = self.definitions.get(key).and_then(|all| all.split_first()) else {
            return Effective::default();
        };
        Effective {
            event: Some(Arc::clone(&first.event)).filter(|event| **event != key.deletion()),
            duplicates: others.iter().map(|other| (first.place.clone(), other.place.clone())).collect(),
        }
    }

    fn changes_since(&self, before: Vec<(Key, Effective)>) -> Changes {
        let mut changes = Changes::default();
        for (key, before) in before {
            let now = self.effective(&key);
            if now.event != before.event {
                changes.events.push(now.event.map_or_else(|| key.deletion(), |event| Event::clone(&event)));
            }
            let new = now.duplicates.into_iter().filter(|pair| !before.duplicates.contains(pair));
            changes.duplicates.extend(new.map(|(winner, loser)| duplicate(&key, &winner, loser)));
        }
        changes
    }
}

/// The definition of an object that counts.
#[derive(Default)]
struct Effective {
    /// Its event; `None` if there is no such object for the proxy.
    event: Option<Arc<Event>>,
    /// Its place with that of each other definition.
    duplicates: Vec<(Place, Place)>,
}

fn duplicate(key: &Key, winner: &Place, loser: Place) -> ManifestProblem {
    let winner = format!("{}, document {}", winner.file.display(), winner.document);
    ManifestProblem {
        severity: Severity::Warning,
        file: loser.file,
        document: Some(loser.document),
        text: format!("{key}: also in {winner}, which counts; ignored here"),
        kind: None,
    }
}

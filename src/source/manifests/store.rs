//! Which file defines which object, and what a change of a file changes.
//!
//! Takes the objects of files, gives the events that lead from the former objects to the present ones. Pure.
//!
//! The model has the objects; here are only their names, places and a hash of what each means, so that manifests take little more
//! memory than an API server's objects. When an object is gone from the file that counted, the next file that defines it has to
//! be read again ([`Changes::again`]).
//!
//! Invariants: of an object in several places the first counts (smallest path, then first in the file); equal content gives
//! no event; a broken file loses no object that it defined before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
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
    /// Other files with definitions that count from now on: to be read again, for the content.
    pub(super) again: BTreeSet<Arc<Path>>,
}

/// The objects of all files.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// The objects that each file defines, sorted.
    files: BTreeMap<Arc<Path>, Box<[Key]>>,
    objects: HashMap<Key, Known>,
    /// Seeded at random: nobody can write two objects with one hash on purpose.
    hasher: RandomState,
}

/// What is known of an object.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The hash of what was sent; `None` if there is no such object for the proxy.
    sent: Option<u64>,
    /// Where it is defined, in the order of the places.
    definitions: Vec<Definition>,
}

#[derive(Clone, Debug)]
struct Definition {
    place: Place,
    /// The hash of what it means; `None` if that is no object for the proxy.
    content: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    file: Arc<Path>,
    document: usize,
}

impl Store {
    /// The files that define an object, or did when they were last read without an error.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.files.keys()
    }

    /// Notes what a file holds now. `broken`: a part of it could not be read, so objects that it lacks stay.
    pub(super) fn replace(&mut self, file: &Arc<Path>, mut objects: Vec<Object>, broken: bool) -> Changes {
        // Stable: of two objects with one key the first of the file counts.
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        let old = self.files.remove(file).unwrap_or_default();
        let mut changes = Changes::default();
        let mut kept = Vec::with_capacity(objects.len());
        let (mut old, mut objects) = (old.into_iter().peekable(), objects.into_iter().peekable());
        while let Some(key) = next_key(old.peek(), objects.peek()) {
            let was_defined = old.next_if_eq(&key).is_some();
            let mut same_key = Vec::new();
            while let Some(object) = objects.next_if(|object| object.key == key) {
                same_key.push(object);
            }
            if !same_key.is_empty() || broken {
                kept.push(key.clone());
            }
            if !same_key.is_empty() || was_defined && !broken {
                self.define(&key, file, same_key, &mut changes);
            }
        }
        self.files.insert(Arc::clone(file), kept.into());
        changes
    }

    /// Notes that a file was deleted.
    pub(super) fn remove(&mut self, file: &Arc<Path>) -> Changes {
        let changes = self.replace(file, Vec::new(), false);
        self.files.remove(file);
        changes
    }

    /// Replaces what a file has of an object.
    fn define(&mut self, key: &Key, file: &Arc<Path>, objects: Vec<Object>, changes: &mut Changes) {
        let known = self.objects.entry(key.clone()).or_default();
        let before = known.duplicates();
        known.definitions.retain(|definition| definition.place.file != *file);
        let at = known.definitions.partition_point(|other| other.place.file < *file);
        let content = |event: &Event| (*event != key.deletion()).then(|| self.hasher.hash_one(event));
        let definitions = objects.iter().map(|object| Definition {
            place: Place { file: Arc::clone(file), document: object.document },
            content: content(&object.event),
        });
        known.definitions.splice(at..at, definitions);
        known.definitions.shrink_to_fit();
        let new = known.duplicates().into_iter().filter(|pair| !before.contains(pair));
        changes.duplicates.extend(new.map(|(winner, loser)| duplicate(key, &winner, loser)));
        let first = known.definitions.first();
        let now = first.and_then(|definition| definition.content);
        if now != known.sent {
            let of_file = first.is_some_and(|first| first.place.file == *file);
            match (now, first) {
                (Some(_), Some(first)) if !of_file => {
                    changes.again.insert(Arc::clone(&first.place.file));
                }
                (Some(_), _) => {
                    // The first of the file.
                    changes.events.extend(objects.into_iter().next().map(|object| object.event));
                    known.sent = now;
                }
                (None, _) => {
                    changes.events.push(key.deletion());
                    known.sent = None;
                }
            }
        }
        if known.definitions.is_empty() {
            self.objects.remove(key);
        }
    }
}

impl Known {
    /// The place that counts with that of each other definition.
    fn duplicates(&self) -> Vec<(Place, Place)> {
        let Some((first, others)) = self.definitions.split_first() else { return Vec::new() };
        others.iter().map(|other| (first.place.clone(), other.place.clone())).collect()
    }
}

/// The smaller of two keys, of those that there are.
fn next_key(old: Option<&Key>, new: Option<&Object>) -> Option<Key> {
    old.into_iter().chain(new.map(|object| &object.key)).min().cloned()
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

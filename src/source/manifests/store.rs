//! Which file provides which object, and what a change of a file changes.
//!
//! Takes the objects of files, gives the events between what counted before and what counts now. Pure.
//!
//! Invariants: of an object in several places the first counts (smallest path, then first in the file); equal content gives
//! no event; a broken file loses no object that it provided before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::decode::Object;
use super::problem::{Problem, Severity};
use crate::model::Event;
use crate::source::key::Key;

/// What a change amounts to.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What the model has to know.
    pub(super) events: Vec<Event>,
    /// Objects that are newly in two places.
    pub(super) duplicates: Vec<Problem>,
}

/// The objects of all files.
#[derive(Debug, Default)]
pub(super) struct Store {
    files: BTreeMap<Arc<Path>, BTreeSet<Key>>,
    /// Never an empty list; in the order of the places.
    claims: HashMap<Key, Vec<Claim>>,
}

#[derive(Clone, Debug)]
struct Claim {
    place: Place,
    event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: Arc<Path>,
    document: usize,
    /// Counts the objects of the file.
    index: usize,
}

impl Store {
    /// The files that provide something or did when they were last whole.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.files.keys()
    }

    /// A file holds this now.
    pub(super) fn replace(&mut self, file: &Arc<Path>, objects: Vec<Object>, broken: bool) -> Changes {
        let old = self.files.remove(file).unwrap_or_default();
        let new: BTreeSet<Key> = objects.iter().map(|object| object.key.clone()).collect();
        let before: Vec<(Key, Standing)> = old.union(&new).map(|key| (key.clone(), self.standing(key))).collect();
        let replaced = |key: &&Key| !broken || new.contains(*key);
        for key in old.iter().filter(replaced) {
            self.withdraw(key, file);
        }
        for (index, object) in objects.into_iter().enumerate() {
            let place = Place { file: Arc::clone(file), document: object.document, index };
            self.claim(object.key, Claim { place, event: object.event });
        }
        let keys = if broken { &old | &new } else { new };
        self.files.insert(Arc::clone(file), keys);
        self.changes_since(before)
    }

    /// A file is gone.
    pub(super) fn remove(&mut self, file: &Arc<Path>) -> Changes {
        let changes = self.replace(file, Vec::new(), false);
        self.files.remove(file);
        changes
    }

    fn claim(&mut self, key: Key, claim: Claim) {
        let claims = self.claims.entry(key).or_insert_with(|| Vec::with_capacity(1));
        let at = claims.partition_point(|other| other.place < claim.place);
        claims.insert(at, claim);
    }

    fn withdraw(&mut self, key: &Key, file: &Arc<Path>) {
        if let Some(claims) = self.claims.get_mut(key) {
            claims.retain(|claim| claim.place.file != *file);
            if claims.is_empty() {
                self.claims.remove(key);
            }
        }
    }

    fn standing(&self, key: &Key) -> Standing {
        let Some((first, others)) = self.claims.get(key).and_then(|claims| claims.split_first()) else {
            return Standing::default();
        };
        Standing {
            event: Some(first.event.clone()).filter(|event| *event != key.deletion()),
            rivals: others.iter().map(|other| (first.place.clone(), other.place.clone())).collect(),
        }
    }

    fn changes_since(&self, before: Vec<(Key, Standing)>) -> Changes {
        let mut changes = Changes::default();
        for (key, before) in before {
            let now = self.standing(&key);
            if now.event != before.event {
                changes.events.push(now.event.unwrap_or_else(|| key.deletion()));
            }
            let new_rivals = now.rivals.into_iter().filter(|pair| !before.rivals.contains(pair));
            changes.duplicates.extend(new_rivals.map(|(winner, loser)| duplicate(&key, &winner, loser)));
        }
        changes
    }
}

/// What counts for a key.
#[derive(Default)]
struct Standing {
    /// The content; `None` if the object does not exist for the proxy.
    event: Option<Event>,
    /// The place that counts with each that does not.
    rivals: Vec<(Place, Place)>,
}

fn duplicate(key: &Key, winner: &Place, loser: Place) -> Problem {
    let winner = format!("{}, document {}", winner.file.display(), winner.document);
    Problem {
        severity: Severity::Warning,
        file: loser.file,
        document: Some(loser.document),
        text: format!("{key}: also in {winner}, which counts; ignored here"),
        kind: None,
    }
}

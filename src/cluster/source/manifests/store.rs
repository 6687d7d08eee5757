//! Tracks which file defines which object, and finds the events that result from a change of a file.
//!
//! The module takes the objects of files, and returns the events that change the former objects into the current objects. It does no I/O.
//! "Definition" means an object in a file; if several files define an object, only one definition counts.
//!
//! `rules::model` ("the model") has the objects; the store keeps only their names, the files and documents that define them, and a hash of
//! each event, so that it takes little memory besides the model. When the file whose definition counted no longer defines an object, and
//! the next file defines it with other content, that file has to be read again ([`Changes::again`]).
//!
//! Invariants: if an object is defined several times, the first definition counts (smallest path, then order in the file); equal content
//! causes no event; a broken file keeps all objects that it defined before; the events of a new file do not wait for its end, unless
//! another definition of their object is known.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use super::decode::ManifestObject;
use super::{ManifestProblem, Severity};
use crate::source::Key;
use rules::model::Event;

/// The changes that result from reading or deleting a file.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) events: Vec<Event>,
    /// A warning for each definition that, since this change, does not count because a certain other definition comes first.
    pub(super) duplicates: Vec<ManifestProblem>,
    /// Other files with a definition that counts from now on. They have to be read again, because the store does not keep the content.
    pub(super) again: BTreeSet<Arc<Path>>,
}

/// The objects of all files.
#[derive(Debug, Default)]
pub(super) struct Store {
    files: BTreeMap<Arc<Path>, File>,
    /// The files by number.
    paths: Vec<Arc<Path>>,
    /// The numbers of deleted files, which are reused for new files.
    free: Vec<u32>,
    objects: HashMap<Key, Known>,
    /// For each object with several definitions, all definitions except the first, in the order of their precedence.
    others: HashMap<Key, Vec<Definition>>,
    /// The hasher has a random seed, so that nobody can create two objects with equal hashes on purpose.
    hasher: RandomState,
}

#[derive(Debug)]
struct File {
    number: u32,
    /// The objects that the file defines, sorted.
    keys: Box<[Key]>,
}

/// The hash of an object's event.
type Content = NonZeroU64;

/// The stored facts about an object. They are small, because there may be tens of thousands of objects.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The hash of the event that was last sent; `None` if the model does not have the object.
    sent: Option<Content>,
    /// The definition that counts.
    first: Definition,
}

#[derive(Clone, Copy, Debug)]
struct Definition {
    /// The hash of the object's event; `None` if the proxy does not handle the object, such as a headless Service.
    content: Option<Content>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: u32,
    /// The number of the document in the file, from 1.
    document: u32,
}

/// A file that is being read.
#[derive(Debug)]
pub(super) struct Load {
    path: Arc<Path>,
    number: u32,
    /// The objects that the file defined before; `None` for a new file.
    former: Option<Box<[Key]>>,
    /// The objects that the file defines now.
    keys: Vec<Key>,
    /// Objects of the file that may have changed: [`Store::finish`] decides.
    undecided: Vec<Found>,
}

/// An object of a file that is being read.
#[derive(Debug)]
struct Found {
    key: Key,
    definition: Definition,
    /// The event to send; `None` if an equal event was sent before, or if the proxy does not handle the object.
    event: Option<Box<Event>>,
}

impl Store {
    /// Returns the files that were read and not deleted since.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.files.keys()
    }

    /// Begins to note the objects of a file. Call [`Store::add`] for each object, and then [`Store::finish`].
    pub(super) fn begin(&mut self, file: &Arc<Path>) -> Load {
        let (number, former) = match self.files.remove(file) {
            Some(File { number, keys }) => (number, Some(keys)),
            None => (self.new_number(file), None),
        };
        Load { path: Arc::clone(file), number, former, keys: Vec::new(), undecided: Vec::new() }
    }

    fn new_number(&mut self, file: &Arc<Path>) -> u32 {
        if let Some(number) = self.free.pop() {
            self.paths[number as usize] = Arc::clone(file);
            return number;
        }
        self.paths.push(Arc::clone(file));
        u32::try_from(self.paths.len() - 1).expect("memory ends before there are so many files")
    }

    /// Notes the next object of a file. Returns the object's event if the file is new and no other definition of the object is known,
    /// because the rest of the file cannot change it then. Returns `None` if [`Store::finish`] decides, or if the proxy does not handle the
    /// object.
    pub(super) fn add(&mut self, load: &mut Load, object: ManifestObject) -> Option<Event> {
        let ManifestObject { key, document, event } = object;
        let is_object = event != key.deletion();
        let content = is_object.then(|| Content::MIN.saturating_add(self.hasher.hash_one(&event)));
        let document = u32::try_from(document).unwrap_or(u32::MAX);
        let definition = Definition { content, place: Place { file: load.number, document } };
        let known = self.objects.get(&key);
        if known.is_none() && load.former.is_none() {
            load.keys.push(key.clone());
            self.objects.insert(key, Known { sent: content, first: definition });
            return is_object.then_some(event);
        }
        let was_sent = known.is_some_and(|known| known.sent == content);
        let event = (is_object && !was_sent).then(|| Box::new(event));
        load.undecided.push(Found { key, definition, event });
        None
    }

    /// Notes the end of a file. If a part of the file could not be read (`broken`), objects that were not found in it stay.
    pub(super) fn finish(&mut self, load: Load, broken: bool) -> Changes {
        let Load { path, number, former, mut keys, mut undecided } = load;
        let is_new = former.is_none();
        // The sort is stable, so that the first of several objects with equal keys in the file counts.
        undecided.sort_by(|a, b| a.key.cmp(&b.key));
        let mut changes = Changes::default();
        let mut former = former.unwrap_or_default().into_iter().peekable();
        let mut undecided = undecided.into_iter().peekable();
        while let Some(key) = next_key(former.peek(), undecided.peek()) {
            let was_defined = former.next_if_eq(&key).is_some();
            let mut same_key = Vec::new();
            while let Some(found) = undecided.next_if(|found| found.key == key) {
                same_key.push(found);
            }
            if !same_key.is_empty() || broken {
                keys.push(key.clone());
            }
            if !same_key.is_empty() || was_defined && !broken {
                self.define(&key, number, is_new, same_key, &mut changes);
            }
        }
        keys.sort_unstable();
        keys.dedup();
        self.files.insert(path, File { number, keys: keys.into() });
        changes
    }

    /// Notes that a file was deleted.
    pub(super) fn remove(&mut self, file: &Arc<Path>) -> Changes {
        let load = self.begin(file);
        self.free.push(load.number);
        let changes = self.finish(load, false);
        self.files.remove(file);
        changes
    }

    /// Adds the definitions of an object that were found in a file. If the file is not new, they replace the file's former definitions of
    /// the object.
    fn define(&mut self, key: &Key, file: u32, is_new: bool, found: Vec<Found>, changes: &mut Changes) {
        let known = self.objects.get(key);
        let mut definitions: Vec<Definition> = known.map(|known| known.first).into_iter().collect();
        definitions.extend(self.others.remove(key).unwrap_or_default());
        let before = definitions.clone();
        definitions.retain(|definition| is_new || definition.place.file != file);
        let at = definitions.partition_point(|other| self.path(other.place.file) <= self.path(file));
        definitions.splice(at..at, found.iter().map(|found| found.definition));
        let new = duplicates(&definitions).filter(|pair| !duplicates(&before).any(|known| known == *pair));
        changes.duplicates.extend(new.map(|(winner, loser)| self.duplicate(key, winner, loser)));
        let mut sent = known.and_then(|known| known.sent);
        let Some((first, others)) = definitions.split_first() else {
            changes.events.extend(sent.map(|_| key.deletion()));
            self.objects.remove(key);
            return;
        };
        match first.content {
            now if now == sent => {}
            None => {
                changes.events.push(key.deletion());
                sent = None;
            }
            Some(_) if first.place.file != file => {
                changes.again.insert(Arc::clone(self.path(first.place.file)));
            }
            now => {
                // The first definition in this file counts now.
                changes.events.extend(found.into_iter().next().and_then(|found| found.event).map(|event| *event));
                sent = now;
            }
        }
        self.objects.insert(key.clone(), Known { sent, first: *first });
        if !others.is_empty() {
            self.others.insert(key.clone(), others.into());
        }
    }

    fn path(&self, file: u32) -> &Arc<Path> {
        &self.paths[file as usize]
    }

    fn duplicate(&self, key: &Key, winner: Place, loser: Place) -> ManifestProblem {
        let winner = format!("{}, document {}", self.path(winner.file).display(), winner.document);
        ManifestProblem {
            severity: Severity::Warning,
            file: Arc::clone(self.path(loser.file)),
            document: Some(loser.document as usize),
            text: format!("{key}: also in {winner}, which counts; ignored here"),
            kind: None,
        }
    }
}

/// Returns the place of the definition that counts, paired with that of each other definition.
fn duplicates(definitions: &[Definition]) -> impl Iterator<Item = (Place, Place)> {
    let others = definitions.iter().skip(1).map(|other| other.place);
    others.filter_map(|other| Some((definitions.first()?.place, other)))
}

/// Returns the smaller key of `former` and `now`; `None` if both are `None`.
fn next_key(former: Option<&Key>, now: Option<&Found>) -> Option<Key> {
    former.into_iter().chain(now.map(|found| &found.key)).min().cloned()
}

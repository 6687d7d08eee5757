//! Keeps objects, one version for all of them, and the changes since the last compaction.
//!
//! Takes objects as they are applied, and returns lists and changes. Pure.
//!
//! Invariants: each change has a version of its own, larger than all before; the history reaches back to the last compaction without a gap;
//! applying an equal object is no change.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::resource::Resource;
use super::selector::Selector;

/// Namespace and name.
pub(crate) type Name = (String, String);

/// The requested version is not known any more; holds the oldest known version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooOld(pub(crate) u64);

/// An event of a watch about an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Notice {
    /// `ADDED`, `MODIFIED` or `DELETED`, as the watcher's selector sees it.
    pub(crate) kind: &'static str,
    /// The object, with the version of the change.
    pub(crate) object: Arc<Value>,
}

#[derive(Clone)]
struct Change {
    version: u64,
    resource: Resource,
    name: Name,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// All objects.
#[derive(Clone)]
pub(crate) struct Store {
    version: u64,
    compacted: u64,
    objects: BTreeMap<(Resource, Name), Arc<Value>>,
    history: Vec<Change>,
}

impl Default for Store {
    fn default() -> Self {
        // A real server's versions are never small; 0 has a meaning of its own.
        Self { version: 100, compacted: 100, objects: BTreeMap::new(), history: Vec::new() }
    }
}

impl Store {
    /// Returns the version of the latest change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Adds an object, or replaces the object with the same kind, namespace and name; does not check its fields.
    pub(crate) fn apply(&mut self, object: &Value) {
        let (resource, name) = identity(object);
        let before = self.objects.get(&(resource, name.clone())).cloned();
        let mut object = object.clone();
        if let Some(before) = &before {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if object == **before {
                return;
            }
        }
        self.change(resource, name, before, Some(object));
    }

    /// Removes an object.
    ///
    /// # Panics
    /// When there is no such object.
    pub(crate) fn delete(&mut self, resource: Resource, namespace: &str, name: &str) {
        let name = (namespace.to_owned(), name.to_owned());
        let before = self.objects.get(&(resource, name.clone())).cloned();
        assert!(before.is_some(), "there is no {resource:?} {name:?} to delete");
        self.change(resource, name, before, None);
    }

    /// Forgets the history of changes; the objects stay.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.version;
        self.history.clear();
    }

    /// Raises the version without a change of an object, as changes of other kinds do.
    pub(crate) fn pass(&mut self, versions: u64) {
        self.version += versions;
    }

    /// Returns the present state of one object.
    pub(crate) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.get(&(resource, (namespace.to_owned(), name.to_owned()))).cloned()
    }

    /// Returns the objects of a kind that match, in the order of their names, as they were at a version.
    ///
    /// # Errors
    /// When the version is not known any more.
    pub(crate) fn at(&self, resource: Resource, version: u64, selector: &Selector) -> Result<Vec<Arc<Value>>, TooOld> {
        self.check(version)?;
        let present = self.objects.iter().filter(|((kind, _), _)| *kind == resource);
        let mut objects: BTreeMap<&Name, &Arc<Value>> = present.map(|((_, name), object)| (name, object)).collect();
        for change in self.history.iter().rev().take_while(|change| change.version > version) {
            if change.resource == resource {
                match &change.before {
                    Some(before) => objects.insert(&change.name, before),
                    None => objects.remove(&change.name),
                };
            }
        }
        Ok(objects.into_values().filter(|object| selector.matches(object)).cloned().collect())
    }

    /// Returns the changes after a version for a watcher with this selector.
    ///
    /// # Errors
    /// When the version is not known any more.
    pub(crate) fn changes(&self, resource: Resource, after: u64, selector: &Selector) -> Result<Vec<Notice>, TooOld> {
        self.check(after)?;
        let first = self.history.partition_point(|change| change.version <= after);
        let changes = self.history[first..].iter().filter(|change| change.resource == resource);
        Ok(changes.filter_map(|change| change.seen_through(selector)).collect())
    }

    fn check(&self, version: u64) -> Result<(), TooOld> {
        if version < self.compacted { Err(TooOld(self.compacted)) } else { Ok(()) }
    }

    fn change(&mut self, resource: Resource, name: Name, before: Option<Arc<Value>>, after: Option<Value>) {
        self.version += 1;
        let after = after.map(|object| Arc::new(with_version(object, self.version)));
        match after.clone() {
            Some(object) => self.objects.insert((resource, name.clone()), object),
            None => self.objects.remove(&(resource, name.clone())),
        };
        self.history.push(Change { version: self.version, resource, name, before, after });
    }
}

impl Change {
    /// Returns the event for a watcher: an object that no longer matches the watcher's selector counts as deleted.
    fn seen_through(&self, selector: &Selector) -> Option<Notice> {
        let before = self.before.as_ref().filter(|object| selector.matches(object));
        let after = self.after.as_ref().filter(|object| selector.matches(object));
        match (before, after) {
            (None, None) => None,
            (None, Some(object)) => Some(Notice { kind: "ADDED", object: Arc::clone(object) }),
            (Some(_), Some(object)) => Some(Notice { kind: "MODIFIED", object: Arc::clone(object) }),
            (Some(object), None) => {
                let last = with_version((**object).clone(), self.version);
                Some(Notice { kind: "DELETED", object: Arc::new(last) })
            }
        }
    }
}

/// Returns the kind, namespace and name of an object.
pub(crate) fn identity(object: &Value) -> (Resource, Name) {
    let kind = object["kind"].as_str().expect("an object has a kind");
    let resource = Resource::of_kind(kind).unwrap_or_else(|| panic!("the test API server has no {kind}"));
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (resource, (text("namespace"), text("name")))
}

fn with_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    object
}

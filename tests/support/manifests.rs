//! The manifest directory of a proxy: one JSON file for each object, replaced by rename.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Writes objects into a directory that a proxy watches.
pub(crate) struct Manifests {
    directory: PathBuf,
}

impl Manifests {
    /// Makes `directory`, and writes objects into it.
    pub(crate) fn new(directory: PathBuf) -> Self {
        fs::create_dir(&directory).unwrap_or_else(|error| panic!("cannot make {}: {error}", directory.display()));
        Self { directory }
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }

    /// Adds an object, or replaces the one of the same kind, namespace and name.
    pub(crate) fn apply(&self, object: &Value) {
        let path = self.file(object);
        let unfinished = path.with_extension("json.tmp");
        let written = fs::write(&unfinished, object.to_string()).and_then(|()| fs::rename(&unfinished, &path));
        written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }

    /// Removes an object.
    pub(crate) fn delete(&self, object: &Value) {
        let path = self.file(object);
        fs::remove_file(&path).unwrap_or_else(|error| panic!("cannot remove {}: {error}", path.display()));
    }

    fn file(&self, object: &Value) -> PathBuf {
        let kind = object["kind"].as_str().expect("an object has a kind").to_lowercase();
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        self.directory.join(format!("{kind}-{}-{}.json", text("namespace"), text("name")))
    }
}

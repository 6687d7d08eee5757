//! Reads the cluster's objects from a directory of manifests (`--manifests DIR`).
//!
//! The module reads every `.yaml`, `.yml` and `.json` file below the directory, except hidden ones. It sends [`Event`]s in the order of the
//! files, then [`Event::InitialListDone`], then changes as they happen, and reports a [`ManifestProblem`] for everything that cannot be
//! used.
//!
//! `walk` finds the files, `document` splits them into YAML documents, `decode` reads their objects, `shape` finds objects with the same
//! fields and types, of which only the first needs a full check, `store` compares objects with their former versions; `directory` scans a
//! directory with these modules. `changes` reports which files changed, and `thread` runs everything.
//!
//! If possible, an event is sent while its file is still being read, so that not all objects of a large file are in memory at once. Two
//! threads share the items of a long JSON list.
//!
//! Invariants: a file that cannot be read deletes no object; if two files define an object, the one with the smallest path counts; an
//! event is sent only for an object whose meaning for the proxy changed.

mod assign;
mod changes;
mod chunk;
mod decode;
mod directory;
mod document;
mod shape;
mod store;
mod thread;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::convert::{ConvertOptions, WithoutClusterIp};
use directory::ScanItem;
use rules::model::Event;

pub use thread::{Handle, check, spawn};

/// What a [`ManifestProblem`] affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// An object or a part of it is ignored.
    Warning,
    /// An object, a document, a file or a directory cannot be read (objects that it defined before stay unchanged), or there is no free
    /// address or port for a Service.
    Error,
}

/// A problem of a manifest; prints as `examples/web.yaml, document 2: spec.foo: unknown field; ignored`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestProblem {
    /// What the problem affects.
    pub severity: Severity,
    /// The file or directory that has the problem.
    pub file: Arc<Path>,
    /// The number of the document in the file, from 1; `None` if the problem concerns the complete file.
    pub document: Option<usize>,
    /// What is wrong.
    pub text: String,
    /// The kind of the object with the problem, or `ManifestProblem::NO_KIND`; `None` if the problem is not in the content of an object.
    pub kind: Option<&'static str>,
}

impl ManifestProblem {
    /// The value of `kind` for a document whose kind cannot be read.
    const NO_KIND: &'static str = "unknown";
    /// The most characters of a problem: an object's name, a field's path and a message.
    const TEXT: usize = 1_200;

    /// Returns a problem of a whole file or directory.
    fn of_file(file: &Arc<Path>, text: impl Into<String>) -> Self {
        Self { severity: Severity::Error, file: Arc::clone(file), document: None, text: text.into(), kind: None }
    }
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(document) = self.document {
            write!(f, ", document {document}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Decodes bytes as the content of a file with the name `file`, for fuzzing.
#[doc(hidden)]
#[must_use]
pub fn read_bytes(file: &Path, bytes: &[u8]) -> (Vec<Event>, Vec<ManifestProblem>) {
    let (file, mut store, mut events) = (file.into(), store::Store::default(), Vec::new());
    let mut load = store.begin(&file);
    let mut take = |object| events.extend(store.add(&mut load, object));
    let outcome = decode::decode(&file, bytes.to_vec(), &mut Default::default(), &mut take);
    let changes = store.finish(load, outcome.broken);
    events.extend(changes.events);
    (events, [outcome.problems, changes.duplicates].concat())
}

/// The path that stands for standard input.
pub const STDIN: &str = "-";

/// Reads directories, files and standard input once. Returns the events of all their objects, [`Event::InitialListDone`] last, and all
/// problems.
///
/// # Errors
/// Fails if one of the sources cannot be read, or if a source that is a file or standard input is empty.
pub fn read_once(sources: &[PathBuf], options: ConvertOptions) -> anyhow::Result<(Vec<Event>, Vec<ManifestProblem>)> {
    let options = ConvertOptions { without_cluster_ip: WithoutClusterIp::Reported, ..options };
    let (mut events, problems, _) = read(sources, options)?;
    events.push(Event::InitialListDone);
    Ok((events, problems))
}

/// The objects of manifests, with the cluster IPs and node ports that an API server would give them.
#[derive(Debug)]
pub struct AssignedManifests {
    /// The events of all objects, [`Event::InitialListDone`] last.
    pub events: Vec<Event>,
    /// The problems of all files, and those of Services for which no address or port is free.
    pub problems: Vec<ManifestProblem>,
    /// A sentence for each Service that got a cluster IP or a node port which its manifest does not have.
    pub notes: Vec<String>,
    /// The addresses of the pods that EndpointSlices name, each after its `namespace/name`.
    pub pods: Vec<(String, IpAddr)>,
}

/// Does the same as [`read_once`], and gives Services the cluster IPs and node ports that an API server would give them.
///
/// # Errors
/// Fails for the same reasons as [`read_once`].
pub fn read_and_assign(sources: &[PathBuf], options: ConvertOptions) -> anyhow::Result<AssignedManifests> {
    let options = ConvertOptions { without_cluster_ip: WithoutClusterIp::Assigned, keeps_pods: true, ..options };
    let (mut events, mut problems, pods) = read(sources, options)?;
    let (notes, lacks) = assign::assign(&mut events);
    problems.extend(lacks);
    events.push(Event::InitialListDone);
    Ok(AssignedManifests { events, problems, notes, pods })
}

type Read = (Vec<Event>, Vec<ManifestProblem>, Vec<(String, IpAddr)>);

fn read(sources: &[PathBuf], options: ConvertOptions) -> anyhow::Result<Read> {
    let (mut events, mut problems) = (Vec::new(), Vec::new());
    let mut take = |news| match news {
        ScanItem::Event(event) => events.push(event),
        ScanItem::Problem(problem) => problems.push(problem),
    };
    let mut directory = directory::Directory::new(Path::new(""), options);
    directory.read_sources(sources, &mut take)?;
    Ok((events, problems, directory.take_pods()))
}

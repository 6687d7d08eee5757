//! Finds the manifest files below a directory.
//!
//! The module takes a directory, and returns the paths of its manifest files and of everything that could not be read. It reports each
//! directory before listing it, so that an inotify watch that the caller then adds misses no change.
//!
//! The walk skips names that start with a dot, so that a file of a ConfigMap volume, which the kubelet keeps below `..data`, is read only
//! once: through the symlink `DIR/foo.yaml`. The walk follows symlinks, and enters each directory only once.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A place where changes can alter the result of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit<'a> {
    /// A directory that is about to be listed.
    Directory(&'a Path),
    /// The target of a symlink, without symlinks in its path.
    Target(&'a Path),
    /// The manifest directory itself is a symlink: the directory that contains the symlink, and the symlink's name.
    Root(&'a Path, &'a OsStr),
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The manifest files, sorted.
    pub(super) files: Vec<PathBuf>,
    /// The paths that could not be read, and the errors. Files may exist below such a path.
    pub(super) errors: Vec<(PathBuf, io::Error)>,
}

/// Walks through a directory.
///
/// # Errors
/// Fails if the root directory cannot be listed.
pub(super) fn walk(root: &Path, visit: &mut dyn FnMut(Visit<'_>)) -> io::Result<Listing> {
    if root.is_symlink()
        && let Some(name) = root.file_name()
    {
        visit(Visit::Root(parent_of(root), name));
    }
    let mut walker = Walker { visit, entered: HashSet::new(), listing: Listing::default() };
    walker.directory(root)?;
    walker.listing.files.sort();
    Ok(walker.listing)
}

/// Returns whether a file with this name is read as a manifest.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    !is_hidden(name) && matches!(extension, Some("yaml" | "yml" | "json"))
}

pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Returns the parent directory of a path; `.` for a path that is only a name.
pub(super) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

struct Walker<'a> {
    visit: &'a mut dyn FnMut(Visit<'_>),
    /// Device and inode of each directory entered.
    entered: HashSet<(u64, u64)>,
    listing: Listing,
}

impl Walker<'_> {
    fn directory(&mut self, dir: &Path) -> io::Result<()> {
        let meta = fs::metadata(dir)?;
        if !self.entered.insert((meta.dev(), meta.ino())) {
            return Ok(());
        }
        (self.visit)(Visit::Directory(dir));
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if is_hidden(&entry.file_name()) {
                continue;
            }
            match self.entry(&entry) {
                Ok(()) => {}
                // Ignore a file that was deleted after it was listed, or a symlink without a target.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => self.listing.errors.push((entry.path(), error)),
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: &DirEntry) -> io::Result<()> {
        let path = entry.path();
        if entry.file_type()?.is_symlink() {
            let target = fs::canonicalize(&path)?;
            (self.visit)(Visit::Target(&target));
        }
        let meta = fs::metadata(&path)?;
        if meta.is_dir() {
            return self.directory(&path);
        }
        if meta.is_file() && is_manifest(&entry.file_name()) {
            self.listing.files.push(path);
        }
        Ok(())
    }
}

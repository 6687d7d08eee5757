//! Finds the manifest files below a directory.
//!
//! Takes a directory, gives the paths of its files and what could not be read. Reports each directory before listing it, so that an
//! inotify watch that is added at that moment misses no change.
//!
//! Names that start with a dot are left out. So a file of a ConfigMap volume, which the kubelet keeps below `..data`, is read only
//! once: through the symlink `DIR/foo.yaml`. Symlinks are followed, each directory is entered once.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A directory in which changes can alter the result of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit<'a> {
    /// A directory that is about to be listed.
    Directory(&'a Path),
    /// The directory in which the target of a symlink lies.
    Target(&'a Path),
    /// The root is a symlink: the directory that holds it, and its name there.
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
/// The root cannot be listed.
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

/// Returns whether a name is that of a manifest file.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    !is_hidden(name) && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// Returns whether a name starts with a dot.
pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Returns the directory in which a path lies.
fn parent_of(path: &Path) -> &Path {
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
                // The entry was deleted after it was listed, or is a symlink to nothing.
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
            (self.visit)(Visit::Target(parent_of(&target)));
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

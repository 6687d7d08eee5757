//! inotify: which files to look at again.
//!
//! Takes directories to watch, gives [`Changed`]. A write shows when the writer closes the file, so half-written files are
//! not read; whatever changes the set of directories or symlinks asks for a rescan, which sets up a new [`Watch`].

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::walk::{Visit, is_hidden, is_manifest};

/// Bytes of events taken from the kernel at once; room for some hundred.
const BUFFER_BYTES: usize = 16 << 10;

/// What happened since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Everything may have changed.
    pub(super) all: bool,
    /// Files whose content changed, or that came or went.
    pub(super) files: BTreeSet<PathBuf>,
    /// Files whose permissions or times changed.
    pub(super) attributes: BTreeSet<PathBuf>,
}

/// A set of watched directories.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: OwnedFd,
    watched: HashMap<i32, Watched>,
    /// The first directory that could not be watched, and why.
    failure: Option<(PathBuf, Errno)>,
}

#[derive(Debug)]
enum Watched {
    /// A directory with manifests.
    Directory(PathBuf),
    /// A directory into which symlinks point.
    Target,
    /// The directory that holds the root, a symlink of this name.
    Root(OsString),
}

impl Watch {
    /// A watch of nothing yet.
    ///
    /// # Errors
    /// The kernel gives no inotify instance.
    pub(super) fn new() -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, watched: HashMap::new(), failure: None })
    }

    /// Watches a place from now on.
    pub(super) fn add(&mut self, visit: Visit<'_>) {
        let (path, watched) = match visit {
            Visit::Directory(path) => (path, Watched::Directory(path.into())),
            Visit::Target(path) => (path, Watched::Target),
            Visit::Root(path, name) => (path, Watched::Root(name.into())),
        };
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.inotify, path, flags) {
            Ok(descriptor) => match self.watched.entry(descriptor) {
                // One directory can be several things; being listed says most.
                Entry::Occupied(mut other) if matches!(watched, Watched::Directory(_)) => {
                    other.insert(watched);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(free) => {
                    free.insert(watched);
                }
            },
            // The walk finds the same and says so.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
            Err(error) => {
                self.failure.get_or_insert_with(|| (path.into(), error));
            }
        }
    }

    /// The directory that could not be watched, if any: changes there would go unseen.
    pub(super) fn failure(&self) -> Option<&(PathBuf, Errno)> {
        self.failure.as_ref()
    }

    /// Takes what the kernel has reported until now; never waits.
    ///
    /// # Errors
    /// The kernel's refusal; the watch is of no more use.
    pub(super) fn changed(&self) -> Result<Changed, Errno> {
        let mut changed = Changed::default();
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    let watched = self.watched.get(&event.wd());
                    note(watched, event.events(), name.unwrap_or_default(), &mut changed);
                }
                Err(Errno::AGAIN) => return Ok(self.with_directories(changed)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A directory symlink that went is not told from a file by the event.
    fn with_directories(&self, mut changed: Changed) -> Changed {
        let directories = self.watched.values().filter_map(|watched| match watched {
            Watched::Directory(path) => Some(path),
            Watched::Target | Watched::Root(_) => None,
        });
        changed.all |= directories.into_iter().any(|path| changed.files.contains(path));
        changed.files.retain(|file| file.file_name().is_some_and(is_manifest));
        changed
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Adds what one event means. `name` is empty when it is about the watched directory itself.
fn note(watched: Option<&Watched>, event: ReadFlags, name: &OsStr, changed: &mut Changed) {
    let itself = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
    if event.contains(ReadFlags::QUEUE_OVERFLOW) || (watched.is_some() && event.intersects(itself)) {
        changed.all = true;
        return;
    }
    match watched {
        _ if name.is_empty() => {}
        None => {}
        Some(Watched::Target) => changed.all = true,
        Some(Watched::Root(root)) => changed.all |= root == name,
        // "..data" of a kubelet is replaced when all files change.
        Some(Watched::Directory(_)) if name.as_bytes().starts_with(b"..") => changed.all = true,
        Some(Watched::Directory(_)) if is_hidden(name) => {}
        Some(Watched::Directory(_)) if event.contains(ReadFlags::ISDIR) => changed.all = true,
        Some(Watched::Directory(dir)) => note_file(dir.join(name), event, changed),
    }
}

fn note_file(path: PathBuf, event: ReadFlags, changed: &mut Changed) {
    if event.contains(ReadFlags::ATTRIB) {
        changed.attributes.insert(path);
        return;
    }
    let comes = event.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
    if comes && path.is_symlink() {
        // Its target has to be watched too.
        changed.all = true;
    } else if !event.contains(ReadFlags::CREATE) || is_hard_link(&path) {
        // The writer of a new file is not done before it closes it, but a hard link is complete at once.
        changed.files.insert(path);
    }
}

fn is_hard_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.nlink() > 1)
}

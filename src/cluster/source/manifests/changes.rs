//! Finds with inotify which files of a manifest directory changed.
//!
//! The module takes the directories that a scan visits, and returns [`Changed`]. It reports a write when the writer closes the file, so
//! that half-written files are not read. A change of a directory or symlink needs a rescan of everything, which makes a new [`Monitor`].

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

/// The size of the buffer for inotify events in bytes, with room for a few hundred events.
const BUFFER_BYTES: usize = 16 << 10;

/// The changes since the last call of [`Monitor::changed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Whether anything may have changed, so that a rescan is needed.
    pub(super) all: bool,
    /// Files whose content changed, or that were created or deleted.
    pub(super) files: BTreeSet<PathBuf>,
    /// Files whose permissions or times changed.
    pub(super) attributes: BTreeSet<PathBuf>,
}

/// Monitors directories.
#[derive(Debug)]
pub(super) struct Monitor {
    inotify: OwnedFd,
    directories: HashMap<i32, Role>,
    /// The first directory that could not be watched, and why.
    failure: Option<(PathBuf, Errno)>,
}

/// Why a directory is monitored.
#[derive(Debug)]
enum Role {
    /// The directory, with this path, may contain manifests.
    Manifests(PathBuf),
    /// Symlinks point to something in the directory.
    Target,
    /// The directory contains the manifest directory, which is a symlink with this name.
    Root(OsString),
}

impl Monitor {
    /// Makes a monitor that watches no directory yet.
    ///
    /// # Errors
    /// Fails if the kernel cannot create another inotify instance.
    pub(super) fn new() -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, directories: HashMap::new(), failure: None })
    }

    /// Starts to monitor a directory.
    pub(super) fn add(&mut self, visit: Visit<'_>) {
        let (path, role) = match visit {
            Visit::Directory(path) => (path, Role::Manifests(path.into())),
            Visit::Target(path) => (path, Role::Target),
            Visit::Root(path, name) => (path, Role::Root(name.into())),
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
            Ok(number) => match self.directories.entry(number) {
                // inotify has only one watch for each directory, so keep one role of several: `Manifests` if it is one of them, otherwise
                // the first role.
                Entry::Occupied(mut other) if matches!(role, Role::Manifests(_)) => {
                    other.insert(role);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(free) => {
                    free.insert(role);
                }
            },
            // Ignore the error: the scan fails on this directory too, and reports it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
            Err(error) => {
                self.failure.get_or_insert_with(|| (path.into(), error));
            }
        }
    }

    /// Returns the first directory that could not be watched, with the error. Changes in that directory would be missed.
    pub(super) fn failure(&self) -> Option<&(PathBuf, Errno)> {
        self.failure.as_ref()
    }

    /// Reads the inotify events that have arrived, without waiting.
    ///
    /// # Errors
    /// Returns the error that the kernel reports. After an error, the monitor cannot be used any more.
    pub(super) fn changed(&self) -> Result<Changed, Errno> {
        let mut changed = Changed::default();
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(report) => {
                    let name = report.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    let role = self.directories.get(&report.wd());
                    note(role, report.events(), name.unwrap_or_default(), &mut changed);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        // If a symlink to a directory was deleted, the inotify event looks like that of a file.
        changed.all |= self.directories.values().any(|role| match role {
            Role::Manifests(path) => changed.files.contains(path),
            Role::Target | Role::Root(_) => false,
        });
        changed.files.retain(|file| file.file_name().is_some_and(is_manifest));
        Ok(changed)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Adds the effect of one inotify event to `changed`. `name` is empty if the event is about the directory itself.
fn note(role: Option<&Role>, event: ReadFlags, name: &OsStr, changed: &mut Changed) {
    let itself = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
    if event.contains(ReadFlags::QUEUE_OVERFLOW) || (role.is_some() && event.intersects(itself)) {
        changed.all = true;
        return;
    }
    match role {
        _ if name.is_empty() => {}
        None => {}
        Some(Role::Target) => changed.all = true,
        Some(Role::Root(root)) => changed.all |= root == name,
        // A kubelet replaces the symlink "..data" when any file of a ConfigMap changes.
        Some(Role::Manifests(_)) if name.as_bytes().starts_with(b"..") => changed.all = true,
        Some(Role::Manifests(_)) if is_hidden(name) => {}
        Some(Role::Manifests(_)) if event.contains(ReadFlags::ISDIR) => changed.all = true,
        Some(Role::Manifests(dir)) => note_file(dir.join(name), event, changed),
    }
}

fn note_file(path: PathBuf, event: ReadFlags, changed: &mut Changed) {
    if event.contains(ReadFlags::ATTRIB) {
        changed.attributes.insert(path);
        return;
    }
    let comes = event.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
    if comes && path.is_symlink() {
        // The path is a symlink, whose target has to be monitored too.
        changed.all = true;
    } else if !event.contains(ReadFlags::CREATE) || is_hard_link(&path) {
        // A new file is complete when its writer closes it, but a hard link is complete at once.
        changed.files.insert(path);
    }
}

fn is_hard_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.nlink() > 1)
}

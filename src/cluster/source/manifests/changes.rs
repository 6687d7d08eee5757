//! Finds with inotify which files of a manifest directory changed.
//!
//! The module takes the directories that a scan visits, and returns [`Changed`]. It reports a write when the writer closes the file, so
//! that half-written files are not read. A change of a directory or symlink needs a rescan of everything, which makes a new [`Monitor`].

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

use super::walk::{Visit, is_hidden, is_manifest, parent_of};

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

#[derive(Debug)]
pub(super) struct Monitor {
    inotify: OwnedFd,
    directories: HashMap<i32, Roles>,
    /// The first directory that could not be watched for a reason that a scan does not report, and that reason.
    failure: Option<(PathBuf, Errno)>,
}

/// Why a directory is monitored. One directory can have several roles, because inotify gives it one watch.
#[derive(Debug, Default)]
struct Roles {
    /// The path of the directory, if its manifests are read.
    manifests: Option<PathBuf>,
    /// The names in the directory to which symlinks point.
    targets: BTreeSet<OsString>,
    /// If the manifest directory is a symlink in this directory, the name of the symlink.
    root: Option<OsString>,
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

    /// Starts to monitor the directory in which changes can alter what `visit` stands for.
    pub(super) fn add(&mut self, visit: Visit<'_>) {
        let directory = match visit {
            Visit::Directory(path) | Visit::Root(path, _) => path,
            Visit::Target(path) => parent_of(path),
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
        match inotify::add_watch(&self.inotify, directory, flags) {
            Ok(number) => self.directories.entry(number).or_default().add(visit),
            // Ignore the error: the scan cannot read this directory either, and reports that unless it is gone.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
            Err(error) => {
                self.failure.get_or_insert_with(|| (directory.into(), error));
            }
        }
    }

    /// Returns the first directory that could not be watched although it may be readable, with the error. Changes in that directory would
    /// be missed.
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
                    let roles = self.directories.get(&report.wd());
                    note(roles, report.events(), name.unwrap_or_default(), &mut changed);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        // If a symlink to a directory was deleted, the inotify event looks like that of a file.
        let directories = self.directories.values().filter_map(|roles| roles.manifests.as_ref());
        changed.all |= directories.clone().any(|path| changed.files.contains(path));
        changed.files.retain(|file| file.file_name().is_some_and(is_manifest));
        Ok(changed)
    }
}

impl Roles {
    fn add(&mut self, visit: Visit<'_>) {
        match visit {
            Visit::Directory(path) => self.manifests = Some(path.into()),
            Visit::Target(path) => self.targets.extend(path.file_name().map(OsStr::to_owned)),
            Visit::Root(_, name) => self.root = Some(name.into()),
        }
    }

    /// Returns whether the event may change more than the objects of the file `name`.
    fn needs_rescan(&self, event: ReadFlags, name: &OsStr) -> bool {
        let is_root = self.root.as_deref() == Some(name);
        if self.manifests.is_none() {
            // A symlink can reach its target over other symlinks in the same directory, so any name counts.
            return is_root || !self.targets.is_empty();
        }
        // A kubelet replaces the symlink "..data" when any file of a ConfigMap changes.
        let is_version = name.as_bytes().starts_with(b"..");
        let is_directory = event.contains(ReadFlags::ISDIR) && !is_hidden(name);
        is_root || self.targets.contains(name) || is_version || is_directory
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Adds the effect of one inotify event to `changed`. `name` is empty if the event is about the directory itself.
fn note(roles: Option<&Roles>, event: ReadFlags, name: &OsStr, changed: &mut Changed) {
    let itself = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
    if event.contains(ReadFlags::QUEUE_OVERFLOW) || (roles.is_some() && event.intersects(itself)) {
        changed.all = true;
        return;
    }
    let Some(roles) = roles.filter(|_| !name.is_empty()) else { return };
    changed.all |= roles.needs_rescan(event, name);
    if let Some(dir) = &roles.manifests
        && !is_hidden(name)
    {
        note_file(dir.join(name), event, changed);
    }
}

fn note_file(path: PathBuf, event: ReadFlags, changed: &mut Changed) {
    if event.contains(ReadFlags::ATTRIB) {
        changed.attributes.insert(path);
        return;
    }
    let comes = event.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
    if comes && path.is_symlink() {
        // The target of a new symlink has to be monitored too.
        changed.all = true;
    } else if !event.contains(ReadFlags::CREATE) || is_hard_link(&path) {
        // A new file is complete when its writer closes it, but a hard link is complete at once.
        changed.files.insert(path);
    }
}

fn is_hard_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.nlink() > 1)
}

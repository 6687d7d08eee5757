//! The state of a manifest directory between two scans.
//!
//! Takes the files, gives [`Update`]s: events, and problems that are new. Knows nothing of inotify and threads.
//!
//! Invariants: only a file that was certainly deleted deletes objects; a rescan reads only files that may have changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ManifestProblem;
use super::decode::decode;
use super::store::{Changes, Store};
use super::walk::{Visit, walk};
use crate::logging::once::OncePerKey;
use crate::model::Event;
use crate::source::convert::{ConvertOptions, Converter};

/// The largest file that is read, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// A file that changed this recently may change again within the same time stamp.
const UNSETTLED: Duration = Duration::from_secs(2);

/// The outcome of a scan.
#[derive(Debug, Default)]
pub(super) struct Update {
    pub(super) events: Vec<Event>,
    /// Those that the last scan of the same file did not have.
    pub(super) problems: Vec<ManifestProblem>,
    /// The directory itself cannot be read; all objects stay as they were.
    pub(super) unreadable: bool,
    /// The scan was stopped before everything was read.
    pub(super) interrupted: bool,
    /// Files that are to be read again before this is of use.
    again: BTreeSet<Arc<Path>>,
}

impl Update {
    fn add(&mut self, mut changes: Changes) {
        self.events.append(&mut changes.events);
        self.problems.extend(changes.duplicates);
        self.again.append(&mut changes.again);
    }
}

/// A manifest directory.
#[derive(Debug)]
pub(super) struct Directory {
    root: Arc<Path>,
    converter: Converter,
    store: Store,
    /// Each file's metadata when it was read.
    stamps: HashMap<Arc<Path>, Stamp>,
    /// Files that could not be read.
    unreadable: HashSet<Arc<Path>>,
    logged: OncePerKey<Arc<Path>, ManifestProblem>,
}

impl Directory {
    /// A directory before its first scan.
    pub(super) fn new(root: &Path, options: ConvertOptions) -> Self {
        Self {
            root: root.into(),
            converter: Converter::new(options),
            store: Store::default(),
            stamps: HashMap::new(),
            unreadable: HashSet::new(),
            logged: OncePerKey::default(),
        }
    }

    /// Scans the whole directory until `go_on` gives false. Calls `visit` with each directory before it is read.
    pub(super) fn rescan(&mut self, visit: &mut dyn FnMut(Visit<'_>), go_on: &dyn Fn() -> bool) -> Update {
        let mut update = Update::default();
        let listing = match walk(&self.root, visit) {
            Ok(listing) => listing,
            Err(error) => return self.unreadable_root(&error),
        };
        let problems = listing.errors.iter().map(|(path, error)| unreadable(&path.as_path().into(), error)).collect();
        update.problems.extend(self.logged.new_messages(Arc::clone(&self.root), problems));
        let hidden = |file: &Path| listing.errors.iter().any(|(path, _)| file.starts_with(path));
        let known = self.store.files().chain(&self.unreadable);
        let gone: Vec<_> = known
            .filter(|file| listing.files.binary_search_by(|found| found.as_path().cmp(file)).is_err() && !hidden(file))
            .cloned()
            .collect();
        for file in gone {
            self.forget(&file, &mut update);
        }
        for file in listing.files {
            if !go_on() {
                update.interrupted = true;
                break;
            }
            let file: Arc<Path> = file.into();
            if !self.is_unchanged(&file) {
                self.load(&file, &mut update);
            }
        }
        self.load_again(&mut update);
        update
    }

    /// Reads some files again.
    pub(super) fn refresh(&mut self, files: BTreeSet<PathBuf>) -> Update {
        // A file of a directory that cannot be read may still exist.
        if let Err(error) = fs::read_dir(&self.root) {
            return self.unreadable_root(&error);
        }
        let mut update = Update::default();
        for file in files {
            self.load(&file.into(), &mut update);
        }
        self.load_again(&mut update);
        update
    }

    /// Reads the files again that have a definition which counts from now on, each once: one that cannot be read now leaves its
    /// objects as they were.
    fn load_again(&mut self, update: &mut Update) {
        let mut done = BTreeSet::new();
        while let Some(file) = update.again.pop_first() {
            if done.insert(Arc::clone(&file)) {
                self.load(&file, update);
            }
        }
    }

    /// Whether the last attempt to read a file failed.
    pub(super) fn is_unreadable(&self, file: &Path) -> bool {
        self.unreadable.contains(file)
    }

    fn unreadable_root(&mut self, error: &io::Error) -> Update {
        let problem = unreadable(&self.root, error);
        let problems = self.logged.new_messages(Arc::clone(&self.root), vec![problem]);
        Update { problems, unreadable: true, ..Update::default() }
    }

    fn load(&mut self, file: &Arc<Path>, update: &mut Update) {
        self.stamps.remove(file);
        let problems = match read(file) {
            Ok((bytes, stamp)) => {
                let content = decode(file, &bytes, &mut self.converter);
                give_back(bytes);
                update.add(self.store.replace(file, content.objects, content.broken));
                self.stamps.extend(stamp.map(|stamp| (Arc::clone(file), stamp)));
                self.unreadable.remove(file);
                content.problems
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return self.forget(file, update),
            Err(error) => {
                self.unreadable.insert(Arc::clone(file));
                vec![unreadable(file, &error)]
            }
        };
        update.problems.extend(self.logged.new_messages(Arc::clone(file), problems));
    }

    fn forget(&mut self, file: &Arc<Path>, update: &mut Update) {
        update.add(self.store.remove(file));
        self.stamps.remove(file);
        self.unreadable.remove(file);
        self.logged.forget(file);
    }

    fn is_unchanged(&self, file: &Path) -> bool {
        let Some(stamp) = self.stamps.get(file) else { return false };
        fs::metadata(file).is_ok_and(|meta| Stamp::of(&meta) == *stamp)
    }
}

fn unreadable(file: &Arc<Path>, error: &io::Error) -> ManifestProblem {
    ManifestProblem::of_file(file, format!("cannot be read: {error}; objects from there stay as they were"))
}

/// A file's metadata. Equal stamps mean equal content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            inode: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Whether the last change is so long ago that the next one changes the stamp.
    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(self.changed.0).is_ok_and(|changed| now > Duration::from_secs(changed) + UNSETTLED)
    }
}

/// Gives memory back to the system, by making the buffer small first: when a block of many megabytes is freed as such, glibc takes it
/// as a sign that others like it follow, and keeps as much free memory as twice its size from then on.
fn give_back(mut bytes: Vec<u8>) {
    bytes.clear();
    bytes.shrink_to(1);
}

/// A file's content, with its stamp if the next change will change that.
fn read(file: &Path) -> io::Result<(Vec<u8>, Option<Stamp>)> {
    // Opening a named pipe would block until it has a writer.
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut opened = File::open(file)?;
    let stamp = Some(Stamp::of(&opened.metadata()?)).filter(Stamp::is_settled);
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    opened.by_ref().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|read| read <= MAX_FILE_BYTES) {
        return Ok((bytes, stamp));
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("larger than {} MiB", MAX_FILE_BYTES >> 20)))
}

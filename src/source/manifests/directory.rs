//! The state of a manifest directory between two looks at it.
//!
//! Takes the disk, gives [`Update`]s: events, and problems that were not said before. Knows nothing of watches and threads.
//!
//! Invariants: only a file that is certainly gone deletes objects; a rescan reads again only files that may have changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::decode::decode;
use super::problem::Problem;
use super::store::{Changes, Store};
use super::walk::{Visit, walk};
use crate::model::Event;
use crate::source::convert::{ConvertOptions, Converter};
use crate::source::notice::Memory;

/// The largest file that is read, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// A file changed this recently may change again without its time stamps telling.
const UNSETTLED: Duration = Duration::from_secs(2);

/// What a look at the disk brought.
#[derive(Debug, Default)]
pub(super) struct Update {
    /// What the model has to know.
    pub(super) events: Vec<Event>,
    /// What is new to be said.
    pub(super) problems: Vec<Problem>,
    /// The directory itself cannot be read; all objects stay as they were.
    pub(super) lost: bool,
    /// The look ended before everything was read.
    pub(super) interrupted: bool,
}

impl Update {
    fn add(&mut self, changes: Changes) {
        self.events.extend(changes.events);
        self.problems.extend(changes.duplicates);
    }
}

/// A manifest directory.
#[derive(Debug)]
pub(super) struct Directory {
    root: Arc<Path>,
    converter: Converter,
    store: Store,
    /// How each file looked when it was read.
    stamps: HashMap<Arc<Path>, Stamp>,
    /// Files that could not be read.
    unreadable: HashSet<Arc<Path>>,
    said: Memory<Arc<Path>, Problem>,
}

impl Directory {
    /// A directory that was not looked at yet.
    pub(super) fn new(root: &Path, options: ConvertOptions) -> Self {
        Self {
            root: root.into(),
            converter: Converter::new(options),
            store: Store::default(),
            stamps: HashMap::new(),
            unreadable: HashSet::new(),
            said: Memory::default(),
        }
    }

    /// Looks at everything while `go_on` says so. `visit` hears of each directory before it is read.
    pub(super) fn rescan(&mut self, visit: &mut dyn FnMut(Visit<'_>), go_on: &dyn Fn() -> bool) -> Update {
        let mut update = Update::default();
        let listing = match walk(&self.root, visit) {
            Ok(listing) => listing,
            Err(error) => return self.lost(&error),
        };
        let problems = listing.errors.iter().map(|(path, error)| unreadable(&path.as_path().into(), error)).collect();
        update.problems.extend(self.said.fresh(Arc::clone(&self.root), problems));
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
        update
    }

    /// Looks at some files.
    pub(super) fn refresh(&mut self, files: BTreeSet<PathBuf>) -> Update {
        // Without its directory a file is not deleted but out of sight.
        if let Err(error) = fs::read_dir(&self.root) {
            return self.lost(&error);
        }
        let mut update = Update::default();
        for file in files {
            self.load(&file.into(), &mut update);
        }
        update
    }

    /// Whether a file could not be read when it was last looked at.
    pub(super) fn is_unreadable(&self, file: &Path) -> bool {
        self.unreadable.contains(file)
    }

    fn lost(&mut self, error: &io::Error) -> Update {
        let problem = unreadable(&self.root, error);
        let problems = self.said.fresh(Arc::clone(&self.root), vec![problem]);
        Update { problems, lost: true, ..Update::default() }
    }

    fn load(&mut self, file: &Arc<Path>, update: &mut Update) {
        self.stamps.remove(file);
        let problems = match read(file) {
            Ok((bytes, stamp)) => {
                let content = decode(file, &bytes, &mut self.converter);
                drop(bytes);
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
        update.problems.extend(self.said.fresh(Arc::clone(file), problems));
    }

    fn forget(&mut self, file: &Arc<Path>, update: &mut Update) {
        update.add(self.store.remove(file));
        self.stamps.remove(file);
        self.unreadable.remove(file);
        self.said.forget(file);
    }

    fn is_unchanged(&self, file: &Path) -> bool {
        let Some(stamp) = self.stamps.get(file) else { return false };
        fs::metadata(file).is_ok_and(|meta| Stamp::of(&meta) == *stamp)
    }
}

fn unreadable(file: &Arc<Path>, error: &io::Error) -> Problem {
    Problem::of_file(file, format!("cannot be read: {error}; objects from there stay as they were"))
}

/// How a file looks from outside. Equal stamps mean equal content.
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

    /// Whether the last change is long enough ago for the next one to show.
    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(self.changed.0).is_ok_and(|changed| now > Duration::from_secs(changed) + UNSETTLED)
    }
}

/// A file's content, with its stamp if that can be relied on.
fn read(file: &Path) -> io::Result<(Vec<u8>, Option<Stamp>)> {
    // Opening a pipe would wait for its writer.
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut opened = File::open(file)?;
    let stamp = Some(Stamp::of(&opened.metadata()?)).filter(Stamp::is_settled);
    let mut bytes = Vec::new();
    // The size may grow while we read.
    opened.by_ref().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|read| read <= MAX_FILE_BYTES) {
        return Ok((bytes, stamp));
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("larger than {} MiB", MAX_FILE_BYTES >> 20)))
}

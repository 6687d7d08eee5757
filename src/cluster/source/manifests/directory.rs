//! The state of a manifest directory between two scans.
//!
//! The module reads the files, and passes on a [`ScanItem`] for each event and each new problem while it reads. It uses no inotify.
//!
//! Invariants: objects of a missing file are deleted only if the file was certainly deleted, and not if its directory could not be read; a
//! rescan reads only files that may have changed, and those with a definition that counts from now on.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use super::decode::{Reader, decode};
use super::store::{Changes, Store};
use super::walk::{Visit, walk};
use super::{ManifestProblem, STDIN};
use crate::source::convert::ConvertOptions;
use component::files;
use component::logging::once::OncePerKey;
use rules::model::Event;

/// The largest file that is read, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// What standard input is called in messages.
const STDIN_NAME: &str = "standard input";

/// A file that changed this recently may change again within the same time stamp.
const UNSETTLED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum ScanItem {
    Event(Event),
    /// A problem that the last scan of the same file did not have.
    Problem(ManifestProblem),
}

/// How a scan ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Everything that can be read was read.
    Complete,
    /// The directory itself cannot be read; all objects stay unchanged.
    Unreadable,
    /// The scan was stopped before everything was read.
    Interrupted,
}

/// Receives the results of a scan, in order.
pub(super) type Take<'a> = &'a mut dyn FnMut(ScanItem);

struct Scan<'a> {
    take: Take<'a>,
    /// Files that have to be read again before the scan ends.
    again: BTreeSet<Arc<Path>>,
}

impl Scan<'_> {
    fn changes(&mut self, mut changes: Changes) {
        self.problems(changes.duplicates);
        changes.events.into_iter().map(ScanItem::Event).for_each(&mut *self.take);
        self.again.append(&mut changes.again);
    }

    fn problems(&mut self, problems: impl IntoIterator<Item = ManifestProblem>) {
        problems.into_iter().map(ScanItem::Problem).for_each(&mut *self.take);
    }
}

#[derive(Debug)]
pub(super) struct Directory {
    root: Arc<Path>,
    /// One reader for each of the two threads that share a long list.
    readers: [Reader; 2],
    store: Store,
    /// Each file's metadata when it was read; only of files that had not changed just before.
    stamps: HashMap<Arc<Path>, Stamp>,
    /// Files that could not be read.
    unreadable: HashSet<Arc<Path>>,
    logged: OncePerKey<Arc<Path>, ManifestProblem>,
}

impl Directory {
    /// Returns the state of a directory before its first scan.
    pub(super) fn new(root: &Path, options: ConvertOptions) -> Self {
        Self {
            root: root.into(),
            readers: [(); 2].map(|()| Reader::new(options.clone())),
            store: Store::default(),
            stamps: HashMap::new(),
            unreadable: HashSet::new(),
            logged: OncePerKey::default(),
        }
    }

    /// Scans the whole directory until `go_on` returns false. Calls `visit` with each directory before it is read, and with symlinks.
    pub(super) fn rescan(&mut self, visit: &mut dyn FnMut(Visit<'_>), go_on: &dyn Fn() -> bool, take: Take<'_>) -> End {
        let mut scan = Scan { take, again: BTreeSet::new() };
        let listing = match walk(&self.root, visit) {
            Ok(listing) => listing,
            Err(error) => return self.unreadable_root(&error, &mut scan),
        };
        let problems = listing.errors.iter().map(|(path, error)| unreadable(&path.as_path().into(), error)).collect();
        scan.problems(self.logged.new_messages(Arc::clone(&self.root), problems));
        let hidden = |file: &Path| listing.errors.iter().any(|(path, _)| file.starts_with(path));
        let known = self.store.files().chain(&self.unreadable);
        let gone: Vec<_> = known
            .filter(|file| listing.files.binary_search_by(|found| found.as_path().cmp(file)).is_err() && !hidden(file))
            .cloned()
            .collect();
        for file in gone {
            self.forget(&file, &mut scan);
        }
        for file in listing.files {
            if !go_on() {
                return End::Interrupted;
            }
            let file: Arc<Path> = file.into();
            if !self.is_unchanged(&file) {
                self.load(&file, &mut scan);
            }
        }
        self.load_again(&mut scan);
        End::Complete
    }

    /// Reads directories, files of any name and standard input ([`STDIN`]) once, in the order of their paths. Has to be called before any
    /// scan, because it does not read a file again as a scan does ([`Changes::again`]).
    ///
    /// # Errors
    /// Fails if one of the sources cannot be read, or if a source that is a file or standard input is empty.
    pub(super) fn read_sources(&mut self, sources: &[PathBuf], take: Take<'_>) -> anyhow::Result<()> {
        let mut scan = Scan { take, again: BTreeSet::new() };
        // Each file, and whether a user named it.
        let mut files: BTreeMap<Arc<Path>, bool> = BTreeMap::new();
        for source in sources {
            if source.as_os_str() == STDIN {
                files.insert(Path::new(STDIN_NAME).into(), true);
            } else if fs::metadata(source).with_context(|| cannot_read(source))?.is_dir() {
                let listing = walk(source, &mut |_| {}).with_context(|| cannot_read(source))?;
                scan.problems(listing.errors.iter().map(|(path, error)| unreadable(&path.as_path().into(), error)));
                files.extend(listing.files.into_iter().map(|file| (file.into(), false)));
            } else {
                files.insert(source.as_path().into(), true);
            }
        }
        for (file, is_named) in files {
            if is_named {
                let bytes = read_named(&file).with_context(|| cannot_read(&file))?;
                self.take_in(&file, Ok((bytes, None)), &mut scan);
            } else {
                self.load(&file, &mut scan);
            }
        }
        Ok(())
    }

    /// Returns the pods that the readers kept, see [`ConvertOptions`].
    pub(super) fn take_pods(&mut self) -> Vec<(String, IpAddr)> {
        self.readers.iter_mut().flat_map(Reader::take_pods).collect()
    }

    /// Reads some files again.
    pub(super) fn refresh(&mut self, files: BTreeSet<PathBuf>, take: Take<'_>) -> End {
        let mut scan = Scan { take, again: BTreeSet::new() };
        // If the directory cannot be read, a file that is not found may still exist, so delete nothing.
        if let Err(error) = fs::read_dir(&self.root) {
            return self.unreadable_root(&error, &mut scan);
        }
        for file in files {
            self.load(&file.into(), &mut scan);
        }
        self.load_again(&mut scan);
        End::Complete
    }

    /// Reads each file again that defines an object whose definition in another file counted until now. Tries each file only once: if it
    /// cannot be read, its objects stay unchanged.
    fn load_again(&mut self, scan: &mut Scan<'_>) {
        let mut done = BTreeSet::new();
        while let Some(file) = scan.again.pop_first() {
            if done.insert(Arc::clone(&file)) {
                self.load(&file, scan);
            }
        }
    }

    /// Returns whether the last attempt to read a file failed.
    pub(super) fn is_unreadable(&self, file: &Path) -> bool {
        self.unreadable.contains(file)
    }

    fn unreadable_root(&mut self, error: &io::Error, scan: &mut Scan<'_>) -> End {
        let problem = unreadable(&self.root, error);
        scan.problems(self.logged.new_messages(Arc::clone(&self.root), vec![problem]));
        End::Unreadable
    }

    fn load(&mut self, file: &Arc<Path>, scan: &mut Scan<'_>) {
        self.take_in(file, read(file), scan);
    }

    /// Stores the objects of a file and passes on their events. `read` is the result of reading the file.
    fn take_in(&mut self, file: &Arc<Path>, read: io::Result<(Vec<u8>, Option<Stamp>)>, scan: &mut Scan<'_>) {
        self.stamps.remove(file);
        match read {
            Ok((bytes, stamp)) => {
                let mut load = self.store.begin(file);
                let outcome = decode(file, bytes, &mut self.readers, &mut |object| {
                    self.store.add(&mut load, object).map(ScanItem::Event).into_iter().for_each(&mut *scan.take);
                });
                scan.problems(self.logged.new_messages(Arc::clone(file), outcome.problems));
                scan.changes(self.store.finish(load, outcome.broken));
                self.stamps.extend(stamp.map(|stamp| (Arc::clone(file), stamp)));
                self.unreadable.remove(file);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.forget(file, scan),
            Err(error) => {
                self.unreadable.insert(Arc::clone(file));
                scan.problems(self.logged.new_messages(Arc::clone(file), vec![unreadable(file, &error)]));
            }
        }
    }

    fn forget(&mut self, file: &Arc<Path>, scan: &mut Scan<'_>) {
        scan.changes(self.store.remove(file));
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

/// A file's metadata. Equal stamps mean equal content if the first one is settled.
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

    /// Returns whether the last change is so long ago that the next change certainly changes the stamp.
    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(self.changed.0).is_ok_and(|changed| now > Duration::from_secs(changed) + UNSETTLED)
    }
}

/// Reads a file. Returns its content, and its stamp if the next change of the file is sure to change the stamp.
fn read(file: &Path) -> io::Result<(Vec<u8>, Option<Stamp>)> {
    let opened = files::open_regular(file)?;
    let meta = opened.metadata()?;
    let stamp = Some(Stamp::of(&meta)).filter(Stamp::is_settled);
    Ok((limited(opened, meta.len())?, stamp))
}

/// Reads a file that a user named, which may be a pipe of the shell, or standard input.
fn read_named(file: &Path) -> io::Result<Vec<u8>> {
    let bytes = if *file == *Path::new(STDIN_NAME) {
        limited(io::stdin().lock(), 0)?
    } else {
        let opened = File::open(file)?;
        let len = opened.metadata()?.len();
        limited(opened, len)?
    };
    if bytes.trim_ascii().is_empty() {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "it is empty"));
    }
    Ok(bytes)
}

fn cannot_read(source: &Path) -> String {
    format!("cannot read {}", source.display())
}

/// Reads all bytes of a source; fails if there are more than [`MAX_FILE_BYTES`]. `len` is the expected length; the source may grow while it
/// is read.
fn limited(source: impl Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(len.min(MAX_FILE_BYTES)).unwrap_or_default());
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|read| read <= MAX_FILE_BYTES) {
        return Ok(bytes);
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("larger than {} MiB", MAX_FILE_BYTES >> 20)))
}

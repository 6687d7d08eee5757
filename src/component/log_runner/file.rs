//! The file to which the runner writes. It is renamed when it reaches a given size, and renamed files are deleted at a given age.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::mem::replace;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use jiff::Zoned;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The time in the name of a renamed file, which is `NAME-TIME.EXTENSION`, as upstream writes it.
const TIME: &str = "%Y%m%d-%H%M%S";

/// A file that is open for appending.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// The size in bytes at which the file is renamed; 0 for never.
    size: u64,
    /// The age at which renamed files are deleted; zero for never.
    age: Duration,
    /// The interval at which the file is written to the disk; zero for never.
    flush: Duration,
    written: u64,
    flushed: Instant,
    /// Whether an error was reported.
    has_failed: bool,
}

impl LogFile {
    /// Opens a file, and makes it if it does not exist.
    pub(super) fn open(path: PathBuf, size: u64, age: Duration, flush: Duration) -> Result<Self, String> {
        let opened = open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (written, file) = opened.map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        Ok(Self { path, file, size, age, flush, written, flushed: Instant::now(), has_failed: false })
    }

    /// The file itself, for a program that writes to it.
    pub(super) fn into_inner(self) -> File {
        self.file
    }

    /// Appends to the file. The first failure is reported on standard error; later calls try again.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        if let Err(error) = self.try_write(bytes)
            && !replace(&mut self.has_failed, true)
        {
            let path = self.path.display();
            let _ = writeln!(io::stderr(), "cannot write to {path}, so the log there has gaps: {error}");
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if !self.flush.is_zero() && self.flushed.elapsed() >= self.flush {
            self.file.sync_data()?;
            self.flushed = Instant::now();
        }
        if self.size > 0 && self.written >= self.size { self.rename() } else { Ok(()) }
    }

    /// Renames the file and begins another one. Does nothing if there is a renamed file of this second.
    fn rename(&mut self) -> io::Result<()> {
        let (before, after) = parts(&self.path);
        let name = format!("{before}{}{after}", Zoned::now().strftime(TIME));
        let renamed = self.path.with_file_name(name);
        if renamed.exists() {
            return Ok(());
        }
        fs::rename(&self.path, renamed)?;
        self.file = open(&self.path)?;
        self.written = 0;
        if !self.age.is_zero() {
            self.delete_old();
        }
        Ok(())
    }

    /// Deletes renamed files by the time in their names.
    fn delete_old(&self) {
        let (before, after) = parts(&self.path);
        let Some(oldest) = SystemTime::now().checked_sub(self.age) else { return };
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let time = name.strip_prefix(&before).and_then(|rest| rest.strip_suffix(&*after));
            let time = time.and_then(|time| DateTime::strptime(TIME, time).ok()?.to_zoned(TimeZone::system()).ok());
            if time.is_some_and(|time| SystemTime::from(time) < oldest) {
                // One that cannot be deleted is tried again the next time.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Returns the parts of the names of renamed files before and after the time.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    (format!("{}-", text(path.file_stem())), extension.unwrap_or_default())
}

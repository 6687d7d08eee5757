//! Notices changes of files through inotify.
//!
//! Takes directories to watch, gives what the kernel reports about them: for the manifest directory and for the configuration file.
//! Watches directories and not files, because editors and ConfigMap volumes replace a file by another one of the same name.
//!
//! Invariants: reading never waits; a report is given once.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) use rustix::fs::inotify::ReadFlags;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Bytes of reports that are taken from the kernel at once; room for some hundred.
const BUFFER_BYTES: usize = 16 << 10;

/// An inotify instance. Its descriptor is readable while there are reports.
#[derive(Debug)]
pub(crate) struct Inotify(OwnedFd);

impl Inotify {
    /// An instance that watches nothing yet.
    ///
    /// # Errors
    /// The kernel's refusal, such as that there are too many instances (`fs.inotify.max_user_instances`).
    pub(crate) fn new() -> Result<Self, Errno> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map(Self)
    }

    /// Watches a directory, without those below it: for files that are created, closed after a write, renamed, deleted or get other
    /// permissions, and for the directory's own end. Gives the number that its reports carry; a directory that is watched already
    /// keeps its number.
    ///
    /// # Errors
    /// The kernel's refusal: no such directory, or too many watches (`fs.inotify.max_user_watches`).
    pub(crate) fn watch(&self, directory: &Path) -> Result<i32, Errno> {
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&self.0, directory, flags)
    }

    /// Takes all reports of the kernel until now: the number of the directory, what happened, and the name of the file, which is empty
    /// when the directory itself is meant. The number is -1 when the kernel lost reports ([`ReadFlags::QUEUE_OVERFLOW`]).
    ///
    /// # Errors
    /// The kernel's refusal; the instance is of no more use.
    pub(crate) fn read(&self, mut report: impl FnMut(i32, ReadFlags, &OsStr)) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.0, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    report(event.wd(), event.events(), name.unwrap_or_default());
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_change_below_a_directory_is_reported_once_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let inotify = Inotify::new().unwrap();
        let number = inotify.watch(dir.path()).unwrap();
        assert_eq!(inotify.watch(dir.path()).unwrap(), number, "it is watched already");
        fs::write(dir.path().join("a"), "x").unwrap();
        let mut names = Vec::new();
        inotify
            .read(|from, flags, name| {
                assert_eq!(from, number);
                names.push((name.to_owned(), flags.contains(ReadFlags::CLOSE_WRITE)));
            })
            .unwrap();
        assert_eq!(names, [("a".into(), false), ("a".into(), true)], "it was created, then closed");
        inotify.read(|_, _, name| panic!("{name:?} is reported again")).unwrap();
    }

    #[test]
    fn what_is_no_directory_cannot_be_watched() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let inotify = Inotify::new().unwrap();
        assert_eq!(inotify.watch(file.path()), Err(Errno::NOTDIR));
        assert_eq!(inotify.watch(Path::new("/nowhere")), Err(Errno::NOENT));
    }
}

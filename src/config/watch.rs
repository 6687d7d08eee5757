//! Watches the configuration file, so that the process can end and be started with the new content (O5).
//!
//! Takes the file's path, gives each content that differs from the one before. inotify on the file's directory says when to
//! look: plain writes, files renamed over it and ConfigMap volumes, whose `..data` symlink is swapped there. A slow poll finds
//! what inotify cannot see, such as a symlink into another directory. Invariant: only the content counts, not times or names.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// The file is looked at as often as this even if nothing is reported.
const POLL_SECONDS: i64 = 30;
/// Writers get this long to finish after the first report.
const SETTLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Bytes of events taken from the kernel at once.
const BUFFER_BYTES: usize = 4 << 10;

/// A file and what it held when it was last looked at.
#[derive(Debug)]
pub struct Watcher {
    path: PathBuf,
    content: Vec<u8>,
    notifier: Option<OwnedFd>,
}

impl Watcher {
    /// Watches `path` from now on; `content` is what the configuration was decoded from, so that a write in between counts.
    #[must_use]
    pub fn new(path: PathBuf, content: Vec<u8>) -> Self {
        let notifier = watch(&path);
        Self { path, content, notifier }
    }

    /// Waits for another content. A file that is gone, empty or unreadable has none: ConfigMap volumes and editors take it away
    /// for a moment. Blocks the thread for as long as it takes.
    pub fn next_content(&mut self) -> &[u8] {
        loop {
            // Before the wait too: the file may have changed since it was decoded.
            // An empty file is one whose writer has just begun.
            if let Ok(new) = fs::read(&self.path)
                && !new.is_empty()
                && new != self.content
            {
                self.content = new;
                return &self.content;
            }
            wait(self.notifier.as_ref());
        }
    }
}

/// A watch on the directory of the file; without one the poll has to do.
fn watch(path: &Path) -> Option<OwnedFd> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let notifier = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let flags = WatchFlags::CLOSE_WRITE | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
    inotify::add_watch(&notifier, directory, flags).ok()?;
    Some(notifier)
}

/// Waits until something happened in the directory and had time to settle, or for the poll's turn.
fn wait(notifier: Option<&OwnedFd>) {
    let turn = Timespec { tv_sec: POLL_SECONDS, tv_nsec: 0 };
    let mut ready: Vec<_> = notifier.iter().map(|notifier| PollFd::new(*notifier, PollFlags::IN)).collect();
    if poll(&mut ready, Some(&turn)).is_ok_and(|count| count > 0) {
        // Without descriptors this is a sleep.
        let _ = poll(&mut [], Some(&SETTLE));
        notifier.into_iter().for_each(drain);
    }
}

/// Takes the reports away; the file is read after that, so none of its changes is lost.
fn drain(notifier: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let mut reader = Reader::new(notifier, &mut buffer);
    while matches!(reader.next(), Ok(_) | Err(Errno::INTR)) {}
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Watches `config.conf` of a directory, whose content is `old` now.
    fn watched(dir: &Path) -> Receiver<Vec<u8>> {
        let (sender, receiver) = channel();
        let mut watcher = Watcher::new(dir.join("config.conf"), b"old".to_vec());
        thread::spawn(move || while sender.send(watcher.next_content().to_vec()).is_ok() {});
        receiver
    }

    fn next(receiver: &Receiver<Vec<u8>>) -> Vec<u8> {
        receiver.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    fn nothing(receiver: &Receiver<Vec<u8>>) {
        assert!(receiver.recv_timeout(Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_plain_write_is_seen() {
        // O5
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        fs::write(&file, "old").unwrap();
        let changes = watched(dir.path());
        fs::write(&file, "new").unwrap();
        assert_eq!(next(&changes), b"new");
        fs::write(&file, "newer").unwrap();
        assert_eq!(next(&changes), b"newer");
    }

    #[test]
    fn a_write_before_the_watch_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.conf"), "new").unwrap();
        assert_eq!(next(&watched(dir.path())), b"new");
    }

    #[test]
    fn a_file_renamed_over_it_is_seen() {
        // O5
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        fs::write(&file, "old").unwrap();
        fs::write(dir.path().join("other"), "new").unwrap();
        let changes = watched(dir.path());
        fs::rename(dir.path().join("other"), &file).unwrap();
        assert_eq!(next(&changes), b"new");
    }

    #[test]
    fn a_swapped_config_map_is_seen() {
        // O5
        let dir = tempfile::tempdir().unwrap();
        let volume = |name: &str, content: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("config.conf"), content).unwrap();
        };
        volume("..1", "old");
        symlink("..1", dir.path().join("..data")).unwrap();
        symlink("..data/config.conf", dir.path().join("config.conf")).unwrap();
        let changes = watched(dir.path());
        volume("..2", "new");
        symlink("..2", dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        assert_eq!(next(&changes), b"new");
    }

    #[test]
    fn the_same_content_and_other_files_are_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        fs::write(&file, "old").unwrap();
        let changes = watched(dir.path());
        fs::write(&file, "old").unwrap();
        fs::write(dir.path().join("other"), "new").unwrap();
        nothing(&changes);
        fs::remove_file(&file).unwrap();
        nothing(&changes);
        fs::write(&file, "new").unwrap();
        assert_eq!(next(&changes), b"new");
    }
}

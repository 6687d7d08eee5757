//! Waits for a change of the configuration file, so that the process can end and its supervisor can start it again with the new content
//! (O5).
//!
//! The module reads the file when inotify reports something in its directory, or in that of the file to which it is a symlink, and now and
//! then without a report. It returns each content that differs from the previous one and is not empty. A comparison of content finds every
//! kind of change: a write in place, a rename of another file to this name, the swapped symlink of a ConfigMap volume, and a symlink into
//! another directory. Invariant: only the content counts, not the file's time or inode.

use std::fs;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::files;

/// Time between two reads without a report: inotify does not report what another host writes to a network file system, nor that a symlink
/// between this name and the file was replaced in a third directory.
const RARE: Duration = Duration::from_secs(60);
/// Time between two reads where inotify cannot be used.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time after which new content is read again. The content is returned only if both reads agree: at the first read, the program that
/// writes the file may not have finished.
const SETTLE: Duration = Duration::from_millis(200);

/// A file and the content that later reads are compared with.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    content: Vec<u8>,
}

impl ConfigFile {
    /// Starts to watch a file. `content` must be the text from which the configuration was decoded, so that every later write counts as a
    /// change.
    pub fn new(path: PathBuf, content: Vec<u8>) -> Self {
        Self { path, content }
    }

    /// Blocks the thread until the file has new content, and returns the new content. Ignores a missing, unreadable or empty file, because
    /// an editor may remove the file for a moment, and a program that writes a file often empties it first.
    pub fn wait_for_change(&mut self) -> &[u8] {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        loop {
            // The directories are watched before the file is read, so that no change falls between the two.
            let watched = inotify.as_ref().filter(|inotify| self.watch(inotify));
            if let Some(new) = self.changed_content() {
                sleep(SETTLE);
                if self.changed_content().as_ref() == Some(&new) {
                    self.content = new;
                    return &self.content;
                }
            }
            match watched {
                Some(inotify) => wait_for_report(inotify),
                None => sleep(INTERVAL),
            }
        }
    }

    /// Watches the directory of the file, and that of the file behind its symlinks. Returns whether both are watched; a directory that is
    /// watched already stays so.
    fn watch(&self, inotify: &OwnedFd) -> bool {
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MODIFY;
        let flags = flags | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let watches = |path: &Path| inotify::add_watch(inotify, directory_of(path), flags).is_ok();
        watches(&self.path) && fs::canonicalize(&self.path).is_ok_and(|file| watches(&file))
    }

    fn changed_content(&self) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        // A file that becomes a named pipe must not keep this thread from seeing later changes.
        files::open_regular(&self.path).ok()?.read_to_end(&mut content).ok()?;
        (!content.is_empty() && content != self.content).then_some(content)
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Waits for a report of inotify, at most for [`RARE`], and reads all reports that have arrived.
fn wait_for_report(inotify: &OwnedFd) {
    let rare = Timespec::try_from(RARE).ok();
    // An error of the wait, such as a signal, ends it early, which only costs another read of the file.
    let _ = poll(&mut [PollFd::new(inotify, PollFlags::IN)], rare.as_ref());
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(inotify, &mut buffer);
    while reader.next().is_ok() {}
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    /// Watches the file `config.conf` in a directory and sends each new content to a channel. The watch takes `old` for the content that is
    /// known.
    fn changes(dir: &Path) -> Receiver<Vec<u8>> {
        let (sender, receiver) = channel();
        let mut file = ConfigFile::new(dir.join("config.conf"), b"old".to_vec());
        thread::spawn(move || while sender.send(file.wait_for_change().to_vec()).is_ok() {});
        receiver
    }

    fn next(receiver: &Receiver<Vec<u8>>) -> Vec<u8> {
        receiver.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    fn assert_no_change(receiver: &Receiver<Vec<u8>>) {
        assert!(receiver.recv_timeout(INTERVAL * 2).is_err());
    }

    // A write to the file in place is reported (O5).
    #[test]
    fn a_plain_write_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        fs::write(&file, "old").unwrap();
        let changes = changes(dir.path());
        fs::write(&file, "new").unwrap();
        assert_eq!(next(&changes), b"new");
        fs::write(&file, "newer").unwrap();
        assert_eq!(next(&changes), b"newer");
    }

    #[test]
    fn a_write_between_decoding_and_the_first_read_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.conf"), "new").unwrap();
        assert_eq!(next(&changes(dir.path())), b"new");
    }

    // A file that is renamed to the watched file's name is reported (O5).
    #[test]
    fn a_file_renamed_over_it_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        fs::write(&file, "old").unwrap();
        fs::write(dir.path().join("other"), "new").unwrap();
        let changes = changes(dir.path());
        fs::rename(dir.path().join("other"), &file).unwrap();
        assert_eq!(next(&changes), b"new");
    }

    // A ConfigMap volume whose symlink is swapped is reported (O5).
    #[test]
    fn a_swapped_config_map_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let volume = |name: &str, content: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("config.conf"), content).unwrap();
        };
        volume("..1", "old");
        symlink("..1", dir.path().join("..data")).unwrap();
        symlink("..data/config.conf", dir.path().join("config.conf")).unwrap();
        let changes = changes(dir.path());
        volume("..2", "new");
        symlink("..2", dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        assert_eq!(next(&changes), b"new");
    }

    // A named pipe is no content, and what follows it is reported (O5).
    #[test]
    fn a_pipe_in_place_of_the_file_does_not_stop_the_watch() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RUSR).unwrap();
        let changes = changes(dir.path());
        assert_no_change(&changes);
        fs::write(dir.path().join("other"), "new").unwrap();
        fs::rename(dir.path().join("other"), &file).unwrap();
        assert_eq!(next(&changes), b"new");
    }

    #[test]
    fn the_same_content_and_other_files_are_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        fs::write(&file, "old").unwrap();
        let changes = changes(dir.path());
        fs::write(&file, "old").unwrap();
        fs::write(dir.path().join("other"), "new").unwrap();
        assert_no_change(&changes);
        fs::remove_file(&file).unwrap();
        assert_no_change(&changes);
        fs::write(&file, "new").unwrap();
        assert_eq!(next(&changes), b"new");
    }
}

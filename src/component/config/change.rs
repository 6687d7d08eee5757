//! Waits for a change of the configuration file, so that the process can end and be started again with the new content (O5).
//!
//! Takes the file's path, gives each content that differs from the one before. Reads the file once a second: that sees plain writes, a
//! file renamed over it, the swapped symlink of a ConfigMap volume, and a symlink into another directory alike. Invariant: only the
//! content counts, not times or names.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

/// Time between two reads.
const INTERVAL: Duration = Duration::from_secs(1);
/// A new content counts when it is still the same after this time, because a writer may not have finished.
const SETTLE: Duration = Duration::from_millis(200);

/// A file and its content at the last read.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    content: Vec<u8>,
}

impl ConfigFile {
    /// `content` is what the configuration was decoded from, so that a write after that counts as a change.
    pub fn new(path: PathBuf, content: Vec<u8>) -> Self {
        Self { path, content }
    }

    /// Waits for another content, for as long as it takes; blocks the thread. A file that is missing, empty or unreadable has none:
    /// ConfigMap volumes and editors remove it for a moment, and an empty file is one that is about to be written.
    pub fn wait_for_change(&mut self) -> &[u8] {
        loop {
            if let Some(new) = self.changed_content() {
                sleep(SETTLE);
                if self.changed_content().as_ref() == Some(&new) {
                    self.content = new;
                    return &self.content;
                }
            }
            sleep(INTERVAL);
        }
    }

    fn changed_content(&self) -> Option<Vec<u8>> {
        fs::read(&self.path).ok().filter(|content| !content.is_empty() && *content != self.content)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    /// A channel of the contents that the file `config.conf` of a directory gets after `old`, its present one.
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

    // A plain write is seen (O5).
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

    // A file renamed over it is seen (O5).
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

    // A swapped ConfigMap is seen (O5).
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

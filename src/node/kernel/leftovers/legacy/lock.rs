//! The lock of iptables-legacy: a program holds it while it changes a table, so that no program overwrites the changes of another.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The file that iptables locks. A container sees the host's file only if the pod mounts it, as in kube-proxy's usual manifests.
pub(super) const PATH: &str = "/run/xtables.lock";
/// The time between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(20);

/// The lock, which is held until this value is dropped.
pub(super) struct Lock(#[expect(dead_code, reason = "dropping the file releases the lock")] File);

/// Takes the lock. Waits at most `patience` for another program to release it. Returns `None` if the file cannot be opened or, if it does
/// not exist, cannot be created.
///
/// # Errors
/// Fails when another program still holds the lock after `patience`, or when the file cannot be locked.
pub(super) fn take(path: &Path, patience: Duration) -> io::Result<Option<Lock>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
        }
        outcome => outcome,
    };
    let Ok(file) = file else { return Ok(None) };
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(Lock(file))),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if waited >= patience => {
                return Err(io::Error::other(format!("another program holds {}", path.display())));
            }
            Err(TryLockError::WouldBlock) => {
                thread::sleep(PAUSE);
                waited += PAUSE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_at_a_time_holds_the_lock_and_a_directory_that_cannot_be_written_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("xtables.lock");
        let lock = take(&path, Duration::ZERO).unwrap().expect("the file is made");
        let refused = take(&path, Duration::from_millis(40)).map(drop).unwrap_err().to_string();
        assert!(refused.starts_with("another program holds "), "{refused}");
        drop(lock);
        assert!(take(&path, Duration::ZERO).unwrap().is_some(), "it was given back");
        assert!(take(Path::new("/proc/no/lock"), Duration::ZERO).unwrap().is_none());
    }
}

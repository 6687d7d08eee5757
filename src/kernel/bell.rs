//! Wakes whoever waits for something else when another program wrote to nf_tables.
//!
//! Takes the monitor's socket and a way to wake; a thread sleeps on the socket and wakes once for each time it was armed. Whoever was
//! woken reads the socket and arms the bell again. After each ring it pauses for a moment, so that another program that commits a
//! thousand times a second, to tables of its own, wakes nobody more often than a hundred times.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

/// Wakes the loop that looks for foreign writes. Must not wait for that loop.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The least time between two rings.
const PAUSE: Duration = Duration::from_millis(10);

/// The thread that waits.
pub(super) struct Bell {
    arm: SyncSender<OwnedFd>,
    armed: Arc<AtomicBool>,
}

impl Bell {
    /// Starts the thread, which ends at its next ring after the bell was dropped.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub(super) fn new(wake: Wake) -> io::Result<Self> {
        let (arm, sockets) = sync_channel(1);
        let armed = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&armed);
        thread::Builder::new().name("nft-bell".into()).spawn(move || {
            for socket in sockets {
                wait(&socket);
                // Before the ring: who is woken by it must be able to arm again.
                told.store(false, Ordering::Release);
                wake();
                thread::sleep(PAUSE);
            }
        })?;
        Ok(Self { arm, armed })
    }

    /// Has the next notification ring. Does nothing when it does already.
    pub(super) fn arm(&self, socket: impl FnOnce() -> io::Result<OwnedFd>) {
        if self.armed.load(Ordering::Acquire) {
            return;
        }
        // Without a socket to spare, the loop's own looks once a second have to do.
        if let Ok(socket) = socket() {
            self.armed.store(true, Ordering::Release);
            if self.arm.try_send(socket).is_err() {
                self.armed.store(false, Ordering::Release);
            }
        }
    }
}

/// Waits until there is something to read, or an error to fetch.
fn wait(socket: &OwnedFd) {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    while poll(&mut fds, None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn rings_once_for_each_time_it_was_armed_and_not_more_often_than_the_pause_allows() {
        let (rung, rings) = channel();
        let bell = Bell::new(Arc::new(move || rung.send(Instant::now()).expect("the test listens"))).unwrap();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let socket = || there.try_clone().map(OwnedFd::from);
        bell.arm(socket);
        bell.arm(socket);
        here.write_all(b"1").unwrap();
        let first = rings.recv_timeout(PATIENCE).unwrap();
        assert!(rings.recv_timeout(4 * PAUSE).is_err(), "not armed again");
        bell.arm(socket);
        let second = rings.recv_timeout(PATIENCE).unwrap();
        bell.arm(socket);
        let third = rings.recv_timeout(PATIENCE).unwrap();
        assert!(third - second >= PAUSE && second > first);
        there.read_exact(&mut [0]).unwrap();
        bell.arm(|| there.try_clone().map(OwnedFd::from));
        assert!(rings.recv_timeout(4 * PAUSE).is_err(), "there is nothing to read");
    }
}

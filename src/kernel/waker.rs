//! Wakes the sync loop when another program wrote to nf_tables.
//!
//! Takes the monitor's socket and a function that wakes; a thread waits for the socket to become readable and wakes once for each time it
//! was armed. The sync loop reads the socket and arms the waker again. After each wake-up the thread pauses for a moment, so that another
//! program that commits a thousand times a second, to tables of its own, wakes the loop at most a hundred times.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

/// Wakes the sync loop. Must not wait for that loop.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The least time between two wake-ups.
const PAUSE: Duration = Duration::from_millis(10);

/// The thread that waits.
pub(super) struct Waker {
    arm: SyncSender<OwnedFd>,
    armed: Arc<AtomicBool>,
}

impl Waker {
    /// Starts the thread, which ends after its next wake-up when this value was dropped.
    ///
    /// # Errors
    /// When the system cannot start another thread.
    pub(super) fn new(wake: Wake) -> io::Result<Self> {
        let (arm, sockets) = sync_channel(1);
        let armed = Arc::new(AtomicBool::new(false));
        let is_armed = Arc::clone(&armed);
        thread::Builder::new().name("nft-waker".into()).spawn(move || {
            for socket in sockets {
                wait(&socket);
                // Before the wake-up, because the loop that it wakes arms again.
                is_armed.store(false, Ordering::Release);
                wake();
                thread::sleep(PAUSE);
            }
        })?;
        Ok(Self { arm, armed })
    }

    /// Wakes at the next notification. Does nothing if it is armed already.
    pub(super) fn arm(&self, socket: impl FnOnce() -> io::Result<OwnedFd>) {
        if self.armed.load(Ordering::Acquire) {
            return;
        }
        // Without a free file descriptor, the loop still checks once a second.
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
    fn wakes_once_for_each_time_it_was_armed_and_not_more_often_than_the_pause_allows() {
        let (sender, wakes) = channel();
        let waker = Waker::new(Arc::new(move || sender.send(Instant::now()).expect("the test receives"))).unwrap();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let socket = || there.try_clone().map(OwnedFd::from);
        waker.arm(socket);
        waker.arm(socket);
        here.write_all(b"1").unwrap();
        let first = wakes.recv_timeout(PATIENCE).unwrap();
        assert!(wakes.recv_timeout(4 * PAUSE).is_err(), "not armed again");
        waker.arm(socket);
        let second = wakes.recv_timeout(PATIENCE).unwrap();
        waker.arm(socket);
        let third = wakes.recv_timeout(PATIENCE).unwrap();
        assert!(third - second >= PAUSE && second > first);
        there.read_exact(&mut [0]).unwrap();
        waker.arm(|| there.try_clone().map(OwnedFd::from));
        assert!(wakes.recv_timeout(4 * PAUSE).is_err(), "there is nothing to read");
    }
}

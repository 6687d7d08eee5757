//! Ends the process on a signal.
//!
//! A separate thread waits for SIGTERM and SIGINT, so that the process ends also when another thread hangs: for example, because the kernel
//! or the API server does not answer. The rules stay in any case: a transaction is committed as a whole or not at all.

use std::io;
use std::process;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::localhost::GRACE;
use component::logging;
use component::supervise::Supervisor;

/// How long threads may take to end by themselves.
const THREADS_END: Duration = Duration::from_secs(3);
/// The time from the signal, or from the end of the last connection, to the end of the process, if a thread hangs.
const PROCESS_ENDS: Duration = Duration::from_secs(4);
/// The time between two checks whether a thread has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Returns a channel that completes when a signal arrives. [`PROCESS_ENDS`] later the process ends with exit code 1, if it has not ended by
/// itself. While `has_connections` says that clients are connected through this process, the process may run up to [`GRACE`] longer.
///
/// # Errors
/// When the signals cannot be received.
pub(super) fn on_signal(
    supervisor: &Supervisor,
    has_connections: impl Fn() -> bool + Send + 'static,
) -> Result<oneshot::Receiver<()>> {
    let runtime =
        Builder::new_current_thread().enable_io().build().context("cannot start the runtime of the signals")?;
    let signals = || -> io::Result<_> { Ok((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)) };
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        signals().context("cannot receive signals")?
    };
    let (sender, received) = oneshot::channel();
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        // The receiver is gone if the process is ending already.
        let _ = sender.send(());
        let end = Instant::now() + GRACE;
        while has_connections() && Instant::now() < end {
            thread::sleep(Duration::from_millis(100));
        }
        // This wait starts only now, because the threads that the main thread waits for end only after the connections.
        thread::sleep(PROCESS_ENDS);
        // Logs nothing, because the log may be what hangs. Dropping the guard gives waiting lines half a second to be written.
        drop(logging::FlushOnDrop);
        process::exit(1);
    };
    supervisor.thread("signals", wait).context("cannot start the thread of the signals")?;
    Ok(received)
}

/// Waits for threads to end.
///
/// # Errors
/// When a thread has not ended within [`THREADS_END`]; that thread goes on until the process ends.
pub(super) async fn wait_for(threads: impl IntoIterator<Item = (&'static str, JoinHandle<()>)>) -> Result<()> {
    let end = Instant::now() + THREADS_END;
    for (name, thread) in threads {
        if !has_ended(&thread, end).await {
            bail!("{name} has not ended within {THREADS_END:?} of the signal");
        }
    }
    Ok(())
}

/// Waits for a thread to end, at most until the given time. Returns whether it has ended.
pub(super) async fn has_ended(thread: &JoinHandle<()>, until: Instant) -> bool {
    while !thread.is_finished() {
        if Instant::now() > until {
            return false;
        }
        sleep(CHECK_INTERVAL).await;
    }
    true
}

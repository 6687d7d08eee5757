//! The end that a signal asks for.
//!
//! SIGTERM and SIGINT are waited for on a thread of their own, so that nothing that hangs keeps the process from ending: not the
//! thread that serves, not the sync loop in the kernel, not the API server. The rules stay in any case; a commit is whole or not
//! there.

use std::io;
use std::process;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::logging;
use crate::supervise::Supervisor;

/// How long threads may take to end by themselves.
const ORDERLY: Duration = Duration::from_secs(3);
/// How long after the signal the process ends, whatever hangs.
const LATEST: Duration = Duration::from_secs(4);
/// Between two looks at a thread.
const LOOK: Duration = Duration::from_millis(2);

/// Completes when a signal asks to end. Then the process ends within [`LATEST`], with 1 if it has not ended by itself.
///
/// # Errors
/// When the signals cannot be waited for.
pub(super) fn on_signal(supervisor: &Supervisor) -> Result<oneshot::Receiver<()>> {
    let runtime = Builder::new_current_thread().enable_io().build().context("runtime of the signals")?;
    let signals = || -> io::Result<_> { Ok((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)) };
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        signals().context("signals")?
    };
    let (ask, asked) = oneshot::channel();
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        // Whoever listened may have ended already.
        let _ = ask.send(());
        thread::sleep(LATEST);
        // Nothing new is logged: the log may be what hangs. Lines that wait get half a second.
        drop(logging::Ending);
        process::exit(1);
    };
    supervisor.thread("signals", "the signals' thread", wait).context("thread of the signals")?;
    Ok(asked)
}

/// Waits for threads that were told to end.
///
/// # Errors
/// When one of them has not ended in time; it is left behind.
pub(super) async fn wait_for(threads: impl IntoIterator<Item = (&'static str, JoinHandle<()>)>) -> Result<()> {
    let end = Instant::now() + ORDERLY;
    for (name, thread) in threads {
        while !thread.is_finished() {
            if Instant::now() > end {
                bail!("{name} has not ended within {ORDERLY:?} of the signal, and is left behind");
            }
            sleep(LOOK).await;
        }
    }
    Ok(())
}

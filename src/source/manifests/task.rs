//! The thread that watches a manifest directory.
//!
//! Takes a directory, sends [`Event`]s to a channel and says problems to the log. Ends when it is told to, or at the first
//! event after the receiver is gone.
//!
//! Invariants: watches are set up before what they watch is read; [`Event::InitialListDone`] comes after the first complete
//! reading and never without one, so an unreadable directory does not look like an empty one.

use std::convert::Infallible;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;
use tracing::{error, warn};

use super::directory::{Directory, Update};
use super::problem::{Problem, Severity};
use super::walk::Visit;
use super::watch::Watch;
use crate::model::Event;
use crate::source::convert::ConvertOptions;
use crate::supervise::guarded;

/// How long changes are collected once one was noticed: editors and tools make several.
const FOLD: Duration = Duration::from_millis(5);
/// How often a directory is looked at that cannot be watched.
const POLL: Duration = Duration::from_secs(2);
/// How long to wait while the receiver is behind.
const FULL: Duration = Duration::from_millis(1);

/// A running watch. Dropping it stops it, without waiting.
#[derive(Debug)]
pub struct Handle {
    stop: Arc<OwnedFd>,
    failure: oneshot::Receiver<anyhow::Error>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Stops the watch and waits for its thread, which takes no longer than reading one file.
    pub fn stop(mut self) {
        let thread = self.thread.take();
        drop(self);
        // A panic was told of.
        let _ = thread.map(JoinHandle::join);
    }

    /// Waits for the watch to end by itself, which it does by a panic.
    pub async fn failed(&mut self) -> anyhow::Error {
        (&mut self.failure).await.unwrap_or_else(|_| anyhow!("the manifest watch ended by itself"))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Writing 1 to an eventfd fails only when it is signalled already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

/// Hears of each problem with the content of an object that was not there before: of the object's kind ([`Problem::kind`]).
pub type OnRejected = Box<dyn Fn(&'static str) + Send>;

/// Whether a directory can be read.
///
/// # Errors
/// Why it cannot.
pub fn check(dir: &Path) -> anyhow::Result<()> {
    fs::read_dir(dir).map(drop).with_context(|| format!("manifest directory {}", dir.display()))
}

/// Starts to watch a directory: all its objects are sent, then [`Event::InitialListDone`], then changes.
///
/// # Errors
/// The directory cannot be read, or there is no thread or eventfd to be had.
pub fn spawn(
    dir: PathBuf,
    options: ConvertOptions,
    sink: SyncSender<Event>,
    on_rejected: OnRejected,
) -> anyhow::Result<Handle> {
    spawn_with(dir, options, sink, on_rejected, Noticing { inotify: true, period: POLL })
}

/// How changes are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noticing {
    /// Through inotify, where that is possible.
    pub(super) inotify: bool,
    /// Otherwise by looking this often.
    pub(super) period: Duration,
}

/// [`spawn`] with a choice of how changes are noticed.
pub(super) fn spawn_with(
    dir: PathBuf,
    options: ConvertOptions,
    sink: SyncSender<Event>,
    on_rejected: OnRejected,
    noticing: Noticing,
) -> anyhow::Result<Handle> {
    check(&dir)?;
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?);
    let worker = Worker {
        directory: Directory::new(&dir, options),
        dir,
        sink,
        on_rejected,
        stop: Arc::clone(&stop),
        noticing,
        listed: false,
        unwatched: false,
    };
    let (fail, failure) = oneshot::channel();
    let thread = thread::Builder::new().name("manifests".into()).spawn(move || {
        // Being stopped is how it ends otherwise.
        if let Err(panic) = guarded("the manifest watch's thread", || Ok(worker.run())) {
            drop(fail.send(panic));
        }
    });
    Ok(Handle { stop, failure, thread: Some(thread.context("manifest thread")?) })
}

/// The watch was told to end, or nobody listens any more.
struct Stopped;

enum Wake {
    Events,
    Timeout,
}

struct Worker {
    directory: Directory,
    dir: PathBuf,
    sink: SyncSender<Event>,
    on_rejected: OnRejected,
    stop: Arc<OwnedFd>,
    noticing: Noticing,
    /// The initial list was sent.
    listed: bool,
    /// The kernel would not watch at the last try.
    unwatched: bool,
}

impl Worker {
    fn run(mut self) -> Result<Infallible, Stopped> {
        let mut watch = self.rescan()?;
        loop {
            let timeout = if watch.is_some() { None } else { Some(self.noticing.period) };
            match (self.wait(watch.as_ref(), timeout)?, &watch) {
                (Wake::Events, Some(ready)) => {
                    self.wait(None, Some(FOLD))?;
                    if !self.follow(ready)? {
                        watch = self.rescan()?;
                    }
                }
                _ => watch = self.rescan()?,
            }
        }
    }

    /// Looks at everything; gives the watch over it if there can be one.
    fn rescan(&mut self) -> Result<Option<Watch>, Stopped> {
        let mut watch = self.new_watch();
        let mut visit = |visit: Visit<'_>| {
            if let Some(watch) = &mut watch {
                watch.add(visit);
            }
        };
        let update = self.directory.rescan(&mut visit, &|| !is_signalled(&self.stop));
        if update.interrupted {
            return Err(Stopped);
        }
        let lost = update.lost;
        self.hand_over(update)?;
        if lost {
            return Ok(None);
        }
        if !self.listed {
            self.listed = true;
            self.send(Event::InitialListDone)?;
        }
        if let Some((path, error)) = watch.as_ref().and_then(Watch::failure) {
            self.say_unwatched(path, *error);
            return Ok(None);
        }
        self.unwatched = watch.is_none();
        Ok(watch)
    }

    fn new_watch(&mut self) -> Option<Watch> {
        if !self.noticing.inotify {
            return None;
        }
        Watch::new().inspect_err(|error| self.say_unwatched(&self.dir.clone(), *error)).ok()
    }

    /// Says that changes are found by looking, once until watching works again.
    fn say_unwatched(&mut self, path: &Path, error: Errno) {
        if !self.unwatched {
            warn!(file = %path.display(), "cannot be watched: {error}; looking every {:?}", self.noticing.period);
        }
        self.unwatched = true;
    }

    /// Looks at what the watch reports; false if everything has to be looked at.
    fn follow(&mut self, watch: &Watch) -> Result<bool, Stopped> {
        let Ok(mut changed) = watch.changed() else { return Ok(false) };
        if changed.all {
            return Ok(false);
        }
        let readable_again = changed.attributes.into_iter().filter(|file| self.directory.is_unreadable(file));
        changed.files.extend(readable_again);
        if changed.files.is_empty() {
            return Ok(true);
        }
        let update = self.directory.refresh(changed.files);
        let lost = update.lost;
        self.hand_over(update)?;
        Ok(!lost)
    }

    fn hand_over(&self, update: Update) -> Result<(), Stopped> {
        update.problems.iter().for_each(say);
        update.problems.iter().filter_map(|problem| problem.kind).for_each(&self.on_rejected);
        update.events.into_iter().try_for_each(|event| self.send(event))
    }

    /// Sends an event; a receiver that is behind does not keep the watch from being stopped.
    fn send(&self, mut event: Event) -> Result<(), Stopped> {
        loop {
            match self.sink.try_send(event) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(Stopped),
                Err(TrySendError::Full(unsent)) => event = unsent,
            }
            self.wait(None, Some(FULL))?;
        }
    }

    /// Waits until the watch has events or the time is up.
    fn wait(&self, watch: Option<&Watch>, timeout: Option<Duration>) -> Result<Wake, Stopped> {
        // The time-outs are short enough for the conversion; were one not, looking at once is the safe side.
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or_default());
        let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
        fds.extend(watch.map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Err(Errno::INTR) => {}
                Err(error) => {
                    error!(file = %self.dir.display(), "poll: {error}; manifests are not watched any more");
                    return Err(Stopped);
                }
                Ok(_) if !fds[0].revents().is_empty() => return Err(Stopped),
                Ok(0) => return Ok(Wake::Timeout),
                Ok(_) => return Ok(Wake::Events),
            }
        }
    }
}

/// Whether a file descriptor has something to read, without waiting.
fn is_signalled(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Says a problem to the log.
fn say(problem: &Problem) {
    let Problem { severity, file, document, text, kind: _ } = problem;
    let (file, document) = (display(file), *document);
    match severity {
        Severity::Error => error!(file, document, "{text}"),
        Severity::Warning => warn!(file, document, "{text}"),
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

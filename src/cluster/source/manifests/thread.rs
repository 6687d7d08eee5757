//! The thread that reads a manifest directory and its changes.
//!
//! The thread sends [`Event`]s to a channel and logs problems. It ends when its [`Handle`] is dropped, or at the first event after the
//! receiver was dropped.
//!
//! Invariants: a directory is monitored before it is read; [`Event::InitialListDone`] comes after the first complete scan and never
//! without one, so an unreadable directory does not look like an empty one.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::fs;
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{error, warn};

use super::changes::Monitor;
use super::directory::{self, Directory, ScanItem};
use super::walk::Visit;
use super::{ManifestProblem, STDIN, Severity};
use crate::source::convert::{ConvertOptions, WithoutClusterIp};
use component::logging::duration;
use component::logging::once::Once;
use component::supervise::Supervisor;
use rules::model::Event;

/// How long to wait for further changes after a first change, because editors and tools make several changes at a time.
const SETTLE: Duration = Duration::from_millis(5);
/// The time between two scans of a directory that cannot be monitored.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// The time between two attempts to send an event while the receiver's queue is full.
const QUEUE_FULL: Duration = Duration::from_millis(1);

/// A running source. When this value is dropped, the source stops; nobody waits for its thread.
#[derive(Debug)]
pub struct Handle {
    /// Closes when the handle is dropped, which wakes the thread.
    _stop: PipeWriter,
}

/// A function that is called for each new problem that has a [`ManifestProblem::kind`], with that kind.
pub(crate) type OnRejected = Box<dyn Fn(&'static str) + Send>;

/// Checks that the path given with `--manifests` is a directory that can be read.
///
/// # Errors
/// Fails if it is no directory, or cannot be read.
pub fn check(dir: &Path) -> anyhow::Result<()> {
    if dir.as_os_str() == STDIN || fs::metadata(dir).is_ok_and(|meta| !meta.is_dir()) {
        bail!(
            "cannot follow --manifests {}: it is no directory; put the file into one (only render and explain read files and standard \
             input)",
            dir.display()
        );
    }
    fs::read_dir(dir).map(drop).with_context(|| format!("cannot read manifest directory {}", dir.display()))
}

/// Starts a thread that sends all objects of a directory, then [`Event::InitialListDone`], then changes. The supervisor receives the error
/// after which the thread cannot continue.
///
/// # Errors
/// Fails if the directory cannot be read, or if the system cannot start a thread or has no free file descriptor.
pub fn spawn(
    dir: PathBuf,
    options: ConvertOptions,
    events: SyncSender<Event>,
    on_rejected: OnRejected,
    supervisor: &Supervisor,
) -> anyhow::Result<Handle> {
    spawn_with(dir, options, events, on_rejected, supervisor, Detection { inotify: true, interval: SCAN_INTERVAL })
}

/// How changes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detection {
    /// Whether to use inotify if possible.
    pub(super) inotify: bool,
    /// The time between two scans if inotify is not used.
    pub(super) interval: Duration,
}

/// Does the same as [`spawn`], with a choice of how changes are detected.
pub(super) fn spawn_with(
    dir: PathBuf,
    options: ConvertOptions,
    events: SyncSender<Event>,
    on_rejected: OnRejected,
    supervisor: &Supervisor,
    detection: Detection,
) -> anyhow::Result<Handle> {
    check(&dir)?;
    let options = ConvertOptions { without_cluster_ip: WithoutClusterIp::Reported, ..options };
    let (stopped, stop) = pipe().context("cannot make the pipe of the manifest source")?;
    let worker = Worker {
        directory: Directory::new(&dir, options),
        dir,
        outlet: Outlet { events, on_rejected, stopped },
        detection,
        listed: false,
        logged_failure: Once::default(),
    };
    let body = move || match worker.run() {
        Err(End::Stopped) => Ok(()),
        Err(End::Failed(error)) => Err(error),
    };
    supervisor.thread("manifests", body).context("cannot start the thread of the manifest source")?;
    Ok(Handle { _stop: stop })
}

/// Why the thread ends.
enum End {
    /// The handle or the receiver was dropped.
    Stopped,
    Failed(anyhow::Error),
}

enum Wake {
    Changes,
    Timeout,
}

struct Worker {
    directory: Directory,
    dir: PathBuf,
    outlet: Outlet,
    detection: Detection,
    /// Whether the initial list was sent.
    listed: bool,
    /// Whether a failure of inotify was logged since inotify last worked.
    logged_failure: Once<()>,
}

/// Sends the events, and logs the problems.
struct Outlet {
    events: SyncSender<Event>,
    on_rejected: OnRejected,
    /// A pipe whose other end closes when the handle is dropped.
    stopped: PipeReader,
}

impl Worker {
    fn run(mut self) -> Result<Infallible, End> {
        let mut monitor = self.rescan()?;
        loop {
            let timeout = if monitor.is_some() { None } else { Some(self.detection.interval) };
            match (self.outlet.wait(monitor.as_ref(), timeout)?, &monitor) {
                (Wake::Changes, Some(ready)) => {
                    self.outlet.wait(None, Some(SETTLE))?;
                    if !self.read_changes(ready)? {
                        monitor = self.rescan()?;
                    }
                }
                _ => monitor = self.rescan()?,
            }
        }
    }

    /// Scans the complete directory. Returns the inotify monitor of the directory; `None` if inotify is not used, so that scans at
    /// intervals have to find changes.
    fn rescan(&mut self) -> Result<Option<Monitor>, End> {
        let mut monitor = self.new_monitor();
        let mut visit = |visit: Visit<'_>| {
            if let Some(monitor) = &mut monitor {
                monitor.add(visit);
            }
        };
        let ended = OnceCell::new();
        let go_on = || ended.get().is_none() && !has_ended(&self.outlet.stopped);
        let end = self.directory.rescan(&mut visit, &go_on, &mut |news| self.outlet.publish(news, &ended));
        ended.into_inner().map_or(Ok(()), Err)?;
        match end {
            directory::End::Complete => {}
            directory::End::Unreadable => return Ok(None),
            directory::End::Interrupted => return Err(End::Stopped),
        }
        if !self.listed {
            self.listed = true;
            self.outlet.send(Event::InitialListDone)?;
        }
        if let Some((path, error)) = monitor.as_ref().and_then(Monitor::failure) {
            self.log_failure(path, *error);
            return Ok(None);
        }
        if monitor.is_some() {
            self.logged_failure.reset();
        }
        Ok(monitor)
    }

    fn new_monitor(&mut self) -> Option<Monitor> {
        if !self.detection.inotify {
            return None;
        }
        Monitor::new().inspect_err(|error| self.log_failure(&self.dir.clone(), *error)).ok()
    }

    /// Logs that scans at intervals replace inotify, once until inotify works again.
    fn log_failure(&mut self, path: &Path, error: Errno) {
        if self.logged_failure.is_new(()) {
            let (file, interval) = (path.display(), duration(self.detection.interval));
            warn!(
                %file, err = %error, %interval,
                "Cannot be watched with inotify; the directory is read in intervals instead"
            );
        }
    }

    /// Reads the files that changed. Returns `false` if a rescan is needed.
    fn read_changes(&mut self, monitor: &Monitor) -> Result<bool, End> {
        let Ok(mut changed) = monitor.changed() else { return Ok(false) };
        if changed.all {
            return Ok(false);
        }
        let readable_again = changed.attributes.into_iter().filter(|file| self.directory.is_unreadable(file));
        changed.files.extend(readable_again);
        if changed.files.is_empty() {
            return Ok(true);
        }
        let ended = OnceCell::new();
        let end = self.directory.refresh(changed.files, &mut |news| self.outlet.publish(news, &ended));
        ended.into_inner().map_or(Ok(()), Err)?;
        Ok(end != directory::End::Unreadable)
    }
}

impl Outlet {
    /// Sends an event or logs a problem of a scan. After the first event that cannot be sent, which sets `ended`, no event is sent.
    fn publish(&self, news: ScanItem, ended: &OnceCell<End>) {
        match news {
            ScanItem::Event(_) if ended.get().is_some() => {}
            ScanItem::Event(event) => {
                if let Err(end) = self.send(event) {
                    ended.get_or_init(|| end);
                }
            }
            ScanItem::Problem(problem) => {
                log(&problem);
                problem.kind.into_iter().for_each(&self.on_rejected);
            }
        }
    }

    /// Sends an event. Waits while the queue is full, during which the thread can be stopped.
    fn send(&self, mut event: Event) -> Result<(), End> {
        loop {
            match self.events.try_send(event) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(End::Stopped),
                Err(TrySendError::Full(unsent)) => event = unsent,
            }
            self.wait(None, Some(QUEUE_FULL))?;
        }
    }

    /// Waits until the monitor has inotify events or the timeout ends. Returns `Err` if the thread has to stop.
    fn wait(&self, monitor: Option<&Monitor>, timeout: Option<Duration>) -> Result<Wake, End> {
        // All time-outs are short enough for the conversion.
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or_default());
        let mut fds = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        fds.extend(monitor.map(|monitor| PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)));
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(End::Failed(anyhow!("cannot wait for changes of the manifests: {error}"))),
                Ok(_) if !fds[0].revents().is_empty() => return Err(End::Stopped),
                Ok(0) => return Ok(Wake::Timeout),
                Ok(_) => return Ok(Wake::Changes),
            }
        }
    }
}

/// Returns whether the other end of a pipe was closed.
fn has_ended(pipe: &PipeReader) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn log(problem: &ManifestProblem) {
    let ManifestProblem { severity, file, document, text, kind: _ } = problem;
    let (file, document) = (display(file), *document);
    match severity {
        Severity::Error => error!(file, document, err = text, "Manifest cannot be used"),
        Severity::Warning => warn!(file, document, err = text, "Ignored an invalid field of a manifest"),
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

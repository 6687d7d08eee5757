//! The log: to standard error, as text or JSON, at Kubernetes' verbosity.
//!
//! `RUST_LOG`, if it is set, replaces the verbosity until that is changed at run time.
//!
//! Invariants: logging never waits for the reader of the log (`queue`), and each line is one record (`escape`). A thread of its own
//! writes the lines, from `start_writing` on; [`FlushOnDrop`] writes those that are left at the end of the process. Panics are records
//! too. Nothing else in a running process may write to standard error, because that could wait.

mod escape;
pub(crate) mod once;
mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::Once;
use std::time::Duration;
use std::{fmt, io, panic, thread};

use tracing::level_filters::LevelFilter;
use tracing::{Level, enabled, error, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt as lines};

use crate::config::{LogFormat, LoggingConfig};
use queue::Queue;

/// The lines that wait to be written to standard error.
static QUEUE: Queue = Queue::new();
/// Starts the thread that writes them.
static WRITER: Once = Once::new();

/// The target of records that are about the process and about no module.
const PROGRAM: &str = "kube_proxy";
/// How long the end of the process waits for a slow reader, before its last line and after it.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Changes the verbosity of a log that is running.
#[derive(Clone)]
pub struct Verbosity(Handle<Targets, Registry>);

impl Verbosity {
    /// Sets it for all threads.
    ///
    /// # Errors
    /// When there is no log any more, with the reason.
    pub(crate) fn set(&self, verbosity: u32) -> Result<(), String> {
        self.0.reload(filter(verbosity)).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbosity")
    }
}

/// Starts the log, which is kept in memory until `start_writing`. Later calls change nothing, and their result has no effect.
pub fn init(config: &LoggingConfig) -> Verbosity {
    let from_environment = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let (filter, handle) = reload::Layer::new(from_environment.unwrap_or_else(|| filter(config.verbosity)));
    let format = config.format;
    // The library's own messages would go to standard error, and its escapes differ from those of `escape`.
    let lines = lines::layer().log_internal_errors(false).with_ansi(false).with_ansi_sanitization(false);
    let lines = lines.with_writer(move || Record(format));
    let log = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Text => log.with(lines).try_init(),
        LogFormat::Json => log.with(lines.json()).try_init(),
    };
    match started {
        Ok(()) => panic::set_hook(Box::new(log_panic)),
        Err(error) => tracing::debug!(%error, "logging was started before"),
    }
    Verbosity(handle)
}

/// Takes one record, which the formatter writes in one piece.
struct Record(LogFormat);

impl io::Write for Record {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        QUEUE.push(escape::line(&String::from_utf8_lossy(record), self.0));
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs a panic instead of printing it, with a backtrace if `RUST_BACKTRACE` is set.
fn log_panic(panic: &PanicHookInfo<'_>) {
    log_error(&format!("thread {:?} {panic}", thread::current().name().unwrap_or_default()));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        log_error(&backtrace.to_string());
    }
}

/// Logs an error in any case: as a record, or as lines for a terminal if there is no log or `RUST_LOG` filters the record out.
fn log_error(text: &str) {
    if enabled!(target: PROGRAM, Level::ERROR) {
        error!(target: PROGRAM, "{text}");
    } else {
        QUEUE.push(escape::lines(&format!("kube-proxy: {text}")));
    }
}

/// Starts the thread that writes the log, if there is none yet. It inherits the privileges of its caller.
pub(crate) fn start_writing() {
    WRITER.call_once(|| {
        let write = || {
            // With a handle of its own it does not hold the lock of standard error while it waits for a slow reader.
            let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else { return };
            QUEUE.write_to(File::from(stderr), |count| {
                warn!("dropped {count} log lines, because the reader of the log was too slow")
            })
        };
        // Without threads and file descriptors nothing else works either, and there is no way to report it.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(write);
    });
}

/// Calls `count` with the number of dropped lines, including those before this call. It must not block or log.
pub(crate) fn count_dropped(count: impl Fn(u64) + Send + 'static) {
    QUEUE.on_drop(Box::new(count));
}

/// Logs why the process ends.
pub fn fatal(error: &anyhow::Error) {
    // A full log would drop the line, so it gets a moment to be read.
    flush();
    log_error(&format!("{error:#}"));
}

/// Text of others as one line for a terminal: control characters are escaped.
#[must_use]
pub(crate) fn escaped(text: &str) -> String {
    escape::line(text, LogFormat::Text).trim_end().to_owned()
}

/// Flushes the log when it is dropped: lines that wait are written, unless the reader is too slow.
#[derive(Debug)]
pub struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush();
    }
}

fn flush() {
    start_writing();
    QUEUE.drain(FLUSH_TIMEOUT);
}

/// Libraries whose own log is left out, because each failed request would be logged twice, once without the server's name.
/// `RUST_LOG=kube_client=debug` shows it.
const LIBRARIES: [&str; 6] = ["kube_client", "hyper", "hyper_util", "rustls", "tower", "tower_http"];

fn filter(verbosity: u32) -> Targets {
    let targets = Targets::new().with_default(level(verbosity)).with_target(CHANGES, level_of_changes(verbosity));
    targets.with_targets(LIBRARIES.map(|library| (library, LevelFilter::OFF)))
}

/// What the proxy does is told by this module.
const CHANGES: &str = "kube_proxy::changes";

/// The level of a verbosity for changes: a line a changed Service from 2 on, a line an endpoint from 4 on.
fn level_of_changes(verbosity: u32) -> LevelFilter {
    if verbosity < 2 { LevelFilter::WARN } else { level(verbosity) }
}

/// The level of a verbosity: errors, warnings and important events always; syncs from 4 on, because many clusters run with 2; everything,
/// with each command to the kernel, from 6 on.
fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_library_does_not_log() {
        for verbosity in [0, 4, 10] {
            let filter = filter(verbosity);
            assert!(!filter.would_enable("kube_client::client::builder", &Level::ERROR));
            assert!(!filter.would_enable("hyper_util::client::legacy::pool", &Level::ERROR));
            assert!(filter.would_enable("kube_proxy::source::api::watcher", &Level::WARN));
        }
    }

    #[test]
    fn changed_services_are_logged_from_2_on_and_endpoints_from_4_on() {
        let shown = |verbosity, level| filter(verbosity).would_enable("kube_proxy::changes::log", &level);
        let levels =
            [0, 1, 2, 3, 4, 6].map(|verbosity| (shown(verbosity, Level::INFO), shown(verbosity, Level::DEBUG)));
        let (none, services, endpoints) = ((false, false), (true, false), (true, true));
        assert_eq!(levels, [none, none, services, services, endpoints, endpoints]);
    }

    #[test]
    fn verbosity_as_levels() {
        assert_eq!([0, 1, 3, 4, 5, 6, 10].map(level), {
            use LevelFilter as L;
            [L::INFO, L::INFO, L::INFO, L::DEBUG, L::DEBUG, L::TRACE, L::TRACE]
        });
    }
}

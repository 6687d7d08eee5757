//! Logs: to standard error, as text or JSON, at Kubernetes' verbosity.
//!
//! `RUST_LOG` takes the place of the verbosity where it is set, until the verbosity is changed at run time.
//!
//! Invariants: logging never waits for who reads the log (`queue`), and each line is one record (`escape`). A thread of its own
//! writes the lines, from [`start_writing`] on; [`Ending`] sees to those that are left at the end of the process. Panics are records
//! too. Nothing else in a running process may write to standard error, because that would wait.

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

/// What waits to be written to standard error.
static QUEUE: Queue = Queue::new();
/// Whether there is a thread that writes it.
static WRITER: Once = Once::new();

/// Who says what is about the process and about no module.
const PROGRAM: &str = "kube_proxy";
/// How long the end of the process waits for a log that is not read, before its last line and after it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Changes the verbosity of a log that is running.
#[derive(Clone)]
pub struct Verbosity(Handle<Targets, Registry>);

impl Verbosity {
    /// Sets it, for all threads at once.
    ///
    /// # Errors
    /// When the log is not there any more, with the reason.
    pub fn set(&self, verbosity: u32) -> Result<(), String> {
        self.0.reload(filter(verbosity)).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbosity")
    }
}

/// Starts logging, into memory until [`start_writing`]. Later calls change nothing, and what they give has no effect.
pub fn init(config: &LoggingConfig) -> Verbosity {
    let from_environment = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let (filter, handle) = reload::Layer::new(from_environment.unwrap_or_else(|| filter(config.verbosity)));
    let format = config.format;
    // The library's own messages would go to standard error, and its escapes would be other ones.
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

/// Takes one record, as the formatter of records writes it: in one piece.
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

/// Logs a panic in place of printing it. The backtrace is there if `RUST_BACKTRACE` asks for it, as usual.
fn log_panic(panic: &PanicHookInfo<'_>) {
    say(&format!("thread {:?} {panic}", thread::current().name().unwrap_or_default()));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        say(&backtrace.to_string());
    }
}

/// An error that is said in any case: as a record, or as lines for a terminal if there is no log or `RUST_LOG` leaves the record out.
fn say(text: &str) {
    if enabled!(target: PROGRAM, Level::ERROR) {
        error!(target: PROGRAM, "{text}");
    } else {
        QUEUE.push(escape::lines(&format!("kube-proxy: {text}")));
    }
}

/// Starts the thread that writes the log, if there is none yet. It has the privileges that its caller has at that time.
pub fn start_writing() {
    WRITER.call_once(|| {
        let write = || {
            // Without a handle of its own it would hold the lock of standard error for as long as nobody reads.
            let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else { return };
            QUEUE.write_to(File::from(stderr), |count| warn!("dropped {count} log lines because nobody read them"))
        };
        // Without threads and descriptors nothing else works either, and there is no place to say so.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(write);
    });
}

/// Has each line that is dropped counted, also those that were before this call. `count` must not block or log.
pub fn count_dropped(count: impl Fn(u64) + Send + 'static) {
    QUEUE.on_drop(Box::new(count));
}

/// Says why the process ends.
pub fn fatal(error: &anyhow::Error) {
    // A log that is full would drop the line; it gets a moment to be read.
    drain();
    say(&format!("{error:#}"));
}

/// Foreign text for a terminal: nothing in it moves the cursor or begins a line that the text does not have.
#[must_use]
pub fn harmless(text: &str) -> String {
    escape::line(text, LogFormat::Text).trim_end().to_owned()
}

/// Ends the log when it is dropped: what waits is written, unless nobody reads it.
#[derive(Debug)]
pub struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        drain();
    }
}

fn drain() {
    start_writing();
    QUEUE.drain(PATIENCE);
}

/// Libraries whose own log is left out: each failed request would be there twice, once without the server's name and once with.
/// `RUST_LOG=kube_client=debug` shows it.
const LIBRARIES: [&str; 6] = ["kube_client", "hyper", "hyper_util", "rustls", "tower", "tower_http"];

fn filter(verbosity: u32) -> Targets {
    let targets = Targets::new().with_default(level(verbosity));
    targets.with_targets(LIBRARIES.map(|library| (library, LevelFilter::OFF)))
}

/// Errors, warnings and milestones always; syncs from 4 on, as many clusters run with 2; everything from 6 on.
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
    fn the_client_library_does_not_log_beside_us() {
        for verbosity in [0, 4, 10] {
            let filter = filter(verbosity);
            assert!(!filter.would_enable("kube_client::client::builder", &Level::ERROR));
            assert!(!filter.would_enable("hyper_util::client::legacy::pool", &Level::ERROR));
            assert!(filter.would_enable("kube_proxy::source::api::watcher", &Level::WARN));
        }
    }

    #[test]
    fn verbosity_as_levels() {
        assert_eq!([0, 1, 3, 4, 5, 6, 10].map(level), {
            use LevelFilter as L;
            [L::INFO, L::INFO, L::INFO, L::DEBUG, L::DEBUG, L::TRACE, L::TRACE]
        });
    }
}

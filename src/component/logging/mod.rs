//! The log: records as text (klog's) or JSON (component-base's), at Kubernetes' verbosity, to standard error.
//!
//! Logs the events of `tracing`, panics, and the error that ends the process. With `splitStream` informational records go to standard
//! output. `-v` and `--vmodule` decide what is logged (`filter`), and `RUST_LOG` decides about libraries.
//!
//! Invariants: logging never waits for the reader of the log (`queue`), and only the first line of a record begins like a record
//! (`text`). The time zone is read once, before the process drops its privileges. From `start_writing` on a thread for each stream writes
//! the lines; [`FlushOnDrop`] writes the remaining ones at the end of the process. Nothing else in a running process may write to
//! standard error, because the write could block.

mod buffer;
mod escape;
mod filter;
mod json;
pub mod once;
mod out_of_memory;
mod queue;
mod record;
#[cfg(test)]
mod testing;
mod text;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::os::fd::AsFd;
use std::panic::{Location, PanicHookInfo};
use std::sync::{Arc, Once, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use std::{fmt, io, panic, process, thread};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::subscriber::{Subscriber, set_global_default};
use tracing::{Event, Metadata, callsite, span, warn};

use crate::config::{self, LogFormat, LoggingConfig};
use crate::supervise;
use buffer::Buffer;
use filter::Filter;
pub use out_of_memory::out_of_memory;
use queue::Queue;
use record::{Place, Record, Severity};
pub use record::{V1, V2, duration, list};

/// The records that wait to be written to standard error.
static ERRORS: Queue = Queue::new();
/// The informational records that wait to be written to standard output, if the log has two streams.
static INFOS: Queue = Queue::new();
/// Ensures that the threads that write the queues are started only once.
static WRITERS: Once = Once::new();
/// The format and the streams of the log. Records are text on standard error if the log was not started.
static FORM: OnceLock<Form> = OnceLock::new();

/// How long the process waits for a slow reader before it ends: once before its last record, and once after it.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The form of records, and where they go.
struct Form {
    format: LogFormat,
    zone: TimeZone,
    /// How many bytes of informational records are buffered before standard output; `None` if everything goes to standard error.
    info_buffer: Option<usize>,
    flush_every: Duration,
}

impl Form {
    fn new(config: &LoggingConfig) -> Self {
        let LoggingConfig { format, info_buffer, flush_every, .. } = *config;
        Self { format, zone: TimeZone::system(), info_buffer, flush_every }
    }

    fn get() -> &'static Self {
        FORM.get_or_init(|| Self::new(&LoggingConfig::default()))
    }

    fn write(&self, record: &Record<'_>) {
        // As upstream: the JSON format has no severity for warnings, so they count as informational.
        let (line, is_info) = match self.format {
            LogFormat::Text => (text::record(record, &self.zone, process::id()), record.severity == Severity::Info),
            LogFormat::Json => (json::record(record), record.severity != Severity::Error),
        };
        let queue = if is_info && self.info_buffer.is_some() { &INFOS } else { &ERRORS };
        queue.push(line);
    }
}

/// The time of a record.
fn now() -> Timestamp {
    // Fails only if the clock is outside of the years that a `Timestamp` can hold.
    Timestamp::try_from(SystemTime::now()).unwrap_or_default()
}

/// The subscriber to which `tracing` passes the events of the program and of its libraries.
struct Log(Arc<RwLock<Filter>>);

impl Subscriber for Log {
    /// `tracing` calls this once for each call site, and again after a change of the verbosity.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The macro `enabled!` passes metadata that is neither a span's nor an event's, so test for a span only.
        !metadata.is_span() && self.0.read().unwrap_or_else(PoisonError::into_inner).shows(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        Form::get().write(&Record::of(event, now()));
    }

    // Spans, which only libraries have, are never enabled.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Changes the verbosity of a log that is running.
#[derive(Clone)]
pub struct Verbosity(Arc<RwLock<Filter>>);

impl Verbosity {
    /// Sets the verbosity for all threads. `vmodule` stays as it is.
    pub fn set(&self, verbosity: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).verbosity = verbosity;
        callsite::rebuild_interest_cache();
    }
}

impl fmt::Debug for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbosity")
    }
}

/// Starts the log. Lines are kept in memory until `start_writing`. Later calls change nothing, and their result has no effect.
pub fn init(config: &LoggingConfig) -> Verbosity {
    let from_environment = std::env::var("RUST_LOG").ok();
    let filter = Filter::new(config.verbosity, config.vmodule.clone(), from_environment.as_deref());
    let filter = Arc::new(RwLock::new(filter));
    if set_global_default(Log(Arc::clone(&filter))).is_ok() {
        FORM.get_or_init(|| Form::new(config));
        panic::set_hook(Box::new(log_panic));
    }
    Verbosity(filter)
}

/// Logs a panic instead of printing it, with a backtrace if `RUST_BACKTRACE` is set.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map_or(Place { file: "???", line: 1 }, place);
    let mut record = Record::error(now(), place, "Observed a panic");
    record.fields.push(("panic", supervise::text_of(panic.payload()).into()));
    record.fields.push(("thread", thread::current().name().unwrap_or_default().into()));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        record.fields.push(("stacktrace", backtrace.to_string().into()));
    }
    Form::get().write(&record);
}

fn place<'a>(location: &'a Location<'a>) -> Place<'a> {
    Place { file: location.file(), line: location.line() }
}

/// Starts the threads that write the log, unless they run already. They inherit the privileges of the calling thread.
pub fn start_writing() {
    WRITERS.call_once(|| {
        // With a handle of its own a thread does not hold the lock of standard error while it waits for a slow reader.
        if let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() {
            write("log", &ERRORS, Buffer::none(File::from(stderr)));
        }
        if let Some(Form { info_buffer: Some(size), flush_every, .. }) = FORM.get()
            && let Ok(stdout) = io::stdout().as_fd().try_clone_to_owned()
        {
            write("log-info", &INFOS, Buffer::new(File::from(stdout), *size, *flush_every));
        }
    });
}

/// Starts a thread that writes a queue.
fn write(name: &str, queue: &'static Queue, out: Buffer<File>) {
    let report = |lines| warn!(lines, "Dropped log lines because the reader of the log was too slow");
    // If no thread can be started, nothing else works either, and the error cannot be logged.
    let _ = thread::Builder::new().name(name.to_owned()).spawn(move || queue.write_to(out, report));
}

/// Sets the function that counts dropped lines, and calls it for those dropped so far. It must not block or log.
pub fn count_dropped(count: impl Fn(u64) + Clone + Send + 'static) {
    [&ERRORS, &INFOS].into_iter().for_each(|queue| queue.on_drop(Box::new(count.clone())));
}

/// Logs the error that ends the process: as a record, or as a line for a terminal if the command line is wrong, as upstream does.
#[track_caller]
pub fn fatal(error: &anyhow::Error) {
    let is_of_log = FORM.get().is_some() || error.downcast_ref().is_some_and(config::Error::is_of_file);
    if !is_of_log {
        return complain(error);
    }
    // A full queue would drop the record, so give the reader a moment first.
    flush();
    let mut record = Record::error(now(), place(Location::caller()), "Error running ProxyServer");
    record.fields.push(("err", format!("{error:#}").into()));
    Form::get().write(&record);
}

/// Writes the error that ends a command as a plain line, because commands do not log.
pub fn complain(error: &anyhow::Error) {
    ERRORS.push(escape::lines(&format!("kube-proxy: {error:#}")));
}

/// Text from outside of the program as one line for a terminal, with control characters escaped.
#[must_use]
pub fn escaped(text: &str) -> String {
    escape::line(text, LogFormat::Text).trim_end().to_owned()
}

/// Flushes the log when it is dropped: queued lines are written, unless the reader is too slow.
#[derive(Debug)]
pub struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush();
    }
}

fn flush() {
    start_writing();
    [&ERRORS, &INFOS].into_iter().for_each(|queue| queue.drain(FLUSH_TIMEOUT));
}

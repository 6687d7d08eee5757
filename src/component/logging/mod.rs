//! The log: writes records to standard error, as klog's text or as component-base's JSON, with the verbosities of Kubernetes.
//!
//! The module logs the events of `tracing`, panics, and the error that ends the process. A panic ends the process, too. With `splitStream`,
//! informational records go to standard output. `-v` and `--vmodule` decide which records of this program are logged (`filter`), and
//! `RUST_LOG` decides about records of libraries. No record has what looks like a secret ([`crate::redact`]).
//!
//! Invariants: a thread that logs never waits for the reader of the log (`queue`). A record has a bounded length (`record`), and how many
//! records the objects of a user cause is bounded (`limit`). Only the first line of a record looks like the beginning
//! of a record (`text`). The time zone is read once, before the process drops its privileges. `start_writing` starts a thread for each
//! stream, which writes the queued lines; [`FlushOnDrop`] waits at the end of the process until they are written. Nothing else in a running
//! process may write to standard error, because the write could block.

mod buffer;
mod escape;
mod filter;
mod json;
mod limit;
pub mod once;
mod out_of_memory;
mod queue;
mod record;
#[cfg(test)]
mod testing;
mod text;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::panic::{Location, PanicHookInfo};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, io, panic, process, thread};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::subscriber::{Subscriber, set_global_default};
use tracing::{Event, Metadata, callsite, span, warn};

use crate::config::{self, LogFormat, LoggingConfig};
use crate::redact::redact;
use crate::supervise;
use crate::terminal::for_stderr;
use buffer::Buffer;
use filter::Filter;
use limit::Limits;
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
/// The format and the streams of the log. Before the log is started, records are written as text to standard error.
static FORM: OnceLock<Form> = OnceLock::new();

/// How long a process that ends waits for a slow reader of one stream of the log, each time that it waits.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
/// The time from a panic to the end of the process, whatever hangs.
const PANIC_ENDS: Duration = Duration::from_secs(10);

/// The settings of the started log: the format of records, and the streams to which they are written.
struct Form {
    format: LogFormat,
    zone: TimeZone,
    /// The size in bytes of the buffer for informational records on standard output; `None` if all records go to standard error.
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
        // The JSON format has no severity for warnings, so they count as informational, as in upstream.
        let (line, is_info) = match self.format {
            LogFormat::Text => (text::record(record, &self.zone, process::id()), record.severity == Severity::Info),
            LogFormat::Json => (json::record(record), record.severity != Severity::Error),
        };
        let queue = if is_info && self.info_buffer.is_some() { &INFOS } else { &ERRORS };
        queue.push(line);
    }
}

fn now() -> Timestamp {
    // The conversion fails only if the clock shows a year that a `Timestamp` cannot hold.
    Timestamp::try_from(SystemTime::now()).unwrap_or_default()
}

/// The subscriber to which `tracing` passes the events of the program and of its libraries.
struct Log {
    filter: Arc<RwLock<Filter>>,
    limits: Mutex<Limits>,
}

impl Subscriber for Log {
    /// Decides whether a record is logged. `tracing` calls this once for each place in the code that logs, and again after a change of the
    /// verbosity.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Refuse spans only: macro `enabled!` passes metadata that belongs to neither a span nor an event.
        !metadata.is_span() && self.filter.read().unwrap_or_else(PoisonError::into_inner).shows(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        let (record, form) = (Record::of(event, now()), Form::get());
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let (admitted, summary) = limits.admit(record, Instant::now());
        admitted.iter().chain(&summary).for_each(|record| form.write(record));
    }

    // `enabled` refuses all spans, which only libraries make, so the id does not matter.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A handle that changes the verbosity of the running log.
#[derive(Clone)]
pub struct Verbosity(Arc<RwLock<Filter>>);

impl Verbosity {
    /// Sets the verbosity for all threads. Does not change `vmodule`.
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

/// Starts the log. Lines are kept in memory until [`start_writing`] is called. Only the first call has an effect; the [`Verbosity`] that a
/// later call returns changes nothing.
pub fn init(config: &LoggingConfig) -> Verbosity {
    let from_environment = std::env::var("RUST_LOG").ok();
    let filter = Filter::new(config.verbosity, config.vmodule.clone(), from_environment.as_deref());
    let filter = Arc::new(RwLock::new(filter));
    if set_global_default(Log { filter: Arc::clone(&filter), limits: Mutex::default() }).is_ok() {
        FORM.get_or_init(|| Form::new(config));
        panic::set_hook(Box::new(end_by_panic));
    }
    Verbosity(filter)
}

/// Logs a panic and ends the process, because other threads may not notice the end of the thread or task that panics. A panic in
/// [`supervise::contained`] work is only logged.
fn end_by_panic(panic: &PanicHookInfo<'_>) {
    if supervise::is_contained() {
        return log_panic(panic);
    }
    let code = supervise::PANIC_EXIT_CODE.into();
    // The process ends in time even if the panicking thread holds a lock that it needs below, or if the reader of the log hangs.
    let _ = supervise::thread("panic", move || {
        thread::sleep(PANIC_ENDS);
        process::exit(code);
    });
    log_panic(panic);
    flush();
    // These lines are left if the thread that writes the log panicked.
    let _ = io::stderr().write_all(ERRORS.take_all().as_bytes());
    process::exit(code)
}

/// Logs a panic instead of printing it, with a backtrace if `RUST_BACKTRACE` asks for one.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map_or(Place { file: "???", line: 1 }, place);
    let mut record = Record::error(now(), place, "Observed a panic");
    record.add("panic", supervise::text_of(panic.payload()));
    record.add("thread", thread::current().name().unwrap_or_default());
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        record.add("stacktrace", backtrace.to_string());
    }
    Form::get().write(&record);
}

fn place<'a>(location: &'a Location<'a>) -> Place<'a> {
    Place { file: location.file(), line: location.line() }
}

/// Starts the threads that write the log, unless they run already. The threads inherit the privileges of the calling thread.
pub fn start_writing() {
    WRITERS.call_once(|| {
        // Duplicate the file descriptor, so that the thread does not hold the lock of `std::io::Stderr` while it waits for a slow reader.
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

/// Starts a thread that writes the lines of a queue to `out`.
fn write(name: &'static str, queue: &'static Queue, out: Buffer<File>) {
    let report = |lines| warn!(lines, "Dropped log lines because the reader of the log was too slow");
    // Ignore the error: it could not be logged without this thread, and a process that cannot start threads fails soon anyway.
    let _ = supervise::thread(name, move || queue.write_to(out, report));
}

/// Sets the function that counts dropped lines, and calls it with the number of lines dropped so far. `count` must neither block nor log.
pub fn count_dropped(count: impl Fn(u64) + Clone + Send + 'static) {
    [&ERRORS, &INFOS].into_iter().for_each(|queue| queue.on_drop(Box::new(count.clone())));
}

/// Logs the error that ends the process: as a record, or as a plain line for a terminal if the command line is wrong, as upstream does.
#[track_caller]
pub fn fatal(error: &anyhow::Error) {
    let is_of_log = FORM.get().is_some() || error.downcast_ref().is_some_and(config::Error::is_of_file);
    if !is_of_log {
        return complain(error);
    }
    // A full queue would drop the record, so first give the reader time to empty the queue.
    flush();
    let mut record = Record::error(now(), place(Location::caller()), "Error running ProxyServer");
    record.add("err", format!("{error:#}"));
    Form::get().write(&record);
}

/// Queues the error that ends a command, or that is about the command line, as plain text, because no log was started.
pub fn complain(error: &anyhow::Error) {
    ERRORS.push(escape::lines(&for_stderr(&redact(&format!("kube-proxy: {error:#}")))));
}

/// Returns text from outside of the program as one line for a terminal, with control characters escaped.
#[must_use]
pub fn escaped(text: &str) -> String {
    escape::line(text, LogFormat::Text).trim_end().to_owned()
}

/// Flushes the log when this value is dropped: waits until queued lines are written, but not longer than 0.5 s for each of the two streams.
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

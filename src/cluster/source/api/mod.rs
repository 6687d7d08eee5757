//! Objects from the API server.
//!
//! Takes Services, EndpointSlices, ServiceCIDRs and this node's Node as the server lists and streams them; gives [`Event`]s: the objects
//! of all kinds, then [`Event::InitialListDone`], then changes as they happen.
//!
//! Each kind has a reflector (`reflector.rs`) that lists and watches it; all reflectors run on one thread, so that their events have an
//! order. `list_watch` makes the requests of a list or a watch, `frames` cuts a watch into events, `decode` reads the answers, `known`
//! finds the objects that a new list lacks, `continuity` asks whether the server still has the version to resume from, `retry` decides
//! when to try again and when to log, `error` explains failures.
//!
//! `connection` sends the requests with a client that `client` builds from the configuration; credentials may come from `plugin`.
//! `connector` makes the connections, by the route that `proxy` finds and with the CAs that `tls` trusts; `certificate` reads
//! certificates. `startup` waits for the first lists. `look` and `pods` answer questions of the commands.
//!
//! Invariants: a broken object does not affect others; a list deletes only objects that it lacks, and only once it is complete; memory
//! is bounded by one page, which may be a whole list, or one event, plus the names of the objects; all times are monotonic.

mod certificate;
mod client;
mod connection;
mod connector;
mod continuity;
mod decode;
mod error;
mod format;
mod frames;
mod known;
mod list_watch;
mod look;
mod plugin;
mod pods;
mod position;
mod proxy;
mod reflector;
mod resource;
mod retry;
mod startup;
mod tls;

#[cfg(test)]
mod tests;

use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::convert::ConvertOptions;
use component::supervise::Supervisor;
use connection::Connection;
use error::Error;
use reflector::{Reflector, Shared, Timing};
use resource::Resource;
use rules::model::Event;
use startup::Progress;

pub use client::{ClientOptions, check, client, runs_programs};

#[doc(hidden)]
pub use decode::{list_bytes, watch_bytes};
pub use look::Reached;
pub use look::{Access, Allowed, ServerReport, look};
pub use pods::pod_addresses;

/// How long to wait before the next attempt to send while the receiver's queue is full.
const QUEUE_FULL: Duration = Duration::from_millis(1);

/// What to list and watch, and where.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// How to reach the server.
    pub client: ClientOptions,
    /// Name of this node's Node object (M1).
    pub node_name: String,
    /// Options of the conversion of objects.
    pub convert: ConvertOptions,
    /// Whether the start fails if the Node has no pod CIDRs, as with `detectLocalMode: NodeCIDR` (M3).
    pub needs_pod_cidrs: bool,
    /// A list that removes a larger share of a kind's objects, in percent, has to be confirmed by a second list.
    pub removal_limit: u8,
}

/// A request to the API server that was answered, or failed.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The server's URL.
    pub url: &'a str,
    /// The HTTP status; `None` without an answer.
    pub code: Option<u16>,
    /// The time from the request to the end of the answer; for a watch, whose answer goes on, to the start of the answer.
    pub took: Duration,
    /// The size of the answer's body in bytes; `None` for a watch or a failure.
    pub bytes: Option<usize>,
}

/// Receives what is counted in metrics or shown on `/readyz`. Called on the source's thread; must not block.
pub trait Observer: Send + 'static {
    /// Reports whether the server serves a kind: `false` at the start and after a failure.
    fn connected(&self, kind: &'static str, is: bool);
    /// The server answered a request, or the request failed.
    fn answered(&self, request: Answered<'_>);
    /// The server sent data of a kind: objects, changes or a bookmark. Of several pieces of a watch within 50 ms only one is reported.
    fn received(&self, kind: &'static str, at: SystemTime);
    /// The watch of a kind fails. `why` has the server's URL, the error and what to check. Called again from time to time while the
    /// failure lasts, and not at all for a failure that passes at once.
    fn lost(&self, kind: &'static str, why: &str);
    /// The watch of a kind works again after a failure of this duration.
    fn reconnected(&self, kind: &'static str, lasted: Duration);
    /// An object of a kind has a new problem, and cannot be used in full.
    fn rejected(&self, kind: &'static str);
    /// Reports what the start waits for, in words: at once, after each change, and finally an empty list, just before
    /// [`Event::InitialListDone`] is sent.
    fn waiting_for(&self, missing: &[&str]);
}

/// A running source. Dropping it stops the source, without waiting for its thread.
#[derive(Debug)]
pub struct Handle {
    /// Closes when the handle is dropped, which stops the source.
    _stop: oneshot::Sender<()>,
}

/// Starts to list and watch on a thread of its own. Does not wait for the server, which may be unreachable for long.
///
/// The supervisor receives an error after which the process cannot go on: a configuration that cannot be read, a Node without pod CIDRs
/// where they are needed (M3), a panic.
///
/// # Errors
/// The system gives no thread or no file descriptors.
pub fn spawn(
    options: ApiOptions,
    events: SyncSender<Event>,
    observer: impl Observer,
    supervisor: &Supervisor,
) -> Result<Handle> {
    spawn_with(options, events, observer, supervisor, Timing::default())
}

/// [`spawn`] with other time limits, for tests.
fn spawn_with(
    options: ApiOptions,
    events: SyncSender<Event>,
    observer: impl Observer,
    supervisor: &Supervisor,
    timing: Timing,
) -> Result<Handle> {
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime of the API source")?;
    let (stop, stopped) = oneshot::channel();
    let body = move || {
        let outcome = runtime.block_on(run(options, EventSender(events), observer, timing, stopped));
        // Does not wait for DNS look-ups, which may take long and are no longer needed.
        runtime.shutdown_background();
        outcome
    };
    supervisor.thread("api", "the API source's thread", body).context("cannot start the thread of the API source")?;
    Ok(Handle { _stop: stop })
}

/// Runs the reflectors until the handle is dropped, the receiver is gone, or there is an error that ends the process.
async fn run(
    options: ApiOptions,
    events: EventSender,
    observer: impl Observer,
    timing: Timing,
    stopped: oneshot::Receiver<()>,
) -> Result<()> {
    let connection = Connection::new(options.client.clone()).await?;
    let (progress, seen) = tokio::sync::watch::channel(Progress::default());
    let shared = Shared {
        node_name: &options.node_name,
        convert: options.convert,
        removal_limit: options.removal_limit,
        events: &events,
        observer: &observer,
        progress: &progress,
        news: &tokio::sync::watch::Sender::new(0),
        timing,
    };
    // `FuturesUnordered` polls only the reflectors that have something to do.
    let reflectors = Resource::ALL.map(|kind| Reflector::new(kind, &shared, connection.clone()).run());
    let mut reflectors: FuturesUnordered<_> = reflectors.into_iter().collect();
    tokio::select! {
        // The handle was dropped.
        _ = stopped => Ok(()),
        // A reflector ends when the receiver is gone; the sync loop's thread reports why.
        _ = reflectors.next() => Ok(()),
        () = client::announce_address(&options.client, &events) => Ok(()),
        error = startup::run(&options, seen, &events, &observer) => Err(error),
    }
}

/// Sends events to the sync loop through a bounded channel.
///
/// If the channel is full, the sender waits without blocking the thread: the server's next bytes stay in the socket, the other kinds
/// go on, and the source can still be stopped.
#[derive(Debug)]
struct EventSender(SyncSender<Event>);

impl EventSender {
    /// Sends an event.
    ///
    /// # Errors
    /// [`Error::ReceiverGone`].
    async fn send(&self, mut event: Event) -> Result<(), Error> {
        loop {
            match self.0.try_send(event) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(Error::ReceiverGone),
                Err(TrySendError::Full(unsent)) => event = unsent,
            }
            sleep(QUEUE_FULL).await;
        }
    }
}

//! Objects from the API server.
//!
//! Takes Services, EndpointSlices, ServiceCIDRs and the own Node as the server lists and streams them; gives [`Event`]s: the objects of
//! all kinds, then [`Event::InitialListDone`], then changes as they happen.
//!
//! A reflector (`reflector.rs`) for each kind lists and watches; all of them run on one thread, so that their events have an order. What it uses:
//! `list_watch` makes the requests of a list or a watch, `frames` cuts a watch into events, `decode` reads the answers, `known` finds out what a list no longer has,
//! `continuity` whether the server still has our version, `retry` decides when to try again and when to log, `error` explains failures. Below
//! them, `connection` sends requests with a client that `client` builds from the configuration, with credentials that `plugin` may provide;
//! `connector` makes its connections, by the route that `proxy` finds and with what `tls` trusts, and `certificate` reads certificates.
//! `startup` waits for the first lists.
//!
//! Invariants: a broken object loses only itself; a list deletes only objects that it lacks, and only once it is complete; memory is
//! bounded by one page, which may be a whole list, or one event, plus the names of the objects; all times are monotonic.

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

/// How long to wait before the next attempt to send while the receiver's queue is full.
const QUEUE_FULL: Duration = Duration::from_millis(1);

/// What to list and watch, and where.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// How to reach the server.
    pub client: ClientOptions,
    /// Name of the own Node (M1).
    pub node_name: String,
    /// How objects are read.
    pub convert: ConvertOptions,
    /// Whether the start fails when the Node gets no pod CIDRs: detectLocalMode NodeCIDR (M3).
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
    /// From the request to the end of the answer, or to its begin for a watch, whose answer goes on.
    pub took: Duration,
    /// Bytes of the answer's body, where it came as a whole.
    pub bytes: Option<usize>,
}

/// Receives what is counted in metrics or shown on `/readyz`. Called on the source's thread; must not block.
pub trait Observer: Send + 'static {
    /// Whether the server serves a kind at present: `false` at the start and from a failure on.
    fn connected(&self, kind: &'static str, is: bool);
    /// The server answered a request, or the request failed.
    fn answered(&self, request: Answered<'_>);
    /// The server sent something about a kind: objects, changes or a bookmark. Of several pieces within 50 ms only the first is noted.
    fn received(&self, kind: &'static str, at: SystemTime);
    /// The watch of a kind fails: where, why, and what is likely wrong. Called again from time to time while that lasts, and not at all
    /// for a failure that passes at once.
    fn lost(&self, kind: &'static str, why: &str);
    /// The watch of a kind works again after a failure, which lasted so long.
    fn reconnected(&self, kind: &'static str, lasted: Duration);
    /// An object of a kind has a new problem, and cannot be used in full.
    fn rejected(&self, kind: &'static str);
    /// What the start waits for, in words, whenever that changes; an empty list once, just before [`Event::InitialListDone`] is sent.
    fn waiting_for(&self, missing: &[&str]);
}

/// A running source. Dropping it stops the source, without waiting for its thread.
#[derive(Debug)]
pub struct Handle {
    /// Closed when it is dropped.
    _stop: oneshot::Sender<()>,
}

/// Starts to list and watch on a thread of its own. Does not wait for the server: that may be unreachable for any time.
///
/// The supervisor receives an error after which the process cannot go on: a configuration that cannot be read, a Node without pod CIDRs
/// where they are needed (M3), a panic.
///
/// # Errors
/// The system has no thread or no descriptors.
pub fn spawn(
    options: ApiOptions,
    events: SyncSender<Event>,
    observer: impl Observer,
    supervisor: &Supervisor,
) -> Result<Handle> {
    spawn_with(options, events, observer, supervisor, Timing::default())
}

/// [`spawn`] with other times.
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
        // Without waiting: a look-up of a name may take long, and its result is no longer needed.
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
    // Of these only the one is polled that something came for.
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
/// A full channel makes the sender wait without blocking the thread: the server's next bytes stay in the socket, and the other kinds
/// and the stop are still served.
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

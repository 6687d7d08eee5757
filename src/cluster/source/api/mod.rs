//! Reads the cluster's objects from the API server.
//!
//! The module lists and watches Services, EndpointSlices, ServiceCIDRs and this node's Node. It sends [`Event`]s: the objects of each kind,
//! then its changes as they happen, and [`Event::InitialListDone`] once all kinds are listed.
//!
//! Each kind has a reflector (`reflector.rs`) that lists and watches it; all reflectors run on one thread, so that their events have an
//! order. `list_watch` makes the requests of a list or a watch, `frames` cuts a watch into events, `decode` reads the answers, `known`
//! finds the objects that a new list lacks, `continuity` asks whether the server still has the version to resume from, `retry` decides
//! when to try again and when to log, `error` explains failures.
//!
//! `connection` sends the requests with a client that `client` builds from the configuration, such as a `kubeconfig`; credentials may come
//! from `plugin`.
//! `connector` makes the connections, by the route that `proxy` finds and with the CAs that `tls` trusts; `certificate` reads certificates.
//! `startup` waits for the first lists, and `server_version` then asks for the server's version. `look` and `pods` answer questions of the
//! commands.
//!
//! Invariants: a broken object does not affect others; a list deletes only objects that it lacks, and only when it is complete; each kind
//! takes the memory of one page (which may be a complete list) or one event, and of the names and the problems of its objects; waits and
//! time limits depend on no clock that can be set.

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
mod kubeconfig;
mod list_watch;
mod look;
mod plugin;
mod pods;
mod position;
mod proxy;
mod reflector;
mod resource;
mod retry;
mod server_version;
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

pub use client::{ClientOptions, check, client};

#[doc(hidden)]
pub use decode::{list_bytes, watch_bytes};
pub use kubeconfig::runs_programs;
pub use look::Reached;
pub use look::{Access, Allowed, ServerReport, look};
pub use pods::pod_addresses;

/// The time between two attempts to send an event while the receiver's queue is full.
const QUEUE_FULL: Duration = Duration::from_millis(1);

/// What to list and watch, and where.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// How to reach the server.
    pub client: ClientOptions,
    /// The name of this node's Node object (M1).
    pub node_name: String,
    /// The options of the conversion of objects.
    pub convert: ConvertOptions,
    /// Whether the start fails if the Node has no pod CIDRs, as with `detectLocalMode: NodeCIDR` (M3).
    pub needs_pod_cidrs: bool,
    /// The largest share of a kind's objects, in percent, that one list may remove. If a list lacks more (and at least 10), the objects
    /// stay until a second list confirms it (O14).
    pub removal_limit: u8,
}

/// A request to the API server that was answered, or failed.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The URL of the server, without user, password and query.
    pub url: &'a str,
    /// The HTTP status; `None` if there was no complete answer.
    pub code: Option<u16>,
    /// The time from the request to the end of the answer, or to the start of the answer of a watch.
    pub took: Duration,
    /// The size of the answer's body in bytes; `None` for a watch or a failure.
    pub bytes: Option<usize>,
}

/// Receives the facts that metrics count and the health pages show. The source calls it on its own thread, so it must not block.
pub trait Observer: Send + 'static {
    /// Reports whether the server serves a kind: `false` at the start and after a failure.
    fn connected(&self, kind: &'static str, is: bool);
    /// Reports that the server answered a request, or that the request failed.
    fn answered(&self, request: Answered<'_>);
    /// Reports that the server sent data of a kind (objects, changes or a bookmark), or that it accepted a watch. Of the pieces of a watch
    /// at most one is reported in 50 ms.
    fn received(&self, kind: &'static str, at: SystemTime);
    /// Reports that the watch of a kind fails. `why` contains the server's URL, the error and what to check. The source repeats the report
    /// every few minutes while the failure lasts, and does not report a watch that broke off and that the next attempt resumes.
    fn lost(&self, kind: &'static str, why: &str);
    /// Reports that the watch of a kind works again after a failure of duration `lasted`.
    fn reconnected(&self, kind: &'static str, lasted: Duration);
    /// Reports that an object of a kind has a problem that it did not have before.
    fn rejected(&self, kind: &'static str);
    /// Reports in words what the start waits for. The source calls this at its start, after each change, and with an empty list right
    /// before it sends [`Event::InitialListDone`].
    fn waiting_for(&self, missing: &[&str]);
    /// Reports the version of the server, such as `v1.36.2`, some seconds after the first lists and about every ten minutes. May be empty.
    fn server_version(&self, version: &str);
}

/// A running source. When this value is dropped, the source stops; nobody waits for its thread.
#[derive(Debug)]
pub struct Handle {
    /// Closes when the handle is dropped, which stops the source.
    _stop: oneshot::Sender<()>,
}

/// Starts a thread that lists and watches. Does not wait for the server, which may be unreachable for a long time.
///
/// The supervisor receives an error after which the process cannot continue: a configuration that is missing or cannot be read or used, a
/// Node without pod CIDRs if they are needed (M3), or a panic.
///
/// # Errors
/// Fails if the system cannot start a thread or has no free file descriptor.
pub fn spawn(
    options: ApiOptions,
    events: SyncSender<Event>,
    observer: impl Observer,
    supervisor: &Supervisor,
) -> Result<Handle> {
    spawn_with(options, events, observer, supervisor, Timing::default())
}

/// Does the same as [`spawn`], with other time limits for tests.
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
        // Do not wait for DNS look-ups, which may take long and are no longer needed.
        runtime.shutdown_background();
        outcome
    };
    supervisor.thread("api", body).context("cannot start the thread of the API source")?;
    Ok(Handle { _stop: stop })
}

/// Runs the reflectors until the handle is dropped, the receiver is dropped, or an error occurs that ends the process.
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
        convert: options.convert.clone(),
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
    let mut listed = seen.clone();
    let version = async {
        // The sender lives as long as this function.
        let _ = listed.wait_for(Progress::is_whole).await;
        server_version::run(connection, &observer).await;
    };
    tokio::select! {
        // The handle was dropped.
        _ = stopped => Ok(()),
        // A reflector ends only when the receiver was dropped; the thread of the sync loop reports the reason.
        _ = reflectors.next() => Ok(()),
        () = client::announce_address(&options.client, &events) => Ok(()),
        () = version => Ok(()),
        error = startup::run(&options, seen, &events, &observer) => Err(error),
    }
}

/// Sends events to the sync loop through a bounded channel.
///
/// If the channel is full, the sender waits without blocking the thread: the server's next bytes stay in the socket, the reflectors of the
/// other kinds continue, and the source can still be stopped.
#[derive(Debug)]
struct EventSender(SyncSender<Event>);

impl EventSender {
    /// Sends an event.
    ///
    /// # Errors
    /// Returns [`Error::ReceiverGone`] if the receiver was dropped.
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

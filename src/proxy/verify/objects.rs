//! Gets the cluster's objects, and follows their changes, as a proxy with this configuration does.
//!
//! Takes the configuration; passes on events until all objects have arrived, and then for a given time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow, bail};
use tokio::runtime::Builder;
use tokio::time::timeout;

use cluster::settings::{client, options};
use cluster::source::{api, manifests};
use component::config::{Config, DetectLocal};
use component::supervise::{self, Failures};
use rules::model::Event;

/// Capacity of the queue of events from the source.
const QUEUE: usize = 4096;
/// How long to wait for the error of a source that ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A source of objects that is followed.
pub(super) struct Objects {
    events: Receiver<Event>,
    failures: Failures,
    /// The directory or "the API server", for messages.
    place: String,
    _source: Source,
}

/// The handle of the source. Dropping it ends the source.
enum Source {
    Manifests { _handle: manifests::Handle },
    Api { _handle: api::Handle },
}

impl Objects {
    /// Starts the source of objects that the configuration names.
    ///
    /// # Errors
    /// When credentials or the directory cannot be read.
    pub(super) fn follow(config: &Config) -> Result<Self> {
        let (supervisor, failures) = supervise::new();
        let (sink, events) = sync_channel(QUEUE);
        let (source, place) = if let Some(dir) = config.manifests.clone() {
            manifests::check(&dir)?;
            let place = dir.display().to_string();
            let handle = manifests::spawn(dir, options(config), sink, Box::new(|_| {}), &supervisor)?;
            (Source::Manifests { _handle: handle }, place)
        } else {
            let client = client(config);
            api::check(&client)?;
            let options = api::ApiOptions {
                client,
                node_name: config.node_name.clone(),
                convert: options(config),
                needs_pod_cidrs: config.detect_local == DetectLocal::NodeCidr,
                removal_limit: config.relist_removal_limit,
            };
            let handle = api::spawn(options, sink, Silent, &supervisor)?;
            (Source::Api { _handle: handle }, "the API server".to_owned())
        };
        Ok(Self { events, failures, place, _source: source })
    }

    /// Calls `each` with each event until all objects have arrived.
    ///
    /// # Errors
    /// When they do not arrive in time, or the source ends.
    pub(super) fn wait_for_all(&mut self, patience: Duration, mut each: impl FnMut(Event)) -> Result<()> {
        let end = Instant::now() + patience;
        while let Some(event) = self.next(end)? {
            let is_last = matches!(event, Event::InitialListDone);
            each(event);
            if is_last {
                return Ok(());
            }
        }
        bail!(
            "not all objects have come from {} within {} s; `kube-proxy check` with the same flags says why",
            self.place,
            patience.as_secs()
        )
    }

    /// Calls `each` with each event that arrives during this time.
    ///
    /// # Errors
    /// When the source ends.
    pub(super) fn follow_for(&mut self, time: Duration, mut each: impl FnMut(Event)) -> Result<()> {
        let end = Instant::now() + time;
        while let Some(event) = self.next(end)? {
            each(event);
        }
        Ok(())
    }

    /// The next event; `None` if none arrives before `end`.
    fn next(&mut self, end: Instant) -> Result<Option<Event>> {
        match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.failure()),
        }
    }

    /// The error with which the source ended.
    fn failure(&mut self) -> anyhow::Error {
        let runtime = Builder::new_current_thread().enable_time().build();
        let told = runtime.map(|runtime| runtime.block_on(async { timeout(LAST_WORDS, self.failures.next()).await }));
        match told {
            Ok(Ok(error)) => error,
            _ => anyhow!("no more objects come from {}", self.place),
        }
    }
}

/// An observer that ignores every report.
struct Silent;

impl api::Observer for Silent {
    fn answered(&self, _: api::Answered<'_>) {}
    fn connected(&self, _: &'static str, _: bool) {}
    fn received(&self, _: &'static str, _: SystemTime) {}
    fn lost(&self, _: &'static str, _: &str) {}
    fn reconnected(&self, _: &'static str, _: Duration) {}
    fn rejected(&self, _: &'static str) {}
    fn waiting_for(&self, _: &[&str]) {}
    fn server_version(&self, _: &str) {}
}

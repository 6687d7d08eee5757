//! Starts the source of objects: manifests if a directory is given, else the API server.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use tracing::warn;

use super::servers::report_version;
use crate::health::Reporter;
use crate::history::History;
use crate::metrics::Metrics;
use cluster::settings::{client, options};
use cluster::source::{api, manifests};
use component::config::{self, Config, DetectLocal};
use component::supervise::Supervisor;
use inspect::history::{ApiServer, Connection, EntryKind};
use inspect::running::{Problem, ProblemKind};
use rules::model::Event;

/// A running source. When it is dropped, its thread ends, and with it the stream of events.
pub(super) enum Source {
    /// Reads a directory of manifests.
    Manifests { _handle: manifests::Handle },
    /// Watches an API server.
    Api { _handle: api::Handle },
}

impl Source {
    /// Starts the source that the configuration asks for. Until all objects have arrived, the health pages say what is missing. `pid` is the
    /// id of this process by which the health pages name it.
    pub(super) fn spawn(
        (config, pid): (&Config, u32),
        sink: SyncSender<Event>,
        metrics: Metrics,
        health: Reporter,
        changes: History,
        supervisor: &Supervisor,
    ) -> Result<Self> {
        if let Some(dir) = config.manifests.clone() {
            health.not_ready(format!("waiting for the manifests of {} to be read", dir.display()));
            let on_rejected = Box::new(move |kind| metrics.object_rejected(kind));
            return Ok(Self::Manifests {
                _handle: manifests::spawn(dir, options(config), sink, on_rejected, supervisor)?,
            });
        }
        let options = api::ApiOptions {
            client: client(config),
            node_name: config.node_name.clone(),
            convert: options(config),
            needs_pod_cidrs: config.detect_local == DetectLocal::NodeCidr,
            removal_limit: config.relist_removal_limit,
        };
        let (lost, since, config) = (Mutex::default(), SystemTime::now(), config.clone());
        let observer = ApiObserver { config, metrics, health, changes, lost, pid, since, server: Mutex::default() };
        Ok(Self::Api { _handle: api::spawn(options, sink, observer, supervisor)? })
    }
}

/// Checks that the credentials for the API server, or the directory of manifests, can be read.
///
/// # Errors
/// Why the credentials or the directory cannot be read.
pub(super) fn check(config: &Config) -> Result<()> {
    match &config.manifests {
        Some(dir) => manifests::check(dir),
        None => api::check(&client(config)),
    }
}

/// Formats a time to the second, for a sentence with "since".
fn to_the_second(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "some time".to_owned(), |time| format!("{time:.0}"))
}

/// Returns the sentence that says since when the API server does not answer.
fn not_heard_since(time: SystemTime) -> String {
    format!("The API server has not been heard since {}: endpoints may be old", to_the_second(time))
}

/// Returns the sentence that says what a proxy waits for.
fn waits_for(pid: u32, missing: &[&str], since: SystemTime) -> String {
    let (missing, since) = (missing.join(", "), to_the_second(since));
    format!(
        "kube-proxy (pid {pid}) waits for {missing} of the API server since {since}: it changes no rule before that"
    )
}

/// Gives the metrics what happens on the connections to the API server, records in the history when the server is lost and found, and has
/// the health pages show that the server is lost and what the source waits for.
struct ApiObserver {
    config: Config,
    metrics: Metrics,
    health: Reporter,
    changes: History,
    /// The kinds of objects whose watch fails at present.
    lost: Mutex<BTreeSet<&'static str>>,
    /// The id of this process.
    pid: u32,
    /// When the source was started.
    since: SystemTime,
    /// The version that the API server reported last.
    server: Mutex<String>,
}

impl ApiObserver {
    /// Notes that the server is lost when the first kind fails, and found when the last failed kind works again.
    fn tell(&self, kind: &'static str, error: Option<String>, lasted: Option<Duration>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let were_served = lost.is_empty();
        let (is_news, state) = match &error {
            Some(_) => (lost.insert(kind) && were_served, Connection::Lost),
            None => (lost.remove(kind) && lost.is_empty(), Connection::Found),
        };
        if is_news {
            let lost = error
                .is_some()
                .then(|| Problem::of_node(ProblemKind::ApiServerLost, not_heard_since(SystemTime::now())));
            self.health.api_server(lost);
            let server =
                ApiServer { state, resource: kind.to_owned(), error: error.map(inspect::history::cut), lasted };
            self.changes.push(SystemTime::now(), None, EntryKind::ApiServer(server));
        }
    }
}

impl api::Observer for ApiObserver {
    fn connected(&self, kind: &'static str, is: bool) {
        self.metrics.source_connected(kind, is);
        if !is {
            self.health.disconnected(kind);
        }
    }

    fn answered(&self, request: api::Answered<'_>) {
        self.metrics.api_request("GET", request.url, request.code, request.took);
        if let Some(bytes) = request.bytes {
            self.metrics.api_answer_size(request.url, bytes);
        }
    }

    fn received(&self, kind: &'static str, at: SystemTime) {
        self.metrics.source_received(kind, at);
        self.health.received(kind, Instant::now(), at);
    }

    fn lost(&self, kind: &'static str, why: &str) {
        self.tell(kind, Some(why.to_owned()), None);
    }

    fn reconnected(&self, kind: &'static str, lasted: Duration) {
        self.metrics.source_reconnected(kind);
        self.tell(kind, None, Some(lasted));
    }

    fn rejected(&self, kind: &'static str) {
        self.metrics.object_rejected(kind);
    }

    fn waiting_for(&self, missing: &[&str]) {
        let waits = || Problem::of_node(ProblemKind::Waiting, waits_for(self.pid, missing, self.since));
        self.health.waits((!missing.is_empty()).then(waits));
        self.health.not_ready(match missing {
            [] => "the first sync has not been done".to_owned(),
            _ => format!("waiting for the API server, which has not given {} yet", missing.join(", ")),
        });
    }

    fn server_version(&self, version: &str) {
        let mut known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == version {
            return;
        }
        version.clone_into(&mut known);
        report_version(&self.metrics, self.config.version_for(version).unwrap_or_else(|| self.config.version.clone()));
        if let Some(why) = config::outside(version) {
            warn!(reason = why, "This kube-proxy is not made for the release of the cluster");
        }
    }
}

//! Starts the HTTP servers, and connects them with the configuration, the metrics and the Kubernetes events.
//!
//! Takes a [`Config`] and the number of file descriptors that the process may have open; returns the [`Reporter`] of the health servers.

use std::io;
use std::sync::Arc;

use crate::health::{self, ListenFailure, Observer, Page, Reporter};
use crate::history::History;
use crate::metrics::server::questions::Asker;
use crate::metrics::server::{self, Pages, Versions};
use crate::metrics::{Build, Metrics};
use cluster::events::{Recorder, ReportedEvent};
use component::config::{Config, KUBERNETES_MINOR, Stage, major_and_minor};
use component::http::{self, ConnectionLimit};
use component::logging::{self, Verbosity};
use component::supervise::Supervisor;
use node::kernel::ConntrackLoad;

/// File descriptors that are kept free for everything but servers: manifests, netlink sockets, connections to the API server, and files
/// below `/proc`.
const OTHER_FILES: usize = 128;
/// The most connections to the metrics server. There are few, because each may have a whole page in memory.
const METRICS_CONNECTIONS: usize = 64;
/// The most connections to all health servers together. It is above a thousand, so that a thousand idle clients do not make the server
/// close another client's connection.
const HEALTH_CONNECTIONS: usize = 1_536;

/// Checks before the first rule is written whether the servers can listen, if a failure is to end the process (O8).
///
/// # Errors
/// The first failure, with the Kubernetes event that reports it.
pub(super) fn check_ports(config: &Config) -> Result<(), (ReportedEvent, io::Error)> {
    if !config.bind_address_hard_fail {
        return Ok(());
    }
    let failed = |event: fn(String) -> ReportedEvent| move |error: io::Error| (event(error.to_string()), error);
    http::check("metrics", config.metrics_bind_address).map_err(failed(ReportedEvent::MetricsFailed))?;
    let healthz = config.healthz_bind_address.map_or(Ok(()), |address| http::check("healthz", address));
    healthz.map_err(failed(ReportedEvent::HealthzFailed))
}

/// Makes the metrics of this process, with the version, the feature gates and the number of log lines that were dropped.
pub(super) fn metrics(config: &Config) -> Metrics {
    let metrics = Metrics::with_conntrack(ConntrackLoad::read);
    report_version(&metrics, config.version.clone());
    for feature in &config.features {
        let stage = match feature.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Deprecated => "DEPRECATED",
            Stage::Stable => "",
        };
        metrics.feature_enabled(feature.name, stage, feature.enabled);
    }
    let counter = metrics.clone();
    logging::count_dropped(move |lines| counter.log_lines_dropped(lines));
    metrics
}

/// Has the metrics report a version, in place of the one before.
pub(super) fn report_version(metrics: &Metrics, version: String) {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        _ => "unknown",
    };
    let (major, minor) = major_and_minor(&version);
    metrics.build_info(Build { major, minor, git_version: version, platform: format!("linux/{architecture}") });
}

/// References that starting the servers needs.
pub(super) struct Servers<'a> {
    pub(super) config: &'a Config,
    pub(super) metrics: &'a Metrics,
    pub(super) recorder: &'a Recorder,
    pub(super) supervisor: &'a Supervisor,
}

impl Servers<'_> {
    /// Starts all servers. The metrics server may use a file descriptor for its listener and [`METRICS_CONNECTIONS`] for connections; the
    /// health servers may use what is left of `open_files` without these and [`OTHER_FILES`].
    pub(super) fn start(&self, verbosity: Verbosity, changes: History, causes: Asker, open_files: u64) -> Reporter {
        // The file descriptors of the metrics server: its connections and its listener.
        let metrics = METRICS_CONNECTIONS + 1;
        let health = usize::try_from(open_files).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES + metrics);
        let pages = pages(self.config, verbosity, changes, causes);
        self.serve_metrics(pages, ConnectionLimit::new(METRICS_CONNECTIONS, metrics));
        self.serve_health(ConnectionLimit::new(HEALTH_CONNECTIONS, health))
    }

    /// Serves the metrics and the other pages of the same server, such as `/configz`.
    fn serve_metrics(&self, pages: Pages, connections: ConnectionLimit) {
        let (address, hard_fail) = (self.config.metrics_bind_address, self.config.bind_address_hard_fail);
        let listen = server::Listen { address, hard_fail, connections };
        let run = server::run(listen, self.metrics.clone(), pages);
        let recorder = self.recorder.clone();
        self.supervisor.task(async move {
            Ok(run.await.inspect_err(|error| recorder.record(ReportedEvent::MetricsFailed(error.to_string())))?)
        });
    }

    /// Serves the health of the proxy and of the Services. The proxy is unhealthy when a requested sync has not been done after two sync
    /// periods (L3).
    fn serve_health(&self, connections: ConnectionLimit) -> Reporter {
        let (reporter, servers) = health::new(self.config.sync_period * 2);
        let hard_fail = self.config.bind_address_hard_fail;
        let listen = health::Listen { healthz: self.config.healthz_bind_address, hard_fail, connections };
        let observer = HealthObserver { metrics: self.metrics.clone(), recorder: self.recorder.clone() };
        let (run, recorder) = (servers.run(listen, Arc::new(observer)), self.recorder.clone());
        self.supervisor.task(async move {
            Ok(run.await.inspect_err(|error| recorder.record(ReportedEvent::HealthzFailed(error.to_string())))?)
        });
        reporter
    }
}

/// Makes the contents of the metrics server's pages.
fn pages(config: &Config, verbosity: Verbosity, changes: History, causes: Asker) -> Pages {
    let binary = config.version.trim_start_matches('v').to_owned();
    let versions = Versions { binary, emulation: format!("1.{KUBERNETES_MINOR}") };
    Pages {
        configz: config.configz.clone(),
        flagz: config.flagz.then(|| config.flags.clone()),
        statusz: config.statusz.then_some(versions),
        changes,
        causes,
        debug: config.profiling.then(|| Arc::new(move |level| verbosity.set(level)) as server::SetVerbosity),
    }
}

/// Counts the responses about the proxy's health, and records a failure to listen on a health-check node port as a Kubernetes event.
struct HealthObserver {
    metrics: Metrics,
    recorder: Recorder,
}

impl Observer for HealthObserver {
    fn answered(&self, page: Page, code: u16) {
        match page {
            Page::Healthz => self.metrics.healthz(code),
            Page::Livez => self.metrics.livez(code),
            Page::Readyz => self.metrics.readyz(code),
        }
    }

    fn listen_failed(&self, failure: &ListenFailure) {
        self.recorder.record(event(failure));
    }
}

/// Returns the Kubernetes event about a health-check node port that the process cannot listen on (K4).
fn event(failure: &ListenFailure) -> ReportedEvent {
    let ListenFailure { service, address, error } = failure;
    let error = format!("{error} ({address})");
    ReportedEvent::ServiceHealthCheckFailed { service: service.clone(), port: address.port(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rules::model::ObjectName;

    // A failure to listen for a Service's health checks is reported as a Kubernetes event of that Service (K4).
    #[test]
    fn a_listener_that_fails_is_an_event_of_its_service() {
        let service = ObjectName::new("ns", "web");
        let error = io::Error::other("taken");
        let address = "192.0.2.1:31000".parse().unwrap();
        let failure = ListenFailure { service: service.clone(), address, error };
        let error = "taken (192.0.2.1:31000)".to_owned();
        let expected = ReportedEvent::ServiceHealthCheckFailed { service, port: 31000, error };
        assert_eq!(event(&failure), expected);
    }
}

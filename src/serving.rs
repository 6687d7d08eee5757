//! Joins what the HTTP servers know nothing of: the configuration and the log to the pages, the health servers to the metrics and
//! to the events.
//!
//! Takes a [`Config`]; gives the values that `metrics` and `health` ask for.

use crate::config::Config;
use crate::events::{Happening, Recorder};
use crate::health::{ListenFailure, Observer, Page};
use crate::http::Places;
use crate::logging::Verbosity;
use crate::metrics::server::{Pages, SetVerbosity, Versions};
use crate::metrics::{Build, Metrics, Stage};

/// The Kubernetes release whose behaviour this program shows.
const KUBERNETES: (&str, &str) = ("1", "36");

/// The feature gates that are told in `kubernetes_feature_enabled`, with stage and default (surface.md section 9).
const FEATURES: [(&str, Stage, bool); 6] = [
    ("AllowServiceExternalIPs", Stage::Stable, true),
    (FLAGZ, Stage::Beta, true),
    (STATUSZ, Stage::Beta, true),
    ("MultiCIDRServiceAllocator", Stage::Stable, true),
    ("NativeHistograms", Stage::Alpha, false),
    ("PreferSameTrafficDistribution", Stage::Stable, true),
];

const FLAGZ: &str = "ComponentFlagz";
const STATUSZ: &str = "ComponentStatusz";

/// Whether a gate is on: as said by itself, else by the gate for all of its stage, else by default.
fn enabled(config: &Config, name: &str) -> bool {
    let gates = &config.file.feature_gates;
    let Some((_, stage, default)) = FEATURES.iter().find(|(known, ..)| *known == name) else { return false };
    let all = match stage {
        Stage::Alpha => gates.get("AllAlpha"),
        Stage::Beta => gates.get("AllBeta"),
        Stage::Stable => None,
    };
    gates.get(name).or(all).copied().unwrap_or(*default)
}

/// Descriptors that no server takes: for manifests, netlink sockets, connections to the API server, and what is read below `/proc`.
const OWN: usize = 128;
/// Connections to the metrics server; each may keep an answer of some 100 KB waiting.
const SCRAPERS: usize = 64;
/// Connections to the health servers together; each takes at most some 10 KB. More than a thousand, so that so many idle clients
/// cost nobody a place.
const PROBERS: usize = 1_536;

/// The places of all connections to this process.
#[derive(Clone, Debug)]
pub struct Shares {
    /// For the metrics server.
    pub metrics: Places,
    /// For `/healthz`, `/livez` and `/readyz`, and for the health-check node ports.
    pub health: Places,
}

/// Shares the descriptors of a process that may have so many of them (RLIMIT_NOFILE) among the servers.
#[must_use]
pub fn places(open_files: u64) -> Shares {
    // The server that listens is one more.
    let metrics = SCRAPERS + 1;
    let health = usize::try_from(open_files).unwrap_or(usize::MAX).saturating_sub(OWN + metrics);
    Shares { metrics: Places::new(SCRAPERS, metrics), health: Places::new(PROBERS, health) }
}

/// The pages of the metrics server. `configz` is the body of `/configz`, `flagz` every flag with its value.
#[must_use]
pub fn pages(config: &Config, configz: String, flagz: Vec<(String, String)>, verbosity: Verbosity) -> Pages {
    let (major, minor) = KUBERNETES;
    let versions =
        Versions { binary: config.version.trim_start_matches('v').to_owned(), emulation: format!("{major}.{minor}") };
    let set: SetVerbosity = std::sync::Arc::new(move |level| verbosity.set(level));
    Pages {
        configz,
        flagz: enabled(config, FLAGZ).then_some(flagz),
        statusz: enabled(config, STATUSZ).then_some(versions),
        debug: config.file.enable_profiling.then_some(set),
    }
}

/// Tells the metrics what is running: `kubernetes_build_info` and `kubernetes_feature_enabled`.
pub fn describe(config: &Config, metrics: &Metrics) {
    let (major, minor) = KUBERNETES;
    let architecture = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "unknown"
    };
    metrics.build_info(Build {
        major: major.to_owned(),
        minor: minor.to_owned(),
        git_version: config.version.clone(),
        platform: format!("linux/{architecture}"),
    });
    for (name, stage, _) in FEATURES {
        metrics.feature_enabled(name, stage, enabled(config, name));
    }
}

/// Counts what the health servers answer, and reports where they cannot listen.
#[derive(Debug)]
pub struct HealthWatch {
    /// Where answers are counted.
    pub metrics: Metrics,
    /// Where failures are reported (K4); nowhere without an API server. They are in the log in any case.
    pub events: Option<Recorder>,
}

impl Observer for HealthWatch {
    fn answered(&self, page: Page, code: u16) {
        match page {
            Page::Healthz => self.metrics.healthz(code),
            Page::Livez => self.metrics.livez(code),
            Page::Readyz => self.metrics.readyz(code),
        }
    }

    fn listen_failed(&self, failure: &ListenFailure) {
        let Some(events) = &self.events else { return };
        events.record(happening(failure));
    }
}

fn happening(failure: &ListenFailure) -> Happening {
    let ListenFailure { service, port, error, .. } = failure;
    Happening::ServiceHealthCheckFailed { service: service.clone(), port: *port, error: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Invocation};
    use crate::model::{Family, ObjectName};

    /// A configuration with these gates, as the command line and a file would give it.
    fn config(gates: &[(&str, bool)]) -> Config {
        let arguments = ["kube-proxy", "--hostname-override", "here", "--manifests", "/m"];
        let Ok(Invocation::Run(mut config)) = config::load(arguments.map(Into::into)) else {
            panic!("no configuration")
        };
        config.file.feature_gates = gates.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
        config
    }

    // surface.md section 9
    #[test]
    fn a_gate_goes_before_the_gate_of_its_stage_and_that_before_the_default() {
        assert!(enabled(&config(&[]), FLAGZ) && !enabled(&config(&[]), "NativeHistograms"));
        assert!(!enabled(&config(&[("AllBeta", false)]), FLAGZ));
        assert!(enabled(&config(&[("AllBeta", false), (FLAGZ, true)]), FLAGZ));
        assert!(enabled(&config(&[("AllAlpha", true)]), "NativeHistograms"));
        assert!(enabled(&config(&[("AllAlpha", false), ("AllBeta", false)]), "AllowServiceExternalIPs"));
    }

    // K4
    #[test]
    fn a_listener_that_fails_is_an_event_of_its_service() {
        let service = ObjectName::new("ns", "web");
        let error = std::io::Error::other("taken");
        let failure = ListenFailure { service: service.clone(), family: Family::V4, port: 31000, error };
        let expected = Happening::ServiceHealthCheckFailed { service, port: 31000, error: "taken".to_owned() };
        assert_eq!(happening(&failure), expected);
    }
}

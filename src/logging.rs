//! Logs: to standard error, as text or JSON, at Kubernetes' verbosity.
//!
//! `RUST_LOG` takes the place of the verbosity where it is set, until the verbosity is changed at run time.

use std::fmt;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt as lines};

use crate::config::{LogFormat, LoggingConfig};

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

/// Starts logging. Later calls change nothing, and what they give has no effect.
pub fn init(config: &LoggingConfig) -> Verbosity {
    let from_environment = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let (filter, handle) = reload::Layer::new(from_environment.unwrap_or_else(|| filter(config.verbosity)));
    let lines = lines::layer().with_writer(std::io::stderr);
    let log = tracing_subscriber::registry().with(filter);
    let started = match config.format {
        LogFormat::Text => log.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => log.with(lines.json()).try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logging was started before");
    }
    Verbosity(handle)
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
        use tracing::Level;
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

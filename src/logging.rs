//! Logs: to standard error, as text or JSON, at Kubernetes' verbosity.
//!
//! `RUST_LOG` takes the place of the verbosity where it is set.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LoggingConfig};

/// Starts logging. Later calls change nothing.
pub fn init(config: &LoggingConfig) {
    let level = level(config.verbosity);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::default().add_directive(level.into()));
    let builder = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
    let started = match config.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(error, "logging was started before");
    }
}

/// Errors, warnings and milestones always; syncs from 2 on; everything from 6 on.
fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=1 => LevelFilter::INFO,
        2..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosity_as_levels() {
        assert_eq!([0, 1, 2, 5, 6, 10].map(level), {
            use LevelFilter as L;
            [L::INFO, L::INFO, L::DEBUG, L::DEBUG, L::TRACE, L::TRACE]
        });
    }
}

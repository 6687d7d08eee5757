//! Logs: to standard error, as text or JSON, at Kubernetes' verbosity.
//!
//! `RUST_LOG` takes the place of the verbosity where it is set, until the verbosity is changed at run time.

use std::fmt;
use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, reload};

use crate::config::{LogFormat, LoggingConfig};

/// Changes the verbosity of a log that is running.
#[derive(Clone)]
pub struct Verbosity(Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>);

impl Verbosity {
    /// Sets it, for all threads at once.
    ///
    /// # Errors
    /// When the log is not there any more, with the reason.
    pub fn set(&self, verbosity: u32) -> Result<(), String> {
        (self.0)(filter(verbosity)).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbosity")
    }
}

/// Starts logging. Later calls change nothing, and what they give has no effect.
pub fn init(config: &LoggingConfig) -> Verbosity {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| filter(config.verbosity));
    let builder = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
    let (started, verbosity) = match config.format {
        LogFormat::Text => {
            let builder = builder.with_ansi(false).with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Verbosity(Arc::new(move |filter| handle.reload(filter))))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Verbosity(Arc::new(move |filter| handle.reload(filter))))
        }
    };
    if let Err(error) = started {
        tracing::debug!(error, "logging was started before");
    }
    verbosity
}

fn filter(verbosity: u32) -> EnvFilter {
    EnvFilter::default().add_directive(level(verbosity).into())
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
    fn verbosity_as_levels() {
        assert_eq!([0, 1, 3, 4, 5, 6, 10].map(level), {
            use LevelFilter as L;
            [L::INFO, L::INFO, L::INFO, L::DEBUG, L::DEBUG, L::TRACE, L::TRACE]
        });
    }
}

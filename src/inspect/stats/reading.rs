//! What the kernel's tables and its list of connections had at one moment.
//!
//! [`Reading::take`] reads; the pages take a reading as a value. A reading serves all requests for [`FRESH`], and longer when reading took
//! long, so that readings take at most a tenth of the time, however many clients ask. Only after an error the next request reads again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::running::{Running, RunningArgs};
use crate::services::Listing;
use crate::services::stats::Stats;

/// How long a reading serves at least.
pub(super) const FRESH: Duration = Duration::from_secs(2);
/// A reading serves at least this many times as long as it took.
const TIMES: u32 = 10;

/// What the tables had, and the numbers of connections, at one moment.
pub(super) struct Reading {
    pub(super) listing: Listing,
    pub(super) stats: Stats,
    /// Where the metrics server of the running proxy is.
    pub(super) metrics: SocketAddr,
    taken: Instant,
    took: Duration,
}

impl Reading {
    /// Reads the tables and lists the connections. `stats` has the connections of the previous reading, for rates; `metrics` is where the user
    /// says that the metrics server of the proxy is.
    ///
    /// # Errors
    /// When the kernel does not list its tables or connections, or has no tables of the proxy.
    pub(super) fn take(mut stats: Stats, running: RunningArgs, metrics: Option<SocketAddr>) -> Result<Self> {
        let (start, proxy) = (Instant::now(), Running::find());
        let listing = Listing::all(&proxy, running)?;
        stats.count(&listing.view)?;
        let metrics = metrics.unwrap_or_else(|| proxy.metrics());
        Ok(Self { listing, stats, metrics, taken: Instant::now(), took: start.elapsed() })
    }

    /// The time since it was taken.
    pub(super) fn elapsed(&self) -> Duration {
        self.taken.elapsed()
    }

    /// A reading that was just taken.
    #[cfg(test)]
    pub(super) fn testing(listing: Listing, took: Duration) -> Self {
        Self { listing, stats: Stats::default(), metrics: crate::running::METRICS, taken: Instant::now(), took }
    }

    /// Whether it still serves.
    pub(super) fn is_fresh(&self) -> bool {
        self.taken.elapsed() < FRESH.max(self.took * TIMES)
    }

    /// In words, how old it is.
    pub(super) fn age(&self) -> String {
        let (age, took) = (self.taken.elapsed().as_secs_f32(), self.took.as_millis());
        format!("Read from the kernel {age:.0} s ago, in {took} ms")
    }
}

//! What the kernel's tables and its list of connections had at one moment.
//!
//! [`Reading::take`] reads; the pages take a reading as a value. A reading serves all requests for [`FRESH`], and longer when reading took
//! long, so that readings take at most a tenth of the time, however many clients ask. The error of one that failed serves as long.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::running::{Running, RunningArgs};
use crate::services::Listing;
use crate::services::stats::Stats;

/// How long a reading serves at least.
pub(super) const FRESH: Duration = Duration::from_secs(2);
/// Rates are averages since the previous reading. If that is older than this, there are none.
const RATES_WITHIN: Duration = Duration::from_secs(60);
/// A reading serves at least this many times as long as it took.
const TIMES: u32 = 10;

/// What the tables had, and the numbers of connections, at one moment.
pub(super) struct Reading {
    pub(super) listing: Listing,
    pub(super) stats: Stats,
    /// Where the metrics server of the running proxy is.
    pub(super) metrics: SocketAddr,
    age: Age,
}

/// When something was read, and how long that took.
#[derive(Clone, Copy)]
struct Age {
    taken: Instant,
    took: Duration,
}

impl Age {
    /// The age of what was read from `start` until now.
    fn since(start: Instant) -> Self {
        Self { taken: Instant::now(), took: start.elapsed() }
    }

    /// Whether what was read still serves.
    fn is_fresh(self) -> bool {
        self.taken.elapsed() < FRESH.max(self.took * TIMES)
    }
}

/// The latest reading, or why it failed; made by one request at a time.
#[derive(Default)]
pub(super) struct Latest(Mutex<Option<Result<Reading, (String, Age)>>>);

impl Latest {
    /// Calls `work` with a fresh reading. If the latest one, or its error, is old, `read` takes one; it gets the connections of the one
    /// before, for rates.
    ///
    /// # Errors
    /// That of `read`, also when it failed a short time ago.
    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(Stats) -> Result<Reading>,
        work: impl FnOnce(&Reading) -> T,
    ) -> Result<T> {
        // A thread that panicked leaves either nothing or a whole result.
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |latest: &Result<Reading, (String, Age)>| match latest {
            Ok(reading) => reading.age.is_fresh(),
            Err((_, age)) => age.is_fresh(),
        };
        if !latest.as_ref().is_some_and(is_fresh) {
            let before = latest.take().and_then(Result::ok).filter(|before| before.age.taken.elapsed() < RATES_WITHIN);
            let stats = before.map_or_else(Stats::default, |before| before.stats);
            let start = Instant::now();
            *latest = Some(read(stats).map_err(|error| (format!("{error:#}"), Age::since(start))));
        }
        match latest.as_ref() {
            Some(Ok(reading)) => Ok(work(reading)),
            Some(Err((error, _))) => bail!("{error}"),
            None => bail!("cannot read the tables"),
        }
    }
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
        Ok(Self { listing, stats, metrics, age: Age::since(start) })
    }

    /// A reading that was just taken.
    #[cfg(test)]
    pub(super) fn testing(listing: Listing, took: Duration) -> Self {
        let age = Age { taken: Instant::now(), took };
        Self { listing, stats: Stats::default(), metrics: crate::running::METRICS, age }
    }

    /// In words, how old it is.
    pub(super) fn age(&self) -> String {
        let (age, took) = (self.age.taken.elapsed().as_secs_f32(), self.age.took.as_millis());
        format!("Read from the kernel {age:.0} s ago, in {took} ms")
    }
}

//! Chooses the number of maps that share the endpoints, unless `nftables.endpointMaps` sets it, and raises it when the table has outgrown
//! it (F10).
//!
//! The first sync reads the tables before it plans. If the kernel holds tables with maps of endpoints, their number of maps is kept if it
//! is one of the [`Steps`] and large enough; otherwise their elements decide. Without such tables, the endpoints of all Services decide.
//! Later the number only grows, in a separate transaction after a sync. The previous records are kept until the kernel has committed that
//! transaction, and are restored if the transaction fails.

use std::time::{Duration, Instant};

use nft::{Command, ReadError, TableDump};
use tracing::{info, warn};

use super::commit::Failed;
use super::{Engine, Report};
use crate::sync::failure::SyncError;
use crate::sync::tables::{Before, Transactions};
use component::config::Config;
use component::logging::duration;
use node::kernel::Kernel;
use rules::ruleset::map_steps::{self, Steps};

/// The least time from a split that failed to the next try.
const RETRY: Duration = Duration::from_secs(3600);

/// Whether and how the number of maps is chosen.
#[derive(Debug)]
pub(super) struct MapChoice {
    /// The steps in which the number grows; `None` if the configuration has a number.
    steps: Option<Steps>,
    /// Whether the number was chosen.
    is_made: bool,
    /// When a split may be tried, after one that failed.
    not_before: Option<Instant>,
}

impl MapChoice {
    pub(super) fn new(config: &Config) -> Self {
        let steps = config.endpoint_maps.is_none().then(Steps::default);
        Self { steps, is_made: steps.is_none(), not_before: None }
    }
}

impl<K: Kernel> Engine<K> {
    /// Sets other steps in which the number of maps grows, if the configuration has no number.
    #[must_use]
    pub fn with_map_steps(mut self, steps: Steps) -> Self {
        self.maps.steps = self.maps.steps.map(|_| steps);
        self
    }

    /// Returns whether this program chooses the number of maps.
    pub(crate) const fn chooses_maps(&self) -> bool {
        self.maps.steps.is_some()
    }

    /// Reads the tables, if the number of maps is still to be chosen.
    pub(super) fn read_for_maps(&mut self) -> Result<(), ReadError> {
        if self.maps.is_made || self.tables.known() {
            return Ok(());
        }
        self.kernel.reading();
        self.tables.read_back(&mut self.kernel)
    }

    /// Chooses the number of maps, once: by the tables that were read, or else by the endpoints of all Services.
    pub(super) fn choose_maps(&mut self) {
        let Some(steps) = self.maps.steps.filter(|_| !self.maps.is_made) else { return };
        let maps = match self.tables.found_maps() {
            Some((found, elements)) => steps.choose(Some(found), elements),
            None => {
                let (layout, balancing) = (self.tables.layout(), self.tables.balancing());
                steps.for_state(&self.state, layout, balancing, self.budget.limit())
            }
        };
        self.maps.is_made = true;
        if maps != self.tables.maps() {
            self.tables.set_maps(maps);
        }
    }

    /// Takes over the number of maps of tables that were read, so that a comparison with these tables finds no difference in that number.
    pub(super) fn adopt_maps(&mut self, dumps: &[Option<TableDump>]) {
        if !self.chooses_maps() {
            return;
        }
        let Some(found) = dumps.iter().flatten().filter_map(map_steps::found_in).max() else { return };
        self.maps.is_made = true;
        if found != self.tables.maps() {
            self.tables.set_maps(found);
        }
    }

    /// Splits the maps of endpoints after a sync that committed something, if a table has outgrown their number. Does nothing while the
    /// kernel refuses a Service: its old rules may be in force, and cannot be planned again for another number of maps. When a split fails,
    /// the rules stay as they are, and the next try is at least an hour later.
    pub(super) fn split_maps(&mut self, report: &mut Report) {
        let now = Instant::now();
        let is_time = self.maps.not_before.is_none_or(|time| time <= now) && self.quarantine.names().len() == 0;
        let Some(steps) = self.maps.steps.filter(|_| is_time && report.committed.is_some()) else { return };
        let (before, elements) = (self.tables.maps(), self.tables.largest_map());
        let maps = steps.choose(Some(before), elements);
        if maps == before {
            return;
        }
        let tables = self.tables.set_maps(maps);
        self.plan_others(&[]);
        self.tables.take_outdated();
        report.timing.computing += now.elapsed();
        match self.commit_split(report) {
            Ok(()) => {
                let elapsed = duration(now.elapsed());
                info!(before, maps, elements, %elapsed, "Split the maps of endpoints, because the table has grown");
            }
            Err(failed) => self.keep_maps(tables, &failed.into(), now),
        }
    }

    /// Reads the tables and commits the difference to the present records, in one transaction, and the deletion of the maps of before in a
    /// second one.
    fn commit_split(&mut self, report: &mut Report) -> Result<(), Failed> {
        let start = Instant::now();
        self.kernel.reading();
        self.tables.read_back(&mut self.kernel)?;
        let read = Instant::now();
        let Transactions { parts, later } = self.tables.transactions(false);
        let mut commands: Vec<Command> = parts.into_iter().flatten().collect();
        let computed = Instant::now();
        let result = self.kernel.commit(&commands);
        report.timing.reading += read - start;
        report.timing.computing += computed - read;
        report.kernel_time += computed.elapsed();
        match result {
            Ok(committed) => report.add_committed(committed),
            Err(error) => return Err(Failed::Commit(error, commands)),
        }
        self.commit_later(&later, report)?;
        commands.extend(later);
        self.tables.committed(&commands, Instant::now());
        Ok(())
    }

    fn keep_maps(&mut self, before: Before, error: &SyncError, now: Instant) {
        warn!(err = %error, "Cannot split the maps of endpoints; trying again in an hour");
        self.tables.restore(before);
        self.maps.not_before = Some(now + RETRY);
    }
}

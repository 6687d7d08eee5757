//! The threads that write to the kernel: the sync loop, its clean-up after the first sync, and the fast path.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tracing::warn;

use super::node_check;
use crate::changes::Changes;
use crate::config::{Config, Counters, Flowtable};
use crate::counters;
use crate::events::{Recorder, ReportedEvent};
use crate::fastpath::{self, Outcome, Reconciler};
use crate::health::Reporter;
use crate::kernel::leftovers::CleanUp;
use crate::kernel::{Flowtables, Held, Lock, Netfilter, Wake, families};
use crate::localhost::Feed;
use crate::logging::once::Once;
use crate::metrics::Metrics;
use crate::model::{Event, Node};
use crate::ruleset;
use crate::supervise::Supervisor;
use crate::sync::{Chore, Engine, LostClaims, RefusedService, Schedule, Sync};

/// Time from a failed clean-up to the next; doubles with each failure.
const CLEAN_UP_RETRY: Duration = Duration::from_secs(60);
const MAX_CLEAN_UP_RETRY: Duration = Duration::from_secs(3600);

/// What the sync loop needs.
pub(super) struct SyncLoop {
    pub(super) config: Config,
    pub(super) lock: Lock,
    pub(super) metrics: Metrics,
    pub(super) reporter: Reporter,
    /// What the loop does, for those who ask later.
    pub(super) changes: Changes,
    pub(super) recorder: Recorder,
    /// Starts the fast path, if there is one, when it is sent something.
    pub(super) first_sync: Option<SyncSender<()>>,
    /// Wakes the loop when another program wrote to nf_tables.
    pub(super) wake: Wake,
    /// Where the node ports for loopback addresses go, if they are served.
    pub(super) localhost: Option<Feed>,
}

impl SyncLoop {
    /// Runs until there are no more events. Opens the netlink sockets, which have to stay on this thread.
    ///
    /// # Errors
    /// When a socket cannot be opened, and when the node cannot be served at all.
    pub(super) fn run(self, events: &Receiver<Event>) -> Result<()> {
        let Self { config, lock, metrics, reporter, changes, recorder, first_sync, wake, localhost } = self;
        let fast_path = first_sync.is_some().then(ruleset::fastpath::table);
        let kernel = Netfilter::open().context("netfilter netlink socket")?;
        let kernel = kernel.with_fast_path(fast_path).waking(wake).with_lock(lock);
        let families = families::supported();
        let schedule = Schedule::new(config.min_sync_period, config.sync_period);
        let engine = Engine::new(config.clone(), super::layout(&config), &families, kernel).with_localhost(localhost);
        let check_node = Box::new(move |node: &Node| {
            node_check::check(&config, &families, node)?
                .iter()
                .for_each(|reason| warn!(reason, "The Node does not fit the configuration"));
            Ok(())
        });
        let record = |recorder: &Recorder| {
            let recorder = recorder.clone();
            move |event| recorder.record(event)
        };
        let (refused, lost, another) = (record(&recorder), record(&recorder), record(&recorder));
        Sync::new(engine, schedule, metrics, reporter, check_node)
            .telling(changes)
            .on_refused_service(Box::new(move |RefusedService { service, reason }| {
                refused(ReportedEvent::ServiceNotProgrammed { service, error: reason });
            }))
            .on_lost_claims(Box::new(move |LostClaims { service, reason }| {
                lost(ReportedEvent::FrontNotProgrammed { service, reason });
            }))
            .on_other_proxy(Box::new(move || another(ReportedEvent::AnotherProxy)))
            .after_first_sync(after_first_sync(first_sync))
            .run(events)
    }
}

/// The work after the first sync: starts the fast path, if there is one, and removes the rules of other modes, one table in each call. A
/// failed removal is tried again after an interval that doubles.
fn after_first_sync(mut fast_path: Option<SyncSender<()>>) -> Chore {
    let mut clean_up = CleanUp::of_other_modes(fast_path.is_none());
    let mut retry_after = CLEAN_UP_RETRY;
    Box::new(move || {
        if let Some(first_sync) = fast_path.take() {
            // The thread of the fast path waits for this until the process ends.
            let _ = first_sync.try_send(());
        }
        if let Some(report) = clean_up.step() {
            report.log(Some(retry_after));
            return Some(Duration::ZERO);
        }
        let next = clean_up.retry().then_some(retry_after);
        retry_after = (retry_after * 2).min(MAX_CLEAN_UP_RETRY);
        next
    })
}

/// Starts the thread that shows what the rules count, if they do. It ends with the process.
pub(super) fn spawn_counters(config: &Config, metrics: &Metrics, supervisor: &Supervisor) -> Result<()> {
    if config.counters == Counters::Off {
        return Ok(());
    }
    let (metrics, limit, maps) = (metrics.clone(), config.metrics_services_limit, config.endpoint_maps);
    let body = move || {
        let reader = counters::Reader::open(metrics, limit, maps);
        let mut reader = reader.context("netfilter netlink socket of the counters")?;
        let mut failed = Once::default();
        loop {
            let next = reader.read();
            if let Some(error) = failed.new_error(&next) {
                warn!(err = error, "Cannot read the counters of the rules");
            }
            thread::sleep(next.unwrap_or(counters::INTERVAL));
        }
    };
    supervisor.thread("counters", "the counters' thread", body).context("thread of the counters")?;
    Ok(())
}

/// Starts the thread of the fast path, if it is configured. It begins when it is sent something, which is after the first sync. It ends
/// with the process; its table stays, as the rules do.
pub(super) fn spawn_fast_path(config: &Config, lock: Held, supervisor: &Supervisor) -> Result<Option<SyncSender<()>>> {
    let wanted = config.flowtable.clone();
    if wanted == Flowtable::Off {
        return Ok(None);
    }
    let (sender, first_sync) = sync_channel(1);
    let body = move || {
        if first_sync.recv().is_err() {
            return Ok(());
        }
        match Flowtables::open() {
            Ok(kernel) => {
                let mut reconciler = Reconciler::new(wanted, kernel);
                while !lock.get() || reconciler.reconcile() == Outcome::Done {
                    thread::sleep(fastpath::INTERVAL);
                }
            }
            Err(error) => warn!(err = %error, "No fast path: cannot open a netfilter netlink socket"),
        }
        Ok(())
    };
    supervisor.thread("fast-path", "the fast path's thread", body).context("thread of the fast path")?;
    Ok(Some(sender))
}

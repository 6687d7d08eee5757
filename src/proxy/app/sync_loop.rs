//! The threads that write to the kernel (the sync loop, with the removal of other modes' rules after the first sync, and the flowtable's
//! thread), and the thread that reads the counters of the rules.

use std::env;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tracing::warn;

use super::node_check;
use crate::health::Reporter;
use crate::history::History;
use crate::localhost::Feed;
use crate::metrics::Metrics;
use crate::metrics::server::questions::Questions;
use crate::sync::{CleanupStep, Engine, LostClaims, NotProgrammed, Schedule, Step, Sync};
use cluster::events::{Recorder, ReportedEvent};
use component::config::{Config, Counters, Flowtable};
use component::logging::once::Once;
use component::supervise::Supervisor;
use node::counters;
use node::flowtable::{self, Reconciler, Reconciliation};
use node::kernel::leftovers::CleanUp;
use node::kernel::{Flowtables, Held, Lock, Netfilter, OwnWrites, families};
use rules::model::{Event, Node};
use rules::ruleset::{self, map_steps::Steps};

/// Time from a failed removal of other modes' rules to the next try. It doubles with each failure, up to [`MAX_CLEAN_UP_RETRY`].
const CLEAN_UP_RETRY: Duration = Duration::from_secs(60);
const MAX_CLEAN_UP_RETRY: Duration = Duration::from_secs(3600);

/// An environment variable of this program: the seconds between two comparisons of all rules with the kernel's, so that tests need not last
/// for hours.
const COMPARE_SECONDS: &str = "KUBE_PROXY_NFT_COMPARE_SECONDS";

/// An environment variable of this program: the maps of endpoints are split when one would have more elements than this, so that tests need
/// not have more than 50,000 endpoints.
const SPLIT_ELEMENTS: &str = "KUBE_PROXY_NFT_SPLIT_ELEMENTS";

/// The values that the sync loop's thread takes over.
pub(super) struct SyncLoop {
    pub(super) config: Config,
    pub(super) lock: Lock,
    /// Removes the rules of other modes, after the first sync.
    pub(super) clean_up: CleanUp,
    pub(super) metrics: Metrics,
    pub(super) reporter: Reporter,
    /// The history of what the loop did, which `kube-proxy changes` shows.
    pub(super) changes: History,
    /// The questions of the metrics server's pages.
    pub(super) questions: Questions,
    pub(super) recorder: Recorder,
    /// A message to this channel lets the flowtable's thread begin its work; `None` without a flowtable.
    pub(super) first_sync: Option<SyncSender<()>>,
    /// The channel for the node ports on loopback addresses, if these are served.
    pub(super) localhost: Option<Feed>,
    /// The transactions of the flowtable's thread, so that the sync loop does not take them for writes of another program.
    pub(super) own_writes: OwnWrites,
    /// Wakes the loop.
    pub(super) wake: Waker,
}

/// Wakes the sync loop while its source of events runs.
#[derive(Clone)]
pub(super) struct Waker(Weak<SyncSender<Event>>);

impl Waker {
    /// Makes a waker that sends to the loop's queue for as long as `sender` exists: the loop ends when it has no sender any more.
    pub(super) fn new(sender: &Arc<SyncSender<Event>>) -> Self {
        Self(Arc::downgrade(sender))
    }

    pub(super) fn wake(&self) {
        if let Some(sender) = self.0.upgrade() {
            // Fails when the queue is full, and the loop has work, or when the loop has ended.
            let _ = sender.try_send(Event::Wake);
        }
    }
}

impl SyncLoop {
    /// Runs until there are no more events. Opens the netlink sockets, which belong to the network namespace of the calling thread.
    ///
    /// # Errors
    /// When a socket cannot be opened, and when the node cannot be served at all.
    pub(super) fn run(self, events: &Receiver<Event>) -> Result<()> {
        let Self {
            config,
            lock,
            clean_up,
            metrics,
            reporter,
            changes,
            questions,
            recorder,
            first_sync,
            localhost,
            own_writes,
            wake,
        } = self;
        let fast_path = first_sync.is_some().then(ruleset::flowtable::table);
        let kernel = Netfilter::open().context("cannot open the netfilter netlink socket")?;
        let kernel = kernel.with_fast_path(fast_path).watching_addresses(move || wake.wake());
        let kernel = kernel.with_lock(lock).with_own_writes(own_writes);
        let families = families::supported();
        let schedule = schedule(&config);
        let engine = Engine::new(config.clone(), super::layout(&config), &families, kernel)
            .with_localhost(localhost)
            .with_map_steps(map_steps());
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
        let [refused, lost, another, ephemeral] = [(); 4].map(|()| record(&recorder));
        Sync::new(engine, schedule, metrics, reporter, check_node)
            .telling(changes)
            .answering(questions)
            .on_not_programmed(Box::new(move |NotProgrammed { service, reason }| {
                refused(ReportedEvent::ServiceNotProgrammed { service, error: reason });
            }))
            .on_lost_claims(Box::new(move |LostClaims { service, reason }| {
                lost(ReportedEvent::FrontNotProgrammed { service, reason });
            }))
            .on_ephemeral_ports(Box::new(move |text| ephemeral(ReportedEvent::EphemeralNodePorts(text))))
            .on_other_proxy(Box::new(move || another(ReportedEvent::AnotherProxy)))
            .after_first_sync(after_first_sync(first_sync, clean_up))
            .run(events)
    }
}

/// Makes the schedule of syncs. The interval at which all rules are compared with those in the kernel is random for each process, so that
/// nodes that start together do not read their tables back at the same time. [`COMPARE_SECONDS`] sets it instead.
fn schedule(config: &Config) -> Schedule {
    let schedule = Schedule::new(config.min_sync_period, config.sync_period);
    match from_environment(COMPARE_SECONDS) {
        Some(seconds) => {
            warn!(
                variable = COMPARE_SECONDS,
                seconds, "Everything is compared this often, because the environment says so"
            );
            schedule.comparing_every(Duration::from_secs(seconds.get()))
        }
        None => schedule.with_jitter(chance()),
    }
}

/// Returns the steps in which the number of maps of endpoints grows; [`SPLIT_ELEMENTS`] changes them.
fn map_steps() -> Steps {
    let Some(elements) = from_environment(SPLIT_ELEMENTS) else { return Steps::default() };
    warn!(
        variable = SPLIT_ELEMENTS,
        elements, "The maps of endpoints are split from this many elements on, because the environment says so"
    );
    Steps::ending_at(usize::try_from(elements.get()).unwrap_or(usize::MAX))
}

fn from_environment(variable: &str) -> Option<NonZeroU64> {
    env::var(variable).ok()?.parse().ok()
}

/// Returns a random number from 0 to 1, which differs from process to process.
fn chance() -> f64 {
    let [first, second, third, fourth, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    f64::from(u32::from_ne_bytes([first, second, third, fourth])) / f64::from(u32::MAX)
}

/// Makes the function that the sync loop calls after the first sync: it lets the flowtable's thread begin, if there is one, and removes the
/// rules of other modes, one part in each call. Failed parts are tried again after an interval that doubles each time.
fn after_first_sync(mut fast_path: Option<SyncSender<()>>, mut clean_up: CleanUp) -> CleanupStep {
    let mut retry_after = CLEAN_UP_RETRY;
    Box::new(move || {
        if let Some(first_sync) = fast_path.take() {
            // Fails only if the flowtable's thread has ended.
            let _ = first_sync.try_send(());
        }
        if let Some(report) = clean_up.step() {
            report.log(Some(retry_after));
            return Step { again: Some(Duration::ZERO), removed: !report.removed.is_empty() };
        }
        let again = clean_up.retry().then_some(retry_after);
        retry_after = (retry_after * 2).min(MAX_CLEAN_UP_RETRY);
        Step { again, removed: false }
    })
}

/// Starts the thread that exports the counters of the rules as metrics, if the rules have counters. It runs until the process ends.
pub(super) fn spawn_counters(config: &Config, metrics: &Metrics, supervisor: &Supervisor) -> Result<()> {
    if config.counters == Counters::Off {
        return Ok(());
    }
    let of_endpoints = config.counters == Counters::Endpoints;
    let (metrics, limit) = (metrics.clone(), config.metrics_services_limit);
    let body = move || {
        let reader = counters::Reader::open(of_endpoints, limit);
        let mut reader = reader.context("cannot open the netfilter netlink socket of the counters")?;
        let mut failed = Once::default();
        loop {
            let reading = reader.read();
            if let Some(error) = failed.new_error(&reading) {
                warn!(err = error, "Cannot read the counters of the rules");
            }
            let (counted, next) = reading.unwrap_or((None, counters::INTERVAL));
            if let Some(counted) = counted {
                metrics.counted(counted);
            }
            thread::sleep(next);
        }
    };
    supervisor.thread("counters", body).context("cannot start the thread of the counters")?;
    Ok(())
}

/// Starts the flowtable's thread, if a flowtable is configured. The thread waits for a message on the returned channel, which is sent after
/// the first sync. The flowtable's nftables table stays in the kernel when the process ends, as the rules do.
pub(super) fn spawn_fast_path(
    config: &Config,
    lock: Held,
    own_writes: OwnWrites,
    supervisor: &Supervisor,
) -> Result<Option<SyncSender<()>>> {
    let wanted = config.flowtable.clone();
    if wanted == Flowtable::Off {
        return Ok(None);
    }
    let (sender, first_sync) = sync_channel(1);
    let body = move || {
        if first_sync.recv().is_err() {
            return Ok(());
        }
        match Flowtables::open(own_writes) {
            Ok(kernel) => {
                let mut reconciler = Reconciler::new(wanted, kernel);
                while !lock.get() || reconciler.reconcile() == Reconciliation::Done {
                    thread::sleep(flowtable::INTERVAL);
                }
            }
            Err(error) => warn!(err = %error, "No fast path: cannot open a netfilter netlink socket"),
        }
        Ok(())
    };
    supervisor.thread("fast-path", body).context("cannot start the thread of the fast path")?;
    Ok(Some(sender))
}

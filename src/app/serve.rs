//! The running proxy: servers, objects, syncs, and what ends it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::source::{Source, client};
use super::{ending, node};
use crate::config::file::Flowtable;
use crate::config::watch::Watcher;
use crate::config::{self, Config};
use crate::events::{self, Happening, Recorder};
use crate::fastpath::{self, Keeper, Look};
use crate::health::{self, Listen, Reporter};
use crate::http::{self, Places};
use crate::kernel::leftovers::CleanUp;
use crate::kernel::{Flowtables, Held, Lock, Netfilter, Wake, families};
use crate::logging::{self, Verbosity};
use crate::metrics::{self, Metrics};
use crate::model::{Event, Node};
use crate::ruleset;
use crate::serving::{self, HealthWatch};
use crate::source::api;
use crate::supervise::{self, Supervisor};
use crate::sync::{Chore, Culprit, Engine, LostClaims, Schedule, Sync};

/// Events on their way from the source to the sync loop; a source that is faster waits.
const EVENT_QUEUE: usize = 4096;
/// How long the last event of a process that ends may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long after a clean-up that failed the next one follows; each time twice as long.
const CLEAN_UP_AGAIN: Duration = Duration::from_secs(60);
const CLEAN_UP_AGAIN_AT_MOST: Duration = Duration::from_secs(3600);

/// Runs until a signal asks to end. `waits` says that another process holds the lock at the start.
///
/// # Errors
/// What ended it otherwise.
pub(super) async fn serve(
    mut config: Config,
    verbosity: Verbosity,
    open_files: u64,
    lock: Lock,
    waits: bool,
) -> Result<()> {
    // While another process holds the lock, it also has the ports: they come free when it ends, which is nothing to end for.
    config.file.bind_address_hard_fail &= !waits;
    let (supervisor, mut failures) = supervise::new();
    let asked_to_end = ending::on_signal(&supervisor)?;
    let (metrics, places) = (Metrics::new(), serving::places(open_files));
    serving::describe(&config, &metrics);
    let counter = metrics.clone();
    logging::count_dropped(move |lines| counter.log_lines_dropped(lines));
    let (recorder, publisher) = publish_events(&config, &supervisor)?;
    recorder.record(Happening::Starting);
    if let Err((happening, error)) = check_ports(&config) {
        recorder.record(happening);
        recorder.flush(LAST_WORDS).await;
        return Err(error.into());
    }
    serve_pages(&config, verbosity, &metrics, places.metrics, &recorder, &supervisor)?;
    let reporter = serve_health(&config, &metrics, places.health, &recorder, &supervisor);
    watch_config(&config, &supervisor)?;
    let (sender, events) = sync_channel(EVENT_QUEUE);
    let sender = Arc::new(sender);
    let mut source = Source::spawn(&config, SyncSender::clone(&sender), metrics.clone(), reporter.clone())?;
    let synced = spawn_fast_path(&config, lock.held(), &supervisor)?;
    let (teller, wake) = (recorder.clone(), waker(&sender));
    let body = move || sync(config, lock, metrics, reporter, teller, synced, wake, &events);
    let sync = supervisor.thread("sync", "the sync loop's thread", body)?;
    let failure = tokio::select! {
        Ok(()) = asked_to_end => None,
        error = failures.next() => Some(error),
        error = source.failed() => Some(error),
    };
    if let Some(error) = failure {
        recorder.flush(LAST_WORDS).await;
        return Err(error);
    }
    // Without its source the loop runs out of events and ends, without recorders the publisher.
    drop((source, sender, publisher.stop));
    ending::wait_for([("the sync loop", sync)].into_iter().chain(publisher.thread)).await?;
    info!("ended; the rules stay in force");
    Ok(())
}

/// What publishes events; nothing when there is no API server.
struct EventThread {
    /// Ends it when dropped.
    stop: oneshot::Sender<()>,
    thread: Option<(&'static str, JoinHandle<()>)>,
}

/// Publishes what is recorded, if there is an API server; the recorder is for everybody who has something to tell. It has a thread
/// of its own, because the way to the server may be long.
fn publish_events(config: &Config, supervisor: &Supervisor) -> Result<(Recorder, EventThread)> {
    let (recorder, publisher) = events::new(&config.node_name);
    let (stop, stopped) = oneshot::channel();
    if config.manifests.is_some() {
        return Ok((recorder, EventThread { stop, thread: None }));
    }
    let options = client(config);
    let runtime = Builder::new_current_thread().enable_all().build().context("runtime of the events")?;
    let body = move || {
        runtime.block_on(async {
            tokio::select! {
                () = publisher.run(async || api::client(&options).await) => {}
                _ = stopped => {}
            }
        });
        // Looking up a name may take long, and nobody needs it now.
        runtime.shutdown_background();
        Ok(())
    };
    let thread = supervisor.thread("events", "the events' thread", body).context("thread of the events")?;
    Ok((recorder, EventThread { stop, thread: Some(("the events' thread", thread)) }))
}

/// Whether the servers can listen that the process is to end for otherwise (O8): before the first rule is written.
fn check_ports(config: &Config) -> Result<(), (Happening, io::Error)> {
    if !config.file.bind_address_hard_fail {
        return Ok(());
    }
    let failed = |happening: fn(String) -> Happening| move |error: io::Error| (happening(error.to_string()), error);
    http::check("metrics", config.metrics_bind_address).map_err(failed(Happening::MetricsFailed))?;
    let healthz = config.healthz_bind_address.map_or(Ok(()), |address| http::check("healthz", address));
    healthz.map_err(failed(Happening::HealthzFailed))
}

/// Serves the metrics and the pages beside them.
fn serve_pages(
    config: &Config,
    verbosity: Verbosity,
    metrics: &Metrics,
    places: Places,
    recorder: &Recorder,
    supervisor: &Supervisor,
) -> Result<()> {
    let (address, hard_fail) = (config.metrics_bind_address, config.file.bind_address_hard_fail);
    let pages = serving::pages(config, config::configz(config)?, config.flags.clone(), verbosity);
    let run = metrics::server::run(metrics::server::Listen { address, hard_fail, places }, metrics.clone(), pages);
    let recorder = recorder.clone();
    supervisor.task("the metrics server's task", async move {
        Ok(run.await.inspect_err(|error| recorder.record(Happening::MetricsFailed(error.to_string())))?)
    });
    Ok(())
}

/// Serves the health of the proxy and of the Services. Gives where the sync loop reports.
fn serve_health(
    config: &Config,
    metrics: &Metrics,
    places: Places,
    recorder: &Recorder,
    supervisor: &Supervisor,
) -> Reporter {
    // L3
    let (reporter, health) = health::new(config.sync_period * 2);
    let hard_fail = config.file.bind_address_hard_fail;
    let listen = Listen { healthz: config.healthz_bind_address, hard_fail, places };
    let watch = HealthWatch { metrics: metrics.clone(), events: Some(recorder.clone()) };
    let (run, recorder) = (health.run(listen, Arc::new(watch)), recorder.clone());
    supervisor.task("the health servers' task", async move {
        Ok(run.await.inspect_err(|error| recorder.record(Happening::HealthzFailed(error.to_string())))?)
    });
    reporter
}

/// Ends the process when the content of the configuration file is another one, so that it is started again with it (O5). Content
/// that would be refused is logged, and the process goes on with what it has.
fn watch_config(config: &Config, supervisor: &Supervisor) -> Result<()> {
    let Some(path) = config.config_file.clone() else { return Ok(()) };
    let mut watcher = Watcher::new(path, config.config_content.clone());
    let body = move || {
        while let Err(errors) = config::judge(watcher.next_content()) {
            error!("the new content of the configuration file is not valid and not used:\n{errors}");
        }
        bail!("content of the proxy server's configuration file was updated")
    };
    let name = "the configuration watcher's thread";
    supervisor.thread("config-watch", name, body).context("watch of the configuration file")?;
    Ok(())
}

/// Starts the thread that keeps the fast path, if there shall be one: it begins when it is sent something, which is after the first
/// sync. It ends with the process, and the fast path stays, as the rules do.
fn spawn_fast_path(config: &Config, lock: Held, supervisor: &Supervisor) -> Result<Option<SyncSender<()>>> {
    let wanted = config.file.nftables.flowtable.clone();
    if wanted == Flowtable::Off {
        return Ok(None);
    }
    let (synced, first_sync) = sync_channel(1);
    let body = move || {
        if first_sync.recv().is_err() {
            return Ok(());
        }
        match Flowtables::open() {
            Ok(kernel) => {
                let mut keeper = Keeper::new(wanted, kernel);
                while !lock.get() || keeper.look() == Look::Again {
                    thread::sleep(fastpath::MOMENT);
                }
            }
            Err(error) => warn!(%error, "no fast path: cannot open a netfilter netlink socket"),
        }
        Ok(())
    };
    supervisor.thread("fast-path", "the fast path's thread", body).context("thread of the fast path")?;
    Ok(Some(synced))
}

/// What follows the first sync: the fast path, if there shall be one, and the end of what other modes left, one table at a turn. What
/// cannot be removed is tried again, ever later.
fn after_first_sync(mut fast_path: Option<SyncSender<()>>) -> Chore {
    let mut left = CleanUp::of_other_modes(fast_path.is_none());
    let mut patience = CLEAN_UP_AGAIN;
    Box::new(move || {
        if let Some(synced) = fast_path.take() {
            // Who waits for it ends only with the process.
            let _ = synced.try_send(());
        }
        if let Some(report) = left.step() {
            report.log(Some(patience));
            return Some(Duration::ZERO);
        }
        let again = left.again().then_some(patience);
        patience = (patience * 2).min(CLEAN_UP_AGAIN_AT_MOST);
        again
    })
}

/// Wakes the sync loop, for as long as it has a source. When the queue is full the loop does not sleep anyway.
fn waker(events: &Arc<SyncSender<Event>>) -> Wake {
    let events = Arc::downgrade(events);
    Arc::new(move || {
        if let Some(events) = events.upgrade() {
            let _ = events.try_send(Event::Wake);
        }
    })
}

/// The sync loop, until there are no more events. Its netlink sockets are opened on its own thread, which they may not leave.
fn sync(
    config: Config,
    lock: Lock,
    metrics: Metrics,
    health: Reporter,
    recorder: Recorder,
    synced: Option<SyncSender<()>>,
    wake: Wake,
    events: &Receiver<Event>,
) -> Result<()> {
    let fast_path = (config.file.nftables.flowtable != Flowtable::Off).then(ruleset::fastpath::table);
    let kernel = Netfilter::open().context("netfilter netlink socket")?.with_fast_path(fast_path).waking(wake);
    let kernel = kernel.with_lock(lock);
    let families = families::supported();
    let schedule = Schedule::new(config.min_sync_period, config.sync_period);
    let engine = Engine::new(config.clone(), super::layout(&config), &families, kernel);
    let on_node = Box::new(move |node: &Node| {
        node::check(&config, &families, node)?.iter().for_each(|text| warn!("{text}"));
        Ok(())
    });
    let on_lost_claims = {
        let recorder = recorder.clone();
        Box::new(move |LostClaims { service, reason }| {
            recorder.record(Happening::FrontNotProgrammed { service, reason });
        })
    };
    let on_company = {
        let recorder = recorder.clone();
        Box::new(move || recorder.record(Happening::AnotherProxy))
    };
    let on_culprit = Box::new(move |Culprit { service, reason }| {
        recorder.record(Happening::ServiceNotProgrammed { service, error: reason });
    });
    let sync = Sync::new(engine, schedule, metrics, health, on_node).telling(on_culprit);
    let sync = sync.telling_lost_claims(on_lost_claims).telling_company(on_company);
    sync.followed_by(after_first_sync(synced)).run(events)
}

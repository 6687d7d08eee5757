//! The running proxy: servers, objects, syncs, and what ends it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::node;
use super::source::{Source, client};
use crate::config::file::Flowtable;
use crate::config::watch::Watcher;
use crate::config::{self, Config};
use crate::events::{self, Happening, Recorder};
use crate::fastpath::{self, Keeper, Look};
use crate::health::{self, Listen, Reporter};
use crate::kernel::{Flowtables, Netfilter, Wake, families};
use crate::logging::Verbosity;
use crate::metrics::{self, Metrics};
use crate::model::{Event, Node};
use crate::ruleset;
use crate::serving::{self, HealthWatch};
use crate::source::api;
use crate::sync::{Culprit, Engine, Schedule, Sync};

/// Events on their way from the source to the sync loop; a source that is faster waits.
const EVENT_QUEUE: usize = 4096;
/// How long the last event of a process that ends may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs until a signal asks to end.
///
/// # Errors
/// What ended it otherwise.
pub(super) async fn serve(config: Config, verbosity: Verbosity) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let metrics = Metrics::new();
    serving::describe(&config, &metrics);
    let recorder = publish_events(&config);
    recorder.record(Happening::Starting);

    let hard_fail = config.file.bind_address_hard_fail;
    let pages = serving::pages(&config, config::configz(&config)?, config.flags.clone(), verbosity);
    let server = tokio::spawn(metrics::server::run(config.metrics_bind_address, hard_fail, metrics.clone(), pages));
    // L3
    let (reporter, health) = health::new(config.sync_period * 2);
    let listen = Listen { healthz: config.healthz_bind_address, hard_fail };
    let watch = HealthWatch { metrics: metrics.clone(), events: Some(recorder.clone()) };
    let health = tokio::spawn(health.run(listen, Arc::new(watch)));

    let config_changed = watch_config(&config)?;
    let (sender, events) = sync_channel(EVENT_QUEUE);
    let sender = Arc::new(sender);
    let mut source = Source::spawn(&config, SyncSender::clone(&sender), metrics.clone())?;
    let (ended, sync_ended) = oneshot::channel();
    spawn_fast_path(&config)?;
    let sync = spawn_sync(config, metrics, reporter, recorder.clone(), waker(&sender), events, ended)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        error = sync_ended => return Err(error.unwrap_or_else(|_| anyhow!("the sync loop ended by itself"))),
        error = source.failed() => return Err(error),
        _ = config_changed => bail!("content of the proxy server's configuration file was updated"),
        Ok(Err(error)) = server => return last_words(recorder, Happening::MetricsFailed(error.to_string()), error).await,
        Ok(Err(error)) = health => return last_words(recorder, Happening::HealthzFailed(error.to_string()), error).await,
    }
    // Without its source the loop runs out of events and ends.
    drop(source);
    drop(sender);
    sync.join().map_err(|_| anyhow!("the sync loop panicked"))?;
    info!("ended; the rules stay in force");
    Ok(())
}

/// Publishes what is recorded, if there is an API server; the recorder is for everybody who has something to tell.
fn publish_events(config: &Config) -> Recorder {
    let (recorder, publisher) = events::new(&config.node_name);
    if config.manifests.is_none() {
        let options = client(config);
        tokio::spawn(publisher.run(async move || api::client(&options).await));
    }
    recorder
}

/// Tells the cluster why the process ends.
async fn last_words(recorder: Recorder, happening: Happening, error: impl Into<anyhow::Error>) -> Result<()> {
    recorder.record(happening);
    recorder.flush(LAST_WORDS).await;
    Err(error.into())
}

/// Completes when the content of the configuration file is another one, so that the process is started again with it (O5).
/// Content that would be refused is logged, and the process goes on with what it has.
fn watch_config(config: &Config) -> Result<oneshot::Receiver<()>> {
    let (changed, receiver) = oneshot::channel();
    let Some(path) = config.config_file.clone() else {
        // Never completes; the sender has to live for that.
        std::mem::forget(changed);
        return Ok(receiver);
    };
    let mut watcher = Watcher::new(path, config.config_content.clone());
    let body = move || {
        while let Err(errors) = config::judge(watcher.next_content()) {
            error!("the new content of the configuration file is not valid and not used:\n{errors}");
        }
        // The receiver may be gone already when the process is ending.
        let _ = changed.send(());
    };
    thread::Builder::new().name("config-watch".into()).spawn(body).context("watch of the configuration file")?;
    Ok(receiver)
}

/// Starts the thread that keeps the fast path, if there shall be one. It ends with the process, and the fast path stays, as the
/// rules do.
fn spawn_fast_path(config: &Config) -> Result<()> {
    let wanted = config.file.nftables.flowtable.clone();
    if wanted == Flowtable::Off {
        return Ok(());
    }
    let body = move || match Flowtables::open() {
        Ok(kernel) => {
            let mut keeper = Keeper::new(wanted, kernel);
            while keeper.look() == Look::Again {
                thread::sleep(fastpath::MOMENT);
            }
        }
        Err(error) => warn!(%error, "no fast path: cannot open a netfilter netlink socket"),
    };
    thread::Builder::new().name("fast-path".into()).spawn(body).context("thread of the fast path")?;
    Ok(())
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

/// Starts the sync loop. Its netlink sockets are opened on its own thread, which they may not leave.
fn spawn_sync(
    config: Config,
    metrics: Metrics,
    health: Reporter,
    recorder: Recorder,
    wake: Wake,
    events: Receiver<Event>,
    ended: oneshot::Sender<anyhow::Error>,
) -> Result<JoinHandle<()>> {
    let body = move || {
        if let Err(error) = sync(config, metrics, health, recorder, wake, &events) {
            // The receiver may be gone already when the process is ending.
            let _ = ended.send(error);
        }
    };
    Ok(thread::Builder::new().name("sync".into()).spawn(body)?)
}

fn sync(
    config: Config,
    metrics: Metrics,
    health: Reporter,
    recorder: Recorder,
    wake: Wake,
    events: &Receiver<Event>,
) -> Result<()> {
    let fast_path = (config.file.nftables.flowtable != Flowtable::Off).then(ruleset::fastpath::table);
    let kernel = Netfilter::open().context("netfilter netlink socket")?.with_fast_path(fast_path).waking(wake);
    let families = families::supported();
    let schedule = Schedule::new(config.min_sync_period, config.sync_period);
    let engine = Engine::new(config.clone(), super::layout(&config), &families, kernel);
    let on_node = Box::new(move |node: &Node| {
        node::check(&config, &families, node)?.iter().for_each(|text| warn!("{text}"));
        Ok(())
    });
    let on_culprit = Box::new(move |Culprit { service, reason }| {
        recorder.record(Happening::ServiceNotProgrammed { service, error: reason });
    });
    Sync::new(engine, schedule, metrics, health, on_node).telling(on_culprit).run(events)
}

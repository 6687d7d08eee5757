//! Runs the proxy: starts its servers and threads, waits for a signal or a failure, and brings the process to its end.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tracing::{error, info};

use super::localhost::Localhost;
use super::refused;
use super::servers::{self, Servers};
use super::shutdown;
use super::source::Source;
use super::sync_loop::{self, SyncLoop, Waker};
use crate::history::History;
use crate::metrics::Metrics;
use crate::metrics::server::questions;
use cluster::events::{self, Recorder, ReportedEvent};
use cluster::settings::client;
use cluster::source::api;
use component::config::{self, Config, ConfigFile};
use component::logging::Verbosity;
use component::supervise::{self, Supervisor};
use node::kernel::leftovers::CleanUp;
use node::kernel::process::SYNC_THREAD;
use node::kernel::socket_users::SocketUsers;
use node::kernel::{Lock, OwnWrites};

/// Capacity of the queue of events from the source to the sync loop; when the queue is full, the source waits.
const EVENT_QUEUE: usize = 4096;
/// How long a process that ends because of a failure waits for the last Kubernetes events to reach the API server.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Values that the start makes before it drops privileges.
pub(super) struct Writers {
    pub(super) lock: Lock,
    /// Whether another process holds the lock at the start.
    pub(super) waits: bool,
    /// Removes the rules that kube-proxies in other modes left.
    pub(super) clean_up: CleanUp,
    /// Finds the users of connections to localhost node ports; `None` if these are not served, or if the kernel cannot.
    pub(super) users: Option<SocketUsers>,
}

/// Runs until a signal ends the process.
///
/// # Errors
/// The first failure of a server, the source or a thread, also that a thread does not end after the signal. A change of the configuration
/// file counts as a failure.
pub(super) async fn run(mut config: Config, verbosity: Verbosity, open_files: u64, writers: Writers) -> Result<()> {
    let Writers { lock, waits, clean_up, users } = writers;
    // The process that holds the writer lock may have the ports of the servers, too. They become free when it ends, so a busy port is no
    // reason to end this process.
    config.bind_address_hard_fail &= !waits;
    let (supervisor, mut failures) = supervise::new();
    let metrics = servers::metrics(&config);
    let mut localhost = Localhost::new(&config, &metrics, open_files, users);
    let signal = shutdown::on_signal(&supervisor, localhost.has_connections())?;
    let changes = History::new(SystemTime::now());
    let (recorder, publisher) = publish_events(&config, metrics.clone(), &supervisor)?;
    recorder.record(ReportedEvent::Starting);
    config.mode_warning.clone().map(ReportedEvent::Mode).into_iter().for_each(|event| recorder.record(event));
    if let Err((event, error)) = servers::check_ports(&config) {
        recorder.record(event);
        recorder.flush(LAST_EVENTS).await;
        return Err(error.into());
    }
    let servers = Servers { config: &config, metrics: &metrics, recorder: &recorder, supervisor: &supervisor };
    let (sender, events) = sync_channel(EVENT_QUEUE);
    let sender = Arc::new(sender);
    let wake = Waker::new(&sender);
    let of_pages = wake.clone();
    let (asker, questions) = questions::queue(move || of_pages.wake());
    let reporter = servers.start(verbosity, changes.clone(), asker, open_files);
    watch_config(&config, &supervisor)?;
    let sink = SyncSender::clone(&sender);
    let source =
        Source::spawn((&config, lock.pid()), sink, metrics.clone(), reporter.clone(), changes.clone(), &supervisor)?;
    sync_loop::spawn_counters(&config, &metrics, &supervisor)?;
    refused::spawn(&config, &metrics, &supervisor)?;
    localhost.spawn(&supervisor)?;
    let own_writes = OwnWrites::default();
    let first_sync = sync_loop::spawn_fast_path(&config, lock.held(), own_writes.clone(), &supervisor)?;
    let (feed, recorder_of_sync) = (localhost.feed.clone(), recorder.clone());
    let sync = SyncLoop {
        config,
        lock,
        clean_up,
        metrics,
        reporter,
        changes,
        questions,
        recorder: recorder_of_sync,
        first_sync,
        localhost: feed,
        own_writes,
        wake,
    };
    let sync = supervisor.thread(SYNC_THREAD, move || sync.run(&events))?;
    let failure = tokio::select! {
        Ok(()) = signal => None,
        error = failures.next() => Some(error),
    };
    // While the connections end, syncs go on, so that the node's rules follow the cluster.
    localhost.end().await;
    if let Some(error) = failure {
        recorder.flush(LAST_EVENTS).await;
        return Err(error);
    }
    // Dropping the source and the last sender ends the sync loop.
    drop((source, sender, publisher.stop));
    shutdown::wait_for([("the sync loop", sync)].into_iter().chain(publisher.thread)).await?;
    info!("Ended; the rules stay in force");
    Ok(())
}

/// The thread that publishes Kubernetes events; `thread` is `None` without an API server.
struct EventThread {
    /// Ends the thread when it is dropped.
    stop: oneshot::Sender<()>,
    thread: Option<(&'static str, JoinHandle<()>)>,
}

/// Starts the thread that publishes Kubernetes events, if there is an API server. It is a separate thread, because the API server may be
/// slow to respond.
fn publish_events(config: &Config, metrics: Metrics, supervisor: &Supervisor) -> Result<(Recorder, EventThread)> {
    let (recorder, publisher) = events::new(&config.node_name);
    let (stop, stopped) = oneshot::channel();
    if config.manifests.is_some() {
        return Ok((recorder, EventThread { stop, thread: None }));
    }
    let options = client(config);
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime of the events")?;
    let answered = move |url: &str, code, took| metrics.api_request("POST", url, code, took);
    let body = move || {
        runtime.block_on(async {
            tokio::select! {
                () = publisher.run(async || api::client(&options).await, answered) => {}
                _ = stopped => {}
            }
        });
        // Does not wait for a DNS lookup under way, which may take long.
        runtime.shutdown_background();
        Ok(())
    };
    let thread = supervisor.thread("events", body).context("cannot start the thread of the events")?;
    Ok((recorder, EventThread { stop, thread: Some(("the events' thread", thread)) }))
}

/// Ends the process when the configuration file gets other valid content, so that kubelet or systemd restarts it with that content (O5).
/// For invalid content only an error is logged.
fn watch_config(config: &Config, supervisor: &Supervisor) -> Result<()> {
    let Some((path, content)) = config.config_file.clone() else { return Ok(()) };
    let mut file = ConfigFile::new(path, content);
    let body = move || {
        while let Err(errors) = config::check_content(file.wait_for_change()) {
            error!(err = %errors, "The new content of the configuration file is not valid and not used");
        }
        bail!("content of the proxy server's configuration file was updated")
    };
    supervisor.thread("config-watch", body).context("cannot watch the configuration file")?;
    Ok(())
}

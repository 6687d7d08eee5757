//! The `kube-proxy` binary: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, bail};
use kube_proxy::config::{self, Config, Invocation};
use kube_proxy::health::{self, Listen, Reporter};
use kube_proxy::kernel::{Netfilter, families};
use kube_proxy::logging::{self, Verbosity};
use kube_proxy::metrics::{self, Metrics};
use kube_proxy::model::{Event, Family};
use kube_proxy::ruleset::maps::Maps;
use kube_proxy::serving::{self, HealthWatch};
use kube_proxy::source::{ConvertOptions, api, manifests};
use kube_proxy::sync::{Engine, NoKernel, Schedule, Sync};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

/// Events on their way from the source to the sync loop; a source that is faster waits.
const EVENT_QUEUE: usize = 4096;

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kube-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    match config::load(std::env::args_os())? {
        Invocation::Run(config) => run(config),
        Invocation::Render(config) => render(config),
        Invocation::WriteConfig { path, text } => {
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        Invocation::InitOnly(_) => bail!("--init-only is not there yet"),
        Invocation::Cleanup(_) => bail!("--cleanup is not there yet"),
        Invocation::Print(text) => {
            print!("{text}");
            Ok(())
        }
    }
}

/// Runs until a signal asks to end.
fn run(config: Config) -> Result<()> {
    let verbosity = logging::init(&config.logging);
    config.warnings.iter().for_each(|text| warn!("{text}"));
    if config.logging.verbosity >= 1 {
        config.flags.iter().for_each(|(name, value)| info!("FLAG: --{name}={value:?}"));
    }
    watch_config(&config)?;
    let families = families::supported();
    info!(version = env!("CARGO_PKG_VERSION"), node = config.node_name, ?families, "starting");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, &families, verbosity))
}

/// Ends the process with 1 when the content of the configuration file is another one, so that it is started again with it
/// (O5). Content that would be refused is logged, and the process goes on with what it has.
fn watch_config(config: &Config) -> Result<()> {
    let Some(path) = config.config_file.clone() else { return Ok(()) };
    let mut watcher = config::watch::Watcher::new(path, config.config_content.clone());
    let body = move || {
        loop {
            if let Err(errors) = config::judge(watcher.next_content()) {
                error!("the new content of the configuration file is not valid and not used:\n{errors}");
                continue;
            }
            error!("content of the proxy server's configuration file was updated");
            std::process::exit(1);
        }
    };
    thread::Builder::new().name("config-watch".into()).spawn(body)?;
    Ok(())
}

async fn serve(config: Config, families: &[Family], verbosity: Verbosity) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let metrics = Metrics::new();
    serving::describe(&config, &metrics);
    let pages = serving::pages(&config, config::configz(&config)?, config.flags.clone(), verbosity);
    let hard_fail = config.file.bind_address_hard_fail;
    let server = metrics::server::run(config.metrics_bind_address, hard_fail, metrics.clone(), pages);
    let server = tokio::spawn(server);
    // L3
    let (reporter, health) = health::new(config.sync_period * 2);
    let listen = Listen { healthz: config.healthz_bind_address, hard_fail };
    let watch = HealthWatch { metrics: metrics.clone(), events: None };
    let health = tokio::spawn(health.run(listen, Arc::new(watch)));
    let (sender, events) = sync_channel(EVENT_QUEUE);
    let mut source = Source::spawn(&config, sender, metrics.clone())?;
    let (ended, sync_ended) = tokio::sync::oneshot::channel::<()>();
    let sync = spawn_sync(config, families.to_vec(), metrics, reporter, events, ended)?;
    let signalled = tokio::select! {
        _ = terminate.recv() => true,
        _ = interrupt.recv() => true,
        _ = sync_ended => false,
        error = source.failed() => return Err(error),
        Ok(Err(error)) = server => return Err(error.into()),
        Ok(Err(error)) = health => return Err(error.into()),
    };
    // Without its source the loop runs out of events and ends.
    drop(source);
    let outcome = sync.join();
    if !signalled || outcome.is_err() {
        bail!("the sync loop ended by itself");
    }
    info!("ended; the rules stay in force");
    Ok(())
}

/// Where the objects come from. Dropping it ends their coming.
enum Source {
    Manifests { _handle: manifests::Handle },
    Api(api::Handle),
}

impl Source {
    fn spawn(config: &Config, sink: SyncSender<Event>, metrics: Metrics) -> Result<Self> {
        if let Some(dir) = config.manifests.clone() {
            return Ok(Self::Manifests { _handle: manifests::spawn(dir, options(config), sink)? });
        }
        let options = api::ApiOptions {
            client: api::ClientOptions {
                kubeconfig: config.client.kubeconfig.clone(),
                master: config.client.master.clone(),
            },
            node_name: config.node_name.clone(),
            convert: options(config),
            needs_pod_cidrs: config.detect_local == config::DetectLocal::NodeCidr,
        };
        Ok(Self::Api(api::spawn(options, sink, Counted(metrics))?))
    }

    /// Waits for an error after which the process cannot go on.
    async fn failed(&mut self) -> anyhow::Error {
        match self {
            Self::Manifests { .. } => std::future::pending().await,
            Self::Api(handle) => handle.failed().await,
        }
    }
}

/// Counts what the source goes through.
struct Counted(Metrics);

impl api::Observer for Counted {
    fn reconnected(&self, kind: &'static str) {
        self.0.source_reconnected(kind);
    }

    fn rejected(&self, kind: &'static str) {
        self.0.object_rejected(kind);
    }
}

fn options(config: &Config) -> ConvertOptions {
    ConvertOptions { allow_external_ips: config.allow_service_external_ips }
}

/// Starts the sync loop. Its netlink sockets are opened on its own thread, which they may not leave.
fn spawn_sync(
    config: Config,
    families: Vec<Family>,
    metrics: Metrics,
    health: Reporter,
    events: Receiver<Event>,
    ended: tokio::sync::oneshot::Sender<()>,
) -> Result<JoinHandle<()>> {
    let body = move || {
        match Netfilter::open() {
            Ok(kernel) => {
                let schedule = Schedule::new(config.min_sync_period, config.sync_period);
                let engine = Engine::new(config, Maps, &families, kernel);
                Sync::new(engine, schedule, metrics, health).run(&events);
            }
            Err(error) => error!(%error, "cannot open a netfilter netlink socket"),
        }
        // The receiver may be gone already when the process is ending.
        let _ = ended.send(());
    };
    Ok(thread::Builder::new().name("sync".into()).spawn(body)?)
}

/// Prints the ruleset that the manifests ask for.
fn render(config: Config) -> Result<()> {
    let dir = config.manifests.clone().context("give --manifests DIR")?;
    let (events, problems) = manifests::read_once(&dir, options(&config))?;
    config.warnings.iter().for_each(|text| eprintln!("{text}"));
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    let mut engine = Engine::new(config, Maps, &Family::BOTH, NoKernel);
    events.into_iter().for_each(|event| {
        engine.apply(event);
    });
    print!("{}", engine.content());
    Ok(())
}

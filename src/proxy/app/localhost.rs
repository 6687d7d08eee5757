//! The threads for node ports on loopback addresses: the userspace proxy, and the reader that counts the packets that the rules refuse.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::shutdown::has_ended;
use crate::localhost::{Feed, GRACE, OpenConnections, Proxy};
use crate::metrics::Metrics;
use component::config::Config;
use component::logging::once::Once;
use component::supervise::Supervisor;
use node::counters::Refused;

/// The time between two readings of the counters of refused packets.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long the proxy's thread may take to end after its connections had [`GRACE`] to end.
const SLACK: Duration = Duration::from_secs(2);

/// The userspace proxy, if the configuration asks for it.
#[derive(Default)]
pub(super) struct Localhost {
    /// The channel through which the proxy gets its node ports.
    pub(super) feed: Option<Feed>,
    proxy: Option<Proxy>,
    connections: Option<OpenConnections>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Localhost {
    /// Makes a proxy that does not run yet. `open_files` is the number of files that the process may have open.
    pub(super) fn new(config: &Config, metrics: &Metrics, open_files: u64) -> Self {
        if !config.serves_localhost() {
            return Self::default();
        }
        let feed = Feed::default();
        let (proxy, connections) = Proxy::new(feed.clone(), metrics.clone(), open_files);
        Self { feed: Some(feed), proxy: Some(proxy), connections: Some(connections), running: None }
    }

    /// Returns a function that says at any time whether there are open connections.
    pub(super) fn has_connections(&self) -> impl Fn() -> bool + Send + use<> {
        let connections = self.connections.clone();
        move || connections.as_ref().is_some_and(OpenConnections::is_any)
    }

    /// Starts the proxy's thread, if there is a proxy.
    pub(super) fn spawn(&mut self, supervisor: &Supervisor) -> Result<()> {
        let Some(proxy) = self.proxy.take() else { return Ok(()) };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime of localhost node ports")?;
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            runtime.block_on(proxy.run(stopped));
            Ok(())
        };
        let name = "the thread of localhost node ports";
        let thread =
            supervisor.thread("localhost", name, body).context("cannot start the thread of localhost node ports")?;
        self.running = Some((stop, thread));
        Ok(())
    }

    /// Stops accepting connections, and waits until the open ones have ended or were closed after [`GRACE`].
    pub(super) async fn end(&mut self) {
        let Some((stop, thread)) = self.running.take() else { return };
        drop(stop);
        // A thread that hangs is not waited for any longer.
        let _ = has_ended(&thread, Instant::now() + GRACE + SLACK).await;
    }
}

/// Starts the thread that exports how many packets the rules refused at localhost node ports, if localhost node ports are turned on. It
/// runs until the process ends.
pub(super) fn spawn_refused(config: &Config, metrics: &Metrics, supervisor: &Supervisor) -> Result<()> {
    if !config.localhost_node_ports {
        return Ok(());
    }
    let metrics = metrics.clone();
    let body = move || {
        let mut refused =
            Refused::open().context("cannot open the netfilter netlink socket of localhost node ports")?;
        let mut failed = Once::default();
        loop {
            let read = refused.read(|family, protocol, packets| metrics.localhost_rejected(family, protocol, packets));
            if let Some(error) = failed.new_error(&read) {
                warn!(err = error, "Cannot read what was refused at localhost node ports");
            }
            thread::sleep(INTERVAL);
        }
    };
    let name = "the reader of refused packets";
    supervisor.thread("localhost-count", name, body).context("cannot start the thread of refused packets")?;
    Ok(())
}

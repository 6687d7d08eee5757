//! The thread of the userspace proxy for node ports on loopback addresses.

use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::shutdown::has_ended;
use crate::localhost::{Feed, GRACE, OpenConnections, Proxy};
use crate::metrics::Metrics;
use component::config::Config;
use component::supervise::Supervisor;
use node::kernel::socket_users::SocketUsers;

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
    /// Makes a proxy that does not run yet, if the configuration asks for one. `open_files` is the number of files that the process may have
    /// open. `users` finds the users of clients.
    pub(super) fn new(config: &Config, metrics: &Metrics, open_files: u64, users: Option<SocketUsers>) -> Self {
        if !config.serves_localhost() {
            return Self::default();
        }
        let feed = Feed::default();
        let (proxy, connections) = Proxy::new(feed.clone(), metrics.clone(), open_files, users);
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
        let thread = supervisor.thread("localhost", body).context("cannot start the thread of localhost node ports")?;
        self.running = Some((stop, thread));
        Ok(())
    }

    /// Stops accepting connections, and waits until the open ones have ended or were closed after [`GRACE`].
    pub(super) async fn end(&mut self) {
        let Some((stop, thread)) = self.running.take() else { return };
        drop(stop);
        // If the thread hangs, the process ends without it.
        let _ = has_ended(&thread, Instant::now() + GRACE + SLACK).await;
    }
}

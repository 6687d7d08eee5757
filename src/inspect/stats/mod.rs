//! `kube-proxy stats`: pages about this node for a browser: its Services, what the proxy changed, and the way of a packet.
//!
//! ```text
//! browser ─► answer: method, Host, route ─► node: reads what the other commands read ─► list, service, history, explain: HTML
//! ```
//!
//! Serves the pages at one address until a signal ends the process. `answer` decides which requests get a page, `node` and `reading` read the
//! kernel's tables and ask the running proxy, `explain` reads the rules that a packet meets, and the other modules are pure functions from
//! values to HTML.
//!
//! Invariants: the process changes nothing, and gives up privileges that it does not need before it takes the first request. Pages show what
//! other commands print. The number of connections, the number of pages that are made at once, and the time for a page are bounded. One
//! reading of the tables serves all requests for at least `reading::FRESH`.

mod answer;
mod explain;
mod history;
mod list;
mod node;
mod page;
mod query;
mod reading;
mod service;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::CommandOutcome;
use super::output::Output;
use super::running::{self, RunningArgs};
use answer::Answerer;
use component::http::{self, ConnectionLimit, Limits, Server};
use component::privileges::{self, Needs};
use node::Node;

/// The most connections. Browsers open up to six to a server.
const CONNECTIONS: usize = 32;
/// The most threads that read for pages; further requests wait.
const READERS: usize = 4;
/// How long threads that still make pages may go on after the server is closed.
const GRACE: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  kube-proxy stats                            at http://127.0.0.1:8080/
  kube-proxy stats --listen 127.0.0.1:9000
  ssh -L 8080:127.0.0.1:8080 NODE             from another computer, the same
                                              port on both sides

Whoever reaches the address sees names of Services and addresses of endpoints.
So it is a loopback address, unless --allow-remote is given.
Needs CAP_NET_ADMIN, and gives up all else. Ctrl-C ends it.

Exit codes: 0 ended by a signal; 2 cannot listen, or lacks the capability.";

/// Serve pages for a browser: Services with their traffic, changes, the way of a packet
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Let --listen be an address that other hosts reach. They then see what the pages show, without a password and without encryption
    #[arg(long)]
    allow_remote: bool,
    #[command(flatten)]
    running: RunningArgs,
    /// Where the running proxy says what it changed and why a Service has its endpoints [default: where it listens]
    #[arg(long, value_name = "IP[:PORT]", value_parser = running::metrics)]
    metrics_bind_address: Option<SocketAddr>,
}

/// Serves the pages until a signal ends the process.
///
/// # Errors
/// When the address may not be used or is taken, or the process has not got CAP_NET_ADMIN.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    if !args.allow_remote && !args.listen.ip().is_loopback() {
        bail!(
            "cannot listen on {}: other hosts reach it, and whoever does sees names of Services and addresses of endpoints without a \
             password; take a loopback address such as 127.0.0.1:{}, or give --allow-remote",
            args.listen,
            args.listen.port()
        );
    }
    privileges::check().context("cannot read nf_tables")?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(READERS)
        .build()
        .context("cannot start the runtime of the server")?;
    let inside = runtime.enter();
    let listener = http::bind(args.listen).map_err(|error| http::failure("the pages", args.listen, &error))?;
    let address = listener.local_addr().context("cannot tell the address of the server")?;
    // The port is taken before the capability for ports below 1024 is given up. There is no other thread yet: each thread has capabilities
    // of its own, and would keep them.
    privileges::drop_all(Needs::default()).context("cannot give up privileges")?;
    out.text(format_args!("Serving http://{address}/ until Ctrl-C\n"))?;
    out.flush()?;
    drop(inside);
    let answerer = Arc::new(Answerer::new(Node::new(args.running, args.metrics_bind_address), READERS));
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot receive signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot receive signals")?;
        let limits = Limits { connections: ConnectionLimit::new(CONNECTIONS, usize::MAX), ..Limits::default() };
        let server = Server::start(listener, limits, move |request| {
            let answerer = Arc::clone(&answerer);
            async move { answerer.answer(&request).await }
        });
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        server.close().await;
        Ok::<_, anyhow::Error>(())
    })?;
    // Ends the process even if a thread still waits for the proxy or the kernel.
    runtime.shutdown_timeout(GRACE);
    Ok(CommandOutcome::Fine)
}

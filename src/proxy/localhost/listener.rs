//! One listener: accepts connections, finds an endpoint for each connection, and relays its bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::limit::{Limit, Permit};
use super::relay::{self, Pipes};
use super::target::Target;
use component::logging::duration;
use component::supervise::contained;

/// How long to wait for an endpoint to accept a connection when there is no other endpoint to try (R4).
const DIAL: Duration = Duration::from_secs(5);
/// How long to wait for an endpoint to accept a connection while there are other endpoints to try.
const DIAL_OF_MANY: Duration = Duration::from_secs(1);
/// How long after the first attempt a further endpoint may still be tried.
const DIAL_ALL: Duration = Duration::from_secs(10);
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The values that all listeners share.
#[derive(Clone)]
pub(super) struct Common {
    /// Limits the connections: each holds a permit.
    pub(super) limit: Limit,
    pub(super) pipes: Arc<Pipes>,
    /// True when the process is to end: then no further connection is accepted.
    pub(super) ending: watch::Receiver<bool>,
}

/// Accepts connections at `port` until the process is to end, then waits for the open ones. Dropping the future closes them all.
pub(super) async fn serve(port: SocketAddr, listener: TcpListener, target: Arc<Target>, common: Common) {
    let mut connections = JoinSet::new();
    let mut ending = common.ending.clone();
    tokio::select! {
        _ = ending.wait_for(|ending| *ending) => {}
        () = accept((port, &listener), &target, &common, &mut connections) => {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Accepts connections for ever.
async fn accept(
    (port, listener): (SocketAddr, &TcpListener),
    target: &Arc<Target>,
    common: &Common,
    connections: &mut JoinSet<()>,
) {
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (client, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(err = %error, "Cannot accept a connection to a localhost node port");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (target, pipes, limit) = (Arc::clone(target), Arc::clone(&common.pipes), common.limit.clone());
        connections.spawn(contained(async move {
            let Some((permit, closed)) = limit.admit(port, from).await else { return relay::reset(&client) };
            tokio::select! {
                () = connect(&client, &target, &pipes, &permit) => {}
                _ = closed => relay::reset(&client),
            }
            drop((client, permit));
        }));
    }
}

async fn connect(client: &TcpStream, target: &Target, pipes: &Pipes, permit: &Permit) {
    let Some(server) = dial(target).await else {
        relay::reset(client);
        return;
    };
    if let Err(error) = relay::relay(client, &server, pipes, &|| permit.moved()).await {
        debug!(err = %error, "Connection to a localhost node port was reset");
    }
}

/// Connects to the first endpoint that accepts; tries each endpoint at most once (R4). Returns `None` when none accepts in time.
async fn dial(target: &Target) -> Option<TcpStream> {
    let start = Instant::now();
    let mut tried: Vec<SocketAddr> = Vec::new();
    while start.elapsed() < DIAL_ALL {
        let choice = target.choose(&tried, Instant::now(), |count| rand::random_range(0..count))?;
        let time = if choice.has_others { DIAL_OF_MANY } else { DIAL };
        match timeout(time, TcpStream::connect(choice.endpoint)).await {
            Ok(Ok(server)) => return Some(server),
            Ok(Err(error)) => debug!(endpoint = %choice.endpoint, err = %error, "Endpoint refuses a connection"),
            Err(_) => debug!(endpoint = %choice.endpoint, waited = %duration(time), "Endpoint does not answer"),
        }
        tried.push(choice.endpoint);
    }
    None
}

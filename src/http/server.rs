//! Accepting and serving connections within limits.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{Answer, Asked};

/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one listener grants its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections that are served at the same time; further ones wait in the kernel.
    pub connections: usize,
    /// Bytes of a request's header; more are answered with 431. At least 8,192.
    pub header_bytes: usize,
    /// A client that sends no whole header for so long loses its connection, also between two requests.
    pub header_time: Duration,
    /// A connection that is older takes no further request: a client that does not read its answers must not stay for ever.
    pub lifetime: Duration,
    /// How long after that, or after the server was closed, an answer that was begun may still be read.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            header_bytes: 16 * 1024,
            header_time: Duration::from_secs(5),
            lifetime: Duration::from_secs(60),
            grace: Duration::from_secs(2),
        }
    }
}

/// A running server. Dropping it ends it as [`Server::close`] does, without waiting.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Serves a listener's connections on tasks of the current runtime.
    pub fn start<A, F>(listener: TcpListener, limits: Limits, answer: A) -> Self
    where
        A: Fn(Asked) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        Self { stop, accepting: tokio::spawn(accept(listener, limits, answer, stopped)) }
    }

    /// Never comes back: for a server that lives as long as the process.
    pub async fn forever(mut self) {
        // The task ends only when told to.
        let _ended = (&mut self.accepting).await;
    }

    /// Stops listening and waits until the port is free. Requests that are on their way are answered by a task that stays
    /// behind for a moment.
    pub async fn close(self) {
        self.stop.send_replace(true);
        // The task gives nothing; it ends by a panic at worst, and then the port is free as well.
        let _ended = self.accepting.await;
    }
}

/// Accepts until told to stop.
async fn accept<A, F>(listener: TcpListener, limits: Limits, answer: A, mut stopped: watch::Receiver<bool>)
where
    A: Fn(Asked) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < limits.connections => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, limits, answer.clone(), stopped.clone()));
                }
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            // An error says that the server was dropped.
            _ = stopped.changed() => break,
        }
    }
    drop(listener);
    tokio::spawn(async move { while connections.join_next().await.is_some() {} });
}

/// Serves one connection; ends within `lifetime + grace`.
async fn connection<A, F>(stream: TcpStream, limits: Limits, answer: A, mut stopped: watch::Receiver<bool>)
where
    A: Fn(Asked) -> F,
    F: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let answer = answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_time)
            .max_buf_size(limits.header_bytes)
            .title_case_headers(true)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                debug!(%error, "a connection ended early");
            }
            return;
        }
        () = sleep(limits.lifetime) => {}
        _ = stopped.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    if timeout(limits.grace, connection).await.is_err() {
        debug!("a connection was cut off: its client does not read");
    }
}

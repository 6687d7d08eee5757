//! Accepts and serves connections within limits.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::limit::{ConnectionLimit, Permit};
use super::{Request, Response};
use crate::supervise::contained;

/// The pause after a failure to accept a connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The addresses of both ends of a connection. Each request carries this value as an extension, unless the kernel does not tell the
/// addresses.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The client's address.
    pub client: SocketAddr,
    /// This server's address.
    pub server: SocketAddr,
}

impl Ends {
    /// Returns whether the client is on this host: its address is a loopback address, or is the server's own address.
    pub fn are_on_one_host(self) -> bool {
        let [client, server] = [self.client, self.server].map(|end| end.ip().to_canonical());
        client.is_loopback() || client == server
    }
}

/// The limits of one listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The limit of connections, which other listeners may use too.
    pub connections: ConnectionLimit,
    /// The largest header of a request in bytes, at least 8,192 (the minimum of hyper). A request with a larger header gets status 431.
    pub header_bytes: usize,
    /// The longest time for a client to send the first byte of the connection, and then for each complete header, counted from that byte or
    /// from the end of the last response. After that the connection is closed.
    pub header_time: Duration,
    /// The age after which a connection takes no further request, so that a client that does not read its responses cannot keep the
    /// connection for ever.
    pub lifetime: Duration,
    /// How long a client may still read its last response after `lifetime` has passed or the server was closed.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: ConnectionLimit::default(),
            header_bytes: 16 * 1024,
            header_time: Duration::from_secs(5),
            lifetime: Duration::from_secs(60),
            grace: Duration::from_secs(2),
        }
    }
}

/// A running server. When this value is dropped, the server closes as with [`Server::close`], but nobody waits for it.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Serves a listener's connections on tasks of the current runtime.
    pub fn start<A, F>(listener: TcpListener, limits: Limits, respond: A) -> Self
    where
        A: Fn(Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        Self { stop, accepting: tokio::spawn(accept(listener, limits, respond, stopped)) }
    }

    /// Waits for ever. Use it for a server that runs as long as the process.
    pub async fn forever(mut self) {
        // The task ends when the server is closed, which cannot happen while this function owns it.
        let _ended = (&mut self.accepting).await;
    }

    /// Stops listening and waits until the port is free. A separate task answers the requests that have already arrived.
    pub async fn close(self) {
        self.stop.send_replace(true);
        let _ended = self.accepting.await;
    }
}

/// Accepts connections until the server is closed or dropped.
async fn accept<A, F>(listener: TcpListener, limits: Limits, respond: A, mut stopped: watch::Receiver<bool>)
where
    A: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let listening = limits.connections.listening();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (permit, evicted) = limits.connections.acquire().await;
                    let (limits, respond, stopped) = (limits.clone(), respond.clone(), stopped.clone());
                    connections.spawn(contained(async move {
                        tokio::select! {
                            () = connection(stream, &permit, limits, respond, stopped) => {}
                            _ = evicted => debug!("Closed a connection to serve a new one within the limit"),
                        }
                        drop(permit);
                    }));
                }
                Err(error) => {
                    debug!(err = %error, "Cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            // The server was closed or dropped; `changed` returns an error if it was dropped.
            _ = stopped.changed() => break,
        }
    }
    drop((listener, listening));
    tokio::spawn(async move { while connections.join_next().await.is_some() {} });
}

/// Serves one connection. Ends within `header_time + lifetime + grace`.
async fn connection<A, F>(
    stream: TcpStream,
    permit: &Permit,
    limits: Limits,
    respond: A,
    mut stopped: watch::Receiver<bool>,
) where
    A: Fn(Request) -> F,
    F: Future<Output = Response>,
{
    // Wait for the first byte before hyper allocates a buffer, so that a client that sends nothing costs only its socket.
    let mut byte = [0];
    tokio::select! {
        first = timeout(limits.header_time, stream.peek(&mut byte)) => if !matches!(first, Ok(Ok(1))) { return },
        _ = stopped.changed() => return,
    }
    Box::pin(exchange(stream, permit, limits, respond, stopped)).await;
}

/// Answers the requests of a client.
async fn exchange<A, F>(
    stream: TcpStream,
    permit: &Permit,
    limits: Limits,
    respond: A,
    mut stopped: watch::Receiver<bool>,
) where
    A: Fn(Request) -> F,
    F: Future<Output = Response>,
{
    let ends = stream.peer_addr().and_then(|client| Ok(Ends { client, server: stream.local_addr()? })).ok();
    let service = service_fn(|mut request: Request| {
        permit.requested();
        if let Some(ends) = ends {
            request.extensions_mut().insert(ends);
        }
        let response = respond(request);
        async {
            let response = response.await;
            permit.responded();
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_time)
            .max_buf_size(limits.header_bytes)
            .title_case_headers(true)
            .serve_connection(Observed { io: TokioIo::new(stream), permit }, service)
    );
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                debug!(err = %error, "A connection ended early");
            }
            return;
        }
        () = sleep(limits.lifetime) => {}
        _ = stopped.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    if timeout(limits.grace, connection).await.is_err() {
        debug!("Closed a connection whose client does not read its response");
    }
}

/// The stream of a connection, which notes in the permit when a part of a response is written.
struct Observed<'a> {
    io: TokioIo<TcpStream>,
    permit: &'a Permit,
}

impl Read for Observed<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Observed<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes).map_ok(|count| {
            self.permit.wrote();
            count
        })
    }

    /// Hyper calls this when it has written all bytes that it has.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx).map_ok(|()| self.permit.flushed())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

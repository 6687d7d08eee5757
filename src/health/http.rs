//! A small HTTP server with limits: it reads request lines and headers, never bodies, and answers from memory.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::debug;

/// Connections of one listener that are served at the same time; further ones wait in the kernel.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// A client that sends no whole header for so long loses its connection, also between two requests.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// No connection is older: a client that does not read its answers must not hold one for ever.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(60);
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that wait in the kernel.
const BACKLOG: u32 = 128;

pub(super) type Answer = Response<Full<Bytes>>;

/// Listens on an address of one family only: an unspecified IPv6 address does not take IPv4 as well.
///
/// # Errors
/// What the kernel answers.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            set_ipv6_v6only(&socket, true)?;
            socket
        }
    };
    listen(socket, address)
}

/// Listens as Go does: an unspecified address of either family means all addresses of both, where there is IPv6.
///
/// # Errors
/// What the kernel answers.
pub(super) fn bind_like_go(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind(address);
    }
    let Ok(socket) = TcpSocket::new_v6() else { return bind(address) };
    set_ipv6_v6only(&socket, false)?;
    listen(socket, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()))
}

fn listen(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers until dropped; then its connections end, too.
pub(super) async fn serve<A>(listener: TcpListener, answer: A)
where
    A: Fn(&Request<Incoming>) -> Answer + Clone + Send + Sync + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(timeout(CONNECTION_LIFETIME, connection(stream, answer.clone())));
                }
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection<A: Fn(&Request<Incoming>) -> Answer>(stream: TcpStream, answer: A) {
    let service = service_fn(|request| {
        let answer = answer(&request);
        async { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a connection ended early");
    }
}

/// An answer that browsers do not second-guess.
pub(super) fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, hyper::header::HeaderValue::from_static("nosniff"));
    answer
}

/// 200 or 503.
pub(super) const fn status(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

//! The metrics server: `/metrics`, `/healthz` and `/proxyMode` on the metrics address (surface.md section 4.2).
//!
//! Plain HTTP for scrapers and probes. Nothing that a client sends changes anything, is stored, or is read beyond its header.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::{Metrics, text};

/// Connections served at a time; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// Time a client has for its header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of a client's header.
const MAX_HEADER: usize = 16 * 1024;
/// Delay before the address is bound again after a failure (O8).
const BIND_RETRY: Duration = Duration::from_secs(5);

const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves until the process ends. An address that cannot be bound is tried again every 5 s.
///
/// # Errors
/// With `hard_fail`, the first failure to bind.
pub async fn run(address: SocketAddr, hard_fail: bool, metrics: Metrics) -> io::Result<()> {
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if hard_fail => return Err(error),
            Err(error) => warn!(%error, %address, "cannot serve metrics; trying again in {BIND_RETRY:?}"),
        }
        tokio::time::sleep(BIND_RETRY).await;
    };
    serve(listener, metrics).await;
    Ok(())
}

/// Serves the connections of a listener.
pub async fn serve(listener: TcpListener, metrics: Metrics) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = metrics.clone();
                tokio::spawn(async move {
                    connection(stream, metrics).await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection to the metrics server");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, metrics: Metrics) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.uri().path(), &metrics);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a connection to the metrics server ended early");
    }
}

/// What is served, by path.
fn answer(path: &str, metrics: &Metrics) -> Response<Full<Bytes>> {
    match path {
        "/metrics" => response(StatusCode::OK, text::CONTENT_TYPE, metrics.text()),
        "/healthz" | "/healthz/ping" => response(StatusCode::OK, PLAIN, "ok".to_owned()),
        "/proxyMode" => response(StatusCode::OK, PLAIN, "nftables".to_owned()),
        _ => response(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n".to_owned()),
    }
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as StdStream;

    use super::*;

    /// Serves on a port of its own and gives what a client reads that sends `request` and waits.
    fn exchange(request: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let request = request.to_owned();
        let client = std::thread::spawn(move || {
            let mut stream = StdStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        });
        runtime.block_on(async {
            tokio::spawn(serve(listener, Metrics::new()));
            tokio::task::spawn_blocking(move || client.join().unwrap()).await.unwrap()
        })
    }

    fn get(path: &str) -> String {
        exchange(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    }

    #[test]
    fn proxy_mode_is_the_bare_word() {
        let text = get("/proxyMode");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("content-type: text/plain; charset=utf-8\r\n"), "{text}");
        assert!(text.contains("x-content-type-options: nosniff\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\nnftables"), "{text}");
    }

    #[test]
    fn health_and_unknown_paths() {
        assert!(get("/healthz").ends_with("\r\n\r\nok"));
        assert!(get("/healthz/ping").ends_with("\r\n\r\nok"));
        let unknown = get("/nothing");
        assert!(unknown.starts_with("HTTP/1.1 404"), "{unknown}");
        assert!(unknown.ends_with("\r\n\r\n404 page not found\n"), "{unknown}");
    }

    #[test]
    fn metrics_come_in_the_classic_text_format() {
        let text = get("/metrics");
        assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
        assert!(text.contains("# TYPE kubeproxy_nft_transactions_total counter\n"), "{text}");
    }

    #[test]
    fn an_endless_header_is_refused() {
        let text = exchange(&format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(2 * MAX_HEADER)));
        assert!(text.starts_with("HTTP/1.1 431"), "{text}");
    }
}

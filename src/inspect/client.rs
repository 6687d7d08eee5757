//! One GET from an HTTP server of a kube-proxy, with limits on time and size.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The most bytes of a response body; a larger one is an error.
const MOST: usize = 4 << 20;

/// How long [`page`] waits for a response.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns the body of a page of the running proxy. A health page has its body with every status, so 404 Not Found is the only status that
/// is an error.
///
/// # Errors
/// When the server does not send the whole page within three seconds, the page is larger than 4 MiB, or there is no such page.
pub fn page(address: SocketAddr, path: &str) -> Result<Bytes> {
    let client = Client::new(address, PATIENCE)?;
    let url = format!("http://{}{path}", client.address);
    match client.answer(path).with_context(|| format!("cannot get {url}"))? {
        (StatusCode::NOT_FOUND, _) => bail!("cannot get {url}: the server has no such page"),
        (_, body) => Ok(body),
    }
}

/// An HTTP client for one server.
pub(super) struct Client {
    address: SocketAddr,
    /// The timeout of one request.
    patience: Duration,
    runtime: Runtime,
}

impl Client {
    /// Makes a client for the server that listens on `address`; for a wildcard address the client connects to loopback.
    pub(super) fn new(address: SocketAddr, patience: Duration) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a client")?;
        Ok(Self { address: reachable(address), patience, runtime })
    }

    /// Gets the status and the body of a page.
    ///
    /// # Errors
    /// When the server does not send the whole response in time, or its body is larger than `MOST`.
    pub(super) fn answer(&self, path: &str) -> Result<(StatusCode, Bytes)> {
        let answer = self.runtime.block_on(async { timeout(self.patience, fetch(self.address, path)).await });
        answer.map_err(|_| anyhow!("no answer within {:?}", self.patience)).flatten()
    }

    /// Gets the body of a page of the metrics server.
    ///
    /// # Errors
    /// As [`Self::answer`], and when the status is not 200 OK.
    pub(super) fn get(&self, path: &str) -> Result<Bytes> {
        match self.answer(path) {
            Ok((StatusCode::OK, body)) => Ok(body),
            Ok((StatusCode::NOT_FOUND, _)) => bail!(
                "what answers at {} has no such page: it is another program, or another version of kube-proxy",
                self.address
            ),
            Ok((status, body)) => bail!("{} answers {status}: {}", self.address, String::from_utf8_lossy(&body).trim()),
            Err(error) => Err(error.context(format!(
                "no kube-proxy answers at {}; name its metrics address with --metrics-bind-address IP:PORT, or its \
                 configuration file with --config FILE",
                self.address
            ))),
        }
    }

    pub(super) fn wait(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

async fn fetch(address: SocketAddr, path: &str) -> Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header("Host", address.to_string()).body(Empty::<Bytes>::new())?;
    let exchange = async {
        let response = requests.send_request(request).await?;
        let (status, body) = (response.status(), response.into_body());
        let body = Limited::new(body, MOST).collect().await.map_err(|error| anyhow!(error))?.to_bytes();
        Ok((status, body))
    };
    tokio::select! {
        outcome = exchange => outcome,
        // When the connection breaks, its error says why, and the exchange may not have failed yet.
        Err(error) = connection => Err(error.into()),
    }
}

/// The address at which to reach a server on this host that listens on `listening`: loopback in place of a wildcard address.
fn reachable(listening: SocketAddr) -> SocketAddr {
    let ip = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listening.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_at_all_addresses_is_asked_over_loopback() {
        let asked = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:10249"), "127.0.0.1:10249");
        assert_eq!(asked("[::]:10249"), "[::1]:10249");
        assert_eq!(asked("192.0.2.7:99"), "192.0.2.7:99");
    }

    #[test]
    fn a_server_that_is_not_there_is_named_with_the_remedy() {
        // The kernel chooses a UDP port; it is unlikely that a program listens on the same port for TCP.
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = Client::new(taken.local_addr().unwrap(), Duration::from_secs(5)).unwrap();
        let error = format!("{:#}", client.get("/debug/changes").unwrap_err());
        assert!(error.starts_with("no kube-proxy answers at 127.0.0.1:"), "{error}");
        assert!(error.contains("--metrics-bind-address") && error.contains("refused"), "{error}");
    }
}

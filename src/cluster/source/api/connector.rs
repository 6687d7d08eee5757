//! Makes connections to the API server with TCP, a proxy if one is configured, and TLS.
//!
//! The module takes a server's URL and the route to the server, and returns streams to the connection pool of kube's client.
//!
//! Invariants: an attempt to connect ends within [`CONNECT_TIMEOUT`]. If a proxy is configured, no connection bypasses it. TCP keepalives
//! end a connection to a dead peer within 30 s.

use std::error::Error as StdError;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{self, HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::dns::GaiResolver;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use kube::config::Config;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::{Service, service_fn};

use super::error::chain;
use super::proxy::{Failure, Kind, Proxy, Route, host_and_port, without_brackets};
use super::tls;

/// The `User-Agent` of all requests.
pub(super) const USER_AGENT: &str = concat!("kube-proxy-nft/", env!("CARGO_PKG_VERSION"));

/// The time limit for an attempt to connect, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is idle before the kernel sends a keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// How long the kernel waits for the answer to a keepalive probe before it sends the next one.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// The number of unanswered keepalive probes after which the kernel ends the connection: 27 s after the last byte.
const KEEPALIVE_PROBES: u32 = 4;
/// TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged. If it is set, the kernel uses it instead of [`KEEPALIVE_PROBES`]
/// (tcp(7)), so it is just below the 27 s.
const USER_TIMEOUT: Duration = Duration::from_secs(26);

/// The largest sum of the lengths of user, password and target for a SOCKS proxy in bytes: hyper-util has a buffer of 262 bytes for its
/// three messages (method, user and password, target).
const MAX_SOCKS: usize = 249;
/// The smallest length that counts for a target in [`MAX_SOCKS`]: an IPv6 address takes as many bytes in a message as a name of this
/// length.
const IPV6: usize = 15;

type BoxError = Box<dyn StdError + Send + Sync>;

/// A stream of bytes.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Makes connections to one server. Clones have the same settings.
#[derive(Clone)]
pub(super) struct Connector(Arc<Settings>);

struct Settings {
    route: Route,
    tcp: HttpConnector,
    /// TLS to the server; `None` for a server without TLS.
    server: Option<TlsConnector>,
    /// The name that the server's certificate has to contain instead of the host in the URL (`tls-server-name`).
    server_name: Option<ServerName<'static>>,
    /// TLS to the proxy; `None` if there is no HTTPS proxy.
    proxy: Option<TlsConnector>,
}

impl Connector {
    /// Returns a connector for the server of this configuration.
    ///
    /// # Errors
    /// Fails if a certificate, a key or a server name for TLS cannot be used.
    pub(super) fn new(config: &Config, route: Route) -> anyhow::Result<Self> {
        let is_https = config.cluster_url.scheme_str() == Some("https");
        let has_tls = matches!(&route, Route::Through(Proxy { kind: Kind::Https, .. }));
        let connector = |settings| TlsConnector::from(Arc::new(settings));
        let server_name = config.tls_server_name.clone().map(ServerName::try_from).transpose()?;
        Ok(Self(Arc::new(Settings {
            route,
            tcp: tcp(GaiResolver::new()),
            server: is_https.then(|| tls::for_server(config)).transpose()?.map(connector),
            server_name,
            proxy: has_tls.then(|| tls::for_proxy(config)).transpose()?.map(connector),
        })))
    }

    /// Connects and returns the certificate that the server shows; `None` for a server without TLS.
    ///
    /// # Errors
    /// Fails if there is no connection.
    pub(super) async fn certificate(&self, server: &Uri) -> Result<Option<CertificateDer<'static>>, BoxError> {
        let until = Instant::now() + CONNECT_TIMEOUT;
        let (stream, _) = self.reach(server, until).await?;
        let Some(tls) = &self.0.server else { return Ok(None) };
        let secured = self.secure(tls, stream, server, until).await?;
        let chain = secured.get_ref().1.peer_certificates();
        Ok(chain.and_then(|chain| Some(chain.first()?.clone().into_owned())))
    }

    async fn connect(&self, server: &Uri) -> Result<Stream, BoxError> {
        let until = Instant::now() + CONNECT_TIMEOUT;
        let (stream, is_forwarded) = self.reach(server, until).await?;
        let stream = match &self.0.server {
            Some(tls) => Box::new(self.secure(tls, stream, server, until).await?),
            None => stream,
        };
        Ok(Stream { stream, is_forwarded })
    }

    /// Connects to the server, or to a proxy that forwards the requests. Returns the stream, and whether it leads to a proxy that forwards
    /// requests.
    async fn reach(&self, server: &Uri, until: Instant) -> Result<(Box<dyn Io>, bool), BoxError> {
        match &self.0.route {
            Route::Direct => {
                let stream = timeout_at(until, self.tcp(server)).await.map_err(|_| timed_out())??;
                Ok((Box::new(stream), false))
            }
            Route::Unusable(failure) => Err(failure.clone().into()),
            Route::Through(proxy) => {
                let reached = timeout_at(until, self.through(proxy, server)).await;
                let reached = reached.map_err(|_| Failure::Silent { proxy: proxy.to_string() })?;
                reached.map_err(|error| match error.downcast::<Failure>() {
                    Ok(failure) => failure,
                    Err(error) => Box::new(Failure::Unreachable { proxy: proxy.to_string(), reason: chain(&*error) }),
                } as BoxError)
            }
        }
    }

    async fn through(&self, proxy: &Proxy, server: &Uri) -> Result<(Box<dyn Io>, bool), BoxError> {
        let stream = self.tcp(&format!("http://{}:{}", proxy.host, proxy.port).parse()?).await?;
        let stream: Box<dyn Io> = match &self.0.proxy {
            Some(tls) => {
                let name = ServerName::try_from(without_brackets(&proxy.host).to_owned())?;
                Box::new(tls.connect(name, stream).await?)
            }
            None => Box::new(stream),
        };
        match (proxy.kind, &self.0.server) {
            (Kind::Socks5, _) => Ok((socks(stream, proxy, server).await?, false)),
            (Kind::Http | Kind::Https, Some(_)) => Ok((tunnel(stream, proxy, server).await?, false)),
            (Kind::Http | Kind::Https, None) => Ok((stream, true)),
        }
    }

    async fn tcp(&self, address: &Uri) -> Result<TcpStream, BoxError> {
        Ok(self.0.tcp.clone().call(address.clone()).await?.into_inner())
    }

    async fn secure(
        &self,
        tls: &TlsConnector,
        stream: Box<dyn Io>,
        server: &Uri,
        until: Instant,
    ) -> Result<TlsStream<Box<dyn Io>>, BoxError> {
        let name = match &self.0.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(without_brackets(server.host().unwrap_or_default()).to_owned())?,
        };
        Ok(timeout_at(until, tls.connect(name, stream)).await.map_err(|_| timed_out())??)
    }
}

/// Returns a connector for TCP that resolves names with `resolver`.
fn tcp<R>(resolver: R) -> HttpConnector<R> {
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    // hyper-util divides this time among the addresses of a name, so an address that does not answer leaves time for the next one.
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp
}

fn timed_out() -> BoxError {
    io::Error::from(ErrorKind::TimedOut).into()
}

/// Returns `host:port` of the server, as in the `Host` header.
fn authority(server: &Uri) -> Result<String, BoxError> {
    let (_, port) = host_and_port(server).ok_or("the URL of the server has no host")?;
    Ok(format!("{}:{port}", server.host().unwrap_or_default()))
}

/// Asks a SOCKS proxy for a connection to the server.
async fn socks(stream: Box<dyn Io>, proxy: &Proxy, server: &Uri) -> Result<Box<dyn Io>, BoxError> {
    let target: Uri = format!("http://{}", authority(server)?).parse()?;
    if let Some((user, password)) = &proxy.user
        && user.len() + password.len() + target.host().unwrap_or_default().len().max(IPV6) > MAX_SOCKS
    {
        return Err(proxy
            .unusable("user, password and the server's name together may have 249 bytes for SOCKS")
            .into());
    }
    let mut stream = Some(TokioIo::new(stream));
    // `SocksV5` asks this service once for a connection to the proxy. The service returns the connection that was already made.
    let connected = service_fn(move |_| ready(stream.take().ok_or("a second connection was asked for")));
    let mut socks = SocksV5::new(target.clone(), connected);
    if let Some((user, password)) = &proxy.user {
        socks = socks.with_auth(user.clone(), password.clone());
    }
    Ok(Box::new(socks.call(target).await.map_err(|error| error.to_string())?.into_inner()))
}

/// Asks an HTTP proxy for a tunnel to the server.
async fn tunnel(stream: Box<dyn Io>, proxy: &Proxy, server: &Uri) -> Result<Box<dyn Io>, BoxError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends when the connection becomes the tunnel, breaks, or the sender is dropped.
    tokio::spawn(connection.with_upgrades());
    let target = authority(server)?;
    let mut request = Request::connect(&*target)
        .header(HOST, &*target)
        .header(header::USER_AGENT, USER_AGENT)
        .body(Empty::<Bytes>::new())?;
    if let Some(authorization) = proxy.authorization() {
        let mut value = HeaderValue::from_str(&authorization)?;
        value.set_sensitive(true);
        request.headers_mut().insert(PROXY_AUTHORIZATION, value);
    }
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    if !status.is_success() {
        let (proxy, code) = (proxy.to_string(), status.as_u16());
        return Err(Failure::Refused { proxy, status: status.to_string(), code }.into());
    }
    Ok(Box::new(TokioIo::new(hyper::upgrade::on(answer).await?)))
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(&server).await.map(TokioIo::new) })
    }
}

/// A connection to the server, or to a proxy that forwards requests to it.
pub(super) struct Stream {
    stream: Box<dyn Io>,
    is_forwarded: bool,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        // Requests that a proxy forwards have to contain the whole URL.
        Connected::new().proxy(self.is_forwarded)
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::net::TcpSocket;

    use super::*;

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_for_the_next_one() {
        // The kernel answers no SYN to a listener whose queue is full.
        let full = TcpSocket::new_v4().unwrap();
        full.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        let listener = full.listen(0).unwrap();
        let silent = listener.local_addr().unwrap();
        let _waiting = TcpStream::connect(silent).await.unwrap();
        let good = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, silent.port())).await.unwrap();
        let addresses = [silent, good.local_addr().unwrap()];
        let resolver = service_fn(move |_| ready(Ok::<_, io::Error>(addresses.into_iter())));
        let url: Uri = format!("http://apiserver:{}", silent.port()).parse().unwrap();
        let connected = timeout_at(Instant::now() + CONNECT_TIMEOUT, tcp(resolver).call(url)).await;
        assert_eq!(connected.expect("in time").unwrap().into_inner().peer_addr().unwrap(), addresses[1]);
    }

    /// Connects through a SOCKS proxy that accepts everything, with a user and a password of these lengths. Returns the error's text, if
    /// connecting fails.
    async fn socks_with(user: usize, password: usize, server: &str) -> Option<String> {
        let url = format!("socks5://{}:{}@proxy", "u".repeat(user), "p".repeat(password));
        let proxy = Proxy::of_url("HTTPS_PROXY", &url).unwrap();
        let (ours, mut theirs) = duplex(4096);
        tokio::spawn(async move {
            let mut bytes = [0; 1024];
            for answer in [&[5, 2][..], &[1, 0], &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]] {
                // The client closes the connection after an error, so the read may return nothing.
                if theirs.read(&mut bytes).await.is_ok_and(|length| length > 0) {
                    theirs.write_all(answer).await.unwrap();
                }
            }
        });
        socks(Box::new(ours), &proxy, &server.parse().unwrap()).await.err().map(|error| chain(&*error))
    }

    #[tokio::test]
    async fn a_socks_proxy_gets_what_it_can_be_sent_and_the_rest_is_named() {
        let name = format!("https://{}:6443", "a".repeat(20));
        for (user, password, server, fits) in [
            (1, 1, &*name, true),
            (29, 200, &name, true),
            (30, 200, &name, false),
            (100, 134, "https://192.0.2.1:6443", true),
            (100, 134, "https://[2001:db8::1]:6443", true),
            (255, 255, &name, false),
        ] {
            let error = socks_with(user, password, server).await;
            assert_eq!(error.is_none(), fits, "{user} {password} {server}: {error:?}");
            assert!(
                error.is_none_or(|error| error.contains("HTTPS_PROXY: user, password and the server's name together"))
            );
        }
    }
}

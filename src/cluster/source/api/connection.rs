//! Sends requests to the API server and reads the answers, with a time limit for every wait.
//!
//! The module takes a request for a list or a watch, or a new object, and returns the answer's bytes and their format, or an [`Error`]. No
//! other module of the source sends requests.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::{ListParams, PostParams, WatchParams};
use kube::client::Body;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::client::{ClientOptions, Remarks, Server};
use super::decode::Status;
use super::error::{Error, chain};
use super::format::{Format, JSON, PROTOBUF};
use super::retry::Paced;
use component::excerpt::quoted;

/// How long the body of an error response may take to arrive.
const FAILURE_BODY: Duration = Duration::from_secs(5);
/// Credentials are renewed this long before they expire.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// The time between two checks whether a file of the configuration or the credentials was replaced.
const FILE_CHECK: Duration = Duration::from_secs(1);
/// The first wait before a plugin runs again whose credentials the server does not accept ([`Paced`]): the plugins of all nodes may ask one
/// server.
const FIRST_RERUN: Duration = Duration::from_secs(5);
/// The longest wait before such a plugin runs again.
const LONGEST_RERUN: Duration = Duration::from_secs(60);
/// The largest body of an error response that is used, in bytes.
const MAX_FAILURE_BODY: usize = 64 << 10;

/// A request to the API server.
#[derive(Debug)]
pub(super) enum Request {
    /// A page of a list.
    List(ListParams),
    /// A watch from this version; an empty version is for a streaming list.
    Watch(WatchParams, String),
    /// A new object, as JSON.
    Create(Vec<u8>),
}

/// The connection to one API server. Clones use one client; each kind of objects has a clone.
#[derive(Clone)]
pub(super) struct Connection {
    shared: Arc<Mutex<Shared>>,
    /// The values of `made` and `replaced` in [`Shared`] at the last request of this clone.
    used: (u64, u64),
    /// The server's URL, for messages.
    url: String,
    options: ClientOptions,
}

struct Shared {
    server: Server,
    /// How often the configuration was read again for a new client.
    made: u64,
    /// How many replacements of the client's files were noticed.
    replaced: u64,
    /// Limits how often a plugin runs again because the server does not accept its credentials.
    reruns: Paced,
}

/// A piece of a response.
pub(super) enum Chunk<B> {
    /// The next bytes of the body.
    Bytes(B),
    /// The response is complete.
    End,
    /// Nothing arrived in time.
    TimedOut,
}

impl Connection {
    /// Makes a connection from the configuration. Sends nothing, and runs no credential plugin.
    ///
    /// # Errors
    /// Fails if there is no configuration, or if it cannot be read or used.
    pub(super) async fn new(options: ClientOptions) -> anyhow::Result<Self> {
        let server = Server::without_plugin(&options)?;
        server.remarks.log(&Remarks::default());
        let url = server.url.clone();
        let shared = Shared { server, made: 0, replaced: 0, reruns: Paced::new(FIRST_RERUN, LONGEST_RERUN) };
        Ok(Self { shared: Arc::new(Mutex::new(shared)), used: (0, 0), url, options })
    }

    /// Reads the configuration again, because its certificates and credentials may be new. Does nothing if another clone has made a new
    /// client since this clone's last request, or if no file has changed and a plugin would have to run again too soon.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Server::new`]; the old configuration then stays in use.
    pub(super) async fn renew(&mut self) -> anyhow::Result<()> {
        let mut shared = self.shared.lock().await;
        if shared.made != self.used.0 {
            return Ok(());
        }
        if !shared.server.has_plugin
            || shared.server.files.differ()
            || shared.reruns.may_happen(Instant::now().into_std())
        {
            shared.make(&self.options).await?;
        }
        Ok(())
    }

    /// Reads the configuration again if one of its files was replaced, so that new credentials are used before the old ones expire. Does
    /// nothing if no credentials are in use; the next request reads them.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Connection::renew`], once for each change of the files.
    pub(super) async fn refresh(&mut self) -> anyhow::Result<()> {
        let mut shared = self.shared.lock().await;
        if shared.server.files.take_change() {
            shared.replaced += 1;
            if shared.server.client.is_some() {
                shared.make(&self.options).await?;
            }
        }
        Ok(())
    }

    /// Waits until a file of the configuration or of the credentials was replaced since the last attempt of this clone to send a request.
    pub(super) async fn outdated(&self) {
        loop {
            let shared = self.shared.lock().await;
            if shared.replaced != self.used.1 || shared.server.files.differ() {
                return;
            }
            drop(shared);
            sleep(FILE_CHECK).await;
        }
    }

    /// Returns the server's URL, without user, password and query.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the proxy on the way to the server, if there is one, without user and password.
    pub(super) async fn proxy(&self) -> Option<String> {
        self.shared.lock().await.server.remarks.proxy.clone()
    }

    /// Returns the client. Makes a new one if there is none or the credentials expire soon. Waits while another clone waits for a plugin.
    async fn client(&mut self) -> Result<Client, Error> {
        let mut shared = self.shared.lock().await;
        let client = match &shared.server.client {
            Some(client) if !is_ending(client) => Ok(client.clone()),
            _ => shared.make(&self.options).await.map_err(|error| Error::Credentials(format!("{error:#}"))),
        };
        self.used = (shared.made, shared.replaced);
        self.url.clone_from(&shared.server.url);
        client
    }

    /// Sends a request and waits for the start of the response.
    ///
    /// # Errors
    /// Fails if there are no credentials, no connection or no response in time, or if the response has a status other than 200 and 201 or
    /// is neither JSON nor protobuf.
    pub(super) async fn send(&mut self, path: &str, request: &Request, patience: Duration) -> Result<Response, Error> {
        let builder = kube::core::Request::new(path);
        let built = match request {
            Request::List(params) => builder.list(params),
            Request::Watch(params, version) => builder.watch(params, version),
            Request::Create(object) => builder.create(&PostParams::default(), object.clone()),
        };
        let mut built = built.map_err(|error| Error::Malformed(error.to_string()))?;
        if is_of_any_version(request) {
            let uri = format!("{}&resourceVersion=0", built.uri());
            *built.uri_mut() = uri.parse().map_err(|_| Error::Malformed("the address of a list is no URI".into()))?;
        }
        if !matches!(request, Request::Create(_)) {
            let accept =
                self.options.accept.parse().map_err(|_| Error::Malformed("the Accept header is no text".into()))?;
            built.headers_mut().insert("accept", accept);
        }
        let client = self.client().await?;
        let sent = client.send(built.map(Body::from));
        let response = timeout(patience, sent).await.map_err(|_| Error::Silent(patience))?;
        let response = response.map_err(|error| Error::of_request(&error))?;
        let code = response.status().as_u16();
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        let format = Format::of(content_type);
        let mut response = Response { body: response.into_body(), format: Format::Json };
        if matches!(code, 200 | 201) {
            response.format = format.map_err(|other| {
                Error::Malformed(format!(
                    "an answer of content type {}, which is neither {PROTOBUF} nor {JSON}",
                    quoted(&other)
                ))
            })?;
            return Ok(response);
        }
        let body = response.read_all(MAX_FAILURE_BODY, FAILURE_BODY, FAILURE_BODY).await.unwrap_or_default();
        let status = Status { code, ..Status::of_body(&body) };
        Err(Error::of_status(status, retry_after.map(Duration::from_secs)))
    }
}

impl Shared {
    async fn make(&mut self, options: &ClientOptions) -> anyhow::Result<Client> {
        self.replaced += u64::from(self.server.files.differ());
        let server = Server::new(options).await?;
        server.remarks.log(&self.server.remarks);
        self.server = server;
        self.made += 1;
        self.server.client.clone().context("the credential plugin has not run yet")
    }
}

/// Returns whether the request is a list that has a limit and accepts any version (`resourceVersion=0`). The kube library omits the version
/// in such a request, so the caller adds it. The limit is for servers without a watch cache.
fn is_of_any_version(request: &Request) -> bool {
    matches!(request, Request::List(params) if params.limit.is_some() && params.resource_version.as_deref() == Some("0"))
}

/// Returns whether the credentials of a client expire within [`MARGIN`] or have expired.
fn is_ending(client: &Client) -> bool {
    client.valid_until().is_some_and(|end| Timestamp::now() + MARGIN >= end)
}

/// A response whose body has not arrived completely.
pub(super) struct Response {
    body: Body,
    /// How the body is encoded.
    pub(super) format: Format,
}

impl Response {
    /// Waits for the next bytes, at most until `until`.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub(super) async fn chunk(&mut self, until: Instant) -> Result<Chunk<impl AsRef<[u8]> + use<>>, Error> {
        loop {
            let frame = self.body.frame();
            match timeout_at(until, frame).await {
                Err(_) => return Ok(Chunk::TimedOut),
                Ok(None) => return Ok(Chunk::End),
                Ok(Some(Err(error))) => {
                    return Err(Error::Broken(format!("the connection broke: {}", chain(&error))));
                }
                Ok(Some(Ok(frame))) => {
                    // Ignore a frame without data, which is a trailer.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Chunk::Bytes(bytes));
                    }
                }
            }
        }
    }

    /// Waits for the complete body.
    ///
    /// # Errors
    /// Fails if the connection breaks, nothing arrives for `stall`, the body takes longer than `patience`, or the body has more than
    /// `limit` bytes.
    pub(super) async fn read_all(
        &mut self,
        limit: usize,
        stall: Duration,
        patience: Duration,
    ) -> Result<Vec<u8>, Error> {
        let until = Instant::now() + patience;
        let mut all = Vec::new();
        loop {
            match self.chunk((Instant::now() + stall).min(until)).await? {
                Chunk::End => return Ok(all),
                Chunk::TimedOut if Instant::now() >= until && !all.is_empty() => return Err(Error::Late(patience)),
                Chunk::TimedOut => return Err(Error::Silent(stall)),
                Chunk::Bytes(bytes) => all.extend_from_slice(bytes.as_ref()),
            }
            if all.len() > limit {
                return Err(Error::Malformed(format!("an answer of more than {limit} bytes")));
            }
        }
    }
}

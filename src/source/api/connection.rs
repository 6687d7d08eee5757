//! Requests to the API server and their answers, with a limit to every wait.
//!
//! Takes what to list or watch, gives the answer's bytes or a [`Failure`]. The only file here that talks to the network.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::client::Body;
use kube::core::Request;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::client::{ClientOptions, Server};
use super::explain::chain;
use super::failure::Failure;
use super::frame;

/// How long the body of a failure may take to come. It is only words.
const WORDS: Duration = Duration::from_secs(5);
/// How long before their end credentials are renewed.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// How often the files of the credentials are looked at while the server does not let us in.
const LOOK: Duration = Duration::from_secs(1);
/// The largest body of a failure that is read, in bytes.
const MAX_WORDS: usize = 64 << 10;

/// What is asked for.
#[derive(Debug)]
pub(super) enum Ask {
    /// A page of a list.
    List(ListParams),
    /// A watch, from this version; from the empty one for a streaming list.
    Watch(WatchParams, String),
}

/// The way to one API server. Clones share the client.
#[derive(Clone)]
pub(super) struct Connection {
    shared: Arc<Mutex<Shared>>,
    /// Which of the clients was used last, and how many replaced files it knew.
    used: (u64, u64),
    /// The server's URL, for messages.
    url: String,
    options: ClientOptions,
}

struct Shared {
    server: Server,
    /// How often a client was made.
    made: u64,
    /// How often one of the files that it is made from was replaced, as far as was noticed.
    replaced: u64,
}

/// A piece of an answer.
pub(super) enum Chunk<B> {
    /// Some bytes.
    Bytes(B),
    /// The answer is complete.
    End,
    /// Nothing came in time.
    Late,
}

impl Connection {
    /// The way that the options describe.
    ///
    /// # Errors
    /// As for [`client`].
    pub(super) async fn new(options: ClientOptions) -> anyhow::Result<Self> {
        let server = Server::without_plugin(&options).await?;
        let url = server.url.clone();
        let shared = Shared { server, made: 0, replaced: 0 };
        Ok(Self { shared: Arc::new(Mutex::new(shared)), used: (0, 0), url, options })
    }

    /// Reads the configuration again: certificates and credentials in it may be new. Does nothing when a clone did so since the last
    /// request of this one.
    ///
    /// # Errors
    /// As for [`client`]; the old configuration stays in use.
    pub(super) async fn renew(&mut self) -> anyhow::Result<()> {
        let mut shared = self.shared.lock().await;
        if shared.made == self.used.0 {
            shared.make(&self.options).await?;
        }
        Ok(())
    }

    /// Reads the configuration again if one of its files changed: credentials are replaced before the old ones expire.
    ///
    /// # Errors
    /// As for [`Connection::renew`], once for each change.
    pub(super) async fn refresh(&mut self) -> anyhow::Result<()> {
        let mut shared = self.shared.lock().await;
        if shared.server.take_change() {
            shared.replaced += 1;
            shared.make(&self.options).await?;
        }
        Ok(())
    }

    /// Waits until a file of the configuration or of the credentials was replaced since the last request of this clone.
    pub(super) async fn outdated(&self) {
        loop {
            let shared = self.shared.lock().await;
            if shared.replaced != self.used.1 || shared.server.is_outdated() {
                return;
            }
            drop(shared);
            sleep(LOOK).await;
        }
    }

    /// The server's URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The client, a new one when the credentials of the last one end. Waits while another clone waits for a plugin.
    async fn client(&mut self) -> Result<Client, Failure> {
        let mut shared = self.shared.lock().await;
        let client = match &shared.server.client {
            Some(client) if !is_ending(client) => client.clone(),
            _ => shared.make(&self.options).await.map_err(|error| Failure::Credentials(format!("{error:#}")))?,
        };
        self.used = (shared.made, shared.replaced);
        self.url.clone_from(&shared.server.url);
        Ok(client)
    }

    /// Sends a request and waits for the start of its answer.
    ///
    /// # Errors
    /// No credentials, no connection, no answer in time, or one other than 200.
    pub(super) async fn ask(&mut self, path: &str, ask: &Ask, patience: Duration) -> Result<Answer, Failure> {
        let request = Request::new(path);
        let request = match ask {
            Ask::List(params) => request.list(params),
            Ask::Watch(params, version) => request.watch(params, version),
        };
        let request = request.map_err(|error| Failure::Garbage(error.to_string()))?;
        let client = self.client().await?;
        let sent = client.send(request.map(Body::from));
        let response = timeout(patience, sent).await.map_err(|_| Failure::Silent(patience))?;
        let response = response.map_err(|error| Failure::of_request(&error))?;
        let code = response.status().as_u16();
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let mut answer = Answer { body: response.into_body() };
        if code == 200 {
            return Ok(answer);
        }
        let words = answer.all(MAX_WORDS, WORDS, WORDS).await.unwrap_or_default();
        let status = frame::Status { code, ..frame::status_or_text(&words) };
        Err(Failure::of_status(status, retry_after.map(Duration::from_secs)))
    }
}

impl Shared {
    async fn make(&mut self, options: &ClientOptions) -> anyhow::Result<Client> {
        self.replaced += u64::from(self.server.is_outdated());
        self.server = Server::new(options).await?;
        self.made += 1;
        self.server.client.clone().context("no client")
    }
}

/// Whether the credentials are no longer good for long enough.
fn is_ending(client: &Client) -> bool {
    client.valid_until().is_some_and(|end| Timestamp::now() + MARGIN >= end)
}

/// An answer that is under way.
pub(super) struct Answer {
    body: Body,
}

impl Answer {
    /// The next bytes.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn chunk(&mut self, until: Instant) -> Result<Chunk<impl AsRef<[u8]> + use<>>, Failure> {
        loop {
            let frame = self.body.frame();
            match timeout_at(until, frame).await {
                Err(_) => return Ok(Chunk::Late),
                Ok(None) => return Ok(Chunk::End),
                Ok(Some(Err(error))) => {
                    return Err(Failure::Broken(format!("the connection broke: {}", chain(&error))));
                }
                Ok(Some(Ok(frame))) => {
                    // Anything else is a trailer.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Chunk::Bytes(bytes));
                    }
                }
            }
        }
    }

    /// The whole answer.
    ///
    /// # Errors
    /// The connection broke, nothing came for `stall`, or the answer takes more than `patience` or `limit` bytes.
    pub(super) async fn all(&mut self, limit: usize, stall: Duration, patience: Duration) -> Result<Vec<u8>, Failure> {
        let until = Instant::now() + patience;
        let mut all = Vec::new();
        loop {
            match self.chunk((Instant::now() + stall).min(until)).await? {
                Chunk::End => return Ok(all),
                Chunk::Late if Instant::now() >= until => return Err(Failure::Silent(patience)),
                Chunk::Late => return Err(Failure::Silent(stall)),
                Chunk::Bytes(bytes) => all.extend_from_slice(bytes.as_ref()),
            }
            if all.len() > limit {
                return Err(Failure::Garbage(format!("an answer of more than {limit} bytes")));
            }
        }
    }
}

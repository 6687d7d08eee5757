//! Requests to the API server and their answers, with a limit to every wait.
//!
//! Takes what to list or watch, gives the answer's bytes, or lines of them, or an [`Error`]. The only file here that talks to the network.
//!
//! Invariant: a line needs memory for its limit plus one chunk.

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

use super::client::{ClientOptions, Server};
use super::decode::Status;
use super::error::{Error, chain};

/// How long the body of a failure may take to arrive. Only its message is used.
const FAILURE_BODY: Duration = Duration::from_secs(5);
/// How long before their expiry credentials are renewed.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// How often the files of the credentials are checked while the server refuses them.
const FILE_CHECK: Duration = Duration::from_secs(1);
/// The largest body of a failure that is read, in bytes.
const MAX_FAILURE_BODY: usize = 64 << 10;
/// Memory that an idle line buffer may keep, in bytes.
const KEEP: usize = 256 << 10;

/// A request.
#[derive(Debug)]
pub(super) enum Request {
    /// A page of a list.
    List(ListParams),
    /// A watch, from this version; from the empty one for a streaming list.
    Watch(WatchParams, String),
    /// A new object, as JSON.
    Create(Vec<u8>),
}

/// The connection to one API server. Clones share the client, and each serves one kind.
#[derive(Clone)]
pub(super) struct Connection {
    shared: Arc<Mutex<Shared>>,
    /// `made` and `replaced` of [`Shared`] at the last request.
    used: (u64, u64),
    /// The server's URL, for messages.
    url: String,
    options: ClientOptions,
}

struct Shared {
    server: Server,
    /// How many clients were made.
    made: u64,
    /// How many replacements of the client's files were noticed.
    replaced: u64,
}

/// A piece of a response.
pub(super) enum Chunk<B> {
    /// Some bytes.
    Bytes(B),
    /// The response is complete.
    End,
    /// Nothing arrived in time.
    TimedOut,
}

impl Connection {
    /// Reads the configuration. Sends nothing, and runs no credential plugin.
    ///
    /// # Errors
    /// The configuration cannot be read, or there is none.
    pub(super) async fn new(options: ClientOptions) -> anyhow::Result<Self> {
        let server = Server::without_plugin(&options).await?;
        let url = server.url.clone();
        let shared = Shared { server, made: 0, replaced: 0 };
        Ok(Self { shared: Arc::new(Mutex::new(shared)), used: (0, 0), url, options })
    }

    /// Reads the configuration again, because its certificates and credentials may be new. Does nothing when another clone did so since
    /// the last request of this one.
    ///
    /// # Errors
    /// As for [`Server::new`]; the old configuration stays in use.
    pub(super) async fn renew(&mut self) -> anyhow::Result<()> {
        let mut shared = self.shared.lock().await;
        if shared.made == self.used.0 {
            shared.make(&self.options).await?;
        }
        Ok(())
    }

    /// Reads the configuration again if one of its files was replaced, so that new credentials are used before the old ones expire.
    ///
    /// # Errors
    /// As for [`Connection::renew`], once for each change.
    pub(super) async fn refresh(&mut self) -> anyhow::Result<()> {
        let mut shared = self.shared.lock().await;
        if shared.server.files.take_change() {
            shared.replaced += 1;
            shared.make(&self.options).await?;
        }
        Ok(())
    }

    /// Waits until a file of the configuration or of the credentials was replaced since the last request of this clone.
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

    /// The server's URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The client; a new one when the credentials of the last one expire soon. Waits while another clone waits for a plugin.
    async fn client(&mut self) -> Result<Client, Error> {
        let mut shared = self.shared.lock().await;
        let client = match &shared.server.client {
            Some(client) if !is_ending(client) => client.clone(),
            _ => shared.make(&self.options).await.map_err(|error| Error::Credentials(format!("{error:#}")))?,
        };
        self.used = (shared.made, shared.replaced);
        self.url.clone_from(&shared.server.url);
        Ok(client)
    }

    /// Sends a request and waits for the start of the response.
    ///
    /// # Errors
    /// No credentials, no connection, no response in time, or one with another status than 200 and 201.
    pub(super) async fn send(&mut self, path: &str, request: &Request, patience: Duration) -> Result<Response, Error> {
        let builder = kube::core::Request::new(path);
        let request = match request {
            Request::List(params) => builder.list(params),
            Request::Watch(params, version) => builder.watch(params, version),
            Request::Create(object) => builder.create(&PostParams::default(), object.clone()),
        };
        let request = request.map_err(|error| Error::Malformed(error.to_string()))?;
        let client = self.client().await?;
        let sent = client.send(request.map(Body::from));
        let response = timeout(patience, sent).await.map_err(|_| Error::Silent(patience))?;
        let response = response.map_err(|error| Error::of_request(&error))?;
        let code = response.status().as_u16();
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let mut response = Response(response.into_body());
        if matches!(code, 200 | 201) {
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
        self.server = Server::new(options).await?;
        self.made += 1;
        self.server.client.clone().context("no client")
    }
}

/// Whether the credentials expire soon.
fn is_ending(client: &Client) -> bool {
    client.valid_until().is_some_and(|end| Timestamp::now() + MARGIN >= end)
}

/// A response whose body is under way.
pub(super) struct Response(Body);

impl Response {
    /// The next bytes.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn chunk(&mut self, until: Instant) -> Result<Chunk<impl AsRef<[u8]> + use<>>, Error> {
        loop {
            let frame = self.0.frame();
            match timeout_at(until, frame).await {
                Err(_) => return Ok(Chunk::TimedOut),
                Ok(None) => return Ok(Chunk::End),
                Ok(Some(Err(error))) => {
                    return Err(Error::Broken(format!("the connection broke: {}", chain(&error))));
                }
                Ok(Some(Ok(frame))) => {
                    // A frame without data is a trailer, which is not used.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Chunk::Bytes(bytes));
                    }
                }
            }
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// The connection broke, nothing arrived for `stall`, or the body takes longer than `patience` or has more than `limit` bytes.
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
                Chunk::TimedOut if Instant::now() >= until => return Err(Error::Silent(patience)),
                Chunk::TimedOut => return Err(Error::Silent(stall)),
                Chunk::Bytes(bytes) => all.extend_from_slice(bytes.as_ref()),
            }
            if all.len() > limit {
                return Err(Error::Malformed(format!("an answer of more than {limit} bytes")));
            }
        }
    }
}

/// A line is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineTooLong;

/// Cuts chunks of bytes, as the network delivers them, into lines.
#[derive(Debug)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// Where the next line starts.
    start: usize,
    /// Up to where the end of a line was searched for and not found.
    searched: usize,
    limit: usize,
}

impl LineBuffer {
    /// An empty buffer. `limit` is the longest line, in bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, searched: 0, limit }
    }

    /// Adds a chunk.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEEP);
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// The next whole line without its end; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The line is too long, whether its end is there or not.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        let Some(length) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return if self.searched - self.start > self.limit { Err(LineTooLong) } else { Ok(None) };
        };
        let (start, end) = (self.start, self.searched + length);
        if end - start > self.limit {
            return Err(LineTooLong);
        }
        self.start = end + 1;
        self.searched = self.start;
        Ok(Some(&self.bytes[start..end]))
    }

    /// Bytes of a line whose end is missing.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines of a text that comes in chunks of a size.
    fn cut(text: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut lines = LineBuffer::new(100);
        let mut found = Vec::new();
        for chunk in text.chunks(size) {
            lines.push(chunk);
            while let Some(line) = lines.next().unwrap() {
                found.push(line.to_vec());
            }
        }
        found
    }

    #[test]
    fn chunks_may_end_anywhere_in_a_line() {
        let text = "{\"a\":1}\n\n{\"ö\":2}\nunfinished".as_bytes();
        for size in 1..=text.len() {
            assert_eq!(cut(text, size), [&b"{\"a\":1}"[..], b"", "{\"ö\":2}".as_bytes()], "{size}");
        }
    }

    #[test]
    fn a_line_has_a_limit_whether_it_ends_or_not() {
        let mut lines = LineBuffer::new(4);
        lines.push(b"1234\n12345");
        assert_eq!(lines.next(), Ok(Some(&b"1234"[..])));
        assert_eq!(lines.next(), Err(LineTooLong));
        let mut lines = LineBuffer::new(4);
        lines.push(b"12345\n");
        assert_eq!(lines.next(), Err(LineTooLong));
    }

    #[test]
    fn the_memory_of_a_long_line_is_released() {
        let mut lines = LineBuffer::new(8 << 20);
        lines.push(&vec![b'x'; 4 << 20]);
        assert_eq!(lines.next(), Ok(None));
        assert_eq!(lines.pending(), 4 << 20);
        lines.push(b"\n");
        assert!(lines.next().unwrap().is_some());
        lines.push(b"y");
        assert!(lines.bytes.capacity() <= KEEP, "{}", lines.bytes.capacity());
    }
}

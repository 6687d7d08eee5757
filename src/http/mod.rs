//! A small HTTP/1.1 server with limits, for everything that this program serves: fixed pages that are made in memory.
//!
//! Takes an address and a function from requests to answers; gives a running [`Server`]. Knows nothing of what is served.
//!
//! Invariants: whoever comes is let in at once, and a server holds no more connections than it has [`Places`]: when there are too
//! many, the one that has waited longest for its client goes; a client that sends its header slowly, stays idle or does not read
//! its answer loses its place after a bounded time; of a request's body no more
//! than [`MAX_BODY`] bytes are ever read, and none unless the answer asks for it; a server that is closed frees its port at once
//! and lets the requests that are on their way be answered.

mod listen;
mod places;
mod server;

use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Request, Response, StatusCode};
use tokio::time::timeout;

pub use listen::{bind, bind_like_go, bind_with_retry, check};
pub use places::Places;
pub use server::{Limits, Server};

/// What comes in. Its body has not been read.
pub type Asked = Request<Incoming>;
/// What goes out: a body that is whole and in memory.
pub type Answer = Response<Full<Bytes>>;

/// Content type of a plain text.
pub const PLAIN: &str = "text/plain; charset=utf-8";
/// Content type of JSON.
pub const JSON: &str = "application/json";

/// The largest body that [`small_body`] reads, in bytes.
pub const MAX_BODY: usize = 1024;
/// The longest that [`small_body`] waits for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer that browsers do not second-guess.
#[must_use]
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// What Go answers for a path that nobody serves.
#[must_use]
pub fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n")
}

/// 200 or 503.
#[must_use]
pub const fn status(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// The body of a request as text; `None` when it is longer than [`MAX_BODY`], not UTF-8, or does not arrive in time.
pub async fn small_body(request: Asked) -> Option<String> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let bytes = timeout(BODY_TIMEOUT, body).await.ok()?.ok()?.to_bytes();
    String::from_utf8(bytes.into()).ok()
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

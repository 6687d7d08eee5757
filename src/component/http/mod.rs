//! A small HTTP/1.1 server with limits, for all pages that this program serves. Responses are made in memory.
//!
//! The module takes a listener and a function from requests to responses, and returns a running `Server`. It knows nothing about the pages.
//!
//! Invariants: a server accepts every new client and serves no more connections than its `ConnectionLimit`: to serve a client beyond the
//! limit, it closes another connection. A client that sends its header slowly, stays idle or does not read its response loses its
//! connection after a bounded time. A server reads at most `MAX_BODY` bytes of a request's body, and only if the page needs the body. A
//! server that is closed frees its port, and answers the requests that have arrived.

mod limit;
mod listen;
mod server;

use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::StatusCode;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use tokio::time::timeout;

pub use limit::ConnectionLimit;
pub use listen::{bind, bind_with_retry, check, failure};
pub use server::{Ends, Limits, Server};

/// A request whose body has not been read.
pub type Request = hyper::Request<Incoming>;
/// A response whose complete body is in memory.
pub type Response = hyper::Response<Full<Bytes>>;

/// Content type of a plain text.
pub const PLAIN: &str = "text/plain; charset=utf-8";
/// Content type of JSON.
pub const JSON: &str = "application/json";

/// The largest body that [`small_body`] reads, in bytes.
pub(crate) const MAX_BODY: usize = 1024;
/// The longest time that [`small_body`] waits for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns a response with header `X-Content-Type-Options: nosniff`, so that browsers do not guess another content type.
#[must_use]
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the same response as Go's HTTP server for an unknown path.
#[must_use]
pub fn not_found() -> Response {
    response(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n")
}

/// Returns status 200 if `good`, else 503.
#[must_use]
pub const fn status(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Reads the body of a request and returns it as text; `None` if the body is longer than `MAX_BODY`, is not UTF-8, or does not arrive
/// within `BODY_TIMEOUT`.
pub async fn small_body(request: Request) -> Option<String> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let bytes = timeout(BODY_TIMEOUT, body).await.ok()?.ok()?.to_bytes();
    String::from_utf8(bytes.into()).ok()
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

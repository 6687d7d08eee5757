//! The metrics server: `/metrics`, other pages that upstream serves on the same port, and two pages of this program below `/debug`.
//!
//! Takes [`Pages`] and [`Metrics`], and serves them over plain HTTP. Two requests change something: a PUT to `/debug/flags/v`, a page that
//! exists only with profiling, sets the log's verbosity, and a DELETE of `/metrics/slis` resets the metrics of that page.
//!
//! `/debug/changes` and `/debug/endpoints/NAMESPACE/NAME` always answer clients on this host. Clients on other hosts get them only with
//! profiling, because they name Services, endpoints and programs. All other pages below `/debug` need profiling.
//!
//! `/debug/pprof` only says why it is empty: upstream's profiles are those of the Go runtime.

mod causes;
mod negotiate;
pub(crate) mod questions;
mod slis;
mod zpages;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, VARY};
use hyper::{Method, StatusCode};
use tracing::info;

use super::Metrics;
use super::text;
use crate::history::History;
use component::http::{self, ConnectionLimit, Ends, JSON, Limits, PLAIN, Request, Response, Server};
use inspect::history::Query;
use questions::Asker;
use slis::Slis;
use zpages::{Flagz, Statusz};

/// Content type of the classic text format.
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Content type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Sets the verbosity of the log.
pub(crate) type SetVerbosity = Arc<dyn Fn(u32) + Send + Sync>;

/// The contents of the pages other than the metrics, or where they come from.
#[derive(Clone)]
pub(crate) struct Pages {
    /// The body of `/configz`: `{"kubeproxy.config.k8s.io": ...}`.
    pub(crate) configz: String,
    /// Every flag with its value, for `/flagz`; `None` if the feature gate ComponentFlagz is off.
    pub(crate) flagz: Option<Vec<(String, String)>>,
    /// The versions for `/statusz`; `None` if the feature gate ComponentStatusz is off.
    pub(crate) statusz: Option<Versions>,
    /// The history for `/debug/changes`.
    pub(crate) changes: History,
    /// Asks the sync thread, for `/debug/endpoints`.
    pub(crate) causes: Asker,
    /// Sets the log's verbosity, for the rest of `/debug`; `None` without `enableProfiling`.
    pub(crate) debug: Option<SetVerbosity>,
}

/// The versions that `/statusz` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// The version of this program.
    pub(crate) binary: String,
    /// The Kubernetes release whose behaviour this program follows.
    pub(crate) emulation: String,
}

/// Where the pages are served.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    /// The address. The unspecified address of either family stands for all addresses of both families, as in Go.
    pub(crate) address: SocketAddr,
    /// Whether a failure to listen ends the server; otherwise it tries again (O8).
    pub(crate) hard_fail: bool,
    /// The limit of its connections.
    pub(crate) connections: ConnectionLimit,
}

/// Serves until the process ends.
///
/// # Errors
/// With `hard_fail`, the first failure to bind (O8).
pub(crate) async fn run(listen: Listen, metrics: Metrics, pages: Pages) -> io::Result<()> {
    let Listen { address, hard_fail, connections } = listen;
    let listener = http::bind_with_retry("metrics", address, hard_fail).await?;
    info!(%address, "Serving metrics");
    let router = Arc::new(Router::new(metrics, pages));
    let respond = move |request| Arc::clone(&router).respond(request);
    Server::start(listener, Limits { connections, ..Limits::default() }, respond).forever().await;
    Ok(())
}

/// Routes requests to the pages.
struct Router {
    metrics: Metrics,
    slis: Slis,
    configz: String,
    flagz: Option<Flagz>,
    statusz: Option<Statusz>,
    changes: History,
    causes: Asker,
    debug: Option<SetVerbosity>,
}

impl Router {
    fn new(metrics: Metrics, pages: Pages) -> Self {
        let Pages { configz, flagz, statusz, changes, causes, debug } = pages;
        let flagz = flagz.map(Flagz::new);
        let paths = [("/configz", true), ("/flagz", flagz.is_some()), ("/healthz", true), ("/metrics", true)];
        let paths = paths.into_iter().chain([("/proxyMode", true)]).filter(|(_, there)| *there);
        let paths = paths.map(|(path, _)| path).collect();
        let statusz = statusz.map(|versions| Statusz::new(versions, paths, SystemTime::now(), Instant::now()));
        Self { metrics, slis: Slis::new(), configz, flagz, statusz, changes, causes, debug }
    }

    async fn respond(self: Arc<Self>, request: Request) -> Response {
        let headers = request.headers();
        let ends = request.extensions().get().copied();
        match request.uri().path() {
            "/metrics" => exposition(headers, self.metrics.open_metrics()),
            "/metrics/slis" => self.slis(&request),
            "/healthz" => self.healthz(request.uri().query()),
            "/healthz/ping" => http::response(StatusCode::OK, PLAIN, "ok"),
            "/proxyMode" => http::response(StatusCode::OK, PLAIN, "nftables"),
            "/configz" => http::response(StatusCode::OK, JSON, self.configz.clone()),
            "/flagz" => self.flagz.as_ref().map_or_else(http::not_found, |flagz| flagz.respond(accepted(headers))),
            "/statusz" => self
                .statusz
                .as_ref()
                .map_or_else(http::not_found, |statusz| statusz.respond(accepted(headers), Instant::now())),
            "/debug/changes" => self.changes(ends, request.uri().query().unwrap_or_default()),
            path if path.starts_with(causes::PATH) && self.may_see(ends) => causes::respond(&self.causes, path).await,
            path => match &self.debug {
                Some(set_verbosity) if path.starts_with("/debug/") => debug(request, set_verbosity).await,
                _ => http::not_found(),
            },
        }
    }

    fn slis(&self, request: &Request) -> Response {
        if request.method() == Method::DELETE {
            self.slis.reset();
            return http::response(StatusCode::OK, PLAIN, "metrics reset\n");
        }
        exposition(request.headers(), self.slis.open_metrics())
    }

    /// Returns whether a client may see pages that name Services and endpoints: it is on this host, or profiling is on.
    fn may_see(&self, ends: Option<Ends>) -> bool {
        ends.is_some_and(Ends::are_on_one_host) || self.debug.is_some()
    }

    /// The history page: what the proxy did lately.
    fn changes(&self, ends: Option<Ends>, query: &str) -> Response {
        if !self.may_see(ends) {
            return http::not_found();
        }
        match Query::parse(query) {
            Ok(query) => {
                let page = self.changes.snapshot(query.after).page(&query, SystemTime::now());
                http::response(StatusCode::OK, JSON, page)
            }
            Err(wrong) => http::response(StatusCode::BAD_REQUEST, PLAIN, wrong),
        }
    }

    /// Shows that this server responds; independent of the health of the proxy.
    fn healthz(&self, query: Option<&str>) -> Response {
        self.slis.checked();
        let mut parameters = query.unwrap_or_default().split('&').map(|pair| pair.split('=').next());
        let verbose = parameters.any(|name| name == Some("verbose"));
        let body = if verbose { "[+]ping ok\nhealthz check passed\n" } else { "ok" };
        http::response(StatusCode::OK, PLAIN, body)
    }
}

fn accepted(headers: &HeaderMap) -> Option<&str> {
    headers.get(ACCEPT).and_then(|value| value.to_str().ok())
}

/// Metrics in the format that the client prefers, or the classic one if it accepts neither; compressed if the client accepts gzip.
fn exposition(headers: &HeaderMap, open_metrics: String) -> Response {
    let (content_type, text) = if negotiate::wants_open_metrics(accepted(headers).unwrap_or_default()) {
        (OPEN_METRICS, open_metrics)
    } else {
        (CLASSIC, text::classic(&open_metrics))
    };
    let encodings = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let compressed = if negotiate::takes_gzip(encodings) { gzip(text.as_bytes()).ok() } else { None };
    let mut response = match compressed {
        Some(compressed) => {
            let mut response = http::response(StatusCode::OK, content_type, compressed);
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        None => http::response(StatusCode::OK, content_type, text),
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    response
}

/// Compresses at the fastest level: the text is so repetitive that this level shrinks it well, too.
fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

/// The pages below `/debug` that need profiling.
async fn debug(request: Request, set_verbosity: &SetVerbosity) -> Response {
    const PROFILES: &str = "There are no profiles here: they belong to the run-time of Go, and this kube-proxy is written in \
                            Rust.\nUse perf on the node, and /metrics for memory and CPU time.\n";
    match request.uri().path() {
        "/debug/pprof" => {
            let mut response = http::response(StatusCode::FOUND, PLAIN, "");
            response.headers_mut().insert(LOCATION, HeaderValue::from_static("/debug/pprof/"));
            response
        }
        "/debug/pprof/" => http::response(StatusCode::OK, PLAIN, PROFILES),
        "/debug/flags" | "/debug/flags/" => {
            http::response(StatusCode::OK, PLAIN, "/debug/flags/v: PUT a number here to set the log's verbosity\n")
        }
        "/debug/flags/v" => set_flag(request, set_verbosity).await,
        _ => http::not_found(),
    }
}

async fn set_flag(request: Request, set_verbosity: &SetVerbosity) -> Response {
    let text = |status, body: String| {
        let mut response = http::response(status, PLAIN, body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        response
    };
    if request.method() != Method::PUT {
        return text(StatusCode::NOT_ACCEPTABLE, "unsupported http method".to_owned());
    }
    let Some(body) = http::small_body(request).await else {
        return text(StatusCode::BAD_REQUEST, "cannot read the body".to_owned());
    };
    // The numbers of an `i32` that are not negative: klog's type for the verbosity is an `int32`.
    let number = body.trim().parse::<i32>().map_err(|error| error.to_string());
    match number.and_then(|number| u32::try_from(number).map_err(|error| error.to_string())) {
        Ok(verbosity) => {
            set_verbosity(verbosity);
            info!(verbosity, "Set the verbosity over HTTP");
            text(StatusCode::OK, format!("successfully set klog.logging.verbosity to {verbosity}"))
        }
        Err(error) => text(StatusCode::BAD_REQUEST, format!("failed to set klog.logging.verbosity: {error}")),
    }
}

#[cfg(test)]
mod tests;

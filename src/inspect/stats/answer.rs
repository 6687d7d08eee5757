//! Answers requests: decides which ones get a page, and gives each answer its headers.
//!
//! Takes a request; returns a response. A request gets a page only if it is a GET whose Host is the address of this server, a loopback address
//! or `localhost`, so that no web site can read the pages through a browser by giving its own name the address 127.0.0.1 (DNS rebinding).
//! Pages are made on threads of their own; a request waits at most [`PATIENCE`] for its page.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, REFERRER_POLICY};
use hyper::{Method, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::node::Node;
use super::page::Page;
use crate::explain::drawing;
use component::http::{Ends, PLAIN, Request, Response, response};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml; charset=utf-8";

/// How long a request waits, in all, until a thread is free for it and has made its page.
const PATIENCE: Duration = Duration::from_secs(15);

/// A page may load its style sheet, script and icon from this server, fetch from it and send forms to it, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Answers requests with pages of a node.
pub(super) struct Answerer {
    node: Arc<Node>,
    /// A permit for each page that may be made at once.
    free: Arc<Semaphore>,
}

impl Answerer {
    pub(super) fn new(node: Node, at_once: usize) -> Self {
        Self { node: Arc::new(node), free: Arc::new(Semaphore::new(at_once)) }
    }

    pub(super) async fn answer(&self, request: &Request) -> Response {
        let mut response = match refusal(request) {
            Some(refusal) => refusal,
            None => self.page(request).await,
        };
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }

    async fn page(&self, request: &Request) -> Response {
        match request.uri().path() {
            "/style.css" => {
                return response(
                    StatusCode::OK,
                    CSS,
                    [drawing::COLOURS, drawing::STYLE, include_str!("style.css")].concat(),
                );
            }
            "/live.js" => return response(StatusCode::OK, SCRIPT, include_str!("live.js")),
            "/icon.svg" => return response(StatusCode::OK, SVG, include_str!("icon.svg")),
            _ => {}
        }
        let Page { status, html } = match timeout(PATIENCE, self.made(request)).await {
            Ok(Some(page)) => page,
            Ok(None) => Page::failure(StatusCode::INTERNAL_SERVER_ERROR, "This page could not be made"),
            Err(_) => Page::failure(StatusCode::SERVICE_UNAVAILABLE, "Other requests are being answered; try again"),
        };
        response(status, HTML, html)
    }

    /// The page, made on another thread; `None` if that failed.
    async fn made(&self, request: &Request) -> Option<Page> {
        // The thread keeps the permit also when nobody waits for the page any more.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        let node = Arc::clone(&self.node);
        let make = move || {
            let page = node.page(&path, &query);
            drop(permit);
            page
        };
        tokio::task::spawn_blocking(make).await.ok()
    }
}

/// The answer to a request that gets no page.
fn refusal(request: &Request) -> Option<Response> {
    if request.method() != Method::GET {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET is answered\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return Some(refused);
    }
    let server = request.extensions().get::<Ends>().map(|ends| ends.server);
    let mut hosts = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let host = hosts.next().filter(|_| hosts.next().is_none()).unwrap_or_default();
    // A request as clients send it to HTTP proxies names the host in its first line too.
    let named = [Some(host), request.uri().authority().map(hyper::http::uri::Authority::as_str)];
    if let Some(server) = server
        && named.into_iter().flatten().all(|host| is_own(host, server))
    {
        return None;
    }
    let port = server.map_or_else(String::new, |server| format!(" with port {}", server.port()));
    let text = format!(
        "this server answers only requests whose Host is its own address or localhost{port}, so that no other web site reads these pages \
         through a browser; behind a tunnel, use the same port on both sides\n"
    );
    Some(response(StatusCode::MISDIRECTED_REQUEST, PLAIN, text))
}

/// Whether a Host is that of a server which a client reached at this address: the address itself, `localhost`, `127.0.0.1` or `[::1]`, each
/// with the port of the server. The port 80 may be left out.
pub(super) fn is_own(host: &str, server: SocketAddr) -> bool {
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let own = SocketAddr::new(server.ip().to_canonical(), server.port());
    let (name, port) = match host.rsplit_once(':').filter(|_| !host.ends_with(']')) {
        Some((name, port)) => (name, port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))),
        None => (host, Some(80)),
    };
    if port != Some(own.port()) {
        return false;
    }
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match inner {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => name.parse().ok().map(IpAddr::V4),
    };
    address.is_some_and(|address| address == own.ip() || loopback.contains(&address))
}

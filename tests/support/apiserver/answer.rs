//! Answers one request.
//!
//! The checks have the order of a real server: authentication, authorization, existence of the kind, form of the query. Faults come before
//! all checks, as they would in the network.

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{self, Stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Format;
use super::fault::{Fault, take};
use super::list::list;
use super::query::Query;
use super::resource::{Ask, Resource, ask, namespaced};
use super::state::{Record, Shared};
use super::status::Refusal;
use super::watch::Watch;
use super::writer::{Killer, Writer};

type Pieces = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send>>;
/// The body of an answer.
pub(crate) type Body = StreamBody<Pieces>;

/// The client of a connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// The client's certificate as DER, if the client has one of this server's authority.
    pub(crate) certificate: Option<Arc<[u8]>>,
    /// Ends the connection.
    pub(crate) killer: Killer,
}

/// Answers a request, and keeps a record of both.
pub(crate) async fn answer(shared: Arc<Shared>, peer: Peer, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let query = Query::parse(head.uri.query().unwrap_or_default());
    // The list of a namespace is that of all namespaces, with a selector.
    let (path, query) = match namespaced(head.uri.path()) {
        Some((path, namespace)) => (path, query.with("fieldSelector", format!("metadata.namespace={namespace}"))),
        None => (head.uri.path().to_owned(), query),
    };
    let number = record(&shared, &peer, &head, &path, &query);
    let asked = ask(&head.method, &path, &query);
    let may_enter = enters(&shared, &peer, &head.headers);
    // A body that breaks off creates no Event.
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut fault = fault(&shared, &asked);
    if let Some(Fault::Delay(time)) = fault {
        sleep(time).await;
        fault = None;
    }
    let outcome = match fault {
        Some(Fault::Unanswered(ending)) => {
            let (mut writer, _body) = Writer::new(peer.killer.clone(), None);
            writer.end(ending).await;
            // The fault or the client ends the connection.
            pending().await
        }
        Some(Fault::Refuse(code, retry_after)) => {
            Err(Refusal { retry_after, ..Refusal::new(code, "a fault of the test") })
        }
        Some(Fault::Garbage(bytes)) => Ok((StatusCode::OK, whole(bytes))),
        fault if may_enter => served(&shared, &asked, &query, &body, &head.headers, (&peer.killer, fault.as_ref())),
        _ => Err(Refusal::new(401, "Unauthorized")),
    };
    if outcome.as_ref().is_err_and(|refusal| refusal.message.starts_with("Too large")) {
        let wait = shared.lock().freshness_wait;
        sleep(wait).await;
    }
    let format = format(&shared, &head.headers, &asked);
    let response =
        outcome.map_or_else(|refusal| refused(&refusal, format), |(status, body)| response(status, body, format));
    shared.lock().requests[number].answered = response.status().as_u16();
    response
}

/// Returns the answer to a request that no fault stops, from a client that is let in.
fn served(
    shared: &Arc<Shared>,
    asked: &Ask,
    query: &Query,
    body: &[u8],
    headers: &HeaderMap,
    (killer, fault): (&Killer, Option<&Fault>),
) -> Result<(StatusCode, Pieces), Refusal> {
    let ok = |body| Ok((StatusCode::OK, body));
    match asked {
        Ask::Version => ok(whole(version().to_string())),
        Ask::Forbidden => Err(Refusal::new(403, "the role system:node-proxier does not allow it")),
        Ask::Review => {
            let mut review: Value =
                serde_json::from_slice(body).map_err(|error| Refusal::new(400, error.to_string()))?;
            // The role allows the creation of Events; the tests need no other right.
            let allowed =
                !shared.lock().events_forbidden && review["spec"]["resourceAttributes"]["resource"] == "events";
            review["status"] = json!({ "allowed": allowed });
            Ok((StatusCode::CREATED, whole(review.to_string())))
        }
        Ask::Event => create_event(shared, body).map(|body| (StatusCode::CREATED, body)),
        Ask::Get(name) => {
            let node = shared.lock().store.get(Resource::Node, "", name);
            let node = node.ok_or_else(|| Refusal::new(404, format!("nodes {name:?} not found")))?;
            ok(whole(node.to_string()))
        }
        Ask::List(resource) => {
            permitted(shared, *resource, headers)?;
            let list = {
                let state = shared.lock();
                let cached = state.has_cache.then(|| state.cached.unwrap_or_else(|| state.store.version()));
                list(&state.store, cached, *resource, query)?
            };
            let (mut writer, body) = Writer::new(killer.clone(), fault);
            let list = format(shared, headers, asked).object(&list);
            // An error means that the answer has ended early; only the client has to notice.
            tokio::spawn(async move { writer.send(&list).await });
            ok(Box::pin(body))
        }
        Ask::Watch(resource) => {
            permitted(shared, *resource, headers)?;
            let resource = *resource;
            let watch = Watch::parse(format(shared, headers, asked), resource, query, shared.lock().streaming)?;
            let (writer, body) = Writer::new(killer.clone(), fault);
            // A test that has seen the head of the answer may order the watch to do something, so the watch is registered before the head
            // is sent.
            let (open, orders) = Shared::open(shared, resource);
            tokio::spawn(async move { watch.run(open, orders, writer).await });
            ok(Box::pin(body))
        }
    }
}

fn permitted(shared: &Shared, resource: Resource, headers: &HeaderMap) -> Result<(), Refusal> {
    let state = shared.lock();
    let name = resource.path().rsplit('/').next().unwrap_or_default();
    if state.forbidden.contains(&resource) {
        return Err(Refusal::new(403, format!("{name} is forbidden: cannot list resource \"{name}\"")));
    }
    if state.missing.contains(&resource) {
        return Err(Refusal::new(404, "the server could not find the requested resource"));
    }
    let accepts = |format: Format| accept(headers).contains(format.media_type()) || accept(headers).contains("*/*");
    if accepts(Format::Json) || accepts(state.format) {
        Ok(())
    } else {
        Err(Refusal::new(406, format!("only application/json and {} are served", state.format.media_type())))
    }
}

fn accept(headers: &HeaderMap) -> &str {
    headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or("*/*")
}

/// Returns the format of the answer.
fn format(shared: &Shared, headers: &HeaderMap, asked: &Ask) -> Format {
    let format = shared.lock().format;
    let is_list = matches!(asked, Ask::List(_) | Ask::Watch(_));
    if is_list && accept(headers).contains(format.media_type()) { format } else { Format::Json }
}

fn create_event(shared: &Shared, body: &[u8]) -> Result<Pieces, Refusal> {
    let mut event: Value =
        serde_json::from_slice(body).map_err(|why| Refusal::new(400, format!("the Event is no JSON: {why}")))?;
    shared.lock().events.push(event.clone());
    event["metadata"]["resourceVersion"] = json!("1");
    Ok(whole(event.to_string()))
}

fn fault(shared: &Shared, asked: &Ask) -> Option<Fault> {
    let (resource, is_watch) = match asked {
        Ask::List(resource) => (*resource, false),
        Ask::Watch(resource) => (*resource, true),
        _ => return None,
    };
    take(&mut shared.lock().plans, resource, is_watch)
}

/// Returns whether a client is let in: it has a certificate of this server's authority or a known token, or the server asks for no tokens.
fn enters(shared: &Shared, peer: &Peer, headers: &HeaderMap) -> bool {
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let state = shared.lock();
    peer.certificate.is_some()
        || state.tokens.as_ref().is_none_or(|tokens| token.is_some_and(|token| tokens.contains(token)))
}

fn record(shared: &Shared, peer: &Peer, head: &Parts, path: &str, query: &Query) -> usize {
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: BTreeMap<_, _> = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let (method, path, query) = (head.method.to_string(), path.to_owned(), query.clone());
    let certificate = peer.certificate.clone();
    let mut state = shared.lock();
    state.requests.push(Record { at: Instant::now(), method, path, query, headers, certificate, answered: 0 });
    state.requests.len() - 1
}

fn version() -> Value {
    json!({ "major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64" })
}

fn whole(bytes: impl Into<Bytes>) -> Pieces {
    Box::pin(stream::iter([Ok(Frame::data(bytes.into()))]))
}

fn refused(refusal: &Refusal, format: Format) -> Response<Body> {
    let status = StatusCode::from_u16(refusal.code).expect("a refusal has an HTTP status");
    let mut response = response(status, whole(format.object(&refusal.json())), format);
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert("retry-after", seconds.into());
    }
    response
}

fn response(status: StatusCode, body: Pieces, format: Format) -> Response<Body> {
    let mut response = Response::new(StreamBody::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static(format.media_type()));
    response
}

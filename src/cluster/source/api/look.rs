//! Checks with a proxy's configuration whether the API server is usable, before a proxy starts with that configuration.
//!
//! The module takes the client's options and the node's name. It returns whether the server answers, and whether each request of a proxy is
//! allowed. To find out, it sends lists (limited to one object) and watches with the paths and selectors of a proxy. Only for the creation
//! of Events it sends a SelfSubjectAccessReview instead, so that it writes nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use kube::api::{ListParams, WatchParams};
use kube::config::Config;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::certificate;
use super::client::{ClientOptions, Configuration, configuration};
use super::connection::{Connection, Request};
use super::connector::Connector;
use super::error::Error;
use super::format::JSON;
use super::proxy::Route;
use super::resource::Resource;

/// How long each request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes. A Node can be large, because it lists the node's images.
const MAX_ANSWER: usize = 16 << 20;
/// How many characters of a version are used, so that it fits into the label of a metric and a line of the log.
const MAX_VERSION: usize = 64;
/// The path of SelfSubjectAccessReviews, which answer whether this client may send a request (authorization.k8s.io/v1).
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The result of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// The server's URL, without secrets.
    pub url: String,
    /// The proxy through which the server is reached, without user and password; `None` if no proxy is used.
    pub proxy: Option<String>,
    /// The configured CA certificates that cannot be used, each with its number in the file or data and the reason.
    pub skipped: Vec<String>,
    /// Whether the configured credentials are not sent, because the connection is not encrypted.
    pub withheld: bool,
    /// The server's answer, or why there is none.
    pub reached: Result<Reached, String>,
    /// When the client's certificate expires; `None` without one, or if it cannot be read.
    pub client_certificate_end: Option<Timestamp>,
    /// Whether each request of a proxy is allowed; empty if the server does not answer.
    pub access: Vec<Access>,
    /// Whether the node's Node object exists; `None` if Nodes cannot be listed.
    pub has_node: Option<bool>,
}

/// A server that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// How long the first request took, including the connection and the credential plugin.
    pub took: Duration,
    /// The server's version, such as `v1.36.2`; empty if the answer has none.
    pub version: String,
    /// When the server's certificate expires; `None` if it shows none, or none that can be read.
    pub certificate_end: Option<Timestamp>,
}

/// A request that a proxy sends, as verb and resource, and whether the server allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The verb that a role has to allow.
    pub verb: &'static str,
    /// The resource that a role has to allow.
    pub resource: String,
    /// Whether a proxy works without this request.
    pub is_optional: bool,
    /// Whether the request is allowed.
    pub outcome: Allowed,
}

/// Whether the server allows a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// The request is allowed.
    Yes,
    /// The server has no such kind.
    NoSuchKind,
    /// The request is refused or fails, for this reason.
    No(String),
    /// The server does not answer whether the request is allowed, for this reason.
    Unknown(String),
}

/// Checks whether the server answers, and whether it allows each request of a proxy.
///
/// # Errors
/// Fails if the configuration or the credentials cannot be read.
pub fn look(options: &ClientOptions, node_name: &str) -> Result<ServerReport> {
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime of the API client")?;
    let outcome = runtime.block_on(look_at(options, node_name));
    // Do not wait for the resolution of a name, which may take long.
    runtime.shutdown_background();
    outcome
}

async fn look_at(options: &ClientOptions, node_name: &str) -> Result<ServerReport> {
    let Configuration { config, route, skipped, withheld } = configuration(options)?;
    // Request JSON, because the few answers are read as untyped values.
    let mut connection = Connection::new(ClientOptions { accept: JSON.to_owned(), ..options.clone() }).await?;
    let start = Instant::now();
    let version = version(&mut connection).await;
    let took = start.elapsed();
    let url = connection.url().to_owned();
    let proxy = connection.proxy().await;
    let reached = match version {
        Ok(version) => Ok(Reached { took, version, certificate_end: certificate_end(&config, route).await }),
        Err(error) => Err(error.to_string()),
    };
    let client_certificate_end = certificate::of_client(&config.auth_info);
    let mut look = ServerReport {
        url,
        proxy,
        skipped,
        withheld,
        reached,
        client_certificate_end,
        access: Vec::new(),
        has_node: None,
    };
    if look.reached.is_ok() {
        for kind in Resource::ALL {
            let (list, count) = list(&mut connection, kind, node_name).await;
            look.access.push(access("list", kind, list));
            look.access.push(access("watch", kind, watch(&mut connection, kind, node_name).await));
            if kind == Resource::Node {
                look.has_node = count.map(|count| count > 0);
            }
        }
        let outcome = may_create_events(&mut connection).await;
        look.access.push(Access {
            verb: "create",
            resource: "events.events.k8s.io".to_owned(),
            is_optional: true,
            outcome,
        });
    }
    Ok(look)
}

/// Returns when the server's certificate expires; `None` without TLS, without a connection, or if the certificate cannot be read.
async fn certificate_end(config: &Config, route: Route) -> Option<Timestamp> {
    let shown = Connector::new(config, route).ok()?.certificate(&config.cluster_url).await.ok()??;
    Some(certificate::facts(&shown)?.end)
}

fn access(verb: &'static str, kind: Resource, outcome: Allowed) -> Access {
    let resource = kind.path().rsplit('/').next().unwrap_or_default().to_owned();
    Access { verb, resource, is_optional: kind.is_optional(), outcome }
}

/// Returns the server's version, such as `v1.36.2`; empty if the answer has none. API servers answer this in JSON, whatever the `Accept`
/// header asks for.
pub(super) async fn version(connection: &mut Connection) -> Result<String, Error> {
    let answer: Value = answer(connection, "/version", &Request::List(ListParams::default())).await?;
    Ok(answer["gitVersion"].as_str().unwrap_or_default().chars().take(MAX_VERSION).collect())
}

/// Requests a list of at most one object. Returns whether that is allowed and, if it succeeds, the number of objects in the answer.
async fn list(connection: &mut Connection, kind: Resource, node_name: &str) -> (Allowed, Option<usize>) {
    let params = ListParams {
        label_selector: kind.label_selector().map(Into::into),
        field_selector: kind.field_selector(node_name),
        limit: Some(1),
        ..ListParams::default()
    };
    match answer::<Value>(connection, kind.path(), &Request::List(params)).await {
        Ok(list) => (Allowed::Yes, list["items"].as_array().map(Vec::len)),
        Err(error) => (refused(&error), None),
    }
}

/// Begins a watch and ends it at once. Returns whether that is allowed.
async fn watch(connection: &mut Connection, kind: Resource, node_name: &str) -> Allowed {
    let params = WatchParams {
        label_selector: kind.label_selector().map(Into::into),
        field_selector: kind.field_selector(node_name),
        timeout: Some(1),
        ..WatchParams::default()
    };
    let request = Request::Watch(params, "0".to_owned());
    connection.send(kind.path(), &request, PATIENCE).await.map_or_else(|error| refused(&error), |_| Allowed::Yes)
}

async fn may_create_events(connection: &mut Connection) -> Allowed {
    let attributes = json!({ "verb": "create", "group": "events.k8s.io", "resource": "events" });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": attributes },
    });
    match answer::<Value>(connection, REVIEWS, &Request::Create(review.to_string().into_bytes())).await {
        Ok(review) if review["status"]["allowed"] == true => Allowed::Yes,
        Ok(review) => {
            let reason = review["status"]["reason"].as_str().filter(|reason| !reason.is_empty());
            Allowed::No(reason.unwrap_or("no role allows it").to_owned())
        }
        Err(error) => Allowed::Unknown(error.to_string()),
    }
}

fn refused(error: &Error) -> Allowed {
    match error.code() {
        Some(404) => Allowed::NoSuchKind,
        _ => Allowed::No(error.to_string()),
    }
}

/// Sends a request and returns the answer, read from JSON.
pub(super) async fn answer<T: DeserializeOwned>(
    connection: &mut Connection,
    path: &str,
    request: &Request,
) -> Result<T, Error> {
    let mut response = connection.send(path, request, PATIENCE).await?;
    let body = response.read_all(MAX_ANSWER, PATIENCE, PATIENCE).await?;
    serde_json::from_slice(&body).map_err(|error| Error::Malformed(error.to_string()))
}

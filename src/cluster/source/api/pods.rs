//! Finds the addresses of a pod by its name.
//!
//! The module reads the EndpointSlices of the pod's namespace, whose field `targetRef` names the pod of each endpoint. The role of a proxy,
//! `system:node-proxier`, may list EndpointSlices and no pods. A pod that no Service selects is not found.
//!
//! Invariant: one page of slices is in memory at a time, and the search takes at most [`PATIENCE`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use kube::api::ListParams;
use serde::Deserialize;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::client::ClientOptions;
use super::connection::{Connection, Request};
use super::format::JSON;
use super::look::answer;
use crate::source::objects::{SlicePods, nullable};

/// How long the whole search may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of slices of a page: 50 slices of 100 endpoints are some 2 MB.
const PAGE: u32 = 50;

#[derive(Deserialize)]
struct List {
    #[serde(default, deserialize_with = "nullable")]
    metadata: ListMetadata,
    #[serde(default, deserialize_with = "nullable")]
    items: Vec<SlicePods>,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    #[serde(default, rename = "continue", deserialize_with = "nullable")]
    next: String,
}

/// Returns the addresses of a pod, sorted; none if no EndpointSlice of its namespace names it.
///
/// # Errors
/// Fails if the configuration or the credentials cannot be read, or if the server does not answer in time or refuses the request.
pub fn pod_addresses(options: &ClientOptions, namespace: &str, pod: &str) -> Result<Vec<IpAddr>> {
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime of the API client")?;
    let found = runtime.block_on(async { timeout(PATIENCE, find(options, namespace, pod)).await });
    // Do not wait for the resolution of a name, which may take long.
    runtime.shutdown_background();
    let late =
        |_| anyhow!("the API server did not list the EndpointSlices of namespace {namespace} within {PATIENCE:?}");
    Ok(found.map_err(late)??.into_iter().collect())
}

async fn find(options: &ClientOptions, namespace: &str, pod: &str) -> Result<BTreeSet<IpAddr>> {
    // Request JSON, because `SlicePods` decodes nothing else.
    let mut connection = Connection::new(ClientOptions { accept: JSON.to_owned(), ..options.clone() }).await?;
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let (wanted, mut found, mut next) = (format!("{namespace}/{pod}"), BTreeSet::new(), None);
    loop {
        let params = ListParams { limit: Some(PAGE), continue_token: next, ..ListParams::default() };
        let list: Result<List, _> = answer(&mut connection, &path, &Request::List(params)).await;
        let list = list.map_err(|error| anyhow!("{}: cannot list EndpointSlices: {error}", connection.url()))?;
        let pods = list.items.iter().flat_map(SlicePods::addresses);
        found.extend(pods.filter(|(name, _)| *name == wanted).map(|(_, address)| address));
        if list.metadata.next.is_empty() {
            return Ok(found);
        }
        next = Some(list.metadata.next);
    }
}

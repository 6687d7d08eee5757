//! Why a Service has the endpoints that it has: the page `/debug/endpoints/NAMESPACE/NAME` of the running proxy, as values in JSON.
//!
//! The proxy writes the page, sentences included. The command `services` asks for it when one Service or frontend is named, and prints the
//! sentences; the page of `stats` about a Service shows them too. Without a running proxy one line says where it was asked for.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::names::{self, split_port};
use crate::tables::{EndpointView, FrontendView, Kind};

/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(3);

/// The page about one Service.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// The ports, each once for each family.
    pub ports: Vec<PortCauses>,
    /// Whether `ports` has all ports; if the Service is too large, further ports are left out.
    pub is_complete: bool,
}

/// A service port in one family.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortCauses {
    /// `namespace/name:port`, or `namespace/name` when the port has no name.
    pub service: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The cause for the cluster IP.
    pub internal: Cause,
    /// The cause for all other frontends of the port; `None` when there are no others.
    pub external: Option<Cause>,
}

/// Why a frontend has its endpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// All endpoints in the Service's EndpointSlices, whatever their ports are.
    pub pods: Counts,
    /// The endpoints in `pods` that have this port.
    pub with_port: Counts,
    /// The endpoints in `with_port` that are on this node.
    pub on_node: Counts,
    /// The endpoints that are used for all clients, or with external policy Local for clients in the cluster; `None` with internal policy
    /// Local.
    pub cluster: Option<Taken>,
    /// The endpoints on this node that are used with policy Local.
    pub local: Option<Taken>,
    /// Whether topology hints are used.
    pub hints: Hints,
    /// The explanation, in sentences without a full stop.
    pub texts: Vec<String>,
}

/// How many endpoints there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All endpoints.
    pub all: usize,
    /// The ready endpoints.
    pub ready: usize,
    /// The endpoints that are not ready but serve while they terminate.
    pub terminating: usize,
}

/// The endpoints that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The number of endpoints.
    pub count: usize,
    /// Whether they are terminating endpoints, which are used because no endpoint is ready.
    pub terminating: bool,
}

/// Whether topology hints are used, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hints {
    /// The hints for the node's zone are used.
    UsedForZone,
    /// The hints for this node are used.
    UsedForNode,
    /// The policy is Local, which does not use hints.
    PolicyLocal,
    /// No endpoint is ready.
    NoneReady,
    /// No ready endpoint has hints.
    None,
    /// Some ready endpoints have no hints.
    Missing,
    /// The Node has no zone.
    NodeWithoutZone,
    /// No ready endpoint is hinted for this node or its zone.
    NotHere,
    /// A value that this version does not know.
    #[serde(other)]
    Other,
}

/// What the running proxy says of the Services that were asked about.
#[derive(Debug, Default)]
pub(crate) struct Causes {
    ports: Vec<PortCauses>,
    /// Why some causes are missing; `None` when no cause is missing, and when nothing was asked.
    pub(crate) note: Option<String>,
}

impl Causes {
    /// Asks the proxy whose metrics server has this address about the Services of these frontends.
    pub(crate) fn ask(address: SocketAddr, frontends: &[FrontendView]) -> Self {
        let names = frontends.iter().filter_map(|view| view.service.as_deref()).map(|service| split_port(service).0);
        let mut causes = Self::default();
        // Skip a name that is cut: in the comments of elements, long names are cut and end with `...`.
        for service in names.filter(|name| !name.ends_with("...")).collect::<BTreeSet<_>>() {
            match page(address, service) {
                Ok(page) => {
                    causes.ports.extend(page.ports);
                    let cut = || format!("{service} is too large: causes of its further ports are left out");
                    causes.note = causes.note.or_else(|| (!page.is_complete).then(cut));
                }
                Err(note) => return Self { note: Some(note), ..causes },
            }
        }
        causes
    }

    /// Why a frontend has its endpoints, if that is known.
    pub(crate) fn of(&self, view: &FrontendView) -> Option<&Cause> {
        let (service, frontend) = (view.service.as_deref()?, &view.frontend);
        let is_it = |port: &&PortCauses| {
            names::is(service, &port.service)
                && port.protocol == frontend.protocol.api_name()
                && port.family == frontend.family().to_string()
        };
        let port = self.ports.iter().find(is_it)?;
        if view.kind == Some(Kind::ClusterIP) { Some(&port.internal) } else { port.external.as_ref() }
    }
}

impl Cause {
    /// Whether an endpoint of the frontend terminates and is used only because no endpoint is ready. With policy Local this can hold for
    /// the endpoints on this node alone.
    pub(crate) fn is_terminating(&self, endpoint: &EndpointView) -> bool {
        let are = |taken: Option<Taken>| taken.is_some_and(|taken| taken.terminating);
        are(self.cluster) || endpoint.local && are(self.local)
    }
}

/// The page about a Service, `namespace/name`, or in words why there is none.
fn page(address: SocketAddr, service: &str) -> Result<Page, String> {
    let path = format!("/debug/endpoints/{service}");
    match Client::new(address, PATIENCE).and_then(|client| client.answer(&path)) {
        Ok((StatusCode::OK, body)) => serde_json::from_slice(&body)
            .map_err(|error| format!("Causes are not known: cannot read the answer of {address}: {error}")),
        Ok((status, body)) => {
            let body = component::logging::escaped(String::from_utf8_lossy(&body).trim());
            Err(format!("Causes are not known: {address} answers {status}: {body}"))
        }
        Err(error) if error.downcast_ref::<std::io::Error>().is_some() => {
            Err(format!("Causes need the running proxy: none at {address} (--metrics-bind-address)"))
        }
        Err(error) => Err(format!("Causes are not known: {address} gives {error}")),
    }
}

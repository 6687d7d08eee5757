//! Asks the running proxy which Services it has left out of the tables.
//!
//! Takes the address of the proxy's health server, returns the names of these Services; `None` when no proxy answers, which is no error:
//! the commands work without a proxy. Waits at most a second.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use super::client::Client;

/// The timeout of the request.
const PATIENCE: Duration = Duration::from_secs(1);

/// The Services that the proxy left out of the tables, or whose old rules it keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeftOut {
    /// Services that the kernel refused.
    #[serde(default)]
    pub(crate) quarantined_services: Vec<String>,
    /// Services that need more set elements than the limit.
    #[serde(default)]
    pub(crate) oversized_services: Vec<String>,
}

/// Gets the left-out Services from the health server at this address.
pub(crate) fn left_out(health: SocketAddr) -> Option<LeftOut> {
    // The body is the same whether the status is good or bad, so ignore the status.
    let (_, body) = Client::new(health, PATIENCE).ok()?.answer("/livez").ok()?;
    serde_json::from_slice(&body).ok()
}

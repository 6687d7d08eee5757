//! What the running proxy says about Services that are not in the tables as they should be.
//!
//! Takes the address of its health pages, gives the names of these Services; `None` when no proxy answers there, which is no error: the
//! commands work without one. Waits at most a second.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use super::client::Client;

/// How long the answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The Services that the proxy has left out of the tables or keeps as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeftOut {
    /// The kernel refused them.
    #[serde(default)]
    pub(crate) quarantined_services: Vec<String>,
    /// They need too many elements.
    #[serde(default)]
    pub(crate) oversized_services: Vec<String>,
}

/// Asks the health pages at an address.
pub(crate) fn left_out(health: SocketAddr) -> Option<LeftOut> {
    // The page has the same body whatever its status is.
    let (_, body) = Client::new(health, PATIENCE).ok()?.answer("/livez").ok()?;
    serde_json::from_slice(&body).ok()
}

//! Entries in the log: a line a changed Service from `-v=2` on, and a line an endpoint from `-v=4` on.
//!
//! The levels of this module's target belong to these verbosities; see `logging`.

use std::net::SocketAddr;

use tracing::{Level, debug, enabled, info};

use super::entry::{Change, Entry, What};
use crate::model::ObjectName;

/// Logs an entry, as far as the verbosity has it. The API server's entries are in the log already.
pub fn log(entry: &Entry) {
    if !enabled!(Level::INFO) {
        return;
    }
    let sync = entry.sync.unwrap_or_default();
    match &entry.what {
        What::Service(change) => {
            let Change { service, trigger, result, .. } = &**change;
            let latency = change.latency.unwrap_or_default();
            info!(%service, sync, %trigger, ?latency, %result, "{change}");
        }
        What::Sync(run) => info!(sync, trigger = %run.trigger, result = %run.result, "{run}"),
        What::Repair(repair) => info!(sync, "{repair}"),
        What::ApiServer(_) => {}
    }
}

/// Logs an endpoint that came or went. An entry lists only some where there are many, the log each.
pub fn endpoint(service: &ObjectName, endpoint: SocketAddr, is_new: bool) {
    if is_new {
        debug!(%service, %endpoint, "endpoint added");
    } else {
        debug!(%service, %endpoint, "endpoint removed");
    }
}

//! Entries in the log: a line a changed Service from `-v=2` on, and a line an endpoint from `-v=4` on.
//!
use std::net::SocketAddr;

use tracing::{Level, debug, enabled, info};

use super::entry::{Change, Entry, What};
use crate::logging::{V2, duration};
use crate::model::ObjectName;

/// Logs an entry, as far as the verbosity has it. The API server's entries are in the log already.
pub fn log(entry: &Entry) {
    if !enabled!(target: V2, Level::INFO) {
        return;
    }
    let sync = entry.sync.unwrap_or_default();
    match &entry.what {
        What::Service(change) => {
            let Change { service, trigger, result, .. } = &**change;
            let elapsed = duration(change.latency.unwrap_or_default());
            info!(target: V2, %service, sync, %trigger, %elapsed, %result, details = %change, "Service changed");
        }
        What::Sync(run) => {
            let elapsed = duration(run.latency.unwrap_or_default());
            info!(
                target: V2, sync, trigger = %run.trigger, %elapsed, result = %run.result, details = %run,
                "Synced the node"
            );
        }
        What::Repair(repair) => info!(target: V2, sync, details = %repair, "Repaired the rules"),
        What::ApiServer(_) => {}
    }
}

/// Logs an endpoint that came or went. An entry lists only some where there are many, the log each.
pub fn endpoint(service: &ObjectName, endpoint: SocketAddr, is_new: bool) {
    if is_new {
        debug!(%service, %endpoint, "Endpoint added");
    } else {
        debug!(%service, %endpoint, "Endpoint removed");
    }
}

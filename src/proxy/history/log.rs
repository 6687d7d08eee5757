//! Writes the history to the log: from `-v=2` on one line for each entry but those about the API server, and from `-v=4` on one line for
//! each endpoint that a Service with an entry gained or lost.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::{Level, debug, enabled, info};

use component::logging::{V2, duration};
use inspect::history::{Change, CommitOutcome, Entry, EntryKind, TriggerKind};
use rules::model::ObjectName;

/// Logs an entry if the log is verbose enough. `elapsed` is how long the sync took, without the wait before it. Does nothing for an entry
/// about the API server, because the source of objects logs that the server is lost and found.
pub fn log(entry: &Entry, elapsed: Duration) {
    if !enabled!(target: V2, Level::INFO) {
        return;
    }
    let (sync, elapsed) = (entry.sync.unwrap_or_default(), duration(elapsed));
    match &entry.what {
        EntryKind::Service(change) => {
            let Change { service, trigger, result, .. } = &**change;
            info!(target: V2, %service, sync, %trigger, %elapsed, %result, details = %change, "Service changed");
        }
        EntryKind::Sync(run) => {
            let (trigger, result) = (&run.trigger, &run.result);
            match (run.result, run.trigger.kind) {
                (CommitOutcome::Committed, TriggerKind::Node | TriggerKind::Addresses | TriggerKind::ServiceCidr) => {
                    info!(target: V2, sync, %trigger, %elapsed, %result, details = %run, "Synced the node");
                }
                (CommitOutcome::Committed, _) => {
                    info!(target: V2, sync, %trigger, %elapsed, %result, details = %run, "Synced");
                }
                _ => info!(target: V2, sync, %trigger, %elapsed, %result, details = %run, "Sync not committed"),
            }
        }
        EntryKind::Repair(repair) => info!(target: V2, sync, details = %repair, "Repaired the rules"),
        EntryKind::ApiServer(_) => {}
    }
}

/// Logs an endpoint that a Service gained or lost. The Service's history entry lists only the first endpoints and counts the rest; the log
/// names each.
pub(crate) fn endpoint(service: &ObjectName, endpoint: SocketAddr, is_new: bool) {
    if is_new {
        debug!(%service, %endpoint, "Endpoint added");
    } else {
        debug!(%service, %endpoint, "Endpoint removed");
    }
}

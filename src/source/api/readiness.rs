//! When the initial list is done, and when waiting for the Node has to end (M2, M3).
//!
//! Takes the progress of the watches, gives the moment at which all is listed, or a fatal error.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::error;

use super::resource::Resource;
use crate::model::Node;

/// How long to wait for the Node to have an IP (M2).
const NODE_IP: Duration = Duration::from_secs(30);
/// How long to wait for the Node to have pod CIDRs (M3).
const POD_CIDRS: Duration = Duration::from_secs(300);

/// What is known so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    listed: BTreeSet<Resource>,
    node: NodeFacts,
}

/// What start-up needs to know of the own Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeFacts {
    exists: bool,
    has_ip: bool,
    has_pod_cidrs: bool,
}

impl Progress {
    /// A kind was listed completely.
    pub(super) fn listed(&mut self, resource: Resource) {
        self.listed.insert(resource);
    }

    /// The own Node exists like this; `None` if it does not.
    pub(super) fn node(&mut self, node: Option<&Node>) {
        self.node = node.map_or_else(NodeFacts::default, |node| NodeFacts {
            exists: true,
            has_ip: !node.ips.is_empty(),
            has_pod_cidrs: !node.pod_cidrs.is_empty(),
        });
    }

    fn has(&self, resource: Resource) -> bool {
        self.listed.contains(&resource)
    }
}

/// Waits until everything is listed and the Node is known as far as it will be.
///
/// A change of the Node is seen when it happens; looking each second, as M2 has it, would find the same a little later.
///
/// # Errors
/// M3: the node has no pod CIDRs, and they are needed.
pub(super) async fn ready(
    mut progress: watch::Receiver<Progress>,
    node_name: &str,
    needs_pod_cidrs: bool,
) -> Result<()> {
    // The sender lives as long as the watches, so a wait ends only by what it waits for.
    progress.wait_for(|progress| progress.has(Resource::Node)).await?;
    if timeout(NODE_IP, progress.wait_for(|progress| progress.node.has_ip)).await.is_err() {
        error!(node = node_name, "no known node IP after {} s; going on without", NODE_IP.as_secs());
    }
    if needs_pod_cidrs && timeout(POD_CIDRS, progress.wait_for(|progress| progress.node.has_pod_cidrs)).await.is_err() {
        let seconds = POD_CIDRS.as_secs();
        match progress.borrow().node.exists {
            true => bail!("node {node_name} has no PodCIDR after {seconds} s; detectLocalMode NodeCIDR needs one"),
            false => {
                bail!("node {node_name} does not exist after {seconds} s; detectLocalMode NodeCIDR needs its PodCIDR")
            }
        }
    }
    progress.wait_for(|progress| Resource::ALL.iter().all(|resource| progress.has(*resource))).await?;
    Ok(())
}

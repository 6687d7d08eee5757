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

/// How long to wait for what of the Node, once it was listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For an IP (M2).
    pub(super) ip: Duration,
    /// For pod CIDRs, where they are needed (M3).
    pub(super) pod_cidrs: Option<Duration>,
}

impl Patience {
    /// What M2 and M3 say.
    pub(super) fn new(needs_pod_cidrs: bool) -> Self {
        Self { ip: Duration::from_secs(30), pod_cidrs: needs_pod_cidrs.then_some(Duration::from_secs(300)) }
    }
}

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

    /// What start-up still waits for, in words: kinds without a complete list, else what the Node lacks.
    fn missing(&self, needs_pod_cidrs: bool) -> Vec<&'static str> {
        let kinds = Resource::ALL.into_iter().filter(|resource| !self.has(*resource)).map(Resource::kind);
        let ip = (self.has(Resource::Node) && !self.node.has_ip).then_some("an address of the Node");
        let cidrs = self.has(Resource::Node) && needs_pod_cidrs && !self.node.has_pod_cidrs;
        kinds.chain(ip).chain(cidrs.then_some("a PodCIDR of the Node")).collect()
    }
}

/// Waits until everything is listed and the Node is known as far as it will be.
///
/// A change of the Node is seen when it happens; looking each second, as M2 has it, would find the same a little later.
///
/// # Errors
/// M3: the node has no pod CIDRs, and they are needed.
pub(super) async fn ready(mut progress: watch::Receiver<Progress>, node_name: &str, patience: Patience) -> Result<()> {
    // The sender lives as long as the watches, so a wait ends only by what it waits for.
    progress.wait_for(|progress| progress.has(Resource::Node)).await?;
    if timeout(patience.ip, progress.wait_for(|progress| progress.node.has_ip)).await.is_err() {
        error!(node = node_name, "no known node IP after {} s; going on without", patience.ip.as_secs());
    }
    if let Some(patience) = patience.pod_cidrs
        && timeout(patience, progress.wait_for(|progress| progress.node.has_pod_cidrs)).await.is_err()
    {
        let seconds = patience.as_secs();
        let (node, needs) = (node_name, "detectLocalMode NodeCIDR needs one");
        if progress.borrow().node.exists {
            bail!("node {node} has no PodCIDR after {seconds} s; {needs}");
        }
        bail!("node {node} does not exist after {seconds} s, so there is no PodCIDR; {needs}");
    }
    progress.wait_for(|progress| Resource::ALL.iter().all(|resource| progress.has(*resource))).await?;
    Ok(())
}

/// Tells `tell` what start-up waits for, at once and after each change. Does not end by itself.
pub(super) async fn tell_missing(mut progress: watch::Receiver<Progress>, patience: Patience, tell: impl Fn(&[&str])) {
    loop {
        let missing = progress.borrow_and_update().missing(patience.pod_cidrs.is_some());
        tell(&missing);
        if progress.changed().await.is_err() {
            // The watches have ended; who waits for them ends as well.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Node with these many IPs and pod CIDRs.
    fn node(ips: usize, pod_cidrs: usize) -> Node {
        Node {
            name: "node-1".into(),
            zone: None,
            ips: vec![[10, 0, 0, 1].into(); ips],
            pod_cidrs: vec!["10.244.0.0/24".parse().unwrap(); pod_cidrs],
            eligible: true,
        }
    }

    /// What comes of waiting when everything is listed and the Node is like this.
    fn outcome(node: Option<&Node>, pod_cidrs: bool) -> Result<()> {
        let mut progress = Progress::default();
        Resource::ALL.into_iter().for_each(|resource| progress.listed(resource));
        progress.node(node);
        let (sender, receiver) = watch::channel(progress);
        let short = Duration::from_millis(50);
        let patience = Patience { ip: short, pod_cidrs: pod_cidrs.then_some(short) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let outcome = runtime.block_on(ready(receiver, "node-1", patience));
        drop(sender);
        outcome
    }

    #[test]
    fn without_a_node_ip_start_up_goes_on() {
        // M2
        assert!(outcome(None, false).is_ok());
        assert!(outcome(Some(&node(0, 0)), false).is_ok());
        assert_eq!(Patience::new(false).ip, Duration::from_secs(30));
    }

    #[test]
    fn without_pod_cidrs_start_up_fails_where_they_are_needed() {
        // M3
        assert!(outcome(Some(&node(1, 1)), true).is_ok());
        let absent = outcome(None, true).unwrap_err().to_string();
        let bare = outcome(Some(&node(1, 0)), true).unwrap_err().to_string();
        assert!(absent.contains("node node-1 does not exist"), "{absent}");
        assert!(bare.contains("node node-1 has no PodCIDR"), "{bare}");
        assert_eq!(Patience::new(true).pod_cidrs, Some(Duration::from_secs(300)));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut progress = Progress::default();
        assert_eq!(progress.missing(true), Resource::ALL.map(Resource::kind));
        Resource::ALL.into_iter().filter(|kind| *kind != Resource::Service).for_each(|kind| progress.listed(kind));
        progress.node(Some(&node(0, 0)));
        assert_eq!(progress.missing(true), ["Service", "an address of the Node", "a PodCIDR of the Node"]);
        progress.listed(Resource::Service);
        progress.node(Some(&node(1, 0)));
        assert_eq!(progress.missing(false), [""; 0]);
    }

    #[test]
    fn nothing_is_ready_before_all_is_listed() {
        // M2: the Node without time limit; G1: all kinds.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (sender, receiver) = watch::channel(Progress::default());
        runtime.block_on(async {
            let mut waiting = Box::pin(ready(receiver, "node-1", Patience::new(false)));
            sender.send_modify(|progress| progress.node(Some(&node(1, 0))));
            for resource in Resource::ALL {
                let early = timeout(Duration::from_millis(20), &mut waiting).await;
                assert!(early.is_err(), "{resource:?} is not listed");
                sender.send_modify(|progress| progress.listed(resource));
            }
            assert!(timeout(Duration::from_secs(5), &mut waiting).await.is_ok());
        });
    }
}

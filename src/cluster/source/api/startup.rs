//! Waits at the start until every kind is listed and, for a bounded time, until this node's Node has what is needed; then sends
//! [`Event::InitialListDone`] (M2, M3).
//!
//! The module takes the progress of the reflectors, and sends the event or returns the error that ends the process. It reports to the
//! observer what is still missing.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::timeout;
use tracing::error;

use super::resource::Resource;
use super::{ApiOptions, EventSender, Observer};
use crate::source::{NODE_REMEDY, no_such_node};
use component::logging::duration;
use rules::model::{Event, Node};

pub(super) type ProgressSender = Sender<Progress>;

/// How long to wait for this node's Node and its fields after the first list of Nodes.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How long the start waits before it logs that the Node does not exist: a kubelet that starts at the same time may still create it.
    node: Duration,
    /// The wait for an IP, after which the start continues without an IP (M2).
    ip: Duration,
    /// The wait for pod CIDRs, after which the process ends (M3); `None` if they are not needed.
    pod_cidrs: Option<Duration>,
}

impl Patience {
    fn new(needs_pod_cidrs: bool) -> Self {
        let [node, ip, pod_cidrs] = [3, 30, 300].map(Duration::from_secs);
        Self { node, ip, pod_cidrs: needs_pod_cidrs.then_some(pod_cidrs) }
    }
}

/// The kinds that were listed so far, and the state of this node's Node.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    listed: BTreeSet<Resource>,
    node: NodeFacts,
}

/// The facts about this node's Node that the start waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeFacts {
    exists: bool,
    has_ip: bool,
    has_pod_cidrs: bool,
}

impl Progress {
    /// Notes that a kind was listed completely, or that the server does not have it.
    pub(super) fn listed(&mut self, kind: Resource) {
        self.listed.insert(kind);
    }

    /// Notes the state of this node's Node; `None` if it does not exist.
    pub(super) fn node(&mut self, node: Option<&Node>) {
        self.node = node.map_or_else(NodeFacts::default, |node| NodeFacts {
            exists: true,
            has_ip: !node.ips.is_empty(),
            has_pod_cidrs: !node.pod_cidrs.is_empty(),
        });
    }

    /// Returns whether every kind was noted as listed.
    pub(super) fn is_whole(&self) -> bool {
        Resource::ALL.into_iter().all(|kind| self.has(kind))
    }

    fn has(&self, kind: Resource) -> bool {
        self.listed.contains(&kind)
    }

    /// Returns in words what the start waits for: kinds without a complete list, then what the listed Node lacks.
    fn missing(&self, needs_pod_cidrs: bool) -> Vec<&'static str> {
        let kinds = Resource::ALL.into_iter().filter(|kind| !self.has(*kind)).map(Resource::name);
        let node = (self.has(Resource::Node) && !self.node.exists).then_some("a Node of this node's name");
        let ip = (self.node.exists && !self.node.has_ip).then_some("an address of the Node");
        let cidrs = self.node.exists && needs_pod_cidrs && !self.node.has_pod_cidrs;
        kinds.chain(node).chain(ip).chain(cidrs.then_some("a PodCIDR of the Node")).collect()
    }
}

/// Sends [`Event::InitialListDone`] when the start has what it waits for, or has waited long enough. Returns only the error that ends the
/// process (M3).
pub(super) async fn run(
    options: &ApiOptions,
    progress: Receiver<Progress>,
    events: &EventSender,
    observer: &impl Observer,
) -> anyhow::Error {
    let patience = Patience::new(options.needs_pod_cidrs);
    let listed = tokio::select! {
        listed = all_listed(progress.clone(), &options.node_name, patience) => listed,
        () = report_missing(progress, patience, observer) => return pending().await,
    };
    if let Err(error) = listed {
        return error;
    }
    // Call the observer before the event is sent, because after the event the sync loop reports on `/readyz` what is missing.
    observer.waiting_for(&[]);
    // Ignore the error: if the receiver was dropped, the reflectors end and this future is dropped.
    let _ = events.send(Event::InitialListDone).await;
    pending().await
}

/// Waits until every kind is listed and the Node has an IP and, if needed, pod CIDRs. The waits for an IP and for pod CIDRs are bounded.
///
/// # Errors
/// Fails if the Node has no pod CIDRs although they are needed (M3).
async fn all_listed(mut progress: Receiver<Progress>, node_name: &str, patience: Patience) -> Result<()> {
    // The sender lives as long as the reflectors, so a wait ends only when its condition is true.
    progress.wait_for(|progress| progress.has(Resource::Node)).await?;
    let mut for_ip = patience.ip;
    if timeout(patience.node, progress.wait_for(|progress| progress.node.exists)).await.is_err() {
        for_ip = for_ip.saturating_sub(patience.node);
        let (err, waits) = (no_such_node(node_name), duration(for_ip));
        error!(node = node_name, err, remedy = NODE_REMEDY, %waits, "The Node does not exist; waiting for it");
    }
    if timeout(for_ip, progress.wait_for(|progress| progress.node.has_ip)).await.is_err() {
        let waited = duration(patience.ip);
        error!(node = node_name, %waited, "The Node has no IP; the proxy starts without one");
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
    progress.wait_for(|progress| Resource::ALL.iter().all(|kind| progress.has(*kind))).await?;
    Ok(())
}

/// Reports what the start waits for, at once and after each change. Does not end by itself.
async fn report_missing(mut progress: Receiver<Progress>, patience: Patience, observer: &impl Observer) {
    loop {
        observer.waiting_for(&progress.borrow_and_update().missing(patience.pod_cidrs.is_some()));
        if progress.changed().await.is_err() {
            // The reflectors have ended, so this future is about to be dropped.
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a Node with this many IPs and pod CIDRs.
    fn node(ips: usize, pod_cidrs: usize) -> Node {
        Node {
            name: "node-1".into(),
            zone: None,
            ips: vec![[10, 0, 0, 1].into(); ips],
            pod_cidrs: vec!["10.244.0.0/24".parse().unwrap(); pod_cidrs],
            eligible: true,
            drained: false,
        }
    }

    /// Returns the outcome of the wait if all kinds are listed and `node` is this node's Node.
    fn outcome(node: Option<&Node>, pod_cidrs: bool) -> Result<()> {
        let mut progress = Progress::default();
        Resource::ALL.into_iter().for_each(|resource| progress.listed(resource));
        progress.node(node);
        let (sender, receiver) = tokio::sync::watch::channel(progress);
        let short = Duration::from_millis(50);
        let patience = Patience { node: short, ip: short, pod_cidrs: pod_cidrs.then_some(short) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let outcome = runtime.block_on(all_listed(receiver, "node-1", patience));
        drop(sender);
        outcome
    }

    #[test]
    fn without_a_node_ip_start_up_goes_on() {
        // The wait for an IP is bounded (M2).
        assert!(outcome(None, false).is_ok());
        assert!(outcome(Some(&node(0, 0)), false).is_ok());
        assert_eq!(Patience::new(false).ip, Duration::from_secs(30));
    }

    #[test]
    fn without_pod_cidrs_start_up_fails_where_they_are_needed() {
        // If pod CIDRs are needed, the start fails without them (M3).
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
        assert_eq!(progress.missing(true), Resource::ALL.map(Resource::name));
        Resource::ALL.into_iter().filter(|kind| *kind != Resource::Service).for_each(|kind| progress.listed(kind));
        progress.node(Some(&node(0, 0)));
        assert_eq!(progress.missing(true), ["Service", "an address of the Node", "a PodCIDR of the Node"]);
        progress.listed(Resource::Service);
        progress.node(None);
        assert_eq!(progress.missing(true), ["a Node of this node's name"]);
        progress.node(Some(&node(1, 0)));
        assert_eq!(progress.missing(false), [""; 0]);
    }

    #[test]
    fn nothing_is_ready_before_all_is_listed() {
        // The start waits without a limit until the Node and all other kinds are listed (M2, G1).
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (sender, receiver) = tokio::sync::watch::channel(Progress::default());
        runtime.block_on(async {
            let mut waiting = Box::pin(all_listed(receiver, "node-1", Patience::new(false)));
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

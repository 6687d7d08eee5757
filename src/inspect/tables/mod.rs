//! Services as the kernel's tables have them: frontends, endpoints, affinity, state. For all layouts, and without the API server.
//!
//! Takes the sets, rules and elements of `ip kube-proxy` and `ip6 kube-proxy`, gives [`FrontendView`]s. `collect` keeps of each object what
//! is needed, so that a large table is never held twice; `resolve` follows each frontend to its endpoints.
//!
//! Invariants: everything comes from the kernel, also what another program has changed; what the tables do not tell is `None` and is
//! never guessed.

mod collect;
mod resolve;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use ipnet::IpNet;
use nft::{Connection, ReadError, TableName, Walked};

use collect::Collected;
use rules::model::{Family, Frontend};
use rules::ruleset::names::TABLE;

/// A frontend, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontendView {
    /// `namespace/name:port`, or `namespace/name` when the port has no name, from the comment of the frontend's element. A name that is
    /// longer than a comment is cut and ends with `...`. `None` when the element has no comment, as one of another program.
    pub(crate) service: Option<Arc<str>>,
    /// What clients connect to.
    pub(crate) frontend: Frontend,
    /// What it is to its Service.
    pub(crate) kind: Option<Kind>,
    /// What becomes of a new connection. `None` when the frontend leads to something that the proxy does not write.
    pub(crate) state: Option<State>,
    /// The traffic policy that applies to it.
    pub(crate) policy: Option<Policy>,
    /// The session affinity; `None` when clients are not remembered.
    pub(crate) affinity: Option<Affinity>,
    /// The sources that may connect, sorted; `None` when every source may.
    pub(crate) sources: Option<Vec<IpNet>>,
    /// The connections that counters counted, if `nftables.counters` is on.
    pub(crate) counted: Option<u64>,
    /// Whether its endpoints have counters that all frontends of the service port share, as chains of endpoints have.
    pub(crate) shares_counters: bool,
    /// Where it leads, sorted by address.
    pub(crate) endpoints: Vec<EndpointView>,
}

/// An endpoint of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndpointView {
    /// Its address and port.
    pub(crate) address: SocketAddr,
    /// Whether it is on this node.
    pub(crate) local: bool,
    /// The connections that counters counted, if there are any; of a chain of an endpoint those of all frontends of the service port.
    pub(crate) counted: Option<u64>,
}

/// What a frontend is to its Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub(crate) enum Kind {
    /// The Service's own address.
    ClusterIP,
    /// An address of a load balancer.
    LoadBalancer,
    /// One of `spec.externalIPs`.
    ExternalIP,
    /// A port on the node's addresses.
    NodePort,
}

/// What becomes of a new connection to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// An endpoint answers it.
    Served,
    /// It is refused, because the service port has no endpoint.
    Refused,
    /// It is dropped, because the policy is Local and no endpoint is on this node.
    Dropped,
    /// The kernel refused the Service, so that its frontends may not be as they should. Only the running proxy tells this.
    Quarantined,
}

/// The traffic policy of a frontend: the internal one for cluster IPs, the external one for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) enum Policy {
    /// All endpoints.
    Cluster,
    /// Only those on this node.
    Local,
}

/// Session affinity of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affinity {
    /// How long a client is remembered after its last connection; `None` when the rules do not tell.
    pub(crate) seconds: Option<u64>,
    /// The number of clients that are remembered now.
    pub(crate) clients: u64,
}

/// The content of both tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The frontends, sorted by Service, kind and frontend.
    pub(crate) frontends: Vec<FrontendView>,
    /// The number of objects in the tables that this program cannot read, because another program wrote them.
    pub(crate) unreadable: usize,
    /// The families whose table another program has made dormant: no packet passes its rules.
    pub(crate) dormant: Vec<Family>,
    /// The families whose table changed each time while it was read, so that a frontend or an endpoint may be missing or old.
    pub(crate) changing: Vec<Family>,
    /// The addresses of this node that accept node ports.
    pub(crate) node_addresses: Vec<IpAddr>,
}

impl View {
    /// Reads the tables of both families.
    ///
    /// # Errors
    /// When the kernel refuses to list them, or has neither.
    pub(crate) fn read() -> Result<Self> {
        let mut connection = Connection::open().map_err(|error| explained(ReadError::Socket(error)))?;
        let mut view = Self::default();
        let (mut tables, mut is_ours) = (0, false);
        for family in Family::BOTH {
            let name = TableName::new(family.into(), TABLE);
            let walked = connection
                .walk_table(&name, |collected: &mut Collected, item| collected.take(family, item))
                .map_err(explained)?;
            let Some(Walked { summary, state, is_of_one_moment }) = walked else { continue };
            tables += 1;
            is_ours |= summary.is_ours();
            view.changing.extend((!is_of_one_moment).then_some(family));
            view.add(family, summary, state.dormant);
        }
        if tables == 0 {
            bail!("no table kube-proxy in this network namespace: no proxy has written its rules here");
        }
        if !is_ours {
            bail!(
                "the tables kube-proxy in this network namespace are not those of this program; upstream's kube-proxy in mode nftables \
                 gives its own the same name"
            );
        }
        view.sort();
        Ok(view)
    }

    /// Adds what stands in the table of a family. In a dormant table nothing has an effect.
    fn add(&mut self, family: Family, collected: Collected, is_dormant: bool) {
        self.dormant.extend(is_dormant.then_some(family));
        self.unreadable += collected.unreadable;
        self.node_addresses.extend(&collected.node_addresses);
        let frontends = resolve::frontends(family, collected).into_iter();
        self.frontends.extend(
            frontends.map(|frontend| FrontendView { state: frontend.state.filter(|_| !is_dormant), ..frontend }),
        );
    }

    fn sort(&mut self) {
        self.frontends.sort_by(|a, b| {
            let key = |view: &FrontendView| (view.kind, view.frontend);
            a.service.cmp(&b.service).then_with(|| key(a).cmp(&key(b)))
        });
    }
}

/// Why the tables cannot be read, in words.
fn explained(error: ReadError) -> anyhow::Error {
    match error {
        ReadError::Unstable => {
            anyhow!("the tables changed each time while they were read; try again when fewer Services change")
        }
        other => crate::explain_rights(anyhow::Error::from(other).context("cannot read the tables")),
    }
}

//! Reads Services from the kernel's tables: frontends, endpoints, affinity, state. Works for all table layouts, and without the API server.
//!
//! Takes the sets, rules and elements of `ip kube-proxy` and `ip6 kube-proxy`, returns [`FrontendView`]s. `collect` keeps only the needed
//! part of each object as the kernel lists it, to save memory; `resolve` follows each frontend to its endpoints.
//!
//! Invariants: everything comes from the kernel, also what another program has changed. What the tables do not show is `None` and is
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
use serde::Serialize;

use crate::output::written_as_json;
use crate::running::{Problem, no_rules};
use crate::traffic::Frontends;
use collect::Collected;
use node::kernel::table_owner;
use rules::model::{Family, Frontend};
use rules::ruleset::names::{TABLE, TABLE_COMMENT};

/// A frontend and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontendView {
    /// `namespace/name:port`, or `namespace/name` when the port has no name, from the comment of the frontend's element. A name that is
    /// longer than a comment is cut and ends with `...`. `None` when the element has no comment, for example because another program
    /// added it.
    pub(crate) service: Option<Arc<str>>,
    /// What clients connect to.
    pub(crate) frontend: Frontend,
    /// The kind of the frontend, such as cluster IP; `None` if the tables do not show it.
    pub(crate) kind: Option<Kind>,
    /// What becomes of a new connection. `None` when the table is dormant, when the frontend leads to a chain or verdict that the proxy does
    /// not write, or when its chains have no endpoints.
    pub(crate) state: Option<State>,
    /// The traffic policy that applies to it; `None` if the tables do not show it.
    pub(crate) policy: Option<Policy>,
    /// The session affinity; `None` when the tables have none for the frontend.
    pub(crate) affinity: Option<Affinity>,
    /// The sources that may connect, sorted; `None` when every source may.
    pub(crate) sources: Option<Vec<IpNet>>,
    /// The connections that the frontend's counter counted; `None` if it has no counter.
    pub(crate) counted: Option<u64>,
    /// Whether all frontends of the service port share the counters of its endpoints: they do when each endpoint has a chain (layout
    /// `chains`).
    pub(crate) shares_counters: bool,
    /// Its endpoints, sorted by address.
    pub(crate) endpoints: Vec<EndpointView>,
}

/// An endpoint of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndpointView {
    pub(crate) address: SocketAddr,
    /// Whether it is on this node, as far as the tables show.
    pub(crate) local: bool,
    /// Its share of new connections in tenths of a percent, if endpoints of the frontend have different ones (weights).
    pub(crate) share: Option<u16>,
    /// Its share of new connections from outside the cluster, in tenths of a percent, if external policy Local gives these a list of
    /// endpoints of their own, and the endpoints in it have different shares.
    pub(crate) share_outside: Option<u16>,
    /// The connections that the endpoint's counter counted, if it has one. The counter of an endpoint's chain counts the connections of
    /// all frontends of the service port.
    pub(crate) counted: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It is sent to an endpoint.
    Served,
    /// It is refused, because the service port has no endpoint.
    Refused,
    /// It is dropped, because the policy is Local and no endpoint is on this node. With external policy Local this may hold only for clients
    /// outside the cluster.
    Dropped,
    /// The kernel refused the Service, so its frontends may be missing or outdated. Only the running proxy knows this, not the tables.
    Quarantined,
}

/// The traffic policy of a frontend: the internal one for cluster IPs, the external one for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Policy {
    /// Endpoints on other nodes may be used too.
    Cluster,
    /// Only the endpoints on this node are used; with external policy Local, for clients outside the cluster.
    Local,
}

written_as_json!(Kind, State, Policy);

/// Session affinity of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affinity {
    /// How long a client is remembered after its last connection; `None` when the rules do not show it.
    pub(crate) seconds: Option<u64>,
    /// The number of clients that are remembered now.
    pub(crate) clients: u64,
}

/// The content of the tables of both families.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The frontends, sorted by Service, kind and frontend.
    pub(crate) frontends: Vec<FrontendView>,
    /// The number of objects in the tables that this program cannot decode; another program may have written them.
    pub(crate) unreadable: usize,
    /// The families whose table another program has made dormant: no packet passes its rules.
    pub(crate) dormant: Vec<Family>,
    /// The families that this node has and that have no table, while another family has one.
    pub(crate) missing: Vec<Family>,
    /// The families whose table belongs to another program, with that program in words.
    pub(crate) owned: Vec<(Family, String)>,
    /// The families whose table changed again and again while it was read, so that a frontend or an endpoint may be missing, old or repeated.
    pub(crate) changing: Vec<Family>,
    /// The addresses of this node that accept node ports.
    pub(crate) node_addresses: Vec<IpAddr>,
}

impl View {
    /// Reads the tables of both families.
    ///
    /// # Errors
    /// When the kernel does not list them or has neither, or when they are upstream's.
    pub(crate) fn read() -> Result<Self> {
        let mut connection = Connection::open().map_err(|error| explained(ReadError::Socket(error)))?;
        let owned = owned_by_others(&mut connection).map_err(explained)?;
        let mut view = Self { owned, ..Self::default() };
        let (mut tables, mut is_ours) = (0, false);
        let supported = node::kernel::families::supported();
        for family in Family::BOTH {
            if view.owned.iter().any(|(owned, _)| *owned == family) {
                continue;
            }
            let name = TableName::new(family.into(), TABLE);
            let walked = connection
                .walk_table(&name, |collected: &mut Collected, item| collected.take(family, item))
                .map_err(explained)?;
            let Some(Walked { summary, state, is_of_one_moment }) = walked else {
                view.missing.extend(supported.contains(&family).then_some(family));
                continue;
            };
            tables += 1;
            is_ours |= summary.is_ours();
            view.changing.extend((!is_of_one_moment).then_some(family));
            view.add(family, summary, state.dormant);
        }
        if tables == 0 && view.owned.is_empty() {
            return Err(no_rules("table kube-proxy"));
        }
        if tables > 0 && !is_ours {
            bail!(
                "the tables kube-proxy in this network namespace are not those of this program; upstream's kube-proxy in mode nftables \
                 gives its own the same name"
            );
        }
        view.sort();
        Ok(view)
    }

    /// The problems of tables that are dormant or missing, or belong to another program.
    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem> {
        let dormant = self.dormant.iter().map(|family| Problem::dormant(*family));
        let owned = self.owned.iter().map(|(family, program)| Problem::owned(*family, program));
        dormant.chain(self.missing.iter().map(|family| Problem::missing(*family))).chain(owned)
    }

    /// The frontends whose connections to count, in the order of the view. A node has more addresses than accept node ports; a connection
    /// to a node port counts at the latter only.
    pub(crate) fn to_count(&self) -> Frontends {
        let frontends = self.frontends.iter().map(|frontend| frontend.frontend);
        Frontends::new(frontends, self.node_addresses.iter().copied())
    }

    /// Adds the content of the table of a family. In a dormant table no rule has an effect, so its frontends have no state.
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

/// The families whose table belongs to another program, with that program in words: the kernel lets no kube-proxy change the table. A
/// kube-proxy of this program that owns its tables is known by their comment.
pub(crate) fn owned_by_others(connection: &mut Connection) -> Result<Vec<(Family, String)>, ReadError> {
    let mut owned = Vec::new();
    for family in Family::BOTH {
        let found = connection.table(&TableName::new(family.into(), TABLE))?;
        let foreign = found.filter(|(table, _)| table.comment.as_deref() != Some(TABLE_COMMENT));
        if let Some(port) = foreign.and_then(|(_, ownership)| ownership.other()) {
            owned.push((family, table_owner::program(port)));
        }
    }
    Ok(owned)
}

/// Why the tables cannot be read, in words.
fn explained(error: ReadError) -> anyhow::Error {
    match error {
        ReadError::Unstable => {
            anyhow!(
                "transactions disturbed each attempt to read the tables; try again when fewer programs change nf_tables"
            )
        }
        other => crate::explain_rights(anyhow::Error::from(other).context("cannot read the tables")),
    }
}

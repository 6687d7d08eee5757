//! Computes the content of this program's nftables tables from the selected endpoints and the configuration. There is one module for each
//! ruleset layout (`--ruleset-layout`): `maps` and `chains`.
//!
//! Takes [`Settings`] and returns the [`StaticRules`] of a table; takes the [`ServiceSelection`] of one Service and returns its
//! [`ServiceObjects`]. Pure. Does not know what the kernel holds, what it held before, or in which order changes are made.
//!
//! Invariant: two Services never have the same element with different values, because a frontend has one owner.

pub mod balancing;
pub mod chains;
pub mod counters;
mod endpoint_sets;
pub mod flowtable;
mod guard;
pub mod kinds;
pub mod localhost;
pub mod map_steps;
pub mod maps;
pub mod names;
pub mod notes;
pub mod reading;
mod service_ips;
mod shared;
pub mod stable_hash;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::endpoints::ServiceSelection;
use crate::endpoints::size::PortSize;
use crate::model::Family;
use crate::table::{ServiceObjects, StaticRules};

pub use balancing::Balancing;
pub use counters::Counters;
pub use localhost::Localhost;
pub use service_ips::Pings;

/// The settings for the table of one IP family. They decide its static rules: the chains, rules and sets that do not depend on Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The IP family of the table; all its addresses are of this family.
    pub family: Family,
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// Whether all traffic to cluster IPs is masqueraded (D8).
    pub masquerade_all: bool,
    /// How traffic of local pods is recognised; `None` if that is not configured (D7, I1).
    pub local_traffic: Option<LocalTraffic>,
    /// The addresses of the node that accept node ports (D19).
    pub node_ports: NodePorts,
    /// Whether to drop forwarded packets in conntrack state `invalid`, as iptables mode does; only with `--ruleset-layout=chains`.
    pub drop_invalid: bool,
    /// Whether to drop invalid packets of endpoints on this node (D27).
    pub guard_endpoints: bool,
    /// Whether pings to addresses of Services are answered, and by which address (D25).
    pub pings: Pings,
    /// Whether ports of external IPs and load balancer IPs that no Service has are refused (D26).
    pub refuse_unused: bool,
    /// How an endpoint is chosen for a connection.
    pub balancing: Balancing,
    /// The number of maps over which each map of endpoints is split (`nftables.endpointMaps`, or [`map_steps`]), at least 1.
    pub endpoint_maps: u8,
    /// How node ports on loopback addresses are treated.
    pub localhost: Localhost,
    /// The counters that the rules and sets have.
    pub counters: Counters,
    /// Whether only this process may change the table while it runs.
    pub owned: bool,
}

/// How a packet from a local pod is recognised (I1 to I3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// Its source address is in this range.
    Source(IpNet),
    /// It arrived through this interface.
    Interface(Arc<str>),
    /// It arrived through an interface whose name starts with this text.
    InterfacePrefix(Arc<str>),
}

/// The addresses of the node that accept node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// Every local address but loopback (H4).
    Everywhere,
    /// The addresses in [`NodeFacts::node_port_addresses`].
    Listed,
}

/// Addresses and ranges that are elements of the table but belong to no Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses that accept node ports. With [`NodePorts::Everywhere`] only the rules for session affinity use them, to recognise
    /// connections to node ports.
    pub node_port_addresses: Vec<IpAddr>,
    /// The ranges of all ServiceCIDRs (D15).
    pub service_cidrs: Vec<IpNet>,
}

/// The ruleset layout (`--ruleset-layout`): how Services are represented as nftables objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The rules are static; Services are elements of maps: see [`maps`].
    Maps,
    /// The tree of chains that iptables mode has, with a chain for each endpoint: see [`chains`].
    Chains,
    /// Like [`Self::Chains`], but without a chain for each endpoint: endpoints are elements of maps.
    ServiceChains,
}

impl Layout {
    /// All ruleset layouts, those of `--ruleset-layout=chains` last.
    pub const ALL: [Self; 3] = [Self::Maps, Self::Chains, Self::ServiceChains];

    /// The chains, rules and sets of a table that do not depend on Services.
    #[must_use]
    pub fn static_rules(self, settings: &Settings) -> StaticRules {
        match self {
            Self::Maps => maps::static_rules(settings),
            Self::Chains | Self::ServiceChains => chains::static_rules(settings),
        }
    }

    /// The elements for this node's addresses and the ServiceCIDRs; the same in every layout.
    #[must_use]
    pub fn node(self, settings: &Settings, facts: &NodeFacts) -> ServiceObjects {
        shared::node(settings, facts)
    }

    /// The objects for a Service.
    #[must_use]
    pub fn service(self, settings: &Settings, selection: &ServiceSelection) -> ServiceObjects {
        match self {
            Self::Maps => maps::service(settings, selection),
            Self::Chains => chains::service(settings, selection, true),
            Self::ServiceChains => chains::service(settings, selection, false),
        }
    }

    /// Estimates the cost of a service port of this size, in elements. A set, map or chain of the port counts as the number of elements
    /// that the kernel adds in the same time, measured for the largest Service that the default limit of elements allows.
    #[must_use]
    pub fn weight(self, balancing: Balancing, size: &PortSize) -> u64 {
        match self {
            Self::Maps => maps::weight(balancing, size),
            Self::Chains => chains::weight(balancing, size, true),
            Self::ServiceChains => chains::weight(balancing, size, false),
        }
    }
}

/// The nftables table family of an IP family.
impl From<Family> for nft::Family {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ip,
            Family::V6 => Self::Ip6,
        }
    }
}

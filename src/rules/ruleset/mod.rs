//! The content of our tables: selection and configuration in, nft objects out. One module per layout.
//!
//! Takes [`Settings`] and gives the [`StaticRules`] of a table; takes what was selected for one Service and gives the
//! [`ServiceObjects`] of the table that stands for it. Pure. Knows nothing of what is in the kernel, what was there before, or in which
//! order things are changed.
//!
//! Invariant: the objects of two Services never hold the same element with different values, because a frontend has one owner.

pub mod balancing;
pub mod chains;
pub mod counters;
mod endpoint_sets;
pub mod flowtable;
pub mod kinds;
pub mod localhost;
pub mod maps;
pub mod names;
pub mod notes;
pub mod reading;
mod shared;
mod stable_hash;

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

/// Everything on which the fixed part of a family's table depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The family of the table.
    pub family: Family,
    /// The packet mark that asks for masquerading; one bit.
    pub masquerade_mark: u32,
    /// Masquerade everything that goes to a cluster IP (D8).
    pub masquerade_all: bool,
    /// How traffic of local pods is recognised; `None` when it cannot be (D7, I1).
    pub local_traffic: Option<LocalTraffic>,
    /// Which addresses of the node accept node ports (D19).
    pub node_ports: NodePorts,
    /// Drop forwarded packets that connection tracking finds invalid, as iptables mode does; layout `chains` only.
    pub drop_invalid: bool,
    /// How endpoints are chosen.
    pub balancing: Balancing,
    /// How many maps share the endpoints of each kind, from 1 up.
    pub endpoint_maps: u8,
    /// Which node ports on loopback addresses are refused.
    pub localhost: Localhost,
    /// Which counters the rules have.
    pub counters: Counters,
    /// Whether only this process may change the table while it runs.
    pub owned: bool,
}

/// How a packet from a pod of this node is recognised (I1 to I3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    /// Its source address is in this range.
    Source(IpNet),
    /// It arrived through this interface.
    Interface(Arc<str>),
    /// It arrived through an interface whose name starts like this.
    InterfacePrefix(Arc<str>),
}

/// Which addresses of the node accept node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// Every local address but loopback (H4).
    Everywhere,
    /// The addresses in [`NodeFacts::node_port_addresses`].
    Listed,
}

/// Facts that are elements of the table but belong to no Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses that accept node ports. With [`NodePorts::Everywhere`] packets are not matched against them, but connections
    /// to node ports are recognised by them.
    pub node_port_addresses: Vec<IpAddr>,
    /// The ranges of all ServiceCIDRs (D15).
    pub service_cidrs: Vec<IpNet>,
}

/// A way to write Services down in nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Static rules; Services are elements of maps: see [`maps`].
    Maps,
    /// The tree of chains that iptables mode has, with a chain for each endpoint: see [`chains`].
    Chains,
    /// The tree of [`Self::Chains`] down to the chains of service ports; endpoints are elements of maps.
    ServiceChains,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 3] = [Self::Maps, Self::Chains, Self::ServiceChains];

    /// The fixed part of a table.
    #[must_use]
    pub fn static_rules(self, settings: &Settings) -> StaticRules {
        match self {
            Self::Maps => maps::static_rules(settings),
            Self::Chains | Self::ServiceChains => chains::static_rules(settings),
        }
    }

    /// The elements for the node's own facts; the same in every layout.
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

    /// About how many elements stand for a service port of this size. A set, a map or a chain of its own counts as so many elements
    /// as the kernel could take in its time when one Service owns as many of them as it may.
    #[must_use]
    pub fn weight(self, balancing: Balancing, size: &PortSize) -> u64 {
        match self {
            Self::Maps => maps::weight(balancing, size),
            Self::Chains => chains::weight(balancing, size, true),
            Self::ServiceChains => chains::weight(balancing, size, false),
        }
    }
}

/// The family of nft tables.
impl From<Family> for nft::Family {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ip,
            Family::V6 => Self::Ip6,
        }
    }
}

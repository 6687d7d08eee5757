//! `nftables`, `iptables` and `ipvs`: a section for each proxy mode. Only the first is used; the others are read so that a
//! file written for another mode decodes.

use serde::{Deserialize, Serialize};

use super::{Flowtable, fill_duration};
use crate::config::duration::GoDuration;

const SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);
const MIN_SYNC_PERIOD: GoDuration = GoDuration::from_secs(1);
const MASQUERADE_BIT: i32 = 14;
const RELIST_REMOVAL_LIMIT: i32 = 90;
const SERVICE_ELEMENTS_LIMIT: i32 = 100_000;

/// The `nftables` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_bit: i32,
    /// Masquerade everything sent to cluster IPs.
    pub masquerade_all: bool,
    /// When a failed sync is tried again (G5); 0 stands for 30 s.
    pub sync_period: GoDuration,
    /// Least time between two syncs (G3); 0 stands for 1 s.
    pub min_sync_period: GoDuration,
    /// How the rules are laid out; a field of our own, left out of what is written when it has its default.
    #[serde(skip_serializing_if = "RulesetLayout::is_default")]
    pub ruleset_layout: RulesetLayout,
    /// The share of all objects of a kind, in percent, that one list of the API server may take away; a list that lacks more is
    /// confirmed by a second one. A field of our own, left out of what is written when it has its default.
    #[serde(skip_serializing_if = "is_usual_limit")]
    pub relist_removal_limit: i32,
    /// The number of elements of sets and maps that one Service may take; one that takes more is left out. 0 stands for no limit. A
    /// field of our own, left out of what is written when it has its default.
    #[serde(skip_serializing_if = "is_usual_elements_limit")]
    pub service_elements_limit: i32,
    /// Which interfaces hand established connections on without asking the rules; a field of our own as well.
    #[serde(skip_serializing_if = "Flowtable::is_default")]
    pub flowtable: Flowtable,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_usual_limit(limit: &i32) -> bool {
    *limit == RELIST_REMOVAL_LIMIT
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_usual_elements_limit(limit: &i32) -> bool {
    *limit == SERVICE_ELEMENTS_LIMIT
}

/// How Services are written down in nftables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesetLayout {
    /// A fixed program, Services as elements of maps.
    #[default]
    Maps,
    /// The chains known from iptables mode.
    Chains,
}

impl std::fmt::Display for RulesetLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Maps => "maps",
            Self::Chains => "chains",
        })
    }
}

impl std::str::FromStr for RulesetLayout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let layouts = [Self::Maps, Self::Chains];
        layouts.into_iter().find(|layout| layout.to_string() == text).ok_or("expected maps or chains")
    }
}

impl RulesetLayout {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Nftables {
    fn default() -> Self {
        Self {
            masquerade_bit: MASQUERADE_BIT,
            masquerade_all: false,
            sync_period: SYNC_PERIOD,
            min_sync_period: MIN_SYNC_PERIOD,
            ruleset_layout: RulesetLayout::default(),
            relist_removal_limit: RELIST_REMOVAL_LIMIT,
            service_elements_limit: SERVICE_ELEMENTS_LIMIT,
            flowtable: Flowtable::default(),
        }
    }
}

impl Nftables {
    pub(super) fn fill_defaults(&mut self) {
        fill_duration(&mut self.sync_period, SYNC_PERIOD);
        fill_duration(&mut self.min_sync_period, MIN_SYNC_PERIOD);
    }
}

/// The `iptables` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    /// The bit of the packet mark that asks for masquerading; validated, although not used.
    pub masquerade_bit: i32,
    /// Masquerade everything sent to cluster IPs.
    pub masquerade_all: bool,
    /// Whether node ports answer on loopback.
    pub localhost_node_ports: bool,
    /// 0 stands for 30 s.
    pub sync_period: GoDuration,
    /// 0 stands for 1 s.
    pub min_sync_period: GoDuration,
}

impl Default for Iptables {
    fn default() -> Self {
        Self {
            masquerade_bit: MASQUERADE_BIT,
            masquerade_all: false,
            localhost_node_ports: true,
            sync_period: SYNC_PERIOD,
            min_sync_period: MIN_SYNC_PERIOD,
        }
    }
}

impl Iptables {
    pub(super) fn fill_defaults(&mut self) {
        fill_duration(&mut self.sync_period, SYNC_PERIOD);
        fill_duration(&mut self.min_sync_period, MIN_SYNC_PERIOD);
    }
}

/// The `ipvs` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    /// 0 stands for 30 s.
    pub sync_period: GoDuration,
    /// 0 is meant as such here.
    pub min_sync_period: GoDuration,
    /// The IPVS scheduler.
    pub scheduler: String,
    /// CIDRs of virtual servers to leave alone.
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    /// Whether ARP is answered strictly.
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    /// Time-out of idle TCP sessions.
    pub tcp_timeout: GoDuration,
    /// Time-out of TCP sessions after a FIN.
    pub tcp_fin_timeout: GoDuration,
    /// Time-out of UDP flows.
    pub udp_timeout: GoDuration,
}

impl Default for Ipvs {
    fn default() -> Self {
        Self {
            sync_period: SYNC_PERIOD,
            min_sync_period: GoDuration::ZERO,
            scheduler: String::new(),
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            tcp_timeout: GoDuration::ZERO,
            tcp_fin_timeout: GoDuration::ZERO,
            udp_timeout: GoDuration::ZERO,
        }
    }
}

impl Ipvs {
    pub(super) fn fill_defaults(&mut self) {
        fill_duration(&mut self.sync_period, SYNC_PERIOD);
    }
}

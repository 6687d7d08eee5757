//! `clientConnection`, `conntrack`, and a section for each proxy mode (`iptables`, `ipvs`, `nftables`, `winkernel`). Module `modes` says which
//! of these four sections the proxy uses. It decodes all of them, so that it accepts a file for another mode, and so that
//! `--write-config-to` can write them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{fill_duration, fill_text};
use crate::config::duration::GoDuration;

const SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);
const MASQUERADE_BIT: i32 = 14;
const RELIST_REMOVAL_LIMIT: i32 = 90;
const SERVICE_ELEMENTS_LIMIT: i32 = 100_000;
const METRICS_SERVICES_LIMIT: i32 = 100;
const MAGLEV_TABLE_SIZE: i32 = 1021;

/// The `nftables` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Nftables {
    /// The bit of the packet mark that requests masquerading.
    pub(crate) masquerade_bit: i32,
    /// Whether to masquerade all traffic to cluster IPs.
    pub(crate) masquerade_all: bool,
    /// The longest time until a failed sync is tried again (G5); 0 stands for 30 s.
    pub(crate) sync_period: GoDuration,
    /// The shortest time between two syncs (G3). 0 stands for 10 times the processor time of the last sync, but at most 1 s. Upstream
    /// replaces 0 with 1 s.
    pub(crate) min_sync_period: GoDuration,
    /// How the rules of Services are laid out: `maps` or `chains`. Upstream has neither this field nor the fields of this section below it.
    pub(crate) ruleset_layout: RulesetLayout,
    /// Whether layout `chains` has a chain for each endpoint.
    pub(crate) endpoint_chains: bool,
    /// The share of the known objects of a kind, in percent, that one list from the API server may remove. If a list lacks more of them,
    /// and at least 10, the proxy removes them only after a second list without them (O14).
    pub(crate) relist_removal_limit: i32,
    /// The largest number of elements in sets and maps that a Service may need; the proxy does not serve a Service that needs more. 0
    /// stands for no limit.
    pub(crate) service_elements_limit: i32,
    /// The interfaces between which packets of established connections bypass the rules, through a flowtable.
    pub(crate) flowtable: Flowtable,
    /// The packet counters in the rules: none, for Services, or for endpoints as well.
    pub(crate) counters: Counters,
    /// The number of service ports (ports of Services) with metrics of their own, if the rules have counters; the counts of all other
    /// service ports are added up.
    pub(crate) metrics_services_limit: i32,
    /// Whether the kernel refuses changes of this program's tables by other programs.
    pub(crate) table_ownership: TableOwnership,
    /// How an endpoint is chosen for a connection, unless an annotation of the Service says otherwise.
    pub(crate) scheduler: Scheduler,
    /// The packet fields that schedulers `source-hash` and `maglev` hash.
    pub(crate) scheduler_hash: SchedulerHash,
    /// The number of positions in the hash table of scheduler `maglev`.
    pub(crate) maglev_table_size: i32,
    /// The number of maps into which each map of endpoints is split, because the kernel lists several small maps faster than a large one;
    /// with 0 the size of the table decides.
    pub(crate) endpoint_maps: i32,
    /// Ports and ranges of ports that a start reserves for node ports (`ip_local_reserved_ports`); empty for none.
    pub(crate) reserve_node_ports: String,
    /// Whether the node answers pings to addresses of Services.
    pub(crate) answer_pings: bool,
    /// Whether ports of external IPs and load balancer IPs that no Service has are refused.
    pub(crate) refuse_unused_ports: bool,
    /// Whether packets of endpoints on this node that connection tracking finds invalid are dropped.
    pub(crate) drop_invalid_from_endpoints: bool,
    /// The taint, label or annotation of the Node that drains this node, such as `label:drain`; empty for none.
    pub(crate) drain_on: String,
}

/// `nftables.flowtable`: `off`, `auto`, or names of interfaces with commas between them. The names are checked later, in `validate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Flowtable {
    /// There is no flowtable: all packets pass through the rules.
    #[default]
    Off,
    /// All interfaces of the node except loopback, including those that are added later.
    Auto,
    /// The interfaces with these names; a name that no interface has is ignored.
    Interfaces(Vec<String>),
}

impl From<String> for Flowtable {
    fn from(text: String) -> Self {
        match text.as_str() {
            "" | "off" => Self::Off,
            "auto" => Self::Auto,
            names => Self::Interfaces(names.split(',').map(str::to_owned).collect()),
        }
    }
}

impl From<Flowtable> for String {
    fn from(flowtable: Flowtable) -> Self {
        flowtable.to_string()
    }
}

impl fmt::Display for Flowtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Interfaces(names) => f.write_str(&names.join(",")),
        }
    }
}

/// Implements `Display` and `FromStr` for an enum, with the word that stands for each variant in the file and on the command line.
macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),+; $expected:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl std::str::FromStr for $type {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text { $($word => Ok(Self::$variant),)+ _ => Err(concat!("expected ", $expected)) }
            }
        }
    };
}

/// How the rules of Services are laid out in nftables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesetLayout {
    /// Services are elements of maps; the rules do not depend on them, but for session affinity (F3).
    #[default]
    Maps,
    /// Chains for each Service, as in iptables mode (`KUBE-SVC-...`).
    Chains,
}

words!(RulesetLayout: Maps = "maps", Chains = "chains"; "maps or chains");

/// `nftables.counters`: the packet counters in the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Counters {
    /// No counters, except in some rules that always count: those that other settings add, and those of layout `chains`.
    #[default]
    Off,
    /// Counters of new connections to each address and port of a Service, and of refused or dropped packets by Service and reason.
    Services,
    /// The counters of `Services`, and counters of new connections to each endpoint.
    Endpoints,
}

words!(Counters: Off = "off", Services = "services", Endpoints = "endpoints"; "off, services or endpoints");

/// `nftables.tableOwnership`: whether the kernel refuses changes of this program's tables by other programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TableOwnership {
    /// Other programs can change this program's tables.
    #[default]
    Off,
    /// The kernel refuses changes by other programs while this program runs, if the kernel can do so (Linux 6.9 and later).
    Auto,
}

words!(TableOwnership: Off = "off", Auto = "auto"; "off or auto");

/// `nftables.scheduler`: how an endpoint is chosen for a connection, unless an annotation of the Service says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Not set: `ipvs.scheduler` determines the scheduler, which is `Random` if that field is empty, too.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// At random, each endpoint with the same probability unless annotations give endpoints weights (E15, E16).
    Random,
    /// By a hash of what [`SchedulerHash`] names.
    SourceHash,
    /// By the same hash and a Maglev table: few clients get another endpoint when endpoints are added or removed.
    Maglev,
}

words!(
    Scheduler: Unset = "", Random = "random", SourceHash = "source-hash", Maglev = "maglev";
    "random, source-hash or maglev"
);

/// `nftables.schedulerHash`: the packet fields that schedulers `source-hash` and `maglev` hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerHash {
    /// The source address.
    #[default]
    Source,
    /// The source address and the source port.
    SourceAndPort,
}

words!(SchedulerHash: Source = "source", SourceAndPort = "source-and-port"; "source or source-and-port");

impl Default for Nftables {
    fn default() -> Self {
        Self {
            masquerade_bit: MASQUERADE_BIT,
            masquerade_all: false,
            sync_period: SYNC_PERIOD,
            min_sync_period: GoDuration::ZERO,
            ruleset_layout: RulesetLayout::default(),
            endpoint_chains: true,
            relist_removal_limit: RELIST_REMOVAL_LIMIT,
            service_elements_limit: SERVICE_ELEMENTS_LIMIT,
            flowtable: Flowtable::default(),
            counters: Counters::default(),
            metrics_services_limit: METRICS_SERVICES_LIMIT,
            table_ownership: TableOwnership::default(),
            scheduler: Scheduler::default(),
            scheduler_hash: SchedulerHash::default(),
            maglev_table_size: MAGLEV_TABLE_SIZE,
            endpoint_maps: 0,
            reserve_node_ports: String::new(),
            answer_pings: false,
            refuse_unused_ports: false,
            drop_invalid_from_endpoints: false,
            drain_on: String::new(),
        }
    }
}

impl Nftables {
    pub(super) fn fill_defaults(&mut self) {
        fill_duration(&mut self.sync_period, SYNC_PERIOD);
    }
}

/// The `iptables` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Iptables {
    /// The bit of the packet mark that requests masquerading.
    pub(crate) masquerade_bit: i32,
    /// Whether to masquerade all traffic to cluster IPs.
    pub(crate) masquerade_all: bool,
    /// Whether upstream's proxy serves node ports on loopback addresses of IPv4; not used.
    pub(crate) localhost_node_ports: bool,
    /// As `nftables.syncPeriod`.
    pub(crate) sync_period: GoDuration,
    /// As `nftables.minSyncPeriod`. Upstream replaces 0 with 1 s.
    pub(crate) min_sync_period: GoDuration,
}

impl Default for Iptables {
    fn default() -> Self {
        Self {
            masquerade_bit: MASQUERADE_BIT,
            masquerade_all: false,
            localhost_node_ports: true,
            sync_period: SYNC_PERIOD,
            min_sync_period: GoDuration::ZERO,
        }
    }
}

impl Iptables {
    pub(super) fn fill_defaults(&mut self) {
        fill_duration(&mut self.sync_period, SYNC_PERIOD);
    }
}

/// The `ipvs` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    /// As `nftables.syncPeriod`.
    pub(crate) sync_period: GoDuration,
    /// As `nftables.minSyncPeriod`. Upstream syncs at once if it is 0.
    pub(crate) min_sync_period: GoDuration,
    /// The IPVS scheduler. Used only in modes ipvs and nftables, and only if `nftables.scheduler` is not set: `sh` becomes `source-hash`,
    /// and `mh` becomes `maglev`.
    pub(crate) scheduler: String,
    /// CIDRs whose virtual servers stay when what mode ipvs left is removed. Used only in mode ipvs.
    #[serde(rename = "excludeCIDRs")]
    pub(crate) exclude_cidrs: Vec<String>,
    /// Whether upstream sets `arp_ignore` and `arp_announce` for strict ARP.
    #[serde(rename = "strictARP")]
    pub(crate) strict_arp: bool,
    /// Time-out of idle TCP connections in IPVS.
    pub(crate) tcp_timeout: GoDuration,
    /// Time-out of TCP connections in IPVS after a FIN.
    pub(crate) tcp_fin_timeout: GoDuration,
    /// Time-out of UDP flows in IPVS.
    pub(crate) udp_timeout: GoDuration,
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

/// The `clientConnection` section. `qps` and `burst` are not used, because the proxy sends few requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientConnection {
    /// The path of a kubeconfig; an empty text stands for the in-cluster configuration.
    pub(crate) kubeconfig: String,
    /// The `Accept` header of lists and watches; an empty text stands for `content_type`.
    pub(crate) accept_content_types: String,
    /// The content type that lists and watches accept if `accept_content_types` is empty. Request bodies are always JSON.
    pub(crate) content_type: String,
    /// The largest number of requests a second; 0 stands for 5.
    pub(crate) qps: f32,
    /// Requests that may exceed `qps` in a burst; 0 stands for 10.
    pub(crate) burst: i32,
}

impl Default for ClientConnection {
    fn default() -> Self {
        let mut section = Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: String::new(),
            qps: 0.0,
            burst: 0,
        };
        section.fill_defaults();
        section
    }
}

impl ClientConnection {
    pub(super) fn fill_defaults(&mut self) {
        fill_text(&mut self.content_type, "application/vnd.kubernetes.protobuf");
        // A number too large for 32 bits becomes infinite, which JSON does not have.
        if self.qps == 0.0 || self.qps.is_infinite() {
            self.qps = 5.0;
        }
        if self.burst == 0 {
            self.burst = 10;
        }
    }
}

/// The `conntrack` section: sysctls that are set once at start (N1 to N4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    /// The limit of tracked connections for each CPU; 0 leaves the kernel's limit unchanged.
    pub(crate) max_per_core: i32,
    /// The lowest limit of tracked connections, for machines with few CPUs.
    pub(crate) min: i32,
    /// Time-out of idle established TCP connections; 0 leaves the kernel's value unchanged.
    pub(crate) tcp_established_timeout: GoDuration,
    /// Time-out of TCP connections in CLOSE_WAIT; 0 leaves the kernel's value unchanged.
    pub(crate) tcp_close_wait_timeout: GoDuration,
    /// Whether connection tracking treats TCP packets outside of the window as valid (`nf_conntrack_tcp_be_liberal`).
    pub(crate) tcp_be_liberal: bool,
    /// Time-out of unanswered UDP flows; 0 leaves the kernel's value unchanged.
    pub(crate) udp_timeout: GoDuration,
    /// Time-out of answered UDP flows; 0 leaves the kernel's value unchanged.
    pub(crate) udp_stream_timeout: GoDuration,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established_timeout: GoDuration::from_secs(24 * 3600),
            tcp_close_wait_timeout: GoDuration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: GoDuration::ZERO,
            udp_stream_timeout: GoDuration::ZERO,
        }
    }
}

/// The `winkernel` section; not used on Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Winkernel {
    /// Name of the HNS network.
    pub(crate) network_name: String,
    /// The source virtual IP.
    pub(crate) source_vip: String,
    /// Whether direct server return is used.
    #[serde(rename = "enableDSR")]
    pub(crate) enable_dsr: bool,
    /// Name of the root HNS endpoint.
    pub(crate) root_hns_endpoint_name: String,
    /// Whether health checks are forwarded to the endpoints.
    #[serde(rename = "forwardHealthCheckVip")]
    pub(crate) forward_health_check_vip: bool,
}

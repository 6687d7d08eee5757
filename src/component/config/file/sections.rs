//! `clientConnection`, `conntrack`, `winkernel`, and a section for each proxy mode. Of the modes only `nftables` is used; the other
//! sections are read so that a file written for another mode decodes, and written back by `--write-config-to`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{fill_duration, fill_text};
use crate::config::duration::GoDuration;

const SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);
const MIN_SYNC_PERIOD: GoDuration = GoDuration::from_secs(1);
const MASQUERADE_BIT: i32 = 14;
const RELIST_REMOVAL_LIMIT: i32 = 90;
const SERVICE_ELEMENTS_LIMIT: i32 = 100_000;
const METRICS_SERVICES_LIMIT: i32 = 100;
const MAGLEV_TABLE_SIZE: i32 = 1021;

/// The `nftables` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Nftables {
    /// The bit of the packet mark that asks for masquerading.
    pub(crate) masquerade_bit: i32,
    /// Masquerade everything sent to cluster IPs.
    pub(crate) masquerade_all: bool,
    /// The time until a failed sync is tried again (G5); 0 stands for 30 s.
    pub(crate) sync_period: GoDuration,
    /// Least time between two syncs (G3); 0 stands for 1 s.
    pub(crate) min_sync_period: GoDuration,
    /// How the rules are laid out. This field and those below are our own.
    pub(crate) ruleset_layout: RulesetLayout,
    /// Whether layout `chains` has a chain for each endpoint.
    pub(crate) endpoint_chains: bool,
    /// The share of all objects of a kind, in percent, that one list of the API server may remove; a list that lacks more is confirmed
    /// by a second one.
    pub(crate) relist_removal_limit: i32,
    /// The number of elements of sets and maps that one Service may take; one that takes more is left out. 0 stands for no limit.
    pub(crate) service_elements_limit: i32,
    /// The interfaces between which established connections bypass the rules.
    pub(crate) flowtable: Flowtable,
    /// What the rules count.
    pub(crate) counters: Counters,
    /// The number of Services that have metrics of their own when the rules count; those of the others are added up.
    pub(crate) metrics_services_limit: i32,
    /// Whether the kernel refuses changes of our tables by other programs.
    pub(crate) table_ownership: TableOwnership,
    /// How endpoints are chosen, unless a Service says otherwise.
    pub(crate) scheduler: Scheduler,
    /// What a scheduler hashes.
    pub(crate) scheduler_hash: SchedulerHash,
    /// Places in a table of scheduler `maglev`.
    pub(crate) maglev_table_size: i32,
    /// How many maps share the endpoints of each kind, so that a very large table can be read in little time.
    pub(crate) endpoint_maps: i32,
}

/// `nftables.flowtable`: `off`, `auto`, or names of interfaces with commas between them. The names are checked with the other rules of the
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Flowtable {
    /// There is no fast path.
    #[default]
    Off,
    /// Every interface of the node but loopback, also those that come later.
    Auto,
    /// The interfaces of these names, as far as they exist.
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

/// The word of each variant, as the file and the command line have it.
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
    /// Static rules; Services are elements of maps.
    #[default]
    Maps,
    /// The chains known from iptables mode.
    Chains,
}

words!(RulesetLayout: Maps = "maps", Chains = "chains"; "maps or chains");

/// `nftables.counters`: what the rules count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Counters {
    /// Nothing. (Layout `chains` has the counters of iptables mode in some rules all the same.)
    #[default]
    Off,
    /// New connections of each frontend, and packets that are refused or dropped, by Service and reason.
    Services,
    /// New connections of each endpoint as well.
    Endpoints,
}

words!(Counters: Off = "off", Services = "services", Endpoints = "endpoints"; "off, services or endpoints");

/// `nftables.tableOwnership`: whether the kernel refuses changes of our tables by other programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TableOwnership {
    /// It does not.
    #[default]
    Off,
    /// It does, where it can (Linux 6.9), while this program runs.
    Auto,
}

words!(TableOwnership: Off = "off", Auto = "auto"; "off or auto");

/// `nftables.scheduler`: how endpoints are chosen, unless a Service says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// As `ipvs.scheduler` says, else at random.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// Each as likely as the others.
    Random,
    /// By a hash of the client.
    SourceHash,
    /// By a hash of the client; few clients move when endpoints come or go.
    Maglev,
}

words!(
    Scheduler: Unset = "", Random = "random", SourceHash = "source-hash", Maglev = "maglev";
    "random, source-hash or maglev"
);

/// `nftables.schedulerHash`: what a scheduler hashes.
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
            min_sync_period: MIN_SYNC_PERIOD,
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
            endpoint_maps: 1,
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
pub(crate) struct Iptables {
    /// The bit of the packet mark that asks for masquerading; validated, although not used.
    pub(crate) masquerade_bit: i32,
    /// Masquerade everything sent to cluster IPs.
    pub(crate) masquerade_all: bool,
    /// Whether node ports answer on loopback.
    pub(crate) localhost_node_ports: bool,
    /// 0 stands for 30 s.
    pub(crate) sync_period: GoDuration,
    /// 0 stands for 1 s.
    pub(crate) min_sync_period: GoDuration,
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
    pub(crate) sync_period: GoDuration,
    /// Here 0 means 0.
    pub(crate) min_sync_period: GoDuration,
    /// The IPVS scheduler: `sh` and `mh` count where `nftables.scheduler` is not set.
    pub(crate) scheduler: String,
    /// CIDRs of virtual servers to leave alone.
    #[serde(rename = "excludeCIDRs")]
    pub(crate) exclude_cidrs: Vec<String>,
    /// Whether ARP is answered strictly.
    #[serde(rename = "strictARP")]
    pub(crate) strict_arp: bool,
    /// Time-out of idle TCP sessions.
    pub(crate) tcp_timeout: GoDuration,
    /// Time-out of TCP sessions after a FIN.
    pub(crate) tcp_fin_timeout: GoDuration,
    /// Time-out of UDP flows.
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

/// The `clientConnection` section. `qps` and `burst` are not used: the watches send few requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientConnection {
    /// Path of a kubeconfig; empty: the in-cluster configuration.
    pub(crate) kubeconfig: String,
    /// The `Accept` header of requests; empty: the content type.
    pub(crate) accept_content_types: String,
    /// Content type of answers, where `accept_content_types` is empty. Requests with a body are JSON.
    pub(crate) content_type: String,
    /// Requests a second; 0 stands for 5.
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
        if self.qps == 0.0 {
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
    /// Connections to track for each CPU; 0 leaves the kernel's limit alone.
    pub(crate) max_per_core: i32,
    /// Least number of connections to track.
    pub(crate) min: i32,
    /// Time-out of idle established TCP connections; 0 leaves the kernel's alone.
    pub(crate) tcp_established_timeout: GoDuration,
    /// Time-out of TCP connections in CLOSE_WAIT; 0 leaves the kernel's alone.
    pub(crate) tcp_close_wait_timeout: GoDuration,
    /// Whether packets outside of the window are accepted.
    pub(crate) tcp_be_liberal: bool,
    /// Time-out of unanswered UDP flows; 0 leaves the kernel's alone.
    pub(crate) udp_timeout: GoDuration,
    /// Time-out of answered UDP flows; 0 leaves the kernel's alone.
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

//! Reads the configuration from the command line and the file, and makes one validated [`Config`] of both.
//!
//! ```text
//! arguments ── cli ──┐
//!                    ├─► KubeProxyConfiguration ── validate ──► Config
//! file ─── decode ───┘
//! ```
//!
//! Only this module parses the flags of the proxy. Invariants: a [`Config`] has been validated, and has every setting with the type that
//! the program uses, so that no other module parses values of the file or evaluates feature gates. This module does not log, because the
//! log has not been started yet: it collects warnings in `Config::warnings`.

mod change;
mod cli;
mod command_line;
mod duration;
pub mod file;
mod node_mark;
mod number;
mod output;
mod port_ranges;
mod release;
mod validate;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use file::DecodeError;

pub use change::ConfigFile;
pub(crate) use cli::go_bool;
pub use cli::{ManifestArgs, ProxyArgs, RenderArgs};
pub use command_line::{CommandLine, check_content, load, load_with};
pub use duration::GoDuration;
pub use file::{Counters, Flowtable, RulesetLayout, Scheduler, SchedulerHash};
pub use node_mark::{MarkKind, NodeMark};
pub use port_ranges::{DEFAULT_NODE_PORTS, PortRanges};
pub use release::{KUBERNETES_MINOR, OLDEST_KUBERNETES_MINOR, major_and_minor, outside};

/// The upper limit of the minimum time between two syncs that the proxy derives from the processor time of a sync when
/// `nftables.minSyncPeriod` is not set (G3). It is upstream's default for this field.
pub const AUTOMATIC_LIMIT: Duration = Duration::from_secs(1);

/// Returns a quantity of Kubernetes such as `10M` as a whole number, rounded up; `None` if the text is none. A larger amount than fits stands
/// for the largest.
#[allow(clippy::cast_possible_truncation, reason = "a float that does not fit becomes the nearest integer")]
pub(crate) fn quantity(text: &str) -> Option<i64> {
    file::Quantity::parse(text).map(|quantity| quantity.amount() as i64)
}

/// The action that the command line requests.
#[derive(Debug)]
pub enum Invocation {
    /// Run the proxy.
    Run(Config),
    /// Print the ruleset for the manifests or, with `--diff`, how it would change. Change nothing.
    Render {
        /// The configuration.
        config: Config,
        /// Directories, files, and `-` for standard input; never empty.
        manifests: Vec<PathBuf>,
        /// Whether `Config::node_name` comes from the configuration. If not, `node_name` is a placeholder and not the host name, so that
        /// the output does not depend on the machine; the manifests then may contain only one Node.
        is_named: bool,
        /// The arguments of `render` itself.
        args: RenderArgs,
    },
    /// Write `text` to `path` and exit with 0.
    WriteConfig {
        /// The file of `--write-config-to`.
        path: PathBuf,
        /// The configuration as v1alpha1 YAML.
        text: String,
        /// Warnings for the operator.
        warnings: Vec<String>,
    },
    /// Do only the part of the start that needs privileges, and exit.
    InitOnly(Config),
    /// Remove the rules of kube-proxy and exit.
    Cleanup {
        /// The configuration. The clean-up uses the log settings, and the addresses at which a running kube-proxy would serve metrics and
        /// health.
        config: Config,
        /// Whether to remove the rules even if a kube-proxy is running.
        force: bool,
    },
    /// Print this text, such as help or version, to standard output and exit with 0.
    Print(String),
    /// Run one of the subcommands that the caller added to the command line. Holds clap's matches of the whole command line.
    Command(clap::ArgMatches),
}

/// The validated configuration, with the types that the program uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The name of this node: `hostnameOverride` or the host name, trimmed and in lower case; never empty (M1).
    pub node_name: String,
    /// The directory of manifests to read instead of the API server; `None` to use the API server.
    pub manifests: Option<PathBuf>,
    /// The longest time from a failed sync to the next one (G5); more than zero.
    pub sync_period: Duration,
    /// The shortest time from one sync to the next (G3); at most `sync_period`. `None`: it follows from the processor time of the last
    /// sync, and is at most [`AUTOMATIC_LIMIT`].
    pub min_sync_period: Option<Duration>,
    /// The bit of the packet mark that requests masquerading, `0..=31`.
    pub masquerade_bit: u8,
    /// Whether to masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// How the rules of Services are laid out: `maps` or `chains`.
    pub ruleset_layout: RulesetLayout,
    /// Whether layout `chains` has a chain for each endpoint.
    pub endpoint_chains: bool,
    /// The interfaces between which packets of established connections bypass the rules, through a flowtable.
    pub flowtable: Flowtable,
    /// The packet counters in the rules: none, for Services, or for endpoints as well.
    pub counters: Counters,
    /// How an endpoint is chosen for a connection, unless an annotation of the Service says otherwise.
    pub scheduler: Scheduler,
    /// The packet fields that schedulers `source-hash` and `maglev` hash.
    pub scheduler_hash: SchedulerHash,
    /// The number of positions in the hash table of scheduler `maglev`; a prime number.
    pub maglev_table_size: u32,
    /// The number of maps into which each map of endpoints is split, 1 to 64; `None` if the size of the table decides.
    pub endpoint_maps: Option<u8>,
    /// The number of service ports (ports of Services) with metrics of their own, if the rules have counters.
    pub metrics_services_limit: usize,
    /// How traffic of local pods is recognised.
    pub detect_local: DetectLocal,
    /// The node's addresses at which node ports are served.
    pub node_port_addresses: NodePortAddresses,
    /// `bindAddress`, which replaces the node's IP of the address's family and makes that family the primary one. An unspecified address
    /// (`0.0.0.0`, `::`) replaces no IP (M6). The proxy binds no socket to it.
    pub bind_address: IpAddr,
    /// The address at which the metrics server listens.
    pub metrics_bind_address: SocketAddr,
    /// The address at which the healthz server listens; `None` if there is no healthz server.
    pub healthz_bind_address: Option<SocketAddr>,
    /// Whether the process ends when the metrics or the healthz server cannot listen (O8).
    pub bind_address_hard_fail: bool,
    /// Whether this program's tables have an owner (Linux 6.9 and later), so that the kernel refuses changes by other programs while this
    /// program runs.
    pub own_tables: bool,
    /// The share of the known objects of a kind, in percent, that one list from the API server may remove. If a list lacks more of them,
    /// and at least 10, the proxy removes them only after a second list without them (O14).
    pub relist_removal_limit: u8,
    /// The largest number of elements in sets and maps that a Service may need; the proxy does not serve a Service that needs more.
    /// `u64::MAX` stands for no limit.
    pub service_elements_limit: u64,
    /// The ports that a start reserves, so that the kernel gives them to no program as ephemeral ports. Ports that are reserved already
    /// stay reserved (N5).
    pub reserve_node_ports: PortRanges,
    /// Whether the node answers pings to addresses of Services (D25).
    pub answer_pings: bool,
    /// Whether ports of external IPs and load balancer IPs that no Service has are refused (D26).
    pub refuse_unused_ports: bool,
    /// Whether invalid packets of endpoints on this node are dropped (D27).
    pub drop_invalid_from_endpoints: bool,
    /// The mark of this node's Node with which an operator drains the node; `None` if there is no such mark (L10).
    pub drain_on: Option<NodeMark>,
    /// Whether external IPs of Services are served (feature gate AllowServiceExternalIPs, on by default).
    pub allow_service_external_ips: bool,
    /// Whether node ports on loopback addresses are served or refused (feature gate KubeProxyNFTablesLocalhostNodePorts, off by default).
    /// If it is off, the proxy does nothing about them (R1).
    pub localhost_node_ports: bool,
    /// What to tell the operator if the configuration has no proxy mode or mode iptables. It is logged at each start, but not reported as
    /// an event, because the operator need not act on it.
    pub mode_note: Option<String>,
    /// The text of the event to report if the configured proxy mode is ipvs.
    pub mode_warning: Option<String>,
    /// How the proxy reaches the API server.
    pub client: Client,
    /// The sysctls of connection tracking.
    pub conntrack: Conntrack,
    /// The value that the proxy writes to `/proc/self/oom_score_adj`, `-1000..=1000`.
    pub oom_score_adj: i32,
    /// Whether the metrics server has `/debug/flags/v`, and answers clients on other hosts below `/debug` (P5).
    pub profiling: bool,
    /// The version to report in metrics, pages and the log (`--version=v...`). The default is the version of Kubernetes, followed by `+`
    /// and the version of this program; the metrics then have the version of the cluster ([`Config::version_for`]).
    pub version: String,
    /// The path of the configuration file and its content when it was read; `None` if there is no file.
    pub config_file: Option<(PathBuf, Vec<u8>)>,
    /// The virtual servers of IPVS with addresses in these CIDRs stay when what mode ipvs left is removed (`ipvs.excludeCIDRs`).
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether `/flagz` is served (feature gate ComponentFlagz, on by default).
    pub flagz: bool,
    /// Whether `/statusz` is served (feature gate ComponentStatusz, on by default).
    pub statusz: bool,
    /// The feature gates that metric `kubernetes_feature_enabled` shows.
    pub features: Vec<Feature>,
    /// Every flag but `--help` with its value as Go prints it, sorted by name.
    pub flags: Vec<(String, String)>,
    /// Format, verbosity and streams of the log.
    pub logging: LoggingConfig,
    /// The body of `/configz`: the configuration file with defaults filled in and flags applied, as JSON.
    pub configz: String,
    /// Warnings for the operator, to be logged as soon as the log is started.
    pub warnings: Vec<String>,
}

impl Config {
    /// Returns whether the configured scheduler hashes the client's address, which needs kernel module nft_hash.
    pub fn hashes_clients(&self) -> bool {
        matches!(self.scheduler, Scheduler::SourceHash | Scheduler::Maglev)
    }

    /// Returns whether TCP node ports are served on loopback addresses of at least one family: the feature gate is on, and
    /// `node_port_addresses` has a loopback range (R2).
    pub fn serves_localhost(&self) -> bool {
        self.localhost_node_ports && self.node_port_addresses.loopback().next().is_some()
    }
}

/// A feature gate and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The gate's name in upstream.
    pub name: &'static str,
    /// The feature's stage in upstream.
    pub stage: Stage,
    /// Whether the gate is on.
    pub enabled: bool,
}

/// The stage of a feature in upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// May be removed in any release; off by default.
    Alpha,
    /// May change; on by default.
    Beta,
    /// Will not be removed; on by default.
    Stable,
    /// Will be removed in a later release; on by default.
    Deprecated,
}

/// How the proxy reaches the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The kubeconfig. If it and `master` are `None`, the in-cluster configuration is used.
    pub kubeconfig: Option<PathBuf>,
    /// The URL of the API server, which overrides the URL in the kubeconfig.
    pub master: Option<String>,
    /// The `Accept` header of lists and watches.
    pub accept: String,
}

/// The wanted values for sysctls of connection tracking (N1 to N4). The default leaves all of them unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// The limit of tracked connections for each CPU. 0 leaves the kernel's limit unchanged, and `min` then has no effect.
    pub max_per_core: u32,
    /// The lowest limit of tracked connections, for machines with few CPUs.
    pub min: u32,
    /// Time-out of idle established TCP connections. `None` leaves the kernel's value unchanged, as in all time-outs of this struct.
    pub tcp_established: Option<Duration>,
    /// Time-out of TCP connections in CLOSE_WAIT.
    pub tcp_close_wait: Option<Duration>,
    /// Whether connection tracking treats TCP packets outside of the window as valid (`nf_conntrack_tcp_be_liberal`).
    pub tcp_be_liberal: bool,
    /// Time-out of UDP flows without an answer.
    pub udp: Option<Duration>,
    /// Time-out of UDP flows with traffic in both directions.
    pub udp_stream: Option<Duration>,
}

/// How traffic of local pods is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Traffic is local if its source address is in the CIDR of the address's family. If a family has no CIDR, no traffic of that family is
    /// local (I1).
    ClusterCidr {
        /// The IPv4 CIDR.
        v4: Option<Ipv4Net>,
        /// The IPv6 CIDR.
        v6: Option<Ipv6Net>,
    },
    /// Traffic is local if its source address is in this node's `spec.podCIDRs` (I2).
    NodeCidr,
    /// Traffic is local if its input interface has this name (I3).
    BridgeInterface(String),
    /// Traffic is local if the name of its input interface starts with this prefix (I3).
    InterfaceNamePrefix(String),
}

/// The node's addresses at which node ports are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// Whether node ports are served at the node's primary IP of each family (H1, H2).
    pub primary: bool,
    /// Node ports are served at the node's addresses in these CIDRs, whose host bits are cleared (H3 to H5). Keywords `localhost` and `all`
    /// are stored as CIDRs (H6).
    pub ranges: Vec<IpNet>,
}

impl NodePortAddresses {
    /// Keyword `primary` alone, which is the default (H1).
    pub(crate) const PRIMARY: Self = Self { primary: true, ranges: Vec::new() };

    /// Returns the ranges that contain only loopback addresses. A wider range, such as `0.0.0.0/0`, does not enable node ports on loopback
    /// addresses (R2).
    pub fn loopback(&self) -> impl Iterator<Item = &IpNet> {
        self.ranges.iter().filter(|range| range.addr().is_loopback())
    }
}

/// The settings of the log. The default is format text, verbosity 0, and all records on standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggingConfig {
    /// The format of each record.
    pub format: LogFormat,
    /// The verbosity as in klog, 0 or more.
    pub verbosity: u32,
    /// Patterns of file names without `.rs`, each with the verbosity of the files that match, if it is higher than `verbosity`.
    pub vmodule: Vec<(String, u32)>,
    /// The size in bytes of the buffer for informational records, if they go to standard output; `None` if all records go to standard
    /// error.
    pub info_buffer: Option<usize>,
    /// The longest time that a record stays in the buffer.
    pub flush_every: Duration,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// The text format of klog.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A field of the configuration with an invalid value; printed as `path: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field in the configuration file, such as `nftables.masqueradeBit`.
    pub(crate) field: String,
    /// What is wrong with the value, and which values are valid.
    pub(crate) message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Why the configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong; the text says why and ends in a newline.
    #[error("{0}")]
    Usage(String),
    /// The arguments of one of the caller's commands are wrong; the text says why and ends in a newline.
    #[error("{0}")]
    CommandUsage(String),
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}")]
    Read {
        /// The path of the file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be decoded.
    #[error("cannot decode the configuration file {path}")]
    Decode {
        /// The path of the file.
        path: String,
        /// The cause.
        source: DecodeError,
    },
    /// The fields with invalid values; never empty.
    #[error("the configuration is not valid:\n{}", lines(.0))]
    Invalid(Vec<FieldError>),
}

impl Error {
    /// Returns whether the error is about the file or about a value in the whole configuration, and not about the form of the command line.
    /// Upstream logs such errors, but prints errors of the form, because it has not started its log when it parses the command line.
    pub(crate) fn is_of_file(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Decode { .. } | Self::Invalid(_))
    }
}

fn lines(errors: &[FieldError]) -> String {
    errors.iter().map(|error| format!("  {error}")).collect::<Vec<_>>().join("\n")
}

/// The parts of a [`Config`] that the validation takes over without a check.
#[derive(Clone, Debug, Default)]
struct Context {
    manifests: Option<PathBuf>,
    master: Option<String>,
    version: String,
    config_file: Option<(PathBuf, Vec<u8>)>,
    configz: String,
    flags: Vec<(String, String)>,
}

#[cfg(test)]
mod parity;
#[cfg(test)]
mod tests;

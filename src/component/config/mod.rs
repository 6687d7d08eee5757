//! The configuration: command line and file in, one validated [`Config`] out.
//!
//! ```text
//! arguments ── cli ──┐
//!                    ├─► KubeProxyConfiguration ── validate ──► Config
//! file ─── decode ───┘
//! ```
//!
//! The only place that reads the command line. Invariants: a [`Config`] has passed every rule, and has every setting in the form in which
//! the program uses it, so that no other module reads the file's words; feature gates are evaluated here, once. Nothing is logged from
//! here, because the log has not been started: warnings wait in `Config::warnings`.

mod change;
mod cli;
mod duration;
pub mod file;
mod output;
mod validate;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs, io};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use file::{DecodeError, Decoded, KubeProxyConfiguration};

pub use change::ConfigFile;
pub use cli::ProxyArgs;
pub use cli::RenderArgs;
pub use duration::GoDuration;
pub use file::{Counters, Flowtable, RulesetLayout, Scheduler, SchedulerHash};

/// The minor release of Kubernetes 1 whose behaviour this program follows.
pub const KUBERNETES_MINOR: u32 = 37;

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Run the proxy until a signal ends it.
    Run(Config),
    /// Print the ruleset for the manifests, and change nothing.
    Render {
        /// `Config::manifests` is set.
        config: Config,
        /// Whether `Config::node_name` comes from the configuration. The host name is not used, so that the ruleset is the same on
        /// every machine: without a name in the configuration, the manifests have to say which node is meant.
        is_named: bool,
        /// What else was asked for.
        args: RenderArgs,
    },
    /// Write this text to this file and exit with 0.
    WriteConfig {
        /// The file of `--write-config-to`.
        path: PathBuf,
        /// The configuration as v1alpha1 YAML.
        text: String,
        /// Warnings for the operator.
        warnings: Vec<String>,
    },
    /// Do the privileged part of the start and exit.
    InitOnly(Config),
    /// Remove the rules of kube-proxy and exit.
    Cleanup {
        /// Where the servers of a kube-proxy that runs may be, and how to log.
        config: Config,
        /// Also while a kube-proxy runs.
        force: bool,
    },
    /// Print this text (help or version) to standard output and exit with 0.
    Print(String),
    /// One of the commands that the caller added to the command line, as clap matched the whole line.
    Command(clap::ArgMatches),
}

/// The validated configuration, in the form in which the program uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of this node: the override or the host name, trimmed, lower case, never empty (M1).
    pub node_name: String,
    /// Directory to read manifests from, instead of the API server.
    pub manifests: Option<PathBuf>,
    /// At most this long after a failed sync the next follows (G5); more than zero.
    pub sync_period: Duration,
    /// At least this long after a sync the next begins (G3); at most `sync_period`.
    pub min_sync_period: Duration,
    /// The bit of the packet mark that asks for masquerading, `0..=31`.
    pub masquerade_bit: u8,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// How the rules are laid out.
    pub ruleset_layout: RulesetLayout,
    /// Whether layout `chains` has a chain for each endpoint.
    pub endpoint_chains: bool,
    /// The interfaces between which established connections bypass the rules.
    pub flowtable: Flowtable,
    /// What the rules count.
    pub counters: Counters,
    /// How endpoints are chosen, unless a Service says otherwise.
    pub scheduler: Scheduler,
    /// What a scheduler hashes.
    pub scheduler_hash: SchedulerHash,
    /// Places in a table of scheduler `maglev`; a prime number.
    pub maglev_table_size: u32,
    /// How many maps share the endpoints of each kind, 1 to 64.
    pub endpoint_maps: u8,
    /// The number of Services that have metrics of their own when the rules count.
    pub metrics_services_limit: usize,
    /// How traffic of local pods is recognised.
    pub detect_local: DetectLocal,
    /// Which addresses of the node accept node ports.
    pub node_port_addresses: NodePortAddresses,
    /// Unless unspecified, the node's IP of its family, and that family is the primary one (M6). Nothing is bound to it.
    pub bind_address: IpAddr,
    /// Where the metrics server listens.
    pub metrics_bind_address: SocketAddr,
    /// Where the healthz server listens, if it does.
    pub healthz_bind_address: Option<SocketAddr>,
    /// Whether the process ends when the metrics or the healthz server cannot listen (O8).
    pub bind_address_hard_fail: bool,
    /// Whether the kernel refuses changes of our tables by other programs while this one runs, where it can.
    pub own_tables: bool,
    /// A list of the API server that lacks a larger share of a kind's objects, in percent, is confirmed by a second one.
    pub relist_removal_limit: u8,
    /// A Service that takes more elements of sets and maps is left out; `u64::MAX` for no limit.
    pub service_elements_limit: u64,
    /// Whether external IPs of Services are served (feature gate AllowServiceExternalIPs, on unless switched off).
    pub allow_service_external_ips: bool,
    /// Whether node ports on loopback addresses are served or refused (feature gate KubeProxyNFTablesLocalhostNodePorts, off unless
    /// switched on). Without it nothing is done about them (R1).
    pub localhost_node_ports: bool,
    /// What to report as an event about the mode of the configuration, when that is not `nftables`.
    pub mode_warning: Option<String>,
    /// How the API server is reached.
    pub client: Client,
    /// Connection tracking sysctls.
    pub conntrack: Conntrack,
    /// Written to `/proc/self/oom_score_adj`, `-1000..=1000`.
    pub oom_score_adj: i32,
    /// Whether the metrics server has profiling handlers.
    pub profiling: bool,
    /// The version to report in metrics, pages and the log (`--version=v...`); by default Kubernetes' and our own.
    pub version: String,
    /// The configuration file and what it held when it was read, if there is one.
    pub config_file: Option<(PathBuf, Vec<u8>)>,
    /// Whether `/flagz` is served (feature gate ComponentFlagz, on).
    pub flagz: bool,
    /// Whether `/statusz` is served (feature gate ComponentStatusz, on).
    pub statusz: bool,
    /// The feature gates that `kubernetes_feature_enabled` shows.
    pub features: Vec<Feature>,
    /// Every flag with its value as Go prints it, sorted by name.
    pub flags: Vec<(String, String)>,
    /// Format, verbosity and streams of the log.
    pub logging: LoggingConfig,
    /// The body of `/configz`: the configuration file with defaults filled in and flags applied, as JSON.
    pub configz: String,
    /// Warnings for the operator, to be logged as soon as the log is started.
    pub warnings: Vec<String>,
}

impl Config {
    /// Whether endpoints are chosen by a hash of the client, which takes a module of the kernel that nothing else needs.
    pub fn hashes_clients(&self) -> bool {
        matches!(self.scheduler, Scheduler::SourceHash | Scheduler::Maglev)
    }

    /// Whether TCP node ports are served on loopback addresses of some family: the gate is on, and the list names such addresses (R2).
    pub fn serves_localhost(&self) -> bool {
        self.localhost_node_ports && self.node_port_addresses.loopback().next().is_some()
    }
}

/// A feature gate and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Upstream's name of the gate.
    pub name: &'static str,
    /// Upstream's stage of the feature.
    pub stage: Stage,
    /// Whether it is on.
    pub enabled: bool,
}

/// Upstream's stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// May vanish; off by default.
    Alpha,
    /// May change; on by default.
    Beta,
    /// Stays; on by default.
    Stable,
    /// Goes some day; on by default.
    Deprecated,
}

/// How the API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The kubeconfig; without it and `master`, the in-cluster configuration.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server; overrides the kubeconfig's.
    pub master: Option<String>,
    /// The `Accept` header of lists and watches.
    pub accept: String,
}

/// Connection tracking sysctls (N1 to N4). The default leaves all of them as the kernel has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections to track for each CPU; 0 leaves the kernel's limit as it is, and `min` is ignored.
    pub max_per_core: u32,
    /// Least number of connections to track.
    pub min: u32,
    /// Time-out of idle established TCP connections. `None` leaves the kernel's, as for the other time-outs.
    pub tcp_established: Option<Duration>,
    /// Time-out of TCP connections in CLOSE_WAIT.
    pub tcp_close_wait: Option<Duration>,
    /// Whether TCP packets outside of the window are valid.
    pub tcp_be_liberal: bool,
    /// Time-out of UDP flows without an answer.
    pub udp: Option<Duration>,
    /// Time-out of UDP flows with traffic in both directions.
    pub udp_stream: Option<Duration>,
}

/// How traffic of local pods is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By the source address: it is in the CIDR of its family. In a family without a CIDR no traffic counts as local (I1).
    ClusterCidr {
        /// The IPv4 CIDR.
        v4: Option<Ipv4Net>,
        /// The IPv6 CIDR.
        v6: Option<Ipv6Net>,
    },
    /// By the source address: it is in this node's `spec.podCIDRs` (I2).
    NodeCidr,
    /// By the input interface: it has this name (I3).
    BridgeInterface(String),
    /// By the input interface: its name starts with this (I3).
    InterfaceNamePrefix(String),
}

/// Which addresses of the node accept node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The node's primary IP of each family (H1, H2).
    pub primary: bool,
    /// The local addresses in these CIDRs; host bits are cleared (H3 to H5). `localhost` and `all` stand here as their CIDRs (H6).
    pub ranges: Vec<IpNet>,
}

impl NodePortAddresses {
    /// `primary` alone, which is the default (H1).
    pub(crate) const PRIMARY: Self = Self { primary: true, ranges: Vec::new() };

    /// The ranges inside those of loopback, which ask for node ports there; a wider one does not (R2).
    pub fn loopback(&self) -> impl Iterator<Item = &IpNet> {
        self.ranges.iter().filter(|range| range.addr().is_loopback())
    }
}

/// The log. The default is text of verbosity 0 on standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggingConfig {
    /// The format of each record.
    pub format: LogFormat,
    /// Kubernetes' verbosity, from 0 up.
    pub verbosity: u32,
    /// Patterns of file names without `.rs`, and the verbosity of these files if it is higher.
    pub vmodule: Vec<(String, u32)>,
    /// If informational records go to standard output: how many bytes of them are buffered.
    pub info_buffer: Option<usize>,
    /// How long they are buffered at most.
    pub flush_every: Duration,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// That of klog.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A field of the configuration that breaks a rule; printed as `path: what is wrong`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field in the configuration file, such as `nftables.masqueradeBit`.
    pub(crate) field: String,
    /// What is wrong with it, and what would be right.
    pub(crate) message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Why there is no configuration. Upstream exits with 1 for each.
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
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be decoded.
    #[error("cannot decode the configuration file {path}")]
    Decode {
        /// The file.
        path: String,
        /// The cause.
        source: DecodeError,
    },
    /// Fields that break rules; never empty.
    #[error("the configuration is not valid:\n{}", lines(.0))]
    Invalid(Vec<FieldError>),
}

impl Error {
    /// Whether it is about the file or the values. Upstream's log is there by then, in its default form; before, it is not.
    pub(crate) fn is_of_file(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Decode { .. } | Self::Invalid(_))
    }
}

fn lines(errors: &[FieldError]) -> String {
    errors.iter().map(|error| format!("  {error}")).collect::<Vec<_>>().join("\n")
}

/// Reads the command line of the proxy (the first argument is the program's name) and the file that it names.
///
/// # Errors
/// When flags, file or values are wrong; see [`Error`].
pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Error> {
    load_with(args, |line| line)
}

/// As [`load`], for a command line with more commands.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    args: impl IntoIterator<Item = OsString>,
    commands: fn(clap::Command) -> clap::Command,
) -> Result<Invocation, Error> {
    let request = cli::parse(args, commands).map_err(|error| match error {
        cli::ParseError::OfProxy(text) => Error::Usage(text),
        cli::ParseError::OfCommand(text) => Error::CommandUsage(text),
    })?;
    match request {
        cli::Request::Command(matches) => Ok(Invocation::Command(matches)),
        cli::Request::Print(text) => Ok(Invocation::Print(text)),
        cli::Request::Run(flags) => invocation(&flags),
        cli::Request::Render(flags, _) if flags.option("manifests").is_none() => {
            Err(Error::Usage("kube-proxy render needs --manifests DIR\n".to_owned()))
        }
        cli::Request::Render(flags, args) => {
            let (config, file) = configure(&flags, || Ok("unknown".to_owned()))?;
            Ok(Invocation::Render { config, is_named: !file.hostname_override.is_empty(), args })
        }
    }
}

impl ProxyArgs {
    /// The configuration of a proxy with these flags.
    ///
    /// # Errors
    /// When the file or values are wrong; see [`Error`].
    pub fn config(&self) -> Result<Config, Error> {
        configure(&self.0, hostname).map(|(config, _)| config)
    }

    /// The configuration file, if one is given.
    pub fn file(&self) -> Option<&str> {
        self.0.config_file()
    }
}

/// What the flags ask for, in upstream's order.
fn invocation(flags: &cli::Flags) -> Result<Invocation, Error> {
    let force = flags.is_on("cleanup-force");
    if force && !flags.is_on("cleanup") {
        return Err(Error::Usage("--cleanup-force is for --cleanup, which is not given\n".to_owned()));
    }
    let (config, file) = configure(flags, hostname)?;
    if let Some(path) = flags.option("write-config-to") {
        let text = output::yaml(&file).map_err(Error::Usage)?;
        return Ok(Invocation::WriteConfig { path: path.into(), text, warnings: config.warnings });
    }
    Ok(if flags.is_on("cleanup") {
        Invocation::Cleanup { config, force }
    } else if flags.is_on("init-only") {
        Invocation::InitOnly(config)
    } else {
        Invocation::Run(config)
    })
}

/// The validated configuration, and the file's fields with the flags applied. `hostname` is called only if no node name is configured.
fn configure(
    flags: &cli::Flags,
    hostname: impl FnOnce() -> io::Result<String>,
) -> Result<(Config, KubeProxyConfiguration), Error> {
    let content = flags.config_file().map(read).transpose()?.unwrap_or_default();
    let Decoded { config: mut file, mut warnings } = match flags.config_file() {
        Some(path) => decode(path, &content)?,
        None => Decoded { config: KubeProxyConfiguration::default(), warnings: Vec::new() },
    };
    warnings.extend(flags.warnings());
    flags.apply(&mut file).map_err(Error::Usage)?;
    if flags.is_on("cleanup") {
        // The rules of any mode are removed, so any mode may be set.
        file.mode = "nftables".to_owned();
    }
    let context = Context {
        manifests: flags.option("manifests").map(PathBuf::from),
        master: flags.option("master").map(str::to_owned),
        version: flags.version().to_owned(),
        config_file: flags.config_file().map(|path| (PathBuf::from(path), content.into_bytes())),
        configz: output::configz(&file).map_err(Error::Usage)?,
        flags: flags.shown(),
    };
    let config = validate::validate(&file, context, warnings, hostname).map_err(Error::Invalid)?;
    Ok((config, file))
}

/// Checks the new content of a configuration file as at a start with it.
///
/// The flags of the process are not applied, except that the node has a name: a file has to be valid by itself.
///
/// # Errors
/// Everything that is wrong with it, as text for the log.
pub fn check_content(content: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(content).map_err(|error| error.to_string())?;
    let decoded = file::decode(text).map_err(|error| error.to_string())?;
    let name = || Ok("node".to_owned());
    let checked = validate::validate(&decoded.config, Context::default(), Vec::new(), name);
    checked.map(drop).map_err(|errors| Error::Invalid(errors).to_string())
}

/// The part of a [`Config`] that does not come from the fields of the file.
#[derive(Clone, Debug, Default)]
struct Context {
    manifests: Option<PathBuf>,
    master: Option<String>,
    version: String,
    config_file: Option<(PathBuf, Vec<u8>)>,
    configz: String,
    flags: Vec<(String, String)>,
}

fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn decode(path: &str, text: &str) -> Result<Decoded, Error> {
    file::decode(text).map_err(|source| Error::Decode { path: path.to_owned(), source })
}

/// The host name, read from where Go reads it.
fn hostname() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/hostname")
}

#[cfg(test)]
mod tests;

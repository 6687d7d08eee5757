//! The configuration: command line and file in, one validated [`Config`] out.
//!
//! ```text
//! arguments ── cli ──┐
//!                    ├─► KubeProxyConfiguration ── validate ──► Config
//! file ─── decode ───┘
//! ```
//!
//! The only place that reads the command line. Invariants: a [`Config`] has passed every rule; nothing is logged from here,
//! as logging is not up yet: what should be said waits in [`Config::warnings`].

mod cli;
pub mod duration;
pub mod file;
mod output;
mod validate;
mod version;
pub mod watch;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs, io};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use file::{DecodeError, Decoded, KubeProxyConfiguration};

pub use output::configz;

/// What the program was called to do.
#[derive(Debug)]
pub enum Invocation {
    /// Run the proxy until told to stop.
    Run(Config),
    /// Print the ruleset for the manifests, and change nothing. [`Config::manifests`] is set. The machine is not asked for its name:
    /// [`Config::node_name`] means something only where the configuration gives one (`file.hostname_override`).
    Render(Config),
    /// Write this text to this file and exit with 0.
    WriteConfig {
        /// The file of `--write-config-to`.
        path: PathBuf,
        /// The configuration as v1alpha1 YAML.
        text: String,
    },
    /// Do the privileged part of the start and exit.
    InitOnly(Config),
    /// Remove the rules of kube-proxy and exit.
    Cleanup(Config),
    /// Print this text (help or version) to standard output and exit with 0.
    Print(String),
}

/// The validated configuration, in this program's words.
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
    /// Whether nobody else may change our tables while we run, on kernels that can do that.
    pub own_tables: bool,
    /// A list of the API server that takes away a larger share of a kind's objects, in percent, is confirmed by a second one.
    pub relist_removal_limit: u8,
    /// A Service that takes more elements of sets and maps is left out; `u64::MAX` for no limit.
    pub service_elements_limit: u64,
    /// Whether external IPs of Services are served (feature gate AllowServiceExternalIPs, on unless switched off).
    pub allow_service_external_ips: bool,
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
    /// The file that the configuration came from, if it did.
    pub config_file: Option<PathBuf>,
    /// What that file held when it was read; empty without one.
    pub config_content: Vec<u8>,
    /// Whether `/flagz` is served (feature gate ComponentFlagz, on).
    pub flagz: bool,
    /// Whether `/statusz` is served (feature gate ComponentStatusz, on).
    pub statusz: bool,
    /// Whether native histograms are exposed (feature gate NativeHistograms, off).
    pub native_histograms: bool,
    /// Every flag with its value as Go prints it, sorted by name.
    pub flags: Vec<(String, String)>,
    /// What to log and how.
    pub logging: LoggingConfig,
    /// The configuration as decoded, defaults filled in and flags applied.
    pub file: KubeProxyConfiguration,
    /// What the operator should know; to be logged once logging is up.
    pub warnings: Vec<String>,
}

/// How the API server is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The kubeconfig; without it and `master`, the in-cluster configuration.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server; wins over the kubeconfig's.
    pub master: Option<String>,
    /// Requests a second; negative: without limit.
    pub qps: f32,
    /// Requests at once beyond `qps`.
    pub burst: u32,
    /// Content type of requests.
    pub content_type: String,
    /// The `Accept` header of requests; empty: the content type.
    pub accept_content_types: String,
}

/// Connection tracking sysctls (N1 to N4). What is `None` or 0 is left as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections to track for each CPU; 0 leaves the limit alone, and `min` does not count.
    pub max_per_core: u32,
    /// Least number of connections to track.
    pub min: u32,
    /// Time-out of idle established TCP connections.
    pub tcp_established: Option<Duration>,
    /// Time-out of TCP connections in CLOSE_WAIT.
    pub tcp_close_wait: Option<Duration>,
    /// Whether packets outside of the window are accepted.
    pub tcp_be_liberal: bool,
    /// Time-out of unanswered UDP flows.
    pub udp: Option<Duration>,
    /// Time-out of answered UDP flows.
    pub udp_stream: Option<Duration>,
}

/// How traffic of local pods is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// The source is in the CIDR of its family; a family without one has no detector (I1).
    ClusterCidr {
        /// The IPv4 CIDR.
        v4: Option<Ipv4Net>,
        /// The IPv6 CIDR.
        v6: Option<Ipv6Net>,
    },
    /// The same with this node's `spec.podCIDRs` (I2).
    NodeCidr,
    /// The input interface has this name (I3).
    BridgeInterface(String),
    /// The name of the input interface starts with this (I3).
    InterfaceNamePrefix(String),
}

/// Which addresses of the node accept node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The node's primary IP of each family (H1, H2).
    Primary,
    /// The local addresses in these CIDRs; host bits are cleared (H3 to H5).
    Cidrs(Vec<IpNet>),
}

/// What to log and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggingConfig {
    /// The form of each line.
    pub format: LogFormat,
    /// Kubernetes' verbosity, from 0 up.
    pub verbosity: u32,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A field that breaks a rule; printed as `path: what is wrong`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field in the configuration file, such as `nftables.masqueradeBit`.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Why there is no configuration. Upstream exits with 1 for each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line does not fit; the text says why and ends in a newline.
    #[error("{0}")]
    Usage(String),
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be decoded.
    #[error("cannot decode the configuration file {path}")]
    Decode {
        /// The file.
        path: String,
        /// Why.
        source: DecodeError,
    },
    /// Fields that break rules; never empty.
    #[error("the configuration is not valid:\n{}", lines(.0))]
    Invalid(Vec<FieldError>),
}

fn lines(errors: &[FieldError]) -> String {
    errors.iter().map(|error| format!("  {error}")).collect::<Vec<_>>().join("\n")
}

/// Reads the command line (the first argument is the program's name) and the file that it names.
///
/// # Errors
/// When flags, file or values are wrong; see [`Error`].
pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Error> {
    match cli::parse(args).map_err(Error::Usage)? {
        cli::Request::Print(text) => Ok(Invocation::Print(text)),
        cli::Request::Run(flags) => invocation(&flags),
        cli::Request::Render(flags) if flags.option("manifests").is_none() => {
            Err(Error::Usage("kube-proxy render needs --manifests DIR\n".to_owned()))
        }
        cli::Request::Render(flags) => configure(&flags, || Ok("unknown".to_owned())).map(Invocation::Render),
    }
}

/// What the flags ask for, in upstream's order (surface.md section 10).
fn invocation(flags: &cli::Flags) -> Result<Invocation, Error> {
    let config = configure(flags, hostname)?;
    if let Some(path) = flags.option("write-config-to") {
        let text = output::text(&config).map_err(Error::Usage)?;
        return Ok(Invocation::WriteConfig { path: path.into(), text });
    }
    Ok(if flags.is_on("cleanup") {
        Invocation::Cleanup(config)
    } else if flags.is_on("init-only") {
        Invocation::InitOnly(config)
    } else {
        Invocation::Run(config)
    })
}

/// `hostname` is asked for the node's name only if none is configured.
fn configure(flags: &cli::Flags, hostname: impl FnOnce() -> io::Result<String>) -> Result<Config, Error> {
    let content = flags.config_file().map(read).transpose()?.unwrap_or_default();
    let Decoded { mut config, warnings } = match flags.config_file() {
        Some(path) => decode(path, &content)?,
        None => Decoded { config: KubeProxyConfiguration::default(), warnings: Vec::new() },
    };
    flags.apply(&mut config).map_err(Error::Usage)?;
    if flags.is_on("cleanup") {
        // What is left of any mode is removed, so any mode may be set.
        config.mode = "nftables".to_owned();
    }
    let context = Context {
        manifests: flags.option("manifests").map(PathBuf::from),
        master: flags.option("master").map(str::to_owned),
        own_tables: flags.option("table-ownership") == Some("auto"),
        version: flags.version().to_owned(),
        config_file: flags.config_file().map(PathBuf::from),
        config_content: content.into_bytes(),
        flags: flags.shown(),
    };
    validate::validate(config, context, warnings, hostname).map_err(Error::Invalid)
}

/// Judges what a configuration file would mean to this process now, given new content: the errors, if it were refused.
///
/// `flags` of the process are not taken into account, but for the name: they do not make a file valid.
///
/// # Errors
/// Everything that is wrong with it, as text for the log.
pub fn judge(content: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(content).map_err(|error| error.to_string())?;
    let decoded = file::decode(text).map_err(|error| error.to_string())?;
    let name = || Ok("node".to_owned());
    validate::validate(decoded.config, Context::default(), Vec::new(), name).map(drop).map_err(|errors| lines(&errors))
}

/// What only the command line says.
#[derive(Clone, Debug, Default)]
struct Context {
    manifests: Option<PathBuf>,
    master: Option<String>,
    own_tables: bool,
    version: String,
    config_file: Option<PathBuf>,
    config_content: Vec<u8>,
    flags: Vec<(String, String)>,
}

fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn decode(path: &str, text: &str) -> Result<Decoded, Error> {
    file::decode(text).map_err(|source| Error::Decode { path: path.to_owned(), source })
}

/// The host name, asked as Go does.
fn hostname() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/hostname")
}

#[cfg(test)]
mod tests;

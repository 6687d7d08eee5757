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
mod validate;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs, io};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use file::{DecodeError, Decoded, KubeProxyConfiguration};

/// What the program was called to do.
#[derive(Debug)]
pub enum Invocation {
    /// Run the proxy until told to stop.
    Run(Config),
    /// Print the ruleset for the manifests, and change nothing. [`Config::manifests`] is set.
    Render(Config),
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
    /// Whether external IPs of Services are served (feature gate AllowServiceExternalIPs, on unless switched off).
    pub allow_service_external_ips: bool,
    /// What to log and how.
    pub logging: LoggingConfig,
    /// The configuration as decoded, defaults filled in and flags applied.
    pub file: KubeProxyConfiguration,
    /// What the operator should know; to be logged once logging is up.
    pub warnings: Vec<String>,
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
        cli::Request::Run(flags) => configure(flags).map(Invocation::Run),
        cli::Request::Render(flags) if flags.manifests().is_none() => {
            Err(Error::Usage("kube-proxy render needs --manifests DIR\n".to_owned()))
        }
        cli::Request::Render(flags) => configure(flags).map(Invocation::Render),
    }
}

fn configure(flags: cli::Flags) -> Result<Config, Error> {
    let Decoded { mut config, warnings } = match flags.config_file() {
        Some(path) => read(path)?,
        None => Decoded { config: KubeProxyConfiguration::default(), warnings: Vec::new() },
    };
    let manifests = flags.manifests().map(PathBuf::from);
    flags.apply(&mut config);
    validate::validate(config, manifests, warnings, hostname).map_err(Error::Invalid)
}

fn read(path: &str) -> Result<Decoded, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    file::decode(&text).map_err(|source| Error::Decode { path: path.to_owned(), source })
}

/// The host name, asked as Go does.
fn hostname() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/hostname")
}

#[cfg(test)]
mod tests;

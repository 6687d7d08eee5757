//! Gathers the facts for `kube-proxy check`, as plain values.
//!
//! If a fact cannot be read, the reason or `None` takes its place. This module changes nothing on the node.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nft::{Connection, HookedChain};
use rustix::thread::{CapabilitySet, capabilities};

use super::shared::Shared;
use crate::is_about_rights;
use crate::other_proxy::{self, OtherProxy, Program};
use crate::running::Running;
use crate::tables::owned_by_others;
use cluster::settings::{client, options};
use cluster::source::{api, manifests};
use component::config::{Config, PortRanges, ProxyArgs};
use node::configured::{NoSettings, Origin, Settings};
use node::kernel::families;
use node::kernel::iptables;
use node::kernel::leftovers::{self, Left};
use node::kernel::local_ports::LocalPorts;
use node::kernel::probe::{ProbeError, probe};
use node::kernel::process::{self, SKIP_VERSION_CHECK};
use node::kernel::sysctl::{self, Setting};
use rules::model::{Event, Family};

/// Why a fact could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoLook {
    /// A privilege is missing.
    NotPermitted,
    /// Any other error.
    Failed(String),
}

impl From<nft::ReadError> for NoLook {
    fn from(error: nft::ReadError) -> Self {
        if is_about_rights(&error) { Self::NotPermitted } else { Self::Failed(error.to_string()) }
    }
}

/// All facts of a check.
#[derive(Debug)]
pub(super) struct Facts {
    /// The facts that depend on the configuration, or why there is none.
    pub(super) config: Result<OfConfig, NoSettings>,
    pub(super) kernel: Kernel,
    pub(super) privileges: Privileges,
    pub(super) programs: Programs,
    pub(super) shared: Shared,
}

/// The facts that depend on the configuration.
#[derive(Clone, Debug)]
pub(super) struct OfConfig {
    pub(super) origin: Origin,
    pub(super) node_name: String,
    pub(super) layout: String,
    pub(super) warnings: Vec<String>,
    /// A note about the proxy mode in the configuration, which is not a problem.
    pub(super) mode_note: Option<String>,
    pub(super) sysctls: Vec<Setting>,
    /// The ports that a proxy reserves when it starts.
    pub(super) reserves: PortRanges,
    pub(super) source: Source,
    /// The servers that a proxy starts, and whether a program listens on their ports already.
    pub(super) ports: Vec<(&'static str, SocketAddr, bool)>,
}

/// The source of the Services and other objects.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A directory: its content, or why it cannot be read.
    Manifests(PathBuf, Result<Manifests, String>),
    /// An API server: its report, or why it cannot be asked.
    Api(Result<api::ServerReport, String>),
    /// A source that the running proxy reads in its own file system, where this command does not see it; with the remedy.
    Elsewhere(String),
}

/// The content of a directory of manifests.
#[derive(Clone, Debug, Default)]
pub(super) struct Manifests {
    pub(super) problems: Vec<String>,
    /// Whether it has Nodes, and none with the name of this node.
    pub(super) lacks_node: bool,
}

/// Facts about the kernel.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) release: String,
    /// Why its version is too old; `None` when it is new enough.
    pub(super) too_old: Option<String>,
    /// For each IP family that the kernel supports, whether it accepts the rules of this program.
    pub(super) families: Vec<(Family, Result<(), NoLook>)>,
    /// Sysctls as (path below `/proc/sys/net`, value); those that cannot be read are left out.
    pub(super) values: Vec<(&'static str, String)>,
    /// Whether the node has a bridge interface.
    pub(super) has_bridge: bool,
    /// The ephemeral ports; `None` if they cannot be read.
    pub(super) local_ports: Option<LocalPorts>,
}

/// The effective capabilities of this process. A field is `None` if the kernel does not report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Privileges {
    pub(super) net_admin: Option<bool>,
    pub(super) net_bind_service: Option<bool>,
}

/// Facts about other programs on the node.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// The running proxy of this program; `None` when none runs.
    pub(super) proxy: Result<Option<String>, NoLook>,
    /// In one sentence, what the running proxy waits for before it writes its rules; `None` when it does not wait.
    pub(super) waits: Option<String>,
    /// Another running kube-proxy.
    pub(super) other: Option<OtherProxy>,
    pub(super) left: Result<Left, NoLook>,
    /// The families whose table belongs to another program, with that program in words; none if the tables cannot be listed.
    pub(super) owned: Vec<(Family, String)>,
    /// The base chains of all programs in tables of the families ip, ip6 and inet, and in those of iptables-legacy.
    pub(super) chains: Result<Vec<HookedChain>, NoLook>,
    /// The tables of iptables-legacy that cannot be read, each with the reason.
    pub(super) unread: Vec<String>,
    /// The first line of `nft --version`; `None` without an nft program, and when it fails.
    pub(super) nft: Option<String>,
}

/// The sysctls that `check` reads, below `/proc/sys/net`: those that the rules depend on, and how many connections the kernel tracks and may
/// track.
const VALUES: [&str; 6] = [
    "ipv4/ip_forward",
    "ipv6/conf/all/forwarding",
    "bridge/bridge-nf-call-iptables",
    "bridge/bridge-nf-call-ip6tables",
    "netfilter/nf_conntrack_count",
    "netfilter/nf_conntrack_max",
];

impl Facts {
    pub(super) fn gather(args: &ProxyArgs) -> Self {
        let proc = Path::new("/proc");
        let settings = Settings::of(args);
        let config = settings.as_ref().ok().map(|settings| &settings.config);
        let (hashes, programs) = (config.is_some_and(Config::hashes_clients), Programs::look(config));
        Self {
            config: settings.map(|settings| OfConfig::of(settings, proc)),
            kernel: Kernel::look(proc, hashes),
            privileges: Privileges::look(),
            programs,
            shared: Shared::look(),
        }
    }
}

/// An error with its causes in one line.
fn chain(error: &anyhow::Error) -> String {
    format!("{error:#}").trim_end().to_owned()
}

impl OfConfig {
    fn of(settings: Settings, proc: &Path) -> Self {
        let Settings { config, origin, elsewhere } = settings;
        let listening = process::listening(proc);
        let is_used = |port| listening.iter().any(|socket| socket.address.port() == port);
        let port = |name, address: SocketAddr| (name, address, is_used(address.port()));
        let healthz = config.healthz_bind_address.map(|address| port("healthz", address));
        Self {
            origin,
            layout: config.ruleset_layout.to_string(),
            sysctls: sysctl::look(&config.conntrack),
            reserves: config.reserve_node_ports.clone(),
            source: elsewhere.map_or_else(|| Source::look(&config), Source::Elsewhere),
            ports: healthz.into_iter().chain([port("metrics", config.metrics_bind_address)]).collect(),
            node_name: config.node_name,
            warnings: config.warnings,
            mode_note: config.mode_note,
        }
    }
}

impl Source {
    fn look(config: &Config) -> Self {
        match &config.manifests {
            Some(dir) => {
                let read = manifests::check(dir)
                    .and_then(|()| manifests::read_once(std::slice::from_ref(dir), options(config)));
                let content = read.map(|(events, problems)| Manifests {
                    problems: problems.iter().map(ToString::to_string).collect(),
                    lacks_node: lacks_node(&events, &config.node_name),
                });
                Self::Manifests(dir.clone(), content.map_err(|error| chain(&error)))
            }
            None => Self::Api(api::look(&client(config), &config.node_name).map_err(|error| chain(&error))),
        }
    }
}

/// Whether there are Nodes, and none of this name.
fn lacks_node(events: &[Event], name: &str) -> bool {
    let is_named = |event: &Event| matches!(event, Event::NodeApplied(node) if *node.name == *name);
    events.iter().any(|event| matches!(event, Event::NodeApplied(_))) && !events.iter().any(is_named)
}

impl Kernel {
    fn look(proc: &Path, hashes: bool) -> Self {
        let tried = |family| {
            let outcome = probe(&[family], hashes).map_err(|error| match error {
                ProbeError::NotPermitted(_) => NoLook::NotPermitted,
                error => NoLook::Failed(chain(&error.into())),
            });
            (family, outcome)
        };
        let value = |name: &'static str| {
            let text = fs::read_to_string(proc.join("sys/net").join(name)).ok()?;
            Some((name, text.trim().to_owned()))
        };
        let skip = env::var_os(SKIP_VERSION_CHECK);
        Self {
            release: process::release(),
            too_old: process::check_kernel(skip.as_deref()).err().map(|error| error.to_string()),
            families: families::supported().into_iter().map(tried).collect(),
            values: VALUES.into_iter().filter_map(value).collect(),
            has_bridge: has_bridge(Path::new("/sys/class/net")),
            local_ports: LocalPorts::read().ok(),
        }
    }
}

fn has_bridge(interfaces: &Path) -> bool {
    let entries = fs::read_dir(interfaces).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().join("bridge").is_dir())
}

impl Privileges {
    fn look() -> Self {
        let effective = capabilities(None).ok().map(|sets| sets.effective);
        let has = |capability| effective.map(|effective| effective.contains(capability));
        Self { net_admin: has(CapabilitySet::NET_ADMIN), net_bind_service: has(CapabilitySet::NET_BIND_SERVICE) }
    }
}

impl Programs {
    fn look(config: Option<&Config>) -> Self {
        let running = Running::find();
        let waits = running.waits();
        let other = other_proxy::beside(running.proxy.as_ref().ok().and_then(Option::as_ref), config);
        let (chains, unread) = chains();
        Self {
            // A proxy that waits may be visible only by its health page, as from another container. It must not count as another proxy.
            other: other.filter(|other| waits.is_none() || other.program != Program::Own),
            proxy: running.proxy.map(|proxy| proxy.map(|proxy| proxy.to_string())).map_err(NoLook::from),
            waits,
            left: leftovers::look().map_err(NoLook::from),
            owned: owned().unwrap_or_default(),
            chains: chains.map_err(NoLook::from),
            unread,
            nft: nft_version(),
        }
    }
}

fn owned() -> Result<Vec<(Family, String)>, nft::ReadError> {
    owned_by_others(&mut Connection::open()?)
}

/// The base chains of all programs, and the tables of iptables-legacy that cannot be read.
fn chains() -> (Result<Vec<HookedChain>, nft::ReadError>, Vec<String>) {
    let families = [nft::Family::Ip, nft::Family::Ip6];
    let (legacy, unread): (Vec<_>, Vec<_>) = families.map(iptables::hooked_chains).into_iter().unzip();
    let opened = Connection::open().map_err(nft::ReadError::Socket);
    let found = opened.and_then(|mut open| open.hooked_chains(&[families[0], families[1], nft::Family::Inet]));
    (found.map(|found| [vec![found], legacy].concat().concat()), unread.concat())
}

/// The first line of `nft --version`.
fn nft_version() -> Option<String> {
    let output = Command::new("nft").arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(str::to_owned).filter(|_| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_is_an_interface_with_its_folder() {
        let class = tempfile::tempdir().unwrap();
        fs::create_dir_all(class.path().join("eth0")).unwrap();
        assert!(!has_bridge(class.path()));
        fs::create_dir_all(class.path().join("cbr0/bridge")).unwrap();
        assert!(has_bridge(class.path()));
    }
}

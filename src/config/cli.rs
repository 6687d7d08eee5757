//! The command line: the only module that names clap.
//!
//! Takes the process's arguments, gives [`Cli`]: each flag as it was given, or `None`. What a flag means, and whether it
//! still counts beside `--config`, is decided in [`Flags::apply`]. A further flag is a field of [`Flags`] and a line there.

use std::ffi::OsString;

use clap::{ArgAction, Args, Parser, Subcommand};

use super::file::KubeProxyConfiguration;

/// A parsed command line.
#[derive(Debug, Parser)]
#[command(
    name = "kube-proxy-nft",
    bin_name = "kube-proxy",
    about = "Programs Kubernetes Services into nf_tables over netlink",
    version,
    disable_version_flag = true,
    args_override_self = true,
    args_conflicts_with_subcommands = true
)]
pub(super) struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Option<Command>,
    /// Print the version and exit
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the ruleset for a directory of manifests, and change nothing
    Render(Flags),
}

/// The flags, named as upstream names them.
#[derive(Debug, Default, Args)]
pub(super) struct Flags {
    /// Path of a KubeProxyConfiguration file (YAML or JSON); with it, most other flags are ignored
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Read Services, EndpointSlices and Nodes from the files of this directory instead of the API server
    #[arg(long, value_name = "DIR")]
    manifests: Option<String>,
    /// Name of this node; default: the host name
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// The proxy mode; only nftables
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<String>,
    /// CIDRs of the pods, comma-separated
    #[arg(long = "cluster-cidr", value_name = "CIDRS")]
    cluster_cidr: Option<String>,
    /// How local pods are told apart: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<String>,
    /// CIDRs of the addresses that accept node ports, or "primary"
    #[arg(long, value_name = "CIDRS", value_delimiter = ',', action = ArgAction::Append)]
    nodeport_addresses: Option<Vec<String>>,
    /// Masquerade all traffic sent to cluster IPs
    #[arg(long, value_name = "BOOL", value_parser = go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    masquerade_all: Option<bool>,
    /// IP or IP:port of the metrics server
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<String>,
    /// Log verbosity
    #[arg(short, long, value_name = "LEVEL")]
    v: Option<u32>,
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT")]
    logging_format: Option<String>,
}

/// What the command line asks for.
#[derive(Debug)]
pub(super) enum Request {
    /// Run the proxy.
    Run(Flags),
    /// Print the ruleset.
    Render(Flags),
    /// Print this text: help or version.
    Print(String),
}

/// Parses the arguments, the first of which is the program's name.
///
/// # Errors
/// The text to show to the user when they do not fit.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Request, String> {
    match Cli::try_parse_from(args.into_iter().map(with_dashes)) {
        Ok(Cli { command: Some(Command::Render(flags)), .. }) => Ok(Request::Render(flags)),
        Ok(Cli { command: None, flags, .. }) => Ok(Request::Run(flags)),
        Err(error) if error.use_stderr() => Err(error.to_string()),
        Err(text) => Ok(Request::Print(text.to_string())),
    }
}

/// `_` and `-` are interchangeable in the names of flags, not in their values.
fn with_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.starts_with("--") => {
            let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            format!("{}{value}", name.replace('_', "-")).into()
        }
        _ => arg,
    }
}

/// The words that Go takes for a boolean.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

impl Flags {
    /// The path of the configuration file, if one is to be read.
    pub(super) fn config_file(&self) -> Option<&str> {
        self.config.as_deref().filter(|path| !path.is_empty())
    }

    /// The manifest directory, if one was given.
    pub(super) fn manifests(&self) -> Option<&str> {
        self.manifests.as_deref().filter(|path| !path.is_empty())
    }

    /// Writes the flags over the configuration. With a file, only those that upstream lets win over it.
    pub(super) fn apply(self, config: &mut KubeProxyConfiguration) {
        let with_file = self.config_file().is_some();
        set_text(&mut config.hostname_override, self.hostname_override);
        set(&mut config.logging.verbosity, self.v);
        set(&mut config.logging.format, self.logging_format);
        if with_file {
            return;
        }
        set(&mut config.mode, self.proxy_mode);
        set(&mut config.cluster_cidr, self.cluster_cidr);
        set(&mut config.detect_local_mode, self.detect_local_mode);
        set(&mut config.node_port_addresses, self.nodeport_addresses.map(without_empty));
        set(&mut config.nftables.masquerade_all, self.masquerade_all);
        set_text(&mut config.metrics_bind_address, self.metrics_bind_address);
        // The address flags take an IP without a port too.
        config.fill_defaults();
    }
}

fn set<T>(field: &mut T, flag: Option<T>) {
    if let Some(value) = flag {
        *field = value;
    }
}

/// As [`set`], where an empty value means that the flag was not given.
fn set_text(field: &mut String, flag: Option<String>) {
    set(field, flag.filter(|value| !value.is_empty()));
}

/// `--nodeport-addresses=` is an empty list to Go, not a list of one empty word.
fn without_empty(list: Vec<String>) -> Vec<String> {
    if list == [""] { Vec::new() } else { list }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: &[&str]) -> Result<Request, String> {
        parse(std::iter::once("kube-proxy").chain(args.iter().copied()).map(OsString::from))
    }

    fn applied(args: &[&str]) -> KubeProxyConfiguration {
        let mut config = KubeProxyConfiguration::default();
        match request(args) {
            Ok(Request::Run(flags)) => flags.apply(&mut config),
            other => panic!("{other:?}"),
        }
        config
    }

    #[test]
    fn no_flag_changes_nothing() {
        assert_eq!(applied(&[]), KubeProxyConfiguration::default());
    }

    #[test]
    fn each_flag_reaches_its_field() {
        let config = applied(&[
            "--hostname-override=n1",
            "--proxy-mode",
            "nftables",
            "--cluster-cidr=10.0.0.0/8,fd00::/8",
            "--detect-local-mode=NodeCIDR",
            "--nodeport-addresses=192.0.2.0/24,fd00::/8",
            "--masquerade-all",
            "--metrics-bind-address=192.0.2.1",
            "-v=4",
            "--logging-format=json",
        ]);
        assert_eq!(config.hostname_override, "n1");
        assert_eq!(config.mode, "nftables");
        assert_eq!(config.cluster_cidr, "10.0.0.0/8,fd00::/8");
        assert_eq!(config.detect_local_mode, "NodeCIDR");
        assert_eq!(config.node_port_addresses, ["192.0.2.0/24", "fd00::/8"]);
        assert!(config.nftables.masquerade_all);
        assert_eq!(config.metrics_bind_address, "192.0.2.1:10249");
        assert_eq!(config.logging.verbosity, 4);
        assert_eq!(config.logging.format, "json");
    }

    #[test]
    fn underscores_are_dashes_in_names_only() {
        let config = applied(&["--hostname_override=a_b", "--cluster_cidr", "10.0.0.0/8"]);
        assert_eq!(config.hostname_override, "a_b");
        assert_eq!(config.cluster_cidr, "10.0.0.0/8");
    }

    #[test]
    fn verbosity_has_all_its_spellings() {
        for args in [&["-v", "6"][..], &["-v=6"], &["-v6"], &["--v=6"], &["--v", "6"]] {
            assert_eq!(applied(args).logging.verbosity, 6, "{args:?}");
        }
    }

    #[test]
    fn booleans_are_gos() {
        assert!(applied(&["--masquerade-all=T"]).nftables.masquerade_all);
        assert!(!applied(&["--masquerade-all=0"]).nftables.masquerade_all);
        assert!(request(&["--masquerade-all=yes"]).is_err());
        assert!(request(&["--masquerade-all", "false"]).is_err(), "a separate word is a positional argument");
    }

    #[test]
    fn a_flag_given_again_wins_and_a_list_grows() {
        assert_eq!(applied(&["--proxy-mode=iptables", "--proxy-mode=nftables"]).mode, "nftables");
        let config = applied(&["--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses=fd00::/8"]);
        assert_eq!(config.node_port_addresses, ["10.0.0.0/8", "fd00::/8"]);
    }

    #[test]
    fn empty_values_mean_not_given() {
        let args =
            ["--config=", "--manifests=", "--hostname-override=", "--metrics-bind-address=", "--nodeport-addresses="];
        assert_eq!(applied(&args), KubeProxyConfiguration::default());
    }

    #[test]
    fn help_and_version_are_text() {
        let version = format!("kube-proxy-nft {}\n", env!("CARGO_PKG_VERSION"));
        assert!(matches!(request(&["--version"]), Ok(Request::Print(text)) if text == version));
        for args in [&["--help"][..], &["-h"], &["render", "--help"]] {
            let Ok(Request::Print(text)) = request(args) else { panic!("{args:?}") };
            assert!(text.contains("Usage: kube-proxy"), "{text}");
            assert!(text.contains("--hostname-override"), "{text}");
        }
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for args in [&["--no-such-flag"][..], &["stray"], &["-v=many"], &["--config"], &["render", "stray"]] {
            assert!(request(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn render_takes_the_same_flags() {
        let Ok(Request::Render(flags)) =
            request(&["render", "--manifests=dir", "--hostname_override", "n1", "--config=f"])
        else {
            panic!()
        };
        assert_eq!(flags.manifests(), Some("dir"));
        assert_eq!(flags.config_file(), Some("f"));
        assert_eq!(flags.hostname_override.as_deref(), Some("n1"));
    }
}

//! The command line.
//!
//! Parses the process's arguments into a [`Request`]. The caller can add subcommands of its own ([`Commands`]), and gets clap's matches for
//! them. `table` lists all flags but `--help` and `--version`, each with the field of the configuration that it sets, if any.
//! [`Flags::apply`] decides which flags take effect together with `--config`. Invariant: all values in a [`Flags`] have the type of their
//! flag.

mod documents;
mod field;
mod help;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches};

use super::KUBERNETES_MINOR;
use super::file::KubeProxyConfiguration;
use crate::addresses::{parse_ip, parse_socket};
use crate::redact::redact;
pub(crate) use field::go_bool;
use field::go_int;
use table::{DEPRECATED, FLAGS, Flag, GLOBAL, GROUPS, OPTIONS, Opt, WITHOUT_EFFECT};

/// The version to report unless `--version=v...` gives another one. `--version` prints `Kubernetes v1.37.0` first, as upstream does for
/// tools that read it: the release whose behaviour this program follows. This program's own version is the build part after `+`, as in
/// semantic versioning.
pub(super) const VERSION: &str = concat!("v1.37.0+kube-proxy-nft.", env!("CARGO_PKG_VERSION"));

/// The command that prints the version, as the flag of this name does.
const VERSION_COMMAND: &str = "version";

/// The command that prints the ruleset for manifests.
const RENDER: &str = "render";

/// The values of each flag that was given, in the order of the command line.
#[derive(Clone, Debug, Default)]
pub(super) struct Flags {
    given: BTreeMap<&'static str, Vec<String>>,
    /// The version of `--version=v...`, to report instead of [`VERSION`].
    version: Option<String>,
}

/// The flags of the proxy as arguments of another command, so that this command has the same configuration as a proxy with these flags.
#[derive(Debug, Default)]
pub struct ProxyArgs(pub(super) Flags);

impl ProxyArgs {
    /// Whether any flag was given.
    pub fn are_given(&self) -> bool {
        !self.0.given.is_empty()
    }

    /// Whether the flag of this name was given.
    pub fn has(&self, name: &str) -> bool {
        self.0.given.contains_key(name)
    }

    /// The configuration file, if one is given.
    pub fn file(&self) -> Option<&str> {
        self.0.config_file()
    }

    /// The error for the first flag that `--config` leaves without effect; `None` when there is none.
    pub fn ignored(&self) -> Option<String> {
        let beside = |warning: &String| warning.contains(BESIDE_FILE);
        self.0
            .warnings(str::to_owned)
            .into_iter()
            .find(beside)
            .map(|warning| format!("{warning}, or leave out --config"))
    }
}

/// Words in the warning about a flag that has no effect because of the configuration file.
const BESIDE_FILE: &str = "has no effect beside --config";
/// The flags for a single job, after which the proxy ends. Commands that take [`ProxyArgs`] refuse them.
const JOBS: [&str; 4] = ["cleanup", "cleanup-force", "init-only", "write-config-to"];

impl clap::Args for ProxyArgs {
    fn augment_args(command: Command) -> Command {
        with_flags(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        with_flags(command)
    }
}

impl FromArgMatches for ProxyArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let invalid = |text| clap::Error::raw(clap::error::ErrorKind::ValueValidation, text);
        let flags = Flags::read(matches).map_err(invalid)?;
        match JOBS.into_iter().find(|job| flags.given.contains_key(job)) {
            Some(job) => {
                Err(invalid(format!("--{job} is a job of the proxy, and this command only looks: leave it out\n")))
            }
            None => Ok(Self(flags)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|new| *self = new)
    }
}

/// The arguments of `render` besides the flags of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct RenderArgs {
    /// Exit with 1 and name the reason when anything is not used as it was written: an unknown field, a broken object, a Service that
    /// is left out or loses an address
    #[arg(long)]
    pub strict: bool,
    /// Print what would change on a node if the manifests became these (a directory, a file, or - for standard input; may be given
    /// several times); exit with 1 if anything would
    #[arg(long, value_name = "PATH")]
    pub diff: Vec<PathBuf>,
    /// With --diff: print JSON
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_parser = ["json"], requires = "diff")]
    pub output: Option<String>,
}

/// The arguments of a command that can look at manifests in place of the kernel: the manifests, and the flags of the proxy on which their
/// rules depend. The command must also have an argument `healthz_address`, which contradicts manifests, because it asks a running proxy.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ManifestArgs {
    /// Look at what `render` prints for a directory, a file or standard input (-), and not at the kernel
    #[arg(long, value_name = "PATH", conflicts_with_all = ["healthz_address"])]
    manifests: Vec<PathBuf>,
    /// With --manifests: the configuration file
    #[arg(long, value_name = "FILE", requires = "manifests")]
    config: Option<String>,
    /// With --manifests: the node
    #[arg(long, value_name = "NAME", alias = "hostname-override", requires = "manifests")]
    node: Option<String>,
    /// With --manifests: maps or chains
    #[arg(long, value_name = "LAYOUT", requires = "manifests")]
    ruleset_layout: Option<String>,
}

impl ManifestArgs {
    /// The manifests; empty when the kernel is meant.
    #[must_use]
    pub fn manifests(&self) -> &[PathBuf] {
        &self.manifests
    }

    /// These arguments as flags of `render`.
    ///
    /// # Errors
    /// When a value is invalid.
    pub(super) fn flags(&self) -> Result<Flags, String> {
        let given = [
            ("--config", &self.config),
            ("--hostname-override", &self.node),
            ("--ruleset-layout", &self.ruleset_layout),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
        let line = with_flags(Command::new(RENDER)).no_binary_name(true);
        Flags::read(&line.try_get_matches_from(given).map_err(|error| error.to_string())?)
    }
}

/// Adds commands to the command line.
pub(super) type Commands = fn(Command) -> Command;

/// Why the arguments are invalid: the text to show to the user.
#[derive(Debug)]
pub(super) enum ParseError {
    /// Wrong arguments of the proxy or of `render`.
    OfProxy(String),
    /// Wrong arguments of a command that the caller defines.
    OfCommand(String),
}

impl From<String> for ParseError {
    fn from(text: String) -> Self {
        Self::OfProxy(text)
    }
}

/// The action that the command line requests.
#[derive(Debug)]
pub(super) enum Request {
    /// Run the proxy, or do what a flag such as `--cleanup` requests instead.
    Run(Flags),
    /// Print the ruleset for manifests or, with `--diff`, how it would change.
    Render(Flags, RenderArgs),
    /// Run one of the caller's commands. Holds clap's matches of the whole line.
    Command(ArgMatches),
    /// Print this text, such as help or version.
    Print(String),
}

/// Parses the arguments, the first of which is the program's name.
///
/// # Errors
/// When the arguments are invalid.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>, commands: Commands) -> Result<Request, ParseError> {
    let mut args = without_empty(args.into_iter().map(with_dashes).collect(), commands);
    // Clap's own command `help` would print a longer text than `--help`.
    if let [_, help, command] = &args[..]
        && help == "help"
        && command.to_str().is_some_and(|command| command != "help" && !command.starts_with('-'))
    {
        args.remove(1);
        args.push("--help".into());
    }
    let matches = match command_line(commands).try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() && begins_with_command(&args, commands) => {
            return Err(ParseError::OfCommand(error.to_string()));
        }
        Err(error) if error.use_stderr() => return Err(ParseError::OfProxy(error.to_string())),
        Err(text) => return Ok(Request::Print(help::wrapped(&text.to_string()))),
    };
    let version = match matches.get_many::<String>("version").and_then(Iterator::last) {
        Some(value) => version_flag(value)?,
        None => VersionFlag::Unset,
    };
    match (version, matches.subcommand()) {
        (VersionFlag::Print(text), _) => Ok(Request::Print(text)),
        (_, Some((VERSION_COMMAND, _))) => Ok(Request::Print(version_text())),
        (_, Some((RENDER, render))) => {
            let args = RenderArgs::from_arg_matches(render).map_err(|error| error.to_string())?;
            Ok(Request::Render(Flags::read(render)?, args))
        }
        (_, Some((documents::COMPLETION, shell))) => {
            Ok(Request::Print(documents::completion(command_line(commands), shell)?))
        }
        (_, Some((documents::MAN, _))) => Ok(Request::Print(documents::man_page(command_line(commands))?)),
        (_, Some(_)) => Ok(Request::Command(matches)),
        (VersionFlag::Report(version), None) => {
            Ok(Request::Run(Flags { version: Some(version), ..Flags::read(&matches)? }))
        }
        (VersionFlag::Unset, None) => Ok(Request::Run(Flags::read(&matches)?)),
    }
}

/// Whether the first argument after the program's name is the name of one of the caller's commands.
fn begins_with_command(args: &[OsString], commands: Commands) -> bool {
    let all = commands(Command::new("kube-proxy"));
    args.get(1).is_some_and(|first| all.get_subcommands().any(|command| first.to_str() == Some(command.get_name())))
}

/// The meaning of `--version`.
#[derive(Debug, PartialEq, Eq)]
enum VersionFlag {
    /// `--version=false`, or not given.
    Unset,
    /// Print this text and end.
    Print(String),
    /// Run, and report this version in metrics, pages and log.
    Report(String),
}

/// The meaning of a value of `--version`.
///
/// # Errors
/// When the value is no boolean and not `raw`, and does not begin with `v` and a digit.
fn version_flag(value: &str) -> Result<VersionFlag, String> {
    if value == "raw" {
        let text = format!("version.Info{{Major:\"1\", Minor:\"{KUBERNETES_MINOR}\", GitVersion:\"{VERSION}\"}}\n");
        return Ok(VersionFlag::Print(text));
    }
    match go_bool(value) {
        Ok(true) => Ok(VersionFlag::Print(version_text())),
        Ok(false) => Ok(VersionFlag::Unset),
        Err(_) if value.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) => {
            Ok(VersionFlag::Report(value.to_owned()))
        }
        Err(_) => {
            Err(format!("invalid value {value:?} for --version: expected true, raw or a version such as {VERSION}\n"))
        }
    }
}

/// What `--version` and the command `version` print.
fn version_text() -> String {
    format!("Kubernetes {VERSION}\n")
}

/// Clap's definition of the whole command line, with the subcommands that `commands` adds.
pub(super) fn command_line(commands: Commands) -> Command {
    let version = argument("version", "true|raw|VERSION", true).help(
        "Print the version and exit; with a version such as v1.36.2 run, and report that one in metrics, pages and log",
    );
    let help = || Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help and exit");
    let render = RenderArgs::augment_args(Command::new(RENDER));
    let render = render.about("Print the ruleset for manifests, and change nothing");
    let line = with_flags(Command::new("kube-proxy-nft"))
        .bin_name("kube-proxy")
        .args([help().help_heading(GLOBAL), version.help_heading(GLOBAL)])
        .args_conflicts_with_subcommands(true)
        .subcommand(with_flags(render))
        .subcommand(Command::new(VERSION_COMMAND).about("Print the version and exit"));
    // Set the description last: adding the commands replaces it with theirs.
    let line = documents::add_to(commands(line)).about("Programs Kubernetes Services into nf_tables over netlink");
    // Clap's own help flag has no heading, so this program's help flag replaces it, here and in each subcommand.
    line.disable_help_flag(true).mut_subcommands(|command| help::shortened(command).arg(help()))
}

/// The data of a flag that the help text shows.
struct Described {
    name: &'static str,
    /// Its heading in the help text.
    group: &'static str,
    /// The Go type of its value, or the words that it takes.
    kind: &'static str,
    /// Its default value, as Go prints it.
    default: String,
    /// Path of the field that it sets, if it sets one.
    field: Option<&'static str>,
    /// Whether it takes effect together with `--config`.
    with_file: bool,
    help: &'static str,
}

/// All flags but `--help` and `--version`, in the order of the help text.
fn described() -> Vec<Described> {
    let mut defaults = KubeProxyConfiguration::default();
    let options = OPTIONS.iter().map(|&Opt { name, kind, default, group, help, with_file, .. }| Described {
        name,
        group,
        kind,
        default: default.to_owned(),
        field: None,
        with_file,
        help,
    });
    let mut all: Vec<Described> = options.collect();
    all.extend(FLAGS.iter().map(|&Flag { name, path, field, help, group, with_file }| Described {
        name,
        group,
        kind: field.kind(),
        default: field.show(&mut defaults),
        field: Some(path),
        with_file,
        help,
    }));
    all.sort_by_key(|flag| GROUPS.iter().position(|group| *group == flag.group));
    all
}

fn with_flags(command: Command) -> Command {
    let arguments = described().into_iter().map(|flag| {
        let default = if ["", "[]"].contains(&flag.default.as_str()) {
            String::new()
        } else {
            format!(" (default {})", flag.default)
        };
        let argument = argument(flag.name, flag.kind, flag.kind == "bool")
            .help(format!("{}{default}", flag.help))
            .help_heading(flag.group);
        if flag.name == "v" { argument.short('v') } else { argument }
    });
    command.args(arguments)
}

/// Makes the clap argument of a flag. As in Go, a value may begin with a dash, and a switch takes a value only after `=`.
fn argument(name: &'static str, kind: &'static str, switch: bool) -> Arg {
    let argument = Arg::new(name).long(name).action(ArgAction::Append).value_name(kind);
    if switch {
        return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    argument.num_args(1).allow_hyphen_values(true)
}

/// Replaces `_` with `-` in the name of a flag, not in its value: both are accepted in names.
fn with_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.starts_with("--") => {
            let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            format!("{}{value}", name.replace('_', "-")).into()
        }
        _ => arg,
    }
}

/// Removes the empty arguments of the proxy, which upstream ignores unless one is the value of a flag. `commands` have arguments of their
/// own.
fn without_empty(args: Vec<OsString>, commands: Commands) -> Vec<OsString> {
    if begins_with_command(&args, commands) {
        return args;
    }
    let takes_value = |arg: &OsString| {
        let name = arg.to_str().and_then(|arg| arg.strip_prefix("--"));
        arg == "-v" || name.is_some_and(|name| described().iter().any(|flag| flag.name == name && flag.kind != "bool"))
    };
    let mut kept: Vec<OsString> = Vec::new();
    let mut is_value = false;
    for arg in args {
        let takes = !is_value && takes_value(&arg);
        if is_value || !arg.is_empty() {
            kept.push(arg);
        }
        is_value = takes;
    }
    kept
}

impl Flags {
    /// Reads the given values and checks their types.
    fn read(matches: &ArgMatches) -> Result<Self, String> {
        let mut flags = Self::default();
        let names = OPTIONS.iter().map(|option| option.name).chain(FLAGS.iter().map(|flag| flag.name));
        for name in names {
            if let Some(values) = matches.get_many::<String>(name) {
                flags.given.insert(name, values.cloned().collect());
            }
        }
        for option in OPTIONS {
            let checked = flags.values(option.name).iter().try_for_each(|value| (option.check)(value));
            checked.map_err(|error| invalid(option.name, flags.values(option.name), &error))?;
        }
        let mut scratch = KubeProxyConfiguration::default();
        flags.set(&mut scratch, |_| true)?;
        Ok(flags)
    }

    /// The flags that were given, each as `--name=value`.
    pub(super) fn arguments(&self) -> Vec<String> {
        let of_flag = |(name, values): (&&str, &Vec<String>)| {
            values.iter().map(|value| format!("--{name}={value}")).collect::<Vec<_>>()
        };
        self.given.iter().flat_map(of_flag).collect()
    }

    pub(super) fn values(&self, name: &str) -> &[String] {
        self.given.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The value of an option, unless it is empty or not given.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.values(name).last().map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a switch of [`OPTIONS`] is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.option(name).is_some_and(|value| go_bool(value) == Ok(true))
    }

    /// The path of the configuration file, if one is to be read.
    pub(super) fn config_file(&self) -> Option<&str> {
        self.option("config")
    }

    fn set(&self, config: &mut KubeProxyConfiguration, counts: fn(&table::Flag) -> bool) -> Result<(), String> {
        for flag in FLAGS.iter().filter(|flag| counts(flag)) {
            let values = self.values(flag.name);
            flag.field.set(config, values).map_err(|error| invalid(flag.name, values, &error))?;
        }
        Ok(())
    }

    /// Applies the flags to the configuration. With `--config`, applies only those whose `with_file` is set in the table.
    ///
    /// # Errors
    /// None in practice: the types were checked when the flags were read.
    pub(super) fn apply(&self, config: &mut KubeProxyConfiguration) -> Result<(), String> {
        let from_file = std::mem::take(&mut config.hostname_override);
        if self.config_file().is_some() {
            self.set(config, |flag| flag.with_file)?;
        } else {
            self.set(config, |_| true)?;
            if config.section() == "ipvs" {
                config.adopt_periods();
            }
            self.apply_ports(config);
        }
        // An empty `--hostname-override` counts as not given.
        if config.hostname_override.is_empty() {
            config.hostname_override = from_file;
        }
        Ok(())
    }

    /// Writes these flags to the configuration of a running proxy, over the values from its file and its flags.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(super) fn overrule(&self, config: &mut KubeProxyConfiguration) -> Result<(), String> {
        let ports =
            [("healthz-port", &mut config.healthz_bind_address), ("metrics-port", &mut config.metrics_bind_address)];
        for (_, address) in ports.into_iter().filter(|(name, _)| self.given.contains_key(name)) {
            // An address that has a port would win over the flag.
            if let Some(socket) = parse_socket(address) {
                *address = socket.ip().to_string();
            }
        }
        self.set(config, |_| true)?;
        self.apply_ports(config);
        Ok(())
    }

    /// Replaces the flags that `other` has. If `other` names a source of objects (a kubeconfig, an API server or manifests), removes the
    /// sources that would take precedence over it.
    pub(super) fn replace_by(&mut self, other: &Self) {
        let has = |name| other.given.contains_key(name);
        if has("kubeconfig") || has("master") {
            self.given.remove("manifests");
        }
        if has("kubeconfig") {
            self.given.remove("master");
        }
        self.given.extend(other.given.clone());
    }

    /// Adds the ports of `--healthz-port` and `--metrics-port` to addresses without a port. Port 0 empties the address, which switches the
    /// healthz server off and makes the configuration invalid for the metrics server. As in upstream, both flags have no effect with
    /// `--write-config-to`.
    fn apply_ports(&self, config: &mut KubeProxyConfiguration) {
        let ports = self.option("write-config-to").is_none();
        let of = |name| self.option(name).filter(|_| ports).and_then(|port| go_int(port).ok());
        let (healthz, metrics) = (of("healthz-port"), of("metrics-port"));
        append_port(&mut config.healthz_bind_address, healthz);
        append_port(&mut config.metrics_bind_address, metrics);
        config.fill_defaults();
        for (address, port) in
            [(&mut config.healthz_bind_address, healthz), (&mut config.metrics_bind_address, metrics)]
        {
            if port == Some(0) {
                address.clear();
            }
        }
    }

    /// A warning for each flag that was given, and that has no effect or is deprecated. `path_in_mode` gives the path of a field in the file.
    pub(super) fn warnings(&self, path_in_mode: impl Fn(&str) -> String) -> Vec<String> {
        let given = described().into_iter().filter(|flag| !self.values(flag.name).is_empty());
        given.filter_map(|flag| self.warning(&flag, &path_in_mode)).collect()
    }

    fn warning(&self, flag: &Described, path_in_mode: impl Fn(&str) -> String) -> Option<String> {
        let name = flag.name;
        if flag.help.starts_with(WITHOUT_EFFECT) {
            return Some(format!("--{name} has no effect in this program: take the flag away"));
        }
        // `--healthz-port` and `--metrics-port` are replaced by `--healthz-bind-address` and `--metrics-bind-address`.
        let successor = name.replace("port", "bind-address");
        match flag.field {
            _ if flag.with_file || self.config_file().is_none() => flag
                .help
                .starts_with(DEPRECATED)
                .then(|| format!("--{name} is deprecated: use --{successor} with the port")),
            Some(field) => Some(format!("--{name} {BESIDE_FILE}: set {} in the file", path_in_mode(field))),
            None => {
                let field = FLAGS.iter().find(|flag| flag.name == successor).map_or("", |flag| flag.path);
                Some(format!("--{name} {BESIDE_FILE}: set {field} in the file"))
            }
        }
    }

    /// The version to report.
    pub(super) fn version(&self) -> &str {
        self.version.as_deref().unwrap_or(VERSION)
    }

    /// Every flag but `--help` with its value as Go prints it, without secrets, sorted by name: for `/flagz` and the log.
    pub(super) fn shown(&self) -> Vec<(String, String)> {
        let option = |option: &Opt| {
            let value = match self.values(option.name).last() {
                Some(value) if option.default == "false" => go_bool(value).unwrap_or(false).to_string(),
                Some(value) => value.clone(),
                None => option.default.to_owned(),
            };
            (option.name.to_owned(), value)
        };
        let mut config = KubeProxyConfiguration::default();
        // The types were checked when the flags were read.
        let _ = self.set(&mut config, |_| true);
        let mut all: Vec<_> = OPTIONS.iter().map(option).collect();
        all.extend(FLAGS.iter().map(|flag| (flag.name.to_owned(), flag.field.show(&mut config))));
        all.push(("version".to_owned(), self.version.clone().unwrap_or_else(|| "false".to_owned())));
        all.iter_mut().for_each(|(_, value)| *value = redact(value));
        all.sort();
        all
    }
}

/// Adds a port to an address without one. Validation refuses a port that is out of range.
fn append_port(address: &mut String, port: Option<i32>) {
    match (parse_ip(address), port) {
        (Some(IpAddr::V4(ip)), Some(port)) => *address = format!("{ip}:{port}"),
        (Some(IpAddr::V6(ip)), Some(port)) => *address = format!("[{ip}]:{port}"),
        _ => {}
    }
}

fn invalid(name: &str, values: &[String], error: &str) -> String {
    format!("invalid value {:?} for --{name}: {error}\n", values.join(","))
}

#[cfg(test)]
mod tests;

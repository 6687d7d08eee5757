//! `kube-proxy bundle`: one archive with what a bug report needs.
//!
//! Takes a file name and the proxy's own flags; runs some of the commands that look at a node, asks the running proxy for some of its pages,
//! and reads rules, tracked connections and sysctls. Each of these is a [`Part`], with a limit on time and size; a part that fails is a file
//! that says why. Neither the kubeconfig nor the environment is in the archive, and what looks like a secret is hidden
//! ([`component::redact`]).

mod archive;
mod facts;
mod part;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::output;
use archive::Archive;
use component::config::ProxyArgs;
use inspect::client::page;
use inspect::output::{Output, check_reader};
use inspect::running::{HEALTHZ, METRICS};
use inspect::{COULD_NOT_LOOK, CommandOutcome};
use node::configured::Settings;
use part::{Content, Done, Part, gather};

/// How long each part of [`looks`] may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long all parts together that ask the running proxy may take; they run at the same time.
const OF_PAGES: Duration = Duration::from_secs(10);
/// How long `verify` waits for its objects, in seconds.
const OBJECTS: &str = "20";
/// The most characters of the node's name in the name of the archive.
const NAME: usize = 40;

const EXAMPLES: &str = "\
Examples:
  kube-proxy bundle      a file kube-proxy-NODE-TIME.tar.gz in this folder
  kubectl exec -n kube-system kube-proxy-abcde -- kube-proxy bundle - \\
    >node-1.tar.gz

Without flags it uses the configuration of the running proxy, as check does.
Exit codes: 0 the archive is written, whatever its files say (summary.txt has
the exit code of each); 2 it cannot be written.";

/// The type of `commands::run_line`, which runs a command of this program. It is passed in, because `commands` imports this module.
pub(super) type RunLine = fn(&[String], &mut Output<'_>) -> Result<CommandOutcome>;

/// Write what a bug report needs into one archive: commands, pages, rules, connections and sysctls, without secrets
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file to write, which must not exist yet; - is standard output
    #[arg(value_name = "FILE|-")]
    file: Option<String>,
    #[command(flatten)]
    proxy: ProxyArgs,
}

/// Writes the archive, and a line for each part to standard error. `run_line` runs the commands whose output is in the archive.
///
/// # Errors
/// When the archive cannot be written.
pub(super) fn run(args: &Args, run_line: RunLine) -> Result<CommandOutcome> {
    let now = jiff::Timestamp::now();
    let config = Settings::of(&args.proxy).ok().map(|settings| settings.config);
    let metrics = config.as_ref().map_or(METRICS, |config| config.metrics_bind_address);
    let healthz = config.as_ref().and_then(|config| config.healthz_bind_address).unwrap_or(HEALTHZ);
    let node = config.map_or_else(facts::host_name, |config| config.node_name);
    let is_plain = |character: &char| character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | '_');
    let node: String = node.chars().filter(is_plain).take(NAME).collect();
    let name = format!("kube-proxy-{node}-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let writer = writer(args.file.as_deref().unwrap_or(&format!("{name}.tar.gz")))?;
    let mut archive = Archive::new(writer, &name, u64::try_from(now.as_second()).unwrap_or_default());
    let mut summary = String::new();
    let mut add = |done: Vec<Done>| {
        for Done { name, text, error } in done {
            let line = format!("{name}: {}", error.unwrap_or_else(|| format!("{} bytes", text.len())));
            output::print_error(&line);
            summary.push_str(&(line + "\n"));
            check_reader(archive.add(name, text.as_bytes()))?;
        }
        Ok::<(), anyhow::Error>(())
    };
    add(gather(pages((metrics, healthz), run_line), OF_PAGES))?;
    // Gather these parts one after the other, so that only one at a time has whole tables in memory, unless one hangs.
    looks(&args.proxy, healthz, run_line).into_iter().try_for_each(|part| add(gather(vec![part], PATIENCE)))?;
    check_reader(archive.add("summary.txt", summary.as_bytes()))?;
    check_reader(archive.finish())?;
    if args.file.as_deref() != Some("-") {
        output::print_error(format_args!("written: {}", args.file.as_deref().unwrap_or(&format!("{name}.tar.gz"))));
    }
    Ok(CommandOutcome::Fine)
}

/// Opens the file to write. The file must be new, so that a link that somebody made cannot lead to another file.
fn writer(file: &str) -> Result<Box<dyn Write>> {
    if file == "-" {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            bail!("cannot write an archive to a terminal: name a file, or redirect standard output");
        }
        return Ok(Box::new(stdout));
    }
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let opened = opened.with_context(|| {
        format!("cannot write {file}: name a new file in a folder that can be written, or - for standard output")
    });
    Ok(Box::new(opened?))
}

/// The parts that ask the running proxy.
fn pages((metrics, healthz): (SocketAddr, SocketAddr), run_line: RunLine) -> Vec<Part> {
    let of_page = |name, address, path: &'static str| {
        Part::new(name, move |mut content: Content| Ok(content.write_all(&page(address, path)?)?))
    };
    let changes = |name, format: &str| {
        command(run_line, name, &["changes", "-o", format, &format!("--metrics-bind-address={metrics}")], &[])
    };
    vec![
        of_page("metrics.txt", metrics, "/metrics"),
        of_page("configz.json", metrics, "/configz"),
        of_page("healthz.json", healthz, "/healthz"),
        of_page("livez.json", healthz, "/livez"),
        of_page("readyz.json", healthz, "/readyz"),
        Part::new("problems.txt", move |content| facts::problems(&page(healthz, "/livez")?, content)),
        changes("changes.txt", "wide"),
        changes("changes.json", "json"),
    ]
}

/// The parts that need no running proxy.
fn looks(proxy: &ProxyArgs, healthz: SocketAddr, run_line: RunLine) -> Vec<Part> {
    let services = |name, format: &str| {
        command(run_line, name, &["services", "--stats", "-o", format, &format!("--healthz-address={healthz}")], &[])
    };
    let (version, flags) = (proxy.config().map(|config| config.version).unwrap_or_default(), proxy.arguments());
    vec![
        Part::new("node.txt", move |content| facts::node(&version, content)),
        services("services.txt", "wide"),
        services("services.json", "json"),
        command(run_line, "check.txt", &["check"], &flags),
        command(run_line, "verify.txt", &["verify", "--timeout", OBJECTS], &flags),
        Part::new("rules.nft", facts::rules),
        Part::new("connections.txt", facts::connections),
        Part::new("sysctls.txt", facts::sysctls),
    ]
}

/// The output of a command of this program. The part fails if the command returns an error. It does not fail if the command found something
/// and therefore has exit code 1, because the output says what.
fn command(run_line: RunLine, name: &'static str, words: &[&str], flags: &[String]) -> Part {
    let line: Vec<String> = words.iter().map(ToString::to_string).chain(flags.iter().cloned()).collect();
    Part::new(name, move |mut content| {
        let mut out = Output::to(content.clone(), false);
        let outcome = run_line(&line, &mut out);
        let code = outcome.as_ref().map_or(COULD_NOT_LOOK, |outcome| outcome.exit_code());
        outcome.map(drop).with_context(|| format!("{} ended with exit code {code}", line[0]))?;
        if code != 0 && !name.ends_with(".json") {
            writeln!(content, "\n(exit code {code})")?;
        }
        Ok(())
    })
}

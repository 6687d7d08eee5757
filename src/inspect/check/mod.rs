//! `kube-proxy check`: checks whether a proxy with these flags can work on this node, and what may disturb it.
//!
//! Takes the configuration of the running proxy, or flags as the proxy takes them ([`node::configured`]); prints one line per check: ok, a
//! warning or a failure with its remedy, or unknown when it could not be checked. `facts` gathers facts, and `judge` turns them into lines
//! without I/O; `shared` does both for what Services share with the node. Takes no lock, sets no sysctl, stores no object in the API server. To probe the kernel's features, it sends a batch that the
//! kernel must refuse as a whole ([`node::kernel::probe`]); the kernel may load modules of nf_tables for it.

mod facts;
mod judge;
mod shared;

use std::fmt::Display;

use anyhow::{Result, bail};
use serde::Serialize;

use self::facts::Facts;
use super::CommandOutcome;
use super::output::{Cell, Column, Format, FormatArgs, Output, Table, Tone, written_as_json};
use component::config::ProxyArgs;
use component::redact::redact;

const EXAMPLES: &str = "\
Examples:
  kube-proxy check                            as the running proxy is configured
  kubectl exec -n kube-system kube-proxy-abcde -- kube-proxy check
  kube-proxy check --config /var/lib/kube-proxy/config.conf \\
    --hostname-override=node-1                before a start

Without --config it uses the configuration of the running proxy, in which each
flag that is given wins; without a running proxy, the flags.
Exit codes: 0 no failure (there may be warnings), 1 a failure, 2 no failure,
but something could not be looked at.";

/// Check configuration, kernel, privileges, sysctls, API server and its permissions, and other programs on this node
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    proxy: ProxyArgs,
}

/// The verdict of one check. Ordered from harmless to serious.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// No problem.
    Ok,
    /// A proxy works, but perhaps not as its operator wants.
    Warning,
    /// It could not be checked.
    Unknown,
    /// A proxy does not start, or does not do its work.
    Failure,
}

written_as_json!(Verdict);

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Line {
    /// The area: `configuration`, `kernel`, `privileges`, `sysctls`, `api-server`, `permissions`, `other-programs` or `services`.
    check: &'static str,
    result: Verdict,
    /// The finding, in words.
    text: String,
    /// What to do about the finding.
    remedy: Option<String>,
}

fn line(check: &'static str, result: Verdict, text: impl Display, remedy: Option<&str>) -> Line {
    Line { check, result, text: redact(&text.to_string()), remedy: remedy.map(str::to_owned) }
}

fn ok(check: &'static str, text: impl Display) -> Line {
    line(check, Verdict::Ok, text, None)
}

fn warning(check: &'static str, text: impl Display, remedy: &str) -> Line {
    line(check, Verdict::Warning, text, Some(remedy))
}

fn failure(check: &'static str, text: impl Display, remedy: &str) -> Line {
    line(check, Verdict::Failure, text, Some(remedy))
}

fn unknown(check: &'static str, text: impl Display, remedy: Option<&str>) -> Line {
    line(check, Verdict::Unknown, text, remedy)
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    checks: &'a [Line],
}

/// Runs all checks and prints the report.
///
/// # Errors
/// When the output cannot be written, or when no check failed and some could not be made.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let lines = judge::lines(&Facts::gather(&args.proxy));
    print(&lines, args.format.format, out)?;
    out.flush()?;
    let count = |verdict| lines.iter().filter(|line| line.result == verdict).count();
    match (count(Verdict::Failure), count(Verdict::Unknown)) {
        (0, 0) => Ok(CommandOutcome::Fine),
        (0, 1) => bail!("1 thing could not be looked at"),
        (0, several) => bail!("{several} things could not be looked at"),
        _ => Ok(CommandOutcome::Found),
    }
}

fn print(lines: &[Line], format: Format, out: &mut Output<'_>) -> Result<()> {
    if matches!(format, Format::Json | Format::Yaml) {
        let ok = lines.iter().all(|line| line.result < Verdict::Unknown);
        return out.value(format, &Report { ok, checks: lines });
    }
    let mut table = Table::new([Column::text("RESULT"), Column::text("CHECK"), Column::text("FOUND")]);
    for Line { check, result, text, remedy } in lines {
        let tone = match result {
            Verdict::Ok => Tone::Good,
            Verdict::Warning | Verdict::Unknown => Tone::Warning,
            Verdict::Failure => Tone::Bad,
        };
        table.row([Cell::new(tone, result), Cell::from(check), Cell::from(text)]);
        if let Some(remedy) = remedy {
            table.row([Cell::from(""), Cell::from(""), Cell::new(Tone::Faint, format_args!("-> {remedy}"))]);
        }
    }
    out.table(&table)
}

#[cfg(test)]
mod tests;

//! The subcommands other than `render`: how they are added to the command line, and which code runs each.

use anyhow::Result;
use clap::{ArgMatches, FromArgMatches as _, Subcommand as _};
use inspect::output::Output;
use inspect::{CommandOutcome, changes, check, explain, probe, screen, services, stats, top, trace};

use super::{bundle, render};
use crate::verify;

/// How much a command raises its nice value. If it competes with one thread of the proxy for a processor, and both were started with the
/// same nice value, it gets about a tenth of it (weights 110 and 1024, `sched_prio_to_weight` in `kernel/sched/core.c`).
const NICENESS: i32 = 10;

/// The commands, in the order of the help text.
#[derive(clap::Subcommand)]
enum Command {
    Explain(explain::Args),
    Services(services::Args),
    Probe(probe::Args),
    Changes(changes::Args),
    Top(top::Args),
    Stats(stats::Args),
    Trace(trace::Args),
    /// Give the terminal back when the process that has it as a screen is killed
    #[command(name = screen::GUARD, hide = true)]
    TerminalGuard,
    Verify(Box<verify::Args>),
    Check(Box<check::Args>),
    Bundle(Box<bundle::Args>),
}

/// Adds the commands to a command line.
pub(super) fn add(line: clap::Command) -> clap::Command {
    Command::augment_subcommands(line)
}

/// Runs the subcommand that the parsed command line names.
///
/// # Errors
/// Why the command could not look at the node, or [`inspect::output::ReaderGone`].
pub(super) fn run(matches: &ArgMatches) -> Result<CommandOutcome> {
    let mut out = Output::to_stdout();
    // Set before any thread starts, so that all threads inherit it. Raising the nice value needs no privilege, and an error does no harm.
    let _ = rustix::process::nice(NICENESS);
    let outcome = dispatch(Command::from_arg_matches(matches)?, &mut out)?;
    out.flush()?;
    Ok(outcome)
}

/// Runs the command that `words` name, a command line without the program's name. Used by `bundle`.
///
/// # Errors
/// As [`run`], and when the words are no command.
pub(super) fn run_line(words: &[String], out: &mut Output<'_>) -> Result<CommandOutcome> {
    let line = add(clap::Command::new("kube-proxy").no_binary_name(true));
    dispatch(Command::from_arg_matches(&line.try_get_matches_from(words)?)?, out)
}

fn dispatch(command: Command, out: &mut Output<'_>) -> Result<CommandOutcome> {
    match command {
        Command::Explain(args) if !args.from_manifests.manifests().is_empty() => render::explain(&args, out),
        Command::Explain(args) => explain::run(&args, out),
        Command::Services(args) => services::run(&args, out),
        Command::Probe(args) => probe::run(&args, out),
        Command::Changes(args) => changes::run(&args, out),
        Command::Top(args) => top::run(&args, out),
        Command::Stats(args) => stats::run(&args, out),
        Command::Trace(args) => trace::run(&args, out),
        Command::TerminalGuard => screen::guard().map(|()| CommandOutcome::Fine),
        Command::Verify(args) => verify::run(&args, out),
        Command::Check(args) => check::run(&args, out),
        Command::Bundle(args) => bundle::run(&args, run_line),
    }
}

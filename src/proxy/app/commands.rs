//! The commands beside the proxy itself: their place on the command line, and which code runs each.

use anyhow::Result;
use clap::{ArgMatches, FromArgMatches as _, Subcommand as _};
use inspect::output::Output;
use inspect::{CommandOutcome, changes, check, explain, screen, services, top, trace};

use crate::verify;

/// How much nicer than the proxy a command is: it gets about a tenth of a processor that both want.
const NICENESS: i32 = 10;

/// The commands, in the order of the help text.
#[derive(clap::Subcommand)]
enum Command {
    Explain(explain::Args),
    Services(services::Args),
    Changes(changes::Args),
    Top(top::Args),
    Trace(trace::Args),
    /// Give the terminal back when the process that has it as a screen is killed
    #[command(name = screen::GUARD, hide = true)]
    TerminalGuard,
    Verify(Box<verify::Args>),
    Check(Box<check::Args>),
}

/// Adds the commands to a command line.
pub(super) fn add(line: clap::Command) -> clap::Command {
    Command::augment_subcommands(line)
}

/// Runs the command that the whole command line names.
///
/// # Errors
/// Why it could not look, or [`inspect::output::ReaderGone`].
pub(super) fn run(matches: &ArgMatches) -> Result<CommandOutcome> {
    let mut out = Output::to_stdout();
    // Before any thread begins. A higher value is refused to nobody; without it the command works as well.
    let _ = rustix::process::nice(NICENESS);
    let outcome = match Command::from_arg_matches(matches)? {
        Command::Explain(args) => explain::run(&args, &mut out)?,
        Command::Services(args) => services::run(&args, &mut out)?,
        Command::Changes(args) => changes::run(&args, &mut out)?,
        Command::Top(args) => top::run(&args, &mut out)?,
        Command::Trace(args) => trace::run(&args, &mut out)?,
        Command::TerminalGuard => screen::guard().map(|()| CommandOutcome::Fine)?,
        Command::Verify(args) => verify::run(&args, &mut out)?,
        Command::Check(args) => check::run(&args, &mut out)?,
    };
    out.flush()?;
    Ok(outcome)
}

//! The commands that look at a node: the kernel's tables and the API in, words and JSON out; they never write to either, but for the table of `trace`.
//!
//! ```text
//! arguments ── clap ──► Command ──► NAME::run ──► Output ──► words, JSON, YAML
//!                                      ▲
//!                      tables: what the kernel lists -> fronts and endpoints
//! ```
//!
//! A command is a module with `Args` and `run`, and a variant of `Command`. Its exit code is that of its `Outcome`, or
//! `COULD_NOT_LOOK` when it gives an error, which `app` shows.
//!
//! Invariants: no command takes the proxy's lock, starts its log or its threads, or needs more than CAP_NET_ADMIN; each works beside a
//! running proxy and, as far as its subject allows, without one; it leaves the processors to that proxy and to the pods when they want
//! them.

mod changes;
mod check;
mod client;
pub mod explain;
mod names;
mod output;
mod running;
mod screen;
mod services;
pub(crate) mod source;
mod tables;
mod top;
mod trace;
mod verify;

use anyhow::Result;
use clap::{ArgMatches, FromArgMatches as _, Subcommand as _};

use output::Output;
pub use output::ReaderGone;
pub(crate) use output::check_reader;

/// How much nicer than the proxy a command is: it gets about a tenth of a processor that both want.
const NICENESS: i32 = 10;

/// The exit code of a command that gives an error: it could not look, so it says nothing about the node.
pub(crate) const COULD_NOT_LOOK: u8 = 2;

/// What a command found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// What was asked for, and nothing that is wrong.
    Fine,
    /// Something that is wrong, or a difference.
    Found,
}

impl Outcome {
    /// The exit code of the process.
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Found => 1,
        }
    }
}

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

/// Differences of rules in words, for commands elsewhere.
pub(crate) mod differences {
    pub(crate) use crate::diff::differences::as_read;
    pub(crate) use crate::inspect::verify::report::print_changes;
}

/// Adds the commands to a command line.
pub(crate) fn commands(line: clap::Command) -> clap::Command {
    Command::augment_subcommands(line)
}

/// Runs the command that the whole command line names.
///
/// # Errors
/// Why it could not look, or [`ReaderGone`].
pub(crate) fn run(matches: &ArgMatches) -> Result<Outcome> {
    let mut out = Output::to_stdout();
    // Before any thread begins. A higher value is refused to nobody; without it the command works as well.
    let _ = rustix::process::nice(NICENESS);
    let outcome = match Command::from_arg_matches(matches)? {
        Command::Explain(args) => explain::run(&args, &mut out)?,
        Command::Services(args) => services::run(&args, &mut out)?,
        Command::Changes(args) => changes::run(&args, &mut out)?,
        Command::Top(args) => top::run(&args, &mut out)?,
        Command::Trace(args) => trace::run(&args, &mut out)?,
        Command::TerminalGuard => screen::guard().map(|()| Outcome::Fine)?,
        Command::Verify(args) => verify::run(&args, &mut out)?,
        Command::Check(args) => check::run(&args, &mut out)?,
    };
    out.flush()?;
    Ok(outcome)
}

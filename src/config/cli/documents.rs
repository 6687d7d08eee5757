//! Documents about the command line, from the same source as `--help`: completion for shells, and a man page.
//!
//! Takes the whole command line, gives text. Pure.

use clap::{ArgMatches, Command, ValueEnum, value_parser};
use clap_complete::{Shell as _, shells};
use clap_mangen::Man;

/// The command that prints completion for a shell.
pub(super) const COMPLETION: &str = "completion";
/// The command that prints the man page.
pub(super) const MAN: &str = "man";

/// The name by which the program is called.
const PROGRAM: &str = "kube-proxy";

/// A shell that completes words.
#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

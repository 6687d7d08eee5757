//! Text for standard output and standard error.
//!
//! If the reader of the output has ended, as `head` does, that is no error of the program and needs no message: [`ReaderGone`] has
//! `main` end with [`ReaderGone::EXIT_CODE`].

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Write as _};

use anyhow::{Context as _, Result};

use crate::logging;

/// The reader of the output has closed it before its end.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has closed it")]
pub struct ReaderGone;

impl ReaderGone {
    /// The exit code that a shell shows for a program that SIGPIPE ended. Rust programs ignore that signal, and have to set it.
    pub const EXIT_CODE: u8 = 128 + 13;
}

/// Prints a text as a whole.
///
/// # Errors
/// [`ReaderGone`], or why the output cannot be written.
pub(super) fn print(text: impl Display) -> Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    check_reader(write!(output, "{text}").and_then(|()| output.flush())).context("cannot write to standard output")
}

/// Turns the error of a closed pipe into [`ReaderGone`].
///
/// # Errors
/// [`ReaderGone`], or the error as it was.
pub(super) fn check_reader(outcome: io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => Ok(other?),
    }
}

/// Prints a line to standard error. A failure is ignored, because the exit code shows the problem as well.
pub(super) fn print_error(line: impl Display) {
    let _ignored = writeln!(io::stderr(), "{}", logging::escaped(&line.to_string()));
}

//! Text for standard output.
//!
//! Takes text, writes it. A reader that has gone away is no fault of the program and needs no message: [`ReaderGone`] says so, and
//! `main` ends with [`ReaderGone::EXIT_CODE`].

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Write as _};

use anyhow::{Context as _, Result};

use crate::logging;

/// Whoever read an output of the program went away before its end, as `head` does.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
pub struct ReaderGone;

impl ReaderGone {
    /// What a shell shows for a program that SIGPIPE ended. Rust programs ignore that signal, so they have to say it themselves.
    pub const EXIT_CODE: u8 = 128 + 13;
}

/// Prints a text as a whole.
///
/// # Errors
/// [`ReaderGone`], or why the output cannot be written.
pub(super) fn print(text: impl Display) -> Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    written(write!(output, "{text}").and_then(|()| output.flush())).context("cannot write to standard output")
}

/// Tells a reader that has gone from the other reasons why something was not written.
///
/// # Errors
/// [`ReaderGone`], or the error as it was.
pub(super) fn written(outcome: io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => Ok(other?),
    }
}

/// Prints a line for people to standard error. Where nobody reads it, the exit code has to do.
pub(super) fn tell(line: impl Display) {
    let _nobody_reads_it = writeln!(io::stderr(), "{}", logging::harmless(&line.to_string()));
}

//! Text for standard output and standard error.
//!
//! If the reader of the output has ended, as `head` does, that is no error of the program and needs no message: [`inspect::output::ReaderGone`] has
//! `main` end with its exit code.

use std::fmt::Display;
use std::io::{self, BufWriter, Write as _};

use anyhow::{Context as _, Result};

use component::logging;
use inspect::output::check_reader;

/// Prints a text as a whole.
///
/// # Errors
/// [`inspect::output::ReaderGone`], or why the output cannot be written.
pub(super) fn print(text: impl Display) -> Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    check_reader(write!(output, "{text}").and_then(|()| output.flush())).context("cannot write to standard output")
}

/// Prints a line to standard error. A failure is ignored, because the exit code shows the problem as well.
pub(super) fn print_error(line: impl Display) {
    let _ignored = writeln!(io::stderr(), "{}", logging::escaped(&line.to_string()));
}

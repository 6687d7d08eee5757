//! Text for standard output and standard error.
//!
//! A reader that ends before the output does, such as `head`, is no error of the program and needs no message: `main` then ends with the
//! exit code of [`inspect::output::ReaderGone`].

use std::fmt::Display;
use std::io::{self, BufWriter, Write as _};

use anyhow::{Context as _, Result};

use component::logging;
use component::redact::redact;
use component::terminal::for_stderr;
use inspect::output::check_reader;

/// Prints a text and flushes it.
///
/// # Errors
/// [`inspect::output::ReaderGone`] when the reader has ended, or why the output cannot be written.
pub(super) fn print(text: impl Display) -> Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    check_reader(write!(output, "{text}").and_then(|()| output.flush())).context("cannot write to standard output")
}

/// Prints a line to standard error. Hides what looks like a secret, escapes control characters, and breaks the line at the width of a
/// terminal. A failure is ignored, because there is no other place to report it.
pub(super) fn print_error(line: impl Display) {
    let line = for_stderr(&logging::escaped(&redact(&line.to_string())));
    let _ignored = writeln!(io::stderr(), "{line}");
}

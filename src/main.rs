//! The `kube-proxy` binary: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use kube_proxy::app::{self, ReaderGone};

fn main() -> ExitCode {
    match app::start(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<ReaderGone>() => ExitCode::from(ReaderGone::EXIT_CODE),
        Err(error) => {
            let _nobody_reads_it = writeln!(io::stderr(), "kube-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

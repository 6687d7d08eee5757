//! The `kube-proxy` binary: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // Also after a panic.
    let _ending = kube_proxy::logging::Ending;
    match kube_proxy::app::start(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            kube_proxy::logging::fatal(&error);
            ExitCode::FAILURE
        }
    }
}

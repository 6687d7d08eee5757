//! The `kube-proxy` binary: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match kube_proxy::app::start(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kube-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

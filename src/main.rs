//! The `kube-proxy` binary: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use kube_proxy::app::{self, Panicked, ReaderGone};

fn main() -> ExitCode {
    nft::memory::give_back_large_blocks();
    // The log is flushed when `main` ends, also after a panic.
    let _flush = kube_proxy::logging::FlushOnDrop;
    match app::start(std::env::args_os()) {
        Ok(code) => code,
        Err(error) if error.is::<ReaderGone>() => ExitCode::from(ReaderGone::EXIT_CODE),
        Err(error) => {
            kube_proxy::logging::fatal(&error);
            ExitCode::from(if error.is::<Panicked>() { Panicked::EXIT_CODE } else { 1 })
        }
    }
}

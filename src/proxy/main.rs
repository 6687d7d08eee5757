//! The `kube-proxy` binary: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use component::{log_runner, logging};
use inspect::output::ReaderGone;
use kube_proxy::app;

#[global_allocator]
static ALLOCATOR: nft::memory::Reporting = nft::memory::Reporting(logging::out_of_memory);

fn main() -> ExitCode {
    nft::signals::unblock_all();
    nft::memory::give_back_large_blocks();
    if let Some(code) = log_runner::run(std::env::args_os()) {
        return code;
    }
    // The log is flushed when `main` ends, also after a panic.
    let _flush = logging::FlushOnDrop;
    match app::start(std::env::args_os()) {
        Ok(code) => code,
        Err(error) if error.is::<ReaderGone>() => ExitCode::from(ReaderGone::EXIT_CODE),
        Err(error) => {
            logging::fatal(&error);
            ExitCode::FAILURE
        }
    }
}

//! The `kube-proxy` binary: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use component::logging;
use component::supervise::Panicked;
use inspect::output::ReaderGone;
use kube_proxy::app;

#[global_allocator]
static ALLOCATOR: nft::memory::Reporting = nft::memory::Reporting(logging::out_of_memory);

fn main() -> ExitCode {
    nft::signals::unblock_all();
    nft::memory::give_back_large_blocks();
    // The log is flushed when `main` ends, also after a panic.
    let _flush = logging::FlushOnDrop;
    match app::start(std::env::args_os()) {
        Ok(code) => code,
        Err(error) if error.is::<ReaderGone>() => ExitCode::from(ReaderGone::EXIT_CODE),
        Err(error) => {
            logging::fatal(&error);
            ExitCode::from(if error.is::<Panicked>() { Panicked::EXIT_CODE } else { 1 })
        }
    }
}

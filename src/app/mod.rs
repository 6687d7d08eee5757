//! What the process does from its arguments to its end; the only module that knows all others.
//!
//! The order of a start is upstream's (surface.md section 10): configuration, log, `--write-config-to`, `--cleanup`, left-overs of
//! other modes, sysctls, kernel check (`--init-only` ends here), OOM score, servers, objects, syncs. What is privileged comes
//! before any thread, and is given up then ([`crate::privileges`]).

mod ending;
mod node;
mod output;
mod prepare;
mod render;
mod serve;
mod source;

use std::ffi::OsString;
use std::fs;

use anyhow::{Context as _, Result, bail};
use tracing::{debug, info, warn};

use crate::config::file::{Flowtable, RulesetLayout};
use crate::config::{self, Config, Invocation};
use crate::kernel::process::raise_open_files;
use crate::kernel::{Lock, Turn, leftovers};
use crate::logging::{self, Verbosity};
use crate::ruleset::AnyLayout;

pub use output::ReaderGone;

/// Does what the arguments ask for; the first of them is the program's name.
///
/// # Errors
/// What to tell the user; upstream's exit code for each is 1. Nothing is to be told in the case of [`ReaderGone`].
pub fn start(args: impl IntoIterator<Item = OsString>) -> Result<()> {
    match config::load(args)? {
        Invocation::Run(config) => run(config),
        Invocation::Render(config) => render::render(config),
        Invocation::WriteConfig { path, text } => {
            output::written(fs::write(&path, text)).with_context(|| format!("cannot write {}", path.display()))
        }
        Invocation::InitOnly(config) => init_only(&config),
        Invocation::Cleanup(config) => clean_up(&config),
        Invocation::Print(text) => output::print(text),
    }
}

/// Runs until a signal asks to end.
fn run(config: Config) -> Result<()> {
    let verbosity = begin(&config);
    info!(version = config.version, node = config.node_name, "starting");
    let lock = take_lock();
    if lock.held().get() {
        leftovers::remove_other_modes().log();
    }
    prepare::prepare(&config)?;
    let open_files = raise_open_files();
    if config.file.nftables.flowtable == Flowtable::Off && lock.held().get() {
        leftovers::remove_fast_path().log();
    }
    prepare::give_up_privileges(&config)?;
    logging::start_writing();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve::serve(config, verbosity, open_files, lock));
    runtime.shutdown_background();
    outcome
}

/// The lock, asked for once. Whoever does not get it here goes on asking, and says so, in the sync loop.
fn take_lock() -> Lock {
    let mut lock = Lock::new(std::process::id(), &command_line());
    // What is wrong, such as a missing privilege, is said by the steps of the start that need it too.
    if let Err(error) = lock.take() {
        debug!(%error, "cannot take the lock");
    }
    lock
}

/// What the lock tells others of this process.
fn command_line() -> Vec<String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// The privileged part of a start, and nothing else (O3).
fn init_only(config: &Config) -> Result<()> {
    begin(config);
    logging::start_writing();
    prepare::prepare(config)?;
    prepare::probe()?;
    info!("the node is prepared");
    Ok(())
}

/// Removes what any kube-proxy left on this node (O1).
fn clean_up(config: &Config) -> Result<()> {
    begin(config);
    logging::start_writing();
    let mut lock = Lock::new(std::process::id(), &command_line());
    // Held until the end, so that no kube-proxy begins to write meanwhile.
    match lock.take() {
        Ok(Turn::Of(holder)) => bail!(
            "nothing was removed: a kube-proxy runs on this node and would write its rules again ({holder}); end it first, then \
             repeat --cleanup"
        ),
        Ok(Turn::Ours) => {}
        Err(error) => warn!("cannot find out whether a kube-proxy runs on this node: {error}"),
    }
    let report = leftovers::remove_all();
    report.log();
    if report.errors.is_empty() { Ok(()) } else { bail!("the clean-up is not complete") }
}

/// Starts the log and says what waited for it. Lines are kept until somebody starts the thread that writes them: a proxy that stays
/// gives up its privileges first, which that thread could not do later.
fn begin(config: &Config) -> Verbosity {
    let verbosity = logging::init(&config.logging);
    config.warnings.iter().for_each(|text| warn!("{text}"));
    if config.logging.verbosity >= 1 {
        config.flags.iter().for_each(|(name, value)| info!("FLAG: --{name}={value:?}"));
    }
    verbosity
}

/// How Services are written down.
fn layout(config: &Config) -> AnyLayout {
    match config.file.nftables.ruleset_layout {
        RulesetLayout::Maps => AnyLayout::Maps,
        RulesetLayout::Chains => AnyLayout::Chains,
    }
}

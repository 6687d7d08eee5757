//! What the process does from its arguments to its end; the only module that knows all others.
//!
//! The order of a start: configuration, log, `--write-config-to`, `--cleanup`, check of everything that can be checked without a change
//! (privileges, kernel, credentials or manifest directory), sysctls (`--init-only` ends here), OOM score, servers, objects, first sync,
//! removal of other modes' rules. That is upstream's (surface.md section 10), but for two things: nothing is changed before the check, and
//! no rule of anybody before all objects are there, because the rules of another mode may be all that serves the node. What is privileged
//! comes before any thread, and is given up then ([`crate::privileges`]).

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

use crate::config::file::RulesetLayout;
use crate::config::{self, Config, Invocation};
use crate::kernel::process::raise_open_files;
use crate::kernel::{Lock, Turn, leftovers};
use crate::logging::{self, Verbosity};
use crate::privileges;
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
    prepare::check(&config)?;
    let mut lock = Lock::new(std::process::id(), &command_line());
    let waits = another_holds(&mut lock);
    prepare::prepare(&config)?;
    let open_files = raise_open_files();
    prepare::give_up_privileges(&config)?;
    logging::start_writing();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve::serve(config, verbosity, open_files, lock, waits));
    runtime.shutdown_background();
    outcome
}

/// Whether another process holds the lock. The sync loop takes it once there is something to write: a process that never gets its
/// objects must not keep one out that does.
fn another_holds(lock: &mut Lock) -> bool {
    // What is wrong, such as a missing privilege, is logged by the steps of the start that need it too.
    let holder = lock.holder().inspect_err(|error| debug!(%error, "cannot look at the lock"));
    holder.is_ok_and(|holder| holder.is_some())
}

/// What the lock tells others of this process.
fn command_line() -> Vec<String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// The privileged part of a start, and nothing else (O3). It is checked as for a start, credentials included: a proxy that could not go on
/// should not find its sysctls written.
fn init_only(config: &Config) -> Result<()> {
    begin(config);
    logging::start_writing();
    prepare::check(config)?;
    prepare::prepare(config)?;
    info!("the node is prepared");
    Ok(())
}

/// Removes what any kube-proxy left on this node (O1).
fn clean_up(config: &Config) -> Result<()> {
    begin(config);
    logging::start_writing();
    privileges::check()?;
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
    report.log(None);
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

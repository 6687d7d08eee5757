//! The process from its arguments to its end; the only module that imports all other modules of this crate.
//!
//! A start takes these steps: it reads the flags and the file, starts the log, checks what can be checked without a change (privileges,
//! kernel, credentials or manifest directory), looks whether another process holds the writer lock, sets sysctls and the OOM score, drops
//! privileges, and calls `run`, which starts the servers, the source of objects and the sync loop. The rules of other modes are removed
//! after the first sync, because until then they may be the only ones that serve the node (O2). Privileged steps run before any thread
//! starts, so that every thread is without the dropped privileges (`privileges`).

mod bundle;
mod cleanup;
mod commands;
mod localhost;
mod node_check;
mod output;
mod prepare;
mod refused;
mod render;
mod run;
mod servers;
mod shutdown;
mod source;
mod sync_loop;

use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use tracing::{debug, info, warn};

use crate::sync::layout;
use component::config::{self, Config, Flowtable, Invocation};
use component::logging::{self, V1, Verbosity};
use component::privileges;
use inspect::output::ReaderGone;
use node::kernel::Lock;
use node::kernel::leftovers::CleanUp;
use node::kernel::process::raise_open_files;
use node::kernel::socket_users::SocketUsers;
use run::Writers;

/// Does what the arguments ask for; the first argument is the program's name. Returns the exit code: 0, except for subcommands and
/// `render --diff` (`inspect::CommandOutcome`, `inspect::COULD_NOT_LOOK`).
///
/// # Errors
/// The error to show to the user, with exit code 1; [`ReaderGone`] has an exit code of its own and is not shown.
pub fn start(args: impl IntoIterator<Item = OsString>) -> Result<ExitCode> {
    match config::load_with(args, commands::add) {
        Ok(Invocation::Command(matches)) => look(commands::run(&matches)),
        Err(error @ config::Error::CommandUsage(_)) => look(Err(error.into())),
        Ok(Invocation::Render { config, manifests, is_named, args }) if !args.diff.is_empty() => {
            look(render::diff(config, is_named, &manifests, &args))
        }
        other => proxy(other?).map(|()| ExitCode::SUCCESS),
    }
}

/// Returns the exit code of a subcommand or of `render --diff`. Prints an error here, because its exit code differs from that of the
/// proxy's errors.
///
/// # Errors
/// [`ReaderGone`].
fn look(outcome: Result<inspect::CommandOutcome>) -> Result<ExitCode> {
    match outcome {
        Ok(outcome) => Ok(ExitCode::from(outcome.exit_code())),
        Err(error) if error.is::<ReaderGone>() => Err(error),
        Err(error) => {
            logging::complain(&error);
            Ok(ExitCode::from(inspect::COULD_NOT_LOOK))
        }
    }
}

/// Runs the proxy, or does the single task that its arguments ask for, such as `--cleanup`.
fn proxy(invocation: Invocation) -> Result<()> {
    match invocation {
        Invocation::Run(config) => run(config),
        Invocation::Render { config, manifests, is_named, args } => {
            render::render(config, is_named, &manifests, args.strict)
        }
        Invocation::WriteConfig { path, text, warnings } => {
            warnings.iter().for_each(output::print_error);
            inspect::output::check_reader(fs::write(&path, text))
                .with_context(|| format!("cannot write {}", path.display()))
        }
        Invocation::InitOnly(config) => init_only(&config),
        Invocation::Cleanup { config, force } => clean_up(&config, force),
        Invocation::Print(text) => output::print(text),
        Invocation::Command(matches) => commands::run(&matches).map(drop),
    }
}

/// Runs the proxy until a signal or a failure ends it.
fn run(config: Config) -> Result<()> {
    let verbosity = start_log(&config);
    info!(version = config.version, node = config.node_name, "Starting kube-proxy");
    prepare::check(&config)?;
    let mut lock = Lock::new(std::process::id(), &command_line());
    let waits = another_holds(&mut lock);
    prepare::prepare(&config)?;
    let open_files = raise_open_files();
    let clean_up = CleanUp::of_other_modes(config.flowtable == Flowtable::Off).keeping(config.exclude_cidrs.clone());
    // A running process cannot open such a socket any more.
    let users = config
        .serves_localhost()
        .then(SocketUsers::open)
        .and_then(|users| users.inspect_err(|error| debug!(err = %error, "Cannot find the users of connections")).ok());
    prepare::drop_privileges(&config)?;
    logging::start_writing();
    let writers = Writers { lock, waits, clean_up, users };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run::run(config, verbosity, open_files, writers));
    runtime.shutdown_background();
    outcome
}

/// Returns whether another process holds the writer lock, and does not take it. The sync loop takes it once all objects have arrived, so
/// that a process that never gets its objects does not keep another one from writing.
fn another_holds(lock: &mut Lock) -> bool {
    // A failure to read the lock does not end the start: the sync loop asks for the lock again, and warns if that fails.
    let holder = lock.holder().inspect_err(|error| debug!(err = %error, "Cannot read the lock"));
    holder.is_ok_and(|holder| holder.is_some())
}

/// Returns the command line of this process. The lock stores it, so that other processes can name the holder.
fn command_line() -> Vec<String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// Does the privileged part of a start, and nothing else (O3). All checks of a start come first, credentials included, so that no sysctls
/// are written for a proxy that could not run.
fn init_only(config: &Config) -> Result<()> {
    start_log(config);
    logging::start_writing();
    prepare::check(config)?;
    prepare::prepare(config)?;
    info!("System initialized and --init-only specified");
    Ok(())
}

/// Removes the rules of any kube-proxy from this node (O1).
fn clean_up(config: &Config, force: bool) -> Result<()> {
    start_log(config);
    logging::start_writing();
    privileges::check()?;
    cleanup::clean_up(config, &mut Lock::new(std::process::id(), &command_line()), force)
}

/// Starts the log, and logs the warnings of the configuration, the note about its mode, and the flags. Lines wait in memory until
/// [`logging::start_writing`]: a running proxy drops its privileges first, so that the thread that writes the log does not have them.
fn start_log(config: &Config) -> Verbosity {
    let verbosity = logging::init(&config.logging);
    config
        .warnings
        .iter()
        .for_each(|reason| warn!(reason, "The configuration has something without effect or out of date"));
    if let Some(reason) = &config.mode_note {
        info!(reason, "Running nftables, whatever mode the configuration has");
    }
    // Upstream logs its flags in this format.
    config.flags.iter().for_each(|(name, value)| info!(target: V1, "FLAG: --{name}={value:?}"));
    verbosity
}

//! What the process does from its arguments to its end; the only module that knows all others.
//!
//! The order of a start is upstream's (surface.md section 10): configuration, log, `--write-config-to`, `--cleanup`, left-overs of
//! other modes, sysctls, kernel check (`--init-only` ends here), OOM score, servers, objects, syncs. What is privileged comes
//! before any thread, and is given up then ([`crate::privileges`]).

mod node;
mod prepare;
mod serve;
mod source;

use std::ffi::OsString;
use std::fs;

use anyhow::{Context as _, Result, bail};
use tracing::{info, warn};

use crate::config::file::{Flowtable, RulesetLayout};
use crate::config::{self, Config, Invocation};
use crate::fastpath;
use crate::kernel::leftovers;
use crate::logging::{self, Verbosity};
use crate::model::Family;
use crate::ruleset::AnyLayout;
use crate::source::manifests;
use crate::sync::{Engine, NoKernel};

/// Does what the arguments ask for; the first of them is the program's name.
///
/// # Errors
/// What to tell the user; upstream's exit code for each is 1.
pub fn start(args: impl IntoIterator<Item = OsString>) -> Result<()> {
    match config::load(args)? {
        Invocation::Run(config) => run(config),
        Invocation::Render(config) => render(config),
        Invocation::WriteConfig { path, text } => {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        Invocation::InitOnly(config) => init_only(&config),
        Invocation::Cleanup(config) => clean_up(&config),
        Invocation::Print(text) => {
            print!("{text}");
            Ok(())
        }
    }
}

/// Runs until a signal asks to end.
fn run(config: Config) -> Result<()> {
    let verbosity = begin(&config);
    info!(version = config.version, node = config.node_name, "starting");
    leftovers::remove_other_modes().log();
    prepare::prepare(&config)?;
    if config.file.nftables.flowtable == Flowtable::Off {
        leftovers::remove_fast_path().log();
    }
    prepare::give_up_privileges(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve::serve(config, verbosity))
}

/// The privileged part of a start, and nothing else (O3).
fn init_only(config: &Config) -> Result<()> {
    begin(config);
    prepare::prepare(config)?;
    prepare::probe()?;
    info!("the node is prepared");
    Ok(())
}

/// Removes what any kube-proxy left on this node (O1).
fn clean_up(config: &Config) -> Result<()> {
    begin(config);
    let report = leftovers::remove_all();
    report.log();
    if report.errors.is_empty() { Ok(()) } else { bail!("the clean-up is not complete") }
}

/// Starts the log and says what waited for it.
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

/// Prints the ruleset that the manifests ask for.
fn render(config: Config) -> Result<()> {
    let dir = config.manifests.clone().context("give --manifests DIR")?;
    let (events, problems) = manifests::read_once(&dir, source::options(&config))?;
    config.warnings.iter().for_each(|text| eprintln!("{text}"));
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    let layout = layout(&config);
    let flowtable = config.file.nftables.flowtable.clone();
    let mut engine = Engine::new(config, layout, &Family::BOTH, NoKernel);
    events.into_iter().for_each(|event| {
        engine.apply(event);
    });
    print!("{}", engine.content());
    engine.take_oversized().iter().for_each(|left_out| eprintln!("Service {}: left out: {left_out}", left_out.service));
    if let Some(table) = fastpath::table(&flowtable)? {
        print!("{table}");
    }
    Ok(())
}

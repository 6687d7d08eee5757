//! `kube-proxy render`: prints the ruleset for a directory of manifests, or what another directory would change. Changes nothing on the
//! node.
//!
//! Takes the configuration and the manifests, and no setting of the machine, so that the text is the same on every machine: this node is
//! the Node of the manifests, node ports are open on the addresses of that Node as far as `nodePortAddresses` allows, and the flowtable has
//! the interfaces that `--flowtable` names.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use super::{layout, output};
use crate::sync::{Engine, LostFrontend, LostReport, NoKernel};
use crate::verify::report::print_changes;
use cluster::settings::options;
use cluster::source::manifests;
use component::config::{Config, Flowtable, RenderArgs};
use inspect::CommandOutcome;
use node::flowtable;
use rules::diff::differences::as_read;
use rules::model::{Event, Family, Node};

/// Prints the ruleset for the manifests, and their problems on standard error. `is_named` says whether the configuration has the node's
/// name; otherwise the manifests may have only one Node. With `strict`, warnings, Services that are left out and lost claims on frontends
/// are errors.
///
/// # Errors
/// When the manifests cannot be read, have several Nodes and no name was configured, or have a problem; in the last case the ruleset for
/// the rest of them was printed.
pub(super) fn render(config: Config, is_named: bool, strict: bool) -> Result<()> {
    let dir = config.manifests.clone().context("give --manifests DIR")?;
    let flowtable = config.flowtable.clone();
    config.warnings.iter().for_each(output::print_error);
    let warnings = config.warnings.len();
    let Rendered { mut engine, problems, .. } = read(config, is_named, &dir)?;
    output::print(engine.content())?;
    let left_out = left_out(&mut engine, strict);
    print_fast_path(&flowtable)?;
    match (problems, warnings + left_out) {
        (0, 0) => Ok(()),
        (0, _) if !strict => Ok(()),
        (0, 1) => bail!("1 warning, and --strict allows none"),
        (0, several) => bail!("{several} warnings, and --strict allows none"),
        (1, _) => bail!("1 problem in the manifests; the ruleset is that of the rest"),
        (several, _) => bail!("{several} problems in the manifests; the ruleset is that of the rest"),
    }
}

/// Prints what would change on a node if another directory replaced the manifests.
///
/// # Errors
/// As for [`render`], for both directories; a problem of the manifests only with `--strict`.
pub(super) fn diff(config: Config, is_named: bool, args: &RenderArgs) -> Result<CommandOutcome> {
    let dir = config.manifests.clone().context("give --manifests DIR")?;
    let other = args.diff.as_deref().context("give --diff DIR")?;
    config.warnings.iter().for_each(output::print_error);
    let warnings = config.warnings.len();
    let mut before = read(config.clone(), is_named, &dir)?;
    // Both directories are rendered for the same node.
    let config = Config { node_name: before.node_name.clone(), ..config };
    let mut after = read(config, is_named || !before.node_name.is_empty(), other)?;
    let dumps = before.engine.content().tables.iter().map(as_read).map(Some).collect();
    let found = after.engine.differences(dumps, Some(&before.engine));
    let mut wrong = before.problems + after.problems + warnings;
    for engine in [&mut before.engine, &mut after.engine] {
        wrong += left_out(engine, args.strict);
    }
    let has_changes = print_changes(&found, args.output.is_some())?;
    if args.strict && wrong > 0 {
        bail!("{wrong} {}, and --strict allows none", if wrong == 1 { "warning" } else { "warnings" });
    }
    Ok(if has_changes { CommandOutcome::Found } else { CommandOutcome::Fine })
}

/// The manifests of a directory, loaded into an engine without a kernel.
struct Rendered {
    engine: Engine<NoKernel>,
    /// The name of the node that the rules are made for.
    node_name: String,
    /// The number of problems in the manifests, which were printed.
    problems: usize,
}

/// Reads a directory, and prints the problems of its manifests on standard error.
///
/// # Errors
/// When it cannot be read, or has several Nodes and no name was configured.
fn read(mut config: Config, is_named: bool, dir: &Path) -> Result<Rendered> {
    let (events, problems) = manifests::read_once(dir, options(&config))?;
    problems.iter().for_each(output::print_error);
    if !is_named {
        config.node_name = only_node(&events)?.map_or_else(String::new, |node| node.name.to_string());
    }
    let node_name = config.node_name.clone();
    let own = nodes(&events).find(|node| *node.name == *node_name);
    let addresses = own.map_or_else(Vec::new, |node| node.clone().with_bind_address(config.bind_address).ips);
    let layout = layout(&config);
    let mut engine = Engine::new(config, layout, &Family::BOTH, NoKernel { addresses });
    events.into_iter().for_each(|event| {
        engine.apply(event);
    });
    Ok(Rendered { engine, node_name, problems: problems.len() })
}

/// Prints which Services are left out and, if `claims` is set, which do not get a frontend that they claim. Returns the sum of both.
fn left_out(engine: &mut Engine<NoKernel>, claims: bool) -> usize {
    let oversized = engine.take_oversized();
    for left_out in &oversized {
        output::print_error(format_args!("Service {}: left out: {left_out}", left_out.service));
    }
    let lost = if claims { engine.take_lost_claims() } else { LostReport::default() };
    for LostFrontend { services, reason, .. } in &lost.frontends {
        match &services[..] {
            [lost] => output::print_error(format_args!("Service {}: {reason}", lost.service)),
            _ => output::print_error(reason),
        }
    }
    if lost.left_out > 0 {
        output::print_error(format_args!(
            "{} more addresses or node ports are claimed by several Services",
            lost.left_out
        ));
    }
    oversized.len() + lost.frontends.len() + lost.left_out
}

fn print_fast_path(flowtable: &Flowtable) -> Result<()> {
    let Some(table) = flowtable::table(flowtable) else { return Ok(()) };
    if *flowtable == Flowtable::Auto {
        output::print("# devices: every interface of the node but lo\n")?;
    }
    output::print(table)
}

fn nodes(events: &[Event]) -> impl Iterator<Item = &Node> {
    events.iter().filter_map(|event| match event {
        Event::NodeApplied(node) => Some(node),
        _ => None,
    })
}

/// The only Node of the manifests, if there is one.
///
/// # Errors
/// When there are several.
fn only_node(events: &[Event]) -> Result<Option<&Node>> {
    let nodes: Vec<&Node> = nodes(events).collect();
    if let [] | [_] = nodes[..] {
        return Ok(nodes.first().copied());
    }
    let names: Vec<Arc<str>> = nodes.iter().map(|node| Arc::clone(&node.name)).collect();
    bail!("{} Nodes are in the manifests: {}; choose one with --hostname-override", names.len(), names.join(", "))
}

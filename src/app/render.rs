//! `kube-proxy render`: prints the ruleset for a directory of manifests, and changes nothing.
//!
//! Takes the configuration and the manifests, and no setting of the machine, so that the text is the same on every machine:
//! this node is the Node of the manifests, node ports are open on the addresses of that Node as far as `nodePortAddresses` allows, and
//! the interfaces of a fast path are those that `--flowtable` names.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use super::{layout, output, source};
use crate::config::{Config, Flowtable};
use crate::fastpath;
use crate::model::{Event, Family, Node};
use crate::source::manifests;
use crate::sync::{Engine, NoKernel};

/// Prints the ruleset for the manifests, and their problems on standard error. `is_named` says whether the configuration has the node's
/// name; otherwise the manifests may have only one Node.
///
/// # Errors
/// When the manifests cannot be read, have several Nodes and no name was configured, or have a problem; in the last case the ruleset for
/// the rest of them was printed.
pub(super) fn render(mut config: Config, is_named: bool) -> Result<()> {
    let dir = config.manifests.clone().context("give --manifests DIR")?;
    let (events, problems) = manifests::read_once(&dir, source::options(&config))?;
    config.warnings.iter().for_each(output::print_error);
    problems.iter().for_each(output::print_error);
    if !is_named {
        config.node_name = only_node(&events)?.map_or_else(String::new, |node| node.name.to_string());
    }
    let own = nodes(&events).find(|node| *node.name == *config.node_name);
    let addresses = own.map_or_else(Vec::new, |node| node.clone().with_bind_address(config.bind_address).ips);
    let layout = layout(&config);
    let flowtable = config.flowtable.clone();
    let mut engine = Engine::new(config, layout, &Family::BOTH, NoKernel { addresses });
    events.into_iter().for_each(|event| {
        engine.apply(event);
    });
    output::print(engine.content())?;
    engine
        .take_oversized()
        .iter()
        .for_each(|left_out| output::print_error(format_args!("Service {}: left out: {left_out}", left_out.service)));
    print_fast_path(&flowtable)?;
    match problems.len() {
        0 => Ok(()),
        1 => bail!("1 problem in the manifests; the ruleset is that of the rest"),
        several => bail!("{several} problems in the manifests; the ruleset is that of the rest"),
    }
}

fn print_fast_path(flowtable: &Flowtable) -> Result<()> {
    let Some(table) = fastpath::table(flowtable) else { return Ok(()) };
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

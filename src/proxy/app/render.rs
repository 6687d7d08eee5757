//! `kube-proxy render`: prints the ruleset for manifests, or what other manifests would change; and `kube-proxy explain --manifests`, which
//! explains a packet by that ruleset. Changes nothing on the node.
//!
//! Takes the configuration and the manifests, and no setting of the machine, so that the text is the same on every machine: the node is the
//! Node of the manifests with the configured name, or their only Node; its addresses are those of that Node, with a configured
//! `bindAddress` in place of the one of its family (M6).

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::{layout, output};
use crate::sync::{Engine, LostFrontend, LostReport, NoKernel};
use crate::verify::report::print_changes;
use cluster::settings::options;
use cluster::source::manifests::{self, STDIN, Severity};
use component::config::{Config, Flowtable, RenderArgs};
use inspect::output::Output;
use inspect::{CommandOutcome, explain};
use node::flowtable;
use rules::diff::differences::as_read;
use rules::endpoints::label;
use rules::model::{Destination, Event, Family, Frontend, Node};

/// Prints the ruleset for the manifests, and their problems on standard error. `is_named` says whether the configuration has the node's
/// name; otherwise the manifests may have only one Node. With `strict`, warnings about the configuration, Services that are left out and
/// lost claims on frontends are errors.
///
/// # Errors
/// When the manifests cannot be read, have several Nodes and no name was configured, or have a problem; with `strict`, see above. If a part
/// of the manifests has a problem, the ruleset of the rest was printed.
pub(super) fn render(config: Config, is_named: bool, manifests: &[PathBuf], strict: bool) -> Result<()> {
    let flowtable = config.flowtable.clone();
    config.warnings.iter().for_each(output::print_error);
    let warnings = config.warnings.len();
    let Rendered { mut engine, problems, .. } = read(config, is_named, manifests)?;
    let problems = problems.all;
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

/// Prints what would change on a node if the manifests of `--diff` replaced `manifests`.
///
/// # Errors
/// As for [`render`], for the manifests before and after; but problems in them are errors only with `--strict`. Also when both would be
/// read from standard input.
pub(super) fn diff(config: Config, is_named: bool, manifests: &[PathBuf], args: &RenderArgs) -> Result<CommandOutcome> {
    if [manifests, &args.diff].iter().all(|sources| sources.iter().any(|source| source.as_os_str() == STDIN)) {
        bail!("cannot read standard input twice: give - to --manifests or to --diff");
    }
    config.warnings.iter().for_each(output::print_error);
    let warnings = config.warnings.len();
    let mut before = read(config.clone(), is_named, manifests)?;
    // Render the manifests before and after for the same node.
    let config = Config { node_name: before.node_name.clone(), ..config };
    let mut after = read(config, is_named || !before.node_name.is_empty(), &args.diff)?;
    let dumps = before.engine.content().tables.iter().map(as_read).map(Some).collect();
    let found = after.engine.differences(dumps, Some(&before.engine));
    let mut wrong = before.problems.all + after.problems.all + warnings;
    for engine in [&mut before.engine, &mut after.engine] {
        wrong += left_out(engine, args.strict);
    }
    let has_changes = print_changes(&found, args.output.is_some())?;
    if args.strict && wrong > 0 {
        bail!("{wrong} {}, and --strict allows none", if wrong == 1 { "warning" } else { "warnings" });
    }
    Ok(if has_changes { CommandOutcome::Found } else { CommandOutcome::Fine })
}

/// Explains a packet by the ruleset for manifests.
///
/// # Errors
/// When the configuration or the manifests cannot be read, the manifests have Nodes but not the configured one, or the packet does not fit
/// the node.
pub(super) fn explain(args: &explain::Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let (config, is_named) = args.from_manifests.config()?;
    config.warnings.iter().for_each(output::print_error);
    let serves_localhost = config.serves_localhost();
    let Rendered { mut engine, problems, addresses, cluster_ips, pods, node_name, others } =
        read(config, is_named, args.from_manifests.manifests())?;
    if !others.is_empty() {
        bail!("no Node {node_name} is in the manifests, which have {}: choose one with --node", others.join(", "));
    }
    if problems.errors > 0 {
        bail!("cannot explain a packet by manifests of which a part cannot be read");
    }
    let tables = engine.content().tables.iter().map(as_read).collect();
    let problems = engine.problems();
    let node = explain::ManifestNode { tables, cluster_ips, pods, addresses, serves_localhost, problems };
    explain::run_offline(args, &node, out)
}

/// Manifests, loaded into an engine without a kernel.
struct Rendered {
    engine: Engine<NoKernel>,
    /// The name of the node that the rules are made for.
    node_name: String,
    /// The addresses of that node.
    addresses: Vec<IpAddr>,
    /// The frontends with a cluster IP, each after its service port: `namespace/name:port`, or `namespace/name` if the port has no name.
    cluster_ips: Vec<(Arc<str>, Frontend)>,
    /// The addresses of pods, each after its `namespace/name`.
    pods: Vec<(String, IpAddr)>,
    problems: Problems,
    /// The names of all Nodes in the manifests, if none of them is [`Self::node_name`]; otherwise empty.
    others: Vec<String>,
}

/// The number of problems in the manifests, which were printed.
struct Problems {
    all: usize,
    /// The number of problems because of which a document, a file or a directory cannot be used.
    errors: usize,
}

/// Reads manifests. Prints on standard error their problems, and the cluster IPs and node ports that it assigned to Services without them.
///
/// # Errors
/// When they cannot be read, or have several Nodes and no name was configured.
fn read(mut config: Config, is_named: bool, manifests: &[PathBuf]) -> Result<Rendered> {
    let manifests = manifests::read_and_assign(manifests, options(&config))?;
    manifests.problems.iter().for_each(output::print_error);
    manifests.notes.iter().for_each(output::print_error);
    let errors = manifests.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let problems = Problems { all: manifests.problems.len(), errors };
    let events = manifests.events;
    if !is_named {
        config.node_name = only_node(&events)?.map_or_else(String::new, |node| node.name.to_string());
    }
    let node_name = config.node_name.clone();
    let own = nodes(&events).find(|node| *node.name == *node_name);
    let others = nodes(&events).filter(|_| own.is_none()).map(|node| node.name.to_string()).collect();
    let addresses = own.map_or_else(Vec::new, |node| node.clone().with_bind_address(config.bind_address).ips);
    let cluster_ips = cluster_ips(&events);
    let layout = layout(&config);
    let mut engine = Engine::new(config, layout, &Family::BOTH, NoKernel { addresses: addresses.clone() });
    events.into_iter().for_each(|event| {
        engine.apply(event);
    });
    Ok(Rendered { engine, node_name, addresses, cluster_ips, pods: manifests.pods, problems, others })
}

/// Prints which Services are left out and, if `claims` is set, which do not get a frontend that they claim. Returns the number of Services
/// left out plus, if `claims` is set, the number of frontends that a Service claims and does not get.
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

fn cluster_ips(events: &[Event]) -> Vec<(Arc<str>, Frontend)> {
    let mut found = Vec::new();
    for event in events {
        let Event::ServiceApplied(service) = event else { continue };
        for (family, port) in
            Family::BOTH.into_iter().flat_map(|family| service.ports.iter().map(move |port| (family, port)))
        {
            let Some(address) = service.cluster_ips.get(family) else { continue };
            let destination = Destination::Address(address);
            let frontend = Frontend { destination, protocol: port.protocol, port: port.port };
            found.push((label(&service.name, port), frontend));
        }
    }
    found
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

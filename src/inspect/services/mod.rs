//! `kube-proxy services`: shows where each frontend of a Service leads right now, from the kernel's tables.
//!
//! Takes names of Services or frontends; prints a table with a row for each frontend, or JSON or YAML. `--stats` adds the connections that
//! the kernel tracks for each frontend and endpoint; `--watch` repeats the listing, with rates. Needs no running proxy; if one runs, the
//! [`Problem`]s on its health page are listed too, and for one Service why it has the endpoints that it has.

pub mod causes;
pub(crate) mod print;
pub(crate) mod stats;
mod watch;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::CommandOutcome;
use super::names::{self, FrontendName, ServiceName, Wanted, is_in, split_port};
use super::output::{Format, FormatArgs, Output};
use super::running::{self, Problem, ProblemKind, Running, RunningArgs};
use super::tables::{FrontendView, State, View};
use causes::Causes;
use rules::model::{Destination, Frontend};
use stats::Stats;

const EXAMPLES: &str = "\
Examples:
  kube-proxy services                            all frontends of all Services
  kube-proxy services shop/web                   one Service, with each endpoint
  kube-proxy services 10.96.0.10:53/udp          one frontend
  kube-proxy services 30080                      a node port
  kube-proxy services -n shop --not-served       what is not served in a namespace
  kube-proxy services 10.244.1.7                 what leads to this pod
  kube-proxy services -o json | jq '.services[] | select(.state != \"served\")'

Exit codes: 0 fine; 1 a problem is printed, such as a Service that is left out,
or a frontend leads to what this proxy does not write; 2 could not look, or no
such Service.";

/// List the frontends of Services in the kernel's tables, and where they lead
#[derive(Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Only frontends that are not served
    #[arg(long)]
    not_served: bool,
    #[command(flatten)]
    output: FormatArgs,
    /// Also count the connections that the kernel tracks, and packets and bytes where it accounts them (net.netfilter.nf_conntrack_acct)
    #[arg(long)]
    stats: bool,
    /// As --stats, again and again, with rates: a screen on a terminal (q quits, s n o sort), else one list after the other
    #[arg(long)]
    watch: bool,
    /// Seconds between two looks with --watch
    #[arg(long, value_name = "SECONDS", default_value_t = 2, requires = "watch", value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    #[command(flatten)]
    running: RunningArgs,
    /// Where the running proxy says why one Service has its endpoints [default: where it listens]
    #[arg(long, value_name = "IP[:PORT]", value_parser = running::metrics)]
    metrics_bind_address: Option<SocketAddr>,
    /// Print only names, for completion
    #[arg(long = "names", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "services")]
    names_of: Option<NamesOf>,
}

/// The Services that the user asks for.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Selection {
    /// Services, namespaces, addresses, frontends or node ports
    #[arg(value_name = "NAMESPACE/NAME[:PORT] | NAMESPACE | IP | IP:PORT[/PROTO] | NODE-PORT")]
    names: Vec<Wanted>,
    /// Only the Services of this namespace; names may then be without it
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// What `--names` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum NamesOf {
    Namespaces,
    Services,
    /// Services and addresses with ports: what the flag `--to` takes.
    Targets,
    /// These and node ports: what `services` and `probe` take.
    Frontends,
}

/// Runs the command.
///
/// # Errors
/// When the kernel's tables or its connections cannot be read, or neither the tables nor the reported problems have one of the names.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    if let Some(which) = args.names_of {
        return print_names(&View::read()?, which, out);
    }
    let is_text = matches!(args.output.format, Format::Table | Format::Wide);
    if args.watch && is_text && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return watch::watch(args);
    }
    let mut stats = (args.stats || args.watch).then(Stats::default);
    loop {
        let listing = Listing::read(args)?;
        if let Some(stats) = &mut stats {
            stats.count(&listing.view)?;
        }
        print::print(args, &listing, stats.as_ref(), &listing.positions(), out)?;
        if !args.watch {
            return Ok(listing.outcome());
        }
        out.text("\n")?;
        out.flush()?;
        thread::sleep(Duration::from_secs(args.interval));
    }
}

/// Reads the selected frontends, sorted by Service, and the problems that concern them or the whole node. For other commands.
///
/// # Errors
/// As [`run`].
pub(crate) fn named(selection: &Selection, running: RunningArgs) -> Result<(View, Vec<Problem>)> {
    let listing = Listing::selected(View::read()?, running.problems(), selection)?;
    Ok((listing.view, listing.problems))
}

/// Prints names, Services without their ports. Leaves out names with other characters than those of Kubernetes names and of addresses: shells
/// evaluate the words that they complete, and another program may have written anything into the tables.
fn print_names(view: &View, which: NamesOf, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let services = view.frontends.iter().filter_map(|frontend| frontend.service.as_deref());
    let name = |service| match which {
        NamesOf::Namespaces => split_port(service).0.split('/').next().unwrap_or_default().to_owned(),
        _ => split_port(service).0.to_owned(),
    };
    let mut names: BTreeSet<String> = services.map(name).collect();
    for name in view.frontends.iter().map(|view| frontend_name(&view.frontend)) {
        names.extend(match name.address {
            Some(_) if matches!(which, NamesOf::Targets | NamesOf::Frontends) => {
                Some(name.to_string().to_lowercase().trim_end_matches("/tcp").to_owned())
            }
            None if which == NamesOf::Frontends => Some(name.port.to_string()),
            _ => None,
        });
    }
    names.retain(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || "-./:[]".contains(c)));
    names.iter().try_for_each(|name| out.text(format_args!("{name}\n")))?;
    Ok(CommandOutcome::Fine)
}

/// The frontends to print.
pub(crate) struct Listing {
    pub(crate) view: View,
    /// The problems of the node and of the listed Services.
    pub(crate) problems: Vec<Problem>,
    /// Whether the running proxy reported its problems: [`Running::problems`] returned a list, and not just that it is silent.
    proxy_answers: bool,
    /// Whether the user gave one name only, and it is that of a Service, a service port or a frontend.
    is_one_service: bool,
    /// If `is_one_service`, why the Service has its endpoints.
    causes: Causes,
}

impl Listing {
    fn read(args: &Args) -> Result<Self> {
        let (view, running) = (View::read()?, Running::find());
        let mut listing = Self::of(view, running.problems(args.running), args)?;
        // A proxy that did not answer the request for its problems is not asked again.
        let is_silent = listing.problems.iter().any(|problem| problem.kind == ProblemKind::ProxySilent);
        if listing.is_one_service && !is_silent {
            let address = args.metrics_bind_address.unwrap_or_else(|| running.metrics());
            listing.causes = Causes::ask(address, &listing.view.frontends);
        }
        Ok(listing)
    }

    /// Reads all frontends, and all problems that `running` reports.
    ///
    /// # Errors
    /// When the tables cannot be read.
    pub(crate) fn all(running: &Running, args: RunningArgs) -> Result<Self> {
        Self::selected(View::read()?, running.problems(args), &Selection::default())
    }

    /// Selects the frontends of `view` that the arguments ask for.
    ///
    /// # Errors
    /// When nothing has one of the names.
    fn of(view: View, reported: Option<Vec<Problem>>, args: &Args) -> Result<Self> {
        let mut listing = Self::selected(view, reported, &args.selection)?;
        if args.not_served {
            listing.view.frontends.retain(|frontend| frontend.state != Some(State::Served));
        }
        Ok(listing)
    }

    /// Selects the frontends of `view` with these names.
    ///
    /// # Errors
    /// When nothing has one of the names.
    fn selected(mut view: View, reported: Option<Vec<Problem>>, selection: &Selection) -> Result<Self> {
        let Selection { names, namespace } = selection;
        let is_silence = |problem: &Problem| problem.kind == ProblemKind::ProxySilent;
        let proxy_answers = reported.as_ref().is_some_and(|reported| !reported.iter().any(is_silence));
        let mut problems: Vec<Problem> = view.problems().collect();
        // A table of another program is in the view too, which names more of these programs than the proxy sees.
        let is_new = |problem: &Problem| problem.kind != ProblemKind::TableOwned || view.owned.is_empty();
        problems.extend(reported.into_iter().flatten().filter(is_new));
        mark_quarantined(&mut view.frontends, &problems);
        let wanted: Vec<Wanted> = names.iter().map(|name| name.in_namespace(namespace.as_deref())).collect();
        let of_namespace = |service: &String| Wanted::Service(ServiceName { service: service.clone(), port: None });
        for name in wanted.iter().chain(&namespace.as_ref().map(of_namespace)) {
            let is_known = view.frontends.iter().any(|frontend| has_name(frontend, name))
                || !with_port_number(&view.frontends, name).is_empty();
            if !is_known && !problems.iter().any(|problem| concerns(problem, name)) {
                return Err(with_silence(unknown(&view, name), &problems));
            }
        }
        if !wanted.is_empty() {
            let numbered: BTreeSet<Arc<str>> =
                wanted.iter().flat_map(|name| with_port_number(&view.frontends, name)).collect();
            let is_numbered = |frontend: &FrontendView| {
                frontend.service.as_ref().is_some_and(|service_port| numbered.contains(service_port))
            };
            view.frontends
                .retain(|frontend| is_numbered(frontend) || wanted.iter().any(|name| has_name(frontend, name)));
            let is_wanted = |problem: &Problem| wanted.iter().any(|name| concerns(problem, name));
            problems.retain(|problem| problem.is_of_node() || is_wanted(problem));
        }
        if let Some(namespace) = namespace {
            view.frontends.retain(|frontend| frontend.service.as_deref().is_some_and(|name| is_in(name, namespace)));
            problems.retain(|problem| problem.service.as_deref().is_none_or(|name| is_in(name, namespace)));
        }
        let is_one_service = match &wanted[..] {
            [Wanted::Service(name)] => !name.is_namespace(),
            [Wanted::Frontend(_)] => true,
            _ => false,
        };
        Ok(Self { view, problems, proxy_answers, is_one_service, causes: Causes::default() })
    }

    /// The positions of all frontends in `view.frontends`, which is sorted by Service, then by kind and frontend.
    fn positions(&self) -> Vec<usize> {
        (0..self.view.frontends.len()).collect()
    }

    fn outcome(&self) -> CommandOutcome {
        let is_wrong = |frontend: &FrontendView| matches!(frontend.state, None | Some(State::Quarantined));
        if !self.problems.is_empty() || self.view.frontends.iter().any(is_wrong) {
            CommandOutcome::Found
        } else {
            CommandOutcome::Fine
        }
    }
}

/// Adds to the error about an unknown name that the running proxy is silent, if it is: the name may be that of a Service that it leaves out.
fn with_silence(error: anyhow::Error, problems: &[Problem]) -> anyhow::Error {
    match problems.iter().find(|problem| problem.kind == ProblemKind::ProxySilent) {
        Some(silent) => anyhow!("{error}. {}", silent.text),
        None => error,
    }
}

/// Marks the frontends of Services that the kernel refuses. The tables cut long names, so a cut name counts as the name of each Service
/// that begins with it and has the frontend.
fn mark_quarantined(frontends: &mut [FrontendView], problems: &[Problem]) {
    for view in frontends {
        let (name, frontend) = (view.service.as_deref().unwrap_or_default(), frontend_name(&view.frontend));
        let is_it = |problem: &Problem| {
            problem.kind == ProblemKind::Quarantined
                && problem.service.as_deref().is_some_and(|service| names::is_port_of(name, service))
                && (!name.ends_with("...") || problem.is_at(frontend.address, Some(frontend.port), None))
        };
        if problems.iter().any(is_it) {
            view.state = Some(State::Quarantined);
        }
    }
}

/// Whether a problem is about the Service, the namespace, the address or the frontend with this name.
pub(crate) fn concerns(problem: &Problem, wanted: &Wanted) -> bool {
    match wanted {
        Wanted::Service(name) => problem.is_about(name),
        Wanted::Address(ip) => problem.is_at(Some(*ip), None, None),
        Wanted::Frontend(name) => problem.is_at(name.address, Some(name.port), name.protocol),
    }
}

/// Whether the user's argument selects a frontend: the name of its Service or namespace, its address, the address of one of its
/// endpoints, or its address or node port with port and protocol.
fn has_name(view: &FrontendView, wanted: &Wanted) -> bool {
    match wanted {
        Wanted::Service(name) => view.service.as_deref().is_some_and(|service| name.names(service)),
        Wanted::Address(ip) => {
            view.frontend.destination == Destination::Address(*ip)
                || view.endpoints.iter().any(|endpoint| endpoint.address.ip() == *ip)
        }
        Wanted::Frontend(name) => {
            let frontend = frontend_name(&view.frontend);
            let protocol_fits = name.protocol.is_none_or(|protocol| protocol == view.frontend.protocol);
            (name.address, name.port) == (frontend.address, frontend.port) && protocol_fits
        }
    }
}

/// The service ports with this number, if the user's argument is a Service with a number behind the colon. It may be the name of a port
/// too: [`has_name`]. Of a node port the number is that of its service port, which the frontends with an address show.
fn with_port_number(frontends: &[FrontendView], wanted: &Wanted) -> BTreeSet<Arc<str>> {
    let Wanted::Service(name) = wanted else { return BTreeSet::new() };
    let Some(number) = name.port.as_ref().and_then(|port| port.parse::<u16>().ok()) else { return BTreeSet::new() };
    let has_number = |view: &&FrontendView| {
        view.frontend.port == number && matches!(view.frontend.destination, Destination::Address(_))
    };
    let labels = frontends.iter().filter(has_number).filter_map(|view| view.service.clone());
    labels.filter(|label| name.is_of(label)).collect()
}

fn frontend_name(frontend: &Frontend) -> FrontendName {
    let address = match frontend.destination {
        Destination::Address(ip) => Some(ip),
        Destination::NodePort(_) => None,
    };
    FrontendName { address, port: frontend.port, protocol: Some(frontend.protocol) }
}

/// An error message names at most this many frontends.
const FEW: usize = 3;

/// Returns a hint for an unknown frontend that has an address of this node: which Service has its port as a node port. Empty when none has.
fn node_port_hint(view: &View, port: u16) -> String {
    let is_it = |known: &&FrontendView| {
        known.frontend.port == port && matches!(known.frontend.destination, Destination::NodePort(_))
    };
    let found = view.frontends.iter().find(is_it).and_then(|known| known.service.as_deref());
    found.map_or_else(String::new, |service| format!("; node port {port} is {service}: kube-proxy services {port}"))
}

/// The error for a name that nothing has.
fn unknown(view: &View, wanted: &Wanted) -> anyhow::Error {
    match wanted {
        Wanted::Service(name) => {
            let what = names::no_service(&name.to_string());
            let known = view.frontends.iter().filter_map(|frontend| frontend.service.as_deref());
            names::unknown(&what, &name.to_string(), known)
        }
        Wanted::Address(ip) => anyhow!("no frontend and no endpoint in the tables of this node has the address {ip}"),
        Wanted::Frontend(wanted) => {
            let frontends = view.frontends.iter().map(|view| frontend_name(&view.frontend));
            let near =
                frontends.filter(|frontend| frontend.address.is_some() && frontend.address == wanted.address).take(FEW);
            let near: Vec<String> = near.map(|frontend| frontend.to_string()).collect();
            let hint = match wanted.address {
                Some(address) if view.node_addresses.contains(&address) => node_port_hint(view, wanted.port),
                _ if near.is_empty() => String::new(),
                _ => format!("; its address has {}", near.join(", ")),
            };
            anyhow!("no Service has the frontend {wanted} in the tables of this node{hint}")
        }
    }
}

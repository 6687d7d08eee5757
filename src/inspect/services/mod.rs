//! `kube-proxy services`: shows where each frontend of a Service leads right now, from the kernel's tables.
//!
//! Takes names of Services or frontends; prints one line per frontend, or JSON. `--stats` adds the connections that the kernel tracks for
//! each frontend and endpoint; `--watch` repeats the listing, with rates. Needs no running proxy; if one runs, its health page names the
//! quarantined Services.

mod print;
mod stats;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::CommandOutcome;
use super::names::{self, FrontendName, Wanted, split_port};
use super::output::{Format, FormatArgs, Output};
use super::running::{self, LeftOut};
use super::tables::{FrontendView, State, View};
use component::logging::escaped;
use rules::model::{Destination, Frontend};
use stats::Stats;

const EXAMPLES: &str = "\
Examples:
  kube-proxy services                            all frontends of all Services
  kube-proxy services shop/web                   one Service, with each endpoint
  kube-proxy services 10.96.0.10:53/udp          one frontend
  kube-proxy services '*:30080'                  a node port
  kube-proxy services 10.244.1.7                 what leads to this pod
  kube-proxy services --stats shop/web           with its connections
  kube-proxy services -o json | jq '.services[] | select(.state != \"served\")'

Exit codes: 0 fine; 1 a frontend is quarantined, or leads to what this proxy does not write, or a table is dormant; 2 could not look, or no such Service.";

/// List the frontends of Services in the kernel's tables, and where they lead
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Services, addresses or frontends; without any, all
    #[arg(value_name = "NAMESPACE/NAME[:PORT] | IP | IP:PORT[/PROTO]")]
    names: Vec<Wanted>,
    #[command(flatten)]
    output: FormatArgs,
    /// Also count the connections that the kernel tracks, and packets and bytes where it accounts them (net.netfilter.nf_conntrack_acct)
    #[arg(long)]
    stats: bool,
    /// As --stats, again and again, with rates: a screen on a terminal (q quits, s n o sort), else one list after the other
    #[arg(long)]
    watch: bool,
    /// Seconds between two looks with --watch
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Where the health pages of the running proxy are, which name quarantined Services
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10256")]
    healthz_address: SocketAddr,
    /// Print only the names of all Services, for completion
    #[arg(long = "names", hide = true)]
    only_names: bool,
}

/// Runs the command.
///
/// # Errors
/// When the kernel's tables cannot be read, or have nothing with one of the names.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    if args.only_names {
        return print_names(&View::read()?, out);
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

/// Prints the names of the Services, without ports.
fn print_names(view: &View, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let services = view.frontends.iter().filter_map(|frontend| frontend.service.as_deref());
    let names: BTreeSet<&str> = services.map(|service| split_port(service).0).collect();
    names.into_iter().try_for_each(|name| out.text(format_args!("{}\n", escaped(name))))?;
    Ok(CommandOutcome::Fine)
}

/// The frontends to print.
struct Listing {
    view: View,
    /// The Services that the running proxy has left out of the tables; `None` when no proxy runs.
    left_out: Option<LeftOut>,
    /// Whether the user named exactly one Service or frontend; then its endpoints are printed too.
    is_one_service: bool,
}

impl Listing {
    fn read(args: &Args) -> Result<Self> {
        Self::of(View::read()?, running::left_out(args.healthz_address), &args.names)
    }

    /// Keeps the frontends that have one of the names, or all if there are no names.
    ///
    /// # Errors
    /// When one of the names matches nothing.
    fn of(mut view: View, left_out: Option<LeftOut>, wanted: &[Wanted]) -> Result<Self> {
        if let Some(left_out) = &left_out {
            mark_quarantined(&mut view.frontends, &left_out.quarantined_services);
        }
        for name in wanted {
            if !view.frontends.iter().any(|frontend| has_name(frontend, name)) {
                return Err(unknown(&view, name));
            }
        }
        if !wanted.is_empty() {
            view.frontends.retain(|frontend| wanted.iter().any(|name| has_name(frontend, name)));
        }
        Ok(Self { view, left_out, is_one_service: matches!(wanted, [Wanted::Service(_) | Wanted::Frontend(_)]) })
    }

    /// The positions of all frontends, in order of name.
    fn positions(&self) -> Vec<usize> {
        (0..self.view.frontends.len()).collect()
    }

    fn outcome(&self) -> CommandOutcome {
        let is_wrong = |frontend: &FrontendView| matches!(frontend.state, None | Some(State::Quarantined));
        if !self.view.dormant.is_empty() || self.view.frontends.iter().any(is_wrong) {
            CommandOutcome::Found
        } else {
            CommandOutcome::Fine
        }
    }
}

fn mark_quarantined(frontends: &mut [FrontendView], services: &[String]) {
    for frontend in frontends {
        let service = frontend.service.as_deref().map(|service| split_port(service).0);
        if services.iter().any(|quarantined| Some(quarantined.as_str()) == service) {
            frontend.state = Some(State::Quarantined);
        }
    }
}

/// Whether a name matches a frontend: by its Service, its address, the address of an endpoint, or its address and port.
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

fn frontend_name(frontend: &Frontend) -> FrontendName {
    let address = match frontend.destination {
        Destination::Address(ip) => Some(ip),
        Destination::NodePort(_) => None,
    };
    FrontendName { address, port: frontend.port, protocol: Some(frontend.protocol) }
}

/// An error message names at most this many frontends.
const FEW: usize = 3;

/// The error for a name that matches nothing.
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
            let hint = if near.is_empty() { String::new() } else { format!("; its address has {}", near.join(", ")) };
            anyhow!("no Service has the frontend {wanted} in the tables of this node{hint}")
        }
    }
}

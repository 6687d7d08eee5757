//! `kube-proxy probe`: whether the frontends and the endpoints of a Service answer this node.
//!
//! Takes names as `services` does and the frontends that the kernel's tables have for them. Asks the frontends, whose packets the rules
//! translate, and each endpoint directly, once even if several Services have it; prints who answers, how fast, or why not. Needs no running
//! proxy; if one runs, the problems that it reports for these Services and for the node are printed too.

mod connect;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::io::Errno;
use serde::Serialize;

use super::CommandOutcome;
use super::output::{Cell, Column, Format, FormatArgs, Output, Table, Tone};
use super::running::{Problem, RunningArgs};
use super::services::{self, Selection};
use super::tables::{FrontendView, View};
use component::config::GoDuration;
use connect::{Outcome, Target};
use rules::model::{Destination, Family, Protocol};

/// The most addresses that are asked without `--all`.
const MOST: usize = 256;

const EXAMPLES: &str = "\
Examples:
  kube-proxy probe shop/web               the frontends of a Service, and each endpoint
  kube-proxy probe shop/web:http          one port of it
  kube-proxy probe 10.96.0.10:53/udp      one frontend and its endpoints
  kube-proxy probe 30080 --timeout 3s     a node port, for slow networks
  kube-proxy probe -n shop web api -o json

The packets have an address of this node as their source; a network policy may treat those of pods otherwise. TCP and SCTP connections are
closed without data. UDP gets one datagram; a server that does not understand it may be silent.

Exit codes: 0 all answer; 1 one does not, or a problem is printed; 2 could not look, no such Service, nothing to ask, or nothing failed and
something cannot be told: UDP was silent, or the kernel lacks the protocol.";

/// Ask each endpoint of a Service from this node whether it answers, and how fast
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("names", |names| names.required(true)))]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// How long to wait for each answer, such as 500ms or 3s, at most 1m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time_limit)]
    timeout: Duration,
    /// Ask all addresses, and not only the first 256
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: FormatArgs,
    #[command(flatten)]
    running: RunningArgs,
}

fn time_limit(text: &str) -> Result<Duration, String> {
    let time = text.parse::<GoDuration>().map_err(|error| error.to_string())?.to_std();
    let fits = |time: &Duration| (Duration::from_millis(1)..=Duration::from_secs(60)).contains(time);
    time.filter(fits).ok_or_else(|| "expected a time from 1ms to 1m".to_owned())
}

/// Asks, and prints who answers.
///
/// # Errors
/// When the kernel's tables cannot be read or have nothing with one of the names; when there is no address to ask; or when nothing is wrong
/// but some answers are unknown, because UDP is silent or the kernel lacks the protocol.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let (view, problems) = services::named(&args.selection, args.running)?;
    let asked = what_to_ask(&view);
    // Each target is asked once, however many Services have it: a server with a short backlog may drop some of several connections at once.
    let mut known = HashSet::new();
    let mut targets: Vec<Target> = asked.iter().map(|asked| asked.target).filter(|one| known.insert(*one)).collect();
    let left_out = if args.all { 0 } else { targets.len().saturating_sub(MOST) };
    targets.truncate(targets.len() - left_out);
    let outcomes = connect::ask_all(&targets, args.timeout);
    let outcomes: HashMap<Target, Outcome> = targets.into_iter().zip(outcomes).collect();
    let answered = asked.iter().filter_map(|asked| Some((asked, outcomes.get(&asked.target)?)));
    let results: Vec<Answer<'_>> = answered.map(|(asked, outcome)| Answer::of(asked, outcome, args.timeout)).collect();
    let report = Report { probes: &results, not_asked: left_out, problems: &problems };
    match args.output.format {
        format @ (Format::Json | Format::Yaml) => out.value(format, &report)?,
        format @ (Format::Table | Format::Wide) => report.print(format == Format::Wide, out)?,
    }
    out.flush()?;
    let count = |kind| results.iter().filter(|answer| answer.result == kind).count();
    match count(Kind::Answers) + count(Kind::Unknown) {
        fine if fine < results.len() || !problems.is_empty() => Ok(CommandOutcome::Found),
        0 => bail!("cannot ask anything: no address of this node accepts node ports, and there is no endpoint"),
        _ if count(Kind::Unknown) > 0 => bail!("cannot tell of {} whether it works", count(Kind::Unknown)),
        _ => Ok(CommandOutcome::Fine),
    }
}

struct Asked {
    service: Option<Arc<str>>,
    role: Role,
    target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Role {
    Frontend,
    NodePort,
    Endpoint,
    LocalEndpoint,
}

/// Lists the addresses to ask: for each service port its frontends, then its endpoints without duplicates.
fn what_to_ask(view: &View) -> Vec<Asked> {
    let ports = view.frontends.chunk_by(|a, b| a.service == b.service);
    let of_port = |frontends: &[FrontendView]| {
        let service = frontends.first().and_then(|frontend| frontend.service.clone());
        let endpoints = frontends.iter().flat_map(|frontend| {
            let target = |address| Target { protocol: frontend.frontend.protocol, address };
            frontend.endpoints.iter().map(move |endpoint| (target(endpoint.address), endpoint.local))
        });
        let endpoints: BTreeSet<(Target, bool)> = endpoints.collect();
        let role = |local| if local { Role::LocalEndpoint } else { Role::Endpoint };
        let endpoints = endpoints.into_iter().map(|(target, local)| (role(local), target));
        let frontends = frontends.iter().filter_map(|frontend| frontend_target(view, frontend));
        let asked = |(role, target)| Asked { service: service.clone(), role, target };
        frontends.chain(endpoints).map(asked).collect::<Vec<_>>()
    };
    ports.flat_map(of_port).collect()
}

/// The address at which a frontend is asked. For a node port it is an address of this node that accepts node ports; `None` if there is none.
fn frontend_target(view: &View, FrontendView { frontend, .. }: &FrontendView) -> Option<(Role, Target)> {
    let (role, ip) = match frontend.destination {
        Destination::Address(ip) => (Role::Frontend, ip),
        Destination::NodePort(family) => {
            (Role::NodePort, *view.node_addresses.iter().find(|ip| Family::of(**ip) == family)?)
        }
    };
    Some((role, Target { protocol: frontend.protocol, address: SocketAddr::new(ip, frontend.port) }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Answers,
    Refused,
    NoAnswer,
    NoRoute,
    Failed,
    /// Silent UDP, or a protocol that this kernel does not have.
    Unknown,
}

/// The answer of one address.
#[derive(Serialize)]
struct Answer<'a> {
    service: Option<&'a str>,
    role: Role,
    address: SocketAddr,
    protocol: &'static str,
    result: Kind,
    text: String,
    seconds: Option<f64>,
    source: Option<std::net::IpAddr>,
}

impl<'a> Answer<'a> {
    fn of(asked: &'a Asked, outcome: &Outcome, patience: Duration) -> Self {
        let Target { address, protocol } = asked.target;
        let (result, text) = match outcome.answer {
            Ok(time) => (Kind::Answers, format!("answers in {:.1} ms", time.as_secs_f64() * 1e3)),
            Err(Errno::CONNREFUSED) if protocol == Protocol::Udp => (Kind::Refused, "unreachable port".to_owned()),
            Err(Errno::CONNREFUSED) => (Kind::Refused, "refused".to_owned()),
            Err(Errno::TIMEDOUT) if protocol == Protocol::Udp => {
                (Kind::Unknown, "no answer (UDP may be silent)".to_owned())
            }
            Err(Errno::TIMEDOUT) => (Kind::NoAnswer, format!("no answer within {patience:?}")),
            // A blackhole route gives EINVAL.
            Err(Errno::NETUNREACH | Errno::INVAL) => (Kind::NoRoute, "no route".to_owned()),
            Err(Errno::HOSTUNREACH) => (Kind::NoRoute, "host unreachable".to_owned()),
            Err(Errno::ACCESS | Errno::PERM) => (Kind::Failed, "forbidden by a rule or a route".to_owned()),
            Err(Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT) => {
                (Kind::Unknown, format!("this kernel has no {}", protocol.api_name()))
            }
            Err(error) => (Kind::Failed, std::io::Error::from(error).to_string()),
        };
        let seconds = outcome.answer.ok().map(|time| time.as_secs_f64());
        let (service, protocol) = (asked.service.as_deref(), protocol.api_name());
        Self { service, role: asked.role, address, protocol, result, text, seconds, source: outcome.source }
    }

    fn is_frontend(&self) -> bool {
        matches!(self.role, Role::Frontend | Role::NodePort)
    }

    fn row(&self, is_wide: bool) -> Vec<Cell> {
        let name = match self.role {
            Role::Frontend | Role::NodePort => self.service.unwrap_or("-"),
            Role::Endpoint => "  endpoint",
            Role::LocalEndpoint => "  endpoint, local",
        };
        let tone = match self.result {
            Kind::Answers => Tone::Good,
            Kind::Unknown => Tone::Warning,
            _ => Tone::Bad,
        };
        let address = format!("{}/{}", self.address, self.protocol);
        let mut row = vec![Cell::from(name), Cell::from(address), Cell::new(tone, &self.text)];
        row.extend(self.source.filter(|_| is_wide).map(Cell::from));
        row
    }
}

/// The document of `-o json` and `-o yaml`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    probes: &'a [Answer<'a>],
    not_asked: usize,
    problems: &'a [Problem],
}

impl Report<'_> {
    fn print(&self, is_wide: bool, out: &mut Output<'_>) -> Result<()> {
        let mut columns = vec![Column::text("SERVICE"), Column::text("ADDRESS"), Column::text("RESULT")];
        columns.extend(is_wide.then(|| Column::text("FROM")));
        let mut table = Table::new(columns);
        self.probes.iter().for_each(|answer| table.row(answer.row(is_wide)));
        out.table(&table)?;
        let count = |is_frontend: bool| {
            let of = || self.probes.iter().filter(move |answer| answer.is_frontend() == is_frontend);
            (of().filter(|answer| answer.result == Kind::Answers).count(), of().count())
        };
        let ((frontends, all_frontends), (endpoints, all_endpoints)) = (count(true), count(false));
        out.text(format_args!(
            "{frontends} of {all_frontends} frontends and {endpoints} of {all_endpoints} endpoints answer\n"
        ))?;
        if self.not_asked > 0 {
            out.text(format_args!("{} more addresses were not asked: --all asks them\n", self.not_asked))?;
        }
        self.problems.iter().try_for_each(|problem| out.problem(&problem.text))
    }
}

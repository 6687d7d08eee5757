//! `kube-proxy trace`: shows in words what the rules do with real packets, from the kernel's nftrace reports.
//!
//! ```text
//! Mark (a table of its own) ──► the kernel's reports ──► Packets (by number) ──► story::tell ──► words, JSON
//!                                                          rules, interfaces ──────┘
//! ```
//!
//! The only command of this crate that changes something in the kernel: it creates one table, which the kernel removes when the command ends.
//! It needs neither the proxy's lock nor a running proxy. Invariant: memory is bounded by `PACKETS` packets in progress with `REPORTS`
//! reports each, and by the rules of `CHAINS` chains.

mod mark;
mod story;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nft::decode::{RuleHead, Traced};
use nft::machine::{Link, Packet};
use nft::{Connection, Family, RuleDump, TableName};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::CommandOutcome;
use super::explain::kernel::{Live, ThisHost};
use super::explain::place::{self, FromArg, Pair, ToArg};
use super::explain::{Explanation, Known, Target, Verdict, correct, is_dormant, listener, owner, owner_of_node_port};
use super::output::{Format, FormatArgs, Output, Tone};
use super::running::{Problem, RunningArgs};
use component::config::GoDuration;
use component::logging::escaped;
use mark::Mark;
use node::kernel::connections::{Connection as Tracked, Ends};
use node::kernel::{find_connection, iptables};
use rules::ruleset::names;
use story::{Book, Story, tell};

/// A packet without a report for this time counts as through its last chain, and its story is printed.
const SILENCE: Duration = Duration::from_millis(300);
/// The longest wait for reports; after it, `run` checks for signals and whether the time of `--for` has passed.
const SLICE: Duration = Duration::from_millis(100);
/// The most packets in progress, that is, of which more reports may come.
const PACKETS: usize = 256;
/// The most reports of a packet that are kept.
const REPORTS: usize = 1024;
/// The most chains whose rules are remembered.
const CHAINS: usize = 256;
/// How long the problems of the running proxy count as fresh: for the first packet after that, the trace asks it again.
const PROBLEMS_LAST: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  The first packets of the next 10 connections of a pod to the DNS Service:
    kube-proxy trace --from 10.244.1.5 --to kube-system/kube-dns:dns
  One connection of a client outside, with the rules in nft's words:
    kube-proxy trace --from 203.0.113.7 --to 192.0.2.10:443 --count 1 -o wide
  All packets of five seconds, a JSON document each:
    kube-proxy trace --from 10.244.1.5 --to 10.96.0.1:443 --all --for 5s -o json

Traces packets from --from to --to, not the answers: of those that arrive, and
of those that this host sends, the first 20 and then at most 20 a second.
Later packets of a connection meet no translating rule and go where its first
one went. Without --all, of other protocols than TCP only packets are seen that
no rule drops before connection tracking (priority -200).
The table for the mark, kube-proxy-trace-PID, is gone with this process.
Needs CAP_NET_ADMIN and kernel 5.12 or newer.

Exit codes: 0 packets came, and all were translated or passed; 1 one was
refused or dropped, or none came, or something is wrong with the node, such as a
Service that is left out; 2 could not look.";

/// Show what the rules do with real packets, live
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the packets come from: IP, or NAMESPACE/POD
    #[arg(long, value_name = "IP|POD")]
    from: FromArg,
    /// Where they go: IP:PORT, with /udp or /sctp if it is not tcp; IP/icmp; or NAMESPACE/NAME[:PORT] of a Service
    #[arg(long, value_name = "IP:PORT|SERVICE")]
    to: ToArg,
    /// Show all packets, and not only the first one of each connection
    #[arg(long)]
    all: bool,
    /// End after so many packets were shown
    #[arg(long, default_value_t = 10, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// End after this time
    #[arg(long = "for", default_value = "30s", value_name = "DURATION")]
    time: GoDuration,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    running: RunningArgs,
}

/// Runs the command.
///
/// # Errors
/// When the arguments do not fit together, the table cannot be created, or the kernel cannot be read.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let Pair { source, target: to, service, .. } = place::resolve(&args.from, &args.to, args.running)?;
    if source.port.is_some() {
        bail!("--from takes an address without a port: each connection has another one");
    }
    let Some(time) = args.time.to_std().filter(|time| !time.is_zero()) else { bail!("--for must be more than 0s") };
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), 1)?;
    }
    let mut shelf = ListedRules::open(to, service, args.running)?;
    let mut mark = Mark::set(source, to, args.all)?;
    let what = if args.all { "packets" } else { "first packets of connections" };
    eprintln!("tracing in table {}, for {time:?} or {} {what}", mark.table, args.count);
    let (end, mut packets) = (Instant::now() + time, Packets::default());
    let (mut told, mut wrong, mut lost) = (0, false, false);
    while told < args.count {
        let ended = Instant::now() >= end || signal.load(Ordering::Acquire) != 0;
        let reports = mark.reports(if ended { Duration::ZERO } else { SLICE })?;
        lost |= reports.lost;
        let now = Instant::now();
        reports.traced.into_iter().for_each(|report| packets.add(report, &mark.table, now));
        let silence = if ended { Duration::ZERO } else { SILENCE };
        for reports in packets.silent(now, silence) {
            let Some(story) = tell(&reports, &mark.table, &mut shelf) else { continue };
            wrong |= story.is_wrong || matches!(story.verdict, Verdict::Refused | Verdict::Dropped);
            print(&story, args.format.format, out)?;
            told += 1;
            if told == args.count {
                break;
            }
        }
        if ended {
            break;
        }
    }
    if lost {
        eprintln!("some reports were lost, because there were more than fit into the buffer");
    }
    if told == 0 {
        let (kind, hint) =
            if args.all { ("", "") } else { ("first ", "; --all shows those of earlier connections too") };
        eprintln!("no {kind}packet from {} to {} came by{hint}", source.address, target(to));
    }
    Ok(if told == 0 || wrong { CommandOutcome::Found } else { CommandOutcome::Fine })
}

fn target(to: Target) -> String {
    if to.port == 0 { to.address.to_string() } else { SocketAddr::new(to.address, to.port).to_string() }
}

/// Prints the story of a packet as a paragraph, or as a JSON or YAML document.
fn print(story: &Story, format: Format, out: &mut Output<'_>) -> Result<()> {
    if matches!(format, Format::Json | Format::Yaml) {
        if format == Format::Yaml {
            out.text("---\n")?;
        }
        out.value(format, story)?;
        return out.flush();
    }
    let flags = story.flags.as_ref().map_or_else(String::new, |flags| format!(" {flags}"));
    let arrival = story.interface.as_ref().map_or_else(|| "from this host".to_owned(), |name| format!("in at {name}"));
    let (tone, verdict) = match (story.verdict, story.endpoint) {
        (Verdict::Translated, Some(to)) => (Tone::Good, format!("translated to {to}")),
        (Verdict::Refused, to) => (Tone::Bad, format!("refused{}", on_the_way(to))),
        (Verdict::Dropped, to) => (Tone::Bad, format!("dropped{}", on_the_way(to))),
        (Verdict::Proxied, _) => (Tone::Good, "passed to kube-proxy".to_owned()),
        _ => (Tone::Warning, "passed unchanged".to_owned()),
    };
    let masquerade = if story.masquerade { ", masqueraded" } else { "" };
    let verdict = out.styled(tone, format!("{verdict}{masquerade}"));
    let protocol = story.protocol.to_uppercase();
    let service = story.service.as_ref().map_or_else(String::new, |service| format!(" ({})", escaped(service)));
    let line = format!("{} -> {} {protocol}{flags}, {}: {verdict}{service}", story.from, story.to, escaped(&arrival));
    out.line(line, 2)?;
    out.line(format_args!("  {}.", escaped(&story.reason)), 2)?;
    for warning in &story.warnings {
        let word = out.styled(Tone::Warning, "warning");
        out.line(format_args!("  {word}: {}", escaped(warning)), 4)?;
    }
    for step in &story.steps {
        if step.text != story.reason {
            out.line(format_args!("  - {}", escaped(&step.text)), 4)?;
        }
        if format == Format::Wide {
            out.text(format_args!(
                "      {} {}: {}\n",
                escaped(&step.table),
                escaped(&step.chain),
                escaped(&step.rule)
            ))?;
        }
    }
    out.text("\n")?;
    out.flush()
}

fn on_the_way(to: Option<SocketAddr>) -> String {
    to.map_or_else(String::new, |to| format!(" on the way to {to}"))
}

/// The reports of packets in progress, the oldest packet first. Each packet's reports are in the kernel's order.
#[derive(Default)]
struct Packets {
    open: VecDeque<Open>,
}

struct Open {
    reports: Vec<Traced>,
    last: Instant,
    /// Whether a later packet has the trace number of this one, so that no more reports of this one can come.
    is_over: bool,
}

impl Packets {
    /// Takes a report. Only packets that our table `own` marks are kept.
    fn add(&mut self, report: Traced, own: &TableName, now: Instant) {
        let is_it = |open: &&mut Open| !open.is_over && open.reports[0].packet == report.packet;
        let known = self.open.iter_mut().find(is_it);
        if mark::is_first(&report, own) && report.headers.is_some() {
            // The kernel has used the number again, for example because the packet was sent again.
            known.into_iter().for_each(|open| open.is_over = true);
            if self.open.len() < PACKETS {
                self.open.push_back(Open { reports: vec![report], last: now, is_over: false });
            }
        } else if let Some(open) = known {
            open.last = now;
            if open.reports.len() < REPORTS {
                open.reports.push(report);
            }
        }
    }

    /// Removes and returns the finished packets: no report came for `silence`, or none can come. Oldest first, up to the first one in
    /// progress.
    fn silent(&mut self, now: Instant, silence: Duration) -> Vec<Vec<Traced>> {
        let is_silent = |open: &Open| open.is_over || now.saturating_duration_since(open.last) >= silence;
        let count = self.open.iter().take_while(|open| is_silent(open)).count();
        self.open.drain(..count).map(|open| open.reports).collect()
    }
}

/// Looks rules, interfaces, Services and connections up in the kernel, with a cache of rules, and asks the running proxy for problems.
struct ListedRules {
    connection: Connection,
    host: ThisHost,
    /// The proxy's table.
    table: TableName,
    generation: u32,
    rules: HashMap<(TableName, String), Vec<RuleHead>>,
    /// The Service that the user named.
    asked: Option<String>,
    running: RunningArgs,
    problems: Vec<Problem>,
    /// When the proxy was asked for problems.
    problems_at: Instant,
    /// The tables of iptables-legacy that a packet may meet, in words; the kernel reports nothing of them.
    unreported: Option<String>,
}

impl ListedRules {
    fn open(to: Target, asked: Option<String>, running: RunningArgs) -> Result<Self> {
        let family = if to.address.is_ipv4() { Family::Ip } else { Family::Ip6 };
        let (connection, host) = (Connection::open()?, ThisHost::open()?);
        let table = TableName::new(family, names::TABLE);
        let (generation, rules) = (0, HashMap::new());
        let (problems, problems_at) = (running.problems().unwrap_or_default(), Instant::now());
        let unreported = unreported(family);
        Ok(Self { connection, host, table, generation, rules, asked, running, problems, problems_at, unreported })
    }

    fn try_correct(&mut self, packet: &Packet, explanation: &mut Explanation) -> Result<()> {
        if self.problems_at.elapsed() > PROBLEMS_LAST {
            self.problems = self.running.problems().unwrap_or_default();
            self.problems_at = Instant::now();
        }
        let mut live = Live::new(&mut self.connection, self.table.family);
        let is_dormant = is_dormant(&live.tables()?, &self.table).unwrap_or_default();
        let (table, problems, asked) = (&self.table, &self.problems[..], self.asked.as_deref());
        let known = Known { table, is_dormant, problems, asked };
        explanation.warnings.extend(self.unreported.clone());
        correct(explanation, packet, known, (&mut live, &mut self.host), listener)
    }
}

/// The warning that the kernel reports nothing of tables of iptables-legacy, which may stop or change the packet after what it reports.
fn unreported(family: Family) -> Option<String> {
    let (chains, unread) = iptables::chains(family);
    let met = chains.iter().filter(|chain| chain.is_met()).map(|chain| format!("table {}", chain.head.table));
    let mut tables: Vec<String> = met.collect();
    tables.dedup();
    tables.extend(unread);
    (!tables.is_empty()).then(|| {
        format!(
            "the kernel reports nothing of rules of iptables-legacy, which may stop or change the packet as well ({}): `kube-proxy explain` \
             evaluates them",
            tables.join(", ")
        )
    })
}

impl Book for ListedRules {
    /// Does not find a rule that was replaced after the packet met it; the story then has only the verdict of the rule.
    fn rule(&mut self, table: &TableName, chain: &str, handle: u64) -> Option<RuleDump> {
        let generation = self.connection.generation().ok()?;
        if generation != self.generation || self.rules.len() >= CHAINS {
            self.rules.clear();
            self.generation = generation;
        }
        let key = (table.clone(), chain.to_owned());
        if !self.rules.contains_key(&key) {
            self.rules.insert(key.clone(), self.connection.rules(table, chain).ok()?);
        }
        let rule = self.rules[&key].iter().find(|rule| rule.handle == handle)?;
        Some(rule.rule.clone())
    }

    fn interface(&mut self, index: u32) -> Link {
        self.host.link(Some(index))
    }

    fn service(&mut self, packet: &Packet, is_node_port: bool) -> Option<String> {
        let find = if is_node_port { owner_of_node_port } else { owner };
        find(packet, &self.table, &mut Live::new(&mut self.connection, self.table.family)).ok().flatten()
    }

    fn correct(&mut self, packet: &Packet, explanation: &mut Explanation) {
        if let Err(error) = self.try_correct(packet, explanation) {
            explanation.warnings.push(format!("cannot look for what the rules do not show: {error:#}"));
        }
    }

    fn connection(&mut self, packet: &Packet) -> Option<Tracked> {
        let ends = Ends { source: SocketAddr::new(packet.source, packet.source_port?), destination: packet.target() };
        find_connection(packet.protocol, ends).ok().flatten()
    }
}

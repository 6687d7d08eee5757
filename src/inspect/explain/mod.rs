//! `kube-proxy explain`: predicts what the rules in the kernel do with a packet: with the first packet of a connection, or, if `--from`
//! has the source port of a tracked connection, with the next packet of that connection.
//!
//! ```text
//! --from, --to ─► place ─► packet ─► nft::machine ─► branches ─► verdict ─► words, JSON
//!                                       ▲
//!                                       │ routes, rules, elements        kernel: reads what the packet meets
//! ```
//!
//! Takes addresses or names; returns an [`Explanation`]. Interprets the rules as the kernel lists them, also those of other programs. It does not
//! know which rules the proxy meant to write, so that a change by another program shows. `verdict` and `words` are pure;
//! `kernel` reads; `offline` has the tables of manifests in place of the kernel's. Invariant: nothing is guessed. When a
//! rule cannot be evaluated, the packet is followed both as if the rule matched and as if it did not match; if the outcomes differ, the
//! verdict is `unknown`.

mod around;
pub(crate) mod drawing;
mod expectation;
pub(crate) mod kernel;
mod localhost;
mod network;
mod offline;
pub(crate) mod place;
pub(crate) mod print;
pub(crate) mod verdict;
pub(crate) mod words;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Error, Result, bail};
use nft::decode::TableHead;
use nft::machine::{self, Host as _, Known as Tracked, Link, Packet};
use nft::{Connection, Family, ReadError, TableName};

use crate::CommandOutcome;
use crate::names;
use crate::output::{Format, Output};
use crate::running::{Problem, RunningArgs, no_rules};
use component::config::ManifestArgs;
use expectation::Expectation;
use kernel::{Live, ThisHost};
use node::kernel::connections::{Ends, Phase};
use node::kernel::{find_connection, iptables, routes};
use place::{FromArg, Pair, ToArg};
use rules::ruleset::names::TABLE;

pub(crate) use around::{Known, correct, owner, owner_of_node_port};
pub(crate) use localhost::listener;
pub use offline::ManifestNode;
pub(crate) use place::{Source, Target};
pub use verdict::{EffectiveRule, Endpoint, Explanation, Verdict};

const EXAMPLES: &str = "\
Examples:
  kube-proxy explain --from 203.0.113.7 --to 192.0.2.10:443
  kube-proxy explain --from 10.244.1.5 --to 10.96.0.10:53/udp -o wide
  kube-proxy explain --from shop/web-abc12 --to kube-system/kube-dns:dns
  kube-proxy explain --from 10.244.1.5 --to 10.96.0.10/icmp
  kube-proxy explain --from 10.244.1.5 --to shop/web -o svg > way.svg
  helm template . | kube-proxy explain --manifests - --from 203.0.113.7 \\
    --to shop/admin --expect dropped

Exit codes: 0 the packet is translated, or passes; 1 it is dropped or refused,
or that cannot be told, or only some endpoints can be reached, or something is
wrong with the node; 2 could not look, or no kube-proxy has written rules.";

/// Tell what becomes of a packet, by the rules in the kernel, and why
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the packet comes from: an address, with a port for a tracked connection, or NAMESPACE/POD
    #[arg(long, value_name = "IP|POD")]
    from: FromArg,
    /// Where it goes: IP:PORT[/udp|/sctp], IP/icmp, or NAMESPACE/NAME[:PORT] of a Service or a pod
    #[arg(long, value_name = "IP:PORT|SERVICE")]
    to: ToArg,
    /// The interface at which it arrives [default: the one towards --from]
    #[arg(long, value_name = "NAME")]
    iface: Option<String>,
    /// Exit with 0 only if the verdict is one of these: translated, partly, refused, dropped, passed, proxied, unknown
    #[arg(long, value_name = "VERDICT[:SERVICE]", value_delimiter = ',')]
    expect: Vec<Expectation>,
    /// The manifests to explain the packet by, if not by the kernel's tables
    #[command(flatten)]
    pub from_manifests: ManifestArgs,
    /// The form of the output; svg is a drawing of the packet's way
    #[arg(short = 'o', long = "output", value_enum, default_value_t, value_name = "FORMAT")]
    form: Form,
    #[command(flatten)]
    running: RunningArgs,
}

/// The forms of the output: those of all commands, and a drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Svg,
}

/// The JSON form of an answer.
#[derive(serde::Serialize)]
struct Answer<'a> {
    from: String,
    to: String,
    #[serde(flatten)]
    explanation: &'a Explanation,
}

/// Explains a packet.
///
/// # Errors
/// When the addresses of a name cannot be found, the rules, routes or interfaces cannot be read, or the arguments contradict each other or do
/// not fit this host.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let pair = place::resolve(&args.from, &args.to, args.running)?;
    let iface = args.iface.as_deref();
    let problems = args.running.problems().unwrap_or_default();
    let (packet, explanation) = answer(&pair, iface, &problems).map_err(crate::explain_rights)?;
    tell(args, (&packet, pair.pod.as_deref()), &explanation, out)
}

/// Explains a packet by tables that are not in a kernel.
///
/// # Errors
/// When the arguments contradict each other or do not fit the node.
pub fn run_offline(args: &Args, node: &ManifestNode, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let pair = offline::resolve(&args.from, &args.to, node)?;
    let (packet, explanation) = offline::answer(&pair, args.iface.as_deref(), node)?;
    tell(args, (&packet, pair.pod.as_deref()), &explanation, out)
}

/// Prints an explanation. Returns `Found` when it is not certain that the packet gets through, or something is wrong with the node; with
/// `--expect`, when the verdict is not an expected one.
fn tell(
    args: &Args,
    (packet, pod): (&Packet, Option<&str>),
    explanation: &Explanation,
    out: &mut Output<'_>,
) -> Result<CommandOutcome> {
    match args.form {
        Form::Json | Form::Yaml => {
            let (from, to) = (words::source(packet), words::target(packet));
            let format = if args.form == Form::Yaml { Format::Yaml } else { Format::Json };
            out.value(format, &Answer { from, to, explanation })?;
        }
        Form::Svg => out.text(drawing::file(packet, pod, explanation))?,
        form => print::print(out, packet, pod, explanation, form == Form::Wide)?,
    }
    if !args.expect.is_empty() {
        let is_met = args.expect.iter().any(|expected| expected.is_met(explanation));
        return Ok(if is_met { CommandOutcome::Fine } else { CommandOutcome::Found });
    }
    Ok(match explanation.verdict {
        _ if explanation.is_wrong => CommandOutcome::Found,
        Verdict::Translated | Verdict::Passed | Verdict::Proxied => CommandOutcome::Fine,
        Verdict::Partly | Verdict::Refused | Verdict::Dropped | Verdict::Unknown => CommandOutcome::Found,
    })
}

/// Explains a packet in the network namespace of the calling thread. `from`, `to` and `iface` have the syntax of the command's arguments;
/// names of Services and pods are not accepted.
///
/// # Errors
/// As for [`run`].
pub fn explain(from: &str, to: &str, iface: Option<&str>) -> Result<Explanation> {
    let (from, to) = (from.parse().map_err(Error::msg)?, to.parse().map_err(Error::msg)?);
    let pair = place::pair(&[from], &[to])?;
    answer(&pair, iface, &[]).map(|(_, explanation)| explanation)
}

/// The family of a packet from this address.
fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// How often the rules are read again, at most, when they change during the evaluation.
const TRIES: usize = 5;

/// Explains a packet between two addresses of one family.
pub(crate) fn answer(pair: &Pair, iface: Option<&str>, problems: &[Problem]) -> Result<(Packet, Explanation)> {
    let mut host = ThisHost::open()?;
    let is_own = host.address_type(pair.source.address) == routes::LOCAL;
    let packet = first_packet(pair, input(pair.source.address, iface, is_own, &mut host)?);
    let mut connection = Connection::open()?;
    let family = family(pair.source.address);
    let (tracked, asked) = (tracked(&packet)?, pair.service.as_deref());
    let mut changes = 0;
    loop {
        let mut live = Live::new(&mut connection, family);
        let before = live.generation()?;
        let mut explanation = evaluate(&packet, is_own, tracked, (problems, asked), &mut live, &mut host)?;
        if live.generation()? == before || changes == TRIES {
            if changes == TRIES {
                let text =
                    "the rules changed while they were read, each time; parts of the answer may be older than others";
                explanation.warnings.push(text.to_owned());
            }
            return Ok((packet, explanation));
        }
        changes += 1;
    }
}

fn first_packet(Pair { source: from, target: to, .. }: &Pair, input: Link) -> Packet {
    Packet::new((from.address, from.port), SocketAddr::new(to.address, to.port), to.protocol, input)
}

/// The tracked connection that the packet belongs to, if its source port is given. `None` when there is none, and when it has ended: the packet
/// then begins a new one.
fn tracked(packet: &Packet) -> Result<Option<Tracked>> {
    let Some(port) = packet.source_port.filter(|_| packet.has_ports()) else { return Ok(None) };
    let ends = Ends { source: SocketAddr::new(packet.source, port), destination: packet.target() };
    let found = find_connection(packet.protocol, ends).context("cannot ask the kernel for a tracked connection")?;
    Ok(found.filter(|found| found.original == ends && found.phase != Phase::Ended).map(|found| Tracked {
        to: found.reply.source,
        source: found.reply.destination.ip(),
        status: found.status,
        answered: found.phase == Phase::Open,
    }))
}

fn arrives_nowhere(source: IpAddr, name: &str) -> String {
    format!("{source} is an address of this host, so the packet arrives at no interface: leave out --iface {name}")
}

/// The interface at which the packet arrives.
fn input(source: IpAddr, iface: Option<&str>, is_own: bool, host: &mut ThisHost) -> Result<Link> {
    match iface {
        Some(name) if is_own => bail!(arrives_nowhere(source, name)),
        Some(name) => host.interface(name).ok_or_else(|| {
            let known: Vec<&str> = host.names().map(|name| &**name).collect();
            names::unknown(&format!("this host has no interface {name}"), name, known.into_iter())
        }),
        None if is_own => Ok(Link::None),
        None => Ok(host.towards(source)),
    }
}

fn evaluate(
    packet: &Packet,
    is_own: bool,
    tracked: Option<Tracked>,
    (problems, asked): (&[Problem], Option<&str>),
    live: &mut Live<'_>,
    host: &mut ThisHost,
) -> Result<Explanation> {
    let family = family(packet.source);
    let table = TableName::new(family, TABLE);
    let tables = live.tables()?;
    let is_dormant = is_dormant(&tables, &table).ok_or_else(|| no_rules(&format!("table {table}")))?;
    let owner = around::owner(packet, &table, live)?;
    let explain = |live: &mut Live<'_>, host: &mut ThisHost| {
        let walk = machine::walk(packet.clone(), tracked, live, host)?;
        let mut explanation = verdict::explain(&walk, packet, owner.as_deref());
        network::add(&mut explanation, &walk, host);
        Ok::<_, ReadError>(explanation)
    };
    let (legacy, unread) = iptables::chains(family);
    let is_met = live.add_legacy(legacy);
    let mut explanation = explain(live, host)?;
    if is_met {
        live.set_legacy_is_older(false);
        explanation = Explanation::in_either_order(explanation, explain(live, host)?);
    }
    let unread = unread.into_iter().map(|text| format!("{text}; its rules are not evaluated"));
    explanation.warnings.extend(around::beyond(&tables).into_iter().chain(unread));
    let known = Known { table: &table, is_dormant, problems, asked };
    correct(&mut explanation, packet, known, (&mut *live, &mut *host), listener)?;
    if !is_own && packet.input == Link::Unknown {
        let text = format!("no route leads to {}: give --iface, if rules look at the interface", packet.source);
        explanation.warnings.push(text);
    }
    Ok(explanation)
}

/// Whether a table is dormant; `None` when there is no such table.
pub(crate) fn is_dormant(tables: &[TableHead], table: &TableName) -> Option<bool> {
    let is_it = |known: &&TableHead| (known.family, &known.name) == (table.family.number(), &table.name);
    tables.iter().find(is_it).map(|table| table.dormant)
}

//! Makes a story from the kernel's reports about one packet: its outcome, and the rules that had an effect, in words.
//!
//! Takes the reports in their order, and a [`Book`] that looks up what they name; returns a [`Story`]. `explain` and `trace` share their
//! sentences ([`sentence`]). The translated destination comes from the headers at the next chain or from connection tracking, not from the
//! rule.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nft::decode::{Event, Headers, Traced};
use nft::expr::{Expr, Foreign};
use nft::machine::{Effect, Link, Packet, protocol, protocol_name};
use nft::{RuleDump, TableName, Verdict as RuleVerdict};
use serde::Serialize;

use crate::explain::verdict::{passed, sent};
use crate::explain::words::{Seen, is_ours, program, sentence, source};
use crate::explain::{EffectiveRule, Explanation, Verdict};
use node::kernel::connections::Connection;
use rules::ruleset::names::chain;
use rules::ruleset::reading::address;

/// The outcome of a packet, with the reason and the rules that had an effect.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Story {
    /// Its source address, with the port if it has one.
    pub(super) from: String,
    pub(super) to: String,
    /// The protocol, such as `tcp`.
    pub(super) protocol: String,
    /// The TCP flags; `None` for other protocols.
    pub(super) flags: Option<String>,
    /// The interface at which it arrived; `None` if this host sent it, or the interface is unknown.
    pub(super) interface: Option<String>,
    pub(super) verdict: Verdict,
    /// The service port that it was sent to.
    pub(super) service: Option<String>,
    /// The translated destination; `None` if it was not translated.
    pub(super) endpoint: Option<SocketAddr>,
    /// Whether its source was translated.
    pub(super) masquerade: bool,
    pub(super) reason: String,
    pub(super) steps: Vec<EffectiveRule>,
    /// What is wrong with the node or with other Services.
    pub(super) warnings: Vec<String>,
    /// Whether the command exits with 1, whatever the verdict is.
    #[serde(skip)]
    pub(super) is_wrong: bool,
}

/// Looks up what a report only has a number for: rules by handle, interfaces by index. Also finds the Service and the connection of a
/// packet.
pub(super) trait Book {
    /// The rule with a handle; `None` when it is gone.
    fn rule(&mut self, table: &TableName, chain: &str, handle: u64) -> Option<RuleDump>;

    /// The name of an interface.
    fn interface(&mut self, index: u32) -> Link;

    /// The service port of the packet's destination, which is an address or a node port.
    fn service(&mut self, packet: &Packet, is_node_port: bool) -> Option<String>;

    /// The connection that the packet belongs to.
    fn connection(&mut self, packet: &Packet) -> Option<Connection>;

    /// Corrects an explanation made from the reports by facts that the reports do not show, as `explain` does.
    fn correct(&mut self, packet: &Packet, explanation: &mut Explanation);
}

/// Describes the outcome of a packet. From the reports of `own`, the table that sets `nftrace`, only the headers and the packet mark are
/// used. Returns `None` if no report has the packet's headers.
pub(super) fn tell(reports: &[Traced], own: &TableName, book: &mut impl Book) -> Option<Story> {
    let seen: Vec<Option<Packet>> = packets(reports, book);
    let first = seen.iter().flatten().next()?.clone();
    let last = seen.iter().flatten().next_back()?.clone();
    let is_node_port = reports.iter().any(|report| {
        let leads_to = report.verdict.as_ref().and_then(RuleVerdict::chain);
        leads_to.is_some_and(|chain| &**chain == chain::NODEPORTS)
    });
    let service = book.service(&first, is_node_port);
    let translated = (last.target() != first.target()).then(|| last.target());
    // The reports of a connection's first packet show its translation. For later packets the kernel may report no chain after the
    // translation, and never a chain that masquerades, so take the endpoint and the masquerading from connection tracking.
    let known = book.connection(&first);
    let moved = known.as_ref().map(|known| known.reply.source).filter(|answering| *answering != first.target());
    let endpoint = translated.or(moved);
    let is_masqueraded = |known: &Connection| known.reply.destination != known.original.source;
    let masquerade = endpoint.is_some() && known.as_ref().is_some_and(is_masqueraded);
    let (reasons, steps) = (Vec::new(), Vec::new());
    let mut telling = Telling { service, endpoint, by: None, verdict: None, reasons, masquerade, steps };
    let of_others: Vec<_> = reports.iter().zip(&seen).filter(|(report, _)| report.table != *own).collect();
    for (index, (report, packet)) in of_others.iter().enumerate() {
        let rule = match report.event {
            Event::Rule(handle) => book.rule(&report.table, &report.chain, handle),
            Event::Policy if report.verdict == Some(RuleVerdict::Drop) => None,
            Event::Return | Event::Policy => continue,
        };
        let goes_on = of_others.get(index + 1).is_some_and(|(next, _)| {
            let leads_to = report.verdict.as_ref().and_then(RuleVerdict::chain);
            next.table == report.table && leads_to == Some(&next.chain) && matches!(next.event, Event::Rule(_))
        });
        telling.add(report, rule.as_ref(), packet.as_ref().unwrap_or(&first), goes_on);
    }
    Some(telling.story(&first, reports, book))
}

/// The packet as it was at each report; `None` before the first report with headers that can be read.
fn packets(reports: &[Traced], book: &mut impl Book) -> Vec<Option<Packet>> {
    let mut now: Option<Packet> = None;
    let each = reports.iter().map(|report| {
        if let Some(packet) = report.headers.as_ref().and_then(|headers| packet(headers, book)) {
            now = Some(packet);
        }
        now.iter_mut().for_each(|packet| packet.mark = report.mark);
        now.clone()
    });
    each.collect()
}

/// Reads a packet from its headers.
fn packet(headers: &Headers, book: &mut impl Book) -> Option<Packet> {
    let network = &headers.network;
    let (source, destination, protocol): (IpAddr, IpAddr, u8) = match network.first()? >> 4 {
        4 => (address(network.get(12..16)?)?, address(network.get(16..20)?)?, *network.get(9)?),
        6 => (address(network.get(8..24)?)?, address(network.get(24..40)?)?, *network.get(6)?),
        _ => return None,
    };
    let mut link = |index: Option<u32>| index.map_or(Link::None, |index| book.interface(index));
    let (input, output) = (link(headers.input), link(headers.output));
    let packet = Packet { output, ..Packet::new((source, None), SocketAddr::new(destination, 0), protocol, input) };
    let port = |at: usize| Some(u16::from_be_bytes(headers.transport.get(at..at + 2)?.try_into().ok()?));
    let port = |at| packet.has_ports().then(|| port(at)).flatten();
    let (source_port, port) = (port(0), port(2).unwrap_or(0));
    Some(Packet { source_port, port, ..packet })
}

/// A story under construction, to which each report adds.
struct Telling {
    service: Option<String>,
    /// The endpoint that the packet goes to in the end.
    endpoint: Option<SocketAddr>,
    /// The program other than the proxy that translated it, in words.
    by: Option<String>,
    verdict: Option<Verdict>,
    reasons: Vec<String>,
    masquerade: bool,
    steps: Vec<EffectiveRule>,
}

impl Telling {
    fn add(&mut self, report: &Traced, rule: Option<&RuleDump>, packet: &Packet, goes_on: bool) {
        let effects = self.effects(report, rule);
        for effect in &effects {
            match effect {
                Effect::Refuse => self.verdict = Some(Verdict::Refused),
                Effect::Verdict(RuleVerdict::Drop) | Effect::Policy => {
                    self.verdict = self.verdict.or(Some(Verdict::Dropped));
                }
                Effect::Translate(_) if !is_ours(&report.table) => {
                    self.by = Some(program(&report.table, &report.chain));
                }
                _ => {}
            }
        }
        if effects.is_empty() || effects == [Effect::Verdict(RuleVerdict::Accept)] && is_by_state(rule) {
            return;
        }
        let seen = Seen {
            table: &report.table,
            chain: &report.chain,
            rule,
            effects: &effects,
            packet,
            service: self.service.as_deref(),
            endpoints: None,
            is_example: false,
            goes_on,
            is_translated: self.endpoint.is_some(),
        };
        let told = sentence(&seen);
        let is_translation = effects.iter().any(|effect| matches!(effect, Effect::Translate(_)));
        if told.is_reason && !(is_translation && self.by.is_some()) {
            self.reasons.push(told.text.clone());
        }
        self.masquerade |= effects.contains(&Effect::Masquerade);
        if self.steps.last().is_none_or(|last| last.text != told.text) {
            self.steps.push(EffectiveRule::of(&seen, &told, Vec::new()));
        }
    }

    /// The effects of a matching rule on the packet.
    fn effects(&self, report: &Traced, rule: Option<&RuleDump>) -> Vec<Effect> {
        if report.event == Event::Policy {
            return vec![Effect::Policy];
        }
        let mut effects: Vec<Effect> =
            rule.iter().flat_map(|rule| &rule.exprs).filter_map(|expr| self.effect(report, expr)).collect();
        let ends = effects.iter().any(|effect| {
            matches!(effect, Effect::Refuse | Effect::Translate(_) | Effect::Masquerade | Effect::SourceTo(_))
        });
        if !ends {
            effects.extend(report.verdict.clone().map(Effect::Verdict));
        }
        effects
    }

    fn effect(&self, report: &Traced, expr: &Expr) -> Option<Effect> {
        match expr {
            Expr::Nat { .. } => self.endpoint.map(Effect::Translate),
            Expr::Masquerade { .. } => Some(Effect::Masquerade),
            Expr::Reject(_) => Some(Effect::Refuse),
            Expr::MetaSet { key: nft::expr::MetaKey::Mark, .. } => Some(Effect::Mark(report.mark)),
            Expr::Dynset { set, .. } => Some(Effect::Remember(Arc::clone(set))),
            Expr::FlowOffload(_) => Some(Effect::Offload),
            Expr::Foreign(foreign) => match &**foreign {
                Foreign::Nat { of_destination: true, .. } | Foreign::Redirect { .. } => {
                    self.endpoint.map(Effect::Translate)
                }
                Foreign::Notrack => Some(Effect::Untrack),
                _ => None,
            },
            _ => None,
        }
    }

    fn story(self, first: &Packet, reports: &[Traced], book: &mut impl Book) -> Story {
        let verdict =
            self.verdict.unwrap_or(if self.endpoint.is_some() { Verdict::Translated } else { Verdict::Passed });
        let mut known = Explanation::new(verdict, self.service.clone(), self.reason(verdict, first));
        known.translated_before = self.by.zip(self.endpoint);
        book.correct(first, &mut known);
        Story {
            from: source(first),
            to: if first.has_ports() { first.target().to_string() } else { first.destination.to_string() },
            protocol: protocol_name(first.protocol),
            flags: flags(first, reports),
            interface: match &first.input {
                Link::Known(_, name) => Some(name.to_string()),
                Link::None | Link::Unknown => None,
            },
            verdict: known.verdict,
            service: known.service,
            endpoint: self.endpoint,
            masquerade: self.masquerade,
            reason: known.reason,
            steps: self.steps,
            warnings: known.warnings,
            is_wrong: known.is_wrong,
        }
    }

    /// The reason for the verdict, by the reports alone.
    fn reason(&self, verdict: Verdict, first: &Packet) -> String {
        let given = (!self.reasons.is_empty()).then(|| self.reasons.join("; "));
        let met_nat = || self.steps.iter().any(|step| step.rule.contains("dnat"));
        match (verdict, self.endpoint) {
            (Verdict::Refused | Verdict::Dropped, to) => {
                let by_rule = if verdict == Verdict::Refused { "a rule refused it" } else { "a rule dropped it" };
                let why = given.unwrap_or_else(|| by_rule.to_owned());
                let by = self.by.as_deref().or(self.service.as_deref());
                to.map_or_else(|| why.clone(), |to| sent(by, &to.to_string(), Some(&why)))
            }
            (_, Some(to)) => given.unwrap_or_else(|| match (&self.by, met_nat()) {
                (Some(by), _) => sent(Some(by), &to.to_string(), None),
                (None, true) => format!("sent to the endpoint {to}"),
                (None, false) => format!("its connection was given to {to} before"),
            }),
            (_, None) => given.unwrap_or_else(|| passed(self.service.as_deref(), first)),
        }
    }
}

/// Whether a rule looks at the connection's state. When such a rule accepts, that is not worth a step in the story.
fn is_by_state(rule: Option<&RuleDump>) -> bool {
    rule.is_some_and(|rule| rule.exprs.iter().any(|expr| matches!(expr, Expr::Ct { .. })))
}

/// The flags of a TCP packet, such as `SYN` or `PSH ACK`.
fn flags(first: &Packet, reports: &[Traced]) -> Option<String> {
    const NAMES: [&str; 5] = ["FIN", "SYN", "RST", "PSH", "ACK"];
    let headers = reports.iter().find_map(|report| report.headers.as_ref())?;
    let bits = headers.transport.get(13).filter(|_| first.protocol == protocol::TCP)?;
    let set = NAMES.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, name)| *name);
    Some(set.collect::<Vec<_>>().join(" "))
}

//! Makes a story from the kernel's reports about one packet: what became of it, and the rules that had an effect, in words.
//!
//! Pure: takes the reports in their order, and the rules that they name; returns a [`Story`]. `explain` and `trace` share their sentences
//! ([`sentence`]). Only what the kernel reports is printed: the translated destination comes from the headers at the next chain or from
//! connection tracking, not from the rule.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nft::decode::{Event, Headers, Traced};
use nft::expr::{Expr, Foreign};
use nft::machine::{Effect, Link, Packet, protocol, protocol_name};
use nft::{RuleDump, TableName, Verdict as RuleVerdict};
use serde::Serialize;

use crate::explain::words::{Seen, sentence, source};
use crate::explain::{EffectiveRule, Verdict};
use node::kernel::connections::Connection;
use rules::ruleset::names::chain;
use rules::ruleset::reading::address;

/// What became of a packet.
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
}

/// Describes what became of a packet. Uses only the headers of the reports of `own`, the table that sets `nftrace`. Returns `None` if no
/// report has the packet's headers.
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
    let mut telling = Telling { service, endpoint, verdict: None, reasons: Vec::new(), masquerade, steps: Vec::new() };
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
    Some(telling.story(&first, reports))
}

/// The packet as it was at each report.
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
        if told.is_reason {
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

    fn story(self, first: &Packet, reports: &[Traced]) -> Story {
        let verdict =
            self.verdict.unwrap_or(if self.endpoint.is_some() { Verdict::Translated } else { Verdict::Passed });
        let met_nat = self.steps.iter().any(|step| step.rule.contains("dnat"));
        let reason = match (self.reasons.is_empty(), verdict, self.endpoint) {
            (false, ..) => self.reasons.join("; "),
            (true, Verdict::Translated, Some(to)) if met_nat => format!("sent to the endpoint {to}"),
            (true, Verdict::Translated, Some(to)) => format!("its connection was given to {to} before"),
            (true, Verdict::Refused, _) => "a rule refused it".to_owned(),
            (true, Verdict::Dropped, _) => "a rule dropped it".to_owned(),
            _ => "no rule changed it or stopped it".to_owned(),
        };
        Story {
            from: source(first),
            to: if first.has_ports() { first.target().to_string() } else { first.destination.to_string() },
            protocol: protocol_name(first.protocol),
            flags: flags(first, reports),
            interface: match &first.input {
                Link::Known(_, name) => Some(name.to_string()),
                Link::None | Link::Unknown => None,
            },
            verdict,
            service: self.service,
            endpoint: self.endpoint,
            masquerade: self.masquerade,
            reason,
            steps: self.steps,
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

#[cfg(test)]
mod tests {
    use super::*;
    use nft::expr::{MetaKey, RejectWith};
    use nft::{Family, Statement};
    use node::kernel::connections::{Ends, Phase};

    /// Rules by handle: 1 goes to the chain `lb-1`, 2 translates, 3 masquerades, 4 refuses.
    struct ListedRules;

    impl Book for ListedRules {
        fn rule(&mut self, _: &TableName, _: &str, handle: u64) -> Option<RuleDump> {
            let exprs = match handle {
                1 => vec![Expr::ImmediateVerdict(RuleVerdict::Goto("lb-1".into()))],
                2 => {
                    let dnat = Statement::Dnat("10.244.0.1:8080".parse().unwrap());
                    return Some(nft::Rule { statements: vec![dnat], comment: None }.to_dump(Family::Ip));
                }
                3 => vec![Expr::Masquerade { flags: 0 }],
                4 => vec![Expr::Reject(RejectWith::Icmp(3))],
                _ => return None,
            };
            Some(RuleDump { exprs, comment: None })
        }

        fn interface(&mut self, index: u32) -> Link {
            Link::Known(index, "eth0".into())
        }

        fn service(&mut self, packet: &Packet, is_node_port: bool) -> Option<String> {
            (is_node_port || packet.destination.to_string() == "10.96.0.10").then(|| "shop/web:http".to_owned())
        }

        /// Only the connection from client port 1 is tracked; it is masqueraded.
        fn connection(&mut self, packet: &Packet) -> Option<Connection> {
            let client = SocketAddr::new(packet.source, packet.source_port?);
            (client.port() == 1).then(|| Connection {
                protocol: 6,
                original: Ends { source: client, destination: packet.target() },
                reply: Ends {
                    source: "10.244.0.1:8080".parse().unwrap(),
                    destination: "192.0.2.2:4711".parse().unwrap(),
                },
                status: 0,
                phase: Phase::Open,
                mark: None,
                id: 1,
                counters: None,
            })
        }
    }

    fn own() -> TableName {
        TableName::new(Family::Ip, "kube-proxy-trace-7")
    }

    fn headers(destination: [u8; 4], port: u16) -> Headers {
        let mut network = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 203, 0, 113, 7];
        network.extend(destination);
        let mut transport = vec![0x12, 0x34];
        transport.extend(port.to_be_bytes());
        transport.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02]);
        Headers { network, transport, input: Some(2), output: None }
    }

    fn report(table: &str, handle: u64, verdict: Option<RuleVerdict>, headers: Option<Headers>) -> Traced {
        Traced {
            packet: 9,
            table: TableName::new(Family::Ip, table),
            chain: "KUBE-SERVICES".into(),
            event: Event::Rule(handle),
            verdict,
            mark: 0,
            headers,
        }
    }

    fn arrival() -> Traced {
        report("kube-proxy-trace-7", 99, None, Some(headers([10, 96, 0, 10], 80)))
    }

    #[test]
    fn a_translated_packet_is_told_with_its_endpoint() {
        let reports = [
            arrival(),
            report("kube-proxy", 1, Some(RuleVerdict::Goto("lb-1".into())), Some(headers([10, 96, 0, 10], 80))),
            report("kube-proxy", 2, Some(RuleVerdict::Accept), None),
            report("kube-proxy", 3, Some(RuleVerdict::Accept), Some(headers([10, 244, 0, 1], 8080))),
        ];
        let story = tell(&reports, &own(), &mut ListedRules).unwrap();
        assert_eq!((&*story.from, &*story.to), ("203.0.113.7:4660", "10.96.0.10:80"));
        assert_eq!((story.flags.as_deref(), story.interface.as_deref()), (Some("SYN"), Some("eth0")));
        assert_eq!((story.verdict, story.masquerade), (Verdict::Translated, true));
        assert_eq!(story.endpoint, Some("10.244.0.1:8080".parse().unwrap()));
        assert_eq!(story.service.as_deref(), Some("shop/web:http"));
        assert!(story.reason.contains("10.244.0.1:8080"), "{}", story.reason);
        assert_eq!(story.steps.len(), 3, "without the table of the mark: {:?}", story.steps);
    }

    #[test]
    fn a_node_port_is_known_by_the_chain_that_the_packet_met() {
        let mut arrival = arrival();
        arrival.headers = Some(headers([192, 0, 2, 2], 30080));
        let to_node_ports = report("kube-proxy", 1, Some(RuleVerdict::Jump("KUBE-NODEPORTS".into())), None);
        let story = tell(&[arrival.clone(), to_node_ports], &own(), &mut ListedRules).unwrap();
        assert_eq!(story.service.as_deref(), Some("shop/web:http"));
        assert_eq!(tell(&[arrival], &own(), &mut ListedRules).unwrap().service, None);
    }

    #[test]
    fn a_refused_packet_is_refused_and_not_dropped() {
        let reports = [arrival(), report("kube-proxy", 4, Some(RuleVerdict::Drop), Some(headers([10, 96, 0, 10], 80)))];
        let story = tell(&reports, &own(), &mut ListedRules).unwrap();
        assert_eq!((story.verdict, story.endpoint), (Verdict::Refused, None));
    }

    #[test]
    fn a_drop_of_any_table_is_a_drop() {
        let drop = |event| Traced { event, ..report("firewall", 77, Some(RuleVerdict::Drop), None) };
        for event in [Event::Rule(77), Event::Policy] {
            let story = tell(&[arrival(), drop(event)], &own(), &mut ListedRules).unwrap();
            assert_eq!(story.verdict, Verdict::Dropped);
            assert!(story.reason.contains("firewall"), "{}", story.reason);
        }
    }

    #[test]
    fn packets_of_a_known_connection_and_untouched_ones_are_told_apart() {
        let mut later = arrival();
        later.headers.as_mut().unwrap().transport[..2].copy_from_slice(&[0, 1]);
        let story = tell(&[later.clone()], &own(), &mut ListedRules).unwrap();
        assert_eq!((story.verdict, story.masquerade), (Verdict::Translated, true));
        assert_eq!(story.reason, "its connection was given to 10.244.0.1:8080 before");
        // Some kernels also report the chains after the translation.
        let seen = report("kube-proxy", 77, None, Some(headers([10, 244, 0, 1], 8080)));
        let story = tell(&[later, seen], &own(), &mut ListedRules).unwrap();
        assert_eq!((story.verdict, story.masquerade), (Verdict::Translated, true));
        assert_eq!(story.reason, "its connection was given to 10.244.0.1:8080 before");
        let untouched = tell(&[arrival()], &own(), &mut ListedRules).unwrap();
        assert_eq!((untouched.verdict, untouched.steps.len()), (Verdict::Passed, 0));
    }

    #[test]
    fn reports_without_a_packet_have_no_story() {
        assert_eq!(tell(&[report("kube-proxy", 1, None, None)], &own(), &mut ListedRules), None);
        let short = Headers { network: vec![0x45; 12], ..Headers::default() };
        assert_eq!(tell(&[report("kube-proxy", 1, None, Some(short))], &own(), &mut ListedRules), None);
    }

    #[test]
    fn the_mark_is_told_as_the_kernel_reports_it() {
        let telling = Telling {
            service: None,
            endpoint: None,
            verdict: None,
            reasons: Vec::new(),
            masquerade: false,
            steps: Vec::new(),
        };
        let rule = nft::Rule { statements: vec![Statement::SetMarkBits(0x4000)], comment: None }.to_dump(Family::Ip);
        assert!(rule.exprs.iter().any(|expr| matches!(expr, Expr::MetaSet { key: MetaKey::Mark, .. })));
        let report = Traced { mark: 0x4000, ..report("kube-proxy", 1, None, None) };
        assert_eq!(telling.effects(&report, Some(&rule)), [Effect::Mark(0x4000)]);
    }
}

//! Describes what a rule did to a packet, in a sentence that names the Service and the reason.
//!
//! Takes one rule as the kernel lists it, the packet as the rule saw it, and the effects ([`Seen`]); returns a [`Sentence`]. Pure. Serves
//! computed packets (`explain`) and real packets (`trace`). Recognises our rules by the sets that they look up, by the chains that they
//! lead to and by their own chains, in both table layouts (`maps` and `chains`), and not by their position. For any other rule the sentence
//! names its effects and where it is; callers may show the text of the rule.

use std::net::{IpAddr, SocketAddr};

use nft::expr::FibAddress;
use nft::machine::{Effect, Link, Packet, protocol_name};
use nft::{Field, Operand, RuleDump, Statement, TableName, Verdict};

use rules::ruleset::flowtable;
use rules::ruleset::kinds::{ChainKind, SetKind};
use rules::ruleset::names::{self, FrontendType, List};

/// A rule, and a packet that it had an effect on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// The table of the rule.
    pub(crate) table: &'a TableName,
    /// The name of the rule's chain.
    pub(crate) chain: &'a str,
    /// The rule; `None` for the policy of a base chain, and when it is not known.
    pub(crate) rule: Option<&'a RuleDump>,
    pub(crate) effects: &'a [Effect],
    /// The packet before the rule.
    pub(crate) packet: &'a Packet,
    /// The service port that the packet belongs to, `namespace/name[:port]`, if it is known.
    pub(crate) service: Option<&'a str>,
    /// The number of endpoints that the packet could go to, if that is known.
    pub(crate) endpoints: Option<usize>,
    /// Whether the packet stands for several possible ones, so that its endpoint is only an example.
    pub(crate) is_example: bool,
    /// Whether the rule leads to a chain in which another rule had an effect; that rule has a sentence of its own.
    pub(crate) goes_on: bool,
    /// Whether the packet was or will be given to an endpoint.
    pub(crate) is_translated: bool,
}

/// The effects of a rule in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// The words, without a full stop.
    pub(crate) text: String,
    /// Whether it gives the reason for the packet's verdict, and not just a step on the way to it.
    pub(crate) is_reason: bool,
    /// Whether it says why the packet is masqueraded.
    pub(crate) is_masquerade: bool,
}

fn reason(text: String) -> Sentence {
    Sentence { text, is_reason: true, is_masquerade: false }
}

fn masquerade(text: String) -> Sentence {
    Sentence { text, is_reason: false, is_masquerade: true }
}

fn plain(text: String) -> Sentence {
    Sentence { text, is_reason: false, is_masquerade: false }
}

/// Describes a rule that had an effect on a packet.
pub(crate) fn sentence(seen: &Seen<'_>) -> Sentence {
    let statements = seen.statements();
    let ours = || is_ours(seen.table).then(|| of_ours(seen, &statements)).flatten();
    if let Some(why) = seen.effects.iter().find_map(|effect| match effect {
        Effect::Assumed(why) => Some(why),
        _ => None,
    }) {
        return reason(format!("{}{why}", owner(seen)));
    }
    ours().unwrap_or_else(|| of_any(seen))
}

/// A destination as people write it: `10.96.0.10:53/UDP`.
pub(crate) fn target(packet: &Packet) -> String {
    if packet.has_ports() {
        format!("{}/{}", packet.target(), proto(packet))
    } else {
        format!("{} ({})", packet.destination, protocol_name(packet.protocol))
    }
}

/// The source of a packet, with the port if it is known.
pub(crate) fn source(packet: &Packet) -> String {
    packet
        .source_port
        .map_or_else(|| packet.source.to_string(), |port| SocketAddr::new(packet.source, port).to_string())
}

impl Seen<'_> {
    fn statements(&self) -> Vec<Statement> {
        let rule = self.rule.and_then(|rule| rule.to_rule(self.table.family));
        rule.map_or_else(Vec::new, |rule| rule.statements)
    }

    fn service(&self) -> &str {
        self.service.unwrap_or("the Service")
    }

    fn verdict(&self) -> Option<&Verdict> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Verdict(verdict) => Some(verdict),
            _ => None,
        })
    }

    /// The kind of the chain that the rule leads to.
    fn leads_to(&self) -> Option<ChainKind> {
        ChainKind::of(self.verdict()?.chain()?)
    }

    /// The kind of the rule's own chain.
    fn is_in(&self) -> Option<ChainKind> {
        ChainKind::of(self.chain)
    }

    fn drops(&self) -> bool {
        self.verdict() == Some(&Verdict::Drop)
    }

    /// The port in words, such as `TCP port 80`.
    fn port(&self) -> String {
        let name = proto(self.packet);
        if self.packet.has_ports() { format!("{name} port {}", self.packet.port) } else { name }
    }

    fn one_of_the_endpoints(&self) -> String {
        match self.endpoints {
            Some(1) => "its only endpoint".to_owned(),
            Some(count) => format!("one of {count} endpoints, at random"),
            None => "one of its endpoints".to_owned(),
        }
    }
}

/// Describes a rule of our tables, in either layout; `None` when it is not recognised.
fn of_ours(seen: &Seen<'_>, statements: &[Statement]) -> Option<Sentence> {
    let vmap = statements.iter().find_map(|statement| match statement {
        Statement::Vmap(_, map) => Some(&**map),
        _ => None,
    });
    if let Some(map) = vmap {
        return of_map(seen, map);
    }
    if seen.leads_to() == Some(ChainKind::MarkMasq) {
        return Some(masquerade(why_marked(seen, statements)));
    }
    of_effect(seen, statements).or_else(|| of_sets(seen, statements)).or_else(|| of_target(seen, statements))
}

/// Describes a look-up in a verdict map.
fn of_map(seen: &Seen<'_>, map: &str) -> Option<Sentence> {
    let (service, packet) = (seen.service(), seen.packet);
    Some(match SetKind::of(map) {
        Some(SetKind::Dispatch(FrontendType::Address)) if seen.drops() => {
            reason(format!("{service} has internal policy Local and no endpoint on this node"))
        }
        Some(SetKind::Dispatch(FrontendType::Address)) => {
            plain(format!("{} is {service}{}", target(packet), how(seen.leads_to())))
        }
        Some(SetKind::Dispatch(FrontendType::NodePort)) if seen.drops() => {
            reason(format!("{service} has policy Local and no endpoint on this node"))
        }
        Some(SetKind::Dispatch(FrontendType::NodePort)) => {
            plain(format!("node port {}/{} is {service}{}", packet.port, proto(packet), how(seen.leads_to())))
        }
        Some(SetKind::LocalPolicy(_)) if seen.drops() => {
            reason(format!("{service} has external policy Local and no endpoint on this node"))
        }
        Some(SetKind::LocalPolicy(_)) => {
            plain(format!("{service} has external policy Local: only endpoints on this node are used"))
        }
        Some(SetKind::ClusterPolicy(_)) => {
            plain(format!("external policy Local of {service} is for clients outside: all endpoints are used"))
        }
        Some(SetKind::NoEndpoints(_)) => reason(format!("{service} has no endpoints")),
        Some(SetKind::Affinity(..)) => {
            plain(format!("the connection belongs to {service}, which remembers its clients"))
        }
        _ => plain(format!("{service}: {}", seen.one_of_the_endpoints())),
    })
}

fn proto(packet: &Packet) -> String {
    protocol_name(packet.protocol).to_uppercase()
}

/// Describes a frontend by the chain to which it leads.
fn how(chain: Option<ChainKind>) -> &'static str {
    match chain {
        Some(ChainKind::ExternalLocal(_) | ChainKind::ExternalLocalHost(_)) => ", which has external policy Local",
        Some(ChainKind::Balancer { masquerade: true, .. } | ChainKind::Sticky { masquerade: true, .. }) => {
            ", which is reached from outside and has external policy Cluster"
        }
        Some(
            ChainKind::Balancer { list: List::Local, .. }
            | ChainKind::Sticky { list: List::Local, .. }
            | ChainKind::ServicePort(List::Local),
        ) => ", which has internal policy Local: only endpoints on this node are used",
        Some(ChainKind::Sticky { .. }) => ", which has session affinity",
        Some(ChainKind::SourceRanges { .. }) => ", which has loadBalancerSourceRanges",
        _ => "",
    }
}

/// Why a packet is to be masqueraded.
fn why_marked(seen: &Seen<'_>, statements: &[Statement]) -> String {
    let (service, source) = (seen.service(), seen.packet.source);
    let is_about_cluster_ips = sets(statements).any(|set| set == SetKind::ClusterIps);
    let is_of_host = matches!(seen.is_in(), Some(ChainKind::ExternalLocalHost(_)));
    if is_of_host || statements.contains(&Statement::FibLocal(FibAddress::Source)) {
        return format!(
            "to be masqueraded: {source} is this host itself, for which external policy Local does not matter"
        );
    }
    if is_about_cluster_ips {
        return match from_elsewhere(seen.packet, statements) {
            Some(why) => format!("to be masqueraded: it goes to a cluster IP, and {why}"),
            None => "to be masqueraded: everything that goes to a cluster IP is (masqueradeAll)".to_owned(),
        };
    }
    if seen.is_in() == Some(ChainKind::Endpoint) {
        return format!("to be masqueraded: {source} reaches itself through {service}");
    }
    format!("to be masqueraded: {service} is reached from outside and has external policy Cluster")
}

/// Why the packet does not come from a pod, according to the comparison in the rule.
fn from_elsewhere(packet: &Packet, statements: &[Statement]) -> Option<String> {
    let arrives = || match &packet.input {
        Link::Known(_, name) => format!("arrives at {name}"),
        Link::Unknown => "arrives at another interface".to_owned(),
        Link::None => "comes from this host".to_owned(),
    };
    statements.iter().find_map(|statement| match statement {
        Statement::Match(fields, Operand::NotInPrefix(network, len)) if is_source(fields) => {
            Some(format!("{} is outside of {network}/{len}, the range of pods", packet.source))
        }
        // A prefix that is a whole address (/32 or /128) is compared without a mask.
        Statement::Match(fields, Operand::IsNot(_)) if is_source(fields) => {
            Some(format!("{} is not the address of pods", packet.source))
        }
        Statement::Match(fields, Operand::IsNot(name)) if fields == &[Field::IifName] => {
            Some(format!("{}, not at {}, the bridge of pods", arrives(), text_of(name.as_slice())))
        }
        Statement::Match(fields, Operand::StartsNotWith(prefix)) if fields == &[Field::IifName] => {
            Some(format!("{}, not at an interface {prefix}* of pods", arrives()))
        }
        _ => None,
    })
}

/// Whether a rule matches packets from pods.
fn is_from_pod(statements: &[Statement]) -> bool {
    statements.iter().any(|statement| match statement {
        Statement::Match(fields, Operand::InPrefix(..)) => is_source(fields),
        Statement::Match(fields, Operand::Is(_) | Operand::StartsWith(_)) => fields == &[Field::IifName],
        _ => false,
    })
}

fn is_source(fields: &[Field]) -> bool {
    matches!(fields, [Field::IpSaddr | Field::Ip6Saddr])
}

fn text_of(name: &[u8]) -> String {
    String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()
}

/// Describes a rule that acts on the packet itself, for example with dnat or masquerade.
fn of_effect(seen: &Seen<'_>, statements: &[Statement]) -> Option<Sentence> {
    let service = seen.service();
    seen.effects.iter().find_map(|effect| match effect {
        Effect::Masquerade if sets(statements).any(|set| set == SetKind::Hairpin) => Some(masquerade(format!(
            "masqueraded: {} reaches itself through {service}, and has to see another source to answer to",
            seen.packet.source
        ))),
        Effect::Masquerade => {
            Some(plain("masqueraded, because it is marked: the endpoint sees an address of this host".to_owned()))
        }
        Effect::Translate(to) if seen.is_in() == Some(ChainKind::Pings) => {
            Some(reason(format!("this node answers pings to addresses of Services, at {}", to.ip())))
        }
        Effect::Translate(to) => Some(plain(translation(seen, statements, &to.to_string()))),
        Effect::Remember(_) => Some(plain(format!(
            "{service} remembers for {} which endpoint it got (session affinity)",
            seen.packet.source
        ))),
        Effect::Refuse if statements.contains(&Statement::RejectTcp) => {
            Some(plain("refused: answered with a TCP reset".to_owned()))
        }
        Effect::Refuse => Some(plain("refused: answered with ICMP port unreachable".to_owned())),
        Effect::Mark(_) if seen.is_in() == Some(ChainKind::MarkMasq) => {
            Some(plain("marked for masquerading".to_owned()))
        }
        Effect::Offload => Some(plain("handed to the flowtable".to_owned())),
        _ => None,
    })
}

fn translation(seen: &Seen<'_>, statements: &[Statement], to: &str) -> String {
    let service = seen.service();
    let remembered = statements.iter().any(|statement| matches!(statement, Statement::DnatToMapAndPort(..)));
    match seen.endpoints {
        _ if remembered => {
            format!("{service} remembers {} (session affinity): sent to {to}", seen.packet.source)
        }
        Some(count) if count > 1 && seen.is_example => {
            format!("sent to {}, such as {to}", seen.one_of_the_endpoints())
        }
        _ => format!("sent to the endpoint {to}"),
    }
}

/// Describes a rule that is recognised by a set that it looks up.
fn of_sets(seen: &Seen<'_>, statements: &[Statement]) -> Option<Sentence> {
    let (packet, service) = (seen.packet, seen.service());
    let not_allowed = || reason(format!("{} is not in loadBalancerSourceRanges of {service}", packet.source));
    sets(statements).find_map(|set| match set {
        SetKind::Sources if seen.drops() => Some(not_allowed()),
        SetKind::ServiceCidrs if seen.drops() => {
            let ip = packet.destination;
            Some(reason(format!("no Service has this address; {ip} lies in a ServiceCIDR")))
        }
        SetKind::ClusterIps | SetKind::ExternalIps
            if seen.is_translated && matches!(seen.leads_to(), Some(ChainKind::Reject | ChainKind::ExternalIps)) =>
        {
            Some(reason(format!(
                "the kernel translates a connection only once, so no Service of {} sends it to an endpoint",
                packet.destination
            )))
        }
        SetKind::ClusterIps if seen.leads_to() == Some(ChainKind::Reject) => {
            Some(reason(format!("{} is a cluster IP, but no Service has {} on it", packet.destination, seen.port())))
        }
        SetKind::ExternalIps if seen.leads_to() == Some(ChainKind::ExternalIps) => {
            let ip = packet.destination;
            Some(reason(format!("{ip} is an external or load balancer IP, but no Service has {} on it", seen.port())))
        }
        SetKind::NodePortAddresses => Some(to_node_port(packet.destination)),
        _ => None,
    })
}

fn to_node_port(address: IpAddr) -> Sentence {
    plain(format!("no Service has this address, and {address} is an address of this node that accepts node ports"))
}

/// The kinds of sets that a rule compares with.
fn sets(statements: &[Statement]) -> impl Iterator<Item = SetKind> {
    statements.iter().filter_map(|statement| match statement {
        Statement::Match(_, Operand::InSet(set) | Operand::NotInSet(set)) => SetKind::of(set),
        _ => None,
    })
}

/// Describes a rule that is recognised by the chain that it leads to, or by its own chain.
fn of_target(seen: &Seen<'_>, statements: &[Statement]) -> Option<Sentence> {
    let (service, source) = (seen.service(), seen.packet.source);
    match seen.is_in() {
        Some(ChainKind::Firewall) => return Some(plain("dropped".to_owned())),
        Some(ChainKind::SourceRanges { .. }) => {
            return Some(match seen.leads_to() {
                Some(ChainKind::Firewall) => {
                    reason(format!("{source} is not in loadBalancerSourceRanges of {service}"))
                }
                _ => plain(format!("{source} is in loadBalancerSourceRanges of {service}")),
            });
        }
        Some(ChainKind::External) if seen.drops() => {
            return Some(reason(format!("{service} has external policy Local and no endpoint on this node")));
        }
        Some(ChainKind::Forward) if seen.drops() => {
            let text = "the packet belongs to no known connection (conntrack.tcpBeLiberal is off)";
            return Some(reason(text.to_owned()));
        }
        Some(ChainKind::Invalid) if seen.drops() => {
            return Some(reason(format!(
                "connection tracking finds the packet invalid, and {source} is an endpoint on this node"
            )));
        }
        _ => {}
    }
    if seen.verdict() == Some(&Verdict::Return) && statements.contains(&Statement::FibLocal(FibAddress::Destination)) {
        return Some(plain(format!("{} is an address of this host, whose programs answer", seen.packet.destination)));
    }
    if statements.contains(&Statement::FibLocal(FibAddress::Source)) {
        return Some(plain(format!("{source} is this host itself, for which external policy Local does not matter")));
    }
    match seen.leads_to()? {
        ChainKind::ServicePort(List::Cluster) if is_from_pod(statements) => Some(plain(format!(
            "{source} is a pod, for which external policy Local does not matter: all endpoints are used"
        ))),
        ChainKind::ServicePort(List::Local) => {
            Some(plain(format!("{service} has external policy Local: only endpoints on this node are used")))
        }
        ChainKind::ExternalLocalHost(_) => Some(plain(format!("{source} is this host itself"))),
        leads_to => of_jump(seen, leads_to),
    }
}

/// Explains a jump by the chain to which it leads.
fn of_jump(seen: &Seen<'_>, leads_to: ChainKind) -> Option<Sentence> {
    let (packet, goes_on) = (seen.packet, seen.goes_on);
    let text = match leads_to {
        ChainKind::Services if goes_on => format!("new connection to {}: looked up among the Services", target(packet)),
        ChainKind::Services => format!("new connection to {}: no Service with endpoints has it", target(packet)),
        ChainKind::NodePorts if goes_on => return Some(to_node_port(packet.destination)),
        ChainKind::NodePorts => {
            let text = to_node_port(packet.destination).text;
            format!("{text}: no Service with endpoints has node port {}/{}", packet.port, proto(packet))
        }
        ChainKind::Postrouting if goes_on => "new connection that leaves this host".to_owned(),
        ChainKind::Postrouting => "not marked, not masqueraded".to_owned(),
        ChainKind::Affinity if goes_on => "translated connection, whose Service has session affinity".to_owned(),
        ChainKind::Affinity => "no session affinity".to_owned(),
        ChainKind::Input | ChainKind::Output | ChainKind::Forward | ChainKind::ServicesFilter if goes_on => {
            format!("new connection to {}: looked up among what has no endpoints", target(packet))
        }
        ChainKind::ExternalServices if goes_on => "looked up among external addresses without endpoints".to_owned(),
        ChainKind::Input
        | ChainKind::Output
        | ChainKind::Forward
        | ChainKind::ServicesFilter
        | ChainKind::ExternalServices => {
            let text = if seen.is_translated {
                "let through: an endpoint serves it"
            } else {
                "not refused here: no Service without endpoints has it"
            };
            text.to_owned()
        }
        ChainKind::Fallback if goes_on => {
            format!("{} is not translated; looked up once more, in case its Service changed meanwhile", target(packet))
        }
        ChainKind::Fallback => format!("{} is not translated: no Service with endpoints has it", target(packet)),
        ChainKind::Pings if goes_on => "a ping: looked up among the addresses of Services".to_owned(),
        ChainKind::Pings => "a ping, but not to an address of a Service".to_owned(),
        ChainKind::Reject => "to be refused".to_owned(),
        ChainKind::Invalid => "connection tracking finds the packet invalid".to_owned(),
        ChainKind::Endpoint => format!("{}: {}", seen.service(), seen.one_of_the_endpoints()),
        chain if is_choice(chain) && matches!(seen.is_in(), Some(ChainKind::Sticky { masquerade: false, .. })) => {
            format!("{} does not remember {} (session affinity)", seen.service(), packet.source)
        }
        chain if is_choice(chain) => format!("an endpoint of {} is chosen", seen.service()),
        _ => return None,
    };
    Some(plain(text))
}

/// Whether a chain chooses an endpoint, without marking packets for masquerading first.
fn is_choice(chain: ChainKind) -> bool {
    matches!(
        chain,
        ChainKind::Balancer { masquerade: false, .. }
            | ChainKind::Sticky { masquerade: false, .. }
            | ChainKind::ServicePort(List::Cluster)
    )
}

fn owner(seen: &Seen<'_>) -> &'static str {
    if is_ours(seen.table) { "" } else { "another program: " }
}

/// Whether a table has the name of one of the tables in which the proxy writes rules: those for Services, or those for the fast path.
pub(crate) fn is_ours(table: &TableName) -> bool {
    [names::TABLE, flowtable::TABLE].contains(&&*table.name)
}

/// Another program, by the place of its rule.
pub(crate) fn program(table: &TableName, chain: &str) -> String {
    format!("another program (table {table}, chain {chain})")
}

/// Describes any rule by its effects.
fn of_any(seen: &Seen<'_>) -> Sentence {
    let effects: Vec<String> = seen.effects.iter().map(|effect| of_any_effect(seen, effect)).collect();
    let ends = seen.drops()
        || seen.effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::Refuse | Effect::Policy | Effect::Translate(_) | Effect::SourceTo(_) | Effect::Masquerade
            )
        });
    let who = if is_ours(seen.table) {
        "a rule that the proxy does not write".to_owned()
    } else {
        program(seen.table, seen.chain)
    };
    let comment = seen.rule.and_then(|rule| rule.comment.as_deref()).filter(|_| !is_ours(seen.table));
    let comment = comment.map_or_else(String::new, |comment| format!(" (comment \"{comment}\")"));
    let text = format!("{who} {}{comment}", effects.join(", "));
    if ends { reason(text) } else { plain(text) }
}

fn of_any_effect(seen: &Seen<'_>, effect: &Effect) -> String {
    match effect {
        Effect::Verdict(Verdict::Accept) => "lets the packet by".to_owned(),
        Effect::Verdict(Verdict::Drop) => "drops the packet".to_owned(),
        Effect::Verdict(Verdict::Return) => format!("leaves the chain {}", seen.chain),
        Effect::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => format!("goes on in the chain {chain}"),
        Effect::Refuse => "refuses the packet".to_owned(),
        Effect::Translate(to) => format!("sends the packet to {to}"),
        Effect::Masquerade => "masquerades the packet".to_owned(),
        Effect::SourceTo(source) => format!("gives the packet the source {source}"),
        Effect::Mark(mark) => format!("sets the packet mark to {mark:#x}"),
        Effect::Remember(set) => format!("adds an element to the set {set}"),
        Effect::Untrack => "keeps the packet out of connection tracking, so that no Service is reached".to_owned(),
        Effect::Offload => "adds the connection to a flowtable".to_owned(),
        Effect::Policy => "drops the packet, by the policy of the chain".to_owned(),
        Effect::Assumed(why) => why.clone(),
    }
}

//! Describes a difference of a table in words, and with the nft commands that repair it.
//!
//! Takes a difference, returns a sentence: for `verify` about what is wrong in the kernel, and for `render --diff` about what will change
//! in the rules. Pure.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use nft::{Chain, Command, Data, DataType, Element, Rule, RuleDump, Set, TableName, Types, Value, ValueType};

use crate::sync::{Subject, TableDifference};
use rules::diff::differences::{DifferenceKind, LedElement};
use rules::model::{Destination, Family, Frontend};
use rules::ruleset::kinds::SetKind;
use rules::ruleset::reading::{self, Key};

/// What a sentence describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tense {
    /// The sentence says what is wrong with the present table.
    Wrong,
    /// The sentence says what a change of the manifests will change.
    Change,
}

/// The sentence that describes a difference.
pub(crate) fn text(difference: &TableDifference, tense: Tense) -> String {
    let words = Words { table: &difference.table, subject: &difference.subject, tense };
    words.sentence(&difference.what)
}

/// The nft commands that repair the difference, one per line.
pub(crate) fn command(difference: &TableDifference) -> String {
    let commands = difference.what.commands(&difference.table);
    commands.iter().map(Command::to_string).collect::<Vec<_>>().join("\n")
}

struct Words<'a> {
    table: &'a TableName,
    subject: &'a Subject,
    tense: Tense,
}

impl Words<'_> {
    fn sentence(&self, what: &DifferenceKind) -> String {
        let table = self.table;
        match what {
            DifferenceKind::NoTable => format!("there is no table {table}: no Service is served in this family"),
            DifferenceKind::Dormant => format!("the table {table} is dormant: no packet passes it"),
            DifferenceKind::Table(state) if state.unknown_flags != 0 => {
                format!("the table {table} has flags that this program never sets ({:#x})", state.unknown_flags)
            }
            DifferenceKind::Table(_) => format!("the table {table} has another comment"),
            DifferenceKind::Object(object) => {
                format!("the table {table} holds the {object}, which is not this program's")
            }
            DifferenceKind::Unreadable(error) => {
                format!("the table {table} holds what this program never writes: {error}")
            }
            DifferenceKind::NoChain(content) => self.missing(&format!("the chain {}", content.chain.name)),
            DifferenceKind::SurplusChain(chain, rules) => self.surplus_chain(chain, *rules),
            DifferenceKind::OtherChain { wanted, present } => self.other_chain(&wanted.chain, present),
            DifferenceKind::Rules { wanted, present } => self.rules(&wanted.chain.name, &wanted.rules, present),
            DifferenceKind::NoSet { set, elements } => {
                let with = match elements.len() {
                    0 => String::new(),
                    count => format!(" with {}", counted(count, "element")),
                };
                self.missing(&format!("the {} {}{with}", kind(set), set.name))
            }
            DifferenceKind::SurplusSet(set) => self.surplus(&format!("the {} {}", kind(set), set.name)),
            DifferenceKind::OtherSet { wanted, present, elements } => {
                let differs = set_differences(wanted, present);
                let holds = match (self.tense, elements.len()) {
                    (Tense::Wrong, 1..) => format!("; it should have {}", counted(elements.len(), "element")),
                    _ => String::new(),
                };
                self.about(format_args!("the {} {} {} {differs}{holds}", kind(wanted), wanted.name, self.verb()))
            }
            DifferenceKind::Element { set, wanted, present } => self.element(set, wanted.as_ref(), present.as_ref()),
            DifferenceKind::StaleClient { set, element } => self.about(format_args!(
                "the map {} sends the client {} to {}, which is no endpoint for it",
                set.name,
                plain(&set.key, &element.key),
                OurSet::new(self.table, set).value(element)
            )),
        }
    }

    /// A sentence that the subject lacks something, or will get it.
    fn missing(&self, what: &str) -> String {
        match (self.subject, self.tense) {
            (Subject::Table, Tense::Wrong) => format!("{what} is missing in the table {}", self.table),
            (_, Tense::Wrong) => format!("{} lacks {what}", self.name()),
            (_, Tense::Change) => format!("{} gets {what}", self.name()),
        }
    }

    /// A sentence that the subject has something that it should not have, or will lose it.
    fn surplus(&self, what: &str) -> String {
        match (self.subject, self.tense) {
            (Subject::Table, Tense::Wrong) => format!("{what} in the table {} is not this program's", self.table),
            (_, Tense::Wrong) => format!("{} should not have {what}", self.name()),
            (_, Tense::Change) => format!("{} loses {what}", self.name()),
        }
    }

    /// Puts the subject's name in front of a sentence, unless the subject is the table.
    fn about(&self, sentence: impl Display) -> String {
        match self.subject {
            Subject::Table => sentence.to_string(),
            _ => format!("{}: {sentence}", self.name()),
        }
    }

    fn name(&self) -> String {
        match self.subject {
            Subject::Table => format!("the table {}", self.table),
            Subject::Node => "the node".to_owned(),
            Subject::Service(label) => label.to_string(),
        }
    }

    fn verb(&self) -> &'static str {
        if self.tense == Tense::Wrong { "has" } else { "gets" }
    }

    fn surplus_chain(&self, chain: &Chain, rules: usize) -> String {
        let name = &chain.name;
        match (&chain.base, self.tense) {
            (None, Tense::Wrong) => {
                self.about(format_args!("the chain {name} should have no rule, and has {}", counted(rules, "rule")))
            }
            (None, Tense::Change) => self.surplus(&format!("the rules of the chain {name}")),
            (Some(_), _) => self.surplus(&format!("the chain {name} with {}", hook(chain))),
        }
    }

    fn other_chain(&self, wanted: &Chain, present: &Chain) -> String {
        let name = &wanted.name;
        let (now, before) = (hook(wanted), hook(present));
        if now == before {
            return self.about(format_args!("the chain {name} {} another comment", self.verb()));
        }
        let (is, instead) = if self.tense == Tense::Wrong { (before, now) } else { (now, before) };
        self.about(format_args!("the chain {name} {} {is} in place of {instead}", self.verb()))
    }

    /// Describes which rules a chain lacks, and which it should not have.
    fn rules(&self, chain: &str, wanted: &[Rule], present: &[RuleDump]) -> String {
        let family = self.table.family;
        let wanted_dumps: Vec<RuleDump> = wanted.iter().map(|rule| rule.to_dump(family)).collect();
        let lacking =
            wanted.iter().zip(&wanted_dumps).filter(|(_, dump)| count(present, dump) < count(&wanted_dumps, dump));
        let lacking: Vec<String> = lacking.map(|(rule, _)| self.rule(chain, rule)).collect();
        let surplus = present.iter().filter(|rule| count(present, rule) > count(&wanted_dumps, rule));
        let mut surplus: Vec<String> = surplus.map(|rule| format!("`{rule}`")).collect();
        surplus.dedup();
        if self.tense == Tense::Change {
            return self.about(format_args!("the chain {chain} gets other rules: {}", joined(&lacking, &surplus)));
        }
        let sentence = match (&lacking[..], &surplus[..]) {
            ([], []) => format!("the rules of the chain {chain} are in another order"),
            (_, []) if present.is_empty() => {
                format!("the chain {chain} is empty; it should have {}", counted(wanted.len(), "rule"))
            }
            (lacking, []) => format!("the chain {chain} lacks {}", rules_in_words(lacking)),
            ([], surplus) => format!("the chain {chain} should not have {}", rules_in_words(surplus)),
            (lacking, surplus) => {
                format!("the chain {chain} has {} in place of {}", rules_in_words(surplus), rules_in_words(lacking))
            }
        };
        self.about(sentence)
    }

    /// A rule in nft syntax.
    fn rule(&self, chain: &str, rule: &Rule) -> String {
        let command = Command::AddRule(self.table.clone(), chain.into(), rule.clone()).to_string();
        let start = format!("add rule {} {chain} ", self.table);
        format!("`{}`", command.strip_prefix(&start).unwrap_or(&command))
    }

    fn element(&self, set: &Set, wanted: Option<&LedElement>, present: Option<&LedElement>) -> String {
        let ours = OurSet::new(self.table, set);
        match (wanted, present) {
            (Some(wanted), None) => self.missing(&format!("{} in {}", ours.noun(wanted), set.name)),
            (None, Some(present)) => match (self.subject, self.tense) {
                (Subject::Table, Tense::Wrong) => {
                    format!(
                        "an element of no Service: {} in {} of the table {}",
                        ours.noun(present),
                        set.name,
                        self.table
                    )
                }
                _ => self.surplus(&format!("{} in {}", ours.noun(present), set.name)),
            },
            (Some(wanted), Some(present)) => self.other_element(ours, wanted, present),
            (None, None) => String::new(),
        }
    }

    fn other_element(&self, ours: OurSet<'_>, wanted: &LedElement, present: &LedElement) -> String {
        let (verb, set) = (self.verb(), ours.set);
        let (this, other) = if self.tense == Tense::Wrong { (present, wanted) } else { (wanted, present) };
        let place = ours.place(&wanted.element);
        let (is, instead) = (ours.led_to(this), ours.led_to(other));
        if is != instead {
            // The slot number, an endpoint's index in its map, tells the reader nothing.
            let of = match ours.is_slotted() {
                true => format!("of {}", ours.frontend(&wanted.element)),
                false => format!("for {place}"),
            };
            return format!("{} {verb} {is} in place of {instead} {of} in {}", self.name(), set.name);
        }
        let (wanted, present) = (&wanted.element, &present.element);
        let what = if wanted.key_end != present.key_end {
            "another range"
        } else if wanted.timeout != present.timeout {
            "another time-out"
        } else {
            "another comment"
        };
        format!("{} {verb} {what} at {place} in {}", self.name(), set.name)
    }
}

fn count(rules: &[RuleDump], rule: &RuleDump) -> usize {
    rules.iter().filter(|other| *other == rule).count()
}

fn rules_in_words(rules: &[String]) -> String {
    let word = if rules.len() == 1 { "the rule" } else { "the rules" };
    format!("{word} {}", rules.join(", "))
}

fn joined(added: &[String], removed: &[String]) -> String {
    let added = added.iter().map(|rule| format!("+ {rule}"));
    let all: Vec<String> = added.chain(removed.iter().map(|rule| format!("- {rule}"))).collect();
    if all.is_empty() { "another order".to_owned() } else { all.join(", ") }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Formats the hook of a base chain, such as `the hook prerouting (nat, priority -100)`.
fn hook(chain: &Chain) -> String {
    let Some(base) = &chain.base else { return "no hook".to_owned() };
    let hook = format!("{:?}", base.hook).to_lowercase();
    format!("the hook {hook} ({}, priority {})", base.kind.name(), base.priority)
}

fn kind(set: &Set) -> &'static str {
    if set.value.is_some() { "map" } else { "set" }
}

/// Describes how a set differs from what it should be.
fn set_differences(wanted: &Set, present: &Set) -> String {
    let of = |differs: bool, text: &'static str| differs.then_some(text);
    let differences = [
        of(wanted.key.data_types() != present.key.data_types(), "another type of key"),
        of(
            wanted.key.data_types() == present.key.data_types() && wanted.key != present.key,
            "its key declared in another way",
        ),
        of(wanted.value != present.value, "another type of value"),
        of(wanted.flags != present.flags, "other flags"),
        of(wanted.timeout != present.timeout, "another time-out"),
        of(wanted.comment != present.comment, "another comment"),
    ];
    let differences: Vec<&str> = differences.into_iter().flatten().collect();
    // The size matters only if nothing else differs.
    if differences.is_empty() { "another size".to_owned() } else { differences.join(", ") }
}

/// Formats the fields of a key or value with points between them, as nft does.
fn plain(types: &Types, data: &Data) -> String {
    let mut fields = Vec::new();
    let mut rest = data.as_slice();
    for data_type in types.data_types() {
        let (field, behind) = rest.split_at(data_type.size().next_multiple_of(4).min(rest.len()));
        fields.push(field_text(data_type, &field[..data_type.size().min(field.len())]));
        rest = behind;
    }
    fields.join(" . ")
}

fn field_text(data_type: DataType, bytes: &[u8]) -> String {
    let known = match data_type {
        DataType::Ipv4Addr | DataType::Ipv6Addr => reading::address(bytes).map(|address| address.to_string()),
        DataType::InetProto => bytes.first().map(|number| match reading::protocol(*number) {
            Some(protocol) => protocol.to_string(),
            None => format!("protocol {number}"),
        }),
        DataType::InetService => <[u8; 2]>::try_from(bytes).ok().map(|port| u16::from_be_bytes(port).to_string()),
        DataType::Integer | DataType::Mark => {
            <[u8; 4]>::try_from(bytes).ok().map(|number| u32::from_ne_bytes(number).to_string())
        }
        DataType::IfName => None,
    };
    known.unwrap_or_else(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Formats a frontend as `10.96.0.10:80/tcp`, or as `node port 30080/tcp`.
fn frontend_text(frontend: Frontend) -> String {
    let Frontend { destination, protocol, port } = frontend;
    match destination {
        Destination::Address(ip) => format!("{}/{protocol}", SocketAddr::new(ip, port)),
        Destination::NodePort(_) => format!("node port {port}/{protocol}"),
    }
}

/// A set or map of this program's table in one family.
#[derive(Clone, Copy)]
struct OurSet<'a> {
    family: Family,
    set: &'a Set,
    kind: Option<SetKind>,
}

impl<'a> OurSet<'a> {
    fn new(table: &TableName, set: &'a Set) -> Self {
        let family = if table.family == nft::Family::Ip6 { Family::V6 } else { Family::V4 };
        Self { family, set, kind: SetKind::of(&set.name) }
    }

    fn key(self, element: &Element) -> Option<(SetKind, Key)> {
        let kind = self.kind?;
        Some((kind, reading::key(kind, self.family, element.key.as_slice())?))
    }

    /// Whether the map holds endpoints, with frontend and slot number (the endpoint's index) as key.
    fn is_slotted(self) -> bool {
        matches!(self.kind, Some(SetKind::Endpoints(..)))
    }

    /// The frontend in an element's key, or the whole key when it has no frontend.
    fn frontend(self, element: &Element) -> String {
        match self.key(element).and_then(|(_, key)| key.frontend()) {
            Some(frontend) => frontend_text(frontend),
            None => plain(&self.set.key, &element.key),
        }
    }

    /// Names an element: in maps of endpoints and of verdicts by what it leads to, elsewhere by its key.
    fn noun(self, held: &LedElement) -> String {
        let element = &held.element;
        match (&element.value, self.kind) {
            (Value::Data(_), Some(SetKind::Endpoints(..))) => {
                format!("the endpoint {} of {}", self.value(element), self.frontend(element))
            }
            (Value::Verdict(_), Some(SetKind::VerdictMap(_))) => self.led_to(held),
            _ => self.place(element),
        }
    }

    /// Names an element by its key only.
    fn place(self, element: &Element) -> String {
        let text = plain(&self.set.key, &element.key);
        let Some((kind, key)) = self.key(element) else { return format!("the element {text}") };
        let frontend = || self.frontend(element);
        match (kind, key) {
            (SetKind::ClusterIps, _) => format!("the cluster IP {text}"),
            (SetKind::ExternalIps, _) => format!("the external or load balancer IP {text}"),
            (SetKind::NodePortAddresses, _) => format!("the address {text} for node ports"),
            (SetKind::ServiceCidrs, _) => format!("the range {}", self.range(element)),
            (SetKind::Hairpin, Key::Endpoint(endpoint, protocol)) => {
                format!("the endpoint {endpoint}/{protocol} on this node")
            }
            (SetKind::Restricted, _) => format!("the limit of sources of {}", frontend()),
            (SetKind::Sources, _) => format!("the source range {} of {}", self.range(element), frontend()),
            (SetKind::HealthChecks, Key::HealthCheck(port, _)) => format!("the health-check node port {port}"),
            (SetKind::ClusterPolicy(_), _) => format!("the frontend {} for pods and this host", frontend()),
            (SetKind::LocalPolicy(_), _) => format!("the frontend {} for other clients", frontend()),
            (SetKind::NoEndpoints(_), _) => format!("the refusal of {}, which has no endpoints,", frontend()),
            (SetKind::Affinity(..), _) => format!("the session affinity of {}", frontend()),
            (SetKind::Dispatch(_), _) => format!("the frontend {}", frontend()),
            (SetKind::Endpoints(..), Key::Numbered(_, number)) => format!("the slot {number} of {}", frontend()),
            (SetKind::VerdictMap(_), _) => format!("the number {text}"),
            _ => format!("the element {text}"),
        }
    }

    /// The destination of an element: an endpoint's address, or else the element's value.
    fn led_to(self, held: &LedElement) -> String {
        let endpoint = held.leads_to.as_deref().and_then(|comment| comment.split_once(" -> "));
        match (&held.element.value, endpoint) {
            (Value::Verdict(_), Some((_, endpoint))) => format!("the endpoint {endpoint}"),
            (Value::Verdict(verdict), None) => format!("`{verdict}`"),
            (Value::Data(_), _) if self.is_slotted() => format!("the endpoint {}", self.value(&held.element)),
            _ => format!("the value {}", self.value(&held.element)),
        }
    }

    /// The value of an element; for an endpoint, its address and port.
    fn value(self, element: &Element) -> String {
        let (Value::Data(data), Some(ValueType::Data(types))) = (&element.value, &self.set.value) else {
            return String::new();
        };
        let endpoint = match self.kind {
            Some(SetKind::Endpoints(..) | SetKind::Fallback(_)) => reading::slot_endpoint(self.family, data.as_slice()),
            _ => None,
        };
        endpoint.map_or_else(|| plain(types, data), |endpoint| endpoint.to_string())
    }

    /// The address range of an element, as a CIDR if it is one.
    fn range(self, element: &Element) -> String {
        let range = self.kind.and_then(|kind| reading::range(kind, self.family, element));
        let Some((first, last)) = range else { return plain(&self.set.key, &element.key) };
        let (number, last_number) = (bits(first), bits(last));
        let (varying, width) = (number ^ last_number, if first.is_ipv4() { 32 } else { 128 });
        let is_network = varying & varying.wrapping_add(1) == 0 && number & varying == 0;
        match (first == last, is_network) {
            (true, _) => first.to_string(),
            (false, true) => format!("{first}/{}", width - varying.count_ones()),
            (false, false) => format!("{first}-{last}"),
        }
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

//! A difference of a table in words, and the nft commands that put it right.
//!
//! Takes what differs, gives a sentence: for `verify` about the kernel, which is not as it should be, and for `render --diff` about the
//! rules, which become different. Pure. A set that no sentence knows is shown in nft syntax.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nft::{Chain, Command, DataType, Element, Rule, RuleDump, Set, TableName, Types, Value, ValueType};

use crate::diff::differences::What;
use crate::sync::{Subject, TableDifference};

/// What a sentence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tense {
    /// What is wrong with the table that is there.
    Wrong,
    /// What a change of the manifests changes.
    Change,
}

/// A sentence about a difference.
pub(crate) fn text(difference: &TableDifference, tense: Tense) -> String {
    let words = Words { table: &difference.table, subject: &difference.subject, tense };
    words.sentence(&difference.what)
}

/// The nft commands that put it right, one a line.
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
    fn sentence(&self, what: &What) -> String {
        let table = self.table;
        match what {
            What::NoTable => format!("there is no table {table}: no Service is served in this family"),
            What::Dormant => format!("the table {table} is dormant: no packet passes it"),
            What::Table(state) if state.unknown_flags != 0 => {
                format!("the table {table} has flags that this program never sets ({:#x})", state.unknown_flags)
            }
            What::Table(_) => format!("the table {table} has another comment"),
            What::Object(object) => format!("the table {table} holds the {object}, which is not this program's"),
            What::Unreadable(error) => format!("the table {table} holds what this program never writes: {error}"),
            What::NoChain(content) => self.missing(&format!("the chain {}", content.chain.name)),
            What::SurplusChain(chain, rules) => self.surplus_chain(chain, *rules),
            What::OtherChain { wanted, present } => self.other_chain(wanted, present),
            What::Rules { wanted, present } => self.rules(&wanted.chain.name, &wanted.rules, present),
            What::NoSet(set) => self.missing(&format!("the {} {}", kind(set), set.name)),
            What::SurplusSet(set) => self.surplus(&format!("the {} {}", kind(set), set.name)),
            What::OtherSet { wanted, present } => {
                let differs = set_differences(wanted, present);
                self.about(format_args!("the {} {} {} {differs}", kind(wanted), wanted.name, self.verb()))
            }
            What::Element { set, wanted, present } => self.element(set, wanted.as_ref(), present.as_ref()),
            What::StaleClient { set, element } => self.about(format_args!(
                "the map {} sends the client {} to {}, which is no endpoint for it",
                set.name,
                plain(&set.key, &element.key),
                value(set, element)
            )),
        }
    }

    /// The subject with something that it should have.
    fn missing(&self, what: &str) -> String {
        match (self.subject, self.tense) {
            (Subject::Table, Tense::Wrong) => format!("{what} is missing in the table {}", self.table),
            (_, Tense::Wrong) => format!("{} lacks {what}", self.name()),
            (_, Tense::Change) => format!("{} gets {what}", self.name()),
        }
    }

    /// The subject with something that it should not have.
    fn surplus(&self, what: &str) -> String {
        match (self.subject, self.tense) {
            (Subject::Table, Tense::Wrong) => format!("{what} in the table {} is not this program's", self.table),
            (_, Tense::Wrong) => format!("{} should not have {what}", self.name()),
            (_, Tense::Change) => format!("{} loses {what}", self.name()),
        }
    }

    /// The subject in front of a sentence that names something else.
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

    /// Which rules of a chain are missing, and which are not wanted.
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

    fn element(&self, set: &Set, wanted: Option<&Element>, present: Option<&Element>) -> String {
        match (wanted, present) {
            (Some(wanted), None) => self.missing(&format!("{} in {}", noun(set, wanted), set.name)),
            (None, Some(present)) => match (self.subject, self.tense) {
                (Subject::Table, Tense::Wrong) => {
                    format!(
                        "an element of no Service: {} in {} of the table {}",
                        noun(set, present),
                        set.name,
                        self.table
                    )
                }
                _ => self.surplus(&format!("{} in {}", noun(set, present), set.name)),
            },
            (Some(wanted), Some(present)) => self.other_element(set, wanted, present),
            (None, None) => String::new(),
        }
    }

    fn other_element(&self, set: &Set, wanted: &Element, present: &Element) -> String {
        let verb = self.verb();
        let (this, other) = if self.tense == Tense::Wrong { (present, wanted) } else { (wanted, present) };
        let place = place(set, wanted);
        let (is, instead) = (led_to(set, this), led_to(set, other));
        if is != instead {
            // The number of the slot says nothing.
            let of = if is_slotted(set) { format!("of {}", front(set, wanted)) } else { format!("for {place}") };
            return format!("{} {verb} {is} in place of {instead} {of} in {}", self.name(), set.name);
        }
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

/// `the hook prerouting (nat, priority -100)`.
fn hook(chain: &Chain) -> String {
    let Some(base) = &chain.base else { return "no hook".to_owned() };
    let hook = format!("{:?}", base.hook).to_lowercase();
    format!("the hook {hook} ({}, priority {})", base.kind.name(), base.priority)
}

fn kind(set: &Set) -> &'static str {
    if set.value.is_some() { "map" } else { "set" }
}

/// In what a set differs from the wanted one.
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
    // How much room there is counts only in a set of the right kind.
    if differences.is_empty() { "another size".to_owned() } else { differences.join(", ") }
}

/// A field of a key or value.
enum Part {
    Address(IpAddr),
    Protocol(String),
    Port(u16),
    Number(u32),
    Other(String),
}

/// The fields of a key or value.
fn parts(types: &Types, data: &nft::Data) -> Vec<Part> {
    let types = types.data_types();
    let mut rest = data.as_slice();
    let part = |data_type: DataType| {
        let (field, behind) = rest.split_at(data_type.size().next_multiple_of(4).min(rest.len()));
        rest = behind;
        part(data_type, &field[..data_type.size().min(field.len())])
    };
    types.into_iter().map(part).collect()
}

fn part(data_type: DataType, bytes: &[u8]) -> Part {
    let known = match data_type {
        DataType::Ipv4Addr => <[u8; 4]>::try_from(bytes).ok().map(|ip| Part::Address(Ipv4Addr::from(ip).into())),
        DataType::Ipv6Addr => <[u8; 16]>::try_from(bytes).ok().map(|ip| Part::Address(Ipv6Addr::from(ip).into())),
        DataType::InetProto => bytes.first().map(|number| Part::Protocol(protocol(*number))),
        DataType::InetService => <[u8; 2]>::try_from(bytes).ok().map(|port| Part::Port(u16::from_be_bytes(port))),
        DataType::Integer | DataType::Mark => {
            <[u8; 4]>::try_from(bytes).ok().map(|number| Part::Number(u32::from_ne_bytes(number)))
        }
        DataType::IfName => None,
    };
    known.unwrap_or_else(|| Part::Other(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
}

fn protocol(number: u8) -> String {
    match number {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        132 => "sctp".to_owned(),
        number => format!("protocol {number}"),
    }
}

/// Fields with points between them, as nft has them.
fn plain(types: &Types, data: &nft::Data) -> String {
    let text = |part: Part| match part {
        Part::Address(ip) => ip.to_string(),
        Part::Protocol(text) | Part::Other(text) => text,
        Part::Port(port) => port.to_string(),
        Part::Number(number) => number.to_string(),
    };
    parts(types, data).into_iter().map(text).collect::<Vec<_>>().join(" . ")
}

/// The front at the beginning of a key: `10.96.0.10:80/tcp`, `node port 30080/tcp`, or what is there.
fn front(set: &Set, element: &Element) -> String {
    let parts = parts(&set.key, &element.key);
    match &parts[..] {
        [Part::Address(ip), Part::Protocol(protocol), Part::Port(port), ..] => {
            format!("{}/{protocol}", SocketAddr::new(*ip, *port))
        }
        [Part::Protocol(protocol), Part::Port(port), ..] => format!("node port {port}/{protocol}"),
        [Part::Address(ip), Part::Port(port)] => SocketAddr::new(*ip, *port).to_string(),
        [Part::Port(port), ..] => format!("node port {port}"),
        _ => plain(&set.key, &element.key),
    }
}

/// What an element is, with its key and its value.
fn noun(set: &Set, element: &Element) -> String {
    match &element.value {
        Value::Data(_) if is_slotted(set) => format!("the endpoint {} of {}", value(set, element), front(set, element)),
        _ => place(set, element),
    }
}

/// What an element is, with its key only.
fn place(set: &Set, element: &Element) -> String {
    let front = || front(set, element);
    match &*set.name {
        "cluster-ips" => format!("the cluster IP {}", plain(&set.key, &element.key)),
        "nodeport-addresses" => format!("the address {} for node ports", plain(&set.key, &element.key)),
        "service-cidrs" => format!("the range {}", range(set, element)),
        "hairpin" => format!("the endpoint {} on this node", hairpin(set, element)),
        "lb-restricted" => format!("the limit of sources of {}", front()),
        "lb-sources" => format!("the source range {} of {}", range(set, element), front()),
        "health-check-nodeports" => format!("the health-check {}", front()),
        "cluster-policy" | "nodeport-cluster-policy" => format!("the front {} for pods and this host", front()),
        "local-policy" | "nodeport-local-policy" => format!("the front {} for other clients", front()),
        name if name.starts_with("no-endpoints") => format!("the refusal of {}, which has no endpoints,", front()),
        name if name.starts_with("affinity-services-") || name.starts_with("affinity-nodeports-") => {
            let protocol = name.rsplit('-').next().unwrap_or_default();
            format!("the session affinity of {}/{protocol}", front())
        }
        "services" | "nodeports" | "KUBE-SERVICES" | "KUBE-NODEPORTS" => format!("the front {}", front()),
        _ if is_slotted(set) => format!("the slot {} of {}", slot(set, element), front()),
        _ => format!("the element {}", plain(&set.key, &element.key)),
    }
}

/// Whether a map has endpoints by front and slot.
fn is_slotted(set: &Set) -> bool {
    matches!(&set.value, Some(ValueType::Data(_))) && set.key.data_types().last() == Some(&DataType::Integer)
}

fn slot(set: &Set, element: &Element) -> String {
    match parts(&set.key, &element.key).pop() {
        Some(Part::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn hairpin(set: &Set, element: &Element) -> String {
    match &parts(&set.key, &element.key)[..] {
        [Part::Address(ip), _, Part::Protocol(protocol), Part::Port(port)] => {
            format!("{}/{protocol}", SocketAddr::new(*ip, *port))
        }
        _ => plain(&set.key, &element.key),
    }
}

/// Where an element leads: an endpoint by its address, or what its value is.
fn led_to(set: &Set, element: &Element) -> String {
    match &element.value {
        Value::Verdict(verdict) => format!("`{verdict}`"),
        Value::Data(_) if is_slotted(set) => format!("the endpoint {}", value(set, element)),
        _ => format!("the value {}", value(set, element)),
    }
}

/// The value of an element; an endpoint as address and port.
fn value(set: &Set, element: &Element) -> String {
    let (Value::Data(data), Some(ValueType::Data(types))) = (&element.value, &set.value) else {
        return String::new();
    };
    match &parts(types, data)[..] {
        [Part::Address(ip), Part::Port(port)] => SocketAddr::new(*ip, *port).to_string(),
        _ => plain(types, data),
    }
}

/// The range of the last field of a key.
fn range(set: &Set, element: &Element) -> String {
    let last = |data: &nft::Data| match parts(&set.key, data).pop() {
        Some(Part::Address(ip)) => Some(ip),
        _ => None,
    };
    let first = last(&element.key);
    let (Some(first), Some(end)) = (first, element.key_end.as_deref().and_then(last).or(first)) else {
        return plain(&set.key, &element.key);
    };
    let (number, end_number) = (bits(first), bits(end));
    let (varying, width) = (number ^ end_number, if first.is_ipv4() { 32 } else { 128 });
    let is_network = varying & varying.wrapping_add(1) == 0 && number & varying == 0;
    match (first == end, is_network) {
        (true, _) => first.to_string(),
        (false, true) => format!("{first}/{}", width - varying.count_ones()),
        (false, false) => format!("{first}-{end}"),
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

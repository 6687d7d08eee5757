//! Writes statements and rules, as nft lists them.

use std::fmt;
use std::net::IpAddr;

use crate::data::Data;
use crate::datatype::DataType;
use crate::expr::FibAddress;
use crate::field::Field;
use crate::object::{Rule, RuleDump};
use crate::raise::Part;
use crate::statement::{CtBit, Operand, Statement};
use crate::table::Family;
use crate::text::element::{protocol_name, values};
use crate::text::foreign;
use crate::text::words::{comment, duration, interface_start};

impl RuleDump {
    /// The rule as nft lists it in a table of the family. An expression for which this crate has no nft text is written in brackets, in the
    /// style of `nft --debug=netlink`.
    #[must_use]
    pub fn to_nft(&self, family: Family) -> String {
        if let Some(rule) = self.to_rule(family) {
            return Scope::table(family).rule(&rule);
        }
        let scope = Scope::table(family);
        let mut words = Vec::new();
        let mut at = 0;
        while let Some(rest) = self.exprs.get(at..).filter(|rest| !rest.is_empty()) {
            let (text, len) = match self.part(at, family) {
                (Part::Statement(statement), len) => (scope.statement(&statement), len),
                (Part::Expr(_), _) => foreign::words(rest).unwrap_or_else(|| (rest[0].to_string(), 1)),
            };
            words.push(text);
            at += len;
        }
        words.join(" ") + &comment(self.comment.as_deref())
    }
}

/// The context that the text of a statement depends on.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    /// The table's family; `None` when it is unknown.
    family: Option<Family>,
    /// The name of the transport header: `th` until the rule has matched a protocol.
    transport: &'static str,
}

impl Default for Scope {
    fn default() -> Self {
        Self { family: None, transport: "th" }
    }
}

/// The statement as nft lists it in an `ip` table.
impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Scope::default().statement(self))
    }
}

impl Scope {
    /// The context of a rule in a table of the family.
    pub(super) fn table(family: Family) -> Self {
        Self { family: Some(family), ..Self::default() }
    }

    /// The rule with its comment. As in nft's listings, `meta l4proto tcp th dport 80` becomes `tcp dport 80`.
    pub(super) fn rule(mut self, rule: &Rule) -> String {
        let mut words = Vec::new();
        for (i, statement) in rule.statements.iter().enumerate() {
            if let Some(name) = matched_transport(statement) {
                self.transport = name;
                if is_implied(&rule.statements[i + 1..]) {
                    continue;
                }
            }
            words.push(self.statement(statement));
        }
        words.join(" ") + &comment(rule.comment.as_deref())
    }

    fn statement(&self, statement: &Statement) -> String {
        match statement {
            Statement::Match(fields, operand) => self.comparison(fields, operand),
            Statement::FibLocal(FibAddress::Source) => "fib saddr type local".to_owned(),
            Statement::FibLocal(FibAddress::Destination) => "fib daddr type local".to_owned(),
            Statement::CtBit(bit) => ct_bit(*bit).to_owned(),
            Statement::TcpSyn => "tcp flags & (fin | syn | rst | ack) == syn".to_owned(),
            Statement::EchoRequest if self.family == Some(Family::Ip6) => "icmpv6 type echo-request".to_owned(),
            Statement::EchoRequest => "icmp type echo-request".to_owned(),
            Statement::CtPacketsOver(number) => format!("ct packets > {number}"),
            Statement::MarkBits { mask, set } => {
                let operator = if *set { "!=" } else { "==" };
                format!("meta mark & {} {operator} {}", mark(*mask), mark(0))
            }
            Statement::SetMarkBits(bits) => format!("meta mark set meta mark | {}", mark(*bits)),
            Statement::ClearMarkBits(bits) => format!("meta mark set meta mark & {}", mark(!*bits)),
            Statement::Vmap(fields, map) => format!("{} vmap @{map}", self.fields(fields)),
            Statement::DnatToMap(fields, map) => {
                let family = self.address_family(fields);
                format!("dnat {family} to {} map @{map}", self.fields(fields))
            }
            Statement::DnatToMapAndPort(fields, map, port) => {
                format!("dnat to {} map @{map}:{port}", self.fields(fields))
            }
            Statement::Dnat(to) => self.dnat(to.ip(), to),
            Statement::DnatAddress(to) => self.dnat(*to, to),
            Statement::MasqueradeFullyRandom => "masquerade fully-random".to_owned(),
            Statement::Reject => "reject".to_owned(),
            Statement::RejectTcp => "reject with tcp reset".to_owned(),
            Statement::Update { set, key, value, timeout } => {
                let timeout = timeout.map_or_else(String::new, |t| format!(" timeout {}", duration(t)));
                let value = if value.is_empty() { String::new() } else { format!(" : {}", self.fields(value)) };
                format!("update @{set} {{ {}{timeout}{value} }}", self.fields(key))
            }
            Statement::Counter => "counter".to_owned(),
            Statement::LimitRate { per_second, burst } => {
                format!("limit rate {per_second}/second burst {burst} packets")
            }
            Statement::Trace => "meta nftrace set 1".to_owned(),
            Statement::FlowAdd(flowtable) => format!("flow add @{flowtable}"),
            Statement::Verdict(verdict) => verdict.to_string(),
        }
    }

    /// The text of a DNAT to a fixed address, with its port if it has one. nft writes the family of the address only in an `inet` table.
    fn dnat(&self, address: IpAddr, to: &dyn fmt::Display) -> String {
        match (self.family, address) {
            (Some(Family::Inet), IpAddr::V4(_)) => format!("dnat ip to {to}"),
            (Some(Family::Inet), IpAddr::V6(_)) => format!("dnat ip6 to {to}"),
            _ => format!("dnat to {to}"),
        }
    }

    fn comparison(&self, fields: &[Field], operand: &Operand) -> String {
        let operand = match operand {
            Operand::Is(data) => value(fields, data),
            Operand::IsNot(data) => format!("!= {}", value(fields, data)),
            Operand::InPrefix(ip, len) => prefix(*ip, *len),
            Operand::NotInPrefix(ip, len) => format!("!= {}", prefix(*ip, *len)),
            Operand::StartsWith(start) => interface_start(start),
            Operand::StartsNotWith(start) => format!("!= {}", interface_start(start)),
            Operand::InSet(set) => format!("@{set}"),
            Operand::NotInSet(set) => format!("!= @{set}"),
        };
        format!("{} {operand}", self.fields(fields))
    }

    /// Fields, joined with dots.
    fn fields(&self, fields: &[Field]) -> String {
        let names: Vec<String> = fields.iter().map(|field| self.field(*field)).collect();
        names.join(" . ")
    }

    fn field(&self, field: Field) -> String {
        match field {
            Field::ThSport => format!("{} sport", self.transport),
            Field::ThDport => format!("{} dport", self.transport),
            other => other.to_string(),
        }
    }

    /// The family of the addresses in a map: that of the table, or of the fields of the map's key.
    fn address_family(&self, fields: &[Field]) -> Family {
        let is_ipv6 = fields.iter().any(|field| field.data_type() == DataType::Ipv6Addr);
        match self.family {
            Some(family @ (Family::Ip | Family::Ip6)) => family,
            _ if is_ipv6 => Family::Ip6,
            _ => Family::Ip,
        }
    }
}

const fn ct_bit(bit: CtBit) -> &'static str {
    match bit {
        CtBit::StateNew => "ct state new",
        CtBit::StateNewOrUntracked => "ct state new,untracked",
        CtBit::StateEstablished => "ct state established",
        CtBit::StateInvalid => "ct state invalid",
        CtBit::StatusDnat => "ct status dnat",
    }
}

fn mark(number: u32) -> String {
    DataType::Mark.format(&number.to_ne_bytes())
}

fn value(fields: &[Field], data: &Data) -> String {
    match fields {
        // Data that is shorter than a whole padded name is compared with the start of the name.
        [Field::IifName] if data.len() < DataType::IfName.size() => {
            interface_start(&String::from_utf8_lossy(data.as_slice()))
        }
        _ => {
            let types: Vec<DataType> = fields.iter().map(|field| field.data_type()).collect();
            values(&types, data)
        }
    }
}

/// A network as nft lists it: without the prefix length when that is the length of a whole address.
fn prefix(ip: IpAddr, len: u8) -> String {
    let whole = if ip.is_ipv4() { 32 } else { 128 };
    if len >= whole { ip.to_string() } else { format!("{ip}/{len}") }
}

/// The transport protocol that a statement matches, if nft has a name for its header.
fn matched_transport(statement: &Statement) -> Option<&'static str> {
    let Statement::Match(fields, Operand::Is(protocol)) = statement else { return None };
    match (fields.as_slice(), protocol.as_slice()) {
        ([Field::L4Proto], [number]) => protocol_name(*number),
        _ => None,
    }
}

/// Whether nft leaves out a match of the protocol, because a later statement has it in its text (`tcp dport`). The later statement must be
/// one of the comparisons that follow, or the first statement after these comparisons.
fn is_implied(following: &[Statement]) -> bool {
    let comparisons = following.iter().take_while(|statement| is_comparison(statement)).count();
    following.iter().take(comparisons + 1).any(names_transport)
}

const fn is_comparison(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Match(..)
            | Statement::FibLocal(_)
            | Statement::CtBit(_)
            | Statement::TcpSyn
            | Statement::EchoRequest
            | Statement::CtPacketsOver(_)
            | Statement::MarkBits { .. }
    )
}

fn names_transport(statement: &Statement) -> bool {
    let is_port = |field: &Field| matches!(field, Field::ThSport | Field::ThDport);
    match statement {
        Statement::Match(fields, _)
        | Statement::Vmap(fields, _)
        | Statement::DnatToMap(fields, _)
        | Statement::DnatToMapAndPort(fields, _, _) => fields.iter().any(is_port),
        Statement::Update { key, value, .. } => key.iter().chain(value).any(is_port),
        _ => false,
    }
}

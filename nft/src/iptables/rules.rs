//! The chains and rules of a table of iptables-legacy as if nf_tables had them, so that one interpreter follows packets through both.
//!
//! The header of an entry and its matches become conditions, and its target becomes a statement. A match or a target that has no such form
//! keeps its name ([`Foreign::XtMatch`], [`Foreign::XtTarget`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::table::{BUILT_IN, Entry, Kind, Table, text};
use crate::connection::{HookedChain, OfChain};
use crate::data::{Data, Verdict};
use crate::decode::{ChainHead, Effects, Extension, HookHead, HookOutline, RuleHead};
use crate::expr::{CmpOp, Expr, Foreign, Register};
use crate::field::Field;
use crate::object::{ChainType, Hook, RuleDump};
use crate::statement::{Operand, Statement};
use crate::table::{Family, TableName};

/// A chain of iptables-legacy with its rules.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The chain; a built-in one has the hook at which the kernel calls it.
    pub head: ChainHead,
    /// Its rules, without the policy.
    pub rules: Arc<[RuleHead]>,
}

impl Chain {
    /// Whether the kernel calls it, and it has a rule or the policy `DROP`.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.head.hook.as_ref().is_some_and(|hook| hook.drops || !self.rules.is_empty())
    }
}

/// The name of a table of iptables-legacy among those of nf_tables, which may have one of the same name.
#[must_use]
pub fn table_name(family: Family, table: &str) -> TableName {
    TableName::new(family, &format!("{table} of iptables-legacy"))
}

/// The verdict of a standard target that drops packets, accepts them, or leaves the chain (`XT_RETURN`).
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

/// The offsets of the fields of `struct ipt_ip` and `struct ip6t_ip6` that differ; the addresses are at the start of both.
struct Header {
    /// The length of an address, in bytes. Source, destination and their masks follow each other.
    address: usize,
    /// The offset of the names of both interfaces, which their masks follow.
    interfaces: usize,
    protocol: usize,
    flags: usize,
    inverted: usize,
    /// The flag that makes a jump a `goto`.
    goto: u8,
    /// The flag that the rule is about later fragments.
    fragment: u8,
    /// The flag that the type of service counts.
    service: u8,
}

const V4: Header =
    Header { address: 4, interfaces: 16, protocol: 80, flags: 82, inverted: 83, goto: 2, fragment: 1, service: 0 };
const V6: Header =
    Header { address: 16, interfaces: 64, protocol: 128, flags: 131, inverted: 132, goto: 4, fragment: 0, service: 2 };

/// The length of an interface's name in a header, and of its mask.
const NAME: usize = 16;

/// Bits of `invflags`.
mod inverted {
    pub(super) const INPUT: u8 = 1;
    pub(super) const OUTPUT: u8 = 1 << 1;
    pub(super) const SOURCE: u8 = 1 << 3;
    pub(super) const DESTINATION: u8 = 1 << 4;
    pub(super) const PROTOCOL: u8 = 1 << 6;
}

/// The priority of the chains of a table at a hook (`enum nf_ip_hook_priorities`).
fn priority(table: &str, hook: Hook) -> i32 {
    match (table, hook) {
        ("raw", _) => -300,
        ("mangle", _) => -150,
        ("nat", Hook::Prerouting | Hook::Output) => -100,
        ("nat", _) => 100,
        ("security", _) => 50,
        _ => 0,
    }
}

impl Table<'_> {
    /// The chains of this table, whose name is `name`.
    #[must_use]
    pub fn chains(&self, name: &str) -> Vec<Chain> {
        let table = table_name(self.family, name);
        let mut rules: BTreeMap<usize, Vec<RuleHead>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| matches!(entry.kind, Kind::Rule(_))) {
            let rule = RuleHead { handle: 0, rule: RuleDump { exprs: self.exprs(entry), comment: None } };
            rules.entry(entry.chain).or_default().push(rule);
        }
        let chain = |(number, chain): (&usize, &Arc<str>)| {
            let (name, hook) = (Arc::clone(chain), self.hook(name, *number));
            let head = ChainHead { table: table.clone(), name, comment: None, hook };
            Chain { head, rules: rules.remove(number).unwrap_or_default().into() }
        };
        self.chains.iter().map(chain).collect()
    }

    /// The built-in chains of this table, whose name is `name`, with what their rules may do. Leaves out those that do nothing, because they
    /// have neither rules nor the policy `DROP`.
    #[must_use]
    pub fn hooked_chains(&self, name: &str) -> Vec<HookedChain> {
        let mut chains: BTreeMap<Arc<str>, OfChain> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| matches!(entry.kind, Kind::Rule(_))) {
            let Some(chain) = self.chains.get(&entry.chain) else { continue };
            chains.entry(Arc::clone(chain)).or_default().add(self.effects(entry), self.jump(entry).cloned());
        }
        let hooked = |(number, chain): (&usize, &Arc<str>)| {
            let HookHead { kind, number, priority, drops } = self.hook(name, *number)?;
            let hook = Hook::of_number(number).filter(|_| drops || chains.contains_key(chain))?;
            let table = table_name(self.family, name);
            let outline = HookOutline { table, chain: Arc::clone(chain), kind, hook, priority, drops };
            Some(HookedChain::of(outline, &chains))
        };
        self.chains.iter().filter_map(hooked).collect()
    }

    fn hook(&self, table: &str, chain: usize) -> Option<HookHead> {
        let number = u32::try_from(chain).ok().filter(|_| chain < BUILT_IN.len())?;
        let hook = Hook::of_number(number)?;
        let foot = self.entries.iter().find(|entry| entry.chain == chain && entry.kind == Kind::Foot)?;
        let kind = if table == "nat" { ChainType::Nat } else { ChainType::Filter };
        Some(HookHead {
            kind: kind.name().into(),
            number,
            priority: priority(table, hook),
            drops: self.verdict(foot) == Some(DROP),
        })
    }

    fn verdict(&self, entry: &Entry) -> Option<i32> {
        self.contents.bytes.get(entry.verdict?..)?.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
    }

    /// The chain to which a rule jumps.
    fn jump(&self, entry: &Entry) -> Option<&Arc<str>> {
        match entry.kind {
            Kind::Rule(Some(to)) => self.chain_at(to),
            _ => None,
        }
    }

    fn effects(&self, entry: &Entry) -> Effects {
        match self.verdict(entry) {
            Some(verdict) => Effects { drops: verdict == DROP, ..Effects::default() },
            None => self.extensions(entry).pop().map_or_else(Effects::default, Extension::effects),
        }
    }

    /// The matches of an entry, and then its target.
    fn extensions(&self, entry: &Entry) -> Vec<Extension<'_>> {
        let bytes = self.contents.bytes.get(entry.place.clone()).unwrap_or_default();
        let (mut at, target) = (self.offsets().end, self.target(bytes));
        let mut found = Vec::new();
        while let Some((extension, len)) = bytes.get(at..).and_then(extension).filter(|(_, len)| at + len <= target) {
            found.push(extension);
            at += len;
        }
        let target = bytes.get(target..).and_then(extension).map(|(target, _)| target);
        found.into_iter().chain(target).collect()
    }

    /// The expressions of a rule.
    fn exprs(&self, entry: &Entry) -> Vec<Expr> {
        let header = if self.family == Family::Ip { &V4 } else { &V6 };
        let bytes = self.contents.bytes.get(entry.place.clone()).unwrap_or_default();
        let mut exprs = conditions(header, bytes).unwrap_or_else(|| vec![named(Foreign::XtMatch("header".into()))]);
        let mut extensions = self.extensions(entry);
        let target = extensions.pop();
        exprs.extend(extensions.into_iter().flat_map(Extension::matching));
        match (self.verdict(entry), self.jump(entry)) {
            (Some(_), Some(chain)) if bytes.get(header.flags).is_some_and(|flags| flags & header.goto != 0) => {
                exprs.push(Expr::ImmediateVerdict(Verdict::Goto(Arc::clone(chain))));
            }
            (Some(_), Some(chain)) => exprs.push(Expr::ImmediateVerdict(Verdict::Jump(Arc::clone(chain)))),
            (Some(DROP), None) => exprs.push(Expr::ImmediateVerdict(Verdict::Drop)),
            (Some(ACCEPT), None) => exprs.push(Expr::ImmediateVerdict(Verdict::Accept)),
            (Some(RETURN), None) => exprs.push(Expr::ImmediateVerdict(Verdict::Return)),
            // A rule without a target: its verdict is the offset of the next entry.
            (Some(0..), None) => {}
            (Some(_), None) => exprs.push(named(Foreign::XtTarget("QUEUE".into()))),
            (None, _) => exprs.extend(target.into_iter().flat_map(|target| target.target(self.family))),
        }
        exprs
    }
}

fn named(foreign: Foreign) -> Expr {
    Expr::Foreign(Arc::new(foreign))
}

/// The match or target at the start of `bytes` (`xt_entry_match`, `xt_entry_target`), and its length.
fn extension(bytes: &[u8]) -> Option<(Extension<'_>, usize)> {
    const HEAD: usize = 32;
    let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let name = std::str::from_utf8(text(bytes.get(2..HEAD - 1)?)).ok()?;
    Some((Extension { name, revision: *bytes.get(HEAD - 1)?, info: bytes.get(HEAD..len)? }, len))
}

/// The conditions in the header of an entry; `None` when one of them has no form in nf_tables.
fn conditions(header: &Header, bytes: &[u8]) -> Option<Vec<Expr>> {
    let (flags, inverted) = (*bytes.get(header.flags)?, *bytes.get(header.inverted)?);
    if flags & (header.fragment | header.service) != 0 {
        return None;
    }
    let is = |bit: u8| inverted & bit == 0;
    let at = |index: usize| bytes.get(index * header.address..(index + 1) * header.address);
    let [source, destination] =
        if header.address == 4 { [Field::IpSaddr, Field::IpDaddr] } else { [Field::Ip6Saddr, Field::Ip6Daddr] };
    let mut exprs = address(source, at(0)?, at(2)?, is(inverted::SOURCE))?;
    exprs.extend(address(destination, at(1)?, at(3)?, is(inverted::DESTINATION))?);
    let name = |index: usize| bytes.get(header.interfaces + index * NAME..)?.get(..NAME);
    exprs.extend(interface(Field::IifName.load(Register::FIRST), name(0)?, name(2)?, is(inverted::INPUT))?);
    exprs.extend(interface(vec![output()], name(1)?, name(3)?, is(inverted::OUTPUT))?);
    let protocol = u16::from_ne_bytes(*bytes.get(header.protocol..)?.first_chunk()?);
    if protocol != 0 {
        let protocol = Data::from(u8::try_from(protocol).ok()?);
        let operand = if is(inverted::PROTOCOL) { Operand::Is(protocol) } else { Operand::IsNot(protocol) };
        exprs.extend(Statement::Match(vec![Field::L4Proto], operand).lower(Family::Inet));
    }
    Some(exprs)
}

/// Compares an address with a network, whose mask has to be that of a prefix.
fn address(field: Field, network: &[u8], mask: &[u8], is_in: bool) -> Option<Vec<Expr>> {
    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let leading = mask.iter().take_while(|byte| **byte == u8::MAX).count();
    let rest = mask.get(leading).map_or(0, |byte| byte.leading_ones());
    let len = u32::try_from(leading * 8).ok()? + rest;
    match (len == ones, len, is_in) {
        (false, ..) => None,
        (true, 0, true) => Some(Vec::new()),
        _ => {
            let ip = match network.len() {
                4 => <[u8; 4]>::try_from(network).ok()?.into(),
                _ => <[u8; 16]>::try_from(network).ok()?.into(),
            };
            let prefix = if is_in { Operand::InPrefix } else { Operand::NotInPrefix };
            Some(Statement::Match(vec![field], prefix(ip, u8::try_from(len).ok()?)).lower(Family::Inet))
        }
    }
}

/// Loads the name of the output interface.
fn output() -> Expr {
    const OIFNAME: u32 = 7;
    named(Foreign::Meta { key: OIFNAME, dreg: Register::FIRST })
}

/// Compares the name of an interface, which `load` loads, with one or with the start of one.
fn interface(load: Vec<Expr>, name: &[u8], mask: &[u8], is_it: bool) -> Option<Vec<Expr>> {
    let len = mask.iter().take_while(|byte| **byte == u8::MAX).count();
    if mask[len..].iter().any(|byte| *byte != 0) {
        return None;
    }
    if len == 0 && is_it {
        return Some(Vec::new());
    }
    // A whole name is compared with the zeros behind it.
    let is_whole = name[..len].contains(&0) || len == NAME;
    let data = Data::from_bytes(if is_whole { name } else { &name[..len] })?;
    let op = if is_it { CmpOp::Eq } else { CmpOp::Ne };
    Some([load, vec![Expr::Cmp { op, sreg: Register::FIRST, data }]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of the conditions in a header of zeros, after `write` has changed it.
    fn text(header: &Header, family: Family, write: impl FnOnce(&mut [u8])) -> Option<String> {
        let mut bytes = [0; 136];
        write(&mut bytes);
        let exprs = conditions(header, &bytes)?;
        Some(RuleDump { exprs, comment: None }.to_nft(family))
    }

    /// Writes the name of an interface and its mask, the input interface for 0 and the output interface for 1.
    fn set_interface(header: &Header, bytes: &mut [u8], index: usize, name: &[u8]) {
        let at = header.interfaces + index * NAME;
        bytes[at..at + name.len()].copy_from_slice(name);
        bytes[at + 2 * NAME..at + 2 * NAME + name.len()].fill(0xff);
    }

    #[test]
    fn a_header_without_conditions_matches_each_packet() {
        for (header, family) in [(&V4, Family::Ip), (&V6, Family::Ip6)] {
            assert_eq!(text(header, family, |_| {}).as_deref(), Some(""));
        }
    }

    #[test]
    fn addresses_interfaces_and_the_protocol_are_compared() {
        for (header, family, expected) in [
            (
                &V4,
                Family::Ip,
                "ip saddr 10.0.0.0/8 ip daddr != 7.7.7.7 iifname \"eth*\" oifname != \"lo\" meta l4proto != tcp",
            ),
            (
                &V6,
                Family::Ip6,
                "ip6 saddr a00::/8 ip6 daddr != 707:707:707:707:707:707:707:707 iifname \"eth*\" oifname != \"lo\" meta l4proto != tcp",
            ),
        ] {
            let found = text(header, family, |bytes| {
                let len = header.address;
                bytes[0] = 10;
                bytes[len..2 * len].fill(7);
                bytes[2 * len] = 0xff;
                bytes[3 * len..4 * len].fill(0xff);
                set_interface(header, bytes, 0, b"eth");
                set_interface(header, bytes, 1, b"lo\0");
                bytes[header.protocol..header.protocol + 2].copy_from_slice(&6_u16.to_ne_bytes());
                bytes[header.inverted] = inverted::DESTINATION | inverted::OUTPUT | inverted::PROTOCOL;
            });
            assert_eq!(found.as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_mask_that_is_no_prefix_and_a_rule_for_fragments_have_no_form() {
        let odd = |bytes: &mut [u8]| bytes[2 * V4.address..3 * V4.address].copy_from_slice(&[0xff, 0, 0xff, 0]);
        assert_eq!(text(&V4, Family::Ip, odd), None);
        assert_eq!(text(&V4, Family::Ip, |bytes| bytes[V4.flags] = V4.fragment), None);
        assert_eq!(text(&V6, Family::Ip6, |bytes| bytes[V6.flags] = V6.service), None);
    }
}

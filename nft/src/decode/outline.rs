//! Decodes only an outline of other programs' tables: the names of chains, and the jumps and effects of rules.
//!
//! The rules of other programs have expressions that this crate cannot express, such as the matches and targets of iptables-nft. A caller
//! that deletes some rules from a table of another program needs only the names of the chains and the chain that each rule jumps to. For a
//! message that they cannot read, the functions of this module give `None` and not an error, because another program may write objects that
//! this crate does not know.

use std::sync::Arc;

use super::extension::{Effects, Extension};
use super::messages::Header;
use crate::object::{Hook, NamedObject, ObjectKind};
use crate::table::{Family, TableName};
use crate::wire::{Attr, Attrs, SUBSYSTEM, kind};

/// Numbers of attributes and values (`linux/netfilter/nf_tables.h`).
mod number {
    pub(super) const CHAIN_TABLE: u16 = 1;
    pub(super) const CHAIN_NAME: u16 = 3;
    pub(super) const CHAIN_HOOK: u16 = 4;
    pub(super) const CHAIN_POLICY: u16 = 5;
    pub(super) const CHAIN_TYPE: u16 = 7;
    pub(super) const HOOK_NUMBER: u16 = 1;
    pub(super) const HOOK_PRIORITY: u16 = 2;

    pub(super) const RULE_TABLE: u16 = 1;
    pub(super) const RULE_CHAIN: u16 = 2;
    pub(super) const RULE_HANDLE: u16 = 3;
    pub(super) const RULE_EXPRESSIONS: u16 = 4;

    pub(super) const OBJECT_TABLE: u16 = 1;
    pub(super) const OBJECT_NAME: u16 = 2;
    pub(super) const OBJECT_TYPE: u16 = 3;
    pub(super) const OBJECT_USE: u16 = 5;

    pub(super) const FLOWTABLE_TABLE: u16 = 1;
    pub(super) const FLOWTABLE_NAME: u16 = 2;
    pub(super) const FLOWTABLE_USE: u16 = 4;

    pub(super) const EXPRESSION_NAME: u16 = 1;
    pub(super) const EXPRESSION_DATA: u16 = 2;
    pub(super) const IMMEDIATE_DATA: u16 = 2;
    pub(super) const DATA_VERDICT: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
    pub(super) const VERDICT_CHAIN: u16 = 2;
    pub(super) const LOOKUP_DREG: u16 = 3;
    pub(super) const NAT_TYPE: u16 = 1;

    pub(super) const DROP: u32 = 0;
    pub(super) const DNAT: u32 = 1;
    /// `NFT_REG_VERDICT`.
    pub(super) const VERDICT_REGISTER: u32 = 0;
}

/// A chain without its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainOutline {
    /// The family and name of its table.
    pub table: TableName,
    /// The name, unique in its table.
    pub name: Arc<str>,
    /// Whether it is a base chain.
    pub is_base: bool,
}

/// The table, the chain, the handle and the jump of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOutline {
    /// The family and name of its table.
    pub table: TableName,
    /// Its chain's name.
    pub chain: Arc<str>,
    /// The kernel's number of the rule, by which it can be deleted.
    pub handle: u64,
    /// The chain that it jumps or goes to by a verdict of its own, not through a map.
    pub target: Option<Arc<str>>,
}

/// A base chain of any program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOutline {
    /// The family and name of its table.
    pub table: TableName,
    /// The name, unique in its table.
    pub chain: Arc<str>,
    /// Its type: `filter`, `nat` or `route`.
    pub kind: Arc<str>,
    /// The hook at which the kernel calls it.
    pub hook: Hook,
    /// The order among the chains of the same hook: smaller numbers first.
    pub priority: i32,
    /// Whether its policy is `drop`.
    pub drops: bool,
}

/// The effects and jumps of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEffects {
    /// Its chain's name.
    pub chain: Arc<str>,
    /// The effects of the rule itself, without those of the chains that it jumps or goes to.
    pub effects: Effects,
    /// The chains that it jumps or goes to.
    pub targets: Vec<Arc<str>>,
    /// Whether it follows the verdicts of a map, which may lead to any chain.
    pub obeys_map: bool,
}

/// The base chain in a message, which starts with its `nlmsghdr`.
#[must_use]
pub fn hook_outline(bytes: &[u8]) -> Option<HookOutline> {
    let (family, attrs) = object(bytes, kind::NEW_CHAIN)?;
    let hook = attrs.find(number::CHAIN_HOOK)?.nested();
    Some(HookOutline {
        table: TableName::new(family, attrs.find(number::CHAIN_TABLE)?.str()?),
        chain: attrs.find(number::CHAIN_NAME)?.str()?.into(),
        kind: attrs.find(number::CHAIN_TYPE)?.str()?.into(),
        hook: super::objects::hook_of(hook.find(number::HOOK_NUMBER)?.u32()?)?,
        priority: hook.find(number::HOOK_PRIORITY)?.u32()?.cast_signed(),
        drops: attrs.find(number::CHAIN_POLICY).and_then(|policy| policy.u32()) == Some(number::DROP),
    })
}

/// The effects and jumps of the rule in a message, which starts with its `nlmsghdr`.
#[must_use]
pub fn rule_effects(bytes: &[u8]) -> Option<RuleEffects> {
    let (_, attrs) = object(bytes, kind::NEW_RULE)?;
    let chain = attrs.find(number::RULE_CHAIN)?.str()?.into();
    let mut rule = RuleEffects { chain, effects: Effects::default(), targets: Vec::new(), obeys_map: false };
    let expressions = attrs.find(number::RULE_EXPRESSIONS);
    for expression in expressions.into_iter().flat_map(|list| list.nested()) {
        rule.targets.extend(target(expression).map(Arc::from));
        let expression = expression.nested();
        let name = expression.find(number::EXPRESSION_NAME).and_then(|name| name.str()).unwrap_or_default();
        let data = expression.find(number::EXPRESSION_DATA);
        let attr = |wanted: u16| data.and_then(|data| data.nested().find(wanted));
        let number = |wanted: u16| attr(wanted).and_then(|attr| attr.u32());
        let effects = &mut rule.effects;
        match name {
            "immediate" => effects.drops |= attr(number::IMMEDIATE_DATA).and_then(verdict_code) == Some(number::DROP),
            "reject" => effects.drops = true,
            "redir" | "tproxy" => effects.translates = true,
            "nat" => effects.translates |= number(number::NAT_TYPE) == Some(number::DNAT),
            "notrack" => effects.untracks = true,
            "lookup" => rule.obeys_map |= number(number::LOOKUP_DREG) == Some(number::VERDICT_REGISTER),
            // A target of iptables-nft.
            "target" => {
                let target = data.and_then(|data| Extension::read(data.nested()));
                *effects = effects.and(target.map_or_else(Effects::default, Extension::effects));
            }
            _ => {}
        }
    }
    Some(rule)
}

/// The number of the verdict in an expression's data.
fn verdict_code(data: Attr<'_>) -> Option<u32> {
    data.nested().find(number::DATA_VERDICT)?.nested().find(number::VERDICT_CODE)?.u32()
}

/// The chain in a message, which starts with its `nlmsghdr`.
#[must_use]
pub fn chain_outline(bytes: &[u8]) -> Option<ChainOutline> {
    let (family, attrs) = object(bytes, kind::NEW_CHAIN)?;
    Some(ChainOutline {
        table: TableName::new(family, attrs.find(number::CHAIN_TABLE)?.str()?),
        name: attrs.find(number::CHAIN_NAME)?.str()?.into(),
        is_base: attrs.find(number::CHAIN_HOOK).is_some(),
    })
}

/// The rule in a message, which starts with its `nlmsghdr`.
#[must_use]
pub fn rule_outline(bytes: &[u8]) -> Option<RuleOutline> {
    let (family, attrs) = object(bytes, kind::NEW_RULE)?;
    let expressions = attrs.find(number::RULE_EXPRESSIONS);
    Some(RuleOutline {
        table: TableName::new(family, attrs.find(number::RULE_TABLE)?.str()?),
        chain: attrs.find(number::RULE_CHAIN)?.str()?.into(),
        handle: attrs.find(number::RULE_HANDLE)?.u64()?,
        target: expressions.and_then(|list| list.nested().find_map(target)).map(Arc::from),
    })
}

/// The object or flowtable in a message, which starts with its `nlmsghdr`, and its table.
#[must_use]
pub fn named_object(bytes: &[u8]) -> Option<(TableName, NamedObject)> {
    if let Some((family, attrs)) = object(bytes, kind::NEW_FLOWTABLE) {
        let table = TableName::new(family, attrs.find(number::FLOWTABLE_TABLE)?.str()?);
        let name = attrs.find(number::FLOWTABLE_NAME)?.str()?.into();
        let in_use = attrs.find(number::FLOWTABLE_USE)?.u32()? > 0;
        return Some((table, NamedObject { kind: ObjectKind::Flowtable, name, in_use }));
    }
    let (family, attrs) = object(bytes, kind::NEW_OBJECT)?;
    let table = TableName::new(family, attrs.find(number::OBJECT_TABLE)?.str()?);
    let name = attrs.find(number::OBJECT_NAME)?.str()?.into();
    let kind = ObjectKind::Stateful(attrs.find(number::OBJECT_TYPE)?.u32()?);
    Some((table, NamedObject { kind, name, in_use: attrs.find(number::OBJECT_USE)?.u32()? > 0 }))
}

/// The family and the attributes of an object in a message; `None` if it is not of the wanted kind.
fn object(bytes: &[u8], wanted: u16) -> Option<(Family, Attrs<'_>)> {
    let header = Header::read(bytes).filter(|header| header.kind == SUBSYSTEM << 8 | wanted)?;
    let (nfgenmsg, attrs) = header.payload.split_first_chunk::<4>()?;
    Some((Family::from_number(nfgenmsg[0])?, Attrs::new(attrs)))
}

/// The chain that an expression jumps or goes to.
fn target(expression: Attr<'_>) -> Option<&str> {
    let expression = expression.nested();
    if expression.find(number::EXPRESSION_NAME)?.str()? != "immediate" {
        return None;
    }
    let data = expression.find(number::EXPRESSION_DATA)?.nested().find(number::IMMEDIATE_DATA)?;
    data.nested().find(number::DATA_VERDICT)?.nested().find(number::VERDICT_CHAIN)?.str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;

    fn framed(kind: u16, family: u8, attrs: &[u8]) -> Vec<u8> {
        let len = u32::try_from(20 + attrs.len()).unwrap();
        let kind = SUBSYSTEM << 8 | kind;
        [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &[family, 0, 0, 0], attrs].concat()
    }

    /// A rule with two expressions that hold a jump: `match`, whose data is no verdict for the kernel, and one with the name `expression`.
    fn rule_message(expression: &str) -> Vec<u8> {
        let mut attrs = Writer::default();
        attrs.str(number::RULE_TABLE, "filter");
        attrs.str(number::RULE_CHAIN, "INPUT");
        attrs.u64(number::RULE_HANDLE, 7);
        let list = attrs.open(number::RULE_EXPRESSIONS);
        for name in ["match", expression] {
            let element = attrs.open(1);
            attrs.str(number::EXPRESSION_NAME, name);
            let data = attrs.open(number::EXPRESSION_DATA);
            let value = attrs.open(number::IMMEDIATE_DATA);
            let verdict = attrs.open(number::DATA_VERDICT);
            attrs.u32(1, 0xffff_fffd);
            attrs.str(number::VERDICT_CHAIN, "KUBE-SERVICES");
            for nest in [verdict, value, data, element] {
                attrs.close(nest);
            }
        }
        attrs.close(list);
        framed(kind::NEW_RULE, 2, attrs.bytes())
    }

    #[test]
    fn only_an_immediate_verdict_is_a_jump() {
        let rule = rule_outline(&rule_message("immediate")).unwrap();
        assert_eq!(rule.table, TableName::new(Family::Ip, "filter"));
        assert_eq!((&*rule.chain, rule.handle, rule.target.as_deref()), ("INPUT", 7, Some("KUBE-SERVICES")));
        assert_eq!(rule_outline(&rule_message("target")).unwrap().target, None);
    }

    #[test]
    fn a_chain_with_a_hook_is_a_base_chain() {
        let message = |hook: bool| {
            let mut attrs = Writer::default();
            attrs.str(number::CHAIN_TABLE, "nat");
            attrs.str(number::CHAIN_NAME, "OUTPUT");
            if hook {
                attrs.attr(number::CHAIN_HOOK, &[]);
            }
            framed(kind::NEW_CHAIN, 10, attrs.bytes())
        };
        let chain = chain_outline(&message(true)).unwrap();
        assert_eq!((chain.table, &*chain.name, chain.is_base), (TableName::new(Family::Ip6, "nat"), "OUTPUT", true));
        assert!(!chain_outline(&message(false)).unwrap().is_base);
        assert_eq!(rule_outline(&message(false)), None, "another kind of object");
    }

    #[test]
    fn a_base_chain_has_its_place_and_its_policy() {
        let message = |policy: u32| {
            let mut attrs = Writer::default();
            attrs.str(number::CHAIN_TABLE, "filter");
            attrs.str(number::CHAIN_NAME, "FORWARD");
            let hook = attrs.open(number::CHAIN_HOOK);
            attrs.u32(number::HOOK_NUMBER, 2);
            attrs.u32(number::HOOK_PRIORITY, (-150_i32).cast_unsigned());
            attrs.close(hook);
            attrs.u32(number::CHAIN_POLICY, policy);
            attrs.str(number::CHAIN_TYPE, "filter");
            framed(kind::NEW_CHAIN, 2, attrs.bytes())
        };
        let chain = hook_outline(&message(0)).unwrap();
        assert_eq!((&*chain.chain, &*chain.kind, chain.hook), ("FORWARD", "filter", Hook::Forward));
        assert_eq!((chain.priority, chain.drops), (-150, true));
        assert!(!hook_outline(&message(1)).unwrap().drops);
        assert_eq!(hook_outline(&rule_message("immediate")), None, "another kind of object");
    }

    /// The effects of a rule with one expression.
    fn effects_of(name: &str, write: impl FnOnce(&mut Writer)) -> RuleEffects {
        let mut attrs = Writer::default();
        attrs.str(number::RULE_TABLE, "filter");
        attrs.str(number::RULE_CHAIN, "INPUT");
        let list = attrs.open(number::RULE_EXPRESSIONS);
        let element = attrs.open(1);
        attrs.str(number::EXPRESSION_NAME, name);
        let data = attrs.open(number::EXPRESSION_DATA);
        write(&mut attrs);
        for nest in [data, element, list] {
            attrs.close(nest);
        }
        rule_effects(&framed(kind::NEW_RULE, 2, attrs.bytes())).unwrap()
    }

    #[test]
    fn rules_that_drop_translate_or_untrack_are_known() {
        let nothing = |_: &mut Writer| {};
        let named = |name: &'static str| move |attrs: &mut Writer| attrs.str(1, name);
        let drops = Effects { drops: true, ..Effects::default() };
        let translates = Effects { translates: true, ..Effects::default() };
        let untracks = Effects { untracks: true, ..Effects::default() };
        let of = |rule: RuleEffects| rule.effects;
        assert_eq!(of(effects_of("reject", nothing)), drops);
        assert_eq!(of(effects_of("redir", nothing)), translates);
        assert_eq!(of(effects_of("notrack", nothing)), untracks);
        assert_eq!(of(effects_of("nat", |attrs| attrs.u32(number::NAT_TYPE, 1))), translates);
        assert_eq!(of(effects_of("nat", |attrs| attrs.u32(number::NAT_TYPE, 0))), Effects::default(), "a source");
        assert_eq!(of(effects_of("target", named("DNAT"))), translates);
        assert_eq!(of(effects_of("target", named("REJECT"))), drops);
        assert_eq!(of(effects_of("target", named("MASQUERADE"))), Effects::default());
        // What iptables-nft makes of its target NOTRACK: target CT, whose information begins with the flags.
        let tracking = |flags: u16| {
            move |attrs: &mut Writer| {
                attrs.str(1, "CT");
                attrs.attr(3, &flags.to_ne_bytes());
            }
        };
        assert_eq!(of(effects_of("target", tracking(1))), untracks);
        assert_eq!(of(effects_of("target", tracking(0))), Effects::default(), "a zone");
        assert!(effects_of("lookup", |attrs| attrs.u32(number::LOOKUP_DREG, 0)).obeys_map);
        assert!(!effects_of("lookup", |attrs| attrs.u32(number::LOOKUP_DREG, 1)).obeys_map);
        let jump = rule_effects(&rule_message("immediate")).unwrap();
        assert_eq!((jump.effects, &*jump.targets), (Effects::default(), &["KUBE-SERVICES".into()][..]));
    }

    #[test]
    fn objects_and_flowtables_have_a_kind_a_name_and_users() {
        let mut attrs = Writer::default();
        attrs.str(number::OBJECT_TABLE, "kube-proxy");
        attrs.str(number::OBJECT_NAME, "foreign");
        attrs.u32(number::OBJECT_TYPE, 1);
        attrs.u32(number::OBJECT_USE, 2);
        let message = framed(kind::NEW_OBJECT, 2, attrs.bytes());
        let (table, counter) = named_object(&message).unwrap();
        assert_eq!(table, TableName::new(Family::Ip, "kube-proxy"));
        assert_eq!((counter.to_string(), counter.in_use), ("counter foreign".to_owned(), true));
        let mut attrs = Writer::default();
        attrs.str(number::FLOWTABLE_TABLE, "kube-proxy");
        attrs.str(number::FLOWTABLE_NAME, "foreign");
        attrs.u32(number::FLOWTABLE_USE, 0);
        let (_, flowtable) = named_object(&framed(kind::NEW_FLOWTABLE, 2, attrs.bytes())).unwrap();
        assert_eq!((flowtable.to_string(), flowtable.in_use), ("flowtable foreign".to_owned(), false));
        assert_eq!(named_object(&message[..20]), None);
        assert_eq!(named_object(&rule_message("immediate")), None, "another kind of object");
    }

    #[test]
    fn bytes_that_end_early_or_are_garbled_do_no_harm() {
        let whole = rule_message("immediate");
        for end in 0..whole.len() {
            let mut cut = whole[..end].to_vec();
            assert_eq!(rule_outline(&cut), None, "the header promises more");
            if let Some(len) = cut.first_chunk_mut::<4>() {
                *len = u32::try_from(end).unwrap().to_ne_bytes();
            }
            let handle = rule_outline(&cut).map(|rule| rule.handle);
            assert!(handle.is_none_or(|handle| handle == 7), "{end}");
            assert_eq!(chain_outline(&cut), None);
        }
        for (position, byte) in (0..whole.len()).flat_map(|position| [0, 1, 0x7f, 0xff].map(|byte| (position, byte))) {
            let mut garbled = whole.clone();
            garbled[position] = byte;
            let _any = rule_outline(&garbled);
        }
    }
}

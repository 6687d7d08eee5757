//! Tables as values, in place of the kernel's; and how the kernel finds a key in a set.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use super::{Lookup, Ruleset};
use crate::connection::{ReadError, TableDump};
use crate::data::Data;
use crate::decode::{ChainHead, RuleHead, SetHead};
use crate::object::Element;
use crate::packed::ElementRef;
use crate::table::TableName;

/// The rules of one table, for packets of its family; none of them while the table is dormant.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a>(pub &'a TableDump);

impl Ruleset for Listed<'_> {
    fn base_chains(&mut self) -> Result<Vec<ChainHead>, ReadError> {
        let chains = self.0.chains.values().filter(|(chain, _)| chain.base.is_some() && !self.0.dormant);
        Ok(chains.map(|(chain, _)| ChainHead::of(&self.0.table.name, chain)).collect())
    }

    fn rules(&mut self, _: &TableName, chain: &str) -> Result<Arc<[RuleHead]>, ReadError> {
        let rules = self.0.chains.get(chain).into_iter().flat_map(|(_, rules)| rules);
        Ok(rules.map(|rule| RuleHead { handle: 0, rule: rule.clone() }).collect())
    }

    fn find(&mut self, _: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup, ReadError> {
        let Some((set, elements)) = self.0.sets.get(set) else { return Ok(Lookup::Missing) };
        Ok(among(&SetHead::of(set), elements.iter().map(ElementRef::element), key, unknown))
    }

    fn elements(&mut self, _: &TableName, set: &str) -> Result<Vec<Element>, ReadError> {
        Ok(self
            .0
            .sets
            .get(set)
            .map_or_else(Vec::new, |(_, elements)| elements.iter().map(ElementRef::element).collect()))
    }
}

/// Finds the element that holds the key at the start of these bytes. `Unreadable` if some bytes of the key are unknown and an element may
/// hold it.
#[must_use]
pub fn among<E: Borrow<Element>>(
    head: &SetHead,
    elements: impl IntoIterator<Item = E>,
    key: &[u8],
    unknown: u64,
) -> Lookup {
    let Some((key, unknown)) = key_of(head, key, unknown) else { return Lookup::too_long() };
    match elements.into_iter().find(|element| holds(head, element.borrow(), &key, unknown)) {
        None => Lookup::Missing,
        Some(_) if unknown != 0 => Lookup::Unreadable(String::new()),
        Some(element) => Lookup::Found(element.borrow().clone()),
    }
}

/// The key of a set at the start of these bytes, and which of its bytes are unknown, as in [`Ruleset::find`]. `None` when the keys of the
/// set are longer than [`Data::MAX_LEN`] or than `bytes`.
#[must_use]
pub fn key_of(head: &SetHead, bytes: &[u8], unknown: u64) -> Option<(Data, u64)> {
    let key = Data::from_bytes(bytes.get(..head.key_len)?)?;
    Some((key, unknown & ((1 << key.len()) - 1)))
}

/// Whether an element holds a key, compared only by the known bytes. Each field of a concatenation of ranges is compared by itself.
fn holds(head: &SetHead, element: &Element, key: &Data, unknown: u64) -> bool {
    let (first, key) = (element.key.as_slice(), key.as_slice());
    let last = element.key_end.as_ref().map_or(first, |end| end.as_slice());
    let is_known = |range: &Range<usize>| range.clone().all(|index| unknown >> index & 1 == 0);
    let fields: Vec<Range<usize>> = match (head.is_interval, &head.fields[..]) {
        (true, [_, _, ..]) => {
            let starts = head.fields.iter().scan(0, |next, len| {
                let start = *next;
                *next += len.next_multiple_of(4);
                Some(start..start + len)
            });
            starts.collect()
        }
        (true, _) => std::iter::once(0..key.len()).collect(),
        (false, _) => (0..key.len()).map(|index| index..index + 1).collect(),
    };
    fields.into_iter().filter(is_known).all(|field| {
        match (first.get(field.clone()), key.get(field.clone()), last.get(field)) {
            (Some(first), Some(key), Some(last)) => (first..=last).contains(&key),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use super::*;
    use crate::data::Verdict;
    use crate::decode::HookHead;
    use crate::expr::{CmpOp, Expr, Foreign, Register};
    use crate::machine::{Branch, Fate, Host, Link, Machine, Packet, Tracking, protocol};
    use crate::object::{BaseChain, Chain, ChainType, Hook, RuleDump};
    use crate::table::{Family, Table};

    #[test]
    fn fields_of_a_range_are_compared_each_by_itself() {
        let head = SetHead { name: "s".into(), comment: None, key_len: 8, is_interval: true, fields: vec![4, 2] };
        let key = |host: u8, port: u16| Data::from(IpAddr::from([10, 0, 0, host])).then(port);
        let element = Element { key_end: Some(Box::new(key(9, 90))), ..Element::new(key(1, 80)) };
        let found =
            |host, port, unknown| among(&head, std::slice::from_ref(&element), key(host, port).as_slice(), unknown);
        let is_found = Lookup::Found(element.borrow().clone());
        assert_eq!([found(5, 85, 0), found(9, 80, 0)], [is_found.clone(), is_found]);
        assert_eq!([found(5, 91, 0), found(0, 85, 0)], [Lookup::Missing, Lookup::Missing]);
        // If the port is unknown, the key may be in the range, unless its address is outside the range.
        let without_port = 0b0011_0000;
        assert_eq!(found(5, 0, without_port), Lookup::Unreadable(String::new()));
        assert_eq!(found(0, 0, without_port), Lookup::Missing);
    }

    #[test]
    fn keys_are_read_up_to_the_longest_that_this_crate_handles() {
        let head =
            |key_len| SetHead { name: "s".into(), comment: None, key_len, is_interval: false, fields: Vec::new() };
        let element = Element::new(Data::from_bytes(&[7; Data::MAX_LEN]).unwrap());
        assert_eq!(
            among(&head(Data::MAX_LEN), std::slice::from_ref(&element), &[7; Data::MAX_LEN], 0),
            Lookup::Found(element.borrow().clone())
        );
        assert_eq!(
            among(&head(Data::MAX_LEN), std::slice::from_ref(&element), &[7; Data::MAX_LEN], 1 << 39),
            Lookup::Unreadable(String::new())
        );
        assert_eq!(among(&head(Data::MAX_LEN + 1), &[element], &[7; Data::MAX_LEN], 0), Lookup::too_long());
        // Unknown bytes after the end of the key do not matter.
        assert_eq!(key_of(&head(4), &[1, 2, 3, 4, 5], 0b1_0000).map(|(_, unknown)| unknown), Some(0));
    }

    struct Elsewhere;

    impl Host for Elsewhere {
        fn address_type(&mut self, _: IpAddr) -> u8 {
            1
        }
    }

    fn table() -> TableDump {
        TableDump::empty(Table { name: TableName::new(Family::Ip, "t"), comment: None })
    }

    #[test]
    fn no_packet_meets_the_chains_of_a_dormant_table() {
        let base = Some(BaseChain { kind: ChainType::Filter, hook: Hook::Input, priority: 0 });
        let chain = Chain { name: "c".into(), base, comment: None };
        let mut dump = TableDump { chains: [("c".into(), (chain, Vec::new()))].into(), ..table() };
        assert_eq!(Listed(&dump).base_chains().unwrap().len(), 1);
        dump.dormant = true;
        assert_eq!(Listed(&dump).base_chains().unwrap(), []);
    }

    /// What becomes of the first packet of a connection in a chain whose first rule has these expressions, and whose second rule drops
    /// packets of a connection with the mark 7.
    fn marked(first: Vec<Expr>) -> Vec<Option<Fate>> {
        let reads_mark = Expr::Foreign(Arc::new(Foreign::Ct { key: 3, dreg: Register::FIRST }));
        let is_seven = Expr::Cmp { op: CmpOp::Eq, sreg: Register::FIRST, data: 7_u32.into() };
        let second = vec![reads_mark, is_seven, Expr::ImmediateVerdict(Verdict::Drop)];
        let rules = [first, second].map(|exprs| RuleDump { exprs, comment: None }).to_vec();
        let chain = Chain { name: "c".into(), base: None, comment: None };
        let dump = TableDump { chains: [("c".into(), (chain, rules))].into(), ..table() };
        let hook = HookHead { kind: "filter".into(), number: 0, priority: 0, drops: false };
        let base = ChainHead { table: dump.table.name.clone(), name: "c".into(), comment: None, hook: Some(hook) };
        let packet =
            Packet::new(([192, 0, 2, 1].into(), None), "192.0.2.2:80".parse().unwrap(), protocol::TCP, Link::Unknown);
        let mut branch = Branch::new(packet);
        (branch.connection.tracking, branch.connection.mark) = (Tracking::New, Some(0));
        let branches = Machine::new(&mut Listed(&dump), &mut Elsewhere).run(branch, &base).unwrap();
        branches.into_iter().map(|branch| branch.fate).collect()
    }

    // What a rule sets is there for the rules behind it; where it is not known whether it is set, both are possible.
    #[test]
    fn the_mark_of_a_connection_is_the_one_that_a_rule_has_set() {
        let set = |mark: u32| {
            let set = Expr::Foreign(Arc::new(Foreign::SetCtMark { sreg: Register::FIRST }));
            vec![Expr::Immediate { dreg: Register::FIRST, data: mark.into() }, set]
        };
        assert_eq!(marked(Vec::new()), [None]);
        assert_eq!(marked(set(7)), [Some(Fate::Dropped)]);
        assert_eq!(marked(set(8)), [None]);
        let limited = [vec![Expr::Unknown("limit".into())], set(7)].concat();
        let mut found = marked(limited);
        found.sort_by_key(Option::is_some);
        assert_eq!(found, [None, Some(Fate::Dropped)]);
    }

    // The kernel allows no deeper nesting. Rules that are deeper changed while they were read, so their effect is unknown.
    #[test]
    fn chains_that_are_deeper_than_the_kernel_allows_lead_nowhere() {
        let name = TableName::new(Family::Ip, "t");
        let chain = |number: u32| {
            let jump = Expr::ImmediateVerdict(Verdict::Jump(format!("c{}", number + 1).into()));
            let name: Arc<str> = format!("c{number}").into();
            let chain = Chain { name: Arc::clone(&name), base: None, comment: None };
            (name, (chain, vec![RuleDump { exprs: vec![jump], comment: None }]))
        };
        let chains: BTreeMap<_, _> = (0..40).map(chain).collect();
        let dump = TableDump { chains, ..table() };
        let hook = HookHead { kind: "filter".into(), number: 0, priority: 0, drops: false };
        let base = ChainHead { table: name, name: "c0".into(), comment: None, hook: Some(hook) };
        let packet =
            Packet::new(([192, 0, 2, 1].into(), None), "192.0.2.2:80".parse().unwrap(), protocol::TCP, Link::Unknown);
        let (mut rules, mut host) = (Listed(&dump), Elsewhere);
        let branches = Machine::new(&mut rules, &mut host).run(Branch::new(packet), &base).unwrap();
        let [Branch { fate: Some(Fate::Unknown(why)), .. }] = &branches[..] else { panic!("{branches:?}") };
        assert!(why.contains("deeper than the kernel allows"), "{why}");
    }
}

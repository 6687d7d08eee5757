//! Tables that, together with those of `text_fixture`, use every statement, set form, hook and family.

#![allow(dead_code, reason = "each test program uses a part")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nft::statement::CtBit;
use nft::{
    BaseChain, Chain, ChainType, Data, DataType, Element, Family, Field, Hook, Operand, Rule, Set, SetContent,
    SetFlags, Statement, Table, TableContent, TableName, Types, Value, ValueType, Verdict,
};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// Every base chain that a family can have, and tables of sets.
pub(crate) fn tables() -> Vec<TableContent> {
    vec![hooks(Family::Ip), hooks(Family::Ip6), hooks(Family::Inet), sets(), learning(), both()]
}

fn hooks(family: Family) -> TableContent {
    use Hook::{Forward, Input, Output, Postrouting, Prerouting};
    let filter = [Prerouting, Input, Forward, Output, Postrouting].map(|hook| (ChainType::Filter, hook));
    let nat = [Prerouting, Input, Output, Postrouting].map(|hook| (ChainType::Nat, hook));
    let all = filter.into_iter().chain(nat).chain([(ChainType::Route, Output)]);
    let chain = |(kind, hook): (ChainType, Hook)| Chain {
        name: format!("{kind}-{hook}").into(),
        base: Some(BaseChain { kind, hook, priority: -7 }),
        comment: Some(format!("{kind} at {hook}").into()),
    };
    TableContent {
        flowtables: Vec::new(),
        table: Table { name: TableName::new(family, "hooks"), comment: Some("every hook".into()) },
        sets: Vec::new(),
        chains: all.map(|base| (chain(base), Vec::new())).collect(),
    }
}

/// Maps with all verdicts, with data, of ranges, and sets that rules bring along.
fn sets() -> TableContent {
    let mut sets = verdict_maps();
    sets.extend(data_maps());
    sets.extend(anonymous_sets());
    TableContent {
        flowtables: Vec::new(),
        table: Table { name: TableName::new(Family::Ip, "sets"), comment: None },
        sets,
        chains: vec![chain("target", vec![]), chain("rules", rules_with_anonymous_sets())],
    }
}

fn verdict_maps() -> Vec<SetContent> {
    let verdicts = [
        Verdict::Accept,
        Verdict::Drop,
        Verdict::Return,
        Verdict::Jump("target".into()),
        Verdict::Goto("target".into()),
    ];
    let elements = (0..).zip(verdicts).map(|(last, verdict)| Element {
        comment: Some(format!("number {last}").into()),
        ..Element::mapping(ip([10, 0, 0, last]), Value::Verdict(verdict))
    });
    let elements: Vec<Element> = elements.collect();
    let of =
        Set { comment: Some("typeof".into()), ..Set::map("of", Types::Of(vec![Field::IpDaddr]), ValueType::Verdict) };
    let named = Set { size: Some(64), ..Set::map("named", types(&[DataType::Ipv4Addr]), ValueType::Verdict) };
    let front = [DataType::Ipv4Addr, DataType::InetService];
    let concat = Set { flags: interval(), ..Set::map("concat", types(&front), ValueType::Verdict) };
    let range = Element {
        key_end: Some(Box::new(ip([10, 0, 0, 255]).then(90_u16))),
        comment: Some("range".into()),
        ..Element::mapping(ip([10, 0, 0, 0]).then(80_u16), Value::Verdict(Verdict::Drop))
    };
    vec![(Arc::new(of), elements.clone()), (Arc::new(named), elements), (Arc::new(concat), vec![range])]
}

fn data_maps() -> Vec<SetContent> {
    let map = |name, key: &[DataType], value: &[DataType]| Set::map(name, types(key), ValueType::Data(types(value)));
    let marks = map("marks", &[DataType::Ipv4Addr], &[DataType::Mark]);
    let ports = Set { flags: interval(), ..map("ports", &[DataType::Ipv4Addr], &[DataType::InetService]) };
    let endpoint = [DataType::Ipv4Addr, DataType::InetService];
    let leased = Set {
        flags: SetFlags { timeout: true, ..SetFlags::default() },
        timeout: Some(Duration::from_secs(7200)),
        comment: Some("leases".into()),
        ..map("leased", &[DataType::Ipv4Addr, DataType::InetProto], &endpoint)
    };
    let lease = Element {
        timeout: Some(Duration::from_secs(86_400)),
        comment: Some("a day".into()),
        ..Element::mapping(ip([10, 0, 0, 1]).then(TCP), Value::Data(ip([10, 0, 0, 2]).then(80_u16)))
    };
    let network = Element {
        key_end: Some(Box::new(ip([10, 255, 255, 255]))),
        ..Element::mapping(ip([10, 0, 0, 0]), Value::Data(80_u16.into()))
    };
    vec![
        (Arc::new(marks), vec![Element::mapping(ip([10, 0, 0, 1]), Value::Data(0x4000_u32.into()))]),
        (Arc::new(ports), vec![network]),
        (Arc::new(leased), vec![lease]),
    ]
}

fn anonymous_sets() -> Vec<SetContent> {
    let protocols = anonymous(Set::new("__set0", types(&[DataType::InetProto])), 2);
    let fronts = anonymous(Set::new("__set1", types(&[DataType::Ipv4Addr, DataType::InetService])), 1);
    let slots = Set::map(
        "__map2",
        types(&[DataType::Integer]),
        ValueType::Data(types(&[DataType::Ipv4Addr, DataType::InetService])),
    );
    let slot = |number: u32| Element::mapping(number.into(), Value::Data(ip([10, 0, 0, 9]).then(8080_u16)));
    let networks = anonymous(Set::new("__set3", types(&[DataType::Ipv4Addr])), 4);
    let networks = Set { flags: SetFlags { interval: true, ..networks.flags }, size: None, ..networks };
    vec![
        (Arc::new(protocols), vec![Element::new(TCP.into()), Element::new(UDP.into())]),
        (Arc::new(fronts), vec![Element::new(ip([10, 0, 0, 1]).then(80_u16))]),
        (Arc::new(anonymous(slots, 2)), vec![slot(0), slot(1)]),
        (
            Arc::new(networks),
            vec![range([10, 0, 0, 0], [10, 255, 255, 255]), range([172, 16, 0, 0], [172, 31, 255, 255])],
        ),
    ]
}

fn anonymous(set: Set, size: u32) -> Set {
    let flags = SetFlags { anonymous: true, constant: true, ..SetFlags::default() };
    Set { flags, size: Some(size), ..set }
}

fn rules_with_anonymous_sets() -> Vec<Rule> {
    let is = |fields: &[Field], operand| Statement::Match(fields.to_vec(), operand);
    vec![
        Rule::new([is(&[Field::L4Proto], Operand::InSet("__set0".into())), Statement::Counter]),
        Rule::new([is(&[Field::IpSaddr, Field::ThDport], Operand::NotInSet("__set1".into()))]),
        Rule::new([
            is(&[Field::L4Proto], Operand::Is(TCP.into())),
            Statement::DnatToMap(vec![Field::NumgenRandom(2)], "__map2".into()),
        ]),
        Rule::new([is(&[Field::IpSaddr], Operand::InSet("__set3".into())), Statement::Reject]),
        Rule {
            comment: Some("all verdicts".into()),
            ..Rule::new([Statement::Vmap(vec![Field::IpDaddr], "of".into())])
        },
    ]
}

/// Maps that rules fill, with values that nft can load in the place where it puts them.
fn learning() -> TableContent {
    let map = |name: &str, value| Set {
        flags: SetFlags { dynamic: true, timeout: true, ..SetFlags::default() },
        timeout: Some(Duration::from_secs(10_800)),
        size: Some(1000),
        ..Set::map(name, types(&[DataType::Ipv6Addr]), ValueType::Data(types(&[value])))
    };
    let update = |set: &str, value, timeout| Statement::Update {
        set: set.into(),
        key: vec![Field::Ip6Saddr],
        value: vec![value],
        timeout,
    };
    let rules = vec![
        Rule::new([update("addresses", Field::Ip6Daddr, None)]),
        Rule::new([update("ports", Field::ThDport, Some(Duration::from_secs(60)))]),
    ];
    TableContent {
        flowtables: Vec::new(),
        table: Table { name: TableName::new(Family::Ip6, "learning"), comment: None },
        sets: vec![
            (Arc::new(map("addresses", DataType::Ipv6Addr)), vec![]),
            (Arc::new(map("ports", DataType::InetService)), vec![]),
        ],
        chains: vec![chain("learn", rules)],
    }
}

/// Statements whose lowering or text depends on the family `inet`.
fn both() -> TableContent {
    let tcp = || Statement::Match(vec![Field::L4Proto], Operand::Is(TCP.into()));
    let to = |address: &str| Statement::Dnat(address.parse().expect("an address"));
    let rules = vec![
        Rule::new([Statement::Reject]),
        Rule::new([tcp(), Statement::RejectWithTcpReset]),
        Rule::new([tcp(), to("10.0.0.1:80")]),
        Rule::new([tcp(), to("[fd00::1]:80")]),
        Rule::new([Statement::CtBit(CtBit::StateInvalid), Statement::Verdict(Verdict::Drop)]),
        Rule::new([Statement::SetMarkBits(0x4000), Statement::MasqueradeFullyRandom]),
        Rule::new([Statement::Match(vec![Field::ThDport, Field::Mark], Operand::InSet("ports".into()))]),
    ];
    let ports = Set::new("ports", types(&[DataType::InetService, DataType::Mark]));
    TableContent {
        flowtables: Vec::new(),
        table: Table { name: TableName::new(Family::Inet, "both"), comment: Some("both families".into()) },
        sets: vec![(Arc::new(ports), vec![Element::new(Data::from(80_u16).then(0x4000_u32))])],
        chains: vec![chain("rules", rules)],
    }
}

pub(crate) fn chain(name: &str, rules: Vec<Rule>) -> (Chain, Vec<Rule>) {
    (Chain { name: name.into(), base: None, comment: None }, rules)
}

/// A base chain at prerouting.
pub(crate) fn base(kind: ChainType, rules: Vec<Rule>) -> (Chain, Vec<Rule>) {
    let base = Some(BaseChain { kind, hook: Hook::Prerouting, priority: -100 });
    (Chain { name: "prerouting".into(), base, comment: None }, rules)
}

pub(crate) fn types(types: &[DataType]) -> Types {
    Types::Named(types.to_vec())
}

pub(crate) fn interval() -> SetFlags {
    SetFlags { interval: true, ..SetFlags::default() }
}

pub(crate) fn ip(octets: [u8; 4]) -> Data {
    IpAddr::from(octets).into()
}

pub(crate) fn range(first: [u8; 4], last: [u8; 4]) -> Element {
    Element { key_end: Some(Box::new(ip(last))), ..Element::new(ip(first)) }
}

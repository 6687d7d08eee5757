//! Two tables that use every statement and every kind of set, shared by the tests of `text` and of `decode`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nft::expr::FibAddress;
use nft::statement::CtBit;
use nft::{
    BaseChain, Chain, ChainType, Data, DataType, Element, Family, Field, Hook, Operand, Rule, Set, SetContent,
    SetFlags, Statement, Table, TableContent, TableName, Types, Value, ValueType, Verdict,
};

use Field::{CtOriginalIpDaddr, CtOriginalProtoDst, IifName, IpDaddr, IpSaddr, L4Proto, OifName, ThDport, ThSport};

const TCP: u8 = 6;
const UDP: u8 = 17;

pub(crate) fn tables() -> Vec<TableContent> {
    vec![ipv4(), ipv6()]
}

fn ipv4() -> TableContent {
    let name = TableName::new(Family::Ip, "kube-proxy");
    let mut sets = maps();
    sets.extend(plain_sets());
    sets.extend(interval_sets());
    sets.push(anonymous());
    let mut chains =
        vec![small("lb-1", vec![]), small("lb-3", vec![]), small("lb-2", balancing()), small("matches", matches())];
    chains.push(small("transport", transport()));
    chains.push(small("actions", actions()));
    chains.extend(base_chains());
    TableContent {
        flowtables: Vec::new(),
        table: Table { name, comment: Some("rules for Services".into()) },
        sets,
        chains,
    }
}

fn ipv6() -> TableContent {
    let front = vec![Field::Ip6Daddr, L4Proto, ThDport, Field::NumgenRandom(65536)];
    let backend = vec![Field::Ip6Daddr, ThDport];
    let front_key = Data::from(ip("fd00::1")).then(TCP).then(80_u16).then(0_u32);
    let endpoint = Data::from(ip("fd01::1")).then(8080_u16);
    let endpoints = Set::map("endpoints", Types::Of(front), ValueType::Data(Types::Of(backend)));
    let pods = Set { flags: SetFlags { interval: true, ..flags() }, ..Set::new("pods", named(&[DataType::Ipv6Addr])) };
    let fields = vec![Field::Ip6Daddr, L4Proto, ThDport, Field::NumgenRandom(2)];
    let rules = vec![
        rule(vec![Statement::DnatToMap(fields, "endpoints".into())]),
        rule(vec![Statement::Match(vec![Field::Ip6Saddr], Operand::NotInPrefix(ip("fd00:10::"), 60))]),
        rule(vec![Statement::Match(vec![Field::CtOriginalIp6Daddr], Operand::Is(ip("fd00::1").into()))]),
        rule(vec![tcp(), Statement::Dnat("[fd00::1]:80".parse().expect("an address"))]),
        rule(vec![Statement::Match(vec![Field::Ip6Saddr], Operand::InSet("pods".into())), Statement::Reject]),
    ];
    TableContent {
        flowtables: Vec::new(),
        table: Table { name: TableName::new(Family::Ip6, "kube-proxy"), comment: None },
        sets: vec![
            (Arc::new(endpoints), vec![Element::mapping(front_key, Value::Data(endpoint))]),
            (
                Arc::new(pods),
                vec![range("fd00::", "fd00::ffff"), range("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")],
            ),
        ],
        chains: vec![small("lb-2", rules)],
    }
}

fn maps() -> Vec<SetContent> {
    let front = vec![IpDaddr, L4Proto, ThDport];
    let mut slot = front.clone();
    slot.push(Field::NumgenRandom(65536));
    let key = |address: &str, protocol: u8, port: u16| Data::from(ip(address)).then(protocol).then(port);
    let services = Set {
        size: Some(1000),
        comment: Some("fronts".into()),
        ..Set::map("services", Types::Of(front), ValueType::Verdict)
    };
    let endpoints = Set::map("endpoints", Types::Of(slot), ValueType::Data(Types::Of(vec![IpDaddr, ThDport])));
    let affinity = Set {
        flags: SetFlags { dynamic: true, timeout: true, ..flags() },
        timeout: Some(Duration::from_secs(10_800)),
        size: Some(65535),
        ..Set::map("affinity-x", Types::Of(vec![IpSaddr]), ValueType::Data(Types::Of(vec![IpDaddr, ThDport])))
    };
    let http = Element {
        comment: Some("ns/web:http".into()),
        ..Element::mapping(key("10.96.0.10", TCP, 80), Value::Verdict(Verdict::Goto("lb-2".into())))
    };
    let dns = Element::mapping(key("10.96.0.10", UDP, 53), Value::Verdict(Verdict::Jump("lb-1".into())));
    let none = Element::mapping(key("10.96.0.11", TCP, 80), Value::Verdict(Verdict::Drop));
    let endpoint = Element::mapping(
        key("10.96.0.10", TCP, 80).then(1_u32),
        Value::Data(Data::from(ip("10.244.0.1")).then(8080_u16)),
    );
    vec![
        (Arc::new(services), vec![http, dns, none]),
        (Arc::new(endpoints), vec![endpoint]),
        (Arc::new(affinity), vec![]),
    ]
}

fn plain_sets() -> Vec<SetContent> {
    let seen = Set {
        flags: SetFlags { dynamic: true, timeout: true, ..flags() },
        timeout: Some(Duration::from_secs(90)),
        size: Some(100),
        ..Set::new("seen", named(&[DataType::Ipv4Addr]))
    };
    let leases =
        Set { flags: SetFlags { timeout: true, ..flags() }, ..Set::new("leases", named(&[DataType::Ipv4Addr])) };
    let lease = Element {
        timeout: Some(Duration::from_secs(93_600)),
        comment: Some("a day and two hours".into()),
        ..Element::new(ip("10.0.0.1").into())
    };
    let marks = Set::new("marks", named(&[DataType::Mark, DataType::IfName, DataType::InetService]));
    let mark = Data::from(0x4000_u32).then(interface("eth0")).then(80_u16);
    let hairpin = Set::new("hairpin", Types::Of(vec![IpSaddr, IpDaddr, L4Proto, ThDport]));
    let pair = Data::from(ip("10.244.0.1")).then(Data::from(ip("10.244.0.1"))).then(TCP).then(8080_u16);
    vec![
        (Arc::new(seen), vec![]),
        (Arc::new(leases), vec![lease, Element::new(ip("10.0.0.2").into())]),
        (Arc::new(marks), vec![Element::new(mark)]),
        (Arc::new(hairpin), vec![Element::new(pair)]),
    ]
}

fn interval_sets() -> Vec<SetContent> {
    let interval = SetFlags { interval: true, ..flags() };
    let nodes = Set { flags: interval, ..Set::new("nodes", named(&[DataType::Ipv4Addr])) };
    let ranges = vec![
        range("10.0.0.0", "10.255.255.255"),
        range("11.0.0.0", "11.0.0.0"),
        range("192.168.0.1", "192.168.0.7"),
        range("224.0.0.0", "255.255.255.255"),
    ];
    let zones = Set { flags: interval, ..Set::map("zones", named(&[DataType::Ipv4Addr]), ValueType::Verdict) };
    let neighbours = vec![
        Element {
            value: Value::Verdict(Verdict::Goto("lb-1".into())),
            comment: Some("z".into()),
            ..range("10.0.0.0", "10.0.0.255")
        },
        Element { value: Value::Verdict(Verdict::Drop), ..range("10.0.1.0", "10.0.1.9") },
    ];
    let types = named(&[DataType::Ipv4Addr, DataType::InetProto, DataType::InetService]);
    let sources = Set { flags: interval, size: Some(500), ..Set::new("sources", types) };
    let key = |address: &str, port: u16| Data::from(ip(address)).then(TCP).then(port);
    let allowed = Element {
        key_end: Some(Box::new(key("10.255.255.255", 90))),
        comment: Some("k".into()),
        ..Element::new(key("10.0.0.0", 80))
    };
    let one = Element { key_end: Some(Box::new(key("11.0.0.1", 80))), ..Element::new(key("11.0.0.1", 80)) };
    vec![(Arc::new(nodes), ranges), (Arc::new(zones), neighbours), (Arc::new(sources), vec![allowed, one])]
}

fn anonymous() -> SetContent {
    let set = Set {
        flags: SetFlags { anonymous: true, constant: true, ..flags() },
        size: Some(2),
        ..Set::map("__map0", named(&[DataType::Integer]), ValueType::Verdict)
    };
    let to = |slot: u32, chain: &str| Element::mapping(slot.into(), Value::Verdict(Verdict::Goto(chain.into())));
    (Arc::new(set), vec![to(0, "lb-1"), to(1, "lb-3")])
}

fn balancing() -> Vec<Rule> {
    let with = |last| vec![IpDaddr, L4Proto, ThDport, last];
    vec![
        rule(vec![Statement::DnatToMap(with(Field::NumgenRandom(2)), "endpoints".into())]),
        rule(vec![Statement::DnatToMap(with(Field::JhashSaddr(2)), "endpoints".into())]),
        rule(vec![tcp(), Statement::DnatToMap(vec![IpSaddr], "affinity-x".into())]),
        rule(vec![Statement::Vmap(vec![Field::NumgenRandom(2)], "__map0".into())]),
    ]
}

fn matches() -> Vec<Rule> {
    let is = |field, operand| rule(vec![Statement::Match(vec![field], operand)]);
    vec![
        is(IpSaddr, Operand::NotInPrefix(ip("10.244.16.0"), 20)),
        is(IpSaddr, Operand::InPrefix(ip("10.244.16.0"), 20)),
        is(IpSaddr, Operand::InPrefix(ip("10.1.1.1"), 32)),
        is(IpDaddr, Operand::IsNot(ip("10.1.1.1").into())),
        is(IpSaddr, Operand::InSet("nodes".into())),
        is(IpSaddr, Operand::NotInSet("nodes".into())),
        is(IifName, Operand::StartsWith("cali".into())),
        is(OifName, Operand::StartsNotWith("cali".into())),
        is(IifName, Operand::Is(interface("eth0"))),
        is(OifName, Operand::IsNot(interface("eth0"))),
        is(L4Proto, Operand::IsNot(TCP.into())),
        is(Field::Mark, Operand::Is(0x4000_u32.into())),
        is(CtOriginalIpDaddr, Operand::Is(ip("10.96.0.10").into())),
        is(ThSport, Operand::Is(53_u16.into())),
        rule(vec![Statement::Match(vec![IpSaddr, L4Proto, ThDport], Operand::InSet("sources".into()))]),
        rule(vec![Statement::FibLocal(FibAddress::Source)]),
        rule(vec![Statement::FibLocal(FibAddress::Destination)]),
        rule(vec![Statement::CtBit(CtBit::StateNew)]),
        rule(vec![Statement::CtBit(CtBit::StateEstablished), Statement::CtPacketsOver(16)]),
        rule(vec![Statement::CtBit(CtBit::StateInvalid), Statement::Verdict(Verdict::Drop)]),
        rule(vec![Statement::CtBit(CtBit::StatusDnat)]),
        rule(vec![Statement::MarkBits { mask: 0x4000, set: true }]),
        rule(vec![Statement::MarkBits { mask: 0x6000, set: false }]),
    ]
}

/// Rules that match a transport protocol, which nft's listing merges into what follows.
fn transport() -> Vec<Rule> {
    let port = |port: u16| Statement::Match(vec![ThDport], Operand::Is(port.into()));
    let original = vec![CtOriginalIpDaddr, L4Proto, CtOriginalProtoDst];
    let udp = Statement::Match(vec![L4Proto], Operand::Is(UDP.into()));
    vec![
        rule(vec![tcp(), port(80)]),
        rule(vec![udp, port(53)]),
        rule(vec![tcp(), Statement::Counter, port(80)]),
        rule(vec![tcp(), Statement::RejectWithTcpReset]),
        rule(vec![tcp(), Statement::Counter, Statement::RejectWithTcpReset]),
        rule(vec![tcp(), Statement::Vmap(vec![IpDaddr, L4Proto, ThDport], "services".into())]),
        rule(vec![tcp(), Statement::Match(vec![CtOriginalProtoDst], Operand::Is(80_u16.into()))]),
        rule(vec![
            tcp(),
            Statement::Match(original, Operand::InSet("sources".into())),
            Statement::Verdict(Verdict::Return),
        ]),
    ]
}

fn actions() -> Vec<Rule> {
    let update = |timeout| Statement::Update { set: "seen".into(), key: vec![IpSaddr], value: vec![], timeout };
    vec![
        rule(vec![Statement::SetMarkBits(0x4000)]),
        rule(vec![Statement::ClearMarkBits(0x4000)]),
        rule(vec![Statement::Reject]),
        rule(vec![update(None)]),
        rule(vec![update(Some(Duration::from_secs(60)))]),
        rule(vec![Statement::Counter, Statement::Verdict(Verdict::Jump("lb-1".into()))]),
        Rule { comment: Some("the end, as it were".into()), ..rule(vec![Statement::Verdict(Verdict::Accept)]) },
    ]
}

fn base_chains() -> Vec<(Chain, Vec<Rule>)> {
    let base = |name: &str, kind, hook, priority| Chain {
        name: name.into(),
        base: Some(BaseChain { kind, hook, priority }),
        comment: None,
    };
    let services = Statement::Vmap(vec![IpDaddr, L4Proto, ThDport], "services".into());
    let prerouting =
        Chain { comment: Some("fronts".into()), ..base("nat-prerouting", ChainType::Nat, Hook::Prerouting, -100) };
    vec![
        (prerouting, vec![rule(vec![services])]),
        (base("nat-output", ChainType::Nat, Hook::Output, -100), vec![]),
        (base("nat-input", ChainType::Nat, Hook::Input, 90), vec![]),
        (
            base("nat-postrouting", ChainType::Nat, Hook::Postrouting, 99),
            vec![rule(vec![Statement::MasqueradeFullyRandom])],
        ),
        (base("filter-forward", ChainType::Filter, Hook::Forward, -110), vec![]),
        (base("route-output", ChainType::Route, Hook::Output, -150), vec![]),
    ]
}

fn small(name: &str, rules: Vec<Rule>) -> (Chain, Vec<Rule>) {
    let comment = (name == "lb-2").then(|| "two endpoints".into());
    (Chain { name: name.into(), base: None, comment }, rules)
}

fn rule(statements: Vec<Statement>) -> Rule {
    Rule::new(statements)
}

fn tcp() -> Statement {
    Statement::Match(vec![L4Proto], Operand::Is(TCP.into()))
}

fn range(first: &str, last: &str) -> Element {
    Element { key_end: Some(Box::new(ip(last).into())), ..Element::new(ip(first).into()) }
}

fn named(types: &[DataType]) -> Types {
    Types::Named(types.to_vec())
}

fn flags() -> SetFlags {
    SetFlags::default()
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn interface(name: &str) -> Data {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Data::from_bytes(&bytes).expect("an interface name fits")
}

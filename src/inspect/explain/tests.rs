//! Tests of the interpreter on rules in memory: expressions, verdicts, the order of chains, rules that cannot be evaluated, and sentences.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use nft::decode::{ChainHead, HookHead, RuleHead, SetHead};
use nft::expr::{Expr, FibAddress, Foreign, Order, PayloadBase, Register};
use nft::machine::{Host, Link, Lookup, Next, Packet, Routes, Ruleset, among, protocol, walk};
use nft::statement::CtBit;
use nft::{Data, Element, Family, Field, Operand, ReadError, Rule, Statement, TableName, Value, Verdict as To};

use super::verdict::{self, Explanation, Verdict};
use super::{Source, Target};

/// Tables in memory, and a host whose own address is 192.0.2.2.
#[derive(Default)]
struct World {
    chains: Vec<ChainHead>,
    rules: BTreeMap<(TableName, Arc<str>), Arc<[RuleHead]>>,
    sets: BTreeMap<Arc<str>, (SetHead, Vec<Element>)>,
}

const OWN: [u8; 4] = [192, 0, 2, 2];

impl Ruleset for World {
    fn base_chains(&mut self) -> Result<Vec<ChainHead>, ReadError> {
        Ok(self.chains.clone())
    }

    fn rules(&mut self, table: &TableName, chain: &str) -> Result<Arc<[RuleHead]>, ReadError> {
        Ok(self.rules.get(&(table.clone(), chain.into())).cloned().unwrap_or_default())
    }

    fn find(&mut self, _: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup, ReadError> {
        let Some((head, elements)) = self.sets.get(set) else { return Ok(Lookup::Unreadable("missing".to_owned())) };
        Ok(among(head, elements, key, unknown))
    }

    fn elements(&mut self, _: &TableName, _: &str) -> Result<Vec<Element>, ReadError> {
        Ok(Vec::new())
    }
}

struct Node;

impl Host for Node {
    fn address_type(&mut self, address: IpAddr) -> u8 {
        if address == IpAddr::from(OWN) || address.is_loopback() { 2 } else { 1 }
    }
}

impl Routes for Node {
    fn next(&mut self, packet: &Packet) -> Next {
        match self.address_type(packet.destination) {
            2 => Next::Here,
            _ if packet.destination == IpAddr::from([198, 18, 0, 1]) => Next::Nowhere("no route".to_owned()),
            _ => Next::Elsewhere(Link::Known(3, "cni0".into())),
        }
    }

    fn loopback(&mut self) -> Link {
        Link::Known(1, "lo".into())
    }
}

fn ours() -> TableName {
    TableName::new(Family::Ip, "kube-proxy")
}

fn firewall() -> TableName {
    TableName::new(Family::Inet, "firewall")
}

const PREROUTING: u32 = 0;
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;

impl World {
    /// Adds a base chain.
    fn base(
        mut self,
        table: TableName,
        name: &str,
        kind: &str,
        (hook, priority): (u32, i32),
        rules: Vec<Rule>,
    ) -> Self {
        let hook = HookHead { kind: kind.into(), number: hook, priority, drops: false };
        self.chains.push(ChainHead { table: table.clone(), name: name.into(), comment: None, hook: Some(hook) });
        self.chain(table, name, rules)
    }

    fn chain(mut self, table: TableName, name: &str, rules: Vec<Rule>) -> Self {
        let head = |rule: Rule| RuleHead { handle: 1, rule: rule.to_dump(table.family) };
        self.rules.insert((table.clone(), name.into()), rules.into_iter().map(head).collect());
        self
    }

    /// Puts an expression in front of the last rule of a chain.
    fn before_last(mut self, table: TableName, chain: &str, expr: Expr) -> Self {
        let rules = self.rules.get_mut(&(table, chain.into())).unwrap();
        let mut changed = rules.to_vec();
        changed.last_mut().unwrap().rule.exprs.insert(0, expr);
        *rules = changed.into();
        self
    }

    fn drops(mut self, name: &str) -> Self {
        let chain = self.chains.iter_mut().find(|chain| &*chain.name == name).unwrap();
        chain.hook.as_mut().unwrap().drops = true;
        self
    }

    fn set(mut self, name: &str, elements: Vec<Element>) -> Self {
        let key_len = elements.first().map_or(4, |element| element.key.len());
        let is_interval = elements.iter().any(|element| element.key_end.is_some());
        let head = SetHead { name: name.into(), comment: None, key_len, is_interval, fields: Vec::new() };
        self.sets.insert(name.into(), (head, elements));
        self
    }

    fn explain(mut self, packet: &Packet) -> Explanation {
        let is_own = packet.source == IpAddr::from(OWN);
        let packet = Packet { input: if is_own { Link::None } else { packet.input.clone() }, ..packet.clone() };
        let walk = walk(packet.clone(), None, &mut self, &mut Node).unwrap();
        verdict::explain(&walk, &packet, None)
    }
}

fn rule(statements: impl Into<Vec<Statement>>) -> Rule {
    Rule::new(statements)
}

fn to(verdict: To) -> Statement {
    Statement::Verdict(verdict)
}

fn jump(chain: &str) -> Statement {
    to(To::Jump(chain.into()))
}

fn goto(chain: &str) -> Statement {
    to(To::Goto(chain.into()))
}

fn dnat(endpoint: &str) -> Statement {
    Statement::Dnat(endpoint.parse().unwrap())
}

fn is_port(port: u16) -> Statement {
    Statement::Match(vec![Field::ThDport], Operand::Is(Data::from(port)))
}

/// A TCP packet from an address to an address and port, which arrives at `eth0`.
fn sample(source: &str, target: &str) -> Packet {
    let link = Link::Known(2, "eth0".into());
    Packet::new((source.parse().unwrap(), None), target.parse().unwrap(), protocol::TCP, link)
}

fn packet() -> Packet {
    sample("203.0.113.7", "10.96.0.10:80")
}

/// Our table with a `nat` chain at `prerouting` that has these rules.
fn nat(rules: Vec<Rule>) -> World {
    World::default().base(ours(), "nat-prerouting", "nat", (PREROUTING, -100), rules)
}

fn endpoints(explanation: &Explanation) -> Vec<(String, f64)> {
    explanation.endpoints.iter().map(|e| (format!("{}:{}", e.address, e.port), e.probability)).collect()
}

#[test]
fn a_random_number_is_a_branch_for_each_value_and_probabilities_multiply() {
    let numbers = |count| vec![Field::NumgenRandom(count)];
    let verdict = |number: u32, verdict| Element::mapping(Data::from(number), Value::Verdict(verdict));
    let world = nat(vec![rule([Statement::Vmap(numbers(2), "halves".into())])])
        .set("halves", vec![verdict(0, To::Goto("a".into())), verdict(1, To::Goto("b".into()))])
        .set("thirds", (0..3).map(|n| verdict(n, To::Goto(format!("b{n}").into()))).collect())
        .chain(ours(), "a", vec![rule([dnat("10.0.0.1:8080")])])
        .chain(ours(), "b", vec![rule([Statement::Vmap(numbers(3), "thirds".into())])])
        .chain(ours(), "b0", vec![rule([dnat("10.0.0.2:8080")])])
        .chain(ours(), "b1", vec![rule([dnat("10.0.0.1:8080")])])
        .chain(ours(), "b2", vec![rule([to(To::Drop)])]);
    let explanation = world.explain(&packet());
    assert_eq!(explanation.verdict, Verdict::Partly, "one way leads to a drop");
    let found = endpoints(&explanation);
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    assert!((found[0].1 - 2.0 / 3.0).abs() < 1e-9 && (found[1].1 - 1.0 / 6.0).abs() < 1e-9, "{found:?}");
}

#[test]
fn a_hash_of_the_client_gives_the_number_that_the_kernel_gives() {
    use nft::{Hashed, jhash_below};
    let jhash = |hashed, modulus, offset| Field::Jhash { hashed, modulus, seed: 7, offset };
    let verdict =
        |number: u32| Element::mapping(Data::from(number), Value::Verdict(To::Goto(format!("n{number}").into())));
    let world = |field: Field, from: u32, count: u32| {
        let world = nat(vec![rule([Statement::Vmap(vec![field], "numbers".into())])])
            .set("numbers", (from..from + count).map(verdict).collect());
        (from..from + count).fold(world, |world, number| {
            world.chain(ours(), &format!("n{number}"), vec![rule([dnat(&format!("10.0.0.{}:80", number % 256))])])
        })
    };
    let expected = |number: u32, offset: u32| vec![(format!("10.0.0.{}:80", (offset + number) % 256), 1.0)];
    let address = [203, 0, 113, 7];
    let by_address = world(jhash(Hashed::IpSource, 5, 0), 0, 5).explain(&packet());
    assert_eq!(endpoints(&by_address), expected(jhash_below(&address, 7, 5), 0));
    // In the hashed bytes, the port takes a whole word, padded with zeros.
    let from_port = Packet { source_port: Some(0x1234), ..packet() };
    let word = [203, 0, 113, 7, 0x12, 0x34, 0, 0];
    let by_port = world(jhash(Hashed::IpSourceAndPort, 5, 300), 300, 5).explain(&from_port);
    assert_eq!(endpoints(&by_port), expected(jhash_below(&word, 7, 5), 300));
    // Without a source port every number is possible, if a single rule looks it up.
    let unknown = world(jhash(Hashed::IpSourceAndPort, 2, 0), 0, 2).explain(&packet());
    let half = |number: u32| (format!("10.0.0.{number}:80"), 0.5);
    assert_eq!(endpoints(&unknown), [half(0), half(1)]);
    let several = world(jhash(Hashed::IpSourceAndPort, 5, 300), 300, 5).explain(&packet());
    assert_eq!(several.verdict, Verdict::Unknown);
    assert!(several.reason.contains("the endpoint depends on the source port"), "{}", several.reason);
}

#[test]
fn jump_comes_back_and_goto_does_not() {
    let after = |first| {
        nat(vec![rule([first]), rule([dnat("10.0.0.1:1")])])
            .chain(ours(), "x", vec![rule([goto("y")]), rule([dnat("10.0.0.2:2")])])
            .chain(ours(), "y", vec![rule([to(To::Return)]), rule([to(To::Drop)])])
            .explain(&packet())
    };
    assert_eq!(endpoints(&after(jump("x"))), [("10.0.0.1:1".to_owned(), 1.0)]);
    assert_eq!(after(goto("x")).verdict, Verdict::Passed);
    assert_eq!(after(to(To::Accept)).verdict, Verdict::Passed);
    assert_eq!(after(to(To::Return)).verdict, Verdict::Passed);
}

#[test]
fn the_policy_of_a_chain_counts_at_its_end_only() {
    let accept = vec![rule([is_port(80), to(To::Accept)])];
    let world = || World::default().base(firewall(), "in", "filter", (PREROUTING, 0), accept.clone()).drops("in");
    assert_eq!(world().explain(&packet()).verdict, Verdict::Passed);
    let other = world().explain(&sample("203.0.113.7", "10.96.0.10:81"));
    assert_eq!(other.verdict, Verdict::Dropped);
    assert!(other.reason.contains("by the policy of the chain"), "{}", other.reason);
}

#[test]
fn chains_are_called_by_priority_and_those_of_type_nat_at_its_own() {
    let drops = |priority| {
        nat(vec![rule([dnat("10.0.0.1:8080")])])
            .base(firewall(), "pre", "filter", (PREROUTING, priority), vec![rule([is_port(80), to(To::Drop)])])
            .explain(&packet())
            .verdict
    };
    assert_eq!(drops(-150), Verdict::Dropped, "it sees the port that the client asked for");
    assert_eq!(drops(-50), Verdict::Translated, "it sees the endpoint's");
    let two = |priority| {
        let world = nat(vec![rule([dnat("10.0.0.1:8080")])]);
        let other = vec![rule([dnat("10.9.9.9:9")])];
        endpoints(&world.base(firewall(), "other", "nat", (PREROUTING, priority), other).explain(&packet()))
    };
    assert_eq!(two(-99), [("10.0.0.1:8080".to_owned(), 1.0)], "a connection is translated once");
    assert_eq!(two(-101), [("10.9.9.9:9".to_owned(), 1.0)]);
}

#[test]
fn connection_tracking_begins_at_its_priority() {
    let seen = |priority, bit, port| {
        World::default()
            .base(ours(), "nat", "nat", (PREROUTING, -100), vec![rule([dnat("10.0.0.1:8080")])])
            .base(
                firewall(),
                "x",
                "filter",
                (PREROUTING, priority),
                vec![rule([Statement::CtBit(bit), is_port(port), to(To::Drop)])],
            )
            .explain(&packet())
            .verdict
            == Verdict::Dropped
    };
    assert!(seen(-300, CtBit::StateInvalid, 80) && !seen(-300, CtBit::StateNew, 80));
    assert!(seen(-150, CtBit::StateNew, 80) && !seen(-150, CtBit::StatusDnat, 80));
    assert!(seen(0, CtBit::StatusDnat, 8080) && !seen(0, CtBit::StateEstablished, 8080));
}

#[test]
fn a_packet_that_is_not_tracked_is_not_translated() {
    let notrack = World::default()
        .base(firewall(), "raw", "filter", (PREROUTING, -300), vec![rule([])])
        .before_last(firewall(), "raw", Expr::Foreign(Arc::new(Foreign::Notrack)))
        .base(ours(), "nat", "nat", (PREROUTING, -100), vec![rule([dnat("10.0.0.1:8080")])]);
    let explanation = notrack.explain(&packet());
    assert_eq!(explanation.verdict, Verdict::Passed);
    assert!(explanation.steps[0].text.contains("connection tracking"), "{:?}", explanation.steps);
}

#[test]
fn a_translation_to_the_same_destination_is_none_to_conntrack() {
    let world = |endpoint| {
        nat(vec![rule([dnat(endpoint)])])
            .base(ours(), "x", "filter", (FORWARD, 0), vec![rule([Statement::CtBit(CtBit::StatusDnat), to(To::Drop)])])
            .explain(&packet())
            .verdict
    };
    assert_eq!(world("10.96.0.10:80"), Verdict::Translated);
    assert_eq!(world("10.96.0.10:81"), Verdict::Dropped);
}

#[test]
fn the_original_destination_is_kept() {
    let key = vec![Field::CtOriginalIpDaddr, Field::CtOriginalProtoDst];
    let element = Element::new(Data::from(IpAddr::from([10, 96, 0, 10])).then(80_u16));
    let explanation = nat(vec![rule([dnat("10.0.0.1:8080")])])
        .base(
            ours(),
            "x",
            "filter",
            (FORWARD, 0),
            vec![rule([Statement::Match(key, Operand::InSet("s".into())), to(To::Drop)])],
        )
        .set("s", vec![element])
        .explain(&packet());
    assert_eq!(explanation.verdict, Verdict::Dropped);
}

#[test]
fn the_mark_asks_for_masquerading() {
    const BIT: u32 = 0x4000;
    let marked = Statement::MarkBits { mask: BIT, set: true };
    let post = vec![rule([marked, Statement::ClearMarkBits(BIT), Statement::MasqueradeFullyRandom])];
    let world = |mark| {
        let first = if mark { vec![rule([Statement::SetMarkBits(BIT)])] } else { Vec::new() };
        nat([first, vec![rule([dnat("10.0.0.1:8080")])]].concat())
            .base(ours(), "post", "nat", (POSTROUTING, 100), post.clone())
            .explain(&packet())
    };
    assert!(world(true).masquerade && world(true).endpoints[0].masquerade);
    assert!(!world(false).masquerade);
}

#[test]
fn packets_of_this_host_take_output_and_those_to_itself_come_back() {
    let at = |hook, source: &str, target: &str| {
        let rules = vec![rule([Statement::FibLocal(FibAddress::Source), to(To::Drop)])];
        World::default().base(firewall(), "x", "filter", (hook, 0), rules).explain(&sample(source, target)).verdict
            == Verdict::Dropped
    };
    let own = "192.0.2.2";
    let hooks = |target| [PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING].map(|hook| at(hook, own, target));
    assert_eq!(hooks("10.0.0.1:80"), [false, false, false, true, true], "elsewhere");
    assert_eq!(hooks("192.0.2.2:80"), [true, true, false, true, true], "to itself");
    assert!(!at(PREROUTING, "203.0.113.7", "10.0.0.1:80"), "no address of this host");
}

#[test]
fn a_connection_to_this_host_is_translated_once_though_it_passes_prerouting() {
    let world = World::default().base(ours(), "out", "nat", (OUTPUT, -100), vec![rule([dnat("192.0.2.2:8080")])]).base(
        ours(),
        "pre",
        "nat",
        (PREROUTING, -100),
        vec![rule([dnat("10.9.9.9:9")])],
    );
    let explanation = world.explain(&sample("192.0.2.2", "10.96.0.10:80"));
    assert_eq!(endpoints(&explanation), [("192.0.2.2:8080".to_owned(), 1.0)]);
}

#[test]
fn the_route_is_looked_up_after_the_translation() {
    let input = vec![rule([is_port(8080), Statement::Reject])];
    let explanation =
        nat(vec![rule([dnat("192.0.2.2:8080")])]).base(ours(), "in", "filter", (INPUT, 0), input).explain(&packet());
    assert_eq!(explanation.verdict, Verdict::Refused);
    let nowhere = nat(vec![rule([dnat("198.18.0.1:1")])]).explain(&packet());
    assert_eq!(nowhere.verdict, Verdict::Translated);
    assert!(nowhere.warnings.iter().any(|text| text.contains("198.18.0.1: no route")), "{:?}", nowhere.warnings);
}

#[test]
fn ranges_hold_their_first_and_last_key() {
    let range = |first: [u8; 4], last: [u8; 4]| Element {
        key_end: Some(Box::new(Data::from(IpAddr::from(last)))),
        ..Element::new(Data::from(IpAddr::from(first)))
    };
    let verdict = |source: &str| {
        let rules = vec![rule([Statement::Match(vec![Field::IpSaddr], Operand::InSet("s".into())), to(To::Drop)])];
        World::default()
            .base(firewall(), "x", "filter", (PREROUTING, 0), rules)
            .set("s", vec![range([10, 0, 0, 0], [10, 0, 0, 255]), range([10, 2, 0, 0], [10, 2, 0, 0])])
            .explain(&sample(source, "10.96.0.10:80"))
            .verdict
    };
    let dropped = ["10.0.0.0", "10.0.0.255", "10.2.0.0"].map(verdict);
    assert_eq!(dropped, [Verdict::Dropped; 3]);
    assert_eq!(["9.255.255.255", "10.0.1.0", "10.2.0.1"].map(verdict), [Verdict::Passed; 3]);
}

#[test]
fn what_is_known_of_a_key_or_an_operand_may_decide() {
    let ping = || Packet { protocol: 1, port: 0, ..packet() };
    let frontend = |protocol: u8| Data::from(IpAddr::from([10, 96, 0, 10])).then(protocol).then(80_u16);
    let fields = || vec![Field::IpDaddr, Field::L4Proto, Field::ThDport];
    let drops = |protocol| {
        nat(vec![rule([Statement::Match(fields(), Operand::InSet("s".into())), to(To::Drop)])])
            .set("s", vec![Element::new(frontend(protocol))])
            .explain(&ping())
            .verdict
    };
    assert_eq!([drops(6), drops(1)], [Verdict::Passed, Verdict::Unknown], "the checksum in the place of the port");
    let is = |protocol: u8| {
        nat(vec![rule([Statement::Match(fields(), Operand::Is(frontend(protocol))), to(To::Drop)])])
            .explain(&ping())
            .verdict
    };
    assert_eq!([is(6), is(1)], [Verdict::Passed, Verdict::Unknown]);
}

/// The explanation with a firewall whose only rule has `expr` and then `verdict`, followed by a chain with the rules `behind`.
fn uncertain(expr: Expr, verdict: Statement, behind: Vec<Rule>) -> Explanation {
    let last = vec![rule([Statement::Counter, verdict])];
    nat(vec![rule([dnat("10.0.0.1:8080")])])
        .base(firewall(), "x", "filter", (PREROUTING, -150), last)
        .before_last(firewall(), "x", expr)
        .base(firewall(), "y", "filter", (PREROUTING, -140), behind)
        .explain(&packet())
}

#[test]
fn what_cannot_be_evaluated_counts_only_where_it_makes_a_difference() {
    let limit = || Expr::Unknown("limit".into());
    let dropped = uncertain(limit(), to(To::Drop), Vec::new());
    assert_eq!(dropped.verdict, Verdict::Unknown);
    assert!(
        dropped.reason.contains("another program: this rule cannot be evaluated, because of its expression limit"),
        "{}",
        dropped.reason
    );
    assert_eq!(uncertain(limit(), to(To::Accept), Vec::new()).verdict, Verdict::Translated);
    assert_eq!(uncertain(limit(), Statement::Counter, Vec::new()).verdict, Verdict::Translated);
    let either_way = uncertain(limit(), to(To::Drop), vec![rule([to(To::Drop)])]);
    assert_eq!(either_way.verdict, Verdict::Dropped, "another chain drops it anyway");
}

#[test]
fn a_target_of_another_program_cannot_be_told_but_one_that_only_logs_can() {
    let target = |name: &str| Expr::Foreign(Arc::new(Foreign::XtTarget(name.into())));
    assert_eq!(uncertain(target("DNAT"), Statement::Counter, Vec::new()).verdict, Verdict::Unknown);
    assert_eq!(uncertain(target("LOG"), Statement::Counter, Vec::new()).verdict, Verdict::Translated);
    let queue = uncertain(Expr::Unknown("queue".into()), Statement::Counter, Vec::new());
    assert_eq!(queue.verdict, Verdict::Unknown);
}

// NAT happens once per connection, and who did it is said.
#[test]
fn a_packet_that_another_program_translates_to_a_cluster_ip_is_not_without_a_service() {
    let refuses =
        vec![rule([Statement::Match(vec![Field::IpDaddr], Operand::InSet("cluster-ips".into())), goto("KUBE-REJECT")])];
    let told = nat(vec![rule([dnat("10.0.0.1:8080")])])
        .base(firewall(), "pre", "nat", (PREROUTING, -105), vec![rule([dnat("10.96.0.30:80")])])
        .base(ours(), "filter-forward", "filter", (FORWARD, 0), refuses)
        .chain(ours(), "KUBE-REJECT", vec![rule([Statement::Reject])])
        .set("cluster-ips", vec![Element::new(Data::from(IpAddr::from([10, 96, 0, 30])))])
        .explain(&packet());
    let by = "another program (table inet firewall, chain pre)";
    assert_eq!((told.verdict, told.is_wrong), (Verdict::Refused, false));
    assert_eq!(told.translated_before, Some((by.to_owned(), "10.96.0.30:80".parse().unwrap())));
    assert_eq!(
        told.reason,
        format!(
            "{by} sends it to 10.96.0.30:80, but the kernel translates a connection only once, so no Service of 10.96.0.30 sends it to an \
             endpoint"
        )
    );
}

#[test]
fn of_two_orders_of_chains_the_outcome_is_told_that_both_have() {
    let of = |verdict, reason: &str| Explanation::new(verdict, None, reason.to_owned());
    let told = |after, before| {
        let told = Explanation::in_either_order(of(after, "one"), of(before, "two"));
        (told.verdict, told.reason)
    };
    assert_eq!(told(Verdict::Dropped, Verdict::Dropped), (Verdict::Dropped, "one".to_owned()));
    let reason = "chains of iptables-legacy run before or after others of the same priority, and the kernel does not tell which. Before: \
                  dropped, two. After: refused, one";
    assert_eq!(told(Verdict::Refused, Verdict::Dropped), (Verdict::Unknown, reason.to_owned()));
}

#[test]
fn what_was_not_said_about_the_packet_is_not_guessed() {
    let load = || Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 2, dreg: register() };
    let compare = || {
        let data = Data::from(1023_u16);
        Expr::Foreign(Arc::new(Foreign::Compare { order: Order::AtMost, sreg: register(), data }))
    };
    let with_source = |source_port| {
        nat(vec![rule([dnat("10.0.0.1:8080")])])
            .base(firewall(), "x", "filter", (PREROUTING, -150), vec![rule([to(To::Drop)])])
            .before_last(firewall(), "x", compare())
            .before_last(firewall(), "x", load())
            .explain(&Packet { source_port, ..packet() })
    };
    let unknown = with_source(None);
    assert_eq!(unknown.verdict, Verdict::Unknown);
    assert!(unknown.reason.contains("because of the source port"), "{}", unknown.reason);
    assert_eq!([Some(4000), Some(1023)].map(|port| with_source(port).verdict), [Verdict::Translated, Verdict::Dropped]);
}

/// The register into which a rule for a port loads the port.
fn register() -> Register {
    let exprs = rule([is_port(80)]).to_dump(Family::Ip).exprs;
    match exprs[0] {
        Expr::Payload { dreg, .. } => dreg,
        _ => panic!("a port is loaded first"),
    }
}

#[test]
fn comparisons_of_other_programs_are_evaluated() {
    let port = || Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg: register() };
    let drops = |load: Expr, compare: Foreign| {
        nat(vec![rule([dnat("10.0.0.1:8080")])])
            .base(firewall(), "x", "filter", (FORWARD, 0), vec![rule([to(To::Drop)])])
            .before_last(firewall(), "x", Expr::Foreign(Arc::new(compare)))
            .before_last(firewall(), "x", load)
            .explain(&packet())
            .verdict
            == Verdict::Dropped
    };
    let order = |order, port: u16| Foreign::Compare { order, sreg: register(), data: Data::from(port) };
    assert!(drops(port(), order(Order::Less, 8081)) && !drops(port(), order(Order::Less, 8080)));
    assert!(drops(port(), order(Order::AtMost, 8080)) && drops(port(), order(Order::AtLeast, 8080)));
    let range =
        |outside| Foreign::Range { outside, sreg: register(), first: Data::from(8000_u16), last: Data::from(8080_u16) };
    assert!(drops(port(), range(false)) && !drops(port(), range(true)));
    let oifname = Expr::Foreign(Arc::new(Foreign::Meta { key: 7, dreg: register() }));
    let mut name = [0; 16];
    name[..4].copy_from_slice(b"cni0");
    let is_cni0 = Foreign::Range {
        outside: false,
        sreg: register(),
        first: Data::from_bytes(&name).unwrap(),
        last: Data::from_bytes(&name).unwrap(),
    };
    assert!(drops(oifname, is_cni0), "the interface towards the endpoint");
}

#[test]
fn a_chain_before_the_services_is_named() {
    let explanation = uncertain(Expr::Counter, Statement::Counter, Vec::new());
    assert!(
        explanation.warnings[0].starts_with("table inet firewall, chain x of another program sees the packet before")
    );
    let behind = nat(Vec::new()).base(firewall(), "x", "filter", (PREROUTING, -50), Vec::new()).explain(&packet());
    assert_eq!(behind.warnings, [""; 0]);
}

#[test]
fn arguments_are_read_as_the_help_says() {
    let target =
        |text: &str| text.parse::<Target>().map(|target| (target.address.to_string(), target.port, target.protocol));
    assert_eq!(target("10.0.0.1:80"), Ok(("10.0.0.1".to_owned(), 80, 6)));
    assert_eq!(target("10.0.0.1:53/UDP"), Ok(("10.0.0.1".to_owned(), 53, 17)));
    assert_eq!(target("[fd00::1]:80/sctp"), Ok(("fd00::1".to_owned(), 80, 132)));
    assert_eq!(target("10.0.0.1/icmp"), Ok(("10.0.0.1".to_owned(), 0, 1)));
    assert_eq!(target("fd00::1/icmp"), Ok(("fd00::1".to_owned(), 0, 58)));
    for wrong in ["10.0.0.1", "10.0.0.1:0", "fd00::1:80/tcp/x", "10.0.0.1:80/gre", "host:80", ""] {
        assert!(target(wrong).is_err(), "{wrong}");
    }
    assert_eq!("10.0.0.1:4000".parse(), Ok(Source { address: [10, 0, 0, 1].into(), port: Some(4000) }));
    assert!("pod".parse::<Source>().is_err());
}

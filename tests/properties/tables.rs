//! Any table to any other, by one transaction, in a real kernel: what the difference of two tables does to the first makes it the
//! second. Below Services: the tables are random elements, groups of slots, maps, maps of verdicts and chains of a few owners.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use nft::{
    BaseChain, Chain, ChainType, Command, Data, DataType, Element, Family, Field, Hook, Operand, Rule, Set, SetFlags,
    Statement, Table, TableDump, TableName, Types, Value, ValueType, Verdict,
};
use node::kernel::{Kernel, Netfilter};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{TestCaseResult, TestRunner};
use rules::diff::{Collect, Records};
use rules::table::{ChainContent, DynamicSet, OnDemand, ServiceObjects, SetName, Slots, StaticRules, VerdictMap};

use crate::support::netns::Namespace;
use crate::{failed, fixed, held, remove_tables};

const CASES: u32 = 80;
const SLOT: Field = Field::NumgenRandom(1 << 16);
const TCP: u8 = 6;

/// What a table should hold: a fixed part, and the parts of owners 0 to 3.
#[derive(Clone, Debug)]
struct Content {
    shape: Shape,
    parts: BTreeMap<u8, ServiceObjects>,
}

/// The fixed parts. Their difference can be corrected (`OtherRules`), or only by making the table anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    OtherRules,
    OtherHook,
    MoreSets,
}

fn table() -> TableName {
    TableName::new(Family::Ip, "kube-proxy")
}

fn chain(name: &str, rules: Vec<Rule>) -> ChainContent {
    ChainContent { chain: Chain { name: name.into(), base: None, comment: None }, rules }
}

fn static_rules(shape: Shape) -> StaticRules {
    let interval = SetFlags { interval: true, ..SetFlags::default() };
    let ranges = Set { flags: interval, ..Set::new("ranges", Types::Named(vec![DataType::Ipv4Addr])) };
    let frontend = vec![DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
    let services = Set::map("services", Types::Named(frontend), ValueType::Verdict);
    let endpoint = ValueType::Data(Types::Of(vec![Field::IpDaddr, Field::ThDport]));
    let endpoints = Set::map("endpoints", Types::Of(vec![Field::IpDaddr, SLOT]), endpoint);
    let shared = Set::new("shared", Types::Named(vec![DataType::Ipv4Addr]));
    let mut sets = vec![ranges, services, endpoints, shared];
    if shape == Shape::MoreSets {
        sets.push(Set::new("more", Types::Named(vec![DataType::Mark])));
    }
    let in_ranges = Statement::Match(vec![Field::IpSaddr], Operand::InSet("ranges".into()));
    let to_service = Statement::Vmap(vec![Field::IpDaddr, Field::L4Proto, Field::ThDport], "services".into());
    let mut rules = vec![Rule::new([in_ranges, Statement::Counter]), Rule::new([to_service])];
    if shape == Shape::OtherRules {
        rules.reverse();
        rules.push(Rule { comment: Some("the last".into()), ..Rule::new([Statement::Verdict(Verdict::Return)]) });
    }
    let hook = if shape == Shape::OtherHook { Hook::Output } else { Hook::Prerouting };
    let base = BaseChain { kind: ChainType::Nat, hook, priority: -100 };
    let mut top = chain("top", rules);
    top.chain.base = Some(base);
    StaticRules {
        table: Table { name: table(), comment: None },
        owned: false,
        sets: sets.into_iter().map(Arc::new).collect(),
        slotted: vec![SetName::Borrowed("endpoints")],
        shared: vec![SetName::Borrowed("shared")],
        chains: vec![top],
        on_demand: OnDemand::new(balancer),
        former: |_| false,
        kinds: &[],
    }
}

/// `lb-N`: one of N endpoints.
fn balancer(name: &str) -> Option<ChainContent> {
    let count = name.strip_prefix("lb-")?.parse().ok()?;
    let fields = vec![Field::IpDaddr, Field::NumgenRandom(count)];
    Some(chain(name, vec![Rule::new([Statement::DnatToMap(fields, "endpoints".into())])]))
}

fn address(owner: u8, number: u8) -> IpAddr {
    Ipv4Addr::new(10, 96, owner, number).into()
}

fn comment() -> impl Strategy<Value = Option<Arc<str>>> {
    select(vec![None, Some("web".into()), Some("mail".into())])
}

/// Neighbouring ranges, and some of them with a comment.
fn ranges(owner: u8) -> impl Strategy<Value = Vec<(SetName, Element)>> {
    prop::collection::btree_map(0..6_u8, comment(), 0..4).prop_map(move |ranges| {
        let range = |(number, comment)| {
            let end = |last| Data::from(IpAddr::from([192, owner, number, last]));
            let element = Element { key_end: Some(Box::new(end(255))), comment, ..Element::new(end(0)) };
            (SetName::Borrowed("ranges"), element)
        };
        ranges.into_iter().map(range).collect()
    })
}

/// Frontends that lead to chains on demand, to a chain of the part, or nowhere.
fn frontends(owner: u8, own: Vec<Arc<str>>) -> impl Strategy<Value = Vec<(SetName, Element)>> {
    let on_demand = ["lb-1", "lb-2", "lb-3"].map(|name| Verdict::Goto(name.into()));
    let own = own.into_iter().map(Verdict::Goto);
    let verdicts: Vec<Verdict> = on_demand.into_iter().chain([Verdict::Drop]).chain(own).collect();
    prop::collection::btree_map(0..4_u8, (select(verdicts), comment()), 0..4).prop_map(move |frontends| {
        let frontend = |(number, (verdict, comment))| {
            let key = Data::from(address(owner, number)).then(TCP).then(80_u16);
            let element = Element { comment, ..Element::mapping(key, Value::Verdict(verdict)) };
            (SetName::Borrowed("services"), element)
        };
        frontends.into_iter().map(frontend).collect()
    })
}

/// Addresses of which other owners have some as well.
fn shared() -> impl Strategy<Value = Vec<(SetName, Element)>> {
    let element = |last: u8| (SetName::Borrowed("shared"), Element::new(Data::from(IpAddr::from([10, 1, 1, last]))));
    subsequence((1..5_u8).collect::<Vec<_>>(), 0..=3).prop_map(move |list| list.into_iter().map(element).collect())
}

fn slots(owner: u8) -> impl Strategy<Value = Vec<Slots>> {
    let endpoints: Vec<Data> =
        (1..6_u8).map(|last| Data::from(IpAddr::from([10, 244, 1, last])).then(80_u16)).collect();
    let values = subsequence(endpoints, 1..=4).prop_shuffle();
    prop::collection::btree_map(0..4_u8, values, 0..4).prop_map(move |groups| {
        let group = |(number, values): (u8, Vec<Data>)| {
            let prefix = Data::from(address(owner, number));
            Slots {
                set: SetName::Borrowed("endpoints"),
                prefix,
                values: values.into_iter().collect(),
                is_fixed: number % 2 == 0,
            }
        };
        groups.into_iter().map(group).collect()
    })
}

/// Rules that lead nowhere.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let from = Statement::Match(vec![Field::IpSaddr], Operand::Is(Data::from(IpAddr::from([10, 0, 0, 1]))));
    let rules = vec![
        Rule::new([Statement::Counter]),
        Rule::new([from, Statement::Verdict(Verdict::Return)]),
        Rule { comment: Some("marked".into()), ..Rule::new([Statement::SetMarkBits(1 << 14)]) },
    ];
    subsequence(rules, 1..=3).prop_shuffle()
}

/// Chains of an owner, and a map of verdicts that chooses among them with the chain that makes it.
fn chains(owner: u8) -> impl Strategy<Value = (Vec<ChainContent>, Vec<VerdictMap>)> {
    (prop::collection::btree_map(0..4_u8, rules(), 0..4), any::<bool>()).prop_map(move |(chains, choose)| {
        let name = |number| format!("own-{owner}-{number}");
        let mut contents: Vec<ChainContent> =
            chains.into_iter().map(|(number, rules)| chain(&name(number), rules)).collect();
        let mut verdict_maps = Vec::new();
        if choose && !contents.is_empty() {
            let map: Arc<str> = format!("choice-{owner}").into();
            let set = Set::map(&map, Types::Of(vec![SLOT]), ValueType::Verdict);
            let verdicts = contents.iter().map(|content| Verdict::Jump(Arc::clone(&content.chain.name))).collect();
            verdict_maps.push(VerdictMap { set: Arc::new(set), verdicts, is_fixed: false });
            let count = u32::try_from(contents.len()).expect("a few");
            let pick = Rule::new([Statement::Vmap(vec![Field::NumgenRandom(count)], map)]);
            contents.push(chain(&format!("picks-{owner}"), vec![pick]));
        }
        (contents, verdict_maps)
    })
}

fn learned(owner: u8) -> DynamicSet {
    let flags = SetFlags { dynamic: true, timeout: true, ..SetFlags::default() };
    let set = Set::new(&format!("learned-{owner}"), Types::Named(vec![DataType::Ipv4Addr]));
    let set = Set { flags, timeout: Some(Duration::from_secs(60)), size: Some(64), ..set };
    DynamicSet { set: Arc::new(set), allowed: None }
}

fn part(owner: u8) -> impl Strategy<Value = (u8, ServiceObjects)> {
    chains(owner)
        .prop_flat_map(move |(chains, verdict_maps)| {
            let own = chains.iter().map(|content| Arc::clone(&content.chain.name)).collect();
            let elements = (frontends(owner, own), ranges(owner), shared());
            (Just(chains), Just(verdict_maps), elements, slots(owner), any::<bool>())
        })
        .prop_map(move |(chains, verdict_maps, (frontends, ranges, shared), slots, learns)| {
            let learned = if learns { vec![learned(owner)] } else { Vec::new() };
            (
                owner,
                ServiceObjects {
                    elements: [frontends, ranges, shared].concat(),
                    slots,
                    dynamic_sets: learned,
                    verdict_maps,
                    chains,
                },
            )
        })
}

/// A part without sets and chains of its own.
fn elements(owner: u8) -> impl Strategy<Value = (u8, ServiceObjects)> {
    (frontends(owner, Vec::new()), ranges(owner), shared(), slots(owner)).prop_map(
        move |(frontends, ranges, shared, slots)| {
            (
                owner,
                ServiceObjects { elements: [frontends, ranges, shared].concat(), slots, ..ServiceObjects::default() },
            )
        },
    )
}

fn parts() -> impl Strategy<Value = BTreeMap<u8, ServiceObjects>> {
    let some = |owner| prop::option::weighted(0.7, part(owner));
    (some(0), some(1), some(2), some(3)).prop_map(|(a, b, c, d)| [a, b, c, d].into_iter().flatten().collect())
}

fn content() -> impl Strategy<Value = Content> {
    let shape = prop_oneof![
        3 => Just(Shape::Plain),
        1 => Just(Shape::OtherRules),
        1 => Just(Shape::OtherHook),
        1 => Just(Shape::MoreSets),
    ];
    (shape, parts()).prop_map(|(shape, parts)| Content { shape, parts })
}

fn records(content: &Content) -> Records<u8> {
    let mut records = Records::new(static_rules(content.shape));
    for (owner, fragment) in &content.parts {
        records.put(*owner, fragment.clone());
    }
    records
}

fn read(kernel: &mut Netfilter) -> Option<TableDump> {
    kernel.read(&table()).expect("a table can be read")
}

/// Has the kernel carry out what makes a table that was read the wanted one. Gives the number of commands.
fn compare_and_commit(kernel: &mut Netfilter, records: &mut Records<u8>) -> Result<usize, TestCaseError> {
    let dump = read(kernel);
    let commands = records.comparison(dump.as_ref(), Collect::Nothing);
    commit(kernel, records, &commands, Some(dump.as_ref()))?;
    Ok(commands.len())
}

/// The same for the difference of new and committed records.
fn commit_changes(kernel: &mut Netfilter, records: &mut Records<u8>) -> Result<usize, TestCaseError> {
    let commands = records.changes(Collect::Nothing);
    commit(kernel, records, &commands, None)?;
    Ok(commands.len())
}

fn commit(
    kernel: &mut Netfilter,
    records: &mut Records<u8>,
    commands: &[Command],
    compared: Option<Option<&TableDump>>,
) -> Result<(), TestCaseError> {
    if !commands.is_empty() {
        kernel.commit(commands).map_err(failed)?;
    }
    records.committed(commands, compared);
    Ok(())
}

/// Nothing is left to be done: neither by the records nor by what the kernel holds. The sums over the records are right.
fn is_done(kernel: &mut Netfilter, records: &mut Records<u8>) -> TestCaseResult {
    let dump = read(kernel);
    prop_assert_eq!(records.changes(Collect::Nothing), vec![], "by what was done");
    prop_assert_eq!(records.comparison(dump.as_ref(), Collect::Nothing), vec![], "by what is there");
    let dump = dump.expect("there is a table");
    for (set, len) in records.lens() {
        prop_assert_eq!(dump.sets.get(set).map(|(_, elements)| elements.len()), Some(len), "elements of {}", set);
    }
    Ok(())
}

/// From one table to another, and then compared with the other written from nothing.
fn follow(from: &Content, to: &Content, changes: &Cell<usize>) -> TestCaseResult {
    let mut kernel = Netfilter::open().expect("a netlink socket can be opened");
    remove_tables(&mut kernel);
    let (mut first, mut second) = (records(from), records(to));
    compare_and_commit(&mut kernel, &mut first)?;
    is_done(&mut kernel, &mut first)?;

    changes.set(changes.get() + compare_and_commit(&mut kernel, &mut second)?);
    is_done(&mut kernel, &mut second)?;
    let followed = held(&mut kernel);

    remove_tables(&mut kernel);
    compare_and_commit(&mut kernel, &mut records(to))?;
    prop_assert_eq!(followed, held(&mut kernel));
    Ok(())
}

/// Parts of which some are those of another owner.
type Parts = BTreeMap<u8, ServiceObjects>;

/// The same by the difference of the records, in two transactions: the second one goes back and forth.
fn difference(from: &Parts, to: &Parts, changes: &Cell<usize>) -> TestCaseResult {
    let mut kernel = Netfilter::open().expect("a netlink socket can be opened");
    remove_tables(&mut kernel);
    let content = |parts: &Parts| Content { shape: Shape::Plain, parts: parts.clone() };
    let mut records = records(&content(from));
    compare_and_commit(&mut kernel, &mut records)?;

    let put = |records: &mut Records<u8>, parts: &Parts, owners: &[u8]| {
        let part = |owner: &u8| parts.get(owner).cloned().unwrap_or_default();
        owners.iter().for_each(|owner| records.put(*owner, part(owner)));
    };
    for (parts, owners) in [(to, &[0, 1][..]), (from, &[1]), (to, &[3, 1, 2])] {
        put(&mut records, parts, owners);
        changes.set(changes.get() + commit_changes(&mut kernel, &mut records)?);
        prop_assert_eq!(commit_changes(&mut kernel, &mut records)?, 0, "nothing is left");
        is_done(&mut kernel, &mut records)?;
    }
    let followed = held(&mut kernel);

    remove_tables(&mut kernel);
    compare_and_commit(&mut kernel, &mut self::records(&content(to)))?;
    prop_assert_eq!(followed, held(&mut kernel));
    Ok(())
}

/// Two owners exchange what they have, and one gives its part to the other, in one transaction each.
fn exchange(one: &ServiceObjects, other: &ServiceObjects, changes: &Cell<usize>) -> TestCaseResult {
    let mut kernel = Netfilter::open().expect("a netlink socket can be opened");
    remove_tables(&mut kernel);
    let parts = BTreeMap::from([(0, one.clone()), (1, other.clone())]);
    let mut records = records(&Content { shape: Shape::Plain, parts });
    compare_and_commit(&mut kernel, &mut records)?;
    for (first, second) in [(other, one), (one, other), (&ServiceObjects::default(), one)] {
        records.put(0, first.clone());
        records.put(1, second.clone());
        let elements: usize = records.changes(Collect::Nothing).iter().map(Command::elements).sum();
        changes.set(changes.get() + elements);
        commit_changes(&mut kernel, &mut records)?;
        is_done(&mut kernel, &mut records)?;
    }
    Ok(())
}

/// Runs a property that counts the commands or elements that it needed; few would mean that the tables are all but empty or equal.
fn assert_property<S: Strategy>(seed: u64, strategy: &S, property: impl Fn(S::Value, &Cell<usize>) -> TestCaseResult) {
    let changes = Cell::new(0);
    let outcome = TestRunner::new(fixed(CASES, seed)).run(strategy, |value| property(value, &changes));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(changes.get() > 5 * usize::try_from(CASES).expect("a few"), "only {} changes", changes.get());
}

// The full comparison of two tables gives the commands that turn one into the other (G7).
#[test]
fn the_difference_of_two_tables_makes_the_first_the_second() {
    let property = |(from, to): (Content, Content), changes: &Cell<usize>| follow(&from, &to, changes);
    Namespace::new("tables").enter(|| assert_property(7, &(content(), content()), property));
}

// The comparison of the records that changed gives the same as the full one (G7).
#[test]
fn the_difference_of_the_records_that_change_makes_the_first_table_the_second() {
    let property = |(from, to): (Parts, Parts), changes: &Cell<usize>| difference(&from, &to, changes);
    Namespace::new("records").enter(|| assert_property(8, &(parts(), parts()), property));
}

// An object that one Service gives up while another takes it over is neither lost nor added twice (G7).
#[test]
fn what_moves_from_one_owner_to_another_is_there_once_and_whole() {
    let fragment = |owner| elements(owner).prop_map(|(_, fragment)| fragment);
    let property =
        |(one, other): (ServiceObjects, ServiceObjects), changes: &Cell<usize>| exchange(&one, &other, changes);
    Namespace::new("exchange").enter(|| assert_property(9, &(fragment(0), fragment(1)), property));
}

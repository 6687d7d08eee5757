//! Any table to any other, by one transaction, in a real kernel: what the difference of two tables does to the first makes it the
//! second. Below Services: the tables are random elements, groups of slots, maps, choices and chains of a few owners.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use kube_proxy::diff::{
    ChainContent, Choice, Collect, Desired, Fragment, LearnedMap, Program, Realised, Scope, SetName, Slots, transaction,
};
use kube_proxy::kernel::{Kernel, Netfilter};
use nft::{
    BaseChain, Chain, ChainType, Data, DataType, Element, Family, Field, Hook, Operand, Rule, Set, SetFlags, Statement,
    Table, TableName, Types, Value, ValueType, Verdict,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{TestCaseResult, TestRunner};

use crate::support::netns::Namespace;
use crate::{failed, fixed, held, remove_tables};

const CASES: u32 = 80;
const SLOT: Field = Field::NumgenRandom(1 << 16);
const TCP: u8 = 6;

/// What a table should hold: a fixed part, and the parts of owners 0 to 3.
#[derive(Clone, Debug)]
struct Content {
    shape: Shape,
    parts: BTreeMap<u8, Fragment>,
}

/// The fixed parts. What tells them apart can be corrected (`OtherRules`), or only by making the table anew.
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

fn program(shape: Shape) -> Program {
    let interval = SetFlags { interval: true, ..SetFlags::default() };
    let ranges = Set { flags: interval, ..Set::new("ranges", Types::Named(vec![DataType::Ipv4Addr])) };
    let front = vec![DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
    let services = Set::map("services", Types::Named(front), ValueType::Verdict);
    let endpoint = ValueType::Data(Types::Of(vec![Field::IpDaddr, Field::ThDport]));
    let endpoints = Set::map("endpoints", Types::Of(vec![Field::IpDaddr, SLOT]), endpoint);
    let mut sets = vec![ranges, services, endpoints];
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
    Program {
        table: Table { name: table(), comment: None },
        owned: false,
        sets: sets.into_iter().map(Arc::new).collect(),
        slotted: vec![SetName::Borrowed("endpoints")],
        chains: vec![top],
        on_demand: balancer,
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

/// Fronts that lead to chains on demand, to a chain of the part, or nowhere.
fn fronts(owner: u8, own: Vec<Arc<str>>) -> impl Strategy<Value = Vec<(SetName, Element)>> {
    let on_demand = ["lb-1", "lb-2", "lb-3"].map(|name| Verdict::Goto(name.into()));
    let own = own.into_iter().map(Verdict::Goto);
    let verdicts: Vec<Verdict> = on_demand.into_iter().chain([Verdict::Drop]).chain(own).collect();
    prop::collection::btree_map(0..4_u8, (select(verdicts), comment()), 0..4).prop_map(move |fronts| {
        let front = |(number, (verdict, comment))| {
            let key = Data::from(address(owner, number)).then(TCP).then(80_u16);
            let element = Element { comment, ..Element::mapping(key, Value::Verdict(verdict)) };
            (SetName::Borrowed("services"), element)
        };
        fronts.into_iter().map(front).collect()
    })
}

fn slots(owner: u8) -> impl Strategy<Value = Vec<Slots>> {
    let endpoints: Vec<Data> =
        (1..6_u8).map(|last| Data::from(IpAddr::from([10, 244, 1, last])).then(80_u16)).collect();
    let values = subsequence(endpoints, 1..=4).prop_shuffle();
    prop::collection::btree_map(0..4_u8, values, 0..4).prop_map(move |groups| {
        let group = |(number, values): (u8, Vec<Data>)| {
            let prefix = Data::from(address(owner, number));
            Slots { set: SetName::Borrowed("endpoints"), prefix, values: values.into_iter().collect() }
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

/// Chains of an owner, and a choice among them with the chain that makes it.
fn chains(owner: u8) -> impl Strategy<Value = (Vec<ChainContent>, Vec<Choice>)> {
    (prop::collection::btree_map(0..4_u8, rules(), 0..4), any::<bool>()).prop_map(move |(chains, choose)| {
        let name = |number| format!("own-{owner}-{number}");
        let mut contents: Vec<ChainContent> =
            chains.into_iter().map(|(number, rules)| chain(&name(number), rules)).collect();
        let mut choices = Vec::new();
        if choose && !contents.is_empty() {
            let map: Arc<str> = format!("choice-{owner}").into();
            let set = Set::map(&map, Types::Of(vec![SLOT]), ValueType::Verdict);
            let verdicts = contents.iter().map(|content| Verdict::Jump(Arc::clone(&content.chain.name))).collect();
            choices.push(Choice { set: Arc::new(set), verdicts });
            let count = u32::try_from(contents.len()).expect("a few");
            let pick = Rule::new([Statement::Vmap(vec![Field::NumgenRandom(count)], map)]);
            contents.push(chain(&format!("picks-{owner}"), vec![pick]));
        }
        (contents, choices)
    })
}

fn learned(owner: u8) -> LearnedMap {
    let flags = SetFlags { dynamic: true, timeout: true, ..SetFlags::default() };
    let set = Set::new(&format!("learned-{owner}"), Types::Named(vec![DataType::Ipv4Addr]));
    let set = Set { flags, timeout: Some(Duration::from_secs(60)), size: Some(64), ..set };
    LearnedMap { set: Arc::new(set), allowed: None }
}

fn part(owner: u8) -> impl Strategy<Value = (u8, Fragment)> {
    chains(owner)
        .prop_flat_map(move |(chains, choices)| {
            let own = chains.iter().map(|content| Arc::clone(&content.chain.name)).collect();
            (Just(chains), Just(choices), fronts(owner, own), ranges(owner), slots(owner), any::<bool>())
        })
        .prop_map(move |(chains, choices, fronts, ranges, slots, learns)| {
            let learned = if learns { vec![learned(owner)] } else { Vec::new() };
            (owner, Fragment { elements: [fronts, ranges].concat(), slots, learned, choices, chains })
        })
}

fn parts() -> impl Strategy<Value = BTreeMap<u8, Fragment>> {
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

fn desired(content: &Content) -> Desired<u8> {
    let mut desired = Desired::new(program(content.shape));
    for (owner, fragment) in &content.parts {
        desired.replace(*owner, fragment.clone());
    }
    desired
}

fn read(kernel: &mut Netfilter, desired: &Desired<u8>) -> Realised {
    Realised::from_dump(kernel.read(&table()).expect("a table can be read"), desired.program())
}

/// Has the kernel carry out what makes the table the wanted one, and the model of it alike. Gives the number of commands.
fn commit(
    kernel: &mut Netfilter,
    desired: &Desired<u8>,
    realised: &mut Realised,
    scope: Scope,
) -> Result<usize, TestCaseError> {
    let commands = transaction(desired, realised, scope, Collect::Nothing);
    if !commands.is_empty() {
        kernel.commit(&commands).map_err(failed)?;
    }
    commands.iter().for_each(|command| realised.apply(command, &table()));
    Ok(commands.len())
}

/// Nothing is left to be done, neither by the model's word nor by the kernel's.
fn settled(kernel: &mut Netfilter, desired: &Desired<u8>, realised: &Realised) -> TestCaseResult {
    let left = |realised: &Realised| transaction(desired, realised, Scope::Everything, Collect::Nothing);
    prop_assert_eq!(left(realised), vec![], "by what was done");
    prop_assert_eq!(left(&read(kernel, desired)), vec![], "by what is there");
    Ok(())
}

/// From one table to another, and then compared with the other written from nothing.
fn follow(from: &Content, to: &Content, changes: &Cell<usize>) -> TestCaseResult {
    let mut kernel = Netfilter::open().expect("a netlink socket can be opened");
    remove_tables(&mut kernel);
    let (first, second) = (desired(from), desired(to));
    let mut nothing = Realised::absent(first.program());
    commit(&mut kernel, &first, &mut nothing, Scope::Everything)?;
    settled(&mut kernel, &first, &nothing)?;

    let mut realised = read(&mut kernel, &second);
    changes.set(changes.get() + commit(&mut kernel, &second, &mut realised, Scope::Everything)?);
    settled(&mut kernel, &second, &realised)?;
    let followed = held(&mut kernel);

    remove_tables(&mut kernel);
    let mut nothing = Realised::absent(second.program());
    commit(&mut kernel, &second, &mut nothing, Scope::Everything)?;
    prop_assert_eq!(followed, held(&mut kernel));
    Ok(())
}

/// The same by touching the parts that change only.
fn touch(from: &BTreeMap<u8, Fragment>, to: &BTreeMap<u8, Fragment>, changes: &Cell<usize>) -> TestCaseResult {
    let mut kernel = Netfilter::open().expect("a netlink socket can be opened");
    remove_tables(&mut kernel);
    let content = |parts: &BTreeMap<u8, Fragment>| Content { shape: Shape::Plain, parts: parts.clone() };
    let mut desired = desired(&content(from));
    let mut realised = Realised::absent(desired.program());
    commit(&mut kernel, &desired, &mut realised, Scope::Everything)?;
    desired.settle();

    for owner in 0..4 {
        desired.replace(owner, to.get(&owner).cloned().unwrap_or_default());
    }
    changes.set(changes.get() + commit(&mut kernel, &desired, &mut realised, Scope::Touched)?);
    desired.settle();
    prop_assert_eq!(commit(&mut kernel, &desired, &mut realised, Scope::Touched)?, 0, "nothing is touched any more");
    settled(&mut kernel, &desired, &realised)?;
    let followed = held(&mut kernel);

    remove_tables(&mut kernel);
    let fresh = self::desired(&content(to));
    commit(&mut kernel, &fresh, &mut Realised::absent(fresh.program()), Scope::Everything)?;
    prop_assert_eq!(followed, held(&mut kernel));
    Ok(())
}

/// Runs a property that counts the commands it needed; few would mean that the tables are all but empty or equal.
fn assert_property<S: Strategy>(seed: u64, strategy: &S, property: impl Fn(S::Value, &Cell<usize>) -> TestCaseResult) {
    let changes = Cell::new(0);
    let outcome = TestRunner::new(fixed(CASES, seed)).run(strategy, |value| property(value, &changes));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(changes.get() > 5 * usize::try_from(CASES).expect("a few"), "only {} commands", changes.get());
}

// G7
#[test]
fn the_difference_of_two_tables_makes_the_first_the_second() {
    let property = |(from, to): (Content, Content), changes: &Cell<usize>| follow(&from, &to, changes);
    Namespace::new("tables").enter(|| assert_property(7, &(content(), content()), property));
}

// G7
#[test]
fn so_does_touching_the_parts_that_differ() {
    type Parts = BTreeMap<u8, Fragment>;
    let property = |(from, to): (Parts, Parts), changes: &Cell<usize>| touch(&from, &to, changes);
    Namespace::new("touched").enter(|| assert_property(8, &(parts(), parts()), property));
}

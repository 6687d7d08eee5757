//! Refusals: the kernel carries out no command of the batch, and the errors name the commands and elements that it refused.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use nft::{
    ChainType, Command, DataType, Element, Family, Field, Operand, Rule, Set, SetFlags, Statement, Table, TableContent,
    TableName, Value, ValueType, Verdict,
};

use crate::fixtures::{TCP, base, chain, interval, ip, range, types};
use crate::support::{
    assert_committed, commands, commit, connect, in_namespace, kernel_has, read, read_set, refused, sorted,
};

fn name() -> TableName {
    TableName::new(Family::Ip, "refusals")
}

fn table() -> Command {
    Command::AddTable(Table { name: name(), comment: None })
}

/// The element `10.b.c.d`, where b, c and d are the last three bytes of the number.
fn address(number: u32) -> Element {
    let [_, b, c, d] = number.to_be_bytes();
    Element::new(ip([10, b, c, d]))
}

fn set(set_name: &'static str, flags: SetFlags) -> Arc<Set> {
    Arc::new(Set { flags, ..Set::new(set_name, types(&[DataType::Ipv4Addr])) })
}

fn add(set: &Arc<Set>, elements: Vec<Element>) -> Command {
    Command::AddElements(name(), Arc::clone(set), elements.into())
}

#[test]
fn one_bad_element_of_5000_is_named_and_nothing_stays() {
    in_namespace(|| {
        let value = ValueType::Data(types(&[DataType::InetService]));
        let ports = Arc::new(Set::map("ports", types(&[DataType::Ipv4Addr]), value));
        let to = |n: u32, port: u16| Element { value: Value::Data(port.into()), ..address(n) };
        commit(&[table(), Command::AddSet(name(), Arc::clone(&ports)), add(&ports, vec![to(4_321, 79)])]);
        let before = read(&name());
        let batch = [
            Command::AddChain(name(), chain("later", vec![]).0),
            add(&ports, (10_000..10_005).map(|n| to(n, 80)).collect()),
            add(&ports, (0..5_000).map(|n| to(n, 80)).collect()),
        ];
        let refusals = refused(&batch);
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        let refusal = &refusals[0];
        assert_eq!((refusal.command, refusal.element, refusal.errno), (Some(2), Some(4_321), libc::EEXIST));
        assert_eq!(refusal.object, "add element ip refusals ports { 10.0.16.225 : 80 }");
        assert!(refusal.to_string().contains("File exists"), "{refusal}");
        assert_eq!(read(&name()), before, "rolled back");
    });
}

#[test]
fn every_bad_command_of_a_batch_is_named() {
    in_namespace(|| {
        let missing = set("missing", SetFlags::default());
        commit(&[table()]);
        let batch = [
            Command::AddChain(name(), chain("fine", vec![]).0),
            add(&missing, vec![address(1)]),
            Command::AddRule(name(), "nowhere".into(), Rule::new([Statement::Counter])),
            Command::DeleteChain(name(), "missing".into()),
        ];
        let refusals = refused(&batch);
        let named: Vec<_> = refusals.iter().map(|r| (r.command, r.errno)).collect();
        assert_eq!(named, [1, 2, 3].map(|command| (Some(command), libc::ENOENT)));
        assert!(refusals[1].object.starts_with("add rule ip refusals nowhere"), "{}", refusals[1].object);
        assert_eq!(refusals[2].object, "delete chain ip refusals missing");
        assert!(read(&name()).chains.is_empty());
    });
}

#[test]
fn more_errors_than_the_receive_buffer_holds_do_not_hide_that_it_failed() {
    in_namespace(|| {
        commit(&[table()]);
        let bad = |n: usize| Command::DeleteChain(name(), format!("no-{n}").into());
        let refusals = refused(&(0..20_000).map(bad).collect::<Vec<_>>());
        assert_eq!(refusals[0].command, Some(0));
        assert_eq!(refusals[0].object, "delete chain ip refusals no-0");
    });
}

#[test]
fn a_verdict_to_a_missing_chain_names_its_element() {
    in_namespace(|| {
        let verdicts = Arc::new(Set::map("verdicts", types(&[DataType::Ipv4Addr]), ValueType::Verdict));
        let goto = |n: u32, to: &str| Element {
            value: Value::Verdict(Verdict::Goto(to.into())),
            comment: Some(format!("demo/web-{n}").into()),
            ..address(n)
        };
        let mut elements: Vec<Element> = (0..100).map(|n| goto(n, "there")).collect();
        elements[57] = goto(57, "nowhere");
        let refusals = refused(&[
            table(),
            Command::AddChain(name(), chain("there", vec![]).0),
            Command::AddSet(name(), Arc::clone(&verdicts)),
            add(&verdicts, elements),
        ]);
        let refusal = &refusals[0];
        assert_eq!((refusal.command, refusal.element, refusal.errno), (Some(3), Some(57), libc::ENOENT));
        assert!(refusal.object.contains("demo/web-57"), "{refusal}");
        assert_eq!(connect().read_table(&name()).expect("readable"), None);
    });
}

#[test]
fn an_object_in_use_is_kept() {
    in_namespace(|| {
        let used = set("used", SetFlags::default());
        let matches = Statement::Match(vec![Field::IpSaddr], Operand::InSet("used".into()));
        let chains = vec![chain("rules", vec![Rule::new([matches])])];
        let content = TableContent {
            flowtables: Vec::new(),
            table: Table { name: name(), comment: None },
            sets: vec![(Arc::clone(&used), vec![address(1)])],
            chains,
        };
        commit(&commands(&content));
        let refusals = refused(&[Command::DeleteSet(name(), Arc::clone(&used))]);
        assert_eq!((refusals[0].command, refusals[0].errno), (Some(0), libc::EBUSY));
        assert_committed(&content);
    });
}

#[test]
fn elements_that_are_destroyed_need_not_exist() {
    in_namespace(|| {
        let timed = set("timed", SetFlags { timeout: true, ..SetFlags::default() });
        let destroy = |list: Vec<Element>| Command::DestroyElements(name(), Arc::clone(&timed), list.into());
        let trial = [table(), Command::AddSet(name(), Arc::clone(&timed)), destroy(vec![address(1)])];
        if !kernel_has("elements that are destroyed", (6, 3), &name(), &trial) {
            return;
        }
        let short = Element { timeout: Some(Duration::from_millis(1)), ..address(2) };
        commit(&[
            table(),
            Command::AddSet(name(), Arc::clone(&timed)),
            add(&timed, vec![address(1), short, address(3)]),
        ]);
        sleep(Duration::from_millis(50));
        // One element that exists, one that expired, one that never existed, and the first again.
        commit(&[destroy(vec![address(1), address(2), address(4), address(1)])]);
        assert_eq!(read_set(&name(), &timed), [address(3)]);
        commit(&[destroy((0..5_000).map(address).collect())]);
        assert_eq!(read_set(&name(), &timed), []);
        let missing = set("missing", SetFlags::default());
        let refusals = refused(&[Command::DestroyElements(name(), missing, vec![address(1)].into())]);
        assert_eq!((refusals[0].command, refusals[0].errno), (Some(0), libc::ENOENT));
        assert_eq!(refusals[0].object, "destroy element ip refusals missing { 10.0.0.1 }");
    });
}

#[test]
fn of_elements_that_are_deleted_one_by_one_each_missing_one_is_named() {
    in_namespace(|| {
        let plain = set("plain", SetFlags::default());
        commit(&[table(), Command::AddSet(name(), Arc::clone(&plain)), add(&plain, (0..1_000).map(address).collect())]);
        let delete = |n| Command::DeleteElements(name(), Arc::clone(&plain), vec![address(n)].into());
        let refusals = refused(&(0..1_010).chain([7]).map(delete).collect::<Vec<_>>());
        let named: Vec<_> = refusals.iter().map(|refusal| (refusal.command, refusal.element)).collect();
        assert_eq!(named, (1_000..1_011).map(|n| (Some(n), Some(0))).collect::<Vec<_>>());
        assert!(refusals.iter().all(nft::Refusal::is_missing), "{refusals:?}");
    });
}

#[test]
fn edges_of_intervals_are_kept() {
    in_namespace(|| {
        let ranges = vec![
            range([0, 0, 0, 0], [0, 0, 0, 0]),
            range([10, 0, 0, 0], [10, 0, 0, 127]),
            // This range begins right behind the end of the previous range, and the kernel keeps the two ranges apart.
            range([10, 0, 0, 128], [10, 0, 0, 255]),
            range([255, 255, 255, 254], [255, 255, 255, 255]),
        ];
        let everything = vec![range([0, 0, 0, 0], [255, 255, 255, 255])];
        let wide = [DataType::Ipv4Addr, DataType::InetService];
        let concat = Arc::new(Set { flags: interval(), ..Set::new("concat", types(&wide)) });
        let from_to = |from: [u8; 4], to: [u8; 4], ports: (u16, u16)| Element {
            key_end: Some(Box::new(ip(to).then(ports.1))),
            ..Element::new(ip(from).then(ports.0))
        };
        let content = TableContent {
            flowtables: Vec::new(),
            table: Table { name: name(), comment: None },
            sets: vec![
                (set("ranges", interval()), ranges),
                (set("everything", interval()), everything),
                (concat, vec![from_to([0; 4], [255; 4], (0, 79)), from_to([10, 0, 0, 1], [10, 0, 0, 1], (80, 65_535))]),
            ],
            chains: vec![],
        };
        commit(&commands(&content));
        assert_committed(&content);
        for (set, elements) in &content.sets {
            assert_eq!(read_set(&name(), set), sorted(elements.clone()), "{}", set.name);
        }
        let delete = |(set, elements): &(Arc<Set>, Vec<Element>)| {
            Command::DeleteElements(name(), Arc::clone(set), elements[..1].into())
        };
        commit(&content.sets.iter().map(delete).collect::<Vec<_>>());
        let left = content.sets.iter().map(|(set, list)| (Arc::clone(set), list[1..].to_vec())).collect();
        assert_committed(&TableContent { sets: left, ..content });
    });
}

#[test]
fn a_hundred_thousand_elements_and_four_thousand_chains_are_one_commit() {
    in_namespace(|| {
        let verdicts = Arc::new(Set {
            size: Some(131_072),
            ..Set::map("verdicts", types(&[DataType::Ipv4Addr]), ValueType::Verdict)
        });
        let counted =
            || Rule::new([Statement::Match(vec![Field::L4Proto], Operand::Is(TCP.into())), Statement::Counter]);
        let target = |n: u32| format!("chain-{}", n % 4_000);
        let goto = |n| Element { value: Value::Verdict(Verdict::Goto(target(n).into())), ..address(n) };
        let mut chains: Vec<_> = (0..4_000).map(|n| chain(&target(n), vec![counted()])).collect();
        let dispatch = Statement::Vmap(vec![Field::IpDaddr], "verdicts".into());
        chains.push(base(ChainType::Nat, vec![Rule::new([dispatch])]));
        let content = TableContent {
            flowtables: Vec::new(),
            table: Table { name: name(), comment: None },
            sets: vec![(verdicts, (0..100_000).map(goto).collect())],
            chains,
        };
        let before = connect().generation().expect("a generation");
        commit(&commands(&content));
        assert_eq!(connect().generation().expect("a generation"), before + 1);
        assert_committed(&content);
    });
}
